"""`cep live` over TLS with a password, and with a client's certificate, gives the alerts of a replay."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.cli.test_outage import secure, settings_file, shown
from tests.runners.embedded.cases import deployment, expected, morning
from tests.runners.embedded.test_run import consumed
from tests.runners.spark.live_cases import ROOT
from tests.secure_kafka import SecureKafka
from tests.spark_versions import on_this_spark

__all__ = ["secure"]
WAIT_S = 300


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("listener", ["login", "mutual"])
def test_a_job_over_tls(
    listener: str, secure: SecureKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    events, alerts = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("events", "alerts"))
    for topic in (events, alerts):
        secure.create(topic, 1)
    lines = list(morning())
    secure.send(events, [{"value": line, "partition": 0} for line in lines])
    client = secure.login_settings() if listener == "login" else secure.mutual_settings()
    conf = settings_file(tmp_path, client, monkeypatch)
    words = [
        "live", "--conf", str(conf), "--rules", str(ROOT / "rules"), "--bootstrap-servers", getattr(secure, listener),
        "--topic", events, "--alerts", f"kafka:{alerts}", "--checkpoint", str(tmp_path / "job"),
        "--key-groups", "4", "--available-now",
    ]  # fmt: skip
    command = [sys.executable, "-c", "import sys; from cep.cli.main import main; sys.exit(main())", *words]
    process = subprocess.run(
        command, env=on_this_spark(), capture_output=True, text=True, check=False,
        timeout=WAIT_S, cwd=ROOT,
    )  # fmt: skip
    print(process.stdout, process.stderr)
    assert process.returncode == 0, process.stderr
    shown(tmp_path, capsys)
    expected_alerts = sorted(expected(lines, deployment(), tmp_path))
    assert (
        sorted(consumed(secure.address, alerts, lambda values: len(values) >= len(expected_alerts))) == expected_alerts
    )
