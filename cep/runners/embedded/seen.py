"""Hashes of event ids that a share has seen: in memory in one array a bucket, in the store by key group.

    | key group | "" | "seen" | domain | bucket i64 |             →  sorted uint64, little-endian (duplicates.py)
    | FFFF | "" | "added-seen" | domain | commit, share, bucket | →  hashes uint64[n], key groups int32[n]

What a commit has added stands by itself until `save_whole`: a commit costs what came with it, not what was seen.
Tested by: tests/runners/embedded/test_engine.py, tests/runners/embedded/test_commit.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.columnar.route import key_groups
from cep.runners import duplicates
from cep.runners.group_entries import BUCKET, SEEN
from cep.state.keys import STORE_GROUP, prefix_range, split_key, store_key
from cep.state.store import KeyedStore, WriteBatch

ADDED_SEEN = b"added-seen"
_Held = tuple[NDArray[np.uint64], NDArray[np.int32]]  # hashes, sorted, and the key group of each
_NOTHING: _Held = (np.empty(0, np.uint64), np.empty(0, np.int32))


class SeenOfShare:
    """`names` are those of the key domains in store keys."""

    def __init__(self, names: Sequence[bytes], groups_count: int) -> None:
        self._names = names
        self._groups_count = groups_count
        self._held: dict[tuple[int, int], _Held] = {}
        self._changed: set[tuple[int, int]] = set()
        self._added: dict[tuple[int, int], list[_Held]] = {}  # since the last commit
        self._gone: list[bytes] = []

    def of(self, number: int, bucket: int) -> NDArray[np.uint64]:
        """As SeenIds.of."""
        return self._held.get((number, bucket), _NOTHING)[0]

    def add(self, number: int, bucket: int, hashes: NDArray[np.uint64], keys: pa.Array) -> None:
        """As SeenIds.add."""
        groups = key_groups(keys, self._groups_count)
        self._hold(number, bucket, hashes, groups)
        self._changed.add((number, bucket))
        self._added.setdefault((number, bucket), []).append((hashes, groups))

    def forget(self, oldest: int) -> None:
        """As SeenIds.forget."""
        for number, bucket in [at for at in self._held if at[1] < oldest]:
            _, groups = self._held.pop((number, bucket))
            self._gone += [self._key(group, number, bucket) for group in np.unique(groups).tolist()]
            self._changed.discard((number, bucket))

    def save_changes(self, batch: WriteBatch, item: bytes) -> int:
        """Add what has changed since the last commit; returns how many bytes that is."""
        bytes_count = 0
        for (number, bucket), added in sorted(self._added.items()):
            value = b"".join(np.concatenate([part[which] for part in added]).tobytes() for which in (0, 1))
            name = self._names[number]
            batch.put(store_key(STORE_GROUP, b"", ADDED_SEEN, name, item + BUCKET.pack(bucket)), value)
            bytes_count += len(value)
        self._added.clear()
        return bytes_count

    def save_whole(self, batch: WriteBatch) -> None:
        """Add all that has changed since the last time, by key group; what commits have added is then of no use."""
        for number, bucket in sorted(self._changed):
            hashes, groups = self._held[number, bucket]
            for group in np.unique(groups).tolist():
                batch.put(self._key(group, number, bucket), duplicates.to_bytes(hashes[groups == group]))
        self._changed.clear()
        self._added.clear()
        for key in self._gone:
            batch.delete(key)
        self._gone.clear()

    def of_group(self, group: int) -> Iterator[tuple[int, int, bytes]]:
        """(number of the domain, bucket, hashes as stored) of a key group."""
        for (number, bucket), (hashes, groups) in sorted(self._held.items()):
            own = hashes[groups == group]
            if len(own):
                yield number, bucket, duplicates.to_bytes(own)

    def hold(self, group: int, number: int, bucket: int, data: bytes) -> None:
        """Know what another runner has seen of a key group."""
        hashes = duplicates.from_bytes(data)
        self._hold(number, bucket, hashes, np.full(len(hashes), group, np.int32))
        self._changed.add((number, bucket))

    def restore(self, store: KeyedStore, groups: range) -> None:
        """Take over what the store has of these key groups."""
        numbers = {name: number for number, name in enumerate(self._names)}
        for group in groups:
            for raw, data in store.scan(prefix_range(group, b"", SEEN)):
                at = split_key(raw)
                if at.name in numbers:  # or of another level
                    self.hold(group, numbers[at.name], BUCKET.unpack(at.item)[0], data)
        self._changed.clear()
        for number, name in enumerate(self._names):
            for raw, data in store.scan(prefix_range(STORE_GROUP, b"", ADDED_SEEN, name)):
                bucket = BUCKET.unpack(split_key(raw).item[-BUCKET.size :])[0]
                count = len(data) // (8 + 4)
                hashes, owners = np.frombuffer(data, np.uint64, count), np.frombuffer(data, np.int32, count, 8 * count)
                own = (owners >= groups.start) & (owners < groups.stop)
                if own.any():
                    self._hold(number, bucket, hashes[own], owners[own])
                    self._changed.add((number, bucket))

    def _hold(self, number: int, bucket: int, hashes: NDArray[np.uint64], groups: NDArray[np.int32]) -> None:
        kept, kept_groups = self._held.get((number, bucket), _NOTHING)
        joined = np.concatenate([kept, hashes])
        order = np.argsort(joined)
        self._held[number, bucket] = (joined[order], np.concatenate([kept_groups, groups])[order])

    def _key(self, group: int, number: int, bucket: int) -> bytes:
        return store_key(group, b"", SEEN, self._names[number], BUCKET.pack(bucket))
