"""An Apache Kafka broker whose listeners ask for TLS, a password or a client's certificate, all made here.

    address   plaintext, for the test itself
    login     SASL_SSL: SCRAM-SHA-512, user `cep`
    mutual    SSL that asks the client for a certificate
    expired   SASL_SSL whose certificate was good until yesterday

Tested by: tests/cli/test_outage.py
"""

import datetime as dt
import ipaddress
import socket
from contextlib import ExitStack
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

from tests.real_kafka import RealKafka

USER, PASSWORD, STORE_PASSWORD = "cep", "not-to-be-seen-7f3a", "nor-this-91bc"
_DAY = dt.timedelta(days=1)
_PROPERTIES = """
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port},{more}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},{more}
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,LOGIN:SASL_SSL,MUTUAL:SSL,EXPIRED:SASL_SSL
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.login.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.expired.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location={folder}/server.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
listener.name.mutual.ssl.client.auth=required
listener.name.expired.ssl.keystore.type=PEM
listener.name.expired.ssl.keystore.location={folder}/expired.pem
"""


class Authority:
    def __init__(self, name: str) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._signed(self.name, self.key.public_key(), is_authority=True)

    def pem(self) -> bytes:
        """Return the certificate that clients trust."""
        return self.certificate.public_bytes(Encoding.PEM)

    def issued(self, name: str, days: int = 30) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        """Return a key and its certificate for this machine, valid for `days` days."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return key, self._signed(subject, key.public_key(), days=days)

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, days: int = 30, is_authority: bool = False
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 60 * _DAY)
            .not_valid_after(now + days * _DAY)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if not is_authority:
            builder = builder.add_extension(x509.SubjectAlternativeName(here), critical=False)
        return builder.sign(self.key, hashes.SHA256())


class SecureKafka(RealKafka):
    """One broker with four listeners; `certificates` is a folder with its clients' files. Raises: NoBrokerError."""

    def __init__(self, certificates: Path) -> None:
        self.certificates = certificates
        authority = Authority("the tests' authority")
        (certificates / "ca.pem").write_bytes(authority.pem())
        (certificates / "other-ca.pem").write_bytes(Authority("somebody else").pem())
        for name, days in (("server", 30), ("expired", -1)):
            key, certificate = authority.issued("localhost", days)
            pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            (certificates / f"{name}.pem").write_bytes(pem + certificate.public_bytes(Encoding.PEM))
        key, certificate = authority.issued("a client")
        store = pkcs12.serialize_key_and_certificates(
            b"client", key, certificate, None, BestAvailableEncryption(STORE_PASSWORD.encode())
        )
        (certificates / "client.p12").write_bytes(store)
        super().__init__()

    def login_settings(self, password: str = PASSWORD, authority: str = "ca.pem") -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.certificates / authority),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": password,
        }

    def mutual_settings(self) -> dict[str, str]:
        return {
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.certificates / "ca.pem"),
            "ssl.keystore.location": str(self.certificates / "client.p12"),
            "ssl.keystore.password": STORE_PASSWORD,
        }

    def _properties(self, port: int, controller_port: int) -> str:
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
            for one in sockets:
                one.bind(("127.0.0.1", 0))
            ports = [one.getsockname()[1] for one in sockets]
        self.login, self.mutual, self.expired = (f"127.0.0.1:{number}" for number in ports)
        names = ("LOGIN", "MUTUAL", "EXPIRED")
        more = ",".join(f"{name}://127.0.0.1:{number}" for name, number in zip(names, ports, strict=True))
        return super()._properties(port, controller_port) + _PROPERTIES.format(
            port=port, controller_port=controller_port, more=more, folder=self.certificates
        )

    def _format_words(self) -> list[str]:
        return ["--add-scram", f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"]
