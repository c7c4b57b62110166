"""A job with a backlog: /ready and /health agree, and the lag is known."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_run import RULES, free_port
from tests.real_kafka import KafkaCluster
from tests.runners.embedded.cases import day
from tests.runners.embedded.test_run import ROOT, start
from tests.spark_versions import on_this_spark

WAIT_S = 60


@pytest.mark.parametrize("runner", ["run", pytest.param("live", marks=[pytest.mark.spark, pytest.mark.slow])])
def test_a_job_with_a_backlog_is_not_ready_and_says_how_much_waits(
    runner: str, kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    """During the work on the backlog, every answer has the lag, and both pages agree."""
    topic, port, answers = f"backlog-{uuid.uuid4().hex[:8]}", free_port(), list[dict[str, Any]]()
    kafka_broker.create(topic, 1)
    lines = day()
    kafka_broker.send(topic, ({"value": line, "partition": 0} for line in lines))

    def ask(process: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert process.poll() is None, process.stderr.read() if process.stderr is not None else ""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                return dict(json.loads(answer.read()))
        except urllib.error.HTTPError as error:
            with error:
                return dict(json.loads(error.read()))
        except OSError:
            return {"ready": False, "lag_records": None}  # it does not listen yet

    words = (
        "--rules", RULES, "--bootstrap-servers", kafka_broker.address, "--topic", topic,
        "--max-records", "20" if runner == "run" else str(len(lines) // 3),
        "--checkpoint", str(tmp_path / "job"), "--alerts", str(tmp_path / "alerts"), "--listen", str(port),
    )  # fmt: skip
    process = start(*words) if runner == "run" else start_live(*words)
    try:
        while not answers or not answers[-1]["ready"]:
            answers.append(ask(process))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
    assert process.returncode == 0
    lags = [answer["lag_records"] for answer in answers if answer["lag_records"] is not None]
    assert lags[-1] == 0
    assert max(lags) > 0, "a backlog was seen"
    assert all(answer["lag_records"] is not None for answer in answers if answer["ready"])
    if runner == "live":
        first = [answer for answer in answers if answer.get("batch_id") == -1]
        assert any((answer["lag_records"] or 0) > 0 for answer in first), "known before the first micro-batch"
        assert not any(answer["ready"] for answer in first)


def start_live(*words: str) -> subprocess.Popen[bytes]:
    """Start `cep live`."""
    command = [sys.executable, "-c", "from cep.cli.main import entry; entry()", "live", *words]
    return subprocess.Popen(command, env={**on_this_spark(), "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE)
