"""Events to key domains and key groups; their digests depend on every field, and not on cuts or null columns."""

from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cep.base.schema import Schema
from cep.base.text import utc_text
from cep.columnar.batch import TEXT
from cep.columnar.decode import (
    Decoded,
    concat_decoded,
    in_partition,
    key_groups,
    key_pages,
    route,
    split_by_group,
)
from cep.columnar.digests import CONTENT, KEYS, _salts, with_digests
from cep.kernels.arrange import HASH_PRIME
from cep.kernels.groups import add_numbers
from tests.columnar.common import ONE, TWO, decode, key_hashes, record

CARDS = pa.array(["", "a", "card-1", "é", "x" * 40], TEXT)


def test_hashes_never_change() -> None:
    # Stored state is found by these hashes: other values would be a new state format.
    assert key_hashes(CARDS)[:3].tolist() == [17280346270528514342, 9413272369427828315, 3384115444967922803]
    assert key_groups(CARDS, 128).tolist() == [38, 91, 115, 59, 5]
    assert key_groups(CARDS, 1).tolist() == [0] * 5


def test_a_hash_does_not_depend_on_what_is_around() -> None:
    assert key_hashes(CARDS.slice(2, 1)).tolist() == key_hashes(pa.array(["card-1"], TEXT)).tolist()


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


DOMAINS = (("card_id",), ("retries",))
CHANGES: tuple[dict[str, object], ...] = (
    {"tx_id": "other"}, {"card_id": "other"}, {"retries": 3}, {"retries": None}, {"amount": "1.01"}, {"lat": 1.5},
    {"lat": None}, {"online": False}, {"status": "approved"}, {"took": 1}, {"event_time": "2026-03-01T00:00:00.001Z"},
    {"event_time": "2026-03-01T00:00:00.000001Z"},
)  # fmt: skip


SECRET = "5a" * 16
MASK = 2**64 - 1


def digests(decoded: Decoded, schema: Schema = TWO, key: str = SECRET) -> tuple[list[int], list[int]]:
    columns = with_digests(schema, DOMAINS, decoded, key).columns
    return columns[KEYS].to_pylist(), columns[CONTENT].to_pylist()


def test_any_field_changes_the_content_and_key_fields_the_keys() -> None:
    decoded = decode([record(), record(), *(record(**change) for change in CHANGES)])
    keys, content = digests(decoded, ONE)
    assert (keys[0], content[0]) == (keys[1], content[1])
    assert len(set(content)) == 1 + len(CHANGES)
    is_key = [bool({"card_id", "retries"} & change.keys()) for change in CHANGES]
    assert [key != keys[0] for key in keys[2:]] == is_key


def test_types_are_apart() -> None:
    records = [record(event_type="payment", tx_id="1"), record(event_type="login", login_id="1", device="d")]
    keys, content = digests(decode(records, TWO))
    assert len(set(keys)) == len(set(content)) == 2


def test_cuts_and_columns_without_values_change_nothing() -> None:
    random = Random("digests")
    records = [
        record(
            event_type="payment", tx_id=f"t{n}", card_id=f"c{n % 7}", amount=f"{random.random():.2f}",
            lat=random.choice([1.5, 2.5, None]), online=random.choice([True, None]),
            event_time=utc_text(1_770_000_000_000 + n),
        )
        for n in range(200)
    ]  # fmt: skip
    whole = decode(records, TWO)
    keys, content = digests(whole)
    assert len(set(content)) == 200
    parts = [whole._rows(np.arange(start, min(start + 33, 200))) for start in range(0, 200, 33)]
    parts_digests = [digests(part) for part in parts]
    assert [key for part in parts_digests for key in part[0]] == keys
    assert [digest for part in parts_digests for digest in part[1]] == content
    sliced = {name: column.slice(5, 100) for name, column in whole.columns.items()}
    part = Decoded(whole.event_id.slice(5, 100), whole.event_type[5:105], whole.time_ms[5:105], sliced, ())
    assert digests(part)[1] == content[5:105]
    more = {"zzz": pa.nulls(200, pa.int64()), **dict(reversed(list(whole.columns.items())))}
    assert digests(replace(whole, columns=more)) == (keys, content)
    assert digests(concat_decoded(TWO, parts)) == (keys, content)


def test_an_event_of_a_whole_millisecond_has_one_digest_in_any_batch() -> None:
    """Its batch has an order table if another event has microseconds, or if it comes from a second partition."""
    alone = decode([record()])
    beside = decode([record(), record(tx_id="other", event_time="2026-03-01T00:00:00.000001Z")])
    assert alone.order is None
    assert beside.order is not None
    expected = [column[0] for column in digests(alone, ONE)]
    assert [column[0] for column in digests(beside, ONE)] == expected
    assert [column[0] for column in digests(in_partition(alone, 1), ONE)] == expected


def number_of(digest: int, salt: int) -> int:
    """Return the number whose digest without a key this is."""
    for factor in (0xC4CEB9FE1A85EC53, 0xFF51AFD7ED558CCD):
        digest = (digest ^ digest >> 33) * pow(factor, -1, 2**64) & MASK
    number = ((digest ^ digest >> 33) ^ salt) * pow(int(HASH_PRIME), -1, 2**64) & MASK
    return number - 2**64 if number >> 63 else number


def test_a_sender_cannot_make_another_event_with_the_same_digest() -> None:
    """Without a key it takes one number: it makes up for the difference in all the other fields."""
    plain = decode([record(lat=1.5), record(lat=1.5, amount="9999.00")])

    def with_latitudes(numbers: list[int]) -> Decoded:
        column = pa.array(numbers, pa.int64()).view(pa.float64())
        return replace(plain, columns={**plain.columns, "lat": column})

    salt = int(_salts(("lat",), "")[0, 0])
    one = int(np.float64(1.5).view(np.int64))
    first, second = (digest & MASK for digest in digests(with_latitudes([one, one]), ONE, "")[1])
    own = np.zeros(1, np.uint64)
    add_numbers(np.array([one]), np.empty(0, np.uint8), 0, np.array([salt, 0, 0], np.uint64), own)
    forged = with_latitudes([one, number_of((first - second + int(own[0])) & MASK, salt)])
    content = digests(forged, ONE, "")[1]
    assert content[0] == content[1], "anybody can compute digests without a key"
    content = digests(forged, ONE, SECRET)[1]
    assert content[0] != content[1]
    assert content != digests(forged, ONE, "5b" * 16)[1]
