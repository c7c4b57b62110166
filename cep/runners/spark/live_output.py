"""Rows of one micro-batch of the live job → sinks, dead letters, running totals. In the driver, one action a batch.

    alerts        sorted, to every sink
    dead, late    JSON lines, one file for each micro-batch that has any: what was set aside, and why
    counters      added to the totals of progress.json, which goes on over restarts

Spark does a micro-batch again whose end was not recorded, with the same id and the same rows. Everything here ends in
the same place then: sinks and files by their contract, the totals because they know the last batch id that they hold.
Tested by: tests/runners/spark/test_live.py, tests/runners/spark/test_live_output.py
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame

from cep.base.errors import CepError, SinkError
from cep.engine.alerts import ALERT_SCHEMA, sort_alerts
from cep.runners.spark.packed import ALERTS, COUNTERS, LATE, WATERMARK, decode_alerts
from cep.sinks.base import AlertSink

PROGRESS_FILE = "progress.json"


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one micro-batch gave; `totals` are those of the job so far, `watermark_ms` is None if it had no records."""

    batch_id: int
    alerts: pa.Table
    counters: Counter[str]
    totals: Counter[str]
    watermark_ms: int | None = None


class StoppedBetween(Exception):  # noqa: N818 nothing went wrong
    """Ends a query between two micro-batches."""


class LiveOutput:
    """Takes micro-batches. `directory` keeps the totals, `letters_directory` what was set aside."""

    def __init__(
        self, directory: Path, letters_directory: Path, sinks: Sequence[AlertSink],
        report: Callable[[BatchReport], None] | None = None,
    ) -> None:  # fmt: skip
        self._progress_path = directory / PROGRESS_FILE
        self._letters_directory = letters_directory
        self._sinks = tuple(sinks)
        self._report = report
        self.batch_id, self.totals = read_progress(directory)
        self.failure: CepError | None = None
        self._stopping = threading.Event()
        self.refused_batch_id: int | None = None

    def stop(self) -> None:
        """Let the micro-batch that runs come to its end and refuse the next one."""
        self._stopping.set()

    def take(self, frame: DataFrame, batch_id: int) -> None:
        """For foreachBatch. Raises: SinkError, which ends the query before the micro-batch counts as done."""
        if self._stopping.is_set():
            # Only planned so far. Its end is not recorded, so it is the first one after the next start.
            self.refused_batch_id = batch_id
            raise StoppedBetween
        try:
            self.take_table(frame.toArrow(), batch_id)
        except CepError as error:
            self.failure = error  # Spark would wrap it in a page of Java
            raise

    def take_table(self, rows: pa.Table, batch_id: int) -> None:
        """Rows (kind, payload) of a micro-batch, in any order."""
        tables: list[pa.Table] = []
        letters: list[bytes] = []
        counters: Counter[str] = Counter()
        watermark_ms: int | None = None
        payloads = rows.column("payload")
        for number, kind in enumerate(rows.column("kind").to_pylist()):
            payload = payloads[number].as_py()
            if kind == ALERTS:
                tables.append(decode_alerts(payload))
            elif kind == COUNTERS:
                counters.update(json.loads(payload))
            elif kind == WATERMARK:
                watermark_ms = json.loads(payload)["ms"]
            elif kind == LATE:
                letters += [orjson.dumps({"code": "late", **event}) for event in json.loads(payload)]
            else:
                letters.append(payload)
        alerts = sort_alerts(pa.concat_tables(tables)) if tables else ALERT_SCHEMA.empty_table()
        for sink in self._sinks:
            sink.write(alerts, batch_id)
        if letters:
            # In an order of their own: rows come as tasks finish.
            _write_durably(
                self._letters_directory / f"batch-{batch_id:019d}.jsonl", b"\n".join(sorted(letters)) + b"\n"
            )
        if batch_id > self.batch_id:
            self.batch_id = batch_id
            self.totals.update(counters)
            record = {"batch_id": batch_id, "totals": dict(sorted(self.totals.items()))}
            _write_durably(self._progress_path, orjson.dumps(record, option=orjson.OPT_INDENT_2))
        if self._report is not None:
            self._report(BatchReport(batch_id, alerts, counters, self.totals, watermark_ms))

    def close(self) -> None:
        """Close the sinks."""
        for sink in self._sinks:
            sink.close()


def read_progress(directory: Path) -> tuple[int, Counter[str]]:
    """(last micro-batch, totals up to its end) of a job; (-1, nothing) for one that has not begun."""
    path = directory / PROGRESS_FILE
    if not path.exists():
        return -1, Counter()
    record = orjson.loads(path.read_bytes())
    return record["batch_id"], Counter(record["totals"])


def _write_durably(path: Path, data: bytes) -> None:
    """All or nothing: a file that was half written is never seen under its name."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise SinkError(
            f"{path} cannot be written: {error}; the job goes on from its checkpoint once it can"
        ) from error
