"""Kafka topics → a Spark DataFrame, batch or streaming, without a JVM connector.

    cep-kafka           undecoded records: topic, partition, offset, timestamp, key, value
    cep-kafka-events    streaming only: packed rows of a job (packed.py), decoded and packed by the task that reads
                        them, so that no record passes through the JVM

`spark.dataSource.register(KafkaDataSource)`, then `spark.read` or `spark.readStream` with `.format("cep-kafka")`:

    bootstrap.servers        host:port, more with commas (or kafka.bootstrap.servers)
    topic                    one name, more with commas
    startingOffsets          earliest | latest | {"payments": {"0": 17, "1": -2}}; batch: earliest, streaming: latest
    endingOffsets            the same; latest. Streaming: no micro-batch reads on behind it; without, there is no end
    startingTimestamp        ms: from the first record of this or a later time on, instead of startingOffsets
    endingTimestamp          ms: up to the last record before this time, instead of endingOffsets
    maxRecordsPerTrigger     records of one micro-batch at most; no bound. Trigger.AvailableNow respects it.
    maxBytesPerTrigger       bytes of keys and values of one micro-batch, as far as a sample of its first records tells.
    maxRecordsPerPartition   a longer range is read by several tasks; one task a topic partition.
    maxTasks                 tasks of one read at most, each then reads several ranges; no bound. Live queries want the
                             number of cores, and a micro-batch of theirs has a task for every 5 000 records.
    plansLate                true: a plan ends where the one before saw the topic's end. So what it reads was there
                             before the streams beside it were asked for their ends. The first plan of a start ends at
                             the end.
    pausedPartitions         a file that names partitions to leave alone while others have something to read
    waitMs                   how long one answer of a broker is waited for
    ends                     true: the query ends with what is there. Spark 4.1 does not say so (admission.py)
    kafka.<name>             goes to librdkafka as <name>, for security above all: kafka.security.protocol,
                             kafka.sasl.mechanism, kafka.sasl.password, kafka.ssl.ca.location … Never printed or logged
    job                      cep-kafka-events: the job, as JSON
    format                   cep-kafka-events: json | avro | protobuf (sources/registry/kafka.py); json
    registry.<name>          goes to the schema registry's client: registry.url, registry.basic.auth.user.info …
    schemaFile, message      a schema (avro) or a file of descriptors and the name of a message in it (protobuf)

Offsets are planned by Spark's planner, read by range in Spark's executors, and stored in Spark's checkpoint directory,
with the clock of the micro-batch, which judges events from the future and idle partitions. Some time after the last
records there is a micro-batch without records, for the watermark. The source joins no consumer group. A planned record
is read or the query fails. New partitions are read from their beginning. A topic that was deleted and created again
ends the query: its id differs, or, with brokers without topic ids, its offsets went backwards.

Spark calls a source in five processes before the first task, and a start waits for one after the other. This file
therefore loads no code for events; a task that reads them does (kafka_events.py).
Tested by: tests/runners/spark/test_kafka.py, tests/runners/spark/test_live.py, tests/runners/spark/test_future.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from cep.base.errors import SourceError, UsageError
from cep.base.limits import KAFKA_WAIT_MS_MAX, TIME_MS_MIN
from cep.base.text import nearest_name
from cep.columnar.mapping import PLAIN, FieldMapping
from cep.runners.spark.admission import AdmittedReader, ReadAllAvailable, ReadLimit, ReadMaxRows
from cep.runners.spark.paused_partitions import partition_name, read_paused, without_paused
from cep.runners.spark.sources import PACKED_SCHEMA
from cep.sources import kafka
from cep.sources.offsets import (
    BatchClock,
    OffsetRange,
    Offsets,
    Position,
    bounded,
    limit_offsets,
    next_empty_batch,
    ranges_between,
    reached,
    refuse_new_topics,
    share_ranges,
)
from cep.sources.registry.form import RecordFormat
from cep.step.event_time import NOTHING_READ, PartitionTime, TimesRead

FORMAT, EVENTS_FORMAT = "cep-kafka", "cep-kafka-events"
_OPTIONS = (
    "bootstrap.servers",
    "topic",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "maxRecordsPerPartition",
    "maxTasks",
    "plansLate",
    "pausedPartitions",
    "waitMs",
    "ends",
    "job",
    "format",
    "schemaFile",
    "message",
    "mapping",
)
_REGISTRY_PREFIX = "registry."
_CLIENT_PREFIX = "kafka."
SCHEMA = "topic string, partition int, offset bigint, timestamp bigint, key binary, value binary"
# Of a micro-batch, if maxTasks is set. A task costs as much as decoding some thousand records.
_RECORDS_PER_TASK = 5_000


class KafkaDataSource(DataSource):
    """Spark's data source for Kafka topics, created from the options of one read."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> KafkaReader:
        return KafkaReader(parse_options(self.options))

    def streamReader(self, schema: StructType) -> KafkaStreamReader:
        return KafkaStreamReader(parse_options(self.options))


class KafkaEventsSource(KafkaDataSource):
    """Spark's data source for Kafka topics as packed rows of a job (events of a key group as bytes, see packed.py): the
    task that reads the records decodes and packs them."""

    @classmethod
    def name(cls) -> str:
        return EVENTS_FORMAT

    def schema(self) -> str:
        return PACKED_SCHEMA

    def reader(self, schema: StructType) -> KafkaReader:
        raise UsageError(f"{EVENTS_FORMAT} is for streaming; read {FORMAT} in a batch")

    def streamReader(self, schema: StructType) -> KafkaEventsReader:
        return KafkaEventsReader(parse_options(self.options))


@dataclass(frozen=True, slots=True)
class Options:
    """The checked options of one read. `job` has the form of `Job.to_json`: planning needs its ahead_ms and idle_ms. In
    the methods, `absent` ("earliest" or "latest") is the offset of partitions that the offsets do not name."""

    settings: kafka.KafkaSettings
    topics: tuple[str, ...]
    starting_offsets: str | None
    ending_offsets: str | None
    starting_ms: int | None
    ending_ms: int | None
    records_per_trigger_max: int | None
    bytes_per_trigger_max: int | None
    records_per_partition_max: int | None
    tasks_max: int | None
    plans_late: bool  # read up to the topic's end of one plan earlier: other streams then have later ends
    paused_partitions: Path | None  # a file with the partitions to skip
    ends: bool  # the query ends once it has read the records that are there at its start
    job: Mapping[str, Any] | None
    form: RecordFormat

    def starting(self, otherwise: str, absent: str) -> Offsets:
        return self._resolved(self.starting_ms, self.starting_offsets or otherwise, absent)

    @property
    def has_ending(self) -> bool:
        return self.ending_ms is not None or self.ending_offsets is not None

    def ending(self) -> Offsets:
        return self._resolved(self.ending_ms, self.ending_offsets or "latest", "latest")

    def _resolved(self, time_ms: int | None, offsets: str, absent: str) -> Offsets:
        if time_ms is not None:
            return kafka.offsets_at_time(self.settings, self.topics, time_ms)
        return kafka.resolve_offsets(self.settings, self.topics, offsets, absent)


def parse_options(options: Mapping[str, str]) -> Options:
    """Spark's options, whose names have lost their case, checked. Errors: UsageError with the option's name."""
    values = {name.lower(): value for name, value in options.items()}
    client = {n.removeprefix(_CLIENT_PREFIX): values.pop(n) for n in list(values) if n.startswith(_CLIENT_PREFIX)}
    registry = {n.removeprefix(_REGISTRY_PREFIX): values.pop(n) for n in list(values) if n.startswith(_REGISTRY_PREFIX)}
    servers = values.pop("bootstrap.servers", None) or client.get("bootstrap.servers")
    client.pop("bootstrap.servers", None)
    option_names = {name.lower(): name for name in _OPTIONS}
    for name in values:
        if name not in option_names:
            nearest = nearest_name(name, option_names)
            hint = f"did you mean {option_names[nearest]}" if nearest else f"known: {', '.join(_OPTIONS)}, kafka.*"
            raise UsageError(f"{FORMAT} has no option {name}; {hint}")
    topics = tuple(dict.fromkeys(t.strip() for t in values.get("topic", "").split(",") if t.strip()))
    for name, value in (("bootstrap.servers", servers), ("topic", topics)):
        if not value:
            raise UsageError(f"{FORMAT} needs option {name}")
    assert servers is not None
    for side in ("starting", "ending"):
        if f"{side}offsets" in values and f"{side}timestamp" in values:
            raise UsageError(f"{FORMAT} takes {side}Offsets or {side}Timestamp, not both")
    wait_ms = _positive(values, "waitMs") or KAFKA_WAIT_MS_MAX
    return Options(
        kafka.KafkaSettings(servers, tuple(sorted(client.items())), wait_ms),
        topics,
        values.get("startingoffsets"),
        values.get("endingoffsets"),
        _positive(values, "startingTimestamp", least=0),
        _positive(values, "endingTimestamp", least=0),
        _positive(values, "maxRecordsPerTrigger"),
        _positive(values, "maxBytesPerTrigger"),
        _positive(values, "maxRecordsPerPartition"),
        _positive(values, "maxTasks"),
        values.get("planslate") == "true",
        Path(values["pausedpartitions"]) if "pausedpartitions" in values else None,
        values.get("ends") == "true",
        json.loads(values["job"]) if "job" in values else None,
        RecordFormat(
            values.get("format", "json"),
            tuple(sorted(registry.items())),
            values.get("schemafile"),
            values.get("message"),
            FieldMapping.from_json(values["mapping"]) if "mapping" in values else PLAIN,
        ),
    )


def _positive(options: Mapping[str, str], name: str, least: int = 1) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise UsageError(f"{FORMAT} option {name} is a number above {least - 1}, not {text!r}")
    return int(text)


class TaskRanges(InputPartition):
    """The work of one task: ranges, one after another; and the times of the micro-batch before any of it is read."""

    def __init__(self, ranges: tuple[OffsetRange, ...], times: TimesRead = NOTHING_READ) -> None:
        super().__init__(ranges)
        self.ranges = ranges
        self.times = times


class KafkaReader(DataSourceReader):
    """Reads the records between two offsets of every partition, once."""

    def __init__(self, options: Options) -> None:
        if options.records_per_trigger_max is not None or options.bytes_per_trigger_max is not None:
            raise UsageError(f"{FORMAT} bounds a trigger only in streaming; set endingOffsets for a batch")
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks of a batch read: ranges of offsets. Raises: SourceError if an ending offset does not exist."""
        options = self._options
        start, end = options.starting("earliest", "earliest"), options.ending()
        latest = kafka.latest_offsets(options.settings, options.topics)
        for offset_range in ranges_between(start, end):
            last = latest[offset_range.topic][offset_range.partition]
            if offset_range.end > last:
                raise SourceError(
                    f"endingOffsets want {offset_range}, but the partition ends at {last}; lower the offset"
                )
        # Spark takes an empty list for "not partitioned" and would read once with no ranges at all.
        return _plan(options, Position(start), Position(end)) or [TaskRanges(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class KafkaStreamReader(AdmittedReader):
    """Reads micro-batch after micro-batch. The offset that Spark stores is a Position."""

    def __init__(self, options: Options) -> None:
        super().__init__(ends=options.ends)
        self._options = options
        self._ending: Offsets | None = None
        self._end_at_start: Offsets | None = None  # of a query that ends there; None: it reads later records, too
        self._latest: Position | None = None
        self._end_of_last_plan: Offsets | None = None  # the end of the topic at the plan before

    def first(self) -> dict[str, Any]:
        options, starting = self._options, self._options.starting("latest", "earliest")
        return Position(starting, {}, kafka.topic_ids(options.settings, options.topics)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        records_max = self._options.records_per_trigger_max
        return ReadAllAvailable() if records_max is None else ReadMaxRows(records_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._end_at_start = kafka.latest_offsets(self._options.settings, self._options.topics)

    def latest(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch: at most `limit` after `start`, without paused partitions, and not
        after `_ending`, the end that the options name. A query that reads only the records that exist at its start ends
        at `_end_at_start`."""
        options, position = self._options, Position.from_json(start)
        for topic in position.offsets:
            if topic not in options.topics:
                raise UsageError(
                    f"the checkpoint directory has offsets of topic {topic}, which option topic no longer names; "
                    "name it again or start with a new checkpoint directory"
                )
        if self._end_at_start is None:
            latest, ids = kafka.latest_offsets_and_ids(options.settings, options.topics)
        else:
            latest, ids = self._end_at_start, kafka.topic_ids(options.settings, options.topics)
        refuse_new_topics(position.topic_ids, ids)
        end = latest
        if options.plans_late and self._end_at_start is None:  # up to the end that the plan before saw
            end, self._end_of_last_plan = self._end_of_last_plan or latest, latest
        ranges = ranges_between(position.offsets, end)  # refuses a topic that went backwards before anything is planned
        if options.has_ending:
            if self._ending is None:  # once, so that a time is the same place for all micro-batches of a start
                self._ending = options.ending()
            end = bounded(position.offsets, end, self._ending)
            ranges = ranges_between(position.offsets, end)
        if options.paused_partitions is not None and (paused := read_paused(options.paused_partitions)):
            end = without_paused(ranges, end, paused)
            ranges = ranges_between(position.offsets, end)
        records_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if options.bytes_per_trigger_max is not None and ranges:
            longest = max(ranges, key=lambda r: r.end - r.start)
            by_size = max(1, options.bytes_per_trigger_max // kafka.mean_record_bytes(options.settings, longest))
            records_max = by_size if records_max is None else min(by_size, records_max)
        if records_max is not None:
            end = limit_offsets(position.offsets, end, records_max)
        self._latest = Position(latest, {}, ids)  # the end of the topic, for Spark's report
        return reached(position, end, latest, ids, self._clock_at(position, end)).to_json()

    def _clock_at(self, start: Position, end: Offsets) -> BatchClock | None:
        """Return the clock (time of planning) of a micro-batch from `start` to `end`. If no micro-batch is due, return
        the last one's clock: its end position then equals its start, and Spark plans none."""
        job, last, now_ms = self._options.job, start.clock, _clock_ms()
        if job is None:
            return None  # a topic of undecoded records has no watermark
        if end != start.offsets:  # it has records; moved_ms: when records were last planned
            return BatchClock(now_ms, moved_ms=now_ms, is_end=end == self._end_at_start)
        if self._end_at_start is not None:  # all is read: mark one empty micro-batch as the end of the query
            return last if last is None or last.is_end else BatchClock(now_ms, moved_ms=now_ms, is_end=True)
        # After these times without records, an empty micro-batch lets the watermark move on with the clock:
        waits_ms = {job["ahead_ms"] or 0}  # the clock has reached the times of events that were ahead of it
        if sum(map(len, end.values())) > 1:
            waits_ms.add(job["idle_ms"])  # a partition without records does not delay the watermark any more
        return next_empty_batch(last, now_ms, sorted(waits_ms - {0})) or last

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else self._latest.to_json()

    def planned(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        return _plan(self._options, Position.from_json(start), Position.from_json(end), _RECORDS_PER_TASK)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class KafkaEventsReader(KafkaStreamReader):
    """Plans as KafkaStreamReader, and packs the records that it reads."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from cep.runners.spark.kafka_events import read_events  # noqa: PLC0415 a second, which planning can do without

        assert isinstance(partition, TaskRanges)
        options = self._options
        if options.job is None:
            raise UsageError(f"{EVENTS_FORMAT} needs option job")
        return read_events(options.settings, options.form, options.job, partition.ranges, partition.times)


def _clock_ms() -> int:
    return int(time.time() * 1_000)


def _plan(options: Options, start: Position, end: Position, records_per_task: int = 1) -> list[InputPartition]:
    """Divide the ranges of offsets between two positions among tasks. Each task also gets the clock (when `end` was
    planned) and the partitions that delay the watermark, or NOTHING_READ if `end` has no clock. With the option
    `tasks_max`, a task reads `records_per_task` records, or more if that needs more tasks than `tasks_max`."""
    ranges = ranges_between(start.offsets, end.offsets, options.records_per_partition_max)
    times = NOTHING_READ if end.clock is None else _times(start, end, end.clock)
    tasks = len(ranges)
    if options.tasks_max is not None:
        records = sum(offset_range.end - offset_range.start for offset_range in ranges)
        tasks = min(options.tasks_max, -(-records // records_per_task))  # rounded up
    dealt = share_ranges(ranges, tasks)
    if end.clock is not None and not dealt:
        dealt = [()]  # one task without ranges: it passes the clock of the micro-batch on
    return [TaskRanges(task, times) for task in dealt]


def _times(start: Position, end: Position, clock: BatchClock) -> TimesRead:
    """Return the times of partitions that are behind or new, which delay the watermark before any record is read."""
    partitions: dict[str, PartitionTime] = {}
    for topic, by_partition in end.offsets.items():
        behind, named = end.behind.get(topic, ()), {} if start.clock is None else start.offsets.get(topic, {})
        for partition, offset in by_partition.items():
            if partition in behind or named.get(partition) != offset:
                partitions[partition_name(topic, partition)] = PartitionTime(TIME_MS_MIN, partition in behind)
    return TimesRead(partitions, now_ms=clock.now_ms, is_end=clock.is_end)


def _read(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, TaskRanges)
    return chain.from_iterable(kafka.read_range(options.settings, offset_range) for offset_range in partition.ranges)
