"""The replay job: a finite history → all its alerts, with Spark in batch mode.

    read ─▶ pack (packed.py) ─▶ shuffle by key group ─▶ advance once per task, to the last event ─▶ driver ─▶ sinks
                                        ▲                          │
                                        └──── produced events ─────┘ level by level (rulebook/levels.py)

No event of a history is late. The watermark ends at the last event (history_end.py): windows that are open then stay
open. A replay can also end in a cut, from which a live job continues (warm_start.py): then each task writes the keyed
state of its key groups. Duplicates are found as in a stream without late events (duplicates.py).
Tested by: tests/runners/spark/test_replay.py
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark import SparkFiles, StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 the name that Spark's own documentation uses
from rich.console import Console

from cep.columnar.batch import EventBatch, concat_batches
from cep.columnar.codec import decode_batch
from cep.columnar.mapping import PLAIN, FieldMapping
from cep.engine.alerts import NO_ALERTS, sort_alerts
from cep.lists.store import ListStore
from cep.rulebook.levels import by_level
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.rulebook.suppression import Policies
from cep.runners.handover.warm_start import Ending, by_group, cut_ms, job_until, put_state
from cep.runners.output import Replayed, decode_alerts, encode_alerts
from cep.runners.spark.failures import failure_of
from cep.runners.spark.packed import (
    ALERTS,
    COUNTERS,
    DEAD,
    EVENTS,
    MARKS,
    NO_ORDER,
    PART_COLUMN,
    STATE,
    TIMES,
    PackedRow,
    as_batch,
    in_arrival_order,
    packer,
    part_packer,
    produced_rows,
)
from cep.runners.spark.packed_schema import PACKED_SCHEMA
from cep.runners.spark.progress import with_progress
from cep.runners.spark.session import create_session
from cep.runners.to_the_end import replay_to_the_end
from cep.sources.inputs import Records, kind_of
from cep.sources.pieces import parts_of, shares_of
from cep.state.manifest import StoredFile
from cep.step.dead_letters import bounded_equals, event_dead_letters, evicted_dead_letters
from cep.step.duplicates import first_ones
from cep.step.event_time import TimesRead
from cep.step.history_end import watermark_at_end, within_history
from cep.step.job import Job
from cep.step.marks import Marks, joined_marks, marks_bytes, marks_from_bytes, with_marks
from cep.step.match import MatchOutput, match_events
from cep.step.programs import programs_by_level

# Key groups are matched together up to this many events: enough for the fixed costs, few enough for the cache.
_EVENTS_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True)
class Tasks:
    """Cores of this machine, and matching tasks; None: as many."""

    cores: int
    count: int | None = None


def read_and_replay(
    job: Job, rulebook: Rulebook, given: Records | Path, tasks: Tasks, console: Console, ending: Ending | None = None
) -> Replayed:
    """Start Spark, match the events, and show how far it is on `console`. With an `ending` the keyed state is
    put there, by the tasks that have it, and no window closes that is open then.

    Raises: UsageError for numbers that make no sense, SourceError for a path without events.
    """
    job = job_until(job, ending)
    records = Records.of(given)
    for path in records.paths:
        kind_of(path)
    with console.status("starting Spark"):
        spark = create_session("cep replay", tasks.cores)
    try:
        events, values_column = read_events(spark, *records.paths)

        def work() -> Replayed:
            count = tasks.count or tasks.cores
            return replay_to_the_end(
                job, lambda one: replay(one, rulebook, events, values_column, count, ending, records.mapping)
            )

        return with_progress(spark, "matching", work, console)
    except PySparkException as error:  # such as a file that a task cannot read
        raise failure_of(str(error)) from error
    finally:
        spark.stop()


def read_events(spark: SparkSession, *paths: Path) -> tuple[DataFrame, str]:
    """List the parts of files or folders of Parquet, CSV (with a header) or JSON; tasks read them.

    Return (frame, its column of parts). Raises: SourceError for a path that is not there or whose kind cannot be told.
    """
    parts = [share for path in paths for part in parts_of(path) for share in shares_of(part)]
    return spark.createDataFrame([(part.to_json(),) for part in parts], f"{PART_COLUMN} string"), PART_COLUMN


def replay(
    job: Job, rulebook: Rulebook, events: DataFrame, values_column: str | None, partitions: int,
    ending: Ending | None = None, mapping: FieldMapping = PLAIN,
) -> Replayed:  # fmt: skip
    """Match all events, in `partitions` tasks; again for each level of patterns that read the events of others."""
    started = time.monotonic()
    times = TimesRead({}, now_ms=int(time.time() * 1_000))  # one for the whole history
    if values_column == PART_COLUMN:
        packed = events.mapInArrow(part_packer(job, times, mapping), PACKED_SCHEMA)
    else:
        packed = events.mapInArrow(packer(job, values_column, before=times, mapping=mapping), PACKED_SCHEMA)
    levels = len(by_level(rulebook.deployed(), job.schema, job.levels_count))
    if levels > 1:
        packed = packed.persist(StorageLevel.MEMORY_AND_DISK)
    output = Replayed(NO_ALERTS, (), Counter(), 0.0)
    with tempfile.TemporaryDirectory(prefix="cep-lists-") as folder:
        shipped = Shipped(rulebook_bytes(rulebook), ship_lists(events.sparkSession, rulebook, Path(folder)))
        for level in range(levels):
            # With a number: Spark would join a shuffle of few fat rows into a single task.
            shuffled = packed.repartition(partitions, F.col("key_group"))
            matched = shuffled.mapInArrow(matcher(job, shipped, level, ending), PACKED_SCHEMA)
            if level + 1 < levels:
                matched = matched.persist(StorageLevel.MEMORY_AND_DISK)
                packed = packed.filter(F.col("kind").isin(EVENTS, TIMES, MARKS))
                packed = packed.unionByName(matched.filter(F.col("kind") == EVENTS))
            rows = matched.filter(F.col("kind") != EVENTS).select("kind", "payload").toArrow()
            output = _with_rows(job, output, rows, ending)
    return replace(output, alerts=sort_alerts(output.alerts), seconds=time.monotonic() - started)


@dataclass(frozen=True, slots=True)
class Shipped:
    """The parcel for every task: the rulebook, and the names of the lists' files, which Spark copies once a machine."""

    rulebook: bytes
    list_files: tuple[str, ...]

    def rulebook_of(self, job: Job) -> Rulebook:
        """Read the rulebook on a machine of the job; a process maps each file of a list once."""
        lists = ListStore(Path(SparkFiles.get(self.list_files[0])).parent) if self.list_files else None
        return rulebook_from_bytes(self.rulebook, job.schema, job.domains, lists)


def ship_lists(spark: SparkSession, rulebook: Rulebook, folder: Path) -> tuple[str, ...]:
    """Give the files of the lists that rules may ask to every machine; they must outlive the matching."""
    stored_lists, files = rulebook.lists.store, ListStore(folder)
    for name in rulebook.lists.names():
        files.put(name, lambda list_name=name: stored_lists.get(list_name))  # type: ignore[misc]
        spark.sparkContext.addFile(str(files.path(name)))
    return tuple(files.path(name).name for name in files.names())


def _with_rows(job: Job, output: Replayed, rows: pa.Table, ending: Ending | None) -> Replayed:
    """Add the rows of one level to the output."""
    tables, dead_letters, counters = [output.alerts], list(output.dead_letters), Counter(output.counters)
    files, times, marks = list(output.state_files), TimesRead({}), [output.marks]
    for kind, payload in zip(rows.column("kind").to_pylist(), rows.column("payload"), strict=True):
        if kind == ALERTS:
            tables.append(decode_alerts(payload.as_buffer()))
        elif kind == COUNTERS:
            counters.update(json.loads(payload.as_py()))
        elif kind == STATE:
            files.append(StoredFile(**json.loads(payload.as_py())))
        elif kind == TIMES:
            times = times.joined(TimesRead.from_bytes(payload.as_py()))
        elif kind == MARKS:
            marks.append(marks_from_bytes(payload.as_py()))
        else:
            dead_letters.append(payload.as_py())
    until_ms = output.until_ms
    if until_ms is None and ending is not None:
        until_ms = cut_ms(ending, times.last_ms)
    return replace(
        output,
        alerts=pa.concat_tables(tables),
        dead_letters=tuple(dead_letters),
        counters=counters,
        since_ms=min(output.since_ms, times.first_ms),
        until_ms=until_ms,
        state_files=tuple(files),
        marks=joined_marks(marks),
        watermark_ms=watermark_at_end(job, times.last_ms, times.now_ms, until_ms),
    )


def matcher(
    job: Job, shipped: Shipped, level: int, ending: Ending | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for mapInArrow that matches all packed rows of one task with the rules of one level."""

    def match(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arriving: dict[tuple[int, int], list[tuple[str, EventBatch]]] = {}
        rows: list[PackedRow] = []
        times, marks = TimesRead({}), list[Marks]()
        for batch in batches:
            groups, domains = batch.column("key_group").to_pylist(), batch.column("domain").to_pylist()
            orders, payloads = batch.column("order").to_pylist(), batch.column("payload")
            for row, kind in enumerate(batch.column("kind").to_pylist()):
                if kind == EVENTS:
                    events = orders[row], decode_batch(payloads[row].as_py())
                    arriving.setdefault((domains[row], groups[row]), []).append(events)
                elif kind == TIMES:
                    times = times.joined(TimesRead.from_bytes(payloads[row].as_py()))
                elif kind == MARKS:
                    marks.append(marks_from_bytes(payloads[row].as_py()))
                elif kind in (DEAD, COUNTERS):
                    rows.append((0, kind, 0, NO_ORDER, payloads[row].as_py()))
        shares = {at: in_arrival_order(batches) for at, batches in arriving.items()}
        output = MatchOutput(since_ms=times.first_ms)
        cut = None if ending is None or not shares else cut_ms(ending, times.last_ms)
        watermark_ms = watermark_at_end(job, times.last_ms, times.now_ms, cut)
        if job.dedup_ms > 0:
            rows += _without_repeats(job, level, shares, output)
        rulebook = shipped.rulebook_of(job)
        programs = programs_by_level(rulebook, job.schema, job.levels_count)[level]
        for number, bunch in _bunches(shares):
            domain = job.domains[number]
            if domain in programs:
                left = match_events(programs[domain], None, bunch, watermark_ms, output, is_end=ending is None)
                if left and ending is not None:
                    for group, share in by_group(left, programs[domain], job.groups_count):
                        file = put_state(ending.folder, level, number, group, share)
                        rows.append((0, STATE, 0, NO_ORDER, json.dumps(asdict(file)).encode()))
            elif domain not in rulebook.domains():
                output.counters["events_without_rule"] += len(bunch)
        rows += [(0, DEAD, 0, NO_ORDER, letter) for letter in evicted_dead_letters(output.evicted)]
        keys, joined = Policies.of(rulebook).keys, joined_marks(marks)
        rows += [(0, ALERTS, 0, NO_ORDER, encode_alerts(with_marks(alerts, keys, joined))) for alerts in output.alerts]
        if joined and level == 0:
            rows.append((0, MARKS, 0, NO_ORDER, marks_bytes(joined)))
        rows += [row for made in output.produced for row in produced_rows(job, within_history(job, made))]
        rows.append((0, COUNTERS, 0, NO_ORDER, json.dumps(output.counters).encode()))
        rows.append((0, TIMES, 0, NO_ORDER, times.to_bytes()))
        yield as_batch(rows)

    return match


def _without_repeats(
    job: Job, level: int, shares: dict[tuple[int, int], list[EventBatch]], output: MatchOutput
) -> Iterator[PackedRow]:
    """Leave out the events that came before, in place. The first level counts them and yields letters of reused ids."""
    for (number, _), batches_of_group in shares.items():
        counts = output if level == 0 else MatchOutput()
        first, reused = first_ones(job, number, batches_of_group, counts)
        batches_of_group[:] = [first]
        if level == 0:
            letters = bounded_equals(event_dead_letters(reused), output.counters)
            yield from ((0, DEAD, 0, NO_ORDER, letter) for letter in letters)


def _bunches(shares: dict[tuple[int, int], list[EventBatch]]) -> Iterator[tuple[int, EventBatch]]:
    """Yield (domain, events) of several key groups at a time, so that the matcher's data stays in the cache."""
    bunch: list[EventBatch] = []
    for at, (number, group) in enumerate(ordered := sorted(shares)):
        bunch += shares.pop((number, group))
        last_of_domain = at + 1 == len(ordered) or ordered[at + 1][0] != number
        if last_of_domain or sum(len(b) for b in bunch) >= _EVENTS_AT_ONCE:
            yield number, concat_batches(bunch)
            bunch = []
