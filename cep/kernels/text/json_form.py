"""Columns → JSON objects, as bytes: one call for all members of all rows.

Tested by: tests/sinks/test_json_form.py
"""

from __future__ import annotations

import numpy as np

from cep.kernels.jit import inlined, kernel
from cep.kernels.layout import Bool, Int32, Int64, UInt8
from cep.kernels.records import Texts
from cep.kernels.text.texts import copy_bytes

# How a member is written: text as it is, text between quotation marks, integer, UTC time in ms, truth.
RAW, QUOTED, NUMBER, TIME, TRUTH = range(5)
_QUOTE, _BACKSLASH, _CLOSES, _LIST_OPENS, _LIST_CLOSES, _COMMA = (ord(mark) for mark in '"\\}[],')
_ZERO, _MINUS, _COLON, _POINT, _T, _Z, _U = (ord(mark) for mark in "0-:.TZu")
_FIRST_PLAIN = 32
# The letter behind the backslash for the bytes that have one; 0 for the others.
_ESCAPES = np.zeros(256, np.uint8)
_ESCAPES[[ord('"'), ord("\\"), 8, 9, 10, 12, 13]] = np.frombuffer(b'"\\btnfr', np.uint8)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_NULL, _TRUE, _FALSE = (np.frombuffer(word, np.uint8) for word in (b"null", b"true", b"false"))
_ESCAPE_BYTES, _VALUE_BYTES = 6, 28  # at most: of an escaped byte, and of a value that is no text, or the marks of one
_DAY_MS = 86_400_000


@inlined
def _digits(number: int, count: int, out: UInt8, at: int) -> int:
    """Write the last `count` digits of a number; return where they end."""
    for k in range(count):
        out[at + count - 1 - k] = 48 + number % 10
        number //= 10
    return at + count


@inlined
def _integer(number: int, out: UInt8, at: int) -> int:
    if number < 0:
        out[at] = _MINUS
        at += 1
    rest = number if number < 0 else -number  # there is a negative one for each
    count, left = 1, rest // -10
    while left > 0:
        count += 1
        left //= 10
    for k in range(count):
        tens = rest // -10
        out[at + count - 1 - k] = _ZERO - tens * 10 - rest
        rest = -tens
    return at + count


@inlined
def _time(ms: int, out: UInt8, at: int) -> int:
    """Write a time (ms, UTC) as `2026-03-01T00:00:01.500Z`, years 0 to 9999; return where it ends."""
    day, left = ms // _DAY_MS, ms % _DAY_MS
    # Days since 1 March of the year 0, in eras of 400 years: a leap day is then the last one of its year.
    since = day + 719_468
    era = since // 146_097
    of_era = since - era * 146_097
    year_of_era = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * of_year + 2) // 153
    first = (153 * month + 2) // 5
    at = _digits(era * 400 + year_of_era + (1 if month > 9 else 0), 4, out, at)
    out[at] = _MINUS
    at = _digits(month + 3 if month < 10 else month - 9, 2, out, at + 1)
    out[at] = _MINUS
    at = _digits(of_year - first + 1, 2, out, at + 1)
    out[at] = _T
    at = _digits(left // 3_600_000, 2, out, at + 1)
    out[at] = _COLON
    at = _digits(left // 60_000 % 60, 2, out, at + 1)
    out[at] = _COLON
    at = _digits(left // 1_000 % 60, 2, out, at + 1)
    out[at] = _POINT
    at = _digits(left % 1_000, 3, out, at + 1)
    out[at] = _Z
    return at + 1


@inlined
def _escaped(data: UInt8, start: int, end: int, out: UInt8, at: int) -> int:
    """Write data[start:end] as it stands between quotation marks; return where it ends."""
    for k in range(start, end):
        byte = data[k]
        if byte >= _FIRST_PLAIN and byte != _QUOTE and byte != _BACKSLASH:
            out[at] = byte
            at += 1
            continue
        out[at] = _BACKSLASH
        if _ESCAPES[byte]:
            out[at + 1] = _ESCAPES[byte]
            at += 2
        else:
            out[at + 1] = _U
            out[at + 2] = out[at + 3] = _ZERO
            out[at + 4], out[at + 5] = _HEX[byte >> 4], _HEX[byte & 15]
            at += 6
    return at


@kernel
def write_objects(
    members: Texts, kinds: Int64, may_lack: Bool, texts: Texts, numbers: Int64, valid: Bool
) -> tuple[Int64, UInt8]:
    """Write a JSON object for each of N rows: where they begin, int64[N + 1], and all of them, uint8[B].

    Shapes, for K columns: `members` stand before the values, offsets int64[K + 1]; kinds int64[K]. texts are those of
    the columns that are text, offsets int64[K, N + 1]; numbers int64[K, N] are the others' values. Where valid
    bool[K, N] is False, `null` is written. A column of may_lack bool[K] is left out where it is null or false.
    """
    names, name_bytes, offsets, data = members.offsets, members.data, texts.offsets, texts.data
    columns, rows = numbers.shape
    most = rows * (name_bytes.shape[0] + columns * _VALUE_BYTES + 1)
    for c in range(columns):
        most += (offsets[c, rows] - offsets[c, 0]) * (_ESCAPE_BYTES if kinds[c] == QUOTED else 1)
    out = np.empty(most, np.uint8)
    starts = np.zeros(rows + 1, np.int64)
    at = 0
    for row in range(rows):
        for c in range(columns):
            kind, number, is_there = kinds[c], numbers[c, row], valid[c, row]
            if may_lack[c] and (not is_there or (kind == TRUTH and number == 0)):
                continue
            at = copy_bytes(name_bytes, names[c], names[c + 1], out, at)
            if not is_there:
                at = copy_bytes(_NULL, 0, 4, out, at)
            elif kind == RAW:
                at = copy_bytes(data, offsets[c, row], offsets[c, row + 1], out, at)
            elif kind == NUMBER:
                at = _integer(number, out, at)
            elif kind == TRUTH:
                at = copy_bytes(_TRUE, 0, 4, out, at) if number else copy_bytes(_FALSE, 0, 5, out, at)
            else:
                out[at] = _QUOTE
                if kind == TIME:
                    at = _time(number, out, at + 1)
                else:
                    at = _escaped(data, offsets[c, row], offsets[c, row + 1], out, at + 1)
                out[at] = _QUOTE
                at += 1
        out[at] = _CLOSES
        at += 1
        starts[row + 1] = at
    return starts, out[:at]


@kernel
def write_lists(bounds: Int32, starts: Int64, data: UInt8) -> tuple[Int64, UInt8]:
    """Write JSON lists of values that are JSON: where they begin, int64[N + 1], and uint8[B].

    Shapes: list n has the values bounds[n] to bounds[n + 1], int32[N + 1]; those are at int64 starts in data uint8.
    """
    lists = bounds.shape[0] - 1
    out = np.empty(starts[bounds[lists]] - starts[bounds[0]] + bounds[lists] - bounds[0] + 2 * lists, np.uint8)
    list_starts = np.zeros(lists + 1, np.int64)
    at = 0
    for n in range(lists):
        out[at] = _LIST_OPENS
        at += 1
        for value in range(bounds[n], bounds[n + 1]):
            if value > bounds[n]:
                out[at] = _COMMA
                at += 1
            at = copy_bytes(data, starts[value], starts[value + 1], out, at)
        out[at] = _LIST_CLOSES
        at += 1
        list_starts[n + 1] = at
    return list_starts, out[:at]
