"""Frames: the unit and the zone of a column, standard deviations, and speeds, through `Rules.match`."""

import warnings
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache, partial
from typing import Any

import pandas as pd
import pyarrow as pa

import cep
from tests.answers import Row

_TEN = datetime(2026, 3, 1, 10, tzinfo=UTC)
_NAIVE = datetime(2026, 3, 1, 10)  # noqa: DTZ001 the rows are about times without a zone
_MS = 1_772_359_200_000
_ASKED = ("UsageError", "the column `event_time` has times without a zone")


@cache
def rules(type_: str) -> cep.Rules:
    """Return a rule with an alert for each event that has a value of this type."""
    event = f"event e {{ i id  event_time time  c string  v {type_} }}"
    return cep.parse(f"{event} pattern p by c {{ seq a where a: e v is not null emit v = a.v }}")


def answer_of(
    type_: str = "int?", *, frame: Any = pa.table, how: dict[str, Any] | None = None, **columns: Any
) -> object:
    """Match a frame with these columns. Return times and values of the alerts, or the beginning of the error."""
    count = len(next(iter(columns.values())))
    rows: dict[str, Any] = {"i": list(map(str, range(count))), "event_time": [_TEN] * count, "c": ["c"] * count}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cep.RejectedRecordsWarning)
        try:
            alerts = rules(type_).match(frame({**rows, "v": [1] * count, **columns}), **(how or {}))
        except cep.CepError as error:
            return type(error).__name__, str(error).partition(";")[0]
    values = list(alerts.measures("p")["v"])
    return sorted(alerts.table["detected_at"].to_pylist()), [
        getattr(each, "as_py", lambda e=each: e)() for each in values
    ]


def times(column: Any, **how: Any) -> object:
    """Return the times that are read from a column of Arrow, or the beginning of the error."""
    answer: Any = answer_of(event_time=column, how=how)
    return answer if isinstance(answer[0], str) else answer[0]


def mixed(*, first_is_naive: bool) -> object:
    """Return the times of a pandas column with and without a zone, in New York."""
    moments = [pd.Timestamp(_NAIVE), pd.Timestamp(_TEN)]
    column = moments if first_is_naive else moments[::-1]
    answer: Any = answer_of(frame=pd.DataFrame, event_time=column, how={"tz": "America/New_York"})
    return answer[0]


def on_a_timestamp(type_: str, unit: str) -> object:
    """Return the value that a field of this type has from a timestamp column of this unit."""
    ticks = _MS * {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[unit] // 1_000
    answer: Any = answer_of(type_, v=pa.array([ticks], pa.timestamp(unit, "UTC")))
    return answer[1]


@cache
def _deviations() -> cep.Rules:
    event = "event e { i id  event_time time  c string  v float }"
    return cep.parse(
        f"{event} pattern p by c {{ seq a{{4}} where a: e emit s = stddev(a.v), h = stddev(e.v over 1 d) }}"
    )


def deviation(base: float, step: float) -> tuple[float, float]:
    """Return the deviation of four values in a loop and in a history, each rounded to six digits."""
    moments = pa.array([_MS + n for n in range(4)], pa.timestamp("ms", "UTC"))
    table = {"i": list("1234"), "event_time": moments, "c": ["c"] * 4, "v": [base + step * n for n in range(4)]}
    (row,) = _deviations().match(pa.table(table)).measures("p").to_pylist()
    return float(f"{row['s']:.6g}"), float(f"{row['h']:.6g}")


def constant_deviations() -> int:
    """Return how many of 286 constant amounts have a deviation other than 0, in a loop or in a history."""
    keys = [n for n in range(286) for _ in range(4)]
    moments = pa.array([_MS + n for n in range(len(keys))], pa.timestamp("ms", "UTC"))
    values = {"c": list(map(str, keys)), "v": [(n + 1) / 7 for n in keys]}
    alerts = _deviations().match(pa.table({"i": list(map(str, range(len(keys)))), "event_time": moments, **values}))
    rows = alerts.measures("p").to_pylist()
    assert len(rows) == 286
    return sum((row["s"], row["h"]) != (0.0, 0.0) for row in rows)


@cache
def _speed() -> cep.Rules:
    event = "event e { i id  event_time time  c string  lat float  lon float }"
    condition = "distance_km(a.lat, a.lon, lat, lon) > 900 * ((event_time - a.event_time) / 1 h)"
    return cep.parse(f"{event} pattern p by c {{ seq a -> b within 1 d where a: e b: e {condition} }}")


def too_fast(ms: int) -> int:
    """Return the alerts of two payments in Berlin and Munich, so many milliseconds apart."""
    moments = pa.array([_MS, _MS + ms], pa.timestamp("ms", "UTC"))
    places = {"lat": [52.52, 48.14], "lon": [13.4, 11.58]}
    return len(_speed().match(pa.table({"i": ["1", "2"], "event_time": moments, "c": ["c"] * 2, **places})))


_ZONED = [_TEN]
ROWS = [
    Row("B4", "a date32 without a zone", _ASKED, lambda: times(pa.array([20_000], pa.date32()))),
    Row("B4", "a date32 of Berlin", [datetime(2024, 10, 3, 22, tzinfo=UTC)],
        lambda: times(pa.array([20_000], pa.date32()), tz="Europe/Berlin")),
    Row("B6", "pandas Timedelta", ([_TEN], ["7200000 ms"]),
        lambda: answer_of("duration?", frame=pd.DataFrame, v=[pd.Timedelta("2h")])),
    Row("B6", "7200 in a duration in seconds", ([_TEN], ["7200000 ms"]),
        lambda: answer_of("duration?", v=pa.array([7_200], pa.duration("s")))),
    *(Row("B6", f"an int on a timestamp in {unit}", [], partial(on_a_timestamp, "int?", unit))
      for unit in ("s", "ms", "us", "ns")),
    *(Row("B6", f"a string on a timestamp in {unit}", ["2026-03-01 10:00:00.000000Z"],
          partial(on_a_timestamp, "string?", unit)) for unit in ("s", "ms", "us", "ns")),
    Row("B7", "times with and without a zone, the first without", [_TEN, datetime(2026, 3, 1, 15, tzinfo=UTC)],
        lambda: mixed(first_is_naive=True)),
    Row("B7", "times with and without a zone, the first with one", [_TEN, datetime(2026, 3, 1, 15, tzinfo=UTC)],
        lambda: mixed(first_is_naive=False)),
    Row("B7", "naive Arrow times with a time_unit", _ASKED,
        lambda: times(pa.array([_NAIVE], pa.timestamp("us")), time_unit="s")),
    Row("B7", "a date64 with a time_unit", _ASKED,
        lambda: times(pa.array([date(2026, 3, 1)], pa.date64()), time_unit="s")),
    Row("B7", "milliseconds as a double", _ZONED, lambda: times(pa.array([float(_MS)]))),
    Row("B7", "milliseconds as a decimal", _ZONED, lambda: times(pa.array([Decimal(_MS)], pa.decimal128(20, 2)))),
    Row("B7", "milliseconds as text with .0", _ZONED, lambda: times(pa.array([f"{_MS}.0"]))),
    Row("C2", "the deviation at base 1e6", (0.0111803,) * 2, lambda: deviation(1e6, 0.01)),
    Row("C2", "the deviation at base 1e10", (0.0111806,) * 2, lambda: deviation(1e10, 0.01)),
    Row("C2", "286 constant amounts have no deviation", 0, constant_deviations),
    Row("C3", "two cities in no time", 1, lambda: too_fast(0)),
    Row("C3", "two cities in a millisecond", 1, lambda: too_fast(1)),
    Row("C3", "two cities in an hour", 0, lambda: too_fast(3_600_000)),
]  # fmt: skip
