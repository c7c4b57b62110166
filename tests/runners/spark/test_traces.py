"""`cep live --traces`: a span for each micro-batch of Spark, with its phases, at a receiver of the real protocol."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.runners.embedded.cases import morning
from tests.runners.spark.live_cases import ROOT
from tests.runners.test_traces import Receiver, facts, receiver
from tests.spark_versions import on_this_spark

__all__ = ["receiver"]
WAIT_S = 300


@pytest.mark.spark
@pytest.mark.slow
def test_a_job_sends_its_micro_batches(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    lines = morning()
    for number in range(2):
        (tmp_path / "events" / f"{number}.jsonl").write_bytes(b"\n".join(lines[number::2]))
    words = [
        "live", "--rules", str(ROOT / "rules"), "--events", str(tmp_path / "events"), "--checkpoint",
        str(tmp_path / "job"), "--alerts", str(tmp_path / "alerts"), "--key-groups", "4", "--max-files", "1",
        "--traces", "--available-now",
    ]  # fmt: skip
    command = [sys.executable, "-c", "import sys; from cep.cli.main import main; sys.exit(main())", *words]
    environment = {**on_this_spark(), "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.address}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert process.returncode == 0, process.stderr
    spans = [span for _, span in receiver.spans()]
    batches = {span.span_id: span for span in spans if span.name == "micro_batch"}
    assert sum(facts(span)["cep.events"] for span in batches.values()) == len(lines)
    assert sorted(facts(span)["cep.batch_id"] for span in batches.values()) == list(range(len(batches)))
    for parent, span in batches.items():
        phases = [other for other in spans if other.parent_span_id == parent]
        assert {phase.name for phase in phases} == {"matching", "sinks", "records"}
        assert all(span.start_time_unix_nano <= phase.start_time_unix_nano for phase in phases)
        assert all(phase.end_time_unix_nano <= span.end_time_unix_nano for phase in phases)
