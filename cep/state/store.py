"""The contract of a keyed store: ordered bytes → bytes.

    KeyedStore       get, put, delete, multi_get, write, scan, delete_range     to read and write entries
    └ DurableStore   snapshot, sync, checkpoint, ingest, sizes, close           to own them: memory.py, rocks.py

One thread uses a store at a time, but others may read its snapshots and its `checkpoint` directories.

A store key is (key group, key, namespace, name, item) as one byte string with the same sort order:

    | key group u16 | key 00 01 | namespace 00 01 | name 00 01 | item |      big-endian

In key, namespace and name a byte 00 is written 00 FF, as in CockroachDB's ordered keys. The end mark 00 01 therefore
occurs at no other place and sorts below every continuation. A prefix of the parts is one range: a key group, a key of
it, or one name of a key can be scanned, counted, moved or deleted as a whole. `item` is raw bytes, such as the number
of a page.

Tested by: tests/state/test_stores.py, tests/state/test_pages.py.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from cep.base.errors import LimitError, StateCorruptError
from cep.base.limits import KEY_GROUPS_MAX, STORE_KEY_BYTES_MAX
from cep.base.process import Closing

_GROUP = struct.Struct(">H")
_END = b"\x00\x01"
_AFTER_END = b"\x00\x02"  # no escaped part holds it: the first byte string above every key with a prefix
# A store's own entries belong to no key group and are above all of them.
STORE_GROUP = 0xFFFF


class StoreKey(NamedTuple):
    """The parts of a store key."""

    key_group: int
    key: bytes
    namespace: bytes
    name: bytes
    item: bytes = b""


class KeyRange(NamedTuple):
    """Store keys k with begin <= k < end."""

    begin: bytes
    end: bytes


ALL_KEYS = KeyRange(b"\x00\x00", b"\xff\xff\xff")


def store_key(key_group: int, key: bytes, namespace: bytes, name: bytes, item: bytes = b"") -> bytes:
    """Return the store key of these parts. Raises: LimitError for more than STORE_KEY_BYTES_MAX."""
    assert 0 <= key_group < KEY_GROUPS_MAX or key_group == STORE_GROUP, f"no key group has the number {key_group}"
    raw = _GROUP.pack(key_group) + _closed(key) + _closed(namespace) + _closed(name) + item
    if len(raw) > STORE_KEY_BYTES_MAX:
        raise LimitError("bytes of a store key", len(raw), STORE_KEY_BYTES_MAX, "use a shorter key, or its hash")
    return raw


def split_key(raw: bytes) -> StoreKey:
    """Return the parts of a store key. Raises: StateCorruptError for invalid bytes."""
    parts: list[bytes] = []
    position = _GROUP.size
    for _ in range(3):
        end = raw.find(_END, position)
        if end < 0:
            raise StateCorruptError(f"store key {raw!r} has {len(parts)} of 3 parts; the bytes are not ours")
        parts.append(raw[position:end].replace(b"\x00\xff", b"\x00"))
        position = end + len(_END)
    return StoreKey(key_group_of(raw), parts[0], parts[1], parts[2], raw[position:])


def key_group_of(raw: bytes) -> int:
    """Return the key group of a store key."""
    (key_group,) = _GROUP.unpack_from(raw)
    return int(key_group)


def group_range(first: int, end: int | None = None) -> KeyRange:
    """Return the range of the key groups first <= g < end; without `end`, the range of `first`."""
    last = (first if end is None else end - 1) if first != STORE_GROUP else first
    after = ALL_KEYS.end if last == STORE_GROUP else _GROUP.pack(last + 1)
    return KeyRange(_GROUP.pack(first), after)


def prefix_range(key_group: int, *parts: bytes) -> KeyRange:
    """Return the range below (key group, key), (…, namespace) or (…, name). Give at least the key."""
    assert 1 <= len(parts) <= 3, "a prefix is the key, then the namespace, then the name"
    prefix = _GROUP.pack(key_group) + b"".join(_closed(part) for part in parts)
    return KeyRange(prefix, prefix.removesuffix(_END) + _AFTER_END)


def _closed(part: bytes) -> bytes:
    return part.replace(b"\x00", b"\x00\xff") + _END


class Change(IntEnum):
    """The kind of a change in a write batch."""

    PUT = 1
    DELETE = 2
    DELETE_RANGE = 3


@dataclass(slots=True)
class WriteBatch:
    """Changes that are applied in their order, all of them or none. An entry is (change, key, value or range's end)."""

    changes: list[tuple[Change, bytes, bytes]] = field(default_factory=list)

    def put(self, key: bytes, value: bytes) -> None:
        self.changes.append((Change.PUT, key, value))

    def put_all(self, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Each key with its value; there are as many of both."""
        self.changes.extend(zip(repeat(Change.PUT), keys, values))

    def delete(self, key: bytes) -> None:
        self.changes.append((Change.DELETE, key, b""))

    def delete_range(self, keys: KeyRange) -> None:
        self.changes.append((Change.DELETE_RANGE, keys.begin, keys.end))

    def __len__(self) -> int:
        return len(self.changes)


class KeyedStore(ABC):
    """An ordered map from bytes to bytes. Every method may raise StoreError (disk full) or StateCorruptError."""

    @abstractmethod
    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of many keys, in the order of `keys`."""

    @abstractmethod
    def write(self, batch: WriteBatch) -> None:
        """Apply the changes, all or none."""

    @abstractmethod
    def scan(self, keys: KeyRange, count_max: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of the range in the order of their keys, as of the start of the scan; writes may go on."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        return self.multi_get([key])[0]

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value. It is seen by the next read; it is safe after `sync` or a checkpoint."""
        self.write(WriteBatch([(Change.PUT, key, value)]))

    def delete(self, key: bytes) -> None:
        """Delete the value; a missing value is ignored."""
        self.write(WriteBatch([(Change.DELETE, key, b"")]))

    def delete_range(self, keys: KeyRange) -> None:
        """Delete everything in the range."""
        self.write(WriteBatch([(Change.DELETE_RANGE, *keys)]))


class StoreSnapshot(Closing):
    """A store as it was at one moment, while writes go on. Close it, because it keeps old files alive."""

    @abstractmethod
    def scan(self, keys: KeyRange) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of that moment in the range, in the order of their keys."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of that moment, or None."""
        return next((value for _, value in self.scan(KeyRange(key, key + b"\x00"))), None)

    @abstractmethod
    def close(self) -> None:
        """Release the snapshot."""


@dataclass(frozen=True, slots=True)
class StoreSizes:
    """Figures of a store. Memory is not yet on disk, the cache is; `entries_count` is an estimate for RocksDB."""

    entries_count: int
    disk_bytes: int
    memory_bytes: int
    cache_bytes: int


class DurableStore(KeyedStore, Closing):
    """A store with its own directory or memory, that can be synced, copied and loaded."""

    @abstractmethod
    def snapshot(self) -> StoreSnapshot:
        """Return a snapshot of this moment."""

    @abstractmethod
    def sync(self) -> None:
        """Make all earlier writes survive a loss of power. The newest of later writes are lost first."""

    @abstractmethod
    def checkpoint(self, path: Path) -> tuple[Path, ...]:
        """Write a copy of this moment into the new directory `path`, where a store can be opened; return its files."""

    @abstractmethod
    def ingest(self, entries: Iterable[tuple[bytes, bytes]]) -> int:
        """Add many entries in ascending order of their keys, replacing existing ones; return their number."""

    @abstractmethod
    def sizes(self) -> StoreSizes:
        """Return the sizes of the store."""

    @abstractmethod
    def close(self) -> None:
        """Release the directory. A closed store is not used again."""
