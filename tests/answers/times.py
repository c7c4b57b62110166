"""Times: every form that files and frames have, as one instant."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from cep.base.schema import Kind, Type
from cep.columnar.convert import Written, convert
from tests.answers import Row

TEN_O_CLOCK_MS = 1_772_359_200_000  # 2026-03-01T10:00:00Z


def time_ms(value: Any, arrow: pa.DataType | None = None, written: Written | None = None) -> int | None:
    """Read one value as a time. Return milliseconds since 1970, None if the value is set aside."""
    return convert(pa.array([value], arrow), Type(Kind.TIME), written).values.to_pylist()[0]


ROWS = [
    Row("B", "ISO 8601 with an offset", TEN_O_CLOCK_MS, lambda: time_ms("2026-03-01T12:00:00+02:00")),
    Row("B", "epoch seconds as a number", TEN_O_CLOCK_MS, lambda: time_ms(1_772_359_200, None, Written(unit="s"))),
]
