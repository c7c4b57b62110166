"""Kafka topics → a Spark DataFrame of undecoded records, batch or streaming, without a JVM connector.

`spark.dataSource.register(KafkaDataSource)`, then `spark.read` or `spark.readStream` with `.format("cep-kafka")`:

    bootstrap.servers        host:port, more with commas (or kafka.bootstrap.servers)
    topic                    one name, more with commas
    startingOffsets          earliest | latest | {"payments": {"0": 17, "1": -2}}; batch: earliest, streaming: latest
    endingOffsets            the same, batch only; latest
    maxRecordsPerTrigger     records of one micro-batch at most; no bound. Trigger.AvailableNow respects it
    maxRecordsPerPartition   a longer range is read by several tasks; one task a topic partition
    maxTasks                 tasks of one read at most, each then reads several ranges; no bound. A task costs some
                             tens of milliseconds however little it reads, so live queries want the number of cores
    waitMs                   how long one answer of a broker is waited for
    kafka.<name>             goes to librdkafka as <name>, for security above all

Offsets are planned where Spark plans, read by range where Spark executes, and kept in Spark's checkpoint directory; the
starting offsets count only for a query without one. A record that is planned is read or the query fails.
Tested by: tests/runners/spark/test_kafka_source.py
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from cep.base.errors import SourceError, UsageError
from cep.base.limits import KAFKA_WAIT_MS_MAX
from cep.sources.kafka import (
    KafkaSettings,
    OffsetRange,
    Offsets,
    latest_offsets,
    limit_offsets,
    offsets_from_json,
    offsets_to_json,
    ranges_between,
    read_range,
    resolve_offsets,
    share_ranges,
)

FORMAT = "cep-kafka"
SCHEMA = "topic string, partition int, offset bigint, timestamp bigint, key binary, value binary"

_OPTIONS = (
    "bootstrap.servers",
    "topic",
    "startingOffsets",
    "endingOffsets",
    "maxRecordsPerTrigger",
    "maxRecordsPerPartition",
    "maxTasks",
    "waitMs",
)
_CLIENT_PREFIX = "kafka."


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of one read, checked."""

    settings: KafkaSettings
    topics: tuple[str, ...]
    starting_offsets: str | None
    ending_offsets: str | None
    records_per_trigger_max: int | None
    records_per_partition_max: int | None
    tasks_max: int | None


def _parse_options(options: Mapping[str, str]) -> _Options:
    """Spark's options, whose names have lost their case, checked. Errors: UsageError with the option's name."""
    own = {name.lower(): value for name, value in options.items()}
    client = {n.removeprefix(_CLIENT_PREFIX): own.pop(n) for n in list(own) if n.startswith(_CLIENT_PREFIX)}
    servers = own.pop("bootstrap.servers", None) or client.get("bootstrap.servers")
    client.pop("bootstrap.servers", None)
    known = {name.lower(): name for name in _OPTIONS}
    for name in own:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {known[near[0]]}" if near else f"known: {', '.join(_OPTIONS)}, kafka.*"
            raise UsageError(f"{FORMAT} has no option {name}; {hint}")
    topics = tuple(dict.fromkeys(t.strip() for t in own.get("topic", "").split(",") if t.strip()))
    for name, value in (("bootstrap.servers", servers), ("topic", topics)):
        if not value:
            raise UsageError(f"{FORMAT} needs option {name}")
    assert servers is not None
    wait_ms = _positive(own, "waitMs")
    return _Options(
        KafkaSettings(servers, tuple(sorted(client.items())), wait_ms if wait_ms is not None else KAFKA_WAIT_MS_MAX),
        topics,
        own.get("startingoffsets"),
        own.get("endingoffsets"),
        _positive(own, "maxRecordsPerTrigger"),
        _positive(own, "maxRecordsPerPartition"),
        _positive(own, "maxTasks"),
    )


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise UsageError(f"{FORMAT} option {name} is a number above 0, not {text!r}")
    return int(text)


class TaskRanges(InputPartition):
    """What one task reads: ranges, one after another."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


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
        if options.records_per_trigger_max is not None:
            raise UsageError(f"{FORMAT} option maxRecordsPerTrigger is for streaming; set endingOffsets for a batch")
        self._options = options

    def partitions(self) -> list[InputPartition]:
        given = self._options
        start = resolve_offsets(given.settings, given.topics, given.starting_offsets or "earliest", "earliest")
        end = resolve_offsets(given.settings, given.topics, given.ending_offsets or "latest", "latest")
        latest = latest_offsets(given.settings, given.topics)
        for wanted in ranges_between(start, end):
            last = latest[wanted.topic][wanted.partition]
            if wanted.end > last:
                raise SourceError(f"endingOffsets want {wanted}, but the partition ends at {last}; lower the offset")
        # Spark takes an empty list for "not partitioned" and would read once with no ranges at all.
        return _plan(given, start, end) or [TaskRanges(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batch after micro-batch. Offsets are JSON objects: topic → partition → next offset."""

    def __init__(self, options: _Options) -> None:
        if options.ending_offsets is not None:
            raise UsageError(f"{FORMAT} option endingOffsets is for batches; a stream has no end")
        self._options = options
        self._target: Offsets | None = None
        self._latest: Offsets | None = None

    def initialOffset(self) -> dict[str, dict[str, int]]:
        given = self._options
        return offsets_to_json(
            resolve_offsets(given.settings, given.topics, given.starting_offsets or "latest", "earliest")
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        records_max = self._options.records_per_trigger_max
        return ReadAllAvailable() if records_max is None else ReadMaxRows(records_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = latest_offsets(self._options.settings, self._options.topics)

    def latestOffset(self, start: Mapping[str, Mapping[str, int]], limit: ReadLimit) -> dict[str, dict[str, int]]:
        known = offsets_from_json(start)
        for topic in known:
            if topic not in self._options.topics:
                raise UsageError(
                    f"the checkpoint directory has offsets of topic {topic}, which option topic no longer names; "
                    "name it again or start with a new checkpoint directory"
                )
        end = self._target or latest_offsets(self._options.settings, self._options.topics)
        self._latest = end
        ranges_between(known, end)  # refuses a topic that went backwards before anything is planned on it
        if isinstance(limit, ReadMaxRows):
            end = limit_offsets(known, end, limit.max_rows)
        return offsets_to_json(end)

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:
        return None if self._latest is None else offsets_to_json(self._latest)

    def partitions(
        self, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]
    ) -> list[InputPartition]:
        return _plan(self._options, offsets_from_json(start), offsets_from_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


def _plan(options: _Options, start: Offsets, end: Offsets) -> list[InputPartition]:
    ranges = ranges_between(start, end, options.records_per_partition_max)
    return [TaskRanges(task) for task in share_ranges(ranges, options.tasks_max or len(ranges))]


def _read(options: _Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, TaskRanges)
    return chain.from_iterable(read_range(options.settings, wanted) for wanted in partition.ranges)
