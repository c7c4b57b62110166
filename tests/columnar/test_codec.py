"""EventBatch to bytes and back; foreign and damaged bytes are refused by name."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import StateCorruptError, StateFormatError
from cep.columnar.batch import EventBatch, concat_batches, empty_batch
from cep.columnar.codec import FORMAT_VERSION, decode_batch, encode_batch
from cep.columnar.route import route, slice_batch
from tests.columnar.common import ONE, decode, record


def batch(count: int) -> EventBatch:
    """Return events with and without values in the columns that may be null."""
    rows = [record(tx_id=f"t{i}", card_id=f"c{i % 3}", lat=i if i % 2 else None, retries=i) for i in range(count)]
    return route(decode(rows), ("card_id",), ONE.columns())[0]


def same(one: EventBatch, other: EventBatch) -> bool:
    return (
        one.key.equals(other.key)
        and one.event_id.equals(other.event_id)
        and one.event_type.tolist() == other.event_type.tolist()
        and one.time_ms.tolist() == other.time_ms.tolist()
        and one.columns.keys() == other.columns.keys()
        and all(one.columns[name].equals(other.columns[name]) for name in one.columns)
    )


@pytest.mark.slow
@pytest.mark.always
@given(st.integers(0, 9), st.integers(0, 9))
def test_a_batch_and_any_slice_of_it_come_back(start: int, end: int) -> None:
    part = slice_batch(batch(9), min(start, end), max(start, end))
    assert same(decode_batch(encode_batch(part)), part)


def test_an_empty_batch_comes_back() -> None:
    assert same(decode_batch(encode_batch(empty_batch(ONE))), empty_batch(ONE))


def test_a_slice_carries_its_own_events_only() -> None:
    whole = batch(2_000)
    assert len(encode_batch(slice_batch(whole, 5, 6))) < len(encode_batch(whole)) / 20


def test_parts_joined_are_the_whole() -> None:
    whole = batch(9)
    assert same(concat_batches([slice_batch(whole, 0, 4), slice_batch(whole, 4, 4), slice_batch(whole, 4, 9)]), whole)


@given(st.data())
def test_a_damaged_byte_is_noticed(data: st.DataObject) -> None:
    good = encode_batch(batch(3))
    position = data.draw(st.integers(0, len(good) - 1))
    broken = bytearray(good)
    broken[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises((StateCorruptError, StateFormatError)):
        decode_batch(bytes(broken))


@pytest.mark.parametrize("length", [0, 3, 7, 100])
def test_cut_bytes_are_noticed(length: int) -> None:
    with pytest.raises(StateCorruptError):
        decode_batch(encode_batch(batch(3))[:length])


def test_another_format_is_refused_by_name() -> None:
    good = bytearray(encode_batch(batch(3)))
    struct.pack_into("<B", good, 3, FORMAT_VERSION + 1)
    with pytest.raises(StateFormatError, match=f"has format {FORMAT_VERSION + 1}, this build reads {FORMAT_VERSION}"):
        decode_batch(bytes(good))


def test_foreign_bytes_are_refused() -> None:
    with pytest.raises(StateCorruptError, match="not ours"):
        decode_batch(b"PAR1" + bytes(100))
