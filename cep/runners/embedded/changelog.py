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
_LIST_PART_BYTES = 1 << 20
_LOOK_BACK, _LOOK_BACK_MORE = 500, 20  # offsets from the end at which the last commit is looked for, and times more
_NAME_BYTES_MAX = 200  # of a list: its file has this name
_IN_PARTS, _PARTS_FORMAT = b"cep in parts", 1
_TELL_S = 5.0  # between two lines about how far the topic was read
_PARTS_VALUE = struct.Struct(f">{len(_IN_PARTS)}sHI")


class Carrier(Protocol):
    """A Kafka sink whose transactions write alerts and, to another topic, the changelog (changes of the store)."""

    def open(self) -> None:
        """End a transaction that an earlier process left open. Raises: SinkError."""
        ...

    def add_to_next_write(self, topic: str, entries: Sequence[Entry]) -> None:
        """Write these entries in the transaction of the next delivery, even if it has no alerts."""
        ...

    def write_alone(self, topic: str, entries: Iterator[Entry]) -> None:
        """Write these entries in a transaction without alerts, all or none. Raises: SinkError."""
        ...


@dataclass
class _Progress:
    """The progress of reading the topic: up to where, and the part of it that counts at the end."""

    offset: int | None = None  # the first one that was not read
    is_empty: bool = True
    committed_ms: int | None = None  # the time of the last commit (ms UTC)
    parts_counts: dict[bytes, int] = field(default_factory=dict)  # store key → parts, of entries that are in parts


class Changelog:
    """The topic to which one process of the job `job` copies its store."""

    def __init__(
        self, topic: str, settings: KafkaSettings, carrier: Carrier,
        report_read: Callable[[int, int], None] = lambda *_: None, job: str = "",
    ) -> None:  # fmt: skip
        """Begin to copy a store to `topic`. The sink `carrier` writes to it. `report_read` gets (offsets read, all)."""
        self.topic = topic
        self._settings = settings
        self._carrier = carrier
        self._report_read = report_read
        self._job = job.encode()
        self._progress = _Progress()
        self._pending: dict[bytes, bytes | None] = {}  # changes for the next delivery; None removes an entry
        self.pending_bytes = 0
        self._pending_commits: list[int] = []  # the commits of these changes
        self._delivered_commits: list[int] = []  # the topic has them; the next commit deletes their lists of keys
        self._has_identity = False  # True once this process has stored the names of topic and job.
        self._sent_lists: dict[str, int] = {}  # name of a list → number of its parts in the topic
        self._parts_counts: dict[bytes, int] = {}  # store key → parts, of large entries that the topic has in parts

    @property
    def is_followed(self) -> bool:
        """True if a store follows the topic: then it is newer than the folder's store."""
        return self._progress.offset is not None

    def replay(self, store: DurableStore, lists_folder: Path) -> int | None:
        """Fill a store and the folder of lists from the topic. Return the time of its last commit (ms UTC), or None.

        A store that has followed the topic gets the missing entries. Raises: UsageError if the topic is not
        a changelog, or belongs to another job; SourceError, SinkError, StateError.
        """
        # An open transaction hides later records, so it is ended. From here on no other process can write to the topic.
        ask_in_time(self._carrier.open)
        end = self.follow(store, lists_folder)
        progress, self._progress = self._progress, _Progress()  # this process writes from now on
        if progress.committed_ms is None and not progress.is_empty:
            raise self._foreign_topic_error()
        self._join_parts(store, progress.parts_counts)  # large entries are in several records
        store.sync()
        if progress.committed_ms is not None:
            self._report_read(end, end)  # all has been read
        return progress.committed_ms

    def last_head(self) -> Head | None:
        """Return the record of the last commit in the topic, or None. Raises: SourceError, SinkError, StateError."""
        ask_in_time(self._carrier.open)  # ends an open transaction, which hides later records
        whole, span = self._topic_range(), _LOOK_BACK
        while True:  # compaction keeps the last record with the key `HEAD`: look for it from the end backwards
            start = max(whole.start, whole.end - span)
            entries: dict[bytes, bytes | None] = {}
            for records in read_range(self._settings, replace(whole, start=start)):
                pairs = zip(records.column("key").to_pylist(), records.column("value").to_pylist(), strict=True)
                entries.update((key, value) for key, value in pairs if key is not None)
            head = self._entry(HEAD, entries)
            if head is not None or start == whole.start:
                return None if head is None else parse_head(head)
            span *= _LOOK_BACK_MORE  # not found: look further back

    def _entry(self, key: bytes, entries: Mapping[bytes, bytes | None]) -> bytes | None:
        """Return the whole value of a key; None if `entries` lack it or one of its parts."""
        value = entries.get(key)
        if value is None or not value.startswith(_IN_PARTS):
            return value
        parts = [entries.get(_part_key(key, part)) for part in range(self._parts_count_of(value))]
        return None if None in parts else b"".join(part for part in parts if part is not None)

    def follow(self, store: DurableStore, lists_folder: Path) -> int:
        """Copy new records of the topic into `store`. Return the offset after them. Raises: UsageError, CepError."""
        progress, offset_range = self._progress, self._topic_range()
        if progress.offset is not None:
            offset_range = replace(offset_range, start=min(progress.offset, offset_range.end))
        for records in read_range(self._settings, offset_range):
            progress.is_empty, batch = False, WriteBatch()
            columns = (records.column(name).to_pylist() for name in ("key", "value", "timestamp"))
            for key, value, time_ms in zip(*columns, strict=True):
                if key is None:
                    raise self._foreign_topic_error()
                if _LISTS.begin <= key < _LISTS.end:  # a part of a list's file
                    _write_list_part(lists_folder, key, value)
                elif value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
                if value is not None and value.startswith(_IN_PARTS):  # a large entry, whose parts have other keys
                    progress.parts_counts[key] = self._parts_count_of(value)
                else:
                    progress.parts_counts.pop(key, None)
                if key == HEAD:  # the record of a commit
                    progress.committed_ms = int(time_ms)
                elif key == _JOB and value != self._job:  # the name of the job that writes the topic
                    raise self._other_job_error(value or b"")
            store.write(batch)
            progress.offset = records.column("offset")[-1].as_py() + 1
            self._report_read(progress.offset, offset_range.end)
        progress.offset = offset_range.end  # the last offsets may be ends of transactions, not records
        return offset_range.end

    def _parts_count_of(self, marked: bytes) -> int:
        """Return the number of parts that an entry in parts has. Raises: StateCorruptError, StateFormatError."""
        if len(marked) != _PARTS_VALUE.size:
            raise StateCorruptError(f"topic {self.topic} has an entry in parts that does not say how many")
        _, format_, count = _PARTS_VALUE.unpack(marked)
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

    def _join_parts(self, store: DurableStore, counts: dict[bytes, int]) -> None:
        """Replace the parts of large entries by the whole entries. `counts` has the number of parts of each."""
        for key, count in counts.items():
            parts = store.multi_get([_part_key(key, part) for part in range(count)])
            whole = [part for part in parts if part is not None]
            if len(whole) < count:
                raise StateCorruptError(f"topic {self.topic} has {len(whole)} of the {count} parts of an entry")
            batch = WriteBatch()
            batch.put(key, b"".join(whole))
            batch.put(_parts_count_key(key), _LENGTH.pack(count))
            store.write(batch)
        store.delete_range(_PARTS)

    def resume(self, store: DurableStore, lists: ListStore) -> None:
        """Continue a store that has commits: copy it if the topic is empty, and collect the changes that were not sent.

        Raises: UsageError for a topic with other contents; SinkError, SourceError, StoreError.
        """
        ask_in_time(self._carrier.open)  # ends a transaction that an earlier process left open
        for key, value in store.scan(_PARTS_COUNTS):  # in how many parts the topic has a large entry
            (self._parts_counts[split_key(key).item],) = _LENGTH.unpack(value)
        if next(read_range(self._settings, self._topic_range(), rows_max=1), None) is None:
            # The store first notes its topic. After a crash before the copy, the next start finds an empty topic again.
            store.put(_TOPIC, self.topic.encode())
            store.sync()
            list_entries = chain.from_iterable(self._list_entries(lists, name) for name in lists.names())
            counts = WriteBatch()  # in how many parts the topic has large entries
            store_entries = chain.from_iterable(
                self._split_large({key: value}, counts).items()
                for key, value in store.scan(ALL_KEYS)
                if not _is_only_local(key)
            )
            self._carrier.write_alone(self.topic, chain(list_entries, store_entries, [(_TOPIC, self.topic.encode())]))
            store.write(counts)
        elif store.get(_TOPIC) != self.topic.encode():
            raise self._foreign_topic_error()
        elif store.get(_JOB) not in (None, self._job):
            raise self._other_job_error(store.get(_JOB) or b"")
        keys: dict[bytes, None] = {}  # each key once, in order
        for key, value in store.scan(_CHANGED):  # for each commit that was not sent: the keys of its changes
            self._pending_commits.append(_NUMBER.unpack(split_key(key).item)[0])
            keys.update(dict.fromkeys(_unpack_keys(value)))
        # The store has no parts: their keys get None, which removes them. `_split_large` then adds the present parts.
        changes = dict(zip(keys, store.multi_get(list(keys)), strict=True))
        self._add_pending(self._split_large(changes, WriteBatch()))  # the store has these counts already

    def _foreign_topic_error(self) -> UsageError:
        return UsageError(f"topic {self.topic} has something in it and is no changelog of this job; give an empty one")

    def _other_job_error(self, job: bytes) -> UsageError:
        return UsageError(
            f"topic {self.topic} is the changelog of a job whose folder is called `{job.decode()}`, and this "
            f"one is called `{self._job.decode()}`: brokers tell the processes of one job by that name; give a folder "
            "with the same name, or another topic"
        )

    def _topic_range(self) -> OffsetRange:
        first, last = (
            read_offsets(self._settings, [self.topic])[self.topic]
            for read_offsets in (earliest_offsets, latest_offsets)
        )
        if set(last) != {0}:
            raise UsageError(f"topic {self.topic} has {len(last)} partitions; a changelog has one, and so one order")
        return OffsetRange(self.topic, 0, first[0], last[0])

    def collect(self, batch: WriteBatch, store: DurableStore, lists: ListStore, commit_number: int) -> None:
        """Collect a commit's changes for the topic. `batch` gets their keys, so that the next start sends them."""
        changes = self._split_large(_changed_entries(batch, store), batch)
        if not self._has_identity:  # the first commit of this process
            self._has_identity = True
            for key, value in ((_TOPIC, self.topic.encode()), (_JOB, self._job)):
                changes[key] = value
                batch.put(key, value)
        for delivered in self._delivered_commits:
            batch.delete(_commit_key(delivered))  # its list of keys, because the topic has the changes
        self._delivered_commits = []
        batch.put(_commit_key(commit_number), _pack_keys(changes))
        self._pending_commits.append(commit_number)
        names = set(lists.names())
        for name in names - self._sent_lists.keys():  # new lists; a list never changes under its name
            changes.update(self._list_entries(lists, name))
        for name in self._sent_lists.keys() - names:  # removed lists
            changes.update((_list_key(name, part), None) for part in range(self._sent_lists.pop(name)))
        self._add_pending(changes)

    def take_pending(self) -> tuple[list[Entry], tuple[int, ...]]:
        """Return the changes to deliver and the numbers of their commits, and forget both."""
        entries, commits = list(self._pending.items()), tuple(self._pending_commits)
        self._pending, self._pending_commits, self.pending_bytes = {}, [], 0
        return entries, commits

    def add_to_next_write(self, entries: Sequence[Entry]) -> None:
        """Write these entries to the topic in the transaction of the next alerts."""
        self._carrier.add_to_next_write(self.topic, entries)

    def note_delivered(self, commits: Sequence[int]) -> None:
        """Note that the topic has the changes of these commits."""
        self._delivered_commits += commits

    def _split_large(self, changes: dict[bytes, bytes | None], counts: WriteBatch) -> dict[bytes, bytes | None]:
        """Divide large entries into parts that fit into a record. Remove older parts. `counts` gets their numbers."""
        large = {key: value for key, value in changes.items() if value and len(value) > CHANGELOG_PART_BYTES}
        for key in [*large, *(self._parts_counts.keys() & changes.keys() - large.keys())]:  # large now or before
            data, parts_before = large.get(key, b""), self._parts_counts.pop(key, 0)
            count = -(-len(data) // CHANGELOG_PART_BYTES)  # of parts, rounded up; 0: the entry is small or gone now
            if count:  # in place of its value, the entry gets a mark with this number
                changes[key], self._parts_counts[key] = _PARTS_VALUE.pack(_IN_PARTS, _PARTS_FORMAT, count), count
                counts.put(_parts_count_key(key), _LENGTH.pack(count))
            else:
                counts.delete(_parts_count_key(key))
            for part in range(max(count, parts_before)):  # None removes a part that is not needed any more
                start = part * CHANGELOG_PART_BYTES
                changes[_part_key(key, part)] = data[start : start + CHANGELOG_PART_BYTES] if part < count else None
        return changes

    def _add_pending(self, changes: dict[bytes, bytes | None]) -> None:
        for key, value in changes.items():
            self.pending_bytes += 0 if key in self._pending else len(key)
            self.pending_bytes += len(value or b"") - len(self._pending.get(key) or b"")
        self._pending.update(changes)

    def _list_entries(self, lists: ListStore, name: str) -> Iterator[Entry]:
        path = lists.path(name)
        count = 0
        with path.open("rb") as file:
            while data := file.read(_LIST_PART_BYTES):
                yield _list_key(name, count), data
                count += 1
        self._sent_lists[name] = count


def _changed_entries(batch: WriteBatch, store: DurableStore) -> dict[bytes, bytes | None]:
    """Return the entries that a write batch changes. A topic has no ranges, so each removed entry is named."""
    entries: dict[bytes, bytes | None] = {}
    for change, key, value_or_end in batch.changes:
        if change is Change.PUT:
            entries[key] = value_or_end
        elif change is Change.DELETE:
            entries[key] = None
        else:  # a range of keys is deleted
            entries.update((inside, None) for inside in entries if key <= inside < value_or_end)
            entries.update((inside, None) for inside, _ in store.scan(KeyRange(key, value_or_end)))
    return entries


def _is_only_local(key: bytes) -> bool:
    return key in (_TOPIC, _JOB) or any(reserved.begin <= key < reserved.end for reserved in (_CHANGED, _PARTS_COUNTS))


def _commit_key(commit: int) -> bytes:
    return store_key(STORE_GROUP, b"", _CHANGELOG, b"changed", _NUMBER.pack(commit))


def _part_key(key: bytes, part: int) -> bytes:
    return store_key(STORE_GROUP, b"", _PART, key, _LENGTH.pack(part))


def _parts_count_key(key: bytes) -> bytes:
    return store_key(STORE_GROUP, b"", _CHANGELOG, b"parts", key)


def _list_key(name: str, part: int) -> bytes:
    return store_key(STORE_GROUP, b"", _LIST, name.encode(), _LENGTH.pack(part))


def _write_list_part(folder: Path, key: bytes, value: bytes | None) -> None:
    """Write the part of a list's file that `key` names. The value None means that the list is gone: remove its file."""
    parts = split_key(key)
    try:
        name, (part,) = parts.name.decode(), _LENGTH.unpack(parts.item)
    except (UnicodeDecodeError, struct.error) as error:
        raise StateCorruptError(f"a changelog has a part of a list whose key is none: {parts.name!r}") from error
    if part >= CHANGELOG_PARTS_MAX or "/" in name or len(parts.name) > _NAME_BYTES_MAX:
        raise StateCorruptError(f"a changelog names part {part} of the list {name!r}, which no job writes")
    path = path_inside(folder, ListStore(folder).path(name).name)
    if value is None:
        path.unlink(missing_ok=True)  # each part of a removed list says so; the first one is enough
        return
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if path.exists() else "wb") as file:
        file.seek(part * _LIST_PART_BYTES)  # all parts but the last have this size
        file.write(value)


def _pack_keys(keys: dict[bytes, bytes | None]) -> bytes:
    return b"".join(_LENGTH.pack(len(key)) + key for key in keys)


def _unpack_keys(data: bytes) -> Iterator[bytes]:
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
    carrier = sinks[-1] if sinks else None  # its transactions also write the changelog
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
    printed_s = time.monotonic()  # when the last line about reading was printed

    def tell(done: int, whole: int) -> None:
        nonlocal printed_s
        if done >= whole or time.monotonic() - printed_s >= _TELL_S:
            printed_s = time.monotonic()
            text = f"state is read from topic {topic}: {done:,} of {whole:,} offsets"
            log.tell("changelog", text, done=done, whole=whole)

    return Changelog(topic, kafka, carrier, tell, settings.job.checkpoint.resolve().name)
