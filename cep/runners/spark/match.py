"""Rules and a user's Spark DataFrame → a DataFrame of alerts, which Spark plans and runs with the rest of a query.

    events ─▶ pack (packed.py) ─▶ shuffle by key group ─▶ advance to the last event ──▶ suppress ─▶ alerts
                                        ▲                          │
                                        └──── produced events ─────┘ level by level

It is the replay of replay.py without its session and its driver: nothing is started, and nothing runs before the user
requests rows. If a rule suppresses alerts, one task sees all alerts and decides which go out.
Tested by: tests/runners/spark/test_match.py
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 the name that Spark's own documentation uses
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from cep.base.errors import UsageError
from cep.columnar.mapping import PLAIN, FieldMapping
from cep.engine.alerts import ALERT_SCHEMA, NO_ALERTS, sort_alerts
from cep.rulebook.levels import by_level
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes
from cep.rulebook.suppression import SHADOW, Policies, suppress_alerts
from cep.runners.output import decode_alerts
from cep.runners.spark.packed import ALERTS, CLOCK_COLUMN, DEAD, EVENTS, MARKS, TIMES, packer
from cep.runners.spark.packed_schema import PACKED_SCHEMA
from cep.runners.spark.replay import Shipped, matcher, ship_lists
from cep.runners.spark.sources import batch_clock
from cep.runners.to_the_end import UNCONFIRMED
from cep.step.dead_letters import under_rules
from cep.step.event_time import TimesRead
from cep.step.job import Job

_MICROS = pa.timestamp("us", "UTC")  # the one unit that Spark takes
CONNECT = "pyspark.sql.connect"


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
    """Return the alerts of a finite history, in no order. Nothing runs. `partitions`: matching tasks, None: as many as
    a shuffle of the session has. `mapping` says how values are written.

    Raises: UsageError for lists where the session is one of Spark Connect.
    """
    alerts = _alerts(replace(job, to_the_end=False), rulebook, events, partitions, mapping)
    if job.to_the_end:  # as in to_the_end.py: the alerts that only the end of time gives, with their mark
        whole = _alerts(job, rulebook, events, partitions, mapping)
        more = whole.join(alerts.select("alert_id"), "alert_id", "left_anti").withColumn(UNCONFIRMED, F.lit(True))
        alerts = alerts.unionByName(more)
    policies = Policies.of(rulebook)
    if policies.versions or policies.snoozes or any(rule.status == SHADOW for rule in rulebook.deployed()):
        alerts = alerts.repartition(1).mapInArrow(_suppressor(policies), alert_schema())
    return alerts


def _alerts(
    job: Job, rulebook: Rulebook, events: DataFrame, partitions: int | None, mapping: FieldMapping
) -> DataFrame:
    matched = _matched(job, rulebook, events, partitions, mapping)
    return matched.filter(F.col("kind") == ALERTS).select("payload").mapInArrow(decoded, alert_schema())


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
    before = TimesRead({}) if events.isStreaming else _times()
    clocked = events.withColumn(CLOCK_COLUMN, batch_clock()) if events.isStreaming else events
    packed = clocked.mapInArrow(packer(job, None, before=before, mapping=mapping), PACKED_SCHEMA)
    dead = packed.filter(F.col("kind") == DEAD).select("payload")
    epoch, content_hash = rulebook.epoch, rulebook.content_hash

    def named(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = [letter.decode() for letter in under_rules(batch["payload"].to_pylist(), epoch, content_hash)]
            yield pa.RecordBatch.from_pydict({"letter": pa.array(texts, pa.string())})

    return dead.mapInArrow(named, "letter string")


def _times() -> TimesRead:
    return TimesRead({}, now_ms=int(time.time() * 1_000))  # one clock for the whole history


def _matched(
    job: Job, rulebook: Rulebook, events: DataFrame, partitions: int | None, mapping: FieldMapping
) -> DataFrame:
    """Return the packed rows that all levels give."""
    spark = events.sparkSession
    names = rulebook.lists.names()
    if names and type(spark).__module__.startswith(CONNECT):
        raise UsageError("the rules ask lists, whose files Spark Connect cannot give to the machines; use a session")
    tasks = partitions or min(int(spark.conf.get("spark.sql.shuffle.partitions") or 1), job.groups_count)
    packed = events.mapInArrow(packer(job, None, before=_times(), mapping=mapping), PACKED_SCHEMA)
    shipped = Shipped(rulebook_bytes(rulebook), ship_lists(spark, rulebook, lists_folder()) if names else ())
    levels: list[DataFrame] = []
    for level in range(len(by_level(rulebook.deployed(), job.schema, job.levels_count))):
        # With a number: Spark would join a shuffle of few fat rows into a single task.
        shuffled = packed.repartition(tasks, F.col("key_group"))
        levels.append(shuffled.mapInArrow(matcher(job, shipped, level, None), PACKED_SCHEMA))
        packed = packed.filter(F.col("kind").isin(EVENTS, TIMES, MARKS))
        packed = packed.unionByName(levels[-1].filter(F.col("kind") == EVENTS))
    return reduce(lambda one, other: one.unionByName(other), levels)


def lists_folder() -> Path:
    """Make a folder for the files of lists, which live as long as this process: a query may run at any time."""
    folder = tempfile.mkdtemp(prefix="cep-lists-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


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
