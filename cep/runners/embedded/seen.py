"""Hashes of event ids that a share has seen: in memory in a few sorted runs a bucket, in the store by key group.

    | key group | "" | "seen" | domain | bucket i64 |             →  sorted uint64, little-endian (duplicates.py)
    | FFFF | "" | "added-seen" | domain | commit, share, bucket | →  hashes uint64[n], key groups int32[n]

What a commit has added stands by itself until `save_whole`: a commit costs what came with it, not what was seen. So
does a micro-batch: its ids are a run of their own, and two runs become one when the later has half the length of the
earlier one. So a bucket of N ids has about log2(N) runs at most, and an id is moved about as often.
Tested by: tests/runners/embedded/test_seen.py, tests/runners/embedded/test_engine.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.columnar.route import key_groups
from cep.runners.handover.group_entries import BUCKET, SEEN
from cep.state.keys import STORE_GROUP, prefix_range, split_key, store_key
from cep.state.store import KeyedStore, WriteBatch
from cep.step import duplicates

ADDED_SEEN = b"added-seen"
_Run = tuple[NDArray[np.uint64], NDArray[np.int32]]  # hashes, sorted, and the key group of each


class SeenOfShare:
    """`names` are those of the key domains in store keys."""

    def __init__(self, names: Sequence[bytes], groups_count: int) -> None:
        self._names = names
        self._groups_count = groups_count
        self._held: dict[tuple[int, int], list[_Run]] = {}  # longer ones first
        self._changed: set[tuple[int, int]] = set()
        self._added: dict[tuple[int, int], list[_Run]] = {}  # since the last commit, as they came
        self._gone: list[bytes] = []

    def contains(self, number: int, bucket: int, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """As SeenIds.contains."""
        seen = np.zeros(len(hashes), bool)
        for hashes_seen, _ in self._held.get((number, bucket), ()):
            seen |= duplicates.are_among(hashes, hashes_seen)
        return seen

    def add(self, number: int, bucket: int, hashes: NDArray[np.uint64], keys: pa.Array) -> None:
        """As SeenIds.add."""
        groups = key_groups(keys, self._groups_count)
        self._hold(number, bucket, hashes, groups)
        self._changed.add((number, bucket))
        self._added.setdefault((number, bucket), []).append((hashes, groups))

    def forget(self, oldest: int) -> None:
        """As SeenIds.forget."""
        for number, bucket in [at for at in self._held if at[1] < oldest]:
            groups = np.unique(np.concatenate([groups for _, groups in self._held.pop((number, bucket))]))
            self._gone += [self._key(group, number, bucket) for group in groups.tolist()]
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
            for group, hashes in _by_group(self._whole(number, bucket)):
                batch.put(self._key(group, number, bucket), duplicates.to_bytes(hashes))
        self._changed.clear()
        self._added.clear()
        for key in self._gone:
            batch.delete(key)
        self._gone.clear()

    def of_group(self, group: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield (number of the domain, bucket, hashes as stored) of a key group."""
        for number, bucket in sorted(self._held):
            hashes, groups = self._whole(number, bucket)
            group_hashes = hashes[groups == group]
            if len(group_hashes):
                yield number, bucket, duplicates.to_bytes(group_hashes)

    def hold(self, group: int, number: int, bucket: int, data: bytes) -> None:
        """Add the ids that another runner has seen of a key group."""
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
                of_share = (owners >= groups.start) & (owners < groups.stop)
                if of_share.any():
                    self._hold(number, bucket, hashes[of_share], owners[of_share])
                    self._changed.add((number, bucket))

    def _hold(self, number: int, bucket: int, hashes: NDArray[np.uint64], groups: NDArray[np.int32]) -> None:
        runs = self._held.setdefault((number, bucket), [])
        order = np.argsort(hashes)
        runs.append((hashes[order], groups[order]))
        while len(runs) > 1 and 2 * len(runs[-1][0]) >= len(runs[-2][0]):
            later, earlier = runs.pop(), runs.pop()
            runs.append(_merged(earlier, later))

    def _whole(self, number: int, bucket: int) -> _Run:
        """All of a bucket as one run, which it is from now on."""
        runs = self._held[number, bucket]
        while len(runs) > 1:
            later, earlier = runs.pop(), runs.pop()
            runs.append(_merged(earlier, later))
        return runs[0]

    def _key(self, group: int, number: int, bucket: int) -> bytes:
        return store_key(group, b"", SEEN, self._names[number], BUCKET.pack(bucket))


def _merged(some: _Run, others: _Run) -> _Run:
    """Two runs as one. Cost: a copy, and a search in the one for each of the others."""
    at = np.searchsorted(some[0], others[0])
    return np.insert(some[0], at, others[0]), np.insert(some[1], at, others[1])


def _by_group(run: _Run) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Yield the hashes of each key group that has any, sorted. Cost: a pass, by the counting sort of small integers."""
    hashes, groups = run
    order = np.argsort(groups.astype(np.int16), kind="stable")
    distinct_groups, firsts = np.unique(groups[order], return_index=True)
    yield from zip(distinct_groups.tolist(), np.split(hashes[order], firsts[1:]), strict=True)
