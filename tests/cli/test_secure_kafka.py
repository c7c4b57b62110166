"""TLS, a password, a client's certificate, on a real broker: wrong settings give a message without secrets."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cep.base.exits import Exit
from cep.cli.main import main
from tests.real_kafka import NoBrokerError
from tests.runners.embedded.cases import deployment, expected, morning
from tests.runners.embedded.test_run import ROOT, consumed
from tests.secure_kafka import PASSWORD, STORE_PASSWORD, SecureKafka

pytestmark = [pytest.mark.slow, pytest.mark.always]
SECRETS = ("sasl.password", "ssl.keystore.password")


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    try:
        with SecureKafka(tmp_path_factory.mktemp("certificates")) as kafka:
            yield kafka
    except NoBrokerError as error:
        raise pytest.skip.Exception(str(error)) from error


def settings_file(folder: Path, client: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a settings file whose secrets are in the environment."""
    lines = ["[kafka.client]"]
    for name, value in client.items():
        variable = name.upper().replace(".", "_")
        if name in SECRETS:
            monkeypatch.setenv(variable, value)
        lines.append(f'"{name}" = "{f"env:{variable}" if name in SECRETS else value}"')
    path = folder / "cep.toml"
    path.write_text("\n".join(lines))
    return path


def shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the job's messages; check that none of its files has a secret."""
    for path in folder.rglob("*"):
        if path.is_file():
            assert not any(secret.encode() in path.read_bytes() for secret in (PASSWORD, STORE_PASSWORD)), path
    printed = capsys.readouterr()
    assert not any(secret in printed.out + printed.err for secret in (PASSWORD, STORE_PASSWORD, "wrong-5512"))
    return printed.err


@pytest.mark.parametrize("listener", ["login", "mutual"])
def test_a_job_over_tls(
    listener: str, secure: SecureKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    events, alerts, control = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("events", "alerts", "control"))
    for topic in (events, alerts):
        secure.create(topic, 1)
    lines = list(morning())
    secure.send(events, [{"value": line, "partition": 0} for line in lines])
    client = secure.login_settings() if listener == "login" else secure.mutual_settings()
    arguments = [
        "run", "--conf", str(settings_file(tmp_path, client, monkeypatch)), "--rules", str(ROOT / "rules"),
        "--bootstrap-servers", getattr(secure, listener), "--topic", events, "--alerts", f"kafka:{alerts}",
        "--control-topic", control, "--status-topic", f"{control}-status", "--changelog", f"{control}-state",
        "--checkpoint", str(tmp_path / "job"), "--available-now",
    ]  # fmt: skip
    assert main(arguments) == 0
    shown(tmp_path, capsys)
    expected_alerts = sorted(expected(lines, deployment(), tmp_path))
    assert expected_alerts
    assert (
        sorted(consumed(secure.address, alerts, lambda values: len(values) >= len(expected_alerts))) == expected_alerts
    )


@pytest.mark.parametrize(
    ("listener", "client", "reason"),
    [
        ("login", {"ssl.ca.location": "other-ca.pem"}, "certificate does not count: unable to get local issuer"),
        ("login", {"sasl.password": "wrong-5512"}, "invalid credentials with SASL mechanism SCRAM-SHA-512"),
        ("expired", {}, "the broker's certificate does not count: certificate has expired"),
        ("mutual", {"security.protocol": "SSL"}, "takes no client without a certificate that it trusts"),
        ("login", {"ssl.ca.location": "none.pem"}, "ssl.ca.location"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_at_once(
    listener: str, client: dict[str, str], reason: str, secure: SecureKafka, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    client_settings = {**secure.login_settings(), **client}
    client_settings["ssl.ca.location"] = str(secure.certificates / Path(client_settings["ssl.ca.location"]).name)
    conf = settings_file(tmp_path, client_settings, monkeypatch)
    fixed = ["--conf", str(conf), "--bootstrap-servers", getattr(secure, listener), "--control-topic", "control"]
    for verb in (["run", "--rules", str(ROOT / "rules"), "--topic", "events"], ["job", "heartbeat"]):
        assert main([*verb, *fixed]) == Exit.USAGE
        assert reason in shown(tmp_path, capsys)
