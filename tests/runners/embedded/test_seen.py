"""Compare the ids that a share has seen with sets: known and stored ids, and how many a micro-batch moves."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import StateFormatError
from cep.columnar.batch import TEXT
from cep.columnar.route import key_groups
from cep.kernels.repeats import NEW, OTHER, SAME
from cep.runners.embedded.seen import ADDED_SEEN, SeenOfLevel
from cep.runners.handover.group_entries import EARLIER_SEEN
from cep.state.keys import STORE_GROUP, prefix_range, store_key
from cep.state.memory import MemoryStore
from cep.state.store import WriteBatch
from cep.step import duplicates

GROUPS = 8
NAMES = [b"account", b"card"]
KEYS = pa.array([f"k{number}" for number in range(30)], TEXT)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 3),
        st.lists(st.integers(0, 200), max_size=12),
        st.sampled_from(["", "commit", "whole", "restart", "forget"]),
    ),
    max_size=25,
)


def commit(level: SeenOfLevel, store: MemoryStore, number: int, *, whole: bool) -> None:
    batch = WriteBatch()
    if whole:
        level.save_whole(batch)
    else:
        level.save_changes(batch, number.to_bytes(8, "big") + b"\0\0")
    store.write(batch)


def _pairs(ids: list[int]) -> np.ndarray:
    """Return pairs; several have the same id."""
    return np.array([[id_ % 50 for id_ in ids], ids], np.uint64)


def test_ids_of_an_earlier_build_are_refused() -> None:
    earlier = [*((3, name) for name in EARLIER_SEEN), (STORE_GROUP, b"added-seen"), (STORE_GROUP, b"added-ids")]
    for group, namespace in earlier:
        store, batch = MemoryStore(), WriteBatch()
        batch.put(store_key(group, b"", namespace, NAMES[0], bytes(8)), bytes(8))
        store.write(batch)
        with pytest.raises(StateFormatError, match="without the content"):
            SeenOfLevel(NAMES, GROUPS).restore(store, range(GROUPS))


@given(STEPS)
def test_what_was_seen_is_known_and_found_again(steps: list[tuple[int, int, list[int], str]]) -> None:
    store, seen_ids = MemoryStore(), SeenOfLevel(NAMES, GROUPS)
    expected: dict[tuple[int, int], dict[int, tuple[int, str]]] = {}  # id → content, key
    groups = dict(zip(KEYS.to_pylist(), key_groups(KEYS, GROUPS).tolist(), strict=True))
    secrets: dict[tuple[int, int, int], list[int]] = {}
    oldest = 0
    for step_number, (number, drawn, ids, action) in enumerate(steps):
        bucket = max(drawn, oldest)  # a forgotten bucket is never queried
        bucket_ids = expected.setdefault((number, bucket), {})
        keys = KEYS.take(pa.array([id_ % 10 for id_ in ids], pa.int64()))  # events of one id have one key
        secrets_of_ids = seen_ids.secrets(number, bucket, keys).tolist()
        verdicts = []
        for id_, key, secret in zip(ids, keys.to_pylist(), secrets_of_ids, strict=True):
            is_new = id_ % 50 not in bucket_ids
            content, _ = bucket_ids.setdefault(id_ % 50, (id_, key))
            verdicts.append(NEW if is_new else SAME if content == id_ else OTHER)
            if is_new:
                assert secrets.setdefault((number, bucket, groups[key]), secret) == secret, "as long as there are ids"
        assert seen_ids.take(number, bucket, _pairs(ids), keys).tolist() == verdicts
        if action == "forget":
            oldest = bucket
            seen_ids.forget(oldest)
            expected = {bucket_key: ids_ for bucket_key, ids_ in expected.items() if bucket_key[1] >= oldest}
        if action in ("commit", "restart"):
            commit(seen_ids, store, step_number, whole=False)
        if action == "whole":
            store.delete_range(prefix_range(STORE_GROUP, b"", ADDED_SEEN))
            commit(seen_ids, store, step_number, whole=True)
        if action == "restart":
            seen_ids = SeenOfLevel(NAMES, GROUPS)
            seen_ids.restore(store, range(GROUPS))
            seen_ids.forget(oldest)  # as the next micro-batch does
    for group in range(GROUPS):
        stored_buckets = {
            (number, bucket): duplicates.from_bytes(data) for number, bucket, data in seen_ids.of_group(group)
        }
        own_pairs = {
            bucket_key: sorted([id_, content] for id_, (content, key) in ids_.items() if groups[key] == group)
            for bucket_key, ids_ in expected.items()
        }
        assert {bucket_key: pairs.T.tolist() for bucket_key, (_, pairs) in stored_buckets.items()} == {
            bucket_key: i for bucket_key, i in own_pairs.items() if i
        }
        assert all(secret.tolist() == secrets[*bucket_key, group] for bucket_key, (secret, _) in stored_buckets.items())
