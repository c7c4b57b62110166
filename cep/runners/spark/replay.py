"""The replay job: a finite history → all its alerts, with Spark in batch mode.

    read ─▶ pack (packed.py) ─▶ shuffle by key group ─▶ advance once per task, to the end of time ─▶ driver ─▶ sinks

A history is complete when it is read, so its watermark is infinite: every window closes, nothing is late. Where the job
looks for duplicates, an event id counts once, whenever it comes.
Tested by: tests/runners/spark/test_replay.py
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 the name that Spark's own documentation uses
from rich.console import Console

from cep.base.limits import TIME_MS_MAX
from cep.columnar.batch import EventBatch, concat_batches
from cep.columnar.codec import decode_batch
from cep.engine.alerts import ALERT_SCHEMA, sort_alerts
from cep.rulebook.deploy import Deployment
from cep.rulebook.rulebook import Rulebook
from cep.runners.duplicates import without_repeats
from cep.runners.job import Job, Programs, StepOutput, match_step
from cep.runners.letters import first_seen
from cep.runners.output import Replayed
from cep.runners.spark.packed import (
    ALERTS,
    COUNTERS,
    DEAD,
    EVENTS,
    PACKED_SCHEMA,
    decode_alerts,
    encode_alerts,
    packer,
)
from cep.runners.spark.progress import with_progress
from cep.runners.spark.session import create_session
from cep.sources.files import kind_of

_OUTPUT_SCHEMA = "kind string, payload binary"
_OUTPUT_ARROW = pa.schema([("kind", pa.string()), ("payload", pa.binary())])
# Key groups are matched together up to this many events: enough for the fixed costs, few enough for the cache.
_EVENTS_AT_ONCE = 65_536


def read_and_replay(
    deployment: Deployment, path: Path, cores: int, partitions: int | None, groups_count: int, console: Console
) -> Replayed:
    """Start Spark on some cores, match the events at `path`, and show how far it is on `console`.

    Raises: UsageError for numbers that make no sense, SourceError for a path without events.
    """
    job = Job(deployment.schema, deployment.key_domains, groups_count)
    kind_of(path)
    with console.status("starting Spark"):
        spark = create_session("cep replay", cores)
    try:
        events, values_column = read_events(spark, path)

        def work() -> Replayed:
            return replay(job, deployment.rulebook, events, values_column, partitions or cores)

        return with_progress(spark, "matching", work, console)
    finally:
        spark.stop()


def read_events(spark: SparkSession, path: Path) -> tuple[DataFrame, str | None]:
    """A file or a folder of Parquet, CSV (with a header) or JSON lines; returns (frame, the column of JSON records).

    Raises: SourceError for a path that is not there or whose kind cannot be told.
    """
    kind = kind_of(path)
    if kind == "parquet":
        return spark.read.parquet(str(path)), None
    if kind == "csv":
        return spark.read.option("header", True).csv(str(path)), None
    lines = spark.read.text(str(path))
    return lines.filter(F.trim("value") != ""), "value"  # an empty line is nobody's record


def replay(job: Job, rulebook: Rulebook, events: DataFrame, values_column: str | None, partitions: int) -> Replayed:
    """Match all events, in `partitions` tasks."""
    started = time.monotonic()
    packed = events.mapInArrow(packer(job, values_column, tells_times=False), PACKED_SCHEMA)
    # With a number: Spark would join a shuffle of few fat rows into a single task.
    shuffled = packed.repartition(partitions, F.col("key_group"))
    saved = rulebook.to_bytes()
    output = shuffled.mapInArrow(_matcher(job, saved), _OUTPUT_SCHEMA).toArrow()
    kinds, payloads = output.column("kind").to_pylist(), output.column("payload")
    counters: Counter[str] = Counter()
    tables: list[pa.Table] = []
    letters: list[bytes] = []
    for kind, payload in zip(kinds, payloads, strict=True):
        if kind == ALERTS:
            tables.append(decode_alerts(payload.as_buffer()))
        elif kind == COUNTERS:
            counters.update(json.loads(payload.as_py()))
        else:
            letters.append(payload.as_py())
    alerts = sort_alerts(pa.concat_tables(tables)) if tables else ALERT_SCHEMA.empty_table()
    return Replayed(alerts, tuple(letters), counters, time.monotonic() - started)


def _matcher(job: Job, saved: bytes) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow that matches all packed rows of one task."""

    def match(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shares: dict[tuple[int, int], list[EventBatch]] = {}
        passed: list[tuple[str, bytes]] = []
        for batch in batches:
            groups, domains = batch.column("key_group").to_pylist(), batch.column("domain").to_pylist()
            payloads = batch.column("payload")
            for row, kind in enumerate(batch.column("kind").to_pylist()):
                if kind == EVENTS:
                    shares.setdefault((domains[row], groups[row]), []).append(decode_batch(payloads[row].as_py()))
                elif kind in (DEAD, COUNTERS):
                    passed.append((kind, payloads[row].as_py()))
        output = StepOutput()
        if job.dedup_ms > 0:
            for (number, _), held in shares.items():
                held[:], repeated = _first_ones(held)
                output.counters["duplicates"] += first_seen(job, number, repeated)
        programs = Programs().of(Rulebook.from_bytes(saved, job.schema, job.domains), job.schema)
        for number, events in _bunches(shares):
            domain = job.domains[number]
            if domain in programs:
                match_step(programs[domain], None, events, TIME_MS_MAX, output)
            else:
                output.counters["events_without_rule"] += len(events)
        passed += [(ALERTS, encode_alerts(alerts)) for alerts in output.alerts]
        passed.append((COUNTERS, json.dumps(output.counters).encode()))
        kinds, found = zip(*passed, strict=True)
        arrays = [pa.array(kinds, pa.string()), pa.array(found, pa.binary())]
        yield pa.RecordBatch.from_arrays(arrays, schema=_OUTPUT_ARROW)

    return match


def _first_ones(held: list[EventBatch]) -> tuple[list[EventBatch], EventBatch]:
    first, repeated = without_repeats(concat_batches(held))
    return [first], repeated


def _bunches(shares: dict[tuple[int, int], list[EventBatch]]) -> Iterator[tuple[int, EventBatch]]:
    """(domain, events) of several key groups at a time, so that what the matcher works on stays in the cache."""
    held: list[EventBatch] = []
    for at, (number, group) in enumerate(ordered := sorted(shares)):
        held += shares.pop((number, group))
        last_of_domain = at + 1 == len(ordered) or ordered[at + 1][0] != number
        if last_of_domain or sum(len(b) for b in held) >= _EVENTS_AT_ONCE:
            yield number, concat_batches(held)
            held = []
