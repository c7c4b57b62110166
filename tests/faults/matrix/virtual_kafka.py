"""Brokers in memory, and clients of them that answer as librdkafka does: its exceptions, its codes, its time-outs.

    Cluster    topics with transactions, groups, and the state of the brokers: up, down, or restarting one by one
    Reader     stands for confluent_kafka.Consumer
    Writer     stands for confluent_kafka.Producer
    Admin      stands for confluent_kafka.admin.AdminClient

Tested by: tests/faults/test_faults.py
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from tests.faults.matrix.virtual_time import VirtualFuture, clock

_IDLE_POLL_S = 1.0  # a poll without records waits so long: a loop of polls costs a turn each
# Answers of brokers that restart one by one.
ROLLING_CODES = (
    KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT,
    KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION, KafkaError.BROKER_NOT_AVAILABLE,
)  # fmt: skip
_AWAY_CODES = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)


def failure(code: int, *, is_retriable: bool = False, aborts: bool = False) -> KafkaException:
    return KafkaException(KafkaError(code, KafkaError(code).str(), False, is_retriable, aborts))


@dataclass(eq=False)
class Transaction:
    """The state of a transaction: None while it is open."""

    is_committed: bool | None = None


@dataclass(slots=True)
class Entry:
    """A record of a partition, or the mark at the end of a transaction (`value` and `key` None, `is_mark`)."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    time_ms: int
    transaction: Transaction | None = None
    is_mark: bool = False

    @property
    def is_visible(self) -> bool:
        """True for readers of committed records."""
        return not self.is_mark and (self.transaction is None or self.transaction.is_committed is True)


@dataclass
class Cluster:
    """The brokers. `state` is up, down or rolling; `chance` chooses the codes of failures."""

    chance: Random
    state: str = "up"
    topics: dict[str, list[list[Entry]]] = field(default_factory=dict)
    committed: dict[tuple[str, str, int], tuple[int, str]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    open: dict[str, tuple[Transaction, set[tuple[str, int]]]] = field(default_factory=dict)  # by transactional id
    members: dict[str, list[tuple[Any, float]]] = field(default_factory=dict)  # of groups, with their last sign
    loses_answer: bool = False  # the next commit is done, and its answer is lost
    on_commit: Callable[[], None] = lambda: None
    on_read: Callable[[str, Entry], None] = lambda *_: None

    def create(self, topic: str, partitions: int) -> None:
        self.topics[topic] = [[] for _ in range(partitions)]

    def append(self, topic: str, partition: int, entry: Entry) -> None:
        self.topics.setdefault(topic, [[]])[partition].append(entry)

    def values(self, topic: str) -> list[bytes]:
        """Return the committed values of a topic."""
        return [e.value or b"" for log in self.topics.get(topic, []) for e in log if e.is_visible]

    def stable_end(self, topic: str, partition: int) -> int:
        """Return the offset before the first open transaction."""
        log = self.topics[topic][partition]
        open_places = [places for _, places in self.open.values() if (topic, partition) in places]
        if not open_places:
            return len(log)
        is_open = (entry.transaction is not None and entry.transaction.is_committed is None for entry in log)
        return next((offset for offset, each in enumerate(is_open) if each), len(log))

    def ask(self, wait_s: float | None, *, is_transaction: bool = False) -> None:
        """Let a request reach the brokers. Raises: KafkaException once `wait_s` is over, or with a passing code."""
        if self.state == "down" and not clock().pause(wait_s, lambda: self.state != "down"):
            raise failure(self.chance.choice(_AWAY_CODES), is_retriable=is_transaction)
        if self.state == "rolling" and self.chance.random() < 0.4:
            clock().pause(min(0.2, wait_s or 0.2))
            aborts = is_transaction and self.chance.random() < 0.3
            raise failure(self.chance.choice(ROLLING_CODES), is_retriable=is_transaction and not aborts, aborts=aborts)

    def end_transaction(self, name: str, *, is_committed: bool) -> None:
        """End the open transaction of a transactional id."""
        if name not in self.open:
            return
        transaction, places = self.open.pop(name)
        transaction.is_committed = is_committed
        for topic, partition in places:
            self.append(topic, partition, Entry(None, None, [], 0, None, is_mark=True))


CLUSTER: list[Cluster] = []  # of the cell that runs in this process


def cluster() -> Cluster:
    """Return the brokers of the cell that runs."""
    return CLUSTER[-1]


class Message:
    """Stands for confluent_kafka.Message."""

    def __init__(self, topic: str, partition: int, offset: int, entry: Entry | None, error: KafkaError | None) -> None:
        self._place, self._entry, self._error = (topic, partition, offset), entry, error

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._place[2]

    def error(self) -> KafkaError | None:
        return self._error

    def key(self) -> bytes | None:
        return None if self._entry is None else self._entry.key

    def value(self) -> bytes | None:
        return None if self._entry is None else self._entry.value

    def headers(self) -> list[tuple[str, bytes]]:
        return [] if self._entry is None else self._entry.headers

    def timestamp(self) -> tuple[int, int]:
        return 1, -1 if self._entry is None else self._entry.time_ms


def _metadata(names: Sequence[str] | None) -> Any:
    topics = cluster().topics
    shown = {}
    for name in topics if names is None else names:
        error = None if name in topics else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        shown[name] = SimpleNamespace(error=error, partitions=dict.fromkeys(range(len(topics.get(name, ())))))
    return SimpleNamespace(topics=shown)


class Reader:
    """Stands for confluent_kafka.Consumer."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._group = options.get("group.id", "")
        self._session_s = float(options.get("session.timeout.ms", 45_000)) / 1_000
        self._next: dict[tuple[str, int], int] = {}
        self._at_end: set[tuple[str, int]] = set()
        self._topics: list[str] = []
        self._callbacks: dict[str, Callable[..., None]] = {}
        self._is_owner: bool | None = None

    # ----------------------------------------------------------------------------------------------------- questions

    def list_topics(self, topic: str | None = None, timeout: float = 60.0) -> Any:
        cluster().ask(timeout)
        return _metadata(None if topic is None else [topic])

    def offsets_for_times(self, places: list[TopicPartition], timeout: float = 60.0) -> list[TopicPartition]:
        cluster().ask(timeout)
        answers = []
        for place in places:
            log = cluster().topics[place.topic][place.partition]
            offset = place.offset
            if offset == OFFSET_BEGINNING:
                offset = 0
            elif offset == OFFSET_END:
                offset = cluster().stable_end(place.topic, place.partition)
            else:
                later = (number for number, entry in enumerate(log) if entry.time_ms >= offset and not entry.is_mark)
                offset = next(later, OFFSET_END)
            answers.append(TopicPartition(place.topic, place.partition, offset))
        return answers

    def get_watermark_offsets(self, place: TopicPartition, timeout: float = 60.0, cached: bool = False) -> Any:
        if not cached:
            cluster().ask(timeout)
        return 0, cluster().stable_end(place.topic, place.partition)

    def committed(self, places: list[TopicPartition], timeout: float = 60.0) -> list[TopicPartition]:
        cluster().ask(timeout)
        answers = []
        for place in places:
            offset, metadata = cluster().committed.get((self._group, place.topic, place.partition), (-1001, ""))
            answers.append(TopicPartition(place.topic, place.partition, offset, metadata))
        return answers

    def consumer_group_metadata(self) -> str:
        return str(self._group)

    # ------------------------------------------------------------------------------------------------------- records

    def assign(self, places: list[TopicPartition]) -> None:
        self._next, self._at_end = {}, set()
        self.incremental_assign(places)

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        for place in places:
            topic_partition = (place.topic, place.partition)
            first = {OFFSET_BEGINNING: 0, OFFSET_END: len(cluster().topics[place.topic][place.partition])}
            self._next[topic_partition] = first.get(place.offset, place.offset)
            self._at_end.discard(topic_partition)

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        for place in places:
            self._next.pop((place.topic, place.partition), None)

    def unassign(self) -> None:
        self._next = {}

    def pause(self, _: list[TopicPartition]) -> None:
        pass

    def consume(self, count: int = 1, timeout: float = -1) -> list[Message]:
        """Return records and ends of partitions; wait as long as the timeout, or a little longer, for the first one."""
        if timeout and (self._is_silent or not self._has_some()):
            # Time has to pass in a loop of polls.
            wait_s = max(timeout, _IDLE_POLL_S)
            clock().pause(wait_s, lambda: not self._is_silent and self._has_some())
        return [] if self._is_silent else self._take(count)

    @property
    def _is_silent(self) -> bool:
        """True while brokers bring nothing."""
        return cluster().state == "down"

    def _has_some(self) -> bool:
        return any(
            offset < cluster().stable_end(*topic_partition) or topic_partition not in self._at_end
            for topic_partition, offset in self._next.items()
        )

    def _take(self, count: int) -> list[Message]:
        messages: list[Message] = []
        for at in list(self._next):
            topic, partition = at
            log, end = cluster().topics[topic][partition], cluster().stable_end(topic, partition)
            offset = self._next[at]
            while offset < end and len(messages) < count:
                entry = log[offset]
                if entry.is_visible:
                    cluster().on_read(topic, entry)
                    messages.append(Message(topic, partition, offset, entry, None))
                    self._at_end.discard(at)
                offset += 1
            self._next[at] = offset
            if offset >= end and at not in self._at_end and len(messages) < count:
                self._at_end.add(at)
                messages.append(Message(topic, partition, offset, None, KafkaError(KafkaError._PARTITION_EOF)))
        return messages

    # --------------------------------------------------------------------------------------------------------- group

    def subscribe(self, topics: list[str], **callbacks: Callable[..., None]) -> None:
        self._topics, self._callbacks = topics, callbacks

    def poll(self, timeout: float) -> Message | None:
        """Join the group, and show that this member lives; its first live member owns the partition."""
        clock().pause(max(timeout, _IDLE_POLL_S / 2))
        if cluster().state == "down":
            return None
        now_s, members = clock().now_s, cluster().members.setdefault(self._group, [])
        alive = [(member, seen_s) for member, seen_s in members if now_s - seen_s < member._session_s]
        others = [(member, now_s if member is self else seen_s) for member, seen_s in alive]
        if all(member is not self for member, _ in others):
            others.append((self, now_s))
        cluster().members[self._group] = others
        is_owner = others[0][0] is self
        places = [TopicPartition(topic, 0) for topic in self._topics]
        if is_owner and not self._is_owner:
            self._callbacks["on_assign"](self, places)
        elif self._is_owner and not is_owner:
            self._callbacks["on_lost"](self, places)
            self._callbacks["on_assign"](self, [])
        elif self._is_owner is None:
            self._callbacks["on_assign"](self, [])
        self._is_owner = is_owner
        return None

    def commit(self, offsets: list[TopicPartition], asynchronous: bool = True) -> None:
        cluster().ask(self._session_s)
        members = cluster().members.get(self._group, [])
        if not members or members[0][0] is not self:
            raise failure(KafkaError.UNKNOWN_MEMBER_ID)
        for place in offsets:
            cluster().committed[self._group, place.topic, place.partition] = place.offset, ""

    def close(self) -> None:
        members = cluster().members.get(self._group, [])
        cluster().members[self._group] = [member for member in members if member[0] is not self]


class Writer:
    """Stands for confluent_kafka.Producer."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._name = options.get("transactional.id")
        self._timeout_s = float(options.get("message.timeout.ms", 30_000)) / 1_000
        self._epoch = -1
        self._queue: list[tuple[str, int, Entry, Callable[..., None] | None]] = []
        self._offsets: dict[tuple[str, str, int], tuple[int, str]] = {}
        self._is_open = False

    def _check_epoch(self) -> None:
        if self._name is not None and cluster().epochs.get(self._name, -1) != self._epoch:
            raise failure(KafkaError._FENCED)

    def init_transactions(self, timeout: float = -1) -> None:
        assert self._name is not None
        cluster().ask(timeout, is_transaction=True)
        cluster().end_transaction(self._name, is_committed=False)
        self._epoch = cluster().epochs[self._name] = cluster().epochs.get(self._name, -1) + 1

    def begin_transaction(self) -> None:
        assert self._name is not None
        self._is_open, self._queue, self._offsets = True, [], {}
        cluster().open[self._name] = (Transaction(), set())

    def produce(
        self, topic: str, value: bytes | None = None, key: bytes | None = None, partition: int = -1,
        headers: list[tuple[str, bytes]] | None = None, on_delivery: Callable[..., None] | None = None,
    ) -> None:  # fmt: skip
        entry = Entry(key, value, list(headers or ()), int(clock().now_s * 1_000))
        self._queue.append((topic, max(partition, 0), entry, on_delivery))

    def poll(self, timeout: float = 0) -> int:
        return 0

    def flush(self, timeout: float = -1) -> int:
        """Bring queued records to the brokers; return how many could not be brought in time."""
        if cluster().state == "down":
            clock().pause(None if timeout < 0 else timeout, lambda: cluster().state != "down")
        if cluster().state == "down":
            return len(self._queue)
        if self._name is not None and not self._is_open:
            return 0
        self._check_epoch()
        for topic, partition, entry, on_delivery in self._queue:
            if self._name is not None and self._name in cluster().open:
                entry.transaction, places = cluster().open[self._name]
                places.add((topic, partition))
            cluster().append(topic, partition, entry)
            if on_delivery is not None:
                on_delivery(None, Message(topic, partition, -1, entry, None))
        self._queue = []
        return 0

    def send_offsets_to_transaction(self, places: list[TopicPartition], group: str, timeout: float = -1) -> None:
        cluster().ask(timeout, is_transaction=True)
        self._check_epoch()
        for place in places:
            self._offsets[group, place.topic, place.partition] = place.offset, place.metadata or ""

    def commit_transaction(self, timeout: float = -1) -> None:
        assert self._name is not None
        cluster().on_commit()
        cluster().ask(timeout, is_transaction=True)
        self._check_epoch()
        self.flush(timeout)
        cluster().committed.update(self._offsets)
        cluster().end_transaction(self._name, is_committed=True)
        if cluster().loses_answer:
            cluster().loses_answer = False
            clock().pause(timeout)
            raise failure(KafkaError._TIMED_OUT, is_retriable=True)
        self._is_open = False

    def abort_transaction(self, timeout: float = -1) -> None:
        assert self._name is not None
        cluster().ask(timeout, is_transaction=True)
        self._check_epoch()
        cluster().end_transaction(self._name, is_committed=False)
        self._is_open, self._queue = False, []


class Admin:
    """Stands for confluent_kafka.admin.AdminClient."""

    def __init__(self, options: dict[str, Any]) -> None:
        pass

    def list_topics(self, topic: str | None = None, timeout: float = 60.0) -> Any:
        cluster().ask(timeout)
        return _metadata(None if topic is None else [topic])

    def describe_topics(self, topics: Any, request_timeout: float = 60.0) -> dict[str, Any]:
        answers = {}
        for name in topics.topic_names:
            answers[name] = VirtualFuture()
            try:
                cluster().ask(request_timeout)
            except KafkaException as error:
                answers[name].set_exception(error)
            else:
                answers[name].set_result(SimpleNamespace(topic_id=f"id-{name}"))
        return answers

    def create_topics(self, topics: list[Any]) -> dict[str, Any]:
        cluster().ask(30.0)
        answers = {}
        for topic in topics:
            cluster().topics.setdefault(topic.topic, [[] for _ in range(topic.num_partitions)])
            answers[topic.topic] = VirtualFuture()
            answers[topic.topic].set_result(None)
        return answers

    def poll(self, timeout: float = 0) -> int:
        return 0
