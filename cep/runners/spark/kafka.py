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
    maxTasks                 tasks of one read at most, each then reads several ranges; no bound. A task costs some
                             tens of milliseconds however little it reads. So live queries want the number of cores,
                             and a micro-batch of theirs has one for every 5 000 records.
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

Offsets are planned where Spark plans, read by range where Spark executes, and kept in Spark's checkpoint directory; the
starting offsets count only for a query without one. With the offsets goes the clock of the micro-batch, which judges
events from the future and idle partitions. Some time after the last records there is a micro-batch without any, for the
watermark. No consumer group is joined. A record that is planned is read or
the query fails. Partitions that are added are read from their beginning. A topic that was deleted and created again
ends the query: its id tells, or, where brokers have none, offsets that went backwards.
Tested by: tests/runners/spark/test_kafka_source.py, tests/runners/spark/test_live_kafka.py,
tests/runners/spark/test_kafka_looks.py, tests/runners/spark/test_future.py
"""

import difflib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from cep.base.errors import SourceError, UsageError
from cep.base.limits import KAFKA_WAIT_MS_MAX, TIME_MS_MIN
from cep.columnar.mapping import PLAIN, FieldMapping
from cep.runners.spark.admission import AdmittedReader, ReadAllAvailable, ReadLimit, ReadMaxRows
from cep.runners.spark.packed import PACKED_SCHEMA, RECORDS_AT_ONCE, DecodedPart, pack_parts
from cep.runners.spark.paused_partitions import partition_name, read_paused, without_paused
from cep.sources.headers import headers_of
from cep.sources.kafka import (
    KafkaSettings,
    latest_offsets,
    latest_offsets_and_ids,
    mean_record_bytes,
    offsets_at_time,
    read_range,
    resolve_offsets,
    topic_ids,
)
from cep.sources.offsets import (
    Look,
    OffsetRange,
    Offsets,
    Position,
    bounded,
    limit_offsets,
    next_look,
    ranges_between,
    reached,
    refuse_new_topics,
    share_ranges,
)
from cep.sources.registry.kafka import RecordFormat, decode
from cep.step.event_time import NOTHING_READ, PartitionTime, TimesRead
from cep.step.job import Job

FORMAT = "cep-kafka"
EVENTS_FORMAT = "cep-kafka-events"
SCHEMA = "topic string, partition int, offset bigint, timestamp bigint, key binary, value binary"

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
# Of a micro-batch, where maxTasks is given. A task costs as much as decoding some thousand records.
_RECORDS_PER_TASK = 5_000
_REGISTRY_PREFIX = "registry."
_CLIENT_PREFIX = "kafka."


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of one read, checked."""

    settings: KafkaSettings
    topics: tuple[str, ...]
    starting_offsets: str | None
    ending_offsets: str | None
    starting_ms: int | None
    ending_ms: int | None
    records_per_trigger_max: int | None
    bytes_per_trigger_max: int | None
    records_per_partition_max: int | None
    tasks_max: int | None
    plans_late: bool
    paused_partitions: Path | None
    ends: bool
    job: Job | None
    form: RecordFormat

    def starting(self, otherwise: str, absent: str) -> Offsets:
        if self.starting_ms is not None:
            return offsets_at_time(self.settings, self.topics, self.starting_ms)
        return resolve_offsets(self.settings, self.topics, self.starting_offsets or otherwise, absent)

    @property
    def has_ending(self) -> bool:
        return self.ending_ms is not None or self.ending_offsets is not None

    def ending(self) -> Offsets:
        if self.ending_ms is not None:
            return offsets_at_time(self.settings, self.topics, self.ending_ms)
        return resolve_offsets(self.settings, self.topics, self.ending_offsets or "latest", "latest")


def _parse_options(options: Mapping[str, str]) -> _Options:
    """Spark's options, whose names have lost their case, checked. Errors: UsageError with the option's name."""
    given = {name.lower(): value for name, value in options.items()}
    client = {n.removeprefix(_CLIENT_PREFIX): given.pop(n) for n in list(given) if n.startswith(_CLIENT_PREFIX)}
    registry = {n.removeprefix(_REGISTRY_PREFIX): given.pop(n) for n in list(given) if n.startswith(_REGISTRY_PREFIX)}
    servers = given.pop("bootstrap.servers", None) or client.get("bootstrap.servers")
    client.pop("bootstrap.servers", None)
    option_names = {name.lower(): name for name in _OPTIONS}
    for name in given:
        if name not in option_names:
            near = difflib.get_close_matches(name, option_names, n=1)
            hint = f"did you mean {option_names[near[0]]}" if near else f"known: {', '.join(_OPTIONS)}, kafka.*"
            raise UsageError(f"{FORMAT} has no option {name}; {hint}")
    topics = tuple(dict.fromkeys(t.strip() for t in given.get("topic", "").split(",") if t.strip()))
    for name, value in (("bootstrap.servers", servers), ("topic", topics)):
        if not value:
            raise UsageError(f"{FORMAT} needs option {name}")
    assert servers is not None
    for side in ("starting", "ending"):
        if f"{side}offsets" in given and f"{side}timestamp" in given:
            raise UsageError(f"{FORMAT} takes {side}Offsets or {side}Timestamp, not both")
    wait_ms = _positive(given, "waitMs")
    return _Options(
        KafkaSettings(servers, tuple(sorted(client.items())), wait_ms if wait_ms is not None else KAFKA_WAIT_MS_MAX),
        topics,
        given.get("startingoffsets"),
        given.get("endingoffsets"),
        _positive(given, "startingTimestamp"),
        _positive(given, "endingTimestamp"),
        _positive(given, "maxRecordsPerTrigger"),
        _positive(given, "maxBytesPerTrigger"),
        _positive(given, "maxRecordsPerPartition"),
        _positive(given, "maxTasks"),
        given.get("planslate") == "true",
        Path(given["pausedpartitions"]) if "pausedpartitions" in given else None,
        given.get("ends") == "true",
        Job.from_json(json.loads(given["job"])) if "job" in given else None,
        RecordFormat(
            given.get("format", "json"),
            tuple(sorted(registry.items())),
            given.get("schemafile"),
            given.get("message"),
            FieldMapping.from_json(given["mapping"]) if "mapping" in given else PLAIN,
        ),
    )


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise UsageError(f"{FORMAT} option {name} is a number above 0, not {text!r}")
    return int(text)


class TaskRanges(InputPartition):
    """The work of one task: ranges, one after another; and the times of the micro-batch before any of it is read."""

    def __init__(self, ranges: tuple[OffsetRange, ...], times: TimesRead = NOTHING_READ) -> None:
        super().__init__(ranges)
        self.ranges = ranges
        self.times = times


class KafkaDataSource(DataSource):
    """The data source that Spark makes from the options of one read."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> "KafkaReader":
        return KafkaReader(_parse_options(self.options))

    def streamReader(self, schema: StructType) -> "KafkaStreamReader":
        return KafkaStreamReader(_parse_options(self.options))


class KafkaReader(DataSourceReader):
    """Reads what lies between two offsets of every partition, once."""

    def __init__(self, options: _Options) -> None:
        if options.records_per_trigger_max is not None or options.bytes_per_trigger_max is not None:
            raise UsageError(f"{FORMAT} bounds a trigger only in streaming; set endingOffsets for a batch")
        self._options = options

    def partitions(self) -> list[InputPartition]:
        given = self._options
        start, end = given.starting("earliest", "earliest"), given.ending()
        latest = latest_offsets(given.settings, given.topics)
        for wanted in ranges_between(start, end):
            last = latest[wanted.topic][wanted.partition]
            if wanted.end > last:
                raise SourceError(f"endingOffsets want {wanted}, but the partition ends at {last}; lower the offset")
        # Spark takes an empty list for "not partitioned" and would read once with no ranges at all.
        return _plan(given, Position(start), Position(end)) or [TaskRanges(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class KafkaStreamReader(AdmittedReader):
    """Reads micro-batch after micro-batch. What Spark keeps as an offset is a Position."""

    def __init__(self, options: _Options) -> None:
        super().__init__(ends=options.ends)
        self._options = options
        self._ending: Offsets | None = None
        self._target: Offsets | None = None
        self._latest: Position | None = None
        self._seen: Offsets | None = None  # the end of the topic at the plan before

    def first(self) -> dict[str, Any]:
        given = self._options
        return Position(given.starting("latest", "earliest"), {}, topic_ids(given.settings, given.topics)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        records_max = self._options.records_per_trigger_max
        return ReadAllAvailable() if records_max is None else ReadMaxRows(records_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = latest_offsets(self._options.settings, self._options.topics)

    def latest(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        given, position = self._options, Position.from_json(start)
        for topic in position.offsets:
            if topic not in given.topics:
                raise UsageError(
                    f"the checkpoint directory has offsets of topic {topic}, which option topic no longer names; "
                    "name it again or start with a new checkpoint directory"
                )
        if self._target is None:
            latest, ids = latest_offsets_and_ids(given.settings, given.topics)
        else:
            latest, ids = self._target, topic_ids(given.settings, given.topics)
        refuse_new_topics(position.topic_ids, ids)
        end = latest
        if given.plans_late and self._target is None:
            end, self._seen = self._seen or latest, latest
        ranges = ranges_between(position.offsets, end)  # refuses a topic that went backwards before anything is planned
        if given.has_ending:
            end = bounded(position.offsets, latest, self._ending_offsets())
            ranges = ranges_between(position.offsets, end)
        if given.paused_partitions is not None and (paused := read_paused(given.paused_partitions)):
            end = without_paused(ranges, end, paused)
            ranges = ranges_between(position.offsets, end)
        records_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if given.bytes_per_trigger_max is not None and ranges:
            longest = max(ranges, key=lambda r: r.end - r.start)
            by_size = max(1, given.bytes_per_trigger_max // mean_record_bytes(given.settings, longest))
            records_max = by_size if records_max is None else min(by_size, records_max)
        if records_max is not None:
            end = limit_offsets(position.offsets, end, records_max)
        self._latest = Position(latest, {}, ids)
        return reached(position, end, latest, ids, self._look(position, end)).to_json()

    def _look(self, start: Position, end: Offsets) -> Look | None:
        """Return the clock of the next micro-batch; without anything to read or to look for, that of the last one."""
        job, now_ms = self._options.job, _clock_ms()
        if job is None:
            return None
        if end != start.offsets:
            return Look(now_ms, now_ms, is_end=end == self._target)
        if self._target is not None:
            return start.look if start.look is None or start.look.is_end else Look(now_ms, now_ms, is_end=True)
        waits_ms = {job.ahead_ms or 0}
        if sum(map(len, end.values())) > 1:
            waits_ms.add(job.idle_ms)
        return next_look(start.look, now_ms, sorted(waits_ms - {0})) or start.look

    def _ending_offsets(self) -> Offsets:
        """Return where the stream ends: asked for once, so that a time is the same place for all micro-batches of a
        start.
        """
        if self._ending is None:
            self._ending = self._options.ending()
        return self._ending

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else self._latest.to_json()

    def planned(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        return _plan(self._options, Position.from_json(start), Position.from_json(end), _RECORDS_PER_TASK)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class KafkaEventsSource(KafkaDataSource):
    """The same topics as the packed rows of a job."""

    @classmethod
    def name(cls) -> str:
        return EVENTS_FORMAT

    def schema(self) -> str:
        return PACKED_SCHEMA

    def reader(self, schema: StructType) -> KafkaReader:
        raise UsageError(f"{EVENTS_FORMAT} is for streaming; read {FORMAT} in a batch")

    def streamReader(self, schema: StructType) -> "KafkaEventsReader":
        return KafkaEventsReader(_parse_options(self.options))


class KafkaEventsReader(KafkaStreamReader):
    """Plans as KafkaStreamReader, and packs what it reads."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskRanges)
        if self._options.job is None:
            raise UsageError(f"{EVENTS_FORMAT} needs option job")
        batches: dict[OffsetRange, list[pa.RecordBatch]] = {}
        records, is_packed = 0, False
        for wanted in partition.ranges:
            headers = headers_of(self._options.form.mapping)
            for batch in read_range(self._options.settings, wanted, headers=headers):
                batches.setdefault(wanted, []).append(batch)
                records += batch.num_rows
                if records >= RECORDS_AT_ONCE:
                    yield _packed(self._options, batches, partition)
                    batches, records, is_packed = {}, 0, True
        if records or not is_packed:
            yield _packed(self._options, batches, partition)


def _packed(
    options: _Options, batches: Mapping[OffsetRange, Sequence[pa.RecordBatch]], task: TaskRanges
) -> pa.RecordBatch:
    assert options.job is not None, "checked when the read began"
    parts = []
    for wanted, range_batches in batches.items():
        values = pa.concat_arrays([batch.column("value") for batch in range_batches])
        decoded = decode(options.form, options.job.schema, values, wanted.topic)
        name = partition_name(wanted.topic, wanted.partition)
        parts.append(DecodedPart(name, decoded, task.times.partitions[name].is_behind))
    return pack_parts(options.job, parts, task.times)


def _clock_ms() -> int:
    return int(time.time() * 1_000)


def _plan(options: _Options, start: Position, end: Position, records_per_task: int = 1) -> list[InputPartition]:
    """Deal the ranges to tasks; where the number of tasks is bounded, to no more than have work for their start.

    A micro-batch without ranges has one task if its clock tells something.
    """
    ranges = ranges_between(start.offsets, end.offsets, options.records_per_partition_max)
    times = NOTHING_READ if end.look is None else _times(start, end, end.look)
    tasks = len(ranges)
    if options.tasks_max is not None:
        records = sum(wanted.end - wanted.start for wanted in ranges)
        tasks = min(options.tasks_max, -(-records // records_per_task))
    dealt = share_ranges(ranges, tasks)
    if end.look is not None and not dealt:
        dealt = [()]
    return [TaskRanges(task, times) for task in dealt]


def _times(start: Position, end: Position, look: Look) -> TimesRead:
    """Return the partitions that a micro-batch reads, that are behind or new, before an event of them is known.

    One that is behind holds the watermark even if nothing of it has been read, and so does a new one for a while.
    """
    partitions: dict[str, PartitionTime] = {}
    for topic, of in end.offsets.items():
        behind, named = end.behind.get(topic, ()), {} if start.look is None else start.offsets.get(topic, {})
        for partition, offset in of.items():
            if partition in behind or named.get(partition) != offset:
                partitions[partition_name(topic, partition)] = PartitionTime(TIME_MS_MIN, partition in behind)
    return TimesRead(partitions, now_ms=look.now_ms, is_end=look.is_end)


def _read(options: _Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, TaskRanges)
    return chain.from_iterable(read_range(options.settings, wanted) for wanted in partition.ranges)
