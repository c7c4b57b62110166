"""`cep replay` on Spark: files of a finite history → the batch job (match.py) → all its alerts, letters and counters.

Tested by: tests/runners/test_replay.py
"""

import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from cep.columnar.mapping import PLAIN, FieldMapping
from cep.engine.alerts import NO_ALERTS, sort_alerts
from cep.rulebook.rulebook import Rulebook
from cep.runners.handover.warm_start import Ending, cut_ms, job_until
from cep.runners.output import Replayed, decode_alerts, replay_to_the_end
from cep.runners.spark.match import history_times, match_levels, ship
from cep.runners.spark.packed import ALERTS, COUNTERS, DEAD, MARKS, PART_COLUMN, STATE, TIMES, by_kind, part_packer
from cep.runners.spark.progress import failure_of, with_progress
from cep.runners.spark.session import create_session
from cep.runners.spark.sources import PACKED_SCHEMA
from cep.sources.inputs import Records, kind_of
from cep.sources.pieces import parts_of, shares_of
from cep.state.manifest import StoredFile
from cep.step.event_time import TimesRead
from cep.step.history_end import watermark_at_end
from cep.step.job import Job
from cep.step.marks import joined_marks, marks_from_bytes


@dataclass(frozen=True, slots=True)
class Tasks:
    """Cores of this machine, and matching tasks; None: as many."""

    cores: int
    count: int | None = None


def read_and_replay(
    job: Job, rulebook: Rulebook, given: Records | Path, tasks: Tasks, console: Console, ending: Ending | None = None
) -> Replayed:
    """Start Spark, match the events of files, and show the progress on `console`. Raises: UsageError, SourceError.

    `ending`: the time at which a live job continues the replay, and a folder for the keyed state that it needs. Then
    windows that are open at the end do not close."""
    job = job_until(job, ending)
    records = Records.of(given)
    for path in records.paths:
        kind_of(path)  # for its errors, before Spark starts
    with console.status("starting Spark"):
        spark = create_session("cep replay", tasks.cores)
    try:
        events = read_events(spark, *records.paths)

        def work() -> Replayed:
            count = tasks.count or tasks.cores  # of tasks that match
            return replay_to_the_end(job, lambda one: replay(one, rulebook, events, count, ending, records.mapping))

        return with_progress(spark, "matching", work, console)
    except PySparkException as error:  # such as a file that a task cannot read
        raise failure_of(str(error)) from error
    finally:
        spark.stop()


def read_events(spark: SparkSession, *paths: Path) -> DataFrame:
    """List the parts of files or folders of Parquet, CSV with a header, or JSON, for tasks. Raises: SourceError."""
    parts = [share for path in paths for part in parts_of(path) for share in shares_of(part)]
    return spark.createDataFrame([(part.to_json(),) for part in parts], f"{PART_COLUMN} string")


def replay(
    job: Job, rulebook: Rulebook, events: DataFrame, partitions: int, ending: Ending | None = None,
    mapping: FieldMapping = PLAIN,
) -> Replayed:  # fmt: skip
    """Match all events of `read_events`, in `partitions` tasks for each level of rules. `ending`: a folder for state
    that a live job continues from. The rows of each level are kept until the end, so that no level runs twice."""
    started = time.monotonic()
    kept_rows: list[DataFrame] = []

    def keep(rows: DataFrame) -> DataFrame:
        kept_rows.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
        return rows

    packed = events.mapInArrow(part_packer(job, history_times(), mapping), PACKED_SCHEMA)
    shipped = ship(events.sparkSession, rulebook)
    try:
        matched = match_levels(job, rulebook, shipped, packed, partitions, ending, keep)
        rows = matched.select("kind", "payload").toArrow()
    finally:
        for frame in kept_rows:
            frame.unpersist()
    return _replayed(job, rows, ending, started)


def _replayed(job: Job, rows: pa.Table, ending: Ending | None, started: float) -> Replayed:
    """Join the packed rows that the tasks of a replay have returned. `ending`: when a live job continues, or None."""
    payloads, counters, times = by_kind(rows), Counter[str](), TimesRead({})
    for payload in payloads[COUNTERS]:
        counters.update(json.loads(payload.as_py()))
    for payload in payloads[TIMES]:
        times = times.joined(TimesRead.from_bytes(payload.as_py()))
    tables = [NO_ALERTS, *(decode_alerts(payload.as_buffer()) for payload in payloads[ALERTS])]
    until_ms = None if ending is None else cut_ms(ending, times.last_ms)
    return Replayed(
        sort_alerts(pa.concat_tables(tables)),
        tuple(payload.as_py() for payload in payloads[DEAD]),  # rejected records and events
        counters,
        time.monotonic() - started,
        since_ms=times.first_ms,
        until_ms=until_ms,
        state_files=tuple(StoredFile(**json.loads(payload.as_py())) for payload in payloads[STATE]),
        marks=joined_marks(marks_from_bytes(payload.as_py()) for payload in payloads[MARKS]),  # flawed keys
        watermark_ms=watermark_at_end(job, times.last_ms, times.now_ms, until_ms),
    )
