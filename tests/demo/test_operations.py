"""Examples for those who run a job: settings that can be used, a manifest that fits them, a job under spark-submit."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import yaml

from cep.cli import live
from cep.model.settings import Settings, read_settings

ROOT = Path(__file__).parents[2]
WAIT_S = 300


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in ("KAFKA_USER", "KAFKA_PASSWORD", "CEP_TOKEN"):
        monkeypatch.setenv(name, "x")
    return read_settings(ROOT / "demo" / "cep.toml", {})


def test_the_manifest_runs_the_job_of_the_settings(settings: Settings) -> None:
    given, job = yaml.safe_load_all((ROOT / "demo" / "kubernetes.yaml").read_text())
    assert (given["kind"], job["kind"], job["spec"]["replicas"]) == ("ConfigMap", "StatefulSet", 1)
    assert given["data"] == {"cep.toml": (ROOT / "demo" / "cep.toml").read_text()}
    template = job["spec"]["template"]
    assert job["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    pod, claims = template["spec"], job["spec"]["volumeClaimTemplates"]
    (container,) = pod["containers"]
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    named = [volume["name"] for volume in pod["volumes"]] + [claim["metadata"]["name"] for claim in claims]
    assert sorted(mounts) == sorted(named)
    (volume,) = pod["volumes"]
    assert volume["configMap"]["name"] == given["metadata"]["name"]
    # What it starts is a command there is, with the settings where they are mounted.
    parser = argparse.ArgumentParser()
    live.add_arguments(parser)
    assert container["command"][:2] == ["cep", "live"]
    assert parser.parse_args(container["command"][2:]).conf == mounts["settings"] / "cep.toml"
    assert settings.job.checkpoint is not None
    assert settings.job.checkpoint.is_relative_to(mounts["state"])
    # Where it is asked for its health is where it answers, and so is where metrics are fetched.
    (port,) = container["ports"]
    assert settings.observe.listen == ("0.0.0.0", port["containerPort"])
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    probes = {"startupProbe": "/live", "livenessProbe": "/live", "readinessProbe": "/ready"}
    assert all(container[probe]["httpGet"] == {"path": path, "port": port["name"]} for probe, path in probes.items())


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
