"""Columns and the 64-bit slots that kernels read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cep.base.schema import Kind, Type
from cep.columnar.batch import (
    TEXT,
    EventBatch,
    arrow_type,
    conformed,
    data_columns,
    empty_batch,
    from_slots,
    slots,
    text_buffers,
)
from tests.columnar.common import ONE, TWO


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
    column = pa.array(values, arrow_type(type_))
    content, nulls = slots(column)
    assert [content.dtype, nulls.dtype] == [np.dtype(np.int64), np.dtype(np.uint8)]
    assert nulls.tolist() == [v is None for v in values]
    assert not content[nulls.astype(bool)].any()
    assert from_slots(content, nulls, type_).equals(column)


def test_slots_of_a_slice() -> None:
    column = pa.array([1, None, 3, None, 5], pa.int64()).slice(2, 3)
    assert [part.tolist() for part in slots(column)] == [[3, 0, 5], [0, 1, 0]]


@pytest.mark.parametrize("texts", [[], ["a"], ["", "é", "long text"]])
def test_text_buffers_are_the_bytes(texts: list[str]) -> None:
    padded = pa.array(["skipped", *texts, "skipped"], TEXT).slice(1, len(texts))
    offsets, data = text_buffers(padded)
    pieces = [bytes(data[offsets[i] : offsets[i + 1]]).decode() for i in range(len(texts))]
    assert pieces == texts


def test_event_time_is_no_data_column() -> None:
    assert set(data_columns(ONE)) == {f.name for f in ONE.event_types[0].fields} - {"event_time"}
    assert data_columns(TWO)["device"].nullable


def test_take_by_position_and_by_mask() -> None:
    empty = empty_batch(ONE)
    assert len(empty.take(np.zeros(0, bool))) == len(empty.take(np.zeros(0, np.int64))) == 0


def test_a_stored_batch_takes_the_columns_of_now() -> None:
    stored = empty_batch(ONE).take(np.zeros(0, np.int64))
    now = conformed(stored, TWO)
    assert now.columns.keys() == data_columns(TWO).keys()
    assert conformed(now, ONE).columns.keys() == data_columns(ONE).keys()
    assert conformed(stored, ONE) is stored
    one = EventBatch(
        pa.array(["k"], TEXT), pa.array(["e"], TEXT), np.zeros(1, np.int16), np.zeros(1, np.int64),
        {"card_id": pa.array(["k"], TEXT), "gone": pa.array([1])},
    )  # fmt: skip
    columns = conformed(one, TWO).columns
    assert "gone" not in columns
    assert columns["card_id"].to_pylist() == ["k"]
    assert columns["device"].to_pylist() == [None]
