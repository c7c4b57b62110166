"""Ids of events that a level has seen: in memory in one table per bucket, in the store by key group.

    | key group | "" | "event-ids" | domain | bucket i64 |             →  secret, pairs (duplicates.py)
    | FFFF | "" | "added-event-ids" | domain | commit, share, bucket | →  secrets and pairs as below

    k int64, how many secrets | their key groups int64[k] | secrets uint64[k, 2] | pairs uint64[2, n]
    | key groups of the pairs int32[n]

A commit adds the pairs since the last one until `save_whole`: its cost follows the new ids, not all ids. A table has
its pairs in the order of arrival, so the new pairs are the last ones. All shares of a level have one object, so that a
small micro-batch need not be divided. It works for one thread at a time.
Tested by: tests/runners/embedded/test_stored_parts.py, tests/runners/embedded/test_engine.py
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from threading import Lock

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.columnar.batch import read_only
from cep.columnar.decode import key_groups
from cep.kernels.groups import NEW, fill_slots, judge_pairs
from cep.runners.handover.group_entries import BUCKET, EARLIER_SEEN, SEEN
from cep.state.store import STORE_GROUP, KeyedStore, WriteBatch, prefix_range, split_key, store_key
from cep.step import duplicates

ADDED_SEEN, _EARLIER_ADDED = b"added-event-ids", (b"added-ids", b"added-seen")
_Secrets = NDArray[np.uint64]
_CAPACITY_MIN = 64


class _Table:
    """The pairs (hashed event id, digest of its content) of a time bucket, their key groups, and slots to find them."""

    def __init__(self) -> None:
        self._pairs = np.empty((2, _CAPACITY_MIN), np.uint64)
        self._groups = np.empty(_CAPACITY_MIN, np.int32)
        self._slots = duplicates.empty_slots(_CAPACITY_MIN)
        self._count = 0
        self.saved_count = 0

    @property
    def pairs(self) -> NDArray[np.uint64]:
        return self._pairs[:, : self._count]

    @property
    def groups(self) -> NDArray[np.int32]:
        return self._groups[: self._count]

    @property
    def nbytes(self) -> int:
        return self._pairs.nbytes + self._groups.nbytes + self._slots.nbytes

    def take(self, pairs: NDArray[np.uint64], groups: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Add new pairs. Return for each NEW, SAME or OTHER: whether its id came before, with the same content."""
        self._make_room(self._count + len(groups))
        verdicts = np.empty(len(groups), np.uint8)
        first = self._count
        self._count = judge_pairs(read_only(pairs), self._pairs, first, self._slots, verdicts)
        if self._count - first == len(groups):
            self._groups[first : self._count] = groups
        else:
            self._groups[first : self._count] = groups[verdicts == NEW]
        return verdicts

    def _make_room(self, count: int) -> None:
        """Make arrays twice as large as they need be. Cost: a pair is moved once or twice in all."""
        if count <= len(self._groups):
            return
        before = self._count
        pairs, groups = np.empty((2, 2 * count), np.uint64), np.empty(2 * count, np.int32)
        pairs[:, :before], groups[:before] = self.pairs, self.groups
        self._pairs, self._groups, self._slots = pairs, groups, duplicates.empty_slots(2 * count)
        if before:
            fill_slots(self._pairs, before, self._slots)

    def by_group(self) -> Iterator[tuple[int, NDArray[np.uint64]]]:
        """Yield the pairs of each key group that has any, sorted by their ids."""
        if not self._count:
            return
        order = np.lexsort((self.pairs[0], self.groups))
        distinct_groups, firsts = np.unique(self.groups[order], return_index=True)
        yield from zip(distinct_groups.tolist(), np.split(self.pairs[:, order], firsts[1:], axis=1), strict=True)


class SeenOfLevel:
    """The ids of seen events, hashed, by key domain and time bucket. `names`: of the key domains, in store keys."""

    def __init__(self, names: Sequence[bytes], groups_count: int) -> None:
        self._domain_names = names
        self._groups_count = groups_count
        self._tables: defaultdict[tuple[int, int], _Table] = defaultdict(_Table)
        self._changed: set[tuple[int, int]] = set()
        self._dropped_keys: list[bytes] = []
        self._secrets: dict[tuple[int, int], _Secrets] = {}  # uint64[key groups, 2]
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """The bytes of all tables."""
        with self._lock:
            return sum(table.nbytes for table in self._tables.values())

    def secrets(self, domain_number: int, bucket: int, keys: pa.Array) -> _Secrets:
        """See SeenIds.secrets."""
        with self._lock:
            drawn = self._secrets_of(domain_number, bucket)
        secrets: _Secrets = drawn[key_groups(keys, self._groups_count)]
        return secrets

    def take(self, domain_number: int, bucket: int, ids: NDArray[np.uint64], keys: pa.Array) -> NDArray[np.uint8]:
        """See SeenIds.take."""
        groups = key_groups(keys, self._groups_count)
        with self._lock:
            self._changed.add((domain_number, bucket))
            return self._tables[domain_number, bucket].take(ids, groups)

    def forget(self, oldest: int) -> None:
        """See SeenIds.forget."""
        with self._lock:
            for domain_number, bucket in [table for table in self._tables if table[1] < oldest]:
                table = self._tables.pop((domain_number, bucket))
                groups = np.unique(table.groups[: table.saved_count])  # the others are in memory alone
                self._dropped_keys += [self._key(group, domain_number, bucket) for group in groups.tolist()]
                self._changed.discard((domain_number, bucket))
            self._secrets = {table: drawn for table, drawn in self._secrets.items() if table[1] >= oldest}

    def save_changes(self, batch: WriteBatch, suffix: bytes) -> int:
        """Add the hashed event ids since the last commit. `suffix` (commit, share) ends their keys. Return the size."""
        bytes_count = 0
        for (domain_number, bucket), table in sorted(self._tables.items(), key=lambda entry: entry[0]):
            first = table.saved_count  # the pairs after it are new
            if first == len(table.groups):
                continue
            # The secret of the hash is stored with the ids. A key group has one for each bucket (period of time).
            value = _encode_changes(
                self._secrets_of(domain_number, bucket), table.pairs[:, first:], table.groups[first:]
            )
            name = self._domain_names[domain_number]
            batch.put(store_key(STORE_GROUP, b"", ADDED_SEEN, name, suffix + BUCKET.pack(bucket)), value)
            bytes_count += len(value)
            table.saved_count = len(table.groups)
        return bytes_count

    def save_whole(self, batch: WriteBatch) -> None:
        """Add all changes since the last call, by key group; the entries of earlier commits are not needed any more."""
        for domain_number, bucket in sorted(self._changed):
            drawn, table = self._secrets_of(domain_number, bucket), self._tables[domain_number, bucket]
            for group, pairs in table.by_group():
                batch.put(self._key(group, domain_number, bucket), duplicates.to_bytes(drawn[group], pairs))
            table.saved_count = len(table.groups)
        self._changed.clear()
        for key in self._dropped_keys:
            batch.delete(key)
        self._dropped_keys.clear()

    def of_group(self, group: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield (number of the domain, bucket, pairs as stored) of a key group."""
        for domain_number, bucket in sorted(self._tables):
            table = self._tables[domain_number, bucket]
            pairs = table.pairs[:, table.groups == group]
            if pairs.shape[1]:
                secret = self._secrets_of(domain_number, bucket)[group]
                yield domain_number, bucket, duplicates.to_bytes(secret, pairs[:, np.argsort(pairs[0])])

    def add_saved(self, group: int, domain_number: int, bucket: int, data: bytes) -> None:
        """Add the ids that another runner has seen of a key group."""
        self._add_stored(group, domain_number, bucket, data)
        self._changed.add((domain_number, bucket))

    def restore(self, store: KeyedStore, groups: range) -> None:
        """Restore the event ids that were seen, as hashes, and the secrets of the hash. Raises: StateFormatError."""
        domain_numbers = {name: domain_number for domain_number, name in enumerate(self._domain_names)}
        earlier_entries = [(group, name) for group in groups for name in EARLIER_SEEN]
        for group, name in [*earlier_entries, *((STORE_GROUP, name) for name in _EARLIER_ADDED)]:
            if any(True for _ in store.scan(prefix_range(group, b"", name))):
                duplicates.refuse_earlier_ids()  # an earlier build wrote them in another form
        for group in groups:
            for raw, data in store.scan(prefix_range(group, b"", SEEN)):  # as of the last `save_whole`
                stored_key = split_key(raw)
                if stored_key.name in domain_numbers:  # other names: another level (order of rules)
                    self._add_stored(group, domain_numbers[stored_key.name], BUCKET.unpack(stored_key.item)[0], data)
        for domain_number, name in enumerate(self._domain_names):  # ids that commits have added since then
            for raw, data in store.scan(prefix_range(STORE_GROUP, b"", ADDED_SEEN, name)):
                bucket = BUCKET.unpack(split_key(raw).item[-BUCKET.size :])[0]  # a period of time, at the key's end
                secret_groups, secrets, pairs, pair_groups = _decode_changes(data)
                is_our_pair = (pair_groups >= groups.start) & (pair_groups < groups.stop)
                if is_our_pair.any():
                    is_our_secret = (secret_groups >= groups.start) & (secret_groups < groups.stop)
                    self._secrets_of(domain_number, bucket)[secret_groups[is_our_secret]] = secrets[is_our_secret]
                    self._add_pairs(domain_number, bucket, pairs[:, is_our_pair], pair_groups[is_our_pair])
                    self._changed.add((domain_number, bucket))
        for table in self._tables.values():
            table.saved_count = len(table.groups)  # the store has all of them

    def _secrets_of(self, domain_number: int, bucket: int) -> _Secrets:
        """Return the secret of each key group, new ones for a new bucket: uint64[key groups, 2]."""
        if (domain_number, bucket) not in self._secrets:
            self._secrets[domain_number, bucket] = duplicates.new_secrets(self._groups_count)
        return self._secrets[domain_number, bucket]

    def _add_stored(self, group: int, domain_number: int, bucket: int, data: bytes) -> None:
        self._secrets_of(domain_number, bucket)[group], pairs = duplicates.from_bytes(data)
        self._add_pairs(domain_number, bucket, pairs, np.full(pairs.shape[1], group, np.int32))

    def _add_pairs(self, domain_number: int, bucket: int, pairs: NDArray[np.uint64], groups: NDArray[np.int32]) -> None:
        self._tables[domain_number, bucket].take(np.ascontiguousarray(pairs), groups)

    def _key(self, group: int, domain_number: int, bucket: int) -> bytes:
        return store_key(group, b"", SEEN, self._domain_names[domain_number], BUCKET.pack(bucket))


def _encode_changes(drawn: _Secrets, pairs: NDArray[np.uint64], groups: NDArray[np.int32]) -> bytes:
    secret_groups = np.unique(groups).astype(np.int64)
    parts = np.array([len(secret_groups)], np.int64), secret_groups, drawn[secret_groups], pairs, groups
    return b"".join(part.tobytes() for part in parts)


def _decode_changes(data: bytes) -> tuple[NDArray[np.int64], _Secrets, NDArray[np.uint64], NDArray[np.int32]]:
    """Decode the bytes of `_encode_changes`: key groups, their secrets, pairs, the key group of each pair."""
    count = int(np.frombuffer(data, np.int64, 1)[0])
    begin = 8 + 24 * count
    ids_count = (len(data) - begin) // (16 + 4)
    return (
        np.frombuffer(data, np.int64, count, 8),
        np.frombuffer(data, np.uint64, 2 * count, 8 + 8 * count).reshape(-1, 2),
        np.frombuffer(data, np.uint64, 2 * ids_count, begin).reshape(2, -1),
        np.frombuffer(data, np.int32, ids_count, begin + 16 * ids_count),
    )
