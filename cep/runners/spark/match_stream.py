"""The streaming job: packed events and control records → alerts, micro-batch by micro-batch.

    events ─▶ pack ─▶ match, level by level (match_stage.py) ─▶ suppress ─▶ alerts
                         ▲
    control ─▶ once to every key group

If patterns read the events of other patterns, there is one stage for each level, in the same micro-batch. Spark's own
watermark is not used: it follows the fastest of all partitions. Ours is in the key groups.

`match_stream` is `Rules.match_stream` of a user's DataFrame, with its keyed state in the checkpoint of the user's
query. A repeated micro-batch gives the same rows, so a sink that takes each micro-batch once has each alert once. Its
counters are in the query's progress, as observed metrics. With a folder, the rules change by control records, like
those of `cep live`: the folder has the rulebooks that keyed state names.

The last stage of a user's own query, in one task, suppresses alerts (step 9 of step/step.py):

    part of its state   at       holds
    progress            0        what the rules in force suppress (Policies)
    fired               bucket   when rules last fired on its keys, and for how long that suppresses others

`cep live` (live.py) does it in its driver and files, because one more stage costs a third of a micro-batch
(docs/inside/decisions/suppression-in-the-driver.md).
Tested by: tests/runners/spark/test_match.py.
"""

import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 the name that Spark's own documentation uses

from cep.base.errors import UsageError
from cep.base.limits import FIRED_MAX, TIME_MS_MAX, TIME_MS_MIN
from cep.columnar.mapping import PLAIN, FieldMapping
from cep.engine.alerts import sorted_together
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import RulebookStore
from cep.rulebook.suppression import Fired, LastAlerts, Policies, fired_from_json, fired_json
from cep.runners.handover.beginning import Beginning
from cep.runners.live_checkpoint import RULEBOOKS_FOLDER
from cep.runners.meanings import LOSSES
from cep.runners.output import decode_alerts, encode_alerts
from cep.runners.spark.group_parts import GroupParts, MatchProcessor
from cep.runners.spark.match import CONNECT, alert_schema, decoded, pack_stream, ship_lists, suppresses
from cep.runners.spark.match_stage import MatchStage
from cep.runners.spark.packed import ALERTS, CLOCK_COLUMN, CONTROL, COUNTERS, NO_ORDER, STATUS, WATERMARK, stage_row
from cep.runners.spark.place import SharedFolder
from cep.runners.spark.sources import PACKED_SCHEMA, batch_clock
from cep.step.job import Job
from cep.step.rules import JobRules, bundle_records
from cep.step.step import filter_alerts

# A micro-batch reads and writes those buckets alone whose keys have alerts.
_BUCKETS = 1_024


class SuppressStage:
    """The stage of one query. `first` are the policies that it begins with, as JSON values."""

    def __init__(self, first: dict[str, Any], stored: GroupParts) -> None:
        self._first = first
        self._stored = stored

    def rows(self, _group: int, rows: Iterator[Row]) -> Iterator[Row]:
        """Pass on the rows of all key groups, without the alerts that the rules' policies suppress."""
        tables: list[pa.Table] = []
        status: bytes | None = None
        watermark_ms = TIME_MS_MIN
        for row in rows:
            if row.kind == ALERTS:
                tables.append(decode_alerts(bytes(row.payload)))
                continue
            if row.kind == STATUS:
                status = bytes(row.payload)
            elif row.kind == WATERMARK:
                watermark_ms = json.loads(bytes(row.payload))["ms"]
            yield row
        policies = self._policies(status)  # status: only if the rules have changed
        alerts = sorted_together(tables)
        if not alerts.num_rows:
            return
        memory, before = self._remembered(alerts, policies)  # the last alerts; before: as stored, by bucket
        sent = filter_alerts(alerts, policies, memory, watermark_ms)
        counters = dict(sent.counters)
        lost_count = self._remember(memory, before, watermark_ms)  # last alerts dropped early, at a limit
        if lost_count:
            counters["fired_forgotten"] = counters.get("fired_forgotten", 0) + lost_count
        if sent.alerts.num_rows:
            yield stage_row((0, ALERTS, 0, NO_ORDER, encode_alerts(sent.alerts)))  # 0: no key group, no key domain
        if counters:
            yield stage_row((0, COUNTERS, 0, NO_ORDER, json.dumps(counters).encode()))

    def _policies(self, status: bytes | None) -> Policies:
        """Return the policies in force. A status is there if the rules have changed."""
        if status is not None:
            self._stored.progress.put(0, orjson.dumps(orjson.loads(status)["policies"]))
        stored = self._stored.progress.get(0)
        return Policies.from_json(self._first if stored is None else orjson.loads(stored))

    def _remembered(self, alerts: pa.Table, policies: Policies) -> tuple[LastAlerts, dict[int, Fired]]:
        """Read the last alerts of the keys that have alerts: all entries, and the entries by bucket."""
        if not any(suppress_ms for _, suppress_ms in policies.by_version.values()):
            return LastAlerts(), {}
        pairs = zip(alerts["rule_id"].to_pylist(), alerts["key"].to_pylist(), strict=True)
        before: dict[int, Fired] = {}
        for bucket in {_bucket(*rule_and_key) for rule_and_key in set(pairs)}:
            data = self._stored.fired.get(bucket)
            before[bucket] = {} if data is None else fired_from_json(orjson.loads(data))
        last = {rule_and_key: times for fired in before.values() for rule_and_key, times in fired.items()}
        return LastAlerts(last), before

    def _remember(self, memory: LastAlerts, before: dict[int, Fired], watermark_ms: int) -> int:
        """Write the changed buckets (hashes of rule and key) of last alerts, without entries whose suppression is over.
        Return how many other entries were dropped, because a bucket had too many."""
        after: dict[int, Fired] = {bucket: {} for bucket in before}
        for rule_and_key, entry in memory.last.items():
            fired_ms, suppress_ms, *_ = entry  # when it fired, and for how long it suppresses others
            if fired_ms + suppress_ms > watermark_ms:
                after[_bucket(*rule_and_key)][rule_and_key] = entry
        lost_count = 0
        for bucket, fired in after.items():
            if fired == before[bucket]:
                continue
            by_end = sorted(fired, key=lambda rule_and_key: fired[rule_and_key][0] + fired[rule_and_key][1])
            over_first = by_end[: max(0, len(fired) - FIRED_MAX // _BUCKETS)]  # too many: the next to end
            for rule_and_key in over_first:
                del fired[rule_and_key]
            lost_count += len(over_first)
            if fired:
                self._stored.fired.put(bucket, orjson.dumps(fired_json(fired)))
            else:
                self._stored.fired.remove(bucket)
        return lost_count


def _bucket(rule_id: str, key: str) -> int:
    return zlib.crc32(f"{rule_id}\0{key}".encode()) % _BUCKETS


_PLACE_ARROW = pa.schema([("place", pa.binary())])
_OFFSET_BITS = 48  # of a control record's place: partition, then offset
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
    """The rules of a query: the job, its rulebook, and the records that it begins with."""

    job: Job
    rulebook: Rulebook
    initial: tuple[bytes, ...]
    folder: Path | None = None  # of the rulebooks that control records make; None: the rules never change


def match_stream(
    rules: StreamRules, events: DataFrame, control: DataFrame | None, metrics: str, mapping: FieldMapping = PLAIN
) -> DataFrame:
    """Return a stream of alerts; each comes in the micro-batch in which it becomes certain. Nothing runs yet.

    Raises: UsageError if the session cannot keep state, or if no column orders the control records (rule changes).
    """
    job = rules.job
    check_session(events.sparkSession)
    packed = pack_stream(job, events, mapping)  # a row: key group, kind (EVENTS …), bytes
    job_rules, list_files, shared_folder = _rules_of(rules, events.sparkSession)
    if control is not None:
        assert job_rules.store is not None, "asked for with the control records"
        packed = packed.unionByName(control_rows(_ordered(control), job.groups_count, job_rules.store))
    rows = match_stages(packed, job_rules, shared_folder, list_files=list_files)
    if control is not None or suppresses(rules.rulebook):  # rules that are added later may suppress alerts
        stage = partial(SuppressStage, Policies.of(rules.rulebook).to_json())
        rows = _stage(rows.withColumn("key_group", F.lit(0)), MatchProcessor(stage))  # one task sees all alerts
    rows = _observed(rows, metrics)
    return rows.filter(F.col("kind") == ALERTS).select("payload").mapInArrow(decoded, alert_schema())


def match_stages(
    rows: DataFrame, rules: JobRules, shared_folder: SharedFolder | None, begun: tuple[Path, Beginning] | None = None,
    list_files: tuple[str, ...] = (),
) -> DataFrame:  # fmt: skip
    """Match packed rows, with a stage for each level of patterns. MatchStage describes the other arguments."""
    for level in range(rules.job.levels_count):
        stage = partial(MatchStage, rules, level, begun, shared_folder, list_files=list_files)
        rows = _stage(rows, MatchProcessor(stage))
    return rows


def check_session(spark: SparkSession) -> None:
    """Check that the session can keep the state of a processor, before a query fails at its start. Raises: UsageError.

    The setting is not changed here: other queries of the session may have checkpoints of another provider.
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


def _rules_of(rules: StreamRules, spark: SparkSession) -> tuple[JobRules, tuple[str, ...], SharedFolder | None]:
    """Return the values for tasks: the rules, the files of lists that Spark copies to each machine, the folder."""
    if rules.folder is not None:
        store = RulebookStore((rules.folder / RULEBOOKS_FOLDER).resolve())
        return JobRules(rules.job, rules.initial, store), (), SharedFolder.of_driver(rules.folder.resolve())
    names = rules.rulebook.lists.names()
    list_files = ship_lists(spark, rules.rulebook) if names else ()
    return JobRules(rules.job, rules.initial), list_files, None


def _ordered(control: DataFrame) -> DataFrame:
    """Select control records with the column that orders them. Raises: UsageError for a stream without an order."""
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


def control_records(records: DataFrame) -> DataFrame:
    """Select the control records of a topic, with their order."""
    place = F.shiftleft(F.col("partition").cast("bigint"), _OFFSET_BITS).bitwiseOR(F.col("offset"))
    present = records.where(F.col("value").isNotNull())  # a tombstone of a compacted topic
    return present.select(place.alias("order"), F.lit("").alias("name"), F.col("value").alias("payload"))


def control_files(whole: DataFrame) -> DataFrame:
    """Select the control records of whole files, in the order of their times."""
    return whole.select(
        F.unix_micros("_metadata.file_modification_time").alias("order"),
        F.col("_metadata.file_name").alias("name"),
        F.col("value").cast("binary").alias("payload"),
    )


def control_rows(
    records: DataFrame, groups_count: int, store: RulebookStore, read: Callable[[bytes], bytes] = bytes
) -> DataFrame:
    """Save control records (rule changes) in one file. Every key group gets a row with the file's name and the clock,
    called `place`, because the records themselves may be large. `read` decodes the bytes of a record."""
    groups = F.explode(F.sequence(F.lit(0), F.lit(groups_count - 1))).alias("key_group")
    # One task reads all files: Spark would divide them among tasks by size, and their order would be lost.
    records = records.withColumn(CLOCK_COLUMN, batch_clock())
    bundles = records.coalesce(1).mapInArrow(_bundler(store, read), "place binary")
    return bundles.select(
        groups, F.lit(CONTROL).alias("kind"), F.lit(0).alias("domain"), F.lit("").alias("order"),
        F.col("place").alias("payload"),
    )  # fmt: skip


def _bundler(
    store: RulebookStore, read: Callable[[bytes], bytes]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for mapInArrow that saves the control records (rule changes) of a micro-batch as one file. It
    yields one row: the file's name and the clock. Every key group needs the records, and a shuffle of the records for a
    hundred groups could be gigabytes. `read` decodes the bytes of a record."""

    def gather(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        records: list[tuple[int, str, bytes]] = []
        now_ms = TIME_MS_MAX  # no clock yet
        for batch in batches:
            if batch.num_rows:
                now_ms = batch.column(CLOCK_COLUMN)[0].as_py()
            columns = (batch.column(name).to_pylist() for name in ("order", "name", "payload"))
            records += zip(*columns, strict=True)
        if records:
            once = dict.fromkeys(records)  # Spark may list a file twice (packed.is_repeated)
            contents = [(order, name, read(payload)) for order, name, payload in once]
            place = bundle_records(store, contents, now_ms).encode()  # the file's name and the clock
            yield pa.RecordBatch.from_pydict({"place": [place]}, schema=_PLACE_ARROW)

    return gather


def _observed(rows: DataFrame, name: str) -> DataFrame:
    text = F.when(F.col("kind") == COUNTERS, F.col("payload").cast("string"))
    counted = rows.withColumn("counts", F.from_json(text, "map<string,bigint>"))
    return counted.observe(name, *[_sum(counter).alias(counter) for counter in OBSERVED]).drop("counts")


def _sum(counter: str) -> Any:
    mine = F.map_filter("counts", lambda name, _: (name == counter) | name.startswith(f"{counter}["))
    zero = F.lit(0).cast("bigint")
    return F.coalesce(F.sum(F.aggregate(F.map_values(mine), zero, lambda one, other: one + other)), zero)
