"""Rules and a user's streaming DataFrame → a streaming DataFrame of alerts, which is a part of the user's query.

    events ─▶ pack ─▶ match, level by level (match_stage.py) ─▶ suppress (suppress_stage.py) ─▶ alerts
                         ▲
    control ─▶ once to every key group

The stages are the stages of the live job, so alerts, watermark and order have the same meaning. Progress and keyed
state are in the query's own checkpoint. A repeated micro-batch gives the same rows: a sink that takes each micro-batch
once has each alert once. The counters of a micro-batch are in the query's progress, as observed metrics.

Without a folder the rules never change. With a folder they change by control records, like the rules of `cep live`: the
folder has the rulebooks that keyed state names.
Tested by: tests/runners/spark/test_match_stream.py
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from pyspark import SparkFiles
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 the name that Spark's own documentation uses

from cep.base.errors import UsageError
from cep.columnar.mapping import PLAIN, FieldMapping
from cep.lists.store import ListStore
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.store import RulebookStore
from cep.rulebook.suppression import SHADOW, Policies
from cep.runners.live_checkpoint import RULEBOOKS_FOLDER
from cep.runners.meanings import LOSSES
from cep.runners.spark.group_parts import GroupParts
from cep.runners.spark.live import control_files, control_records, control_rows
from cep.runners.spark.match import CONNECT, alert_schema, decoded, pack_stream, ship_lists
from cep.runners.spark.match_stage import MatchStage
from cep.runners.spark.packed import ALERTS, COUNTERS
from cep.runners.spark.packed_schema import PACKED_SCHEMA
from cep.runners.spark.place import Place
from cep.runners.spark.processor import MatchProcessor
from cep.runners.spark.suppress_stage import SuppressStage
from cep.step.job import Job
from cep.step.rules import JobRules

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
# Counters of jobs, which a query does not have.
_OF_JOBS = ("events_before_start", "events_after_end", "deliveries_retried", "checkpoints_failed", "alerts_refused")
# Counters of records, changes and alerts, and every loss except those by rule.
OBSERVED = (
    "records", "events", "control_applied", "alerts",
    *(name for name in LOSSES if not name.startswith("rule_") and name not in _OF_JOBS),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StreamRules:
    """The rules of a query: the job, its rulebook, and the records that it begins with. `folder`: where rulebooks are
    that control records make; None: the rules never change."""

    job: Job
    rulebook: Rulebook
    initial: tuple[bytes, ...]
    folder: Path | None = None


def match_stream(
    rules: StreamRules, events: DataFrame, control: DataFrame | None, metrics: str, mapping: FieldMapping = PLAIN
) -> DataFrame:
    """Return the alerts, each with the micro-batch in which it becomes certain. Nothing runs.

    Raises: UsageError for a session that cannot keep state, or control records without an order.
    """
    job = rules.job
    check_session(events.sparkSession)
    packed = pack_stream(job, events, mapping)
    job_rules, list_files, place = _rules_of(rules, events.sparkSession)
    if control is not None:
        assert job_rules.store is not None, "asked for with the control records"
        packed = packed.unionByName(control_rows(_ordered(control), job.groups_count, job_rules.store))
    rows = packed
    for level in range(job.levels_count):
        rows = _stage(rows, MatchProcessor(partial(_match_stage, job_rules, list_files, level, place)))
    policies = Policies.of(rules.rulebook)
    is_shadow = any(rule.status == SHADOW for rule in rules.rulebook.deployed())
    if control is not None or policies.versions or policies.snoozes or is_shadow:
        rows = _stage(
            rows.withColumn("key_group", F.lit(0)), MatchProcessor(partial(SuppressStage, policies.to_json()))
        )
    rows = _observed(rows, metrics)
    return rows.filter(F.col("kind") == ALERTS).select("payload").mapInArrow(decoded, alert_schema())


def check_session(spark: SparkSession) -> None:
    """See that the session can keep the state of a processor, before a query fails at its start. Raises: UsageError.

    It is not set here: other queries of the session may have checkpoints of another provider.
    """
    if type(spark).__module__.startswith(CONNECT):
        raise UsageError(
            "a stream cannot be matched through Spark Connect, which does not bring its alerts back whole; use a "
            "session in the same process, or `cep live`. `match` of a finite history goes through Connect"
        )
    provider = spark.conf.get(_PROVIDER, "") or ""
    if not provider.endswith("RocksDBStateStoreProvider"):
        raise UsageError(
            f"keyed state needs RocksDB, and the session has {provider or 'no state store'}; before the query starts, "
            f'spark.conf.set("{_PROVIDER}", "{_ROCKSDB}")'
        )


def _stage(rows: DataFrame, processor: MatchProcessor) -> DataFrame:
    return rows.groupBy("key_group").transformWithState(processor, PACKED_SCHEMA, "Append", "None")


def _rules_of(rules: StreamRules, spark: SparkSession) -> tuple[JobRules, tuple[str, ...], Place | None]:
    """Return the values for tasks: the rules, the files of lists that Spark copies to each machine, the folder."""
    if rules.folder is not None:
        store = RulebookStore((rules.folder / RULEBOOKS_FOLDER).resolve())
        return JobRules(rules.job, rules.initial, store), (), Place.of_driver(rules.folder.resolve())
    names = rules.rulebook.lists.names()
    list_files = ship_lists(spark, rules.rulebook) if names else ()
    return JobRules(rules.job, rules.initial), list_files, None


def _match_stage(
    rules: JobRules, list_files: tuple[str, ...], level: int, place: Place | None, stored: GroupParts
) -> MatchStage:
    return MatchStage(_with_lists(rules, list_files), level, None, place, stored)


@lru_cache
def _with_lists(rules: JobRules, list_files: tuple[str, ...]) -> JobRules:
    """Name the folder of this machine into which Spark has copied the files of lists."""
    return replace(rules, job_lists=ListStore(Path(SparkFiles.get(list_files[0])).parent)) if list_files else rules


def _ordered(control: DataFrame) -> DataFrame:
    """Select control records with their order. Raises: UsageError for a stream without an order."""
    if not control.isStreaming:
        raise UsageError("control= takes a stream of records; of a finite history give `cep.load(…, control=FILE)`")
    if {"partition", "offset", "value"} <= set(control.columns):
        return control_records(control)
    if "value" in control.columns:
        with suppress(AnalysisException):
            return control_files(control)
    raise UsageError(
        "control= takes records with an order: the columns partition, offset and value of a Kafka source, or "
        "spark.readStream.text(FOLDER, wholetext=True)"
    )


def _observed(rows: DataFrame, name: str) -> DataFrame:
    """Bring the counters of each micro-batch into the query's progress."""
    text = F.when(F.col("kind") == COUNTERS, F.col("payload").cast("string"))
    counted = rows.withColumn("counts", F.from_json(text, "map<string,bigint>"))
    return counted.observe(name, *[_sum(counter).alias(counter) for counter in OBSERVED]).drop("counts")


def _sum(counter: str) -> Any:
    mine = F.map_filter("counts", lambda name, _: (name == counter) | name.startswith(f"{counter}["))
    zero = F.lit(0).cast("bigint")
    return F.coalesce(F.sum(F.aggregate(F.map_values(mine), zero, lambda one, other: one + other)), zero)
