"""The live job: streams of events and of control records → alerts, micro-batch by micro-batch, with Spark streaming.

    events ─▶ pack (packed.py) ────────────┐
    control ─▶ once to every key group ────┴─▶ match (match_stage.py) ─▶ driver (live_output.py) ─▶ sinks

Where patterns feed patterns there is a stage for each level, one behind the other in the same micro-batch: a stage
hands on what reached it, and what its patterns have produced.

Spark knows of no watermark: it would have one for all partitions, that of the fastest. Ours is in the key groups.
Tested by: tests/runners/spark/test_live.py
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 the name that Spark's own documentation uses
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from cep.base.errors import SourceError, UsageError
from cep.runners.job import Job
from cep.runners.observe import Observed
from cep.runners.spark import daemon
from cep.runners.spark.kafka import EVENTS_FORMAT, FORMAT, KafkaDataSource, KafkaEventsSource
from cep.runners.spark.live_output import LiveOutput
from cep.runners.spark.match_stage import MatchProcessor
from cep.runners.spark.packed import CONTROL, CONTROL_FILE, PACKED_SCHEMA, packer
from cep.runners.spark.progress import measures

# For the session of a live job: workers that start warm, and micro-batches that reach them in one piece.
SPARK_SETTINGS = {"spark.python.daemon.module": daemon.MODULE, "spark.sql.execution.arrow.maxRecordsPerBatch": "131072"}
_CONTROL_SCHEMA = "kind string, order bigint, payload binary"
_CONTROL_ARROW = pa.schema([("kind", pa.string()), ("order", pa.int64()), ("payload", pa.binary())])
_JSON_FILES = "*.{jsonl,ndjson,json}"
_OFFSET_BITS = 48  # of a control record's place: partition, then offset
_POLL_S = 1


@dataclass(frozen=True, slots=True)
class FolderSource:
    """Files that appear in a folder: Parquet, or JSON lines. They are read in the order of their times.

    A file must appear whole: write it under a name that begins with a dot and rename it.
    """

    directory: Path
    files_per_trigger: int | None = None


@dataclass(frozen=True, slots=True)
class TopicSource:
    """A Kafka topic whose values are JSON. `settings` are librdkafka's."""

    servers: str
    topic: str
    records_per_trigger: int | None = None
    starting: str = "earliest"
    settings: tuple[tuple[str, str], ...] = ()


Source = FolderSource | TopicSource


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """What a live job reads and where it keeps its progress. `initial` are the control records that it begins with."""

    job: Job
    initial: tuple[bytes, ...]
    events: Source
    control: Source | None
    checkpoint: Path
    trigger_ms: int = 0
    available_now: bool = False
    tasks: int = 2


def start_live(spark: SparkSession, settings: LiveSettings, output: LiveOutput) -> StreamingQuery:
    """Start the query; it runs in threads of its own until it is stopped or fails.

    Raises: SourceError if the events cannot be read.
    """
    job = settings.job
    spark.dataSource.register(KafkaDataSource)
    spark.dataSource.register(KafkaEventsSource)
    packed = _packed_stream(spark, settings.events, job, settings.tasks)
    if settings.control is not None:
        packed = packed.unionByName(_control_stream(spark, settings.control, job.groups_count))
    matched = packed
    for level in range(job.levels_count):
        matched = matched.groupBy("key_group").transformWithState(
            MatchProcessor(job, settings.initial, level), PACKED_SCHEMA, "Append", "None"
        )
    writer = (
        matched.select("kind", "payload")
        .writeStream.foreachBatch(output.take)
        .option("checkpointLocation", str(settings.checkpoint))
    )
    if settings.available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{settings.trigger_ms} milliseconds").start()


def serve(query: StreamingQuery, output: LiveOutput, stop: threading.Event, observed: Observed | None = None) -> None:
    """Wait until the query ends. Once `stop` is set, it ends when the micro-batch that runs has come to its end.

    Raises: what a sink raised, or SourceError with Spark's reason for which the query failed.
    """
    try:
        while not query.awaitTermination(_POLL_S):
            if observed is not None:
                _observe(query, observed)
            if stop.is_set():
                output.stop()
                if not query.status["isTriggerActive"]:
                    break
    except StreamingQueryException as error:
        if output.refused_batch_id is not None:
            return
        if output.failure is not None:
            raise output.failure from error
        raise SourceError(f"the query failed; it goes on from its checkpoint when started again: {error}") from error
    finally:
        query.stop()


def _observe(query: StreamingQuery, observed: Observed) -> None:
    status, progress = query.status, query.lastProgress
    if progress is not None:
        observed.measured(*measures(json.loads(progress.json)))
    if not status["isTriggerActive"]:
        observed.idle()


# ------------------------------------------------------------------------------------------------------------ sources


def _packed_stream(spark: SparkSession, source: Source, job: Job, tasks: int) -> DataFrame:
    """The events, packed. Those of a topic are packed where they are read."""
    if isinstance(source, TopicSource):
        return _topic_stream(spark, source, tasks, EVENTS_FORMAT).option("job", json.dumps(job.to_json())).load()
    events, column = _folder_stream(spark, source)
    return events.mapInArrow(packer(job, column, tells_times=True), PACKED_SCHEMA)


def _folder_stream(spark: SparkSession, source: FolderSource) -> tuple[DataFrame, str | None]:
    """The stream and its column of JSON records, None where the fields are columns."""
    directory = _existing(source.directory)
    reader = spark.readStream
    if source.files_per_trigger is not None:
        reader = reader.option("maxFilesPerTrigger", source.files_per_trigger)
    first = next(iter(sorted(directory.glob("*.parquet"))), None)
    if first is None:
        return reader.option("pathGlobFilter", _JSON_FILES).text(str(directory)), "value"
    # A stream must know its columns before it starts. Files that come later may lack some, but add none.
    columns = spark.read.parquet(str(first)).schema
    return reader.schema(columns).option("pathGlobFilter", "*.parquet").parquet(str(directory)), None


def _control_stream(spark: SparkSession, source: Source, groups_count: int) -> DataFrame:
    """Each control record once for every key group, with its place in the order of control records."""
    if isinstance(source, TopicSource):
        place = F.shiftleft(F.col("partition").cast("bigint"), _OFFSET_BITS).bitwiseOR(F.col("offset"))
        records = (
            _topic_stream(spark, source, 1, FORMAT)
            .load()
            .where(F.col("value").isNotNull())  # a tombstone of a compacted topic
            .select(F.lit(CONTROL).alias("kind"), place.alias("order"), F.col("value").alias("payload"))
        )
    else:
        records = (
            spark.readStream.option("wholetext", True)
            .option("pathGlobFilter", _JSON_FILES)
            .text(str(_existing(source.directory)))
            .select(
                "value",
                F.unix_micros("_metadata.file_modification_time").alias("order"),
                F.col("_metadata.file_name").alias("name"),
            )
            .mapInArrow(_control_files, _CONTROL_SCHEMA)
        )
    groups = F.explode(F.sequence(F.lit(0), F.lit(groups_count - 1))).alias("key_group")
    return records.select(groups, "kind", F.lit(0).alias("domain"), "order", "payload")


def _control_files(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Whole files with their names on the first line: what orders two files of one time."""
    for batch in batches:
        texts, orders, names = (batch.column(name).to_pylist() for name in ("value", "order", "name"))
        payloads = [f"{name}\n{text}".encode() for name, text in zip(names, texts, strict=True)]
        kinds = [CONTROL_FILE] * len(payloads)
        yield pa.RecordBatch.from_pydict({"kind": kinds, "order": orders, "payload": payloads}, schema=_CONTROL_ARROW)


def _topic_stream(spark: SparkSession, source: TopicSource, tasks: int, form: str) -> DataStreamReader:
    reader = (
        spark.readStream.format(form)
        .option("bootstrap.servers", source.servers)
        .option("topic", source.topic)
        .option("startingOffsets", source.starting)
        .option("maxTasks", tasks)
    )
    if source.records_per_trigger is not None:
        reader = reader.option("maxRecordsPerTrigger", source.records_per_trigger)
    for name, value in source.settings:
        reader = reader.option(f"kafka.{name}", value)
    return reader


def _existing(directory: Path) -> Path:
    if not directory.is_dir():
        raise UsageError(f"{directory} is no folder; make it first, files may come later")
    return directory.resolve()
