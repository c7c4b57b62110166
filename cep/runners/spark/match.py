"""The batch job: events of a finite history → its alerts, level by level, in one plan of Spark.

    events ─▶ pack (packed.py) ─▶ shuffle by key group ─▶ advance once per task, to the last event ─▶ suppress ─▶ alerts
                                        ▲                          │
                                        └──── produced events ─────┘ level by level (rulebook/rulebook.py)

`match` is `Rules.match` of a user's DataFrame: a part of the user's query. If a rule suppresses alerts, one task sees
all alerts and decides which go out. `cep replay` (replay.py) reads files, runs the same plan, and collects its rows.

No event of a history is late. The watermark ends at the last event (history_end.py), or at a cut, from which a live job
continues (warm_start.py): then each task writes the keyed state of its key groups.
Tested by: tests/runners/spark/test_match.py, tests/runners/test_replay.py
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path

import pyarrow as pa
from pyspark import SparkFiles
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 the name that Spark's own documentation uses
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from cep.base.errors import UsageError
from cep.columnar.batch import EventBatch, concat_batches, decode_batch
from cep.columnar.mapping import PLAIN, FieldMapping
from cep.engine.alerts import ALERT_SCHEMA, NO_ALERTS, sort_alerts
from cep.lists.store import ListStore
from cep.rulebook.rulebook import Rulebook, by_level
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.rulebook.suppression import SHADOW, Policies, suppress_alerts
from cep.runners.handover.warm_start import Ending, by_group, cut_ms, put_state
from cep.runners.output import UNCONFIRMED, decode_alerts, encode_alerts
from cep.runners.spark import packed as packing
from cep.runners.spark.sources import PACKED_SCHEMA, batch_clock
from cep.step.dead_letters import bounded_equals, event_dead_letters, evicted_dead_letters, under_rules
from cep.step.duplicates import first_ones
from cep.step.event_time import TimesRead
from cep.step.history_end import watermark_at_end, within_history
from cep.step.job import Job
from cep.step.marks import Marks, joined_marks, marks_bytes, marks_from_bytes, with_marks
from cep.step.match import MatchOutput, match_events
from cep.step.rules import programs_by_level

_MICROS = pa.timestamp("us", "UTC")  # the one unit that Spark takes
CONNECT = "pyspark.sql.connect"
# Key groups are matched together up to this many events: enough for the fixed costs, few enough for the cache.
_EVENTS_AT_ONCE = 65_536


def _for_spark(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_list(type_):
        return pa.list_(pa.struct([(field.name, _for_spark(field.type)) for field in type_.value_type.fields]))
    return _MICROS if pa.types.is_timestamp(type_) else type_


_SCHEMA = pa.schema([(field.name, _for_spark(field.type)) for field in ALERT_SCHEMA])


def alert_schema() -> StructType:
    """Return the columns of alerts as Spark has them."""
    schema: StructType = from_arrow_schema(_SCHEMA)
    return schema


def match(
    job: Job, rulebook: Rulebook, events: DataFrame, partitions: int | None, mapping: FieldMapping = PLAIN
) -> DataFrame:
    """Return the alerts of a finite history as a DataFrame, in no order. Nothing runs yet.

    `partitions`: how many tasks match; None: as the session sets it. Raises: UsageError for lists in Spark Connect."""
    spark = events.sparkSession
    tasks = partitions or min(int(spark.conf.get("spark.sql.shuffle.partitions") or 1), job.groups_count)
    packed, shipped = pack_history(job, events, mapping), ship(spark, rulebook)  # events; rules for all tasks

    def alerts_of(one_job: Job) -> DataFrame:
        rows = match_levels(one_job, rulebook, shipped, packed, tasks)  # bytes, with the kind of each row
        return rows.filter(F.col("kind") == packing.ALERTS).select("payload").mapInArrow(decoded, alert_schema())

    alerts = alerts_of(replace(job, to_the_end=False))
    if job.to_the_end:  # add the alerts that arise only if no event follows the history, marked as unconfirmed
        at_the_end = alerts_of(job).join(alerts.select("alert_id"), "alert_id", "left_anti")
        alerts = alerts.unionByName(at_the_end.withColumn(UNCONFIRMED, F.lit(True)))
    if suppresses(rulebook):
        one_task = alerts.repartition(1)  # alerts of different keys may exclude each other
        alerts = one_task.mapInArrow(_suppressor(Policies.of(rulebook)), alert_schema())
    return alerts


def suppresses(rulebook: Rulebook) -> bool:
    """Return True if the rules may hold back an alert. Otherwise a job lacks the stage for it."""
    policies = Policies.of(rulebook)
    is_shadow = any(rule.status == SHADOW for rule in rulebook.deployed())
    return bool(policies.by_version or policies.snoozes or is_shadow)


def pack_history(job: Job, events: DataFrame, mapping: FieldMapping) -> DataFrame:
    """Pack a history of a user's columns."""
    return events.mapInArrow(packing.packer(job, history_times(), mapping), PACKED_SCHEMA)


def history_times() -> TimesRead:
    """Return the clock of a whole history, without records."""
    return TimesRead({}, now_ms=int(time.time() * 1_000))


def pack_stream(job: Job, events: DataFrame, mapping: FieldMapping) -> DataFrame:
    """Pack a stream of a user's columns, with the clock of each micro-batch."""
    return events.withColumn(packing.CLOCK_COLUMN, batch_clock()).mapInArrow(
        packing.packer(job, mapping=mapping), PACKED_SCHEMA
    )


def match_levels(
    job: Job, rulebook: Rulebook, shipped: Shipped, packed: DataFrame, tasks: int, ending: Ending | None = None,
    store: Callable[[DataFrame], DataFrame] = lambda rows: rows,
) -> DataFrame:  # fmt: skip
    """Match the rules of each level in `tasks` tasks. Rules of a level also read events that lower levels emit. Return
    the packed rows (alerts, counters, … as bytes) of all levels. `store` keeps a frame, so that it is computed once."""
    count = len(by_level(rulebook.deployed(), job.schema, job.levels_count))
    packed = packed if count <= 1 else store(packed)
    levels: list[DataFrame] = []
    for level in range(count):
        # The number is given here, because Spark gives few rows to one task, although each row has many events.
        shuffled = packed.repartition(tasks, F.col("key_group"))
        matched = shuffled.mapInArrow(_matcher(job, shipped, level, ending), PACKED_SCHEMA)
        if level + 1 < count:
            matched = store(matched)
            packed = packed.filter(F.col("kind").isin(packing.EVENTS, packing.TIMES, packing.MARKS))
            packed = packed.unionByName(matched.filter(F.col("kind") == packing.EVENTS))
        levels.append(matched)
    return reduce(lambda one, other: one.unionByName(other), levels).filter(F.col("kind") != packing.EVENTS)


def fields_of(
    events: DataFrame, paths: Mapping[str, Sequence[str]], local: Iterable[str] = (), tz: str = "UTC"
) -> DataFrame:
    """Select the column of each field, under its name. The times in `local` are without a zone; they are in `tz`."""
    columns = []
    for field, path in paths.items():
        value = F.col(".".join("`" + name.replace("`", "``") + "`" for name in path))
        if field in local:
            value = F.convert_timezone(F.lit(tz), F.lit("UTC"), value.cast("timestamp_ntz")).cast("timestamp_ntz")
        columns.append(value.alias(field))
    return events.select(*columns)


def set_aside(job: Job, rulebook: Rulebook, events: DataFrame, mapping: FieldMapping = PLAIN) -> DataFrame:
    """Return the unreadable records, each as the JSON text of a dead letter. For a stream the result is a stream."""
    packed = pack_stream(job, events, mapping) if events.isStreaming else pack_history(job, events, mapping)
    dead = packed.filter(F.col("kind") == packing.DEAD).select("payload")
    epoch, content_hash = rulebook.epoch, rulebook.content_hash  # each letter names the rules

    def letter_texts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = [letter.decode() for letter in under_rules(batch["payload"].to_pylist(), epoch, content_hash)]
            yield pa.RecordBatch.from_pydict({"letter": pa.array(texts, pa.string())})

    return dead.mapInArrow(letter_texts, "letter string")


def decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn packed alerts into rows, for mapInArrow."""
    for batch in batches:
        for payload in batch.column("payload"):
            yield from decode_alerts(payload.as_buffer()).cast(_SCHEMA).to_batches()


def _suppressor(policies: Policies) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def suppress(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = [pa.Table.from_batches([batch]).cast(ALERT_SCHEMA) for batch in batches]
        alerts = sort_alerts(pa.concat_tables([NO_ALERTS, *tables]))
        yield from suppress_alerts(alerts, policies, {}).alerts.cast(_SCHEMA).to_batches()

    return suppress


@dataclass(frozen=True, slots=True)
class Shipped:
    """The parcel for every task: the rulebook, and the names of the lists' files, which Spark copies once a machine."""

    rulebook: bytes
    list_files: tuple[str, ...]

    def rulebook_of(self, job: Job) -> Rulebook:
        """Read the rulebook on a machine of the job; a process maps each file of a list once."""
        lists = ListStore(Path(SparkFiles.get(self.list_files[0])).parent) if self.list_files else None
        return rulebook_from_bytes(self.rulebook, job.schema, job.domains, lists)


def ship(spark: SparkSession, rulebook: Rulebook) -> Shipped:
    """Give the rules to every task, and the files of lists to every machine. Raises: UsageError for Spark Connect."""
    names = rulebook.lists.names()
    if names and type(spark).__module__.startswith(CONNECT):
        raise UsageError("the rules ask lists, whose files Spark Connect cannot give to the machines; use a session")
    return Shipped(rulebook_bytes(rulebook), ship_lists(spark, rulebook) if names else ())


def ship_lists(spark: SparkSession, rulebook: Rulebook) -> tuple[str, ...]:
    """Copy the files of the lists to every machine, for as long as this process lives. Return their names."""
    folder = tempfile.mkdtemp(prefix="cep-lists-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    stored_lists, files = rulebook.lists.store, ListStore(Path(folder))
    for name in rulebook.lists.names():
        files.put(name, lambda list_name=name: stored_lists.get(list_name))  # type: ignore[misc]
        spark.sparkContext.addFile(str(files.path(name)))
    return tuple(files.path(name).name for name in files.names())


def _matcher(
    job: Job, shipped: Shipped, level: int, ending: Ending | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for mapInArrow that matches all packed rows of one task with the rules of one level."""

    def match(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arriving: dict[tuple[int, int], list[tuple[str, EventBatch]]] = {}
        rows: list[packing.PackedRow] = []
        times, marks = TimesRead({}), list[Marks]()
        for batch in batches:
            groups, domains = batch.column("key_group").to_pylist(), batch.column("domain").to_pylist()
            orders, payloads = batch.column("order").to_pylist(), batch.column("payload")
            for row, kind in enumerate(batch.column("kind").to_pylist()):
                if kind == packing.EVENTS:
                    events = orders[row], decode_batch(payloads[row].as_py())
                    arriving.setdefault((domains[row], groups[row]), []).append(events)
                elif kind == packing.TIMES:
                    times = times.joined(TimesRead.from_bytes(payloads[row].as_py()))
                elif kind == packing.MARKS:
                    marks.append(marks_from_bytes(payloads[row].as_py()))
                elif kind in (packing.DEAD, packing.COUNTERS):
                    rows.append((0, kind, 0, packing.NO_ORDER, payloads[row].as_py()))
        shares = {share: packing.in_arrival_order(batches) for share, batches in arriving.items()}
        output = MatchOutput(since_ms=times.first_ms)
        cut = None if ending is None or not shares else cut_ms(ending, times.last_ms)
        watermark_ms = watermark_at_end(job, times.last_ms, times.now_ms, cut)
        if job.dedup_ms > 0:
            rows += _without_repeats(job, level, shares, output)
        rulebook = shipped.rulebook_of(job)
        programs = programs_by_level(rulebook, job.schema, job.levels_count)[level]
        for domain_number, bunch in _bunches(shares):
            domain = job.domains[domain_number]
            if domain in programs:
                rest = match_events(programs[domain], None, bunch, watermark_ms, output, is_end=ending is None)
                if rest and ending is not None:
                    for group, share in by_group(rest, programs[domain], job.groups_count):
                        file = put_state(ending.folder, level, domain_number, group, share)
                        rows.append((0, packing.STATE, 0, packing.NO_ORDER, json.dumps(asdict(file)).encode()))
            elif domain not in rulebook.domains():
                output.counters["events_without_rule"] += len(bunch)
        rows += [(0, packing.DEAD, 0, packing.NO_ORDER, letter) for letter in evicted_dead_letters(output.evicted)]
        keys, joined = Policies.of(rulebook).keys, joined_marks(marks)
        rows += [
            (0, packing.ALERTS, 0, packing.NO_ORDER, encode_alerts(with_marks(alerts, keys, joined)))
            for alerts in output.alerts
        ]
        if joined and level == 0:
            rows.append((0, packing.MARKS, 0, packing.NO_ORDER, marks_bytes(joined)))
        rows += [row for events in output.produced for row in packing.produced_rows(job, within_history(job, events))]
        rows.append((0, packing.COUNTERS, 0, packing.NO_ORDER, json.dumps(output.counters).encode()))
        rows.append((0, packing.TIMES, 0, packing.NO_ORDER, times.to_bytes()))
        yield packing.as_batch(rows)

    return match


def _without_repeats(
    job: Job, level: int, shares: dict[tuple[int, int], list[EventBatch]], output: MatchOutput
) -> Iterator[packing.PackedRow]:
    """Leave out the events that came before, in place. The first level counts them and yields letters of reused ids."""
    for (domain_number, _), batches_of_group in shares.items():
        counts = output if level == 0 else MatchOutput()
        first, reused = first_ones(job, domain_number, batches_of_group, counts)
        batches_of_group[:] = [first]
        if level == 0:
            letters = bounded_equals(event_dead_letters(reused), output.counters)
            yield from ((0, packing.DEAD, 0, packing.NO_ORDER, letter) for letter in letters)


def _bunches(shares: dict[tuple[int, int], list[EventBatch]]) -> Iterator[tuple[int, EventBatch]]:
    """Yield (domain, events) of several key groups at a time, so that the matcher's data stays in the cache."""
    bunch: list[EventBatch] = []
    for index, (domain_number, group) in enumerate(ordered := sorted(shares)):
        bunch += shares.pop((domain_number, group))
        last_of_domain = index + 1 == len(ordered) or ordered[index + 1][0] != domain_number
        if last_of_domain or sum(len(b) for b in bunch) >= _EVENTS_AT_ONCE:
            yield domain_number, concat_batches(bunch)
            bunch = []
