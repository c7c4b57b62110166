"""Ids that a share has seen, against sets: what is known, what is stored, and how much of it a micro-batch moves."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import StateFormatError
from cep.columnar.batch import TEXT
from cep.columnar.route import key_groups
from cep.runners.embedded import seen as seen_module
from cep.runners.embedded.seen import ADDED_SEEN, SeenOfShare
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
        st.lists(st.integers(0, 200), max_size=12, unique=True),
        st.sampled_from(["", "commit", "whole", "restart", "forget"]),
    ),
    max_size=25,
)


def commit(seen: SeenOfShare, store: MemoryStore, number: int, *, whole: bool) -> None:
    batch = WriteBatch()
    if whole:
        seen.save_whole(batch)
    else:
        seen.save_changes(batch, number.to_bytes(8, "big") + b"\0\0")
    store.write(batch)


def _hashes(ids: list[int]) -> np.ndarray:
    """Hashes of which several have the same first half."""
    return np.array([[id_ % 50 for id_ in ids], ids], np.uint64)


def test_ids_of_an_earlier_build_are_refused() -> None:
    for group, namespace in ((3, EARLIER_SEEN), (STORE_GROUP, b"added-seen")):
        store, batch = MemoryStore(), WriteBatch()
        batch.put(store_key(group, b"", namespace, NAMES[0], bytes(8)), bytes(8))
        store.write(batch)
        with pytest.raises(StateFormatError, match="without a secret"):
            SeenOfShare(NAMES, GROUPS).restore(store, range(GROUPS))


@given(STEPS)
def test_what_was_seen_is_known_and_found_again(steps: list[tuple[int, int, list[int], str]]) -> None:
    store, seen = MemoryStore(), SeenOfShare(NAMES, GROUPS)
    expected: dict[tuple[int, int], dict[int, str]] = {}
    groups = dict(zip(KEYS.to_pylist(), key_groups(KEYS, GROUPS).tolist(), strict=True))
    secrets: dict[tuple[int, int, int], list[int]] = {}
    oldest = 0
    for at, (number, drawn, ids, what) in enumerate(steps):
        bucket = max(drawn, oldest)  # nobody asks for one that is forgotten
        known = expected.setdefault((number, bucket), {})
        assert seen.contains(number, bucket, _hashes(ids)).tolist() == [id_ in known for id_ in ids]
        new = [id_ for id_ in ids if id_ not in known]
        if new:
            keys = KEYS.take(pa.array([id_ % len(KEYS) for id_ in new]))
            own = seen.secrets(number, bucket, keys).tolist()
            for key, secret in zip(keys.to_pylist(), own, strict=True):
                assert secrets.setdefault((number, bucket, groups[key]), secret) == secret, "as long as there are ids"
            seen.add(number, bucket, _hashes(new), keys)
            known.update(zip(new, keys.to_pylist(), strict=True))
        if what == "forget":
            oldest = bucket
            seen.forget(oldest)
            expected = {of: ids_ for of, ids_ in expected.items() if of[1] >= oldest}
        if what in ("commit", "restart"):
            commit(seen, store, at, whole=False)
        if what == "whole":
            store.delete_range(prefix_range(STORE_GROUP, b"", ADDED_SEEN))
            commit(seen, store, at, whole=True)
        if what == "restart":
            seen = SeenOfShare(NAMES, GROUPS)
            seen.restore(store, range(GROUPS))
            seen.forget(oldest)  # as the next micro-batch does
    for group in range(GROUPS):
        told = {(number, bucket): duplicates.from_bytes(data) for number, bucket, data in seen.of_group(group)}
        own = {of: sorted(id_ for id_, key in ids.items() if groups[key] == group) for of, ids in expected.items()}
        assert {of: sorted(ids[1].tolist()) for of, (_, ids) in told.items()} == {of: i for of, i in own.items() if i}
        assert all(secret.tolist() == secrets[*of, group] for of, (secret, _) in told.items())


def test_a_micro_batch_moves_little_of_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty times each id, not all of them with every micro-batch."""
    moved, merged = 0, seen_module._merged

    def counting(some: seen_module._Run, others: seen_module._Run) -> seen_module._Run:
        nonlocal moved
        moved += len(some[1]) + len(others[1])
        return merged(some, others)

    monkeypatch.setattr(seen_module, "_merged", counting)
    seen, random = SeenOfShare(NAMES, GROUPS), np.random.default_rng(1)
    batches, size = 2_000, 50
    for _ in range(batches):
        hashes = random.integers(0, 2**63, (2, size)).astype(np.uint64)
        seen.add(0, 0, hashes, KEYS.take(pa.array(random.integers(0, len(KEYS), size))))
    assert moved < 20 * batches * size
    assert len(seen._sorted_ids[0, 0]) < 20
