"""Times → hour, weekday, date, and the start of calendar units, by the clock of a zone with its daylight saving.

The zone's clock is looked up once for each day that the times have.
Tested by: tests/nfa/test_functions.py, tests/histories/test_values.py
"""

from bisect import bisect_right
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np

from cep.base.limits import EVENT_TIME_MS_MAX, EVENT_TIME_MS_MIN, TIME_MS_MIN
from cep.kernels.layout import Int64
from cep.lang.ir import CalendarUnit, HistoryWindow

_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
_MS = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_WEEKDAY = 3  # a Thursday, counted from Monday as 0
# Python's calendar ends at the first event time in a zone west of UTC; no zone changed its clock that day.
_CLOCK_FIRST_MS = EVENT_TIME_MS_MIN + _DAY_MS


def of_times(fn: str, zone_name: str, times_ms: Int64) -> Int64:
    """hour, weekday or date of each time, by the clock of the zone."""
    zone = ZoneInfo(zone_name)
    local_ms = times_ms + _offsets_ms(zone, times_ms)
    if fn == "hour":
        return local_ms % _DAY_MS // _HOUR_MS
    days = local_ms // _DAY_MS
    if fn == "weekday":
        return (days + _EPOCH_WEEKDAY) % 7 + 1
    return _for_each_distinct(days, lambda day: _start_ms(zone, day * _DAY_MS))


def unit_starts(unit: CalendarUnit, zone_name: str, times_ms: Int64) -> Int64:
    """Return when the hour, day, week (from Monday), month or year of each time began in the zone. int64[N], ms UTC."""
    zone = ZoneInfo(zone_name)
    offsets_ms = _offsets_ms(zone, times_ms)
    local_ms = times_ms + offsets_ms
    if unit == "hour":
        starts_ms = times_ms - local_ms % _HOUR_MS
        changed = _offsets_ms(zone, starts_ms) < offsets_ms  # the clock skips a part of the hour
        hours = local_ms[changed] // _HOUR_MS
        starts_ms[changed] = _for_each_distinct(hours, lambda hour: _start_ms(zone, hour * _HOUR_MS))
        return starts_ms
    days = local_ms // _DAY_MS
    if unit == "week":
        days -= (days + _EPOCH_WEEKDAY) % 7
    elif unit in ("month", "year"):
        dates = days.astype("datetime64[D]")
        days = dates.astype(f"datetime64[{unit[0].upper()}]").astype("datetime64[D]").astype(np.int64)
    return _for_each_distinct(days, lambda day: _start_ms(zone, day * _DAY_MS))


def pane_starts(unit: CalendarUnit, zone_name: str, times_ms: Int64) -> Int64:
    """Return for each time the latest moment, at or before it, at which the unit that contains it begins.

    If the clock is put back, a unit may begin inside another one: an hour by half an hour, and a day whose first
    minutes come twice.
    """
    starts_ms = unit_starts(unit, zone_name, times_ms)
    for later_ms in (_HOUR_MS // 2, _HOUR_MS):
        begins = unit_starts(unit, zone_name, times_ms + later_ms)
        starts_ms = np.where(begins <= times_ms, np.maximum(starts_ms, begins), starts_ms)
    return starts_ms


def window_starts_ms(window: HistoryWindow | None, time_ms: Int64) -> Int64:
    """Return, for an event at each time, the start of its window: events after the start are in the window."""
    if window is None:
        return np.full(len(time_ms), TIME_MS_MIN, np.int64)
    if window.calendar is not None:
        return unit_starts(window.calendar, window.zone, time_ms) - 1
    assert isinstance(window.ms, int), "parameters are bound before compilation"
    return time_ms - window.ms


def _offsets_ms(zone: ZoneInfo, times_ms: Int64, span_ms: int = _DAY_MS) -> Int64:
    """Return how far the zone's clock is ahead of UTC at each time."""
    spans = times_ms // span_ms
    offsets = _for_each_distinct(spans, lambda span: _offset_ms(zone, span * span_ms))
    if span_ms == 1:
        return offsets
    ends = _for_each_distinct(spans, lambda span: _offset_ms(zone, span * span_ms + span_ms - 1))
    changed = offsets != ends  # within the day; then within an hour of UTC, as in zones with half hours
    if changed.any():
        offsets[changed] = _offsets_ms(zone, times_ms[changed], _HOUR_MS if span_ms == _DAY_MS else 1)
    return offsets


def _for_each_distinct(values: Int64, function: Callable[[int], int]) -> Int64:
    different, places = np.unique(values, return_inverse=True)
    results: Int64 = np.array([function(value) for value in different.tolist()], np.int64)[places.reshape(-1)]
    return results


def _offset_ms(zone: ZoneInfo, time_ms: int) -> int:
    moment = _EPOCH + timedelta(milliseconds=min(max(time_ms, _CLOCK_FIRST_MS), EVENT_TIME_MS_MAX))
    ahead = moment.astimezone(zone).utcoffset()
    assert ahead is not None, "a zone has an offset at every time"
    return ahead // _MS


def _start_ms(zone: ZoneInfo, local_ms: int) -> int:
    """Return a local time in UTC, the first if there are two; where the clock skips it, the moment of the change."""
    calendar_ms = min(max(local_ms, _CLOCK_FIRST_MS), EVENT_TIME_MS_MAX)
    local = (_EPOCH + timedelta(milliseconds=calendar_ms)).replace(tzinfo=zone)
    before_ms, after_ms = ((local.replace(fold=fold).utcoffset() or timedelta()) // _MS for fold in (0, 1))
    if after_ms <= before_ms:
        return local_ms - before_ms
    skipped = range(local_ms - after_ms, local_ms - before_ms)  # the clock changes in it or, mostly, at its end
    return skipped.start + bisect_right(skipped, before_ms, key=lambda ms: _offset_ms(zone, ms))
