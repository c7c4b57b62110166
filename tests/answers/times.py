"""Times in every form as one instant, and the order of events of one time."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import pyarrow as pa

import cep
from cep.base.errors import UsageError
from cep.base.schema import Kind, Type
from cep.columnar.convert import Written, convert
from cep.columnar.mapping import mapping_of
from tests.answers import Row

TEN_O_CLOCK_MS = 1_772_359_200_000  # 2026-03-01T10:00:00Z


def time_ms(value: Any, arrow: pa.DataType | None = None, written: Written | None = None) -> int | None:
    """Read one value as a time. Return milliseconds since 1970, None if the value is set aside."""
    times: list[int | None] = convert(pa.array([value], arrow), Type(Kind.TIME), written).values.to_pylist()
    return times[0]


def read(value: Any, kind: Kind, arrow: pa.DataType | None = None, **type_: Any) -> Any:
    """Read one value as a type. Return None if the value is set aside."""
    return convert(pa.array([value], arrow), Type(kind, **type_)).values.to_pylist()[0]


def berlin(text: str) -> int | None:
    """Read a local time of Berlin."""
    return time_ms(text, None, Written(zone="Europe/Berlin"))


def is_refused(form: str) -> bool:
    """Return True if the form of times is refused before anything runs."""
    try:
        mapping_of(time=Written(form=form))
    except UsageError:
        return True
    return False


TEXTS = {
    "lower-case z": "2026-03-01T10:00:00z",
    "trailing blank": "2026-03-01T10:00:00Z ",
    "UTC in words": "2026-03-01 10:00:00 UTC",
    "RFC 9557": "2026-03-01T11:00:00+01:00[Europe/Berlin]",
    "RFC 9557 without an offset": "2026-03-01T11:00:00[Europe/Berlin]",
    "milliseconds as text with .0": "1772359200000.0",
}
ROWS = [
    Row("B", "ISO 8601 with an offset", TEN_O_CLOCK_MS, lambda: time_ms("2026-03-01T12:00:00+02:00")),
    Row("B", "epoch seconds as a number", TEN_O_CLOCK_MS, lambda: time_ms(1_772_359_200, None, Written(unit="s"))),
    *(Row("B", name, TEN_O_CLOCK_MS, partial(time_ms, text)) for name, text in TEXTS.items()),
    Row(
        "B", "%Z is obeyed", TEN_O_CLOCK_MS, lambda: time_ms("01.03.2026 06 EDT", None, Written(form="%d.%m.%Y %H %Z"))
    ),
    Row("B", "%f is read", TEN_O_CLOCK_MS + 5, lambda: time_ms("20260301 10.005", None, Written(form="%Y%m%d %H.%f"))),
    Row("B", "a form without a year is refused", True, lambda: is_refused("%d.%m. %H:%M")),
    Row("B", "few digits with --time-unit s", 99_999_999_000, lambda: time_ms("99999999", None, Written(unit="s"))),
    Row("B", "the year 1", -62_135_596_800_000, lambda: time_ms("0001-01-01T00:00:00Z")),
    Row("B", "the year 8999", 221_845_391_999_000, lambda: time_ms("8999-12-31T23:59:59Z")),
    Row("B", "milliseconds as a double", TEN_O_CLOCK_MS, lambda: time_ms(float(TEN_O_CLOCK_MS))),
    Row("B", "02:10 of Berlin, which clocks skip", 1_774_746_600_000, lambda: berlin("2026-03-29T02:10:00")),
    Row("B", "02:50 of Berlin, which clocks skip", 1_774_749_000_000, lambda: berlin("2026-03-29T02:50:00")),
    Row("B", "duration column in seconds", 7_200_000, lambda: read(7_200, Kind.DURATION, pa.duration("s"))),
    Row("B", "an int on a timestamp column", None, lambda: read(1, Kind.INT, pa.timestamp("ns"))),
    Row("C", "float32 money", 2_415, lambda: read(24.15, Kind.DECIMAL, pa.float32(), scale=2)),
    *(
        Row("D", f"{number} is no bool", None, partial(read, number, Kind.BOOL))
        for number in (math.inf, 5.0, -1, 2, 255)
    ),
    Row("D", "NaN is no bool", None, lambda: read(math.nan, Kind.BOOL, pa.float64())),
    Row("D", "42.0 for an int", 42, lambda: read("42.0", Kind.INT)),
    Row("D", "1,200.50 is no number without its form", None, lambda: read("1,200.50", Kind.DECIMAL, scale=2)),
    Row("D", "an upper-case symbol", 0, lambda: read("APPROVED", Kind.ENUM, symbols=("approved",))),
    Row("D", "an id that NaN turned into a float", "1001", lambda: read(1001.0, Kind.ID)),
]


EVENT = """
event t {{ tx_id id  event_time time  card_id string  kind string  number int?  {clause} }}
pattern p by card_id {{ seq a -> b within 1 h where a: t kind == "a"  b: t kind == "b" }}
"""
START = pd.Timestamp("2026-03-01T10:00:00Z")


def alerts(kinds_and_ids: Sequence[str], us: int, clause: str = "", numbers: Sequence[int] = (0, 0)) -> int:
    """Return how many alerts events of kinds `a` and `b`, so many microseconds apart, give."""
    rows = {
        "tx_id": kinds_and_ids,
        "event_time": [START + pd.Timedelta(microseconds=us * row) for row in range(len(kinds_and_ids))],
        "card_id": ["c"] * len(kinds_and_ids),
        "kind": ["a", "b"],
        "number": numbers,
    }
    return int(cep.parse(EVENT.format(clause=clause)).match(pd.DataFrame(rows)).table.num_rows)


ROWS += [
    Row("B3", "100 µs apart, ids against the order", 1, lambda: alerts(["f00", "a00"], 100)),
    Row("B3", "100 µs apart, ids in the order", 1, lambda: alerts(["a00", "f00"], 100)),
    Row("B3", "one time, ids against the order of arrival", 1, lambda: alerts(["f00", "a00"], 0)),
    Row("B3", "one time, a declared field", 1, lambda: alerts(["f00", "a00"], 0, "order by number", (1, 2))),
    Row("B3", "one time, a declared field against ids", 0, lambda: alerts(["a", "f"], 0, "order by number", (2, 1))),
]
