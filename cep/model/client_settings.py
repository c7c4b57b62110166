"""Names of a settings file that clients may get → the names themselves, or why one is refused.

A repository may bring its own `cep.toml`, so a settings file must not make a verb load code, run a command, or carry a
secret. Clients have settings that do so, and get new ones with each version. A name that is not listed here is refused.
Tested by: tests/model/test_client_settings.py
"""

import re
from collections.abc import Mapping

from pydantic import SecretStr

# librdkafka's names. Not here: `plugin.library.paths`, `ssl.engine.*` and `ssl.providers` load code; `sasl.kerberos.*`
# and the mechanism GSSAPI run a shell command; `*_cb` and `opaque` are objects.
_KAFKA = re.compile(
    r"client\.(id|rack|dns\.lookup)|security\.protocol|sasl\.(mechanisms?|username|password)"
    r"|sasl\.oauthbearer\.(method|config|extensions|client\.id|client\.secret|scope|token\.endpoint\.url)"
    r"|ssl\.(ca|certificate|key)\.(location|pem)|ssl\.(key|keystore)\.password|ssl\.(keystore|crl)\.location"
    r"|ssl\.(cipher\.suites|curves\.list|sigalgs\.list|endpoint\.identification\.algorithm)"
    r"|enable\.ssl\.certificate\.verification|https\.ca\.(location|pem)"
    r"|(socket|broker|metadata|topic\.metadata|reconnect|retry|fetch|queued|queue\.buffering|message|request|session"
    r"|heartbeat|api\.version|connections|compression|batch|linger|delivery|max|transaction)\.[a-z.]+"
    r"|debug|log_level|log\.connection\.close|retries|acks|check\.crcs|statistics\.interval\.ms"
)
_KAFKA_SECRETS = (
    "sasl.password",
    "sasl.oauthbearer.client.secret",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.keystore.password",
)
_REGISTRY = re.compile(
    r"url|timeout|max\.retries|retries\.(wait|max\.wait)\.ms|cache\.capacity|cache\.latest\.ttl\.sec|proxy"
    r"|basic\.auth\.(user\.info|credentials\.source)|ssl\.(ca|certificate|key)\.location|ssl\.key\.password"
    r"|bearer\.auth\.(credentials\.source|token|client\.id|client\.secret|scope|issuer\.endpoint\.url"
    r"|logical\.cluster|identity\.pool\.id)"
)
_REGISTRY_SECRETS = ("basic.auth.user.info", "bearer.auth.token", "bearer.auth.client.secret", "ssl.key.password")
# Spark's names. Not here: whatever names jars, options of Java, classes that listen, or scripts.
_SPARK = re.compile(
    r"spark\.(driver|executor)\.(memory|memoryOverhead|memoryOverheadFactor|cores|instances|maxResultSize|host|port"
    r"|bindAddress|heartbeatInterval)|spark\.default\.parallelism|spark\.cores\.max|spark\.master|spark\.app\.name|spark\.(local|eventLog)\.dir"
    r"|spark\.python\.worker\.[A-Za-z.]+"
    r"|spark\.(sql|ui|memory|network|shuffle|rpc|task|locality|eventLog|hadoop\.fs)\.[A-Za-z0-9_.-]+"
)
_SPARK_CODE = re.compile(
    r"(?i)jar|package|class|plugin|listener|extension|option|script|command|pyspark|provider|crypto|impl\b"
)
_SPARK_SECRET = re.compile(r"(?i)secret|password|token|access\.key|account\.key")
_REFERENCES = ("env:", "file:")


def kafka_names(values: dict[str, SecretStr]) -> dict[str, SecretStr]:
    """Check the settings of the Kafka client, before `env:NAME` is read. Raises: ValueError."""
    _check(values, _KAFKA, _KAFKA_SECRETS, "the Kafka client")
    for name in ("sasl.mechanism", "sasl.mechanisms"):
        if name in values and values[name].get_secret_value().strip().upper() == "GSSAPI":
            raise ValueError(f"`{name}` = GSSAPI runs `kinit` in a shell; use SCRAM, OAUTHBEARER or a certificate")
    protocol = values["security.protocol"].get_secret_value().lower() if "security.protocol" in values else ""
    if protocol.startswith("sasl") and not {"sasl.mechanism", "sasl.mechanisms"} & values.keys():
        raise ValueError("`sasl.mechanism` is missing, and librdkafka's default runs `kinit` in a shell; name one")
    return values


def registry_names(values: dict[str, SecretStr]) -> dict[str, SecretStr]:
    """Check the settings of the schema registry's client, before `env:NAME` is read. Raises: ValueError."""
    _check(values, _REGISTRY, _REGISTRY_SECRETS, "the client of a schema registry")
    return values


def spark_names(values: dict[str, str]) -> dict[str, str]:
    """Check the settings of Spark. Raises: ValueError."""
    for name in values:
        if _SPARK.fullmatch(name) is None or _SPARK_CODE.search(name):
            raise ValueError(
                f"`{name}` is none of the settings of Spark that a settings file may have, because others load code or "
                "run commands; put it into `spark-defaults.conf` of SPARK_CONF_DIR, options of Java into "
                "CEP_JAVA_OPTIONS"
            )
        if _SPARK_SECRET.search(name):
            raise ValueError(f"`{name}` is a secret; put it into `spark-defaults.conf` of SPARK_CONF_DIR")
    return values


def switched_off(values: Mapping[str, SecretStr]) -> list[str]:
    """Return the settings of the Kafka client that switch the check of the brokers' certificates off."""
    texts = {name: value.get_secret_value().strip().lower() for name, value in values.items()}
    off = [
        ("enable.ssl.certificate.verification", ("false", "f", "0")),
        ("ssl.endpoint.identification.algorithm", ("none", "")),
    ]
    return [f"{name} = {texts[name]}" for name, values_off in off if texts.get(name, "-") in values_off]


def _check(values: Mapping[str, SecretStr], allowed: re.Pattern[str], secret: tuple[str, ...], client: str) -> None:
    for name, value in values.items():
        if allowed.fullmatch(name) is None:
            raise ValueError(
                f"`{name}` is none of the settings of {client} that a settings file may have, because others load code "
                "or run commands; leave it out"
            )
        if name in secret and not value.get_secret_value().startswith(_REFERENCES):
            raise ValueError(f"`{name}` is a secret, which must not be in a file; write `env:NAME` or `file:PATH`")
