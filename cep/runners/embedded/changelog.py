"""Commits → a compacted Kafka topic that has the store of the last delivered commit; such a topic → a store.

    store key → value                                      an entry; null for one that is gone
    store key → mark, format u16, number of parts u32      an entry of more bytes than a record should have
    | FFFF | "" | "part" | store key | part u32 | → bytes  a part of it
    | FFFF | "" | "list" | name | part u32 | → bytes       a part of a set of a list (lists/store.py), a file here

The changes of commits are collected until the next delivery, and enter the topic in the transaction of its alerts:
readers of committed records see the alerts of a commit and its store, or neither. The local store knows the collected
changes too, and a process that was killed sends them after its next start:

    | FFFF | "" | "changelog" | "changed" | commit u64 | → store keys, each behind its length u32
    | FFFF | "" | "changelog" | "topic" |                → the topic that has all of the store
    | FFFF | "" | "changelog" | "parts" | store key |    → in how many parts the topic has it u32
    | FFFF | "" | "changelog" | "job" |                  → the name that its transactions go by, also in the topic

A job whose folder is lost reads its store from the topic (opening.py). A standby reads the topic all the time (job.py).
A topic belongs to one job, which has one process at a time.
Tested by: tests/runners/embedded/test_changelog.py
"""

import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Protocol

from cep.base.errors import StateCorruptError, StateFormatError, UsageError
from cep.base.limits import CHANGELOG_PART_BYTES, CHANGELOG_PARTS_MAX, CHANGELOG_RECORD_BYTES_MAX
from cep.lists.store import ListStore
from cep.model.settings import Settings
from cep.rulebook.kafka import Topic
from cep.runners.embedded.commit_entries import HEAD, Head, parse_head
from cep.runners.observe import Log
from cep.runners.patience import ask_in_time
from cep.sinks.base import AlertSink
from cep.sinks.kafka import KafkaTransactionSink
from cep.sources.kafka import KafkaSettings, earliest_offsets, latest_offsets, read_range
from cep.sources.live.kinds import kafka_client
from cep.sources.offsets import OffsetRange
from cep.state.manifest import path_inside
from cep.state.store import (
    ALL_KEYS,
    STORE_GROUP,
    Change,
    DurableStore,
    KeyRange,
    WriteBatch,
    prefix_range,
    split_key,
    store_key,
)

Entry = tuple[bytes, bytes | None]
_CHANGELOG, _LIST, _PART = b"changelog", b"list", b"part"
_TOPIC = store_key(STORE_GROUP, b"", _CHANGELOG, b"topic")
_JOB = store_key(STORE_GROUP, b"", _CHANGELOG, b"job")
_CHANGED = prefix_range(STORE_GROUP, b"", _CHANGELOG, b"changed")
_PARTS_COUNTS = prefix_range(STORE_GROUP, b"", _CHANGELOG, b"parts")
_LISTS, _PARTS = prefix_range(STORE_GROUP, b"", _LIST), prefix_range(STORE_GROUP, b"", _PART)
_NUMBER, _LENGTH = struct.Struct(">Q"), struct.Struct(">I")
_PART_BYTES = 1 << 20
_LOOK_BACK, _LOOK_BACK_MORE = 500, 20  # offsets from the end at which the last commit is looked for, and times more
_NAME_BYTES_MAX = 200  # of a list: its file has this name
_MARK, _PARTS_FORMAT = b"cep in parts", 1
_TELL_S = 5.0  # between two lines about how far the topic was read
_MARKED = struct.Struct(f">{len(_MARK)}sHI")


class Carrier(Protocol):
    """A sink in whose transactions the changelog's entries are written to their topic."""

    def open(self) -> None:
        """End a transaction that an earlier process left open. Raises: SinkError."""
        ...

    def carry(self, topic: str, entries: Sequence[Entry]) -> None:
        """Add these entries to the next write, with or without alerts."""
        ...

    def bring(self, topic: str, entries: Iterator[Entry]) -> None:
        """Bring these alone, all or none. Raises: SinkError."""
        ...


@dataclass
class _Followed:
    """The part of the topic that was read: up to which offset, its last commit, which entries are in parts."""

    offset: int | None = None
    is_empty: bool = True
    committed_ms: int | None = None
    parts: dict[bytes, int] = field(default_factory=dict)


class Changelog:
    """The changelog of one process of the job `job`. `tell` is told how many of how many offsets have been read."""

    def __init__(
        self, topic: str, settings: KafkaSettings, carrier: Carrier, tell: Callable[[int, int], None] = lambda *_: None,
        job: str = "",
    ) -> None:  # fmt: skip
        self.topic = topic
        self._settings = settings
        self._carrier = carrier
        self._tell = tell
        self._job = job.encode()
        self._followed = _Followed()
        self._pending: dict[bytes, bytes | None] = {}
        self.pending_bytes = 0  # of changes that no delivery has sent
        self._commits: list[int] = []  # whose changes are pending
        self._forgettable: list[int] = []
        self._is_whole = False  # whether the store says that the topic has all of it
        self._sent_lists: dict[str, int] = {}  # name → parts
        self._parts: dict[bytes, int] = {}  # store key → parts, of entries that the topic has in parts

    @property
    def is_followed(self) -> bool:
        """True if a store follows the topic: then it is newer than the folder's store."""
        return self._followed.offset is not None

    def replay(self, store: DurableStore, lists_folder: Path) -> int | None:
        """Fill the empty store and the folder of lists. Return the time of the topic's last commit (ms UTC), or None.

        A store that has followed the topic gets the missing entries. Raises: UsageError if the topic is not a
        changelog, or belongs to another job; SourceError, SinkError, StateError.
        """
        # An open transaction would hide the end of the topic. From here on no other process can write.
        ask_in_time(self._carrier.open)
        end = self.follow(store, lists_folder)
        followed, self._followed = self._followed, _Followed()
        if followed.committed_ms is None and not followed.is_empty:
            raise self._foreign()
        self._join(store, followed.parts)
        store.sync()
        if followed.committed_ms is not None:
            self._tell(end, end)
        return followed.committed_ms

    def last_head(self) -> Head | None:
        """Return the last commit in the topic, None for an empty one. Raises: SourceError, SinkError, StateError."""
        ask_in_time(self._carrier.open)  # as in `replay`
        whole, span = self._range(), _LOOK_BACK
        while True:  # the last transaction has it, and compaction leaves it
            start = max(whole.start, whole.end - span)
            entries: dict[bytes, bytes | None] = {}
            for records in read_range(self._settings, replace(whole, start=start)):
                pairs = zip(records.column("key").to_pylist(), records.column("value").to_pylist(), strict=True)
                entries.update((key, value) for key, value in pairs if key is not None)
            head = self._entry(HEAD, entries)
            if head is not None or start == whole.start:
                return None if head is None else parse_head(head)
            span *= _LOOK_BACK_MORE

    def _entry(self, key: bytes, entries: Mapping[bytes, bytes | None]) -> bytes | None:
        """Return the whole value of a key; None if `entries` lack it or one of its parts."""
        value = entries.get(key)
        if value is None or not value.startswith(_MARK):
            return value
        parts = [entries.get(_part_key(key, part)) for part in range(self._count_of(value))]
        return None if None in parts else b"".join(part for part in parts if part is not None)

    def follow(self, store: DurableStore, lists_folder: Path) -> int:
        """Read to the end of the committed records and return that offset. Raises: as `replay`."""
        followed, offset_range = self._followed, self._range()
        if followed.offset is not None:
            offset_range = replace(offset_range, start=min(followed.offset, offset_range.end))
        for records in read_range(self._settings, offset_range):
            followed.is_empty, batch = False, WriteBatch()
            columns = (records.column(name).to_pylist() for name in ("key", "value", "timestamp"))
            for key, value, time_ms in zip(*columns, strict=True):
                if key is None:
                    raise self._foreign()
                if _LISTS.begin <= key < _LISTS.end:
                    _write_part(lists_folder, key, value)
                elif value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
                if value is not None and value.startswith(_MARK):
                    followed.parts[key] = self._count_of(value)
                else:
                    followed.parts.pop(key, None)
                if key == HEAD:
                    followed.committed_ms = int(time_ms)
                elif key == _JOB and value != self._job:
                    raise self._of_another(value or b"")
            store.write(batch)
            followed.offset = records.column("offset")[-1].as_py() + 1
            self._tell(followed.offset, offset_range.end)
        followed.offset = offset_range.end
        return offset_range.end

    def _count_of(self, marked: bytes) -> int:
        """Return the number of parts that an entry in parts has. Raises: StateCorruptError, StateFormatError."""
        if len(marked) != _MARKED.size:
            raise StateCorruptError(f"topic {self.topic} has an entry in parts that does not say how many")
        _, format_, count = _MARKED.unpack(marked)
        if format_ != _PARTS_FORMAT:
            raise StateFormatError(
                f"topic {self.topic} has entries in parts of format {format_}, this build reads {_PARTS_FORMAT}: start "
                "the job with the build that wrote them"
            )
        if count > CHANGELOG_PARTS_MAX:
            raise StateCorruptError(
                f"topic {self.topic} has an entry of {count} parts, and one has {CHANGELOG_PARTS_MAX} at most"
            )
        return int(count)

    def _join(self, store: DurableStore, counts: dict[bytes, int]) -> None:
        """Replace the parts of large entries by the whole entries. `counts` has the number of parts of each."""
        for key, count in counts.items():
            parts = store.multi_get([_part_key(key, part) for part in range(count)])
            whole = [part for part in parts if part is not None]
            if len(whole) < count:
                raise StateCorruptError(f"topic {self.topic} has {len(whole)} of the {count} parts of an entry")
            batch = WriteBatch()
            batch.put(key, b"".join(whole))
            batch.put(_count_key(key), _LENGTH.pack(count))
            store.write(batch)
        store.delete_range(_PARTS)

    def resume(self, store: DurableStore, lists: ListStore) -> None:
        """Continue from a store that has commits: send all of it if the topic is empty; find the changes to send.

        Raises: UsageError for a topic with other contents; SinkError, SourceError, StoreError.
        """
        ask_in_time(self._carrier.open)
        for key, value in store.scan(_PARTS_COUNTS):
            (self._parts[split_key(key).item],) = _LENGTH.unpack(value)
        if next(read_range(self._settings, self._range(), rows_max=1), None) is None:
            # First here: if the job ends in between, the next start finds the topic empty again.
            store.put(_TOPIC, self.topic.encode())
            store.sync()
            of_lists = chain.from_iterable(self._list_entries(lists, name) for name in lists.names())
            counts = WriteBatch()
            of_store = chain.from_iterable(
                self._in_parts({key: value}, counts).items()
                for key, value in store.scan(ALL_KEYS)
                if not _is_of_changelog(key)
            )
            self._carrier.bring(self.topic, chain(of_lists, of_store, [(_TOPIC, self.topic.encode())]))
            store.write(counts)
        elif store.get(_TOPIC) != self.topic.encode():
            raise self._foreign()
        elif store.get(_JOB) not in (None, self._job):
            raise self._of_another(store.get(_JOB) or b"")
        keys: dict[bytes, None] = {}
        for key, value in store.scan(_CHANGED):
            self._commits.append(_NUMBER.unpack(split_key(key).item)[0])
            keys.update(dict.fromkeys(_unpacked(value)))
        # Parts of an earlier value of an entry are gone.
        changes = dict(zip(keys, store.multi_get(list(keys)), strict=True))
        self._add(self._in_parts(changes, WriteBatch()))

    def _foreign(self) -> UsageError:
        return UsageError(f"topic {self.topic} has something in it and is no changelog of this job; give an empty one")

    def _of_another(self, job: bytes) -> UsageError:
        return UsageError(
            f"topic {self.topic} is the changelog of a job whose folder is called `{job.decode()}`, and this "
            f"one is called `{self._job.decode()}`: brokers tell the processes of one job by that name; give a folder "
            "with the same name, or another topic"
        )

    def _range(self) -> OffsetRange:
        first, last = (
            read_offsets(self._settings, [self.topic])[self.topic]
            for read_offsets in (earliest_offsets, latest_offsets)
        )
        if set(last) != {0}:
            raise UsageError(f"topic {self.topic} has {len(last)} partitions; a changelog has one, and so one order")
        return OffsetRange(self.topic, 0, first[0], last[0])

    def take(self, batch: WriteBatch, store: DurableStore, lists: ListStore, number: int) -> None:
        """Collect the changes of a commit before it is written, and add the local store's entries about them to it."""
        changes = self._in_parts(_changes(batch, store), batch)
        if not self._is_whole:
            self._is_whole = True
            for key, value in ((_TOPIC, self.topic.encode()), (_JOB, self._job)):
                changes[key] = value
                batch.put(key, value)
        for settled in self._forgettable:
            batch.delete(_changed_key(settled))
        self._forgettable = []
        batch.put(_changed_key(number), _packed(changes))
        self._commits.append(number)
        names = set(lists.names())
        for name in names - self._sent_lists.keys():
            changes.update(self._list_entries(lists, name))
        for name in self._sent_lists.keys() - names:
            changes.update((_list_key(name, part), None) for part in range(self._sent_lists.pop(name)))
        self._add(changes)

    def hand_over(self) -> tuple[list[Entry], tuple[int, ...]]:
        """Hand over the changes to deliver, and the numbers of their commits."""
        entries, commits = list(self._pending.items()), tuple(self._commits)
        self._pending, self._commits, self.pending_bytes = {}, [], 0
        return entries, commits

    def carry(self, entries: Sequence[Entry]) -> None:
        """Have the next write of alerts bring these."""
        self._carrier.carry(self.topic, entries)

    def settle(self, commits: Sequence[int]) -> None:
        """Note that the topic has the changes of these commits."""
        self._forgettable += commits

    def _in_parts(self, changes: dict[bytes, bytes | None], counts: WriteBatch) -> dict[bytes, bytes | None]:
        """Replace large entries by their parts, and remove earlier parts, in place. `counts` gets the new counts."""
        large = {key: value for key, value in changes.items() if value and len(value) > CHANGELOG_PART_BYTES}
        for key in [*large, *(self._parts.keys() & changes.keys() - large.keys())]:
            data, before = large.get(key, b""), self._parts.pop(key, 0)
            count = -(-len(data) // CHANGELOG_PART_BYTES)
            if count:
                changes[key], self._parts[key] = _MARKED.pack(_MARK, _PARTS_FORMAT, count), count
                counts.put(_count_key(key), _LENGTH.pack(count))
            else:
                counts.delete(_count_key(key))
            for part in range(max(count, before)):
                start = part * CHANGELOG_PART_BYTES
                changes[_part_key(key, part)] = data[start : start + CHANGELOG_PART_BYTES] if part < count else None
        return changes

    def _add(self, changes: dict[bytes, bytes | None]) -> None:
        for key, value in changes.items():
            self.pending_bytes += len(key) + len(value or b"") - len(self._pending.get(key) or b"")
        self._pending.update(changes)

    def _list_entries(self, lists: ListStore, name: str) -> Iterator[Entry]:
        path = lists.path(name)
        count = 0
        with path.open("rb") as file:
            while data := file.read(_PART_BYTES):
                yield _list_key(name, count), data
                count += 1
        self._sent_lists[name] = count


def _changes(batch: WriteBatch, store: DurableStore) -> dict[bytes, bytes | None]:
    """Return the entries that a write batch changes. A topic has no ranges, so each removed entry is named."""
    entries: dict[bytes, bytes | None] = {}
    for change, key, other in batch.changes:
        if change is Change.PUT:
            entries[key] = other
        elif change is Change.DELETE:
            entries[key] = None
        else:
            entries.update((inside, None) for inside in entries if key <= inside < other)
            entries.update((inside, None) for inside, _ in store.scan(KeyRange(key, other)))
    return entries


def _is_of_changelog(key: bytes) -> bool:
    return key in (_TOPIC, _JOB) or any(reserved.begin <= key < reserved.end for reserved in (_CHANGED, _PARTS_COUNTS))


def _changed_key(commit: int) -> bytes:
    return store_key(STORE_GROUP, b"", _CHANGELOG, b"changed", _NUMBER.pack(commit))


def _part_key(key: bytes, part: int) -> bytes:
    return store_key(STORE_GROUP, b"", _PART, key, _LENGTH.pack(part))


def _count_key(key: bytes) -> bytes:
    return store_key(STORE_GROUP, b"", _CHANGELOG, b"parts", key)


def _list_key(name: str, part: int) -> bytes:
    return store_key(STORE_GROUP, b"", _LIST, name.encode(), _LENGTH.pack(part))


def _write_part(folder: Path, key: bytes, value: bytes | None) -> None:
    """Write one part of a list's file, or remove the file if the value is None."""
    parts = split_key(key)
    try:
        name, (part,) = parts.name.decode(), _LENGTH.unpack(parts.item)
    except (UnicodeDecodeError, struct.error) as error:
        raise StateCorruptError(f"a changelog has a part of a list whose key is none: {parts.name!r}") from error
    if part >= CHANGELOG_PARTS_MAX or "/" in name or len(parts.name) > _NAME_BYTES_MAX:
        raise StateCorruptError(f"a changelog names part {part} of the list {name!r}, which no job writes")
    path = path_inside(folder, ListStore(folder).path(name).name)
    if value is None:
        path.unlink(missing_ok=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if path.exists() else "wb") as file:
        file.seek(part * _PART_BYTES)
        file.write(value)


def _packed(keys: dict[bytes, bytes | None]) -> bytes:
    return b"".join(_LENGTH.pack(len(key)) + key for key in keys)


def _unpacked(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        yield data[position : position + length]
        position += length


def client_of(settings: Settings) -> dict[str, str]:
    """Return the options of Kafka's client for alerts; with a changelog it lets larger records through."""
    client = settings.kafka.client_settings()
    if settings.embedded.changelog is None:
        return client
    return {"message.max.bytes": str(CHANGELOG_RECORD_BYTES_MAX), **client}


def changelog_of(settings: Settings, sinks: Sequence[AlertSink], log: Log) -> Changelog | None:
    """Open the changelog of a process, and create its topic if it is missing. Raises: UsageError, SinkError."""
    embedded, servers = settings.embedded, settings.kafka.bootstrap_servers
    if embedded.changelog is None:
        return None
    carrier = sinks[-1] if sinks else None
    if settings.job.checkpoint is None or embedded.store != "rocksdb":
        raise UsageError("--changelog needs --checkpoint, and --store rocksdb: it has what commits change there")
    if servers is None or not isinstance(carrier, KafkaTransactionSink):
        raise UsageError(
            "--changelog needs --alerts kafka:TOPIC, delivered exactly once: a commit's alerts and changes come into "
            "Kafka in one transaction"
        )
    topic = embedded.changelog if embedded.groups is None else f"{embedded.changelog}-{embedded.groups}"
    kafka = kafka_client(settings)
    Topic(servers, topic, kafka.client_options).create({"max.message.bytes": str(CHANGELOG_RECORD_BYTES_MAX)})
    printed_s = time.monotonic()

    def tell(done: int, whole: int) -> None:
        nonlocal printed_s
        if done >= whole or time.monotonic() - printed_s >= _TELL_S:
            printed_s = time.monotonic()
            text = f"state is read from topic {topic}: {done:,} of {whole:,} offsets"
            log.tell("changelog", text, done=done, whole=whole)

    return Changelog(topic, kafka, carrier, tell, settings.job.checkpoint.resolve().name)
