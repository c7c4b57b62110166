"""A keyed store in memory: a sorted dictionary, for tests and state that may be lost.

Its checkpoint is one file of all entries (savepoints.py).
Tested by: tests/state/test_stores.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from sortedcontainers import SortedDict

from cep.state.savepoints import read_entries, write_entries
from cep.state.store import ALL_KEYS, Change, DurableStore, KeyRange, StoreSizes, StoreSnapshot, WriteBatch

_FILE = "entries.cep"


class MemoryStore(DurableStore, StoreSnapshot):
    """A dictionary in the order of its keys. Cost: a snapshot, which is such a dictionary, copies everything."""

    def __init__(self, entries: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._entries: SortedDict = SortedDict(entries)

    @staticmethod
    def open(path: Path) -> MemoryStore:
        """Open the store that was checkpointed into the directory. Raises: StateCorruptError."""
        return MemoryStore(read_entries(path / _FILE))

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._entries.get(key) for key in keys]

    def write(self, batch: WriteBatch) -> None:
        for change, key, other in batch.changes:
            if change is Change.PUT:
                self._entries[key] = other
            elif change is Change.DELETE:
                self._entries.pop(key, None)
            else:
                for inside in list(self._entries.irange(key, other, inclusive=(True, False))):
                    del self._entries[inside]

    def scan(self, keys: KeyRange, count_max: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        in_range = self._entries.irange(keys.begin, keys.end, inclusive=(True, False))
        return iter([(key, self._entries[key]) for key in islice(in_range, count_max)])

    def snapshot(self) -> StoreSnapshot:
        return MemoryStore(self._entries.items())

    def sync(self) -> None:
        """Do nothing: memory is as safe as it gets."""

    def checkpoint(self, path: Path) -> tuple[Path, ...]:
        path.mkdir(parents=True)
        write_entries(path / _FILE, self.scan(ALL_KEYS))
        return (path / _FILE,)

    def ingest(self, entries: Iterable[tuple[bytes, bytes]]) -> int:
        fresh = dict(entries)
        self._entries.update(fresh)
        return len(fresh)

    def sizes(self) -> StoreSizes:
        entry_bytes = sum(len(key) + len(value) for key, value in self._entries.items())
        return StoreSizes(len(self._entries), 0, entry_bytes, 0)

    def close(self) -> None:
        self._entries = SortedDict()
