"""Functions of one event's text or time → columns of the event table.

    lower(country) == "fr"      once for each different text that the batch has in the field
    hour(event_time, zone)      over the times, with the zone's clock looked up once for each day

Tested by: tests/nfa/test_functions.py
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.limits import EVENT_TIME_MS_MAX, EVENT_TIME_MS_MIN
from cep.columnar.batch import TEXT, slots
from cep.kernels.layout import Int64, UInt8
from cep.lang.ir import Call, Const, CurrentField, Expr
from cep.nfa.program import Program

_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
_MS = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_WEEKDAY = 3  # a Thursday, counted from Monday as 0
# Python's calendar ends where event times begin and a zone is behind UTC; no zone changed its clock that day.
_CLOCK_FIRST_MS = EVENT_TIME_MS_MIN + _DAY_MS

_TESTS: dict[str, Callable[[pa.Array, str], pa.Array]] = {
    "contains": pc.match_substring,
    "starts_with": pc.starts_with,
    "ends_with": pc.ends_with,
    "like": pc.match_like,
    "matches": pc.match_substring_regex,
}


def fill_computed(program: Program, texts: pa.Array, first_row: int, columns: Int64, nulls: UInt8) -> pa.Array:
    """Fill the computed columns of the new rows; returns the dictionary with the texts that they add.

    Cost: O(N) for each such column, and its function once for each different text of its source.
    """
    present: dict[int, Int64] = {}
    made: list[tuple[int, Int64, pa.Array]] = []
    for number, column in enumerate(program.columns):
        call, source = column.computed, column.source
        if call is None:
            continue
        nulls[number, first_row:] = nulls[source, first_row:]
        if not program.columns[source].type.is_text:
            columns[number, first_row:] = of_times(call, columns[source, first_row:])
            continue
        if source not in present:
            present[source] = _present(columns[source, first_row:], nulls[source, first_row:], len(texts))
        values = of_texts(call, texts.take(pa.array(present[source])))
        if column.type.is_text:
            made.append((number, present[source], values))
        else:
            _scatter(number, source, present[source], *slots(values), first_row, columns, nulls)
    if not made:
        return texts
    # The texts that are there differ from each other, so they keep their numbers.
    joined = pa.concat_arrays([texts, *(values for _, _, values in made)]).dictionary_encode()
    codes, at = np.asarray(joined.indices).astype(np.int64), len(texts)
    for number, numbers, values in made:
        own = codes[at : at + len(values)]
        source = program.columns[number].source
        _scatter(number, source, numbers, own, np.zeros(len(own), np.uint8), first_row, columns, nulls)
        at += len(values)
    return joined.dictionary


def _present(codes: Int64, nulls: UInt8, texts_count: int) -> Int64:
    """The numbers of the texts that the column has."""
    seen = np.zeros(texts_count, bool)
    seen[codes[nulls == 0]] = True
    return np.flatnonzero(seen)


def _scatter(
    number: int, source: int, present: Int64, values: Int64, flags: UInt8, first_row: int, columns: Int64,
    nulls: UInt8,
) -> None:  # fmt: skip
    """Write the value of each present text (null where flagged) to the rows that have it."""
    codes = columns[source, first_row:]
    table = np.zeros(int(present[-1]) + 1 if len(present) else 1, np.int64)
    # A row without text has number 0 whether that text is present or not.
    table[present] = values
    columns[number, first_row:] = table[codes]
    if flags.any():
        missing = np.zeros(len(table), np.uint8)
        missing[present] = flags
        nulls[number, first_row:] |= missing[codes]


# -------------------------------------------------------------------------------------------------------- text


def of_texts(expr: Expr, texts: pa.Array) -> pa.Array:
    """The function's value for each of the texts, none of which is null."""
    if isinstance(expr, CurrentField):
        return texts
    assert isinstance(expr, Call), "checked before"
    subject = of_texts(expr.arguments[0], texts)
    constants = [_constant(argument) for argument in expr.arguments[1:]]
    if expr.fn in ("lower", "upper"):
        return _cased(expr.fn, subject)
    if expr.fn == "length":
        return pc.utf8_length(subject)
    if expr.fn == "substring":
        start, *length = (int(c) for c in constants)
        return pc.utf8_slice_codeunits(subject, start - 1, start - 1 + length[0] if length else None)
    if expr.fn == "in_cidr":
        return _in_network(subject, str(constants[0]))
    return _TESTS[expr.fn](subject, str(constants[0]))


def _constant(expr: Expr) -> int | float | str:
    assert isinstance(expr, Const), "parameters are bound before compilation"
    assert expr.value is not None, "checked before"
    return expr.value


def _cased(fn: str, texts: pa.Array) -> pa.Array:
    """Unicode's full mapping, ß to SS; Arrow knows only mappings of one character to one."""
    if pc.all(pc.string_is_ascii(texts)).as_py() is not False:
        return pc.ascii_lower(texts) if fn == "lower" else pc.ascii_upper(texts)
    return pa.array([t.lower() if fn == "lower" else t.upper() for t in texts.to_pylist()], TEXT)


def _in_network(texts: pa.Array, network: str) -> pa.Array:
    """Null for what is no address."""
    wanted = ipaddress.ip_network(network)

    def lies_within(text: str) -> bool | None:
        try:
            return ipaddress.ip_address(text) in wanted
        except ValueError:
            return None

    return pa.array([lies_within(text) for text in texts.to_pylist()], pa.bool_())


# -------------------------------------------------------------------------------------------------------- time


def of_times(call: Call, times_ms: Int64) -> Int64:
    """hour, weekday or date of each time, by the clock of the zone."""
    zone = ZoneInfo(str(_constant(call.arguments[1])))
    local_ms = times_ms + _offsets_ms(zone, times_ms)
    if call.fn == "hour":
        return local_ms % _DAY_MS // _HOUR_MS
    days = local_ms // _DAY_MS
    if call.fn == "weekday":
        return (days + _EPOCH_WEEKDAY) % 7 + 1
    return _for_each_distinct(days, lambda day: _day_start_ms(zone, day))


def _offsets_ms(zone: ZoneInfo, times_ms: Int64, span_ms: int = _DAY_MS) -> Int64:
    """How far the zone's clock is ahead of UTC at each time."""
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
    """The function over an array, called once for each different value."""
    encoded = pa.array(values).dictionary_encode()
    table = np.array([function(value) for value in encoded.dictionary.to_pylist()], np.int64)
    found: Int64 = table[np.asarray(encoded.indices)]
    return found


def _offset_ms(zone: ZoneInfo, time_ms: int) -> int:
    moment = _EPOCH + timedelta(milliseconds=min(max(time_ms, _CLOCK_FIRST_MS), EVENT_TIME_MS_MAX))
    ahead = moment.astimezone(zone).utcoffset()
    assert ahead is not None, "a zone has an offset at every time"
    return ahead // _MS


def _day_start_ms(zone: ZoneInfo, day: int) -> int:
    """Midnight by the zone's clock, the first if there are two; where the clock skips it, the moment of the change."""
    midnight_ms = day * _DAY_MS
    calendar_ms = min(max(midnight_ms, _CLOCK_FIRST_MS), EVENT_TIME_MS_MAX)
    ahead = (_EPOCH + timedelta(milliseconds=calendar_ms)).replace(tzinfo=zone).utcoffset()
    assert ahead is not None, "a zone has an offset at every time"
    return midnight_ms - ahead // _MS
