"""The contract of a keyed store: ordered bytes → bytes.

    KeyedStore       get, put, delete, multi_get, write, scan, delete_range     to read and write entries
    └ DurableStore   snapshot, sync, checkpoint, ingest, sizes, close           to own them: memory.py, rocks.py

Keys are store keys (keys.py). A store does not know the meaning of its values. One thread uses it at a time, but others
may read its snapshots and its `checkpoint` directories.
Tested by: tests/state/test_stores.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import repeat
from pathlib import Path

from cep.base.closing import Closing
from cep.state.keys import KeyRange


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
    """An ordered map from bytes to bytes.

    Every method may raise StoreError (disk full, store gone) or StateCorruptError.
    """

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""

    @abstractmethod
    def put(self, key: bytes, value: bytes) -> None:
        """Set the value. It is seen by the next read; it is safe after `sync` or a checkpoint."""

    @abstractmethod
    def delete(self, key: bytes) -> None:
        """Delete the value; a missing value is ignored."""

    @abstractmethod
    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of many keys, in the order of `keys`."""

    @abstractmethod
    def write(self, batch: WriteBatch) -> None:
        """Apply the changes, all or none."""

    @abstractmethod
    def scan(self, keys: KeyRange, count_max: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of the range in the order of their keys, as of the start of the scan; writes may go on."""

    @abstractmethod
    def delete_range(self, keys: KeyRange) -> None:
        """Delete everything in the range."""


class StoreSnapshot(Closing):
    """A store as it was at one moment; it can be read while writes go on.

    Close it, because it keeps old files alive.
    """

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """Return the value of that moment, or None."""

    @abstractmethod
    def scan(self, keys: KeyRange) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of that moment in the range, in the order of their keys."""

    @abstractmethod
    def close(self) -> None:
        """Release the snapshot."""


@dataclass(frozen=True, slots=True)
class StoreSizes:
    """Figures of a store; `entries_count` is an estimate for RocksDB.

    Units: bytes. `memory_bytes` are written and not yet on disk, `cache_bytes` are a cache of the disk.
    """

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
        """Write a consistent copy into the new directory `path`, by hard links where it can; return its files.

        The same kind of store can be opened on that directory, or on a copy of it.
        """

    @abstractmethod
    def ingest(self, entries: Iterable[tuple[bytes, bytes]]) -> int:
        """Add many entries in ascending order of their keys, replacing existing ones; return their number."""

    @abstractmethod
    def sizes(self) -> StoreSizes:
        """Return the sizes of the store."""

    @abstractmethod
    def close(self) -> None:
        """Release the directory. A closed store is not used again."""
