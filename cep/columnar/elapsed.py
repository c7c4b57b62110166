"""Times as a number of units since a moment, such as hours since the first day of a simulation → moments.

Tested by: tests/columnar/test_times.py
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.limits import EVENT_TIME_MS_MAX, EVENT_TIME_MS_MIN
from cep.base.utc import utc_ms

UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


def moments_since(source: pa.Array, base: str, unit: str) -> pa.Array:
    """Convert numbers that count units since a base, such as seconds since 1980, to moments: timestamp("us", "UTC").

    `base` is a time as ISO 8601 with a zone; `unit` is from UNITS_US, "" for seconds. Values are numbers, or their
    texts, rounded to the nearest microsecond. A value that is not a number, or a moment outside of the range of event
    times, is null. Timestamps stay.
    """
    if pa.types.is_timestamp(source.type) or pa.types.is_date(source.type):
        return source
    if pa.types.is_string(source.type) or pa.types.is_large_string(source.type):
        bare = pc.utf8_trim_whitespace(source)
        is_number = pc.match_substring_regex(bare, r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")
        source = pc.if_else(is_number, bare, pa.scalar(None, bare.type))
    numbers = np.asarray(source.cast(pa.float64()).fill_null(np.nan))
    base_us = utc_ms(base) * 1_000
    with np.errstate(invalid="ignore", over="ignore"):
        moments = np.rint(numbers * UNITS_US[unit or "s"]) + base_us
        fits = (moments >= EVENT_TIME_MS_MIN * 1_000) & (moments <= EVENT_TIME_MS_MAX * 1_000)
    whole = np.where(fits, moments, 0).astype(np.int64)
    return pa.array(whole, mask=~fits).cast(pa.timestamp("us", tz="UTC"))
