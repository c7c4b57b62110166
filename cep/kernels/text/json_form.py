"""Columns → JSON objects as bytes, with one call for all members of all rows.

Tested by: tests/sinks/test_json_form.py
"""

import numpy as np

from cep.kernels.jit import inlined, kernel
from cep.kernels.layout import Bool, Int32, Int64, UInt8
from cep.kernels.records import Texts
from cep.kernels.text.texts import copy_bytes

# The form of a member: text as it is, quoted text, integer, UTC time in ms, boolean.
RAW, QUOTED, NUMBER, TIME, TRUTH = range(5)
_QUOTE, _BACKSLASH, _CLOSES, _LIST_OPENS, _LIST_CLOSES, _COMMA = (ord(mark) for mark in '"\\}[],')
_ZERO, _MINUS, _COLON, _POINT, _T, _Z, _U = (ord(mark) for mark in "0-:.TZu")
_FIRST_PLAIN = 32
# The letter after the backslash for bytes that have one; 0 for the others.
_ESCAPES = np.zeros(256, np.uint8)
_ESCAPES[[ord('"'), ord("\\"), 8, 9, 10, 12, 13]] = np.frombuffer(b'"\\btnfr', np.uint8)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_NULL, _TRUE, _FALSE = (np.frombuffer(word, np.uint8) for word in (b"null", b"true", b"false"))
_ESCAPE_BYTES, _VALUE_BYTES = 6, 28  # maxima: of an escaped byte, and of a value that is not text
_DAY_MS = 86_400_000


@inlined
def _digits(number: int, count: int, out: UInt8, position: int) -> int:
    """Write the last `count` digits of a number; return the end."""
    for k in range(count):
        out[position + count - 1 - k] = 48 + number % 10
        number //= 10
    return position + count


@inlined
def _integer(number: int, out: UInt8, position: int) -> int:
    """Write an integer in decimal digits. Return the end."""
    if number < 0:
        out[position] = _MINUS
        position += 1
    rest = number if number < 0 else -number  # not positive, because the least int64 has no positive counterpart
    count, quotient = 1, rest // -10  # count becomes the number of digits
    while quotient > 0:
        count += 1
        quotient //= 10
    for k in range(count):
        tens = rest // -10
        out[position + count - 1 - k] = _ZERO - tens * 10 - rest  # the last digit of the rest
        rest = -tens
    return position + count


@inlined
def _time(ms: int, out: UInt8, position: int) -> int:
    """Write a time (ms, UTC) as `2026-03-01T00:00:01.500Z`, years 0 to 9999; return the end."""
    day, ms_of_day = ms // _DAY_MS, ms % _DAY_MS
    # H. Hinnant, civil_from_days: a year begins on 1 March, so that a leap day is its last day. An era is 400 years.
    days = day + 719_468  # since 1 March of the year 0
    era = days // 146_097
    day_of_era = days - era * 146_097
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153  # 0 is March
    first_day = (153 * month + 2) // 5  # of the month, as a day of the year
    position = _digits(era * 400 + year_of_era + (1 if month > 9 else 0), 4, out, position)
    out[position] = _MINUS
    position = _digits(month + 3 if month < 10 else month - 9, 2, out, position + 1)
    out[position] = _MINUS
    position = _digits(day_of_year - first_day + 1, 2, out, position + 1)
    out[position] = _T
    position = _digits(ms_of_day // 3_600_000, 2, out, position + 1)
    out[position] = _COLON
    position = _digits(ms_of_day // 60_000 % 60, 2, out, position + 1)
    out[position] = _COLON
    position = _digits(ms_of_day // 1_000 % 60, 2, out, position + 1)
    out[position] = _POINT
    position = _digits(ms_of_day % 1_000, 3, out, position + 1)
    out[position] = _Z
    return position + 1


@inlined
def _escaped(data: UInt8, start: int, end: int, out: UInt8, position: int) -> int:
    """Write data[start:end] as the content of a JSON string; return the end."""
    for k in range(start, end):
        byte = data[k]
        if byte >= _FIRST_PLAIN and byte != _QUOTE and byte != _BACKSLASH:
            out[position] = byte
            position += 1
            continue
        out[position] = _BACKSLASH
        if _ESCAPES[byte]:
            out[position + 1] = _ESCAPES[byte]
            position += 2
        else:
            out[position + 1] = _U
            out[position + 2] = out[position + 3] = _ZERO
            out[position + 4], out[position + 5] = _HEX[byte >> 4], _HEX[byte & 15]
            position += 6
    return position


@kernel
def write_objects(
    members: Texts, kinds: Int64, may_lack: Bool, texts: Texts, numbers: Int64, valid: Bool
) -> tuple[Int64, UInt8]:
    """Write a JSON object for each of N rows: their starts, int64[N + 1], and their bytes, uint8[B].

    Shapes, for K columns: `members` precede the values, offsets int64[K + 1]; kinds int64[K]. texts are the columns of
    text, offsets int64[K, N + 1]; numbers int64[K, N] are the values of the other columns. Where valid bool[K, N] is
    False, `null` is written. A column of may_lack bool[K] is left out where it is null or false.
    """
    names, name_bytes, offsets, data = members.offsets, members.data, texts.offsets, texts.data
    columns, rows = numbers.shape
    most = rows * (name_bytes.shape[0] + columns * _VALUE_BYTES + 1)
    for c in range(columns):
        most += (offsets[c, rows] - offsets[c, 0]) * (_ESCAPE_BYTES if kinds[c] == QUOTED else 1)
    out = np.empty(most, np.uint8)
    starts = np.zeros(rows + 1, np.int64)
    position = 0
    for row in range(rows):
        for c in range(columns):
            kind, number, is_there = kinds[c], numbers[c, row], valid[c, row]
            if may_lack[c] and (not is_there or (kind == TRUTH and number == 0)):
                continue
            position = copy_bytes(name_bytes, names[c], names[c + 1], out, position)
            if not is_there:
                position = copy_bytes(_NULL, 0, 4, out, position)
            elif kind == RAW:
                position = copy_bytes(data, offsets[c, row], offsets[c, row + 1], out, position)
            elif kind == NUMBER:
                position = _integer(number, out, position)
            elif kind == TRUTH:
                position = copy_bytes(_TRUE, 0, 4, out, position) if number else copy_bytes(_FALSE, 0, 5, out, position)
            else:
                out[position] = _QUOTE
                if kind == TIME:
                    position = _time(number, out, position + 1)
                else:
                    position = _escaped(data, offsets[c, row], offsets[c, row + 1], out, position + 1)
                out[position] = _QUOTE
                position += 1
        out[position] = _CLOSES
        position += 1
        starts[row + 1] = position
    return starts, out[:position]


@kernel
def write_lists(bounds: Int32, starts: Int64, data: UInt8) -> tuple[Int64, UInt8]:
    """Write JSON lists of JSON values: their starts, int64[N + 1], and bytes uint8[B].

    Shapes: list n has the values bounds[n] to bounds[n + 1], int32[N + 1]; these are at int64 starts in data uint8.
    """
    lists = bounds.shape[0] - 1
    out = np.empty(starts[bounds[lists]] - starts[bounds[0]] + bounds[lists] - bounds[0] + 2 * lists, np.uint8)
    list_starts = np.zeros(lists + 1, np.int64)
    position = 0
    for n in range(lists):
        out[position] = _LIST_OPENS
        position += 1
        for value in range(bounds[n], bounds[n + 1]):
            if value > bounds[n]:
                out[position] = _COMMA
                position += 1
            position = copy_bytes(data, starts[value], starts[value + 1], out, position)
        out[position] = _LIST_CLOSES
        position += 1
        list_starts[n + 1] = position
    return list_starts, out[:position]
