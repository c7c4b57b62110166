"""Kafka topics → offsets to plan with, and ranges of offsets → Arrow record batches of undecoded records.

A range is read by assignment, never by subscription: who plans the offsets owns them, nothing is committed to Kafka,
and reading a range again gives the same records. Offsets may have holes (compaction, transaction markers); the
end of a range is reached by position, not by counting. Must not know Spark, events or rules.
Tested by: tests/sources/test_kafka.py
"""

import json
import os
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapreplace
from itertools import accumulate, compress, pairwise
from typing import Any

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from cep.base.errors import SourceError, UsageError
from cep.base.limits import KAFKA_IDLE_CONSUMERS_MAX, KAFKA_WAIT_MS_MAX

RECORD_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)

# Topic → partition → the next offset to read.
Offsets = dict[str, dict[int, int]]

# Records asked for at once, and rows of a record batch. Measured with 200-byte values: 500 to 1 000 are the fastest,
# 10 000 takes up to half as long again, because the message objects no longer fit the processor's cache.
_BATCH_RECORDS = 1_000
# The client waits for all records asked for. Where a range ends in a hole fewer come, so one wait must be short.
_POLL_S = 0.02

_SET_BY_US = {
    "auto.offset.reset": "error",  # a lost offset is an error, never a silent jump
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",  # how the end of a range is seen when its last offsets are holes
}
_DEFAULTS = {
    "group.id": "cep",  # the client insists on a name; no group is joined
    "fetch.wait.max.ms": "5",  # the default of 500 holds back the first fetch after an assignment by as much
    "queued.min.messages": "1000000",  # fetch ahead by bytes (64 MB), not by a count that starves small records
    "fetch.message.max.bytes": "4194304",
    "log_level": "2",  # broker errors reach the caller in our exceptions
}
_GONE_CODES = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)  # noqa: SLF001
_UNKNOWN_CODES = (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)  # noqa: SLF001
_END_CODE = KafkaError._PARTITION_EOF  # noqa: SLF001


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Where the brokers are. `client_options` go to librdkafka as they are and are never printed: they hold secrets."""

    bootstrap_servers: str
    client_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    wait_ms: int = KAFKA_WAIT_MS_MAX

    @property
    def wait_s(self) -> float:
        return self.wait_ms / 1000


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The records of one partition with start <= offset < end."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] offsets {self.start}..{self.end}"


class _IdleConsumers:
    """Consumers between two uses: a connection costs more than a small micro-batch reads in.

    A consumer in use is not in here, so that two readers in one process never share one. A forked child does not
    take its parent's, whose threads it does not have.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[int, KafkaSettings, Consumer]] = []

    def take(self, settings: KafkaSettings) -> Consumer:
        with self._lock:
            for index, (process, known, consumer) in enumerate(self._idle):
                if process == os.getpid() and known == settings:
                    del self._idle[index]
                    return consumer
        return _connect(settings)

    def give(self, settings: KafkaSettings, consumer: Consumer) -> None:
        with self._lock:
            self._idle.append((os.getpid(), settings, consumer))
            surplus = self._idle.pop(0) if len(self._idle) > KAFKA_IDLE_CONSUMERS_MAX else None
        if surplus is not None and surplus[0] == os.getpid():
            surplus[2].close()


_CONSUMERS = _IdleConsumers()


def _connect(settings: KafkaSettings) -> Consumer:
    ours = [name for name, _ in settings.client_options if name in _SET_BY_US]
    if ours:
        raise UsageError(f"Kafka option {ours[0]} is set by the source to {_SET_BY_US[ours[0]]}; leave it out")
    options: dict[str, Any] = {**_DEFAULTS, **dict(settings.client_options), **_SET_BY_US}
    try:
        return Consumer({**options, "bootstrap.servers": settings.bootstrap_servers})
    except KafkaException as error:
        raise UsageError(f"Kafka options refused: {_reason(error)}; see librdkafka's CONFIGURATION.md") from error


def _reason(error: KafkaException) -> str:
    cause = error.args[0] if error.args else error
    return str(cause.str()) if isinstance(cause, KafkaError) else str(cause)


# -------------------------------------------------------------------------------------------------- planning


def earliest_offsets(settings: KafkaSettings, topics: Sequence[str]) -> Offsets:
    """The first offset that is still there, of every partition of the topics.

    Errors: SourceError when a topic is missing or no broker answers in time. Cost: one metadata request a topic,
    one offset request a broker.
    """
    return _offsets_at(settings, topics, OFFSET_BEGINNING)


def latest_offsets(settings: KafkaSettings, topics: Sequence[str]) -> Offsets:
    """The end of every partition of the topics: the next offset that readers of committed records will see.

    Errors and cost as of `earliest_offsets`.
    """
    return _offsets_at(settings, topics, OFFSET_END)


def _offsets_at(settings: KafkaSettings, topics: Sequence[str], place: int) -> Offsets:
    consumer = _CONSUMERS.take(settings)
    try:
        wanted = [TopicPartition(t, p, place) for t in topics for p in _partitions(consumer, settings, t)]
        found = consumer.offsets_for_times(wanted, timeout=settings.wait_s)
    except KafkaException as error:
        consumer.close()
        raise SourceError(_no_answer(settings, topics, _reason(error))) from error
    except SourceError:
        _CONSUMERS.give(settings, consumer)
        raise
    _CONSUMERS.give(settings, consumer)
    offsets: Offsets = {topic: {} for topic in topics}
    for at in found:
        if at.error is not None:
            raise SourceError(_no_answer(settings, topics, f"{at.topic}[{at.partition}]: {at.error.str()}"))
        offsets[at.topic][at.partition] = at.offset
    return offsets


def _partitions(consumer: Consumer, settings: KafkaSettings, topic: str) -> list[int]:
    found = consumer.list_topics(topic, timeout=settings.wait_s).topics[topic]
    if found.error is not None or not found.partitions:
        reason = found.error.str() if found.error is not None else "it has no partitions"
        raise SourceError(
            f"Kafka topic {topic} cannot be read on {settings.bootstrap_servers}: {reason}; "
            "create the topic, correct its name, or grant the right to describe and read it"
        )
    return sorted(found.partitions)


def _no_answer(settings: KafkaSettings, topics: Sequence[str], reason: str) -> str:
    return (
        f"Kafka at {settings.bootstrap_servers} gave no offsets of {', '.join(topics)} "
        f"within {settings.wait_ms} ms: {reason}; check the address, the network and the security options"
    )


def resolve_offsets(settings: KafkaSettings, topics: Sequence[str], text: str, absent: str) -> Offsets:
    """The offsets that an option names: "earliest", "latest", or JSON like {"payments": {"0": 17, "1": -1}}.

    In JSON -2 is earliest and -1 latest, as in Spark's own Kafka source; a partition that is not named gets
    `absent`, "earliest" or "latest". Errors: UsageError for text that says something else, SourceError as above.
    """
    if text == "earliest":
        return earliest_offsets(settings, topics)
    if text == "latest":
        return latest_offsets(settings, topics)
    named = _parse_offsets(text)
    earliest, latest = earliest_offsets(settings, topics), latest_offsets(settings, topics)
    offsets: Offsets = earliest if absent == "earliest" else latest
    offsets = {topic: dict(partitions) for topic, partitions in offsets.items()}
    for topic, partitions in named.items():
        for partition, offset in partitions.items():
            if partition not in offsets.get(topic, {}):
                raise UsageError(f"offsets name {topic}[{partition}], which is not read; topics: {', '.join(topics)}")
            marks = {OFFSET_BEGINNING: earliest, OFFSET_END: latest}
            offsets[topic][partition] = marks[offset][topic][partition] if offset in marks else offset
    return offsets


def _parse_offsets(text: str) -> Offsets:
    try:
        return {str(t): {int(p): int(offset) for p, offset in of.items()} for t, of in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f'offsets are earliest, latest or {{"topic": {{"0": 17}}}}, not {text[:200]}') from error


def limit_offsets(start: Offsets, end: Offsets, records_max: int) -> Offsets:
    """`end`, brought nearer to `start` so that no more than `records_max` offsets lie between.

    Every partition with records gets at least one while there are enough; the rest is shared in proportion to
    what waits, so that partitions that are behind together catch up together and their event times stay close.
    """
    ranges = ranges_between(start, end)
    sizes = [r.end - r.start for r in ranges]
    if sum(sizes) <= records_max:
        return end
    limited = {topic: {p: min(_start_of(start, topic, p), e) for p, e in of.items()} for topic, of in end.items()}
    first_count = min(len(ranges), records_max)
    rest = records_max - first_count
    rest_total = max(sum(sizes) - len(sizes), 1)
    # Rounding the running sum instead of each share keeps the total exact.
    running = [0, *(done * rest // rest_total for done in accumulate(size - 1 for size in sizes))]
    shares = [after - before for before, after in pairwise(running)]
    for index, (part, share) in enumerate(zip(ranges, shares, strict=True)):
        limited[part.topic][part.partition] = part.start + share + int(index < first_count)
    return limited


def ranges_between(start: Offsets, end: Offsets, records_max: int | None = None) -> list[OffsetRange]:
    """The non-empty ranges from `start` to `end`, each cut into pieces of at most `records_max` offsets.

    A partition that `start` does not know is new and begins at 0. Errors: SourceError when a partition ends before
    it starts, which happens when a topic was deleted and created again, or when `end` lacks a partition.
    """
    for topic, partitions in start.items():
        for partition, offset in partitions.items():
            last = end.get(topic, {}).get(partition)
            if last is None or last < offset:
                ends = "is no longer there" if last is None else f"ends at {last}"
                raise SourceError(
                    f"{topic}[{partition}] was read up to offset {offset} but {ends}: the topic was probably deleted "
                    "and created again; start with a new checkpoint directory"
                )
    ranges: list[OffsetRange] = []
    for topic, partitions in end.items():
        for partition, last in sorted(partitions.items()):
            first = _start_of(start, topic, partition)
            step = records_max if records_max is not None else max(last - first, 1)
            ranges += [OffsetRange(topic, partition, at, min(at + step, last)) for at in range(first, last, step)]
    return ranges


def share_ranges(ranges: Sequence[OffsetRange], tasks_count: int) -> list[tuple[OffsetRange, ...]]:
    """The ranges dealt to at most `tasks_count` tasks, largest first to whoever has least; no task is empty."""
    dealt: list[list[OffsetRange]] = [[] for _ in range(min(tasks_count, len(ranges)))]
    heap = [(0, task) for task in range(len(dealt))]
    for wanted in sorted(ranges, key=lambda r: r.start - r.end):
        records_count, task = heap[0]
        dealt[task].append(wanted)
        heapreplace(heap, (records_count + wanted.end - wanted.start, task))
    return [tuple(task) for task in dealt]


def _start_of(start: Offsets, topic: str, partition: int) -> int:
    return start.get(topic, {}).get(partition, 0)


def offsets_to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets as JSON can hold them: partition numbers as text."""
    return {topic: {str(p): offset for p, offset in of.items()} for topic, of in offsets.items()}


def offsets_from_json(data: Mapping[str, Mapping[str, int]]) -> Offsets:
    """What `offsets_to_json` wrote."""
    return {topic: {int(p): offset for p, offset in of.items()} for topic, of in data.items()}


# -------------------------------------------------------------------------------------------------- reading


def read_range(settings: KafkaSettings, wanted: OffsetRange) -> Generator[pa.RecordBatch, None, None]:
    """The records of a range in offset order, as batches of RECORD_SCHEMA; none is empty.

    `timestamp` is the record's, in ms, -1 if it has none; key and value are null where Kafka has null.
    Errors: SourceError when an offset of the range is gone or nothing arrives for `settings.wait_ms`.
    Cost: a connection the first time in a process, then one fetch round trip; about 1 µs a record.
    """
    consumer = _CONSUMERS.take(settings)
    try:
        consumer.assign([TopicPartition(wanted.topic, wanted.partition, wanted.start)])
        yield from _batches(consumer, settings, wanted)
        consumer.unassign()
    except GeneratorExit:  # the reader wanted only the first records
        consumer.unassign()
        _CONSUMERS.give(settings, consumer)
        raise
    except KafkaException as error:
        consumer.close()
        raise SourceError(f"reading {wanted} from {settings.bootstrap_servers}: {_reason(error)}") from error
    except BaseException:
        consumer.close()
        raise
    _CONSUMERS.give(settings, consumer)


def _batches(consumer: Consumer, settings: KafkaSettings, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    position = wanted.start
    deadline = time.monotonic() + settings.wait_s
    last_error = ""
    while position < wanted.end:
        messages = consumer.consume(min(_BATCH_RECORDS, wanted.end - position), _POLL_S)
        notices = [m for m in messages if m.error() is not None]
        records = [m for m in messages if m.error() is None] if notices else messages
        reached = position
        if records:
            batch = _record_batch(wanted, position, records)
            reached = max(position, (records[-1].offset() or 0) + 1)
            if batch.num_rows:
                yield batch
        for notice in notices:
            ended_at, text = _heed(consumer, settings, wanted, reached, notice)
            reached, last_error = max(reached, ended_at), text or last_error
        if reached > position:
            position = reached
            deadline = time.monotonic() + settings.wait_s
        elif time.monotonic() > deadline:
            raise SourceError(
                f"reading {wanted} from {settings.bootstrap_servers} stopped at offset {position}: nothing came for "
                f"{settings.wait_ms} ms; {last_error or 'the partition may have no leader or may end there'}"
            )


def _record_batch(wanted: OffsetRange, position: int, records: Sequence[Message]) -> pa.RecordBatch:
    offsets = [m.offset() or 0 for m in records]
    if offsets[-1] >= wanted.end or offsets[0] < position:
        # A hole before the end lets records past it through.
        inside = [position <= offset < wanted.end for offset in offsets]
        records, offsets = list(compress(records, inside)), list(compress(offsets, inside))
    count = len(records)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(wanted.topic, pa.string()), count),
            pa.repeat(pa.scalar(wanted.partition, pa.int32()), count),
            pa.array(offsets, pa.int64()),
            pa.array([m.timestamp()[1] for m in records], pa.int64()),
            pa.array([m.key() for m in records], pa.binary()),
            pa.array([m.value() for m in records], pa.binary()),
        ],
        schema=RECORD_SCHEMA,
    )


def _heed(
    consumer: Consumer, settings: KafkaSettings, wanted: OffsetRange, position: int, notice: Message
) -> tuple[int, str]:
    """What a message that is no record says: (the offset at which the partition ends, or a passing error)."""
    error = notice.error()
    assert error is not None
    code = error.code()
    if code == _END_CODE:
        return notice.offset() or 0, ""
    if code in _GONE_CODES:
        place = TopicPartition(wanted.topic, wanted.partition)
        earliest, latest = consumer.get_watermark_offsets(place, timeout=settings.wait_s)
        raise SourceError(
            f"{wanted}: offset {position} is gone, {wanted.topic}[{wanted.partition}] now has {earliest}..{latest}. "
            "Records were deleted before they were read (retention), or the topic was created again; give the topic a "
            "longer retention, and start with a new checkpoint directory and startingOffsets=earliest"
        )
    if code > 0 or code in _UNKNOWN_CODES:  # a broker's refusal; the client repeats what may pass by itself
        raise SourceError(f"reading {wanted} from {settings.bootstrap_servers}: {error.str()}")
    return 0, f"last error: {error.str()}"
