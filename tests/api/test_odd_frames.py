"""Frames with odd columns and crafted texts: values, rejected records, or an error of cep that names the column."""

import random
import warnings
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import cep
from cep.api.alerts import spread
from cep.api.describe import describe
from cep.api.frames import present_types
from cep.base.schema import EventType, Schema
from tests.columnar.common import COUNT, assert_crafted_cost_what_others_do
from tests.seeds import seeds

# Frames with odd columns: each gives values, rejected records, or an error of cep that names the column.

ROWS = 4
EVENT = """event tx {
  i id  event_time time  card string  amount decimal(2)?  k enum(a, b)?  f float?  n int?  b bool?  d duration?
}
"""
RULES = f"{EVENT}pattern p by card {{ seq x -> y within 1 h  where x: tx amount > 1.00 or n > 0  y: tx b or k == a }}"
NAMES = ("i", "event_time", "card", "amount", "k", "f", "n", "b", "d")
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
MOMENTS = [MOMENT + timedelta(seconds=n) for n in range(ROWS)]


def texts(row: int) -> str:
    return ("a", "1", "2026-01-01T00:00:00Z", "")[row % 4]


def numbers(type_: pa.DataType) -> Callable[[], pa.Array]:
    return lambda: pa.array([0, 1, 2, None], pa.int64()).cast(type_)


def arrow(values: list[Any], type_: pa.DataType | None = None) -> Callable[[], pa.Array]:
    return lambda: pa.array(values, type_)


def cast(values: list[Any], type_: pa.DataType) -> Callable[[], pa.Array]:
    return lambda: pa.array(values).cast(type_)


TEXTS = [texts(row) for row in range(ROWS)]
# Each makes an Arrow column of ROWS rows.
ARROW: dict[str, Callable[[], pa.Array]] = {
    "null": lambda: pa.nulls(ROWS),
    "string": arrow(TEXTS),
    "large_string": arrow(TEXTS, pa.large_string()),
    "string_view": arrow(TEXTS, pa.string_view()),
    "binary": arrow([b"a", b"\xff", None, b""]),
    "large_binary": arrow([b"a", b"\xff", None, b""], pa.large_binary()),
    "binary_view": arrow([b"a", b"\xff", None, b""], pa.binary_view()),
    "fixed_binary": arrow([b"ab", b"\xff\xff", None, b"cd"], pa.binary(2)),
    "not utf-8": lambda: pa.array([b"a", b"\xff", b"b", b"c"], pa.binary()).view(pa.string()),
    **{str(t): numbers(t) for t in (
        pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float32(),
        pa.float64(),
    )},
    "float16": lambda: pa.array(np.array([0, 1, np.nan, np.inf], np.float16)),
    "float of all kinds": arrow([float("nan"), float("inf"), -0.0, 1e300]),
    "uint64 max": arrow([2**64 - 1, 0, 1, None], pa.uint64()),
    "bool": arrow([True, False, None, True]),
    "decimal128(5, 2)": arrow([Decimal("1.25"), None, Decimal("-1.00"), Decimal("0.00")], pa.decimal128(5, 2)),
    "decimal128(38, 38)": arrow([Decimal("0.5"), None, Decimal("0.25"), Decimal(0)], pa.decimal128(38, 38)),
    "decimal128 of a negative scale": arrow([Decimal("1E3"), None, Decimal("2E3"), Decimal(0)], pa.decimal128(5, -3)),
    "decimal256(76, 2)": arrow([Decimal("1.25"), None, Decimal(10) ** 60, Decimal(0)], pa.decimal256(76, 2)),
    "decimal256 of a negative scale": arrow([Decimal("1E9"), None, Decimal(0), Decimal("2E9")], pa.decimal256(70, -9)),
    "decimal256(76, 70)": arrow([Decimal("1.25"), None, Decimal(0), Decimal("2.5")], pa.decimal256(76, 70)),
    "decimal32": arrow([Decimal("1.25"), None, Decimal(0), Decimal("2.5")], pa.decimal32(5, 2)),
    "decimal64": arrow([Decimal("1.25"), None, Decimal(0), Decimal("2.5")], pa.decimal64(12, 2)),
    "decimal64 of another scale": arrow([Decimal("1.2"), None, Decimal(0), Decimal("2.5")], pa.decimal64(12, 4)),
    **{f"timestamp {unit}": arrow(MOMENTS, pa.timestamp(unit, "UTC")) for unit in ("s", "ms", "us", "ns")},
    "timestamp of a zone": arrow(MOMENTS, pa.timestamp("us", "Europe/Berlin")),
    "timestamp of an unknown zone": arrow(MOMENTS, pa.timestamp("us", "Mars/Olympus")),
    "naive timestamp": arrow([moment.replace(tzinfo=None) for moment in MOMENTS], pa.timestamp("us")),
    "far timestamp": lambda: pa.array([2**62, -(2**62), None, 0], pa.timestamp("s", "UTC")),
    "date32": arrow([date(2026, 1, 1)] * ROWS),
    "date64": arrow([date(2026, 1, 1)] * ROWS, pa.date64()),
    "time32": arrow([time(1, 2, 3)] * ROWS, pa.time32("s")),
    "time64": arrow([time(1, 2, 3)] * ROWS, pa.time64("us")),
    **{f"duration {unit}": arrow([timedelta(1)] * ROWS, pa.duration(unit)) for unit in ("s", "ms", "us", "ns")},
    "huge duration": arrow([2**62, -(2**62), None, 0], pa.duration("s")),
    "interval": arrow([(1, 2, 3)] * ROWS, pa.month_day_nano_interval()),
    "dictionary": lambda: pa.array(TEXTS).dictionary_encode(),
    "dictionary of large strings": lambda: pa.array(TEXTS, pa.large_string()).dictionary_encode(),
    "dictionary of numbers": lambda: pa.array([1, 2, None, 1]).dictionary_encode(),
    "dictionary of times": lambda: pa.array(MOMENTS, pa.timestamp("us", "UTC")).dictionary_encode(),
    "dictionary with a null": lambda: pa.DictionaryArray.from_arrays([0, 1, 0, 1], ["a", None]),
    "dictionary of decimals": lambda: pa.array([Decimal("1.5"), None, Decimal("2.5"), None]).dictionary_encode(),
    "run ends": lambda: pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), pa.array(["a", None])),
    "run ends of numbers": lambda: pa.RunEndEncodedArray.from_arrays([1, 4], [1, 2]),
    "run ends of a dictionary": lambda: pa.RunEndEncodedArray.from_arrays(
        [1, 4], pa.array(["a", "b"]).dictionary_encode()
    ),
    "list": arrow([[1], [], None, [2, 3]]),
    "large_list": arrow([[1], [], None, [2, 3]], pa.large_list(pa.int64())),
    "list_view": arrow([[1], [], None, [2, 3]], pa.list_view(pa.int64())),
    "fixed_list": arrow([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int64(), 2)),
    "struct": arrow([{"x": 1}, None, {"x": 2}, {"x": None}]),
    "struct of nothing": arrow([{}, {}, None, {}], pa.struct([])),
    "map": arrow([[("x", 1)], [], None, []], pa.map_(pa.string(), pa.int64())),
    "dense union": lambda: pa.UnionArray.from_dense(
        pa.array([0, 1, 0, 1], pa.int8()), pa.array([0, 0, 1, 1], pa.int32()), [pa.array(["a", "b"]), pa.array([1, 2])]
    ),
    "sparse union": lambda: pa.UnionArray.from_sparse(
        pa.array([0, 1, 0, 1], pa.int8()), [pa.array(TEXTS), pa.array([1, 2, 3, 4])]
    ),
    "uuid": lambda: pa.array([b"0123456789abcdef"] * ROWS, pa.uuid()),
    "json": lambda: pa.array(['{"a": 1}'] * ROWS, pa.json_()),
    "bool8": lambda: pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1, None, 1], pa.int8())),
    "opaque": lambda: pa.ExtensionArray.from_storage(pa.opaque(pa.int64(), "x", "y"), pa.array([1, 2, 3, 4])),
}  # fmt: skip
PANDAS: dict[str, Callable[[], Any]] = {
    "object of mixed kinds": lambda: pd.Series(["a", 1, 2.5, None], dtype=object),
    "object of numbers and texts": lambda: pd.Series([1, "2", 3, "4"], dtype=object),
    "object of lists": lambda: pd.Series([[1], {"a": 1}, None, "x"], dtype=object),
    "object of objects": lambda: pd.Series([object(), object(), None, object()], dtype=object),
    "object of times": lambda: pd.Series([MOMENT, "2026-01-01", 5, None], dtype=object),
    "object of decimals": lambda: pd.Series([Decimal("1.5"), 2.5, Decimal("NaN"), None], dtype=object),
    "object of odd numbers and times": lambda: pd.Series(
        ["a", Decimal("NaN"), datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))), 5], dtype=object
    ),
    "object of large ints": lambda: pd.Series([2**70, 1, None, -(2**70)], dtype=object),
    "object of bytes": lambda: pd.Series([b"\xff", "a", b"b", None], dtype=object),
    "object of complex": lambda: pd.Series([1j, 2, 3, 4], dtype=object),
    "complex": lambda: pd.Series([1j, 2, 3, 4]),
    "categorical": lambda: pd.Series(["a", "b", None, "a"]).astype("category"),
    "categorical of numbers": lambda: pd.Series([1, 2, 1, 2]).astype("category"),
    "categorical of intervals": lambda: pd.Series(pd.cut([1, 2, 3, 4], 2)),
    "categorical of times": lambda: pd.Series(pd.to_datetime(MOMENTS)).astype("category"),
    "categorical of mixed kinds": lambda: pd.Series(["a", 1, "a", 1], dtype="category"),
    "period": lambda: pd.Series(pd.period_range("2026-01", periods=ROWS, freq="M")),
    "interval": lambda: pd.Series(pd.interval_range(0, ROWS)),
    "sparse": lambda: pd.Series(pd.arrays.SparseArray([0, 1, 0, 2])),
    "sparse text": lambda: pd.Series(pd.arrays.SparseArray(["a", "b", "a", "c"], fill_value="a")),
    "Int64": lambda: pd.Series([1, None, 2, 3], dtype="Int64"),
    "boolean": lambda: pd.Series([True, None, False, True], dtype="boolean"),
    "string": lambda: pd.Series(["a", None, "b", "c"], dtype="string"),
    "timedelta": lambda: pd.Series(pd.to_timedelta([1, 2, 3, None], "h")),
    "naive time": lambda: pd.Series(pd.date_range("2026-01-01", periods=ROWS)),
    "nested of Arrow": lambda: pd.Series([{"x": 1}] * ROWS, dtype=pd.ArrowDtype(pa.struct({"x": pa.int64()}))),
}  # fmt: skip
POLARS: dict[str, Callable[[], pl.Series]] = {
    "categorical": lambda: pl.Series(["a", "b", None, "a"], dtype=pl.Categorical),
    "enum": lambda: pl.Series(["a", "b", None, "a"], dtype=pl.Enum(["a", "b"])),
    "list": lambda: pl.Series([[1], [], None, [2]]),
    "array": lambda: pl.Series([[1, 2]] * ROWS, dtype=pl.Array(pl.Int64, 2)),
    "struct": lambda: pl.Series([{"x": 1}, None, {"x": 2}, {"x": 3}]),
    "object": lambda: pl.Series([object(), 1, "a", None], dtype=pl.Object),
    "int128": lambda: pl.Series([1, 2**100, None, 3], dtype=pl.Int128),
    "time": lambda: pl.Series([time(1)] * ROWS),
    "duration": lambda: pl.Series([timedelta(1)] * ROWS),
    "date": lambda: pl.Series([date(2026, 1, 1)] * ROWS),
    "null": lambda: pl.Series([None] * ROWS),
    "decimal": lambda: pl.Series([Decimal("1.5")] * ROWS, dtype=pl.Decimal(10, 4)),
    "binary": lambda: pl.Series([b"\xff"] * ROWS),
    "boolean": lambda: pl.Series([True, None, False, True]),
}
GOOD: dict[str, list[Any]] = {
    "i": [str(n) for n in range(ROWS)], "event_time": MOMENTS, "card": ["c"] * ROWS, "amount": [1.25, 2.5, None, 3.0],
    "k": ["a", "b", None, "a"], "f": [0.5] * ROWS, "n": [1] * ROWS, "b": [True] * ROWS, "d": [timedelta(1)] * ROWS,
    "label": [True, False, False, True],
}  # fmt: skip


def arrow_frame(odd: dict[str, str]) -> pa.Table:
    return pa.table({name: ARROW[odd[name]]() if name in odd else pa.array(GOOD[name]) for name in GOOD})


def pandas_frame(odd: dict[str, str]) -> pd.DataFrame:
    columns = {name: PANDAS[odd[name]]() if name in odd else pd.Series(GOOD[name]) for name in GOOD}
    return pd.DataFrame(columns)


def polars_frame(odd: dict[str, str]) -> pl.DataFrame:
    return pl.DataFrame({name: POLARS[odd[name]]() if name in odd else pl.Series(GOOD[name]) for name in GOOD})


KINDS: dict[str, tuple[Callable[[dict[str, str]], Any], dict[str, Any]]] = {
    "Arrow": (arrow_frame, ARROW),
    "pandas": (pandas_frame, PANDAS),
    "polars": (polars_frame, POLARS),
    "polars, lazy": (lambda odd: polars_frame(odd).lazy(), POLARS),
}
ROWS_COUNT = {"n": "count(tx over 1 h by card)"}
LABELS = {"i": ["0", "1"], "fraud": [True, False]}


def parsed() -> cep.Rules:
    return cep.parse(RULES)


CALLS: dict[str, Callable[[Any], Any]] = {
    "match": lambda frame: (alerts := parsed().match(frame, cores=1), repr(alerts), alerts.set_aside, alerts.frame),
    "match with a zone": lambda frame: parsed().match(frame, tz="Europe/Berlin", cores=1),
    "match with a unit": lambda frame: parsed().match(frame, time_unit="s", cores=1),
    "features": lambda frame: cep.features(frame, ROWS_COUNT, declare=EVENT),
    "describe": cep.describe,
    "why_not": lambda frame: repr(parsed().why_not("p", "c", frame)),
    "backtest": lambda frame: parsed().backtest(frame, "label", cores=1),
    "labels": lambda frame: parsed().backtest(arrow_frame({}), frame, cores=1),
}


def complaint(call: str, frame: Any) -> str:
    """Return the message of an error that is not an error of cep, or an empty text."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", cep.RejectedRecordsWarning)
        warnings.filterwarnings("ignore", ".*(events are fraud by|have the id of an earlier event)")  # about labels
        try:
            CALLS[call](frame)
        except cep.CepError as error:
            return "" if str(error) else "an error without a text"
        except Exception as error:  # noqa: BLE001 that is what the test looks for
            return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("calls_count", [1, pytest.param(len(CALLS), marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_each_odd_column_alone(kind: str, calls_count: int) -> None:
    make, columns = KINDS[kind]
    complaints: dict[str, str] = {}
    calls = list(CALLS)
    for number, odd in enumerate(columns):
        for place, name in enumerate(("event_time", "label", NAMES[number % len(NAMES)])):
            frame, first = make({name: odd}), number + place
            chosen = [calls[(first + each) % len(calls)] for each in range(calls_count)]
            complaints |= {f"{call}: {odd} as {name}": text for call in chosen if (text := complaint(call, frame))}
    assert complaints == {}


@pytest.mark.parametrize("seed", seeds(12, 2))
def test_random_odd_columns_together(seed: int) -> None:
    rng = random.Random(seed)
    complaints = {}
    for _ in range(15):
        kind, call = rng.choice(list(KINDS)), rng.choice(list(CALLS))
        make, columns = KINDS[kind]
        odd = {name: rng.choice(list(columns)) for name in rng.sample(list(GOOD), rng.randint(1, 4))}
        frame = make(odd)
        if kind == "pandas":
            frame = rng.choice(PANDAS_FRAMES)(frame)
        if kind == "Arrow" and rng.random() < 0.3:
            frame = frame.slice(0, rng.randint(0, 2))
        if text := complaint(call, frame):
            complaints[f"{call} of {kind}: {odd}"] = text
    assert complaints == {}


PANDAS_FRAMES: tuple[Callable[[pd.DataFrame], pd.DataFrame], ...] = (
    lambda frame: frame,
    lambda frame: frame.iloc[:0],
    lambda frame: frame.set_index(pd.Index([7] * len(frame), name="i")),
    lambda frame: frame.set_index(pd.MultiIndex.from_arrays([range(len(frame)), ["x"] * len(frame)])),
    lambda frame: frame.set_axis(pd.period_range("2026-01", periods=len(frame), freq="M"), axis=0),
    lambda frame: pd.concat([frame, frame[["card"]]], axis=1),
    lambda frame: frame.rename(columns={"label": 5}),
    lambda frame: frame.set_axis(pd.MultiIndex.from_arrays([frame.columns, ["x"] * len(frame.columns)]), axis=1),
)


@pytest.mark.parametrize("odd", range(len(PANDAS_FRAMES)))
def test_odd_names_and_indexes_of_pandas(odd: int) -> None:
    frame = PANDAS_FRAMES[odd](pandas_frame({}))
    assert {call: text for call in CALLS if (text := complaint(call, frame))} == {}


@pytest.mark.parametrize("kind", ["pandas", "Arrow"])
def test_a_second_column_of_a_name_is_named_by_its_place(kind: str) -> None:
    table = arrow_frame({}).append_column("card", pa.array(["d"] * ROWS))
    events = table
    if kind == "pandas":
        events = pd.concat([arrow_frame({}).to_pandas(), pd.DataFrame({"card": ["d"] * ROWS})], axis=1)
    assert parsed().match(events, cores=1).table["key"].unique().to_pylist() == ["c"]
    second = parsed().match(events, columns={"card": "card#2"}, cores=1)
    assert second.table["key"].unique().to_pylist() == ["d"]


SAME: dict[str, tuple[str, Callable[[], Any]]] = {
    "decimal256": ("amount", arrow([Decimal(n) for n in range(ROWS)], pa.decimal256(76, 30))),
    "decimal of a negative scale": ("amount", arrow([Decimal(1000), None, Decimal(2000), None], pa.decimal128(5, -3))),
    "run ends": ("card", lambda: pa.RunEndEncodedArray.from_arrays([4], ["c"])),
    "run ends of a dictionary": (
        "card", lambda: pa.RunEndEncodedArray.from_arrays([1, 4], pa.array(["d", "c"]).dictionary_encode())
    ),
    "float16": ("n", lambda: pa.array(np.array([0, 1, 2, 3], np.float16))),
    "JSON": ("card", lambda: pa.array(["c"] * ROWS, pa.json_())),
    "bool8": ("b", lambda: pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1, None, 1], pa.int8()))),
    "an unknown zone": ("event_time", arrow(MOMENTS, pa.timestamp("us", "Mars/Olympus"))),
}  # fmt: skip


@pytest.mark.parametrize("odd", SAME)
def test_an_odd_layout_has_the_same_values(odd: str) -> None:
    name, make = SAME[odd]
    plain: dict[str, Any] = {
        "decimal256": [0, 1, 2, 3], "decimal of a negative scale": [1000, None, 2000, None], "run ends": ["c"] * ROWS,
        "run ends of a dictionary": ["d", "c", "c", "c"], "float16": [0, 1, 2, 3], "JSON": ["c"] * ROWS,
        "bool8": [False, True, None, True], "an unknown zone": MOMENTS,
    }  # fmt: skip
    table = arrow_frame({})
    place = table.column_names.index(name)
    alerts, expected = (
        parsed().match(table.set_column(place, name, values), cores=1).table
        for values in (pa.chunked_array([make()]), pa.array(plain[odd]))
    )
    assert alerts.num_rows
    assert alerts.equals(expected)


def test_a_refusal_names_the_column_and_the_way_out() -> None:
    for odd, message in {
        "struct": r"the column `card` is struct<x: int64>, .* columns=.*\"card\.…\"}, or leave it out",
        "interval": "the column `card` is month_day_nano_interval, .* convert the column, or leave it out",
    }.items():
        with pytest.raises(cep.CepError, match=message):
            parsed().match(arrow_frame({"card": odd}))
    with pytest.raises(cep.CepError, match=r"the column `card` of type .* cannot be read: .*complex128"):
        parsed().match(pandas_frame({"card": "complex"}))
    with pytest.raises(cep.CepError, match="the column `card` of type Int128 cannot be read"):
        parsed().match(polars_frame({"card": "int128"}))


# Texts that collide in Arrow's own hash cost a notebook no more than other texts.


def draft(texts: pa.Array) -> str:
    times = pa.array(np.arange(len(texts)), pa.timestamp("ms", "UTC"))
    return describe(pa.table({"event_time": times, "tx_id": texts, "shop": texts})).text


def drawn(texts: pa.Array) -> str:
    return spread(pa.chunked_array([texts]), "testing", "shop")._chart.text


def types(texts: pa.Array) -> int:
    schema = Schema((EventType("payment", ()), EventType("login", ())))
    return len(present_types(schema, pa.table({"event_type": texts}), {}))


WAYS: dict[str, tuple[Callable[[pa.Array], object], Callable[[object], bool]]] = {
    "a draft": (draft, lambda text: "shop" in str(text) and "string" in str(text)),
    "a chart": (drawn, lambda text: f"{COUNT:,} values" in str(text)),
    "types of events": (types, lambda count: count == 0),
}


@pytest.mark.parametrize("way", WAYS)
def test_crafted_texts_cost_what_others_do(way: str) -> None:
    use, is_right = WAYS[way]

    def check(texts: pa.Array) -> None:
        assert is_right(use(texts))

    assert_crafted_cost_what_others_do(check)
