"""Events to key domains and key groups."""

from __future__ import annotations

from itertools import product

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cep.columnar.batch import TEXT
from cep.columnar.decode import key_groups, key_hashes, key_pages, route, split_by_group
from tests.columnar.common import ONE, TWO, decode, record

KEYS = pa.array(["", "a", "card-1", "é", "x" * 40], TEXT)


def test_hashes_never_change() -> None:
    # Stored state is found by these hashes: other values would be a new state format.
    assert key_hashes(KEYS)[:3].tolist() == [17280346270528514342, 9413272369427828315, 3384115444967922803]
    assert key_groups(KEYS, 128).tolist() == [38, 91, 115, 59, 5]
    assert key_groups(KEYS, 1).tolist() == [0] * 5


def test_a_hash_does_not_depend_on_what_is_around() -> None:
    assert key_hashes(KEYS.slice(2, 1)).tolist() == key_hashes(pa.array(["card-1"], TEXT)).tolist()


def test_keys_spread_over_groups_and_pages() -> None:
    keys = pa.array([f"C{i:06d}" for i in range(64_000)], TEXT)
    groups = np.bincount(key_groups(keys, 64), minlength=64)
    assert groups.min() > 850
    assert groups.max() < 1_150
    group_keys = keys.filter(pa.array(key_groups(keys, 64) == 7))
    assert np.bincount(key_pages(group_keys, 64, 4), minlength=4).min() > 200


def test_events_without_a_key_are_counted() -> None:
    login = b'{"event_type":"login","login_id":"l%d","event_time":0,"device":"d","card_id":%s}'
    rows = [record(event_type="payment"), login % (1, b'"c1"'), login % (2, b"null")]
    batch, without_key = route(decode(rows, TWO), ("card_id",), TWO.columns())
    assert without_key == 1
    assert batch.event_id.to_pylist() == ["t1", "l1"]
    assert batch.key.to_pylist() == ["c1", "c1"]


def test_a_key_of_several_fields_needs_all_of_them() -> None:
    login = b'{"event_type":"login","login_id":"l1","event_time":0,"device":"d","card_id":"c1"}'
    batch, without_key = route(decode([login, record(event_type="payment")], TWO), ("card_id", "device"), TWO.columns())
    assert without_key == 1
    assert batch.key.to_pylist() == ["c1\x1fd"]


def test_numbers_and_symbols_are_keys_too() -> None:
    decoded = decode([record(), record(status="approved", retries=7)])
    assert route(decoded, ("status",), ONE.columns())[0].key.to_pylist() == ["declined", "approved"]
    assert route(decoded, ("retries", "online"), ONE.columns())[0].key.to_pylist() == ["2\x1ftrue", "7\x1ftrue"]


@given(st.lists(st.text(alphabet="a\x1e\x1f01", max_size=3), min_size=1, max_size=4, unique=True))
def test_no_two_composite_keys_look_alike(texts: list[str]) -> None:
    pairs = list(product(texts, texts))
    decoded = decode([record(tx_id=one, card_id=other) for one, other in pairs])
    batch, _ = route(decoded, ("tx_id", "card_id"), ONE.columns())
    assert len(set(batch.key.to_pylist())) == len(pairs)


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(1, 16))
def test_groups_are_all_events_in_their_order(cards: list[int], groups_count: int) -> None:
    decoded = decode([record(tx_id=str(i), card_id=f"c{card}") for i, card in enumerate(cards)])
    batch, _ = route(decoded, ("card_id",), ONE.columns())
    groups = list(split_by_group(batch, groups_count))
    assert [group for group, _ in groups] == sorted({group for group, _ in groups})
    ids = []
    for group, share in groups:
        assert set(key_groups(share.key, groups_count).tolist()) == {group}
        group_ids = [int(i) for i in share.event_id.to_pylist()]
        assert group_ids == sorted(group_ids)
        ids += group_ids
    assert sorted(ids) == list(range(len(cards)))
