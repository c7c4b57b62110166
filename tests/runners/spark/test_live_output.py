"""Rows of a micro-batch end in the same place, however often the micro-batch comes."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pyarrow as pa

from cep.runners.live_progress import read_progress
from cep.runners.output import encode_alerts
from cep.runners.spark.live_output import BatchReport, LiveOutput
from cep.runners.spark.packed import ALERTS, COUNTERS, DEAD, LATE
from cep.sinks.files import FileSink, read_alerts
from cep.sinks.letters import LetterFiles
from tests.sinks.alerts import alert_table


def micro_batch(first: int) -> pa.Table:
    """Two alerts from two tasks, a dead letter, two late events, counters."""
    found = [
        (ALERTS, encode_alerts(alert_table(first + 1, 1))),
        (COUNTERS, b'{"events": 5, "alerts[x@1]": 1}'),
        (LATE, json.dumps([{"event_id": "b"}, {"event_id": "a"}]).encode()),
        (DEAD, b'{"code": "unreadable"}'),
        (ALERTS, encode_alerts(alert_table(first, 1))),
        (COUNTERS, b'{"events": 2}'),
    ]
    kinds, payloads = zip(*found, strict=True)
    return pa.table({"kind": pa.array(kinds), "payload": pa.array(payloads, pa.binary())})


def test_a_micro_batch_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    reports: list[BatchReport] = []

    def output() -> LiveOutput:
        return LiveOutput(tmp_path, LetterFiles(tmp_path / "letters"), [FileSink(tmp_path / "alerts")], reports.append)

    assert read_progress(tmp_path)[0] == -1
    output().take_table(micro_batch(0), 0)
    second = output()
    second.take_table(micro_batch(10), 1)
    second.take_table(micro_batch(10), 1)
    third = output()
    third.take_table(micro_batch(10), 1)
    third.close()
    assert read_progress(tmp_path) == (1, {"events": 14, "alerts[x@1]": 2})
    assert reports[-1].counters == {"events": 7, "alerts[x@1]": 1}
    assert len(list(read_alerts(tmp_path / "alerts"))) == 4
    letters = [orjson.loads(line) for line in (tmp_path / "letters" / f"batch-{1:019}.jsonl").read_bytes().splitlines()]
    assert letters == [{"code": "unreadable"}, {"code": "late", "event_id": "a"}, {"code": "late", "event_id": "b"}]


def test_a_micro_batch_without_rows(tmp_path: Path) -> None:
    rows = pa.table({"kind": pa.array([], pa.string()), "payload": pa.array([], pa.binary())})
    LiveOutput(tmp_path, LetterFiles(tmp_path / "letters"), []).take_table(rows, 3)
    assert read_progress(tmp_path) == (3, {})
    assert not (tmp_path / "letters").exists()
