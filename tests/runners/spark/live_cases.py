"""A bounded stream, the rules of this repository, and a live job over both in the session of the tests."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from cep.base.schema import Field, Kind, Schema, Type
from cep.demo.stream import StreamSize, build, json_lines
from cep.model.rule import ControlRecord, HeartbeatRecord, UpsertRecord
from cep.rulebook.deploy import deploy
from cep.rulebook.files import read_rules
from cep.rulebook.rulebook import Rulebook
from cep.runners.output import BatchReport, Replayed
from cep.runners.rule_output import RuleOutput
from cep.runners.spark.live import LiveSettings, serve, start_live
from cep.runners.spark.live_output import LiveOutput
from cep.runners.spark.replay import read_events, replay
from cep.runners.spark.sources import FolderSource
from cep.sinks.files import DeadLetterFiles
from cep.sinks.json_form import json_lines as alert_lines
from cep.step.job import Job
from tests.spark_versions import on_this_spark

ROOT = Path(__file__).parents[3]
WAIT_S = 300
SIZE = StreamSize(cards_count=330)
END = HeartbeatRecord(event_time="2026-06-01T00:00:00Z").to_json()


def rules(*names: str) -> dict[str, UpsertRecord]:
    """Return rules of this repository by id, or all of them if `names` is empty."""
    return {r.id: r for r in _records() if not names or r.id in names}


@cache
def _records() -> tuple[UpsertRecord, ...]:
    records, problems = read_rules(ROOT / "rules")
    assert problems == []
    return tuple(records)


def payments(seed: int) -> list[bytes]:
    """Return payments as JSON lines in event-time order, with exact amounts."""
    table = build(seed, SIZE).payments
    minor = pc.round(pc.multiply(table["amount"].cast(pa.float64()), 100.0))
    return list(json_lines(table.set_column(4, "amount", pc.divide(minor, 100.0))))


def time_ms(line: bytes) -> int:
    return int(
        np.datetime64(orjson.loads(line.decode(errors="replace"))["event_time"].removesuffix("Z"), "ms").astype(
            np.int64
        )
    )


def disordered(lines: Sequence[bytes], lateness_ms: int, seed: int) -> list[bytes]:
    """Return the lines in order of arrival, if each is delayed by less than `lateness_ms`."""
    held_ms = np.random.default_rng(seed).random(len(lines)) * lateness_ms
    return [lines[i] for i in np.argsort(np.array([time_ms(line) for line in lines]) + held_ms, kind="stable")]


def split(lines: Sequence[bytes], parts: int) -> list[list[bytes]]:
    """Cut the lines into parts of about equal size."""
    bounds = [len(lines) * n // parts for n in range(parts + 1)]
    return [list(lines[a:b]) for a, b in itertools.pairwise(bounds)]


def make_job(records: Iterable[ControlRecord], lateness_ms: int = 0, pages_count: int = 1) -> Job:
    """Return a job for the rules, with few key groups so that a test is short."""
    deployment = deploy(records)
    assert deployment.set_aside == ()
    return Job(deployment.schema, deployment.key_domains, 8, pages_count, lateness_ms)


def changed_schema(schema: Schema) -> Schema:
    """Return the schema without an unread field, with a new field and a new symbol, and with a nullable amount."""
    (transaction,) = schema.event_types
    fields = [one for one in transaction.fields if one.name != "channel"]
    for number, one in enumerate(fields):
        if one.type.kind is Kind.ENUM:
            fields[number] = replace(one, type=replace(one.type, symbols=(*one.type.symbols, "disputed")))
        if one.name == "amount":
            fields[number] = replace(one, type=one.type.as_nullable())
    return Schema((replace(transaction, fields=(*fields, Field("device", Type(Kind.STRING, nullable=True)))),))


def rows(alerts: pa.Table) -> list[bytes]:
    """Return whole alerts, sorted; a repeated alert is there twice."""
    return sorted(alert_lines(alerts))


def replayed(spark: SparkSession, folder: Path, job: Job, records: Iterable[ControlRecord]) -> Replayed:
    rulebook = Rulebook(job.schema, job.domains)
    for record in records:
        assert rulebook.apply(record, None).kind == "applied"
    return replay(replace(job, lateness_ms=0), rulebook, read_events(spark, folder), 2)


class Reported:
    """The alerts, letters and totals of a job on Spark."""

    folder: Path
    reports: list[BatchReport]

    @property
    def letters(self) -> list[dict[str, object]]:
        """Return everything that was set aside."""
        files = sorted((self.folder / "letters").glob("*.jsonl"))
        return [orjson.loads(line) for file in files for line in file.read_bytes().splitlines()]

    @property
    def totals(self) -> Counter[str]:
        return self.reports[-1].totals

    def alerts(self) -> list[bytes]:
        """Return all alerts so far, sorted."""
        return rows(pa.concat_tables([report.alerts for report in self.reports]))


@dataclass
class LiveRun(Reported):
    """A live job in its own folder, run phase by phase; each phase is a start from the checkpoint."""

    spark: SparkSession
    folder: Path
    job: Job
    initial: tuple[bytes, ...]
    partitions: int = 2
    reports: list[BatchReport] = field(default_factory=list)
    files_count: int = 0
    job_folder: str = "checkpoint"
    status: dict[str, Any] | None = None  # of the rules, where alerts are suppressed and marked
    file_step_s: int = 1  # by which the time of a file is later than the time of the file before

    def __post_init__(self) -> None:
        for name in ("events", "control"):
            (self.folder / name).mkdir(parents=True)

    @property
    def checkpoint(self) -> Path:
        return self.folder / self.job_folder / "query"

    def phase(self, files: Sequence[Sequence[bytes]], control: Sequence[bytes] = ()) -> None:
        """Add files of events, one a micro-batch, and one of control records; run until all is processed."""
        for lines in files:
            self._add("events", lines)
        if control:
            self._add("control", control)
        self.spark.conf.set("spark.sql.shuffle.partitions", str(self.partitions))
        output = LiveOutput(self.checkpoint.parent, DeadLetterFiles(self.folder / "letters"), [], self.reports.append)
        if self.status is not None:
            output.rules = RuleOutput(self.checkpoint.parent, self.status)
        sources = FolderSource(self.folder / "events", files_per_trigger=1), FolderSource(self.folder / "control")
        run_live(self.spark, LiveSettings(self.job, self.initial, *sources, self.checkpoint), output)

    def _add(self, name: str, lines: Sequence[bytes]) -> None:
        write_file(self.folder / name / f"{self.files_count:03}.jsonl", lines, self.files_count * self.file_step_s)
        self.files_count += 1


def run_live(spark: SparkSession, settings: LiveSettings, output: LiveOutput) -> None:
    """Run a job until it has processed all that its sources have."""
    serve(start_live(spark, replace(settings, available_now=True), output), output, threading.Event())


def start_process(folder: Path, *words: object) -> subprocess.Popen[bytes]:
    """Start `cep live` as the leader of a process group that includes Spark's Java. It writes into the file `log`."""
    command = [sys.executable, "-c", "import sys; from cep.cli.main import main; sys.exit(main())", "live"]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [*command, *map(str, words)], start_new_session=True, cwd=ROOT, stdout=log, stderr=log,
            env=on_this_spark(),
        )  # fmt: skip


def run_process(folder: Path, *words: object) -> None:
    """Run `cep live` to its end, and check that it ends without a fault."""
    process = start_process(folder, *words)
    try:
        assert process.wait(WAIT_S) == 0, (folder / "log").read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def write_file(path: Path, lines: Sequence[bytes], number: int) -> None:
    """Write a file of a stream. Spark reads files in the order of their times, so each has its own time."""
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
