"""Examples for those who run a job: settings that can be used, a manifest that fits them, a job under spark-submit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from cep.model.settings import read_settings

ROOT = Path(__file__).parents[2]
WAIT_S = 300


def test_the_settings_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAFKA_USER", "KAFKA_PASSWORD"):
        monkeypatch.setenv(name, "x")
    settings = read_settings(ROOT / "demo" / "cep.toml", {})
    manifest = (ROOT / "demo" / "kubernetes.yaml").read_text()
    assert settings.observe.listen == ("0.0.0.0", 9464)
    assert set(re.findall(r"(?:containerPort: |port: )\"?(\d+)", manifest)) == {"9464"}
    (volume,) = re.findall(r"name: state, mountPath: (\S+)}", manifest)
    assert str(settings.job.checkpoint).startswith(volume)


@pytest.mark.spark
@pytest.mark.slow
def test_spark_submit(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    event = {"card_id": "c1", "account_id": "a1", "status": "approved", "channel": "ecom", "country": "FR"}
    lines = [
        orjson.dumps({**event, "tx_id": f"t{n}", "event_time": f"2026-03-01T10:00:{n}0Z", "amount": amount})
        for n, amount in enumerate((0.5, 640.0))
    ]
    (tmp_path / "events" / "a.jsonl").write_bytes(b"\n".join(lines))
    submit = Path(sys.executable).with_name("spark-submit")
    options = ("--master", "local[1]", "--driver-memory", "700m", str(ROOT / "demo" / "submit.py"))
    words = (
        "live", "--rules", str(ROOT / "rules"), "--events", str(tmp_path / "events"), "--key-groups", "4",
        "--checkpoint", str(tmp_path / "job"), "--alerts", str(tmp_path / "alerts"), "--available-now",
    )  # fmt: skip
    done = subprocess.run(
        [str(submit), *options, *words], capture_output=True, text=True, timeout=WAIT_S, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4_000:]
    assert "small_then_large" in "".join(path.read_text() for path in (tmp_path / "alerts").rglob("*.jsonl"))
