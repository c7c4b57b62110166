"""Convert one column at a time: some values fit, others do not, and a bad value changes no other value."""

from __future__ import annotations

import decimal
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.schema import Kind, Type
from cep.columnar.convert import WIDE_DECIMAL, convert

AMOUNT = Type(Kind.DECIMAL, scale=2)
ENUM = Type(Kind.ENUM, symbols=("a", "1"))
INT64 = st.integers(-(2**63), 2**63 - 1)


class Found(NamedTuple):
    """Like `Converted`, with both masks."""

    values: pa.Array
    nulls: np.ndarray
    bad: np.ndarray
    reason: str


def given_as(values: list[Any], arrow: pa.DataType | None, type_: Type) -> Found:
    converted = convert(pa.array(values, arrow), type_)
    none = np.zeros(len(values), bool)
    nulls = none if converted.nulls is None else converted.nulls
    bad = none if converted.bad is None else converted.bad
    assert len(converted.values) == len(nulls) == len(bad) == len(values)
    assert nulls.tolist() == [v is None for v in values]
    reason = converted.reason(int(np.flatnonzero(bad)[0])) if bad.any() else ""
    return Found(converted.values, nulls, bad, reason)


@given(st.lists(st.integers(-(2**53) // 100, 2**53 // 100).map(lambda units: units / 100) | st.none()))
def test_a_double_of_cents_is_those_cents(values: list[float | None]) -> None:
    converted = given_as(values, pa.float64(), AMOUNT)
    assert not converted.bad.any()
    assert converted.values.to_pylist() == [None if v is None else round(v * 100) for v in values]


@given(st.integers(0, 9), st.lists(INT64))
def test_a_decimal_of_64_bits_of_units_is_exact(scale: int, units: list[int]) -> None:
    exact = [decimal.Decimal(u).scaleb(-scale) for u in units]
    as_text = [format(d, "f") for d in exact]
    for values, arrow in ((exact, pa.decimal128(38, scale)), (as_text, pa.string())):
        converted = given_as(values, arrow, Type(Kind.DECIMAL, scale=scale))
        assert not converted.bad.any()
        assert converted.values.to_pylist() == units


@given(st.lists(st.tuples(st.integers(-(10**12), 10**12), st.integers(1, 99))))
def test_digits_behind_the_last_are_no_noise(parts: list[tuple[int, int]]) -> None:
    values = [decimal.Decimal(units * 100 + rest).scaleb(-4) for units, rest in parts]
    for arrow in (pa.decimal128(38, 4), WIDE_DECIMAL):
        assert given_as(values, arrow, AMOUNT).bad.all()


def test_text_of_doubles_is_what_was_meant() -> None:
    converted = given_as(["251.20000000000002", "1.005", "7", None, "x", "0.30000000000000004"], pa.string(), AMOUNT)
    assert converted.values.to_pylist() == [25120, None, 700, None, None, 30]
    assert converted.bad.tolist() == [False, True, False, False, True, False]


@pytest.mark.parametrize("value", [0.005, 1.001, 10_000.005, 1e15, float("nan"), float("inf"), -float("inf")])
def test_a_double_that_is_no_number_of_cents_is_bad(value: float) -> None:
    converted = given_as([1.0, value, 2.5], pa.float64(), AMOUNT)
    assert converted.bad.tolist() == [False, True, False]
    assert converted.values.to_pylist() == [100, None, 250]


@given(st.lists(INT64 | st.none()))
def test_whole_numbers_survive_as_ids_and_integers(values: list[int | None]) -> None:
    texts = [None if v is None else str(v) for v in values]
    assert given_as(values, pa.int64(), Type(Kind.ID)).values.to_pylist() == texts
    assert given_as(texts, pa.string(), Type(Kind.INT)).values.to_pylist() == values
    assert given_as(values, pa.int64(), Type(Kind.DURATION)).values.to_pylist() == values


@given(st.lists(st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)), max_size=20), st.integers(-14, 14))  # noqa: DTZ001
def test_a_time_is_the_same_however_it_is_written(moments: list[datetime], zone_h: int) -> None:
    naive = [m.replace(microsecond=m.microsecond // 1000 * 1000) for m in moments]
    epoch = datetime(1970, 1, 1)  # noqa: DTZ001 compared with naive ones
    expected = [round((m - epoch).total_seconds() * 1000) for m in naive]
    hours = pa.timestamp("ms", tz=f"{zone_h:+03d}:00")
    for values, arrow in (
        (naive, pa.timestamp("us")),
        ([m.replace(tzinfo=UTC) for m in naive], hours),
        ([m.isoformat() for m in naive], pa.string()),
        ([m.isoformat(sep=" ") + "Z" for m in naive], pa.large_string()),
        (expected, pa.int64()),
    ):
        assert given_as(values, arrow, Type(Kind.TIME)).values.to_pylist() == expected


@pytest.mark.parametrize(
    ("values", "arrow", "type_", "expected"),
    [
        ([17.0, 17.5, None], pa.float64(), Type(Kind.ID), ["17", None, None]),
        ([17.0, 17.5], pa.float64(), Type(Kind.INT), [17, None]),
        (["1", "x", "2"], pa.string(), Type(Kind.INT), [1, None, 2]),
        ([2**64 - 1, 1], pa.uint64(), Type(Kind.INT), [None, 1]),
        (["1.5", "x"], pa.string(), Type(Kind.FLOAT), [1.5, None]),
        ([1.5, float("nan")], pa.float64(), Type(Kind.FLOAT), [1.5, None]),
        (["true", "maybe", "false"], pa.string(), Type(Kind.BOOL), [True, None, False]),
        (["a", "b", "x", None], pa.string(), Type(Kind.ENUM, symbols=("b", "a")), [1, 0, None, None]),
        ([date(2026, 3, 1)], pa.date32(), Type(Kind.TIME), [1_772_323_200_000]),
        ([datetime(2026, 3, 1)], pa.timestamp("s"), Type(Kind.TIME), [1_772_323_200_000]),  # noqa: DTZ001
        ([1.5], pa.float64(), Type(Kind.TIME), [1]),
        ([10**17, 5, -(10**14)], pa.int64(), Type(Kind.TIME), [None, 5, None]),
        (["1772323200000", "17", None], pa.string(), Type(Kind.TIME), [1_772_323_200_000, None, None]),
        ([7, -7], pa.int32(), AMOUNT, [700, -700]),
        ([True], pa.bool_(), AMOUNT, [None]),
        (["1.234", "1.20", "9" * 40], pa.string(), AMOUNT, [None, 120, None]),
        ([[1]], pa.list_(pa.int64()), Type(Kind.STRING), [None]),
        ([None, None], pa.null(), AMOUNT, [None, None]),
    ],
)  # fmt: skip
def test_what_fits_and_what_does_not(values: list[Any], arrow: pa.DataType, type_: Type, expected: list[Any]) -> None:
    converted = given_as(values, arrow, type_)
    assert converted.values.to_pylist() == expected
    assert converted.bad.tolist() == [e is None and v is not None for v, e in zip(values, expected, strict=True)]
    assert bool(converted.reason) == converted.bad.any()


def test_a_slice_is_converted_like_its_copy() -> None:
    column = pa.array([decimal.Decimal(i) / 4 for i in range(100)], pa.decimal128(10, 2))
    assert convert(column.slice(37, 20), AMOUNT).values.to_pylist() == [25 * i for i in range(37, 57)]


def test_there_is_one_zero() -> None:
    values = convert(pa.array([-0.0, 0.0, None]), Type(Kind.FLOAT, nullable=True)).values
    assert np.signbit(np.asarray(values.drop_null())).tolist() == [False, False]


@given(
    st.lists(st.none() | st.text("a1.-T:Z ", max_size=12)),
    st.sampled_from(
        (*(Type(kind) for kind in (Kind.STRING, Kind.INT, Kind.FLOAT, Kind.TIME, Kind.BOOL)), AMOUNT, ENUM)
    ),
)
def test_a_view_of_texts_is_those_texts(values: list[str | None], type_: Type) -> None:
    view, texts = (given_as(values, arrow, type_) for arrow in (pa.string_view(), pa.large_string()))
    assert view.values.equals(texts.values)
    assert (view.bad.tolist(), view.reason) == (texts.bad.tolist(), texts.reason)


@given(st.integers(-13_107_199, 13_107_199))
def test_float32_money_is_the_money_that_it_was(units: int) -> None:
    single = np.float32(units / 100)
    assert given_as([single], pa.float32(), AMOUNT).values.to_pylist() == [units]
    assert given_as([float(single)], pa.float64(), AMOUNT).values.to_pylist() == [units]  # Avro gives a float like this


@given(st.floats(-131_000, 131_000, width=32))
def test_a_float32_that_is_no_number_of_cents_is_bad(single: float) -> None:
    is_money = np.float32(round(single, 2)) == np.float32(single) or abs(single * 100 - round(single * 100)) < 1e-6
    assert given_as([single], pa.float32(), AMOUNT).bad.tolist() == [not is_money]
