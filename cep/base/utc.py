"""Times in their one spelling, ISO 8601 in UTC with milliseconds ⇄ milliseconds since 1970.

Tested by: tests/model/test_rule.py
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_TIME_MS_LAST = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z, the last that datetime can write


def utc_ms(text: str) -> int:
    """Convert an ISO 8601 time with an offset to milliseconds UTC.

    Raises: ValueError with a sentence for the author.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(f"{text!r} is not a time with an offset such as 2026-01-31T00:00:00Z")
    # Integer arithmetic: a float of seconds would be off by a millisecond for some times.
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    time_ms = (delta.days * 86_400 + delta.seconds) * 1_000 + delta.microseconds // 1_000
    if not 0 <= time_ms <= _TIME_MS_LAST:
        raise ValueError(f"{text!r} is outside the years 1970 to 9999 (UTC)")
    return time_ms


def utc_text(time_ms: int) -> str:
    """Write a time in its one spelling: 2026-01-31T00:00:00.000Z. Inverse of `utc_ms`."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
