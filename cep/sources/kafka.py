"""Kafka topics → offsets to plan with, and ranges of offsets → Arrow record batches of undecoded records.

A range is read by assignment, never by subscription. The planner of offsets owns them, nothing is committed to Kafka,
and reading a range again gives the same records. Offsets may have holes (compaction, transaction markers), so the end
of a range is reached by position, not by counting. Must not know Spark, events or rules.
Tested by: tests/sources/test_kafka.py
"""

import os
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import pyarrow as pa
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import AdminClient

from cep.base import kafka as client
from cep.base.errors import SourceAwayError, SourceError, SourceGoneError, UsageError
from cep.base.limits import KAFKA_IDLE_CONSUMERS_MAX, KAFKA_WAIT_MS_MAX
from cep.base.text import utc_ms
from cep.sources.offsets import OffsetRange, Offsets, is_time, parse_offsets
from cep.sources.registry.form import with_headers

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

# Records looked at to learn how large they are.
_SAMPLE_RECORDS = 200
# Records asked for at once, and rows of a record batch. Measured with 200-byte values: 500 to 1 000 are the fastest, 10
# 000 takes up to half as long again, because the message objects no longer fit the processor's cache.
_BATCH_RECORDS = 1_000
# The client waits for all records asked for. Where a range ends in a hole fewer come, so one wait must be short.
_POLL_S = 0.02
_ID_WAIT_S = 2.0  # for the ids of topics; brokers that do not know the request leave it unanswered
_ID_AGAIN_S = 600.0  # until brokers that left it unanswered are asked again
_NO_ID = str(Uuid(0, 0))  # answer of brokers without ids

_DEFAULTS = {
    # The first fetch after an assignment waits for the one before it, which a broker holds back for as long as this
    # where nothing more is there: 500 by default, once for each partition of a task's ranges.
    "fetch.wait.max.ms": "1",
    "queued.min.messages": "1000000",  # fetch ahead by bytes (64 MB), not by a count that starves small records
    "fetch.message.max.bytes": "4194304",
}
_UNKNOWN_CODES = (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)  # noqa: SLF001
_NEXT_TRY_S = 0.05


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The addresses of the brokers. `client_options` go to librdkafka and are never printed: they hold secrets."""

    bootstrap_servers: str
    client_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    wait_ms: int = KAFKA_WAIT_MS_MAX

    @property
    def wait_s(self) -> float:
        return self.wait_ms / 1000


class _IdleConsumers:
    """Connected consumers that no reader uses now: to connect takes longer than to read a small micro-batch.

    Two readers in one process never share a consumer. A forked child does not take its parent's consumers, because it
    does not have their threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[int, KafkaSettings, Consumer]] = []

    @contextmanager
    def lent(self, settings: KafkaSettings) -> Iterator[Consumer]:
        """Lend a consumer to a block. After an error it is closed, as its knowledge of the brokers may be wrong."""
        consumer = self.take(settings)
        try:
            yield consumer
        except GeneratorExit:  # the reader wanted only the first records
            consumer.unassign()
            self.give(settings, consumer)
            raise
        except BaseException:
            consumer.close()
            raise
        self.give(settings, consumer)

    def take(self, settings: KafkaSettings) -> Consumer:
        with self._lock:
            for index, (process, connected, consumer) in enumerate(self._idle):
                if process == os.getpid() and connected == settings:
                    del self._idle[index]
                    return consumer
        return _connect(settings)

    def give(self, settings: KafkaSettings, consumer: Consumer) -> None:
        with self._lock:
            self._idle.append((os.getpid(), settings, consumer))
            surplus = self._idle.pop(0) if len(self._idle) > KAFKA_IDLE_CONSUMERS_MAX else None
        if surplus is not None and surplus[0] == os.getpid():
            surplus[2].close()


class _Admins:
    """The clients that request ids of topics, one for each settings; None if brokers do not answer.

    Old brokers and some that only speak Kafka's protocol have no ids; there, only offsets show that a topic was created
    again. An outage looks the same. So only brokers that have never answered the request are given up, for a while: if
    they leave it unanswered twice in a row, or while they answer a later request of another kind.
    """

    def __init__(self) -> None:
        self._admins: dict[tuple[int, KafkaSettings], AdminClient] = {}
        self._silent_until_s: dict[tuple[int, KafkaSettings], float] = {}
        self._missed: set[tuple[int, KafkaSettings]] = set()
        self._answered: set[tuple[int, KafkaSettings]] = set()

    def client_for(self, settings: KafkaSettings) -> AdminClient | None:
        address = self._at(settings)
        if time.monotonic() < self._silent_until_s.get(address, 0.0):
            return None
        if address not in self._admins:
            self._admins[address] = AdminClient(
                client.admin_options(settings.bootstrap_servers, dict(settings.client_options))
            )
        return self._admins[address]

    def note_answer(self, settings: KafkaSettings) -> None:
        self._answered.add(self._at(settings))

    def answers_others(self, settings: KafkaSettings, topic: str) -> bool:
        """Return True if brokers that have never answered the request for topic ids do answer another request. It asks
        for one topic only, because a broker may have thousands."""
        address = self._at(settings)
        if address in self._answered:
            return False
        try:
            self._admins[address].list_topics(topic, timeout=_ID_WAIT_S)
        except KafkaException:
            return False
        return True

    def note_missing_answer(self, settings: KafkaSettings, answers_others: bool) -> None:
        address = self._at(settings)
        self._admins.pop(address, None)
        if (answers_others or address in self._missed) and address not in self._answered:
            self._silent_until_s[address] = time.monotonic() + _ID_AGAIN_S
        self._missed.add(address)

    @staticmethod
    def _at(settings: KafkaSettings) -> tuple[int, KafkaSettings]:
        return os.getpid(), replace(settings, wait_ms=0)  # however long an answer may take: the same brokers


_CONSUMERS = _IdleConsumers()
_ADMINS = _Admins()


def _connect(settings: KafkaSettings) -> Consumer:
    fixed = [name for name, _ in settings.client_options if name in client.READER_FIXED]
    if fixed:
        raise UsageError(
            f"Kafka option {fixed[0]} is set by the source to {client.READER_FIXED[fixed[0]]}; leave it out"
        )
    try:
        return Consumer(client.reader_options(settings.bootstrap_servers, dict(settings.client_options), _DEFAULTS))
    except KafkaException as error:
        raise UsageError(
            f"Kafka options refused: {client.reason_of(error)}; see librdkafka's CONFIGURATION.md"
        ) from error


# -------------------------------------------------------------------------------------------------- planning


def ask_brokers(settings: KafkaSettings, topic: str) -> None:
    """Check that the brokers answer. The topic need not exist. Raises: SourceError if no broker answers in time."""
    began_s = time.monotonic()
    try:
        with _CONSUMERS.lent(settings) as consumer:
            consumer.list_topics(topic, timeout=settings.wait_s)
    except KafkaException as error:
        raise SourceAwayError(
            f"Kafka at {settings.bootstrap_servers} gave no answer within {time.monotonic() - began_s:.1f} s: "
            f"{client.reason_of(error)}; check the brokers and the network"
        ) from error


def earliest_offsets(settings: KafkaSettings, topics: Sequence[str]) -> Offsets:
    """Return the first offset that is still there, of every partition of the topics. Errors: SourceError when a topic
    is missing or no broker answers in time. Cost: one metadata request a topic, one offset request a broker."""
    return _offsets_at(settings, topics, OFFSET_BEGINNING)


def latest_offsets(settings: KafkaSettings, topics: Sequence[str]) -> Offsets:
    """Return the end of every partition of the topics: the next offset that readers of committed records will see.
    Errors and cost as of `earliest_offsets`."""
    return _offsets_at(settings, topics, OFFSET_END)


def _offsets_at(settings: KafkaSettings, topics: Sequence[str], moment: int) -> Offsets:
    """Request an offset of each partition, and repeat the request after temporary errors until the time is up. `moment`
    is a timestamp in ms, or OFFSET_BEGINNING or OFFSET_END."""
    end_s = time.monotonic() + settings.wait_s  # messages name the time since the start: now - (end_s - wait_s)
    while True:
        offsets, error = _ask_offsets(settings, topics, moment)
        if error is None:
            return offsets
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:  # deleted since its partitions were named
            raise SourceError(_unreadable(settings, ", ".join(topics), error.str()))
        if not client.is_temporary(error):
            raise SourceError(_no_answer(settings, topics, error.str(), settings.wait_s - end_s + time.monotonic()))
        if time.monotonic() >= end_s:
            raise SourceAwayError(_no_answer(settings, topics, error.str(), settings.wait_s - end_s + time.monotonic()))
        time.sleep(_NEXT_TRY_S)


def _ask_offsets(settings: KafkaSettings, topics: Sequence[str], moment: int) -> tuple[Offsets, KafkaError | None]:
    """Request an offset of each partition once; `moment` is a timestamp in ms, OFFSET_BEGINNING or OFFSET_END. Return
    the offsets, or the error in the brokers' answer. Raises: SourceError when a topic is missing."""
    try:
        with _CONSUMERS.lent(settings) as consumer:
            queries = [TopicPartition(t, p, moment) for t in topics for p in _partitions(consumer, settings, t)]
            answers = consumer.offsets_for_times(queries, timeout=settings.wait_s)
    except KafkaException as error:
        return {}, error.args[0]
    offsets: Offsets = {topic: {} for topic in topics}
    for answer in answers:
        if answer.error is not None:
            return {}, answer.error
        offsets[answer.topic][answer.partition] = answer.offset
    return offsets, None


def _partitions(consumer: Consumer, settings: KafkaSettings, topic: str) -> list[int]:
    about = consumer.list_topics(topic, timeout=settings.wait_s).topics[topic]
    if about.error is not None and client.is_temporary(about.error):
        raise KafkaException(about.error)
    if about.error is not None or not about.partitions:
        reason = about.error.str() if about.error is not None else "it has no partitions"
        raise SourceError(_unreadable(settings, topic, reason))
    return sorted(about.partitions)


def _unreadable(settings: KafkaSettings, topic: str, reason: str) -> str:
    return (
        f"Kafka topic {topic} cannot be read on {settings.bootstrap_servers}: {reason}; "
        "create the topic, correct its name, or grant the right to describe and read it"
    )


def _no_answer(settings: KafkaSettings, topics: Sequence[str], reason: str, waited_s: float) -> str:
    return (
        f"Kafka at {settings.bootstrap_servers} gave no offsets of {', '.join(topics)} "
        f"within {waited_s:.1f} s: {reason}; check the address, the network and the security options"
    )


def offsets_at_time(settings: KafkaSettings, topics: Sequence[str], time_ms: int) -> Offsets:
    """Return for every partition the first offset with this timestamp or a later one; its end if there is none. Errors
    and cost as in `earliest_offsets`, twice."""
    latest = latest_offsets(settings, topics)
    at_time = _offsets_at(settings, topics, time_ms)
    return {
        t: {p: latest[t].get(p, 0) if offset == OFFSET_END else offset for p, offset in by_partition.items()}
        for t, by_partition in at_time.items()
    }


def topic_ids(settings: KafkaSettings, topics: Sequence[str]) -> dict[str, str]:
    """Return the ids of the topics, which change when a topic is deleted and created again; none of old brokers.
    Errors: SourceError when a topic is missing. Cost: one request."""
    return _collect_ids(settings, *_ask_ids(settings, topics))


def latest_offsets_and_ids(settings: KafkaSettings, topics: Sequence[str]) -> tuple[Offsets, dict[str, str]]:
    """Return `latest_offsets` and `topic_ids`, asked side by side."""
    answers = _ask_ids(settings, topics)
    offsets = latest_offsets(settings, topics)
    return offsets, _collect_ids(settings, *answers)


def _ask_ids(settings: KafkaSettings, topics: Sequence[str]) -> tuple[dict[str, Future[Any]], bool]:
    """Request the ids of topics. Return the pending answers, and whether the brokers answer another request."""
    admin = _ADMINS.client_for(settings)
    if admin is None:
        return {}, False
    answers = admin.describe_topics(TopicCollection(list(topics)), request_timeout=_ID_WAIT_S)
    return answers, _ADMINS.answers_others(settings, topics[0])


def _collect_ids(settings: KafkaSettings, answers: Mapping[str, Future[Any]], answers_others: bool) -> dict[str, str]:
    """Collect the ids of topics from the pending answers; {} if one does not come: a job can do without ids, as old
    brokers lack them. `answers_others`: the brokers answer other requests, so ids are not requested for some time."""
    ids: dict[str, str] = {}
    for topic, future in answers.items():
        try:
            topic_id = str(future.result(2 * _ID_WAIT_S).topic_id)
        except (TimeoutError, KafkaException) as error:  # TimeoutError: a busy client; the request itself ends sooner
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise SourceError(_unreadable(settings, topic, client.reason_of(error))) from error
            _ADMINS.note_missing_answer(settings, answers_others)
            return {}
        _ADMINS.note_answer(settings)
        if topic_id != _NO_ID:
            ids[topic] = topic_id
    return ids


def mean_record_bytes(settings: KafkaSettings, offset_range: OffsetRange) -> int:
    """Return the mean size of the first records of the range, in bytes: key and value, at least 1. Errors: as of
    `read_range`. Cost: one fetch."""
    sample = next(read_range(settings, offset_range, _SAMPLE_RECORDS), None)
    return 1 if sample is None else max(1, (sample["key"].nbytes + sample["value"].nbytes) // sample.num_rows)


def resolve_offsets(settings: KafkaSettings, topics: Sequence[str], text: str, absent: str) -> Offsets:
    """Convert an option to offsets: "earliest", "latest", or JSON like {"payments": {"0": 17, "1": -1}}.

    In JSON -2 is earliest and -1 latest, as in Spark's own source; a partition without an entry gets `absent`,
    "earliest" or "latest". Errors: UsageError for other texts, SourceError for a missing topic or no answer.
    """
    if text == "earliest":
        return earliest_offsets(settings, topics)
    if text == "latest":
        return latest_offsets(settings, topics)
    named = parse_offsets(text)
    earliest, latest = earliest_offsets(settings, topics), latest_offsets(settings, topics)
    offsets: Offsets = earliest if absent == "earliest" else latest
    offsets = {topic: dict(partitions) for topic, partitions in offsets.items()}
    for topic, partitions in named.items():
        for partition, offset in partitions.items():
            if partition not in offsets.get(topic, {}):
                raise UsageError(f"offsets name {topic}[{partition}], which is not read; topics: {', '.join(topics)}")
            marks = {OFFSET_BEGINNING: earliest, OFFSET_END: latest}  # -2 and -1
            offsets[topic][partition] = marks[offset][topic][partition] if offset in marks else offset
    return offsets


def offsets_of(settings: KafkaSettings, topics: Sequence[str], where: str, absent: str) -> Offsets:
    """Return the offsets of a place in a job's settings: an argument of `resolve_offsets`, or a time."""
    if is_time(where):
        return offsets_at_time(settings, topics, utc_ms(where))
    return resolve_offsets(settings, topics, where, absent)


# -------------------------------------------------------------------------------------------------- reading


def read_range(
    settings: KafkaSettings, offset_range: OffsetRange, rows_max: int = _BATCH_RECORDS, headers: tuple[str, ...] = ()
) -> Generator[pa.RecordBatch, None, None]:
    """Read the records of one partition between two offsets, as batches of RECORD_SCHEMA of at most `rows_max` rows.

    `timestamp` is the record's, in ms, -1 if it has none; key and value are null where Kafka has null. No batch is
    empty. `headers` become members of the values, which are JSON then. Errors: SourceError when an offset of the range
    is gone or nothing arrives for `settings.wait_ms`. Cost: a connection the first time in a process, then one fetch
    round trip; about 1 µs per record.
    """
    try:
        with _CONSUMERS.lent(settings) as consumer:
            consumer.assign([TopicPartition(offset_range.topic, offset_range.partition, offset_range.start)])
            yield from _batches(consumer, settings, offset_range, rows_max, headers)
            consumer.unassign()
    except KafkaException as error:
        kind = SourceAwayError if client.is_away(error) else SourceError
        raise kind(f"reading {offset_range} from {settings.bootstrap_servers}: {client.reason_of(error)}") from error


def _batches(
    consumer: Consumer, settings: KafkaSettings, offset_range: OffsetRange, rows_max: int, headers: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Poll records until the end of the range. Temporary errors are raised only if nothing comes in time."""
    position = offset_range.start
    deadline = time.monotonic() + settings.wait_s
    last_error = ""
    while position < offset_range.end:
        messages = consumer.consume(min(rows_max, offset_range.end - position), _POLL_S)
        notices = [m for m in messages if m.error() is not None]
        records = [m for m in messages if m.error() is None] if notices else messages
        reached = position  # the next offset after this poll; holes count as read
        if records:
            batch = _record_batch(offset_range, position, records, headers)
            reached = max(position, (records[-1].offset() or 0) + 1)
            if batch.num_rows:
                yield batch
        for notice in notices:
            ended_at, text = _handle_notice(consumer, settings, offset_range, reached, notice)
            reached, last_error = max(reached, ended_at), text or last_error
        if reached > position:
            position = reached
            deadline = time.monotonic() + settings.wait_s
        elif time.monotonic() > deadline:
            raise SourceAwayError(
                f"reading {offset_range} from {settings.bootstrap_servers} stopped at offset {position}: "
                f"nothing came for {settings.wait_ms} ms; "
                f"{last_error or 'the partition may have no leader or may end there'}"
            )


def _record_batch(
    offset_range: OffsetRange, position: int, records: Sequence[Message], headers: tuple[str, ...]
) -> pa.RecordBatch:
    """Convert records to a batch of RECORD_SCHEMA, without records outside the range."""
    offsets = [m.offset() or 0 for m in records]
    if offsets[-1] >= offset_range.end or offsets[0] < position:
        # If the last offsets before the end are missing, as by a transaction, a poll returns later records too.
        inside = [position <= offset < offset_range.end for offset in offsets]
        records, offsets = list(compress(records, inside)), list(compress(offsets, inside))
    count = len(records)
    values = [m.value() for m in records]
    if headers:
        values = [with_headers(value, m.headers(), headers) for value, m in zip(values, records, strict=True)]
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(offset_range.topic, pa.string()), count),
            pa.repeat(pa.scalar(offset_range.partition, pa.int32()), count),
            pa.array(offsets, pa.int64()),
            pa.array([m.timestamp()[1] for m in records], pa.int64()),
            pa.array([m.key() for m in records], pa.binary()),
            pa.array(values, pa.binary()),
        ],
        schema=RECORD_SCHEMA,
    )


def _handle_notice(
    consumer: Consumer, settings: KafkaSettings, offset_range: OffsetRange, position: int, notice: Message
) -> tuple[int, str]:
    """Handle an error or the end of a partition that the client returns in place of a record. Return the offset of the
    end, or 0, and the text of a temporary error. Raises: SourceError for a permanent error."""
    error = notice.error()
    assert error is not None
    code = error.code()
    if code == client.END_CODE:
        return notice.offset() or 0, ""
    if code in client.GONE_CODES:
        place = TopicPartition(offset_range.topic, offset_range.partition)
        earliest, latest = consumer.get_watermark_offsets(place, timeout=settings.wait_s)
        raise SourceGoneError(
            f"{offset_range}: offset {position} is gone, {offset_range.topic}[{offset_range.partition}] now has "
            f"{earliest}..{latest}. Records were deleted before they were read (retention), or the topic was created "
            "again; give the topic a longer retention. `cep docs guides/operate` says how a job goes on without "
            "these records; or start with a new checkpoint directory and startingOffsets=earliest"
        )
    if code in client.DAMAGED_CODES:
        raise damaged(f"{offset_range.topic}[{offset_range.partition}]", position, error)
    if not client.is_temporary(error) and (
        code > 0 or code in _UNKNOWN_CODES
    ):  # a broker's refusal; the client retries temporary ones itself
        raise SourceError(f"reading {offset_range} from {settings.bootstrap_servers}: {error.str()}")
    return 0, f"last error: {error.str()}"


def damaged(place: str, offset: int, error: KafkaError) -> SourceError:
    """Return the error for damaged records, from an offset on."""
    return SourceError(
        f"{place}: the records from offset {offset} on are not as they were sent ({error.str()}); the broker's "
        "disk has damaged them: have another replica lead the partition, or send them again and begin behind them"
    )
