"""`cep live` over Avro and framed JSON, with schemas in Apicurio's registry, gives the alerts of a replay."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.real_kafka import KafkaCluster
from tests.runners.embedded.cases import day, deployment, expected
from tests.runners.embedded.test_run import written
from tests.runners.spark.live_cases import ROOT
from tests.sources.registry.test_real_registry import apicurio, values_of
from tests.spark_versions import on_this_spark

__all__ = ["apicurio"]
WAIT_S = 300


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("form", ["avro", "json"])
def test_a_job_gives_the_alerts_of_the_replay(
    form: str, apicurio: str, kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    topic, lines = f"{form}-{uuid.uuid4().hex[:8]}", list(day())
    kafka_broker.create(topic)
    kafka_broker.send(topic, [{"value": value, "partition": 0} for value in values_of(form, apicurio, topic, lines)])
    (tmp_path / "cep.toml").write_text(f"[events.registry]\nurl = {json.dumps(apicurio)}\n")
    words = [
        "live", "--conf", str(tmp_path / "cep.toml"), "--rules", str(ROOT / "rules"), "--bootstrap-servers",
        kafka_broker.address, "--topic", topic, "--format", form, "--checkpoint", str(tmp_path / "job"), "--alerts",
        str(tmp_path / "alerts"), "--key-groups", "4", "--available-now",
    ]  # fmt: skip
    command = [sys.executable, "-c", "import sys; from cep.cli.main import main; sys.exit(main())", *words]
    process = subprocess.run(
        command, env=on_this_spark(), capture_output=True, text=True, check=False,
        timeout=WAIT_S, cwd=ROOT,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert sorted(written(tmp_path / "alerts")) == sorted(expected(lines, deployment(), tmp_path))
