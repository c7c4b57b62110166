"""The contract of a keyed store: ordered bytes → bytes, whoever keeps them.

    KeyedStore       get, put, delete, multi_get, write, scan, delete_range     memory, RocksDB, Spark's state store
    └ DurableStore   snapshot, sync, checkpoint, ingest, sizes, close           memory, RocksDB

Keys are store keys (keys.py). A store knows neither what its values mean nor when they expire (values.py), and one
thread uses it at a time, but `checkpoint` directories and snapshots may be read by others.
Tested by: tests/state/test_stores.py, tests/runners/spark/test_keyed_store.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import repeat
from pathlib import Path
from types import TracebackType
from typing import Self

from cep.state.keys import KeyRange


class Change(IntEnum):
    """What one entry of a write batch does."""

    PUT = 1
    DELETE = 2
    DELETE_RANGE = 3


@dataclass(slots=True)
class WriteBatch:
    """Changes in their order, applied as one: all of them or none. An entry is (change, key, value or range's end)."""

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
    """Ordered bytes → bytes. Every method may raise StoreError (disk full, store gone) or StateCorruptError."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""

    @abstractmethod
    def put(self, key: bytes, value: bytes) -> None:
        """Set the value. It is seen by the next read; it is safe after `sync` or a checkpoint."""

    @abstractmethod
    def delete(self, key: bytes) -> None:
        """Forget the value; nothing happens where there is none."""

    @abstractmethod
    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of many keys, in the order of the keys."""

    @abstractmethod
    def write(self, batch: WriteBatch) -> None:
        """Apply the changes, all or none."""

    @abstractmethod
    def scan(self, keys: KeyRange, count_max: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The entries of the range in the order of their keys, as they are when the scan begins; writes may go on."""

    @abstractmethod
    def delete_range(self, keys: KeyRange) -> None:
        """Forget everything in the range."""


class StoreSnapshot(ABC):
    """A store as it was at one moment; readable while writes go on. Close it: it keeps old files alive."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value then, or None."""

    @abstractmethod
    def scan(self, keys: KeyRange) -> Iterator[tuple[bytes, bytes]]:
        """The entries of the range then, in the order of their keys."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class StoreSizes:
    """Figures of a store; `entries_count` is an estimate for RocksDB.

    Units: bytes. `memory_bytes` is what is written and not yet on disk, `cache_bytes` what is cached of the disk.
    """

    entries_count: int
    disk_bytes: int
    memory_bytes: int
    cache_bytes: int


class DurableStore(KeyedStore):
    """A store of its own, in a directory or in memory."""

    @abstractmethod
    def snapshot(self) -> StoreSnapshot:
        """The store as it is now."""

    @abstractmethod
    def sync(self) -> None:
        """When it returns, everything written before survives a loss of power. Later writes are lost from the end."""

    @abstractmethod
    def checkpoint(self, path: Path) -> tuple[Path, ...]:
        """Write a consistent copy into the new directory `path`, by hard links where it can; returns its files.

        The same kind of store can be opened on that directory, or on a copy of it.
        """

    @abstractmethod
    def ingest(self, entries: Iterable[tuple[bytes, bytes]]) -> int:
        """Add many entries in rising order of their keys, replacing what is there; returns how many."""

    @abstractmethod
    def sizes(self) -> StoreSizes:
        """How big it is."""

    @abstractmethod
    def close(self) -> None:
        """Release the directory. A closed store is not used again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()
