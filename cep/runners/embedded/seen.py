"""Hashes of event ids that a share has seen: in memory in one array a bucket, in the store by key group.

Tested by: tests/runners/embedded/test_engine.py
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.columnar.route import key_groups
from cep.runners import duplicates
from cep.runners.group_entries import BUCKET, SEEN
from cep.state.keys import prefix_range, split_key, store_key
from cep.state.store import KeyedStore, WriteBatch

_Held = tuple[NDArray[np.uint64], NDArray[np.int32]]  # hashes, sorted, and the key group of each
_NOTHING: _Held = (np.empty(0, np.uint64), np.empty(0, np.int32))


class SeenOfShare:
    """`names` are those of the key domains in store keys."""

    def __init__(self, names: Sequence[bytes], groups_count: int) -> None:
        self._names = names
        self._groups_count = groups_count
        self._held: dict[tuple[int, int], _Held] = {}
        self._changed: set[tuple[int, int]] = set()
        self._gone: list[bytes] = []

    def of(self, number: int, bucket: int) -> NDArray[np.uint64]:
        """As SeenIds.of."""
        return self._held.get((number, bucket), _NOTHING)[0]

    def add(self, number: int, bucket: int, hashes: NDArray[np.uint64], keys: pa.Array) -> None:
        """As SeenIds.add."""
        self._hold(number, bucket, hashes, key_groups(keys, self._groups_count))
        self._changed.add((number, bucket))

    def forget(self, oldest: int) -> None:
        """As SeenIds.forget."""
        for number, bucket in [at for at in self._held if at[1] < oldest]:
            _, groups = self._held.pop((number, bucket))
            self._gone += [self._key(group, number, bucket) for group in np.unique(groups).tolist()]
            self._changed.discard((number, bucket))

    def save(self, batch: WriteBatch) -> None:
        """Add all that has changed since the last time."""
        for number, bucket in sorted(self._changed):
            hashes, groups = self._held[number, bucket]
            for group in np.unique(groups).tolist():
                batch.put(self._key(group, number, bucket), duplicates.to_bytes(hashes[groups == group]))
        self._changed.clear()
        for key in self._gone:
            batch.delete(key)
        self._gone.clear()

    def restore(self, store: KeyedStore, group: int) -> None:
        """Take over what the store has of a key group."""
        numbers = {name: number for number, name in enumerate(self._names)}
        for raw, data in store.scan(prefix_range(group, b"", SEEN)):
            at = split_key(raw)
            if at.name in numbers:  # or of another level
                hashes = duplicates.from_bytes(data)
                groups = np.full(len(hashes), group, np.int32)
                self._hold(numbers[at.name], BUCKET.unpack(at.item)[0], hashes, groups)

    def _hold(self, number: int, bucket: int, hashes: NDArray[np.uint64], groups: NDArray[np.int32]) -> None:
        kept, kept_groups = self._held.get((number, bucket), _NOTHING)
        joined = np.concatenate([kept, hashes])
        order = np.argsort(joined)
        self._held[number, bucket] = (joined[order], np.concatenate([kept_groups, groups])[order])

    def _key(self, group: int, number: int, bucket: int) -> bytes:
        return store_key(group, b"", SEEN, self._names[number], BUCKET.pack(bucket))
