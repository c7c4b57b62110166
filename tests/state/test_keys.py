"""Store keys sort like their parts, can be decoded, and a prefix of the parts is one range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import LimitError, StateCorruptError
from cep.base.limits import KEY_GROUPS_MAX
from cep.state.keys import ALL_KEYS, STORE_GROUP, StoreKey, group_range, prefix_range, split_key, store_key

# The bytes that need escapes come often.
PART = st.lists(st.sampled_from([0, 1, 2, 254, 255]) | st.integers(0, 255), max_size=5).map(bytes)
KEYS = st.builds(StoreKey, st.sampled_from([0, 1, 255, 256, KEY_GROUPS_MAX - 1, STORE_GROUP]), PART, PART, PART, PART)


@given(KEYS)
def test_the_parts_come_back(key: StoreKey) -> None:
    assert split_key(store_key(*key)) == key


@given(KEYS, KEYS)
def test_the_order_is_that_of_the_parts(one: StoreKey, other: StoreKey) -> None:
    assert (store_key(*one) < store_key(*other)) == (one < other)


@given(KEYS, KEYS, st.integers(1, 3))
def test_a_prefix_is_one_range(one: StoreKey, other: StoreKey, parts_count: int) -> None:
    within = prefix_range(one.key_group, *(one.key, one.namespace, one.name)[:parts_count])
    raw = store_key(*other)
    assert (within.begin <= raw < within.end) == (one[: 1 + parts_count] == other[: 1 + parts_count])


@given(KEYS, KEYS)
def test_a_key_group_is_one_range(one: StoreKey, other: StoreKey) -> None:
    within = group_range(one.key_group)
    raw = store_key(*other)
    assert (within.begin <= raw < within.end) == (one.key_group == other.key_group)
    assert ALL_KEYS.begin <= raw < ALL_KEYS.end


@given(KEYS, st.integers(0, 300), st.integers(1, 300))
def test_key_groups_from_to_are_one_range(key: StoreKey, first: int, count: int) -> None:
    within = group_range(first, first + count)
    assert (within.begin <= store_key(*key) < within.end) == (first <= key.key_group < first + count)


def test_what_is_no_store_key_is_refused() -> None:
    with pytest.raises(StateCorruptError, match="1 of 3 parts"):
        split_key(b"\x00\x07abc\x00\x01def")
    with pytest.raises(LimitError, match="store key"):
        store_key(0, b"k" * 5_000, b"", b"")
