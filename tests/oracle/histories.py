"""Histories by their definition: for every event, walk all past events of the key again.

`approx_distinct` counts exactly, as it does up to its limit.

Tested by: tests/oracle/test_oracle.py
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Protocol
from zoneinfo import ZoneInfo

from cep.base.schema import Kind
from cep.lang.ir import Const, History, HistoryWindow
from tests.oracle.expressions import Value, average, bounded, evaluate

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PANES = 64


class Event(Protocol):
    """One event of a key."""

    @property
    def type(self) -> str: ...
    @property
    def time_ms(self) -> int: ...
    @property
    def fields(self) -> Mapping[str, Value]: ...


def values_at(histories: Iterable[History], past: Sequence[Event]) -> dict[str, Value]:
    """Return the value of each history at the last of the events of a key, by the history's repr."""
    return {repr(history): value_at(history, past) for history in histories}


def value_at(history: History, past: Sequence[Event]) -> Value:
    """Return the value at the last of the events."""
    now = past[-1]
    if any(now.fields.get(name) is None for name in history.by):
        chosen = []
    else:
        chosen = [e for e in past if all(e.fields.get(n) == now.fields[n] for n in history.by)]
    if history.fn == "first_seen":
        return now.time_ms - chosen[0].time_ms if chosen else None
    is_inside = in_panes if history.fn.startswith("approx_") else in_window
    chosen = [e for e in chosen if e.type == history.event_type and is_inside(history.window, e, now)]
    if history.where is not None:
        chosen = [e for e in chosen if evaluate(history.where, e.fields, {}) is True]
    if history.fn == "exists":
        return bool(chosen)
    if history.fn in ("first", "last"):
        assert history.argument is not None
        one = 0 if history.fn == "first" else -1
        return evaluate(history.argument, chosen[one].fields, {}) if chosen else None
    if history.argument is None:
        return len(chosen)
    values = [evaluate(history.argument, e.fields, {}) for e in chosen]
    return _aggregate(history, [v for v in values if v is not None])


def in_window(window: HistoryWindow | None, event: Event, now: Event) -> bool:
    """Return True if the event, which is not later, is in the window of the one under test."""
    if window is None:
        return event is not now
    if window.previous and event is now:
        return False
    if window.calendar is not None:
        return event.time_ms >= _unit_start_ms(window, now.time_ms)
    assert isinstance(window.ms, int)
    return event.time_ms > now.time_ms - window.ms


def in_panes(window: HistoryWindow | None, event: Event, now: Event) -> bool:
    """Return True if the event is in the window after its far edge is rounded outwards to a pane or calendar unit."""
    assert window is not None
    if window.calendar is not None:
        return in_window(window, event, now)
    assert isinstance(window.ms, int)
    pane_ms = math.ceil(Fraction(window.ms, PANES))
    oldest_ms = now.time_ms - window.ms + 1
    return not (window.previous and event is now) and event.time_ms >= oldest_ms - oldest_ms % pane_ms


def bucket_middle(number: float, units: int | None) -> float:
    """Return the value of a bucket, 50 buckets an octave; `units` is 1 for a whole number, None for a float."""
    if number == 0:
        return 0.0
    octave = math.frexp(abs(number))[1] - 1
    width = Fraction(2) ** octave / 50
    least = Fraction(2) ** octave + (Fraction(abs(number)) - Fraction(2) ** octave) // width * width
    middle = least + width / 2
    if units is not None:
        middle = Fraction(math.ceil(least) + math.ceil(least + width) - 1, 2 * units)
    return math.copysign(float(middle), number)


def _unit_start_ms(window: HistoryWindow, time_ms: int) -> int:
    local = (_EPOCH + timedelta(milliseconds=time_ms)).astimezone(ZoneInfo(window.zone))
    if window.calendar == "hour":
        return time_ms - (local.minute * 60 + local.second) * 1000 - local.microsecond // 1000
    day = local.date()
    if window.calendar == "week":
        day -= timedelta(days=day.weekday())
    elif window.calendar == "month":
        day = day.replace(day=1)
    elif window.calendar == "year":
        day = day.replace(month=1, day=1)
    midnight = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(window.zone))
    return (midnight - _EPOCH) // timedelta(milliseconds=1)


def _aggregate(history: History, values: Sequence[Value]) -> Value:
    assert history.argument is not None
    if history.fn == "count":
        return len(values)
    if history.fn in ("distinct", "approx_distinct"):
        return len(set(values))
    kind = history.argument.type
    numbers = [v for v in values if isinstance(v, int | float)]
    total = math.fsum(numbers) if kind.is_float else sum(numbers)
    if history.fn == "sum":
        return bounded(total)
    if not numbers:
        return None
    if history.fn in ("min", "max"):
        return min(numbers) if history.fn == "min" else max(numbers)
    units = 10**kind.scale if kind.kind is Kind.DECIMAL else 1
    if history.fn == "avg":
        return average(numbers, units)
    if history.fn in ("median", "percentile", "approx_percentile"):
        percent = history.percent.value if isinstance(history.percent, Const) else 50
        assert isinstance(percent, int)
        rank = max(math.ceil(Fraction(percent * len(numbers), 100)), 1)
        if history.fn == "approx_percentile":
            return bucket_middle(sorted(numbers)[rank - 1], None if kind.is_float else units)
        return sorted(numbers)[rank - 1] / units
    exact = [Fraction(n / units) for n in numbers]
    mean = sum(exact, Fraction(0)) / len(exact)
    return math.sqrt(sum(((x - mean) ** 2 for x in exact), Fraction(0)) / len(exact))
