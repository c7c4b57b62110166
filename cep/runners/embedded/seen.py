"""Hashes of event ids that a share has seen: in memory in a few sorted runs a bucket, in the store by key group.

    | key group | "" | "ids" | domain | bucket i64 |             →  secret, hashes (duplicates.py)
    | FFFF | "" | "added-ids" | domain | commit, share, bucket | →  secrets and hashes as below

    k int64, how many secrets | their key groups int64[k] | secrets uint64[k, 2] | hashes uint64[2, n]
    | key groups of the hashes int32[n]

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
from cep.runners.handover.group_entries import BUCKET, EARLIER_SEEN, SEEN
from cep.state.keys import STORE_GROUP, prefix_range, split_key, store_key
from cep.state.store import KeyedStore, WriteBatch
from cep.step import duplicates

ADDED_SEEN, _EARLIER_ADDED = b"added-ids", b"added-seen"
_Run = tuple[NDArray[np.uint64], NDArray[np.int32]]  # hashes uint64[2, n], sorted, and the key group of each
_Secrets = NDArray[np.uint64]


class SeenOfShare:
    """`names` are those of the key domains in store keys."""

    def __init__(self, names: Sequence[bytes], groups_count: int) -> None:
        self._names = names
        self._groups_count = groups_count
        self._sorted_ids: dict[tuple[int, int], list[_Run]] = {}  # longer ones first
        self._changed: set[tuple[int, int]] = set()
        self._added: dict[tuple[int, int], list[_Run]] = {}  # since the last commit, as they came
        self._gone: list[bytes] = []
        self._secrets: dict[tuple[int, int], _Secrets] = {}  # uint64[key groups, 2]

    def secrets(self, number: int, bucket: int, keys: pa.Array) -> _Secrets:
        """See SeenIds.secrets."""
        secrets: _Secrets = self._secrets_of(number, bucket)[key_groups(keys, self._groups_count)]
        return secrets

    def contains(self, number: int, bucket: int, ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """See SeenIds.contains."""
        seen = np.zeros(ids.shape[1], bool)
        for ids_seen, _ in self._sorted_ids.get((number, bucket), ()):
            seen |= duplicates.are_among(ids, ids_seen)
        return seen

    def add(self, number: int, bucket: int, ids: NDArray[np.uint64], keys: pa.Array) -> None:
        """See SeenIds.add."""
        groups = key_groups(keys, self._groups_count)
        self._hold(number, bucket, ids, groups)
        self._changed.add((number, bucket))
        self._added.setdefault((number, bucket), []).append((ids, groups))

    def forget(self, oldest: int) -> None:
        """See SeenIds.forget."""
        for number, bucket in [at for at in self._sorted_ids if at[1] < oldest]:
            groups = np.unique(np.concatenate([groups for _, groups in self._sorted_ids.pop((number, bucket))]))
            self._gone += [self._key(group, number, bucket) for group in groups.tolist()]
            self._changed.discard((number, bucket))
        self._secrets = {at: drawn for at, drawn in self._secrets.items() if at[1] >= oldest}

    def save_changes(self, batch: WriteBatch, item: bytes) -> int:
        """Add what has changed since the last commit; returns how many bytes that is."""
        bytes_count = 0
        for (number, bucket), added in sorted(self._added.items()):
            value = _added_bytes(self._secrets_of(number, bucket), added)
            name = self._names[number]
            batch.put(store_key(STORE_GROUP, b"", ADDED_SEEN, name, item + BUCKET.pack(bucket)), value)
            bytes_count += len(value)
        self._added.clear()
        return bytes_count

    def save_whole(self, batch: WriteBatch) -> None:
        """Add all that has changed since the last time, by key group; what commits have added is then of no use."""
        for number, bucket in sorted(self._changed):
            drawn = self._secrets_of(number, bucket)
            for group, ids in _by_group(self._whole(number, bucket)):
                batch.put(self._key(group, number, bucket), duplicates.to_bytes(drawn[group], ids))
        self._changed.clear()
        self._added.clear()
        for key in self._gone:
            batch.delete(key)
        self._gone.clear()

    def of_group(self, group: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield (number of the domain, bucket, hashes as stored) of a key group."""
        for number, bucket in sorted(self._sorted_ids):
            ids, groups = self._whole(number, bucket)
            is_of_group = groups == group
            if is_of_group.any():
                yield number, bucket, duplicates.to_bytes(self._secrets_of(number, bucket)[group], ids[:, is_of_group])

    def hold(self, group: int, number: int, bucket: int, data: bytes) -> None:
        """Add the ids that another runner has seen of a key group."""
        self._secrets_of(number, bucket)[group], ids = duplicates.from_bytes(data)
        self._hold(number, bucket, ids, np.full(ids.shape[1], group, np.int32))
        self._changed.add((number, bucket))

    def restore(self, store: KeyedStore, groups: range) -> None:
        """Take over what the store has of these key groups. Raises: StateFormatError."""
        numbers = {name: number for number, name in enumerate(self._names)}
        for group, earlier in [*((group, EARLIER_SEEN) for group in groups), (STORE_GROUP, _EARLIER_ADDED)]:
            if any(True for _ in store.scan(prefix_range(group, b"", earlier))):
                duplicates.refuse_earlier_ids()
        for group in groups:
            for raw, data in store.scan(prefix_range(group, b"", SEEN)):
                at = split_key(raw)
                if at.name in numbers:  # or of another level
                    self.hold(group, numbers[at.name], BUCKET.unpack(at.item)[0], data)
        self._changed.clear()
        for number, name in enumerate(self._names):
            for raw, data in store.scan(prefix_range(STORE_GROUP, b"", ADDED_SEEN, name)):
                bucket = BUCKET.unpack(split_key(raw).item[-BUCKET.size :])[0]
                owners, drawn, ids, group_of = _added_from_bytes(data)
                of_share = (group_of >= groups.start) & (group_of < groups.stop)
                if of_share.any():
                    here = (owners >= groups.start) & (owners < groups.stop)
                    self._secrets_of(number, bucket)[owners[here]] = drawn[here]
                    self._hold(number, bucket, ids[:, of_share], group_of[of_share])
                    self._changed.add((number, bucket))

    def _secrets_of(self, number: int, bucket: int) -> _Secrets:
        """Return the secret of each key group, new ones for a new bucket: uint64[key groups, 2]."""
        if (number, bucket) not in self._secrets:
            self._secrets[number, bucket] = duplicates.new_secrets(self._groups_count)
        return self._secrets[number, bucket]

    def _hold(self, number: int, bucket: int, ids: NDArray[np.uint64], groups: NDArray[np.int32]) -> None:
        runs = self._sorted_ids.setdefault((number, bucket), [])
        order = np.argsort(ids[0])
        runs.append((ids[:, order], groups[order]))
        while len(runs) > 1 and 2 * len(runs[-1][1]) >= len(runs[-2][1]):
            later, earlier = runs.pop(), runs.pop()
            runs.append(_merged(earlier, later))

    def _whole(self, number: int, bucket: int) -> _Run:
        """Join all of a bucket into one run, which it is from now on."""
        runs = self._sorted_ids[number, bucket]
        while len(runs) > 1:
            later, earlier = runs.pop(), runs.pop()
            runs.append(_merged(earlier, later))
        return runs[0]

    def _key(self, group: int, number: int, bucket: int) -> bytes:
        return store_key(group, b"", SEEN, self._names[number], BUCKET.pack(bucket))


def _merged(some: _Run, others: _Run) -> _Run:
    """Two runs as one. Cost: a copy, and a search in the one for each of the others."""
    at = np.searchsorted(some[0][0], others[0][0])
    return np.insert(some[0], at, others[0], axis=1), np.insert(some[1], at, others[1])


def _by_group(run: _Run) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Yield the hashes of each key group that has any, sorted. Cost: a pass, by the counting sort of small integers."""
    ids, groups = run
    order = np.argsort(groups.astype(np.int16), kind="stable")
    distinct_groups, firsts = np.unique(groups[order], return_index=True)
    yield from zip(distinct_groups.tolist(), np.split(ids[:, order], firsts[1:], axis=1), strict=True)


def _added_bytes(drawn: _Secrets, added: Sequence[_Run]) -> bytes:
    """Encode what has been added to a bucket, with the secrets of its key groups."""
    ids, group_of = np.concatenate([part[0] for part in added], axis=1), np.concatenate([part[1] for part in added])
    owners = np.unique(group_of).astype(np.int64)
    parts = np.array([len(owners)], np.int64), owners, drawn[owners], ids, group_of
    return b"".join(part.tobytes() for part in parts)


def _added_from_bytes(data: bytes) -> tuple[NDArray[np.int64], _Secrets, NDArray[np.uint64], NDArray[np.int32]]:
    """Decode what `_added_bytes` made: key groups, their secrets, hashes, the key group of each."""
    count = int(np.frombuffer(data, np.int64, 1)[0])
    at = 8 + 24 * count
    ids_count = (len(data) - at) // (16 + 4)
    return (
        np.frombuffer(data, np.int64, count, 8),
        np.frombuffer(data, np.uint64, 2 * count, 8 + 8 * count).reshape(-1, 2),
        np.frombuffer(data, np.uint64, 2 * ids_count, at).reshape(2, -1),
        np.frombuffer(data, np.int32, ids_count, at + 16 * ids_count),
    )
