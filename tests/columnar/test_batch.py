"""Columns, the 64-bit slots that kernels read, and EventBatch to bytes and back; damaged bytes are refused."""

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import StateCorruptError, StateFormatError
from cep.base.schema import Kind, Type
from cep.columnar import batch as batches
from cep.columnar.decode import route, slice_batch
from tests.columnar.common import ONE, TWO, decode, record


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Kind.INT, [1, None, -(2**63), 2**63 - 1]),
        (Kind.FLOAT, [0.1, None, -0.0, 1e308]),
        (Kind.BOOL, [True, None, False]),
        (Kind.DECIMAL, [100, 0]),
        (Kind.TIME, []),
    ],
)
def test_slots_and_back(kind: Kind, values: list[Any]) -> None:
    type_ = Type(kind, nullable=True)
    column = pa.array(values, batches.arrow_type(type_))
    content, nulls = batches.slots(column)
    assert [content.dtype, nulls.dtype] == [np.dtype(np.int64), np.dtype(np.uint8)]
    assert nulls.tolist() == [v is None for v in values]
    assert not content[nulls.astype(bool)].any()
    assert batches.from_slots(content, nulls, type_).equals(column)


def test_slots_of_a_slice() -> None:
    column = pa.array([1, None, 3, None, 5], pa.int64()).slice(2, 3)
    assert [part.tolist() for part in batches.slots(column)] == [[3, 0, 5], [0, 1, 0]]


@pytest.mark.parametrize("texts", [[], ["a"], ["", "é", "long text"]])
def test_text_buffers_are_the_bytes(texts: list[str]) -> None:
    padded = pa.array(["skipped", *texts, "skipped"], batches.TEXT).slice(1, len(texts))
    offsets, data = batches.text_buffers(padded)
    pieces = [bytes(data[offsets[i] : offsets[i + 1]]).decode() for i in range(len(texts))]
    assert pieces == texts


def test_event_time_is_no_data_column() -> None:
    assert set(batches.data_columns(ONE)) == {f.name for f in ONE.event_types[0].fields} - {"event_time"}
    assert batches.data_columns(TWO)["device"].nullable


def test_take_by_position_and_by_mask() -> None:
    empty = batches.empty_batch(ONE)
    assert len(empty.take(np.zeros(0, bool))) == len(empty.take(np.zeros(0, np.int64))) == 0


def test_a_stored_batch_takes_the_columns_of_now() -> None:
    stored = batches.empty_batch(ONE).take(np.zeros(0, np.int64))
    now = batches.conformed(stored, TWO)
    assert now.columns.keys() == batches.data_columns(TWO).keys()
    assert batches.conformed(now, ONE).columns.keys() == batches.data_columns(ONE).keys()
    assert batches.conformed(stored, ONE) is stored
    one = batches.EventBatch(
        pa.array(["k"], batches.TEXT), pa.array(["e"], batches.TEXT), np.zeros(1, np.int16), np.zeros(1, np.int64),
        {"card_id": pa.array(["k"], batches.TEXT), "gone": pa.array([1])},
    )  # fmt: skip
    columns = batches.conformed(one, TWO).columns
    assert "gone" not in columns
    assert columns["card_id"].to_pylist() == ["k"]
    assert columns["device"].to_pylist() == [None]


def events(count: int) -> batches.EventBatch:
    """Return events with and without values in the columns that may be null."""
    rows = [record(tx_id=f"t{i}", card_id=f"c{i % 3}", lat=i if i % 2 else None, retries=i) for i in range(count)]
    return route(decode(rows), ("card_id",), ONE.columns())[0]


def same(one: batches.EventBatch, other: batches.EventBatch) -> bool:
    return (
        one.key.equals(other.key)
        and one.event_id.equals(other.event_id)
        and one.event_type.tolist() == other.event_type.tolist()
        and one.time_ms.tolist() == other.time_ms.tolist()
        and one.columns.keys() == other.columns.keys()
        and all(one.columns[name].equals(other.columns[name]) for name in one.columns)
    )


@given(st.integers(0, 9), st.integers(0, 9))
def test_a_batch_and_any_slice_of_it_come_back(start: int, end: int) -> None:
    part = slice_batch(events(9), min(start, end), max(start, end))
    assert same(batches.decode_batch(batches.encode_batch(part)), part)


def test_an_empty_batch_comes_back() -> None:
    assert same(batches.decode_batch(batches.encode_batch(batches.empty_batch(ONE))), batches.empty_batch(ONE))


def test_a_slice_carries_its_own_events_only() -> None:
    whole = events(2_000)
    assert len(batches.encode_batch(slice_batch(whole, 5, 6))) < len(batches.encode_batch(whole)) / 20


def test_parts_joined_are_the_whole() -> None:
    whole = events(9)
    assert same(
        batches.concat_batches([slice_batch(whole, 0, 4), slice_batch(whole, 4, 4), slice_batch(whole, 4, 9)]), whole
    )


@given(st.data())
def test_a_damaged_byte_is_noticed(data: st.DataObject) -> None:
    good = batches.encode_batch(events(3))
    position = data.draw(st.integers(0, len(good) - 1))
    broken = bytearray(good)
    broken[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises((StateCorruptError, StateFormatError)):
        batches.decode_batch(bytes(broken))


@pytest.mark.parametrize("length", [0, 3, 7, 100])
def test_cut_bytes_are_noticed(length: int) -> None:
    with pytest.raises(StateCorruptError):
        batches.decode_batch(batches.encode_batch(events(3))[:length])


def test_another_format_is_refused_by_name() -> None:
    good = bytearray(batches.encode_batch(events(3)))
    struct.pack_into("<B", good, 3, batches.FORMAT_VERSION + 1)
    with pytest.raises(
        StateFormatError, match=f"has format {batches.FORMAT_VERSION + 1}, this build reads {batches.FORMAT_VERSION}"
    ):
        batches.decode_batch(bytes(good))


def test_foreign_bytes_are_refused() -> None:
    with pytest.raises(StateCorruptError, match="not ours"):
        batches.decode_batch(b"PAR1" + bytes(100))
