"""Plain JSON records → values and texts of their columns, without a thread, as a few records have to be cheap.

    {"id":"t1","amount":24.15,"online":true}  →  one value a column, or where a text begins and ends

Plain is what most producers write: objects of texts without escapes, numbers whose value is exact in a few steps,
true, false and null; fields in any order, unknown ones too. Anything else, faults included, is not plain, and a
complete reader has to say what it is.
Tested by: tests/columnar/test_plain_json.py
"""

from __future__ import annotations

import numpy as np

from cep.kernels.jit import bare, inlined, kernel
from cep.kernels.layout import Int64, UInt8, int64
from cep.kernels.records import JsonColumns, JsonValues
from cep.kernels.text.texts import is_same_text

# The kinds of a column; each takes null too. NAME: texts, or whole numbers if the first record has one.
WHOLE, DECIMAL, FLOAT, TRUTH, TEXT, NAME = range(6)
_UNKNOWN = -1  # the column of a field that nobody asked for
_MEMBERS_MAX = 256  # of a record
_SPACE, _TAB, _QUOTE, _BACKSLASH, _OPENS, _CLOSES = (ord(mark) for mark in ' \t"\\{}')
_COLON, _COMMA, _MINUS, _PLUS, _POINT, _ZERO, _NINE, _SMALL_E, _LARGE_E = (ord(mark) for mark in ":,-+.09eE")
_SMALL_N, _SMALL_T = (ord(mark) for mark in "nt")
_NULL, _TRUE, _FALSE = (np.frombuffer(word, np.uint8) for word in (b"null", b"true", b"false"))
_FIRST_PLAIN = 32  # smaller bytes need an escape.
# Up to here a mantissa and a power of ten are doubles without rounding, so their quotient is rounded once (Clinger,
# "How to read floating point numbers accurately", 1990).
_MANTISSA_MAX, _POWER_MAX = 1 << 53, 22
_POWERS = 10.0 ** np.arange(_POWER_MAX + 1)
_UNITS = 10 ** np.arange(19, dtype=np.int64)
_DIGITS_MAX, UNITS_DIGITS_MAX = 19, 18
_EXPONENT_DIGITS_MAX = 2  # with this many no number is beyond what a double can be, which Arrow refuses


@inlined
def _skip_blanks(data: UInt8, at: int) -> int:
    """Return where the blanks end. They do: a record's last byte is a brace."""
    while data[at] == _SPACE or data[at] == _TAB:
        at += 1
    return at


@inlined
def _text_end(data: UInt8, at: int, end: int) -> int:
    """Return where the quotation mark behind a text is; -1 if there is none before `end`, or an escape."""
    while at < end:
        byte = data[at]
        if byte == _QUOTE:
            return at
        if byte < _FIRST_PLAIN or byte == _BACKSLASH:
            return -1
        at += 1
    return -1


@inlined
def _is_word(data: UInt8, at: int, end: int, word: UInt8) -> bool:
    if at + word.shape[0] > end:
        return False
    for k in range(word.shape[0]):
        if data[at + k] != word[k]:
            return False
    return True


@inlined
def _digits(data: UInt8, at: int, mantissa: int) -> tuple[int, int]:
    """Read digits; return where they end, and the number with them appended."""
    while _ZERO <= data[at] <= _NINE:
        mantissa = mantissa * 10 + int64(data[at] - _ZERO)
        at += 1
    return at, mantissa


@inlined
def _number(data: UInt8, first: int) -> tuple[int, int, int, int, bool]:
    """Read a number: where it ends, mantissa without its sign, power of ten, count of digits, True if written as whole.

    It ends at -1 if it is none, or has too many digits for 64 bits.
    """
    begin = first + (data[first] == _MINUS)
    at, mantissa = _digits(data, begin, int64(0))
    count = at - begin
    if count == 0 or (count > 1 and data[begin] == _ZERO):
        return -1, mantissa, 0, 0, False
    power, is_whole = 0, True
    if data[at] == _POINT:
        point = at
        at, mantissa = _digits(data, at + 1, mantissa)
        power, is_whole = point + 1 - at, False
        count -= power
        if power == 0:
            return -1, mantissa, 0, 0, False
    if data[at] == _SMALL_E or data[at] == _LARGE_E:
        at += 1
        sign = -1 if data[at] == _MINUS else 1
        if data[at] == _MINUS or data[at] == _PLUS:
            at += 1
        begin, is_whole = at, False
        at, exponent = _digits(data, at, int64(0))
        if not 0 < at - begin <= _EXPONENT_DIGITS_MAX:
            return -1, mantissa, 0, 0, False
        power += sign * exponent
    if count > _DIGITS_MAX or mantissa < 0:
        return -1, mantissa, 0, 0, False
    return at, mantissa, power, count, is_whole


@inlined
def _float(mantissa: int, power: int, is_negative: bool) -> float:
    value = np.float64(mantissa) * _POWERS[power] if power >= 0 else np.float64(mantissa) / _POWERS[-power]
    return -value if is_negative else value


@inlined
def _take_number(data: UInt8, at: int, kind: int, scale: int, value: Int64) -> int:
    """Read a number into `value`, a slot, as its column wants it; return where it ends, or -1."""
    is_negative = data[at] == _MINUS
    end, mantissa, power, count, is_whole = _number(data, at)
    if end < 0 or kind == _UNKNOWN:
        return end
    if kind == WHOLE and is_whole:
        value[0] = -mantissa if is_negative else mantissa
    elif kind == DECIMAL and -scale <= power <= 0 and count + scale + power <= UNITS_DIGITS_MAX:
        units = mantissa * _UNITS[scale + power]
        value[0] = -units if is_negative else units
    elif kind == FLOAT and mantissa <= _MANTISSA_MAX and -_POWER_MAX <= power <= _POWER_MAX:
        value.view(np.float64)[0] = _float(mantissa, power, is_negative)
    else:
        return -1
    return end


@inlined
def _take_value(
    data: UInt8, at: int, end: int, kind: int, scale: int, value: Int64, text_end: Int64, is_there: UInt8
) -> int:
    """Read what stands here into `value`, of a text where it begins and ends. Return where it ends, or -1."""
    byte = data[at]
    if byte == _QUOTE and (kind == TEXT or kind == _UNKNOWN):
        closes = _text_end(data, at + 1, end)
        value[0], text_end[0], is_there[0] = at + 1, closes, 1
        return closes + 1 if closes >= 0 else -1
    if byte == _MINUS or _ZERO <= byte <= _NINE:
        is_there[0] = 1
        return _take_number(data, at, kind, scale, value)
    if byte == _SMALL_N:
        return at + 4 if _is_word(data, at, end, _NULL) else -1
    if kind == TRUTH or kind == _UNKNOWN:
        is_true = byte == _SMALL_T
        value[0], is_there[0] = is_true, 1
        if is_true:
            return at + 4 if _is_word(data, at, end, _TRUE) else -1
        return at + 5 if _is_word(data, at, end, _FALSE) else -1
    return -1


@inlined
def _column_of(data: UInt8, start: int, end: int, names: UInt8, name_ends: Int64) -> int:
    name_start = 0
    for column in range(name_ends.shape[0]):
        if is_same_text(data, start, end, names, name_start, name_ends[column]):
            return column
        name_start = name_ends[column]
    return _UNKNOWN


@bare
def _read_record(
    data: UInt8, at: int, end: int, record: int, wanted: JsonColumns, members: Int64, filled: Int64, out: JsonValues
) -> bool:
    """Read a record into its row; return True if it is plain.

    Shapes: members int64[_MEMBERS_MAX, 3] has where each name of the record before begins and ends, and its column: it
    is likely that this one has the same. filled int64[C] is one more than the last record that has the column.
    """
    kinds, values, text_ends, is_there = wanted.kinds, out.values, out.text_ends, out.is_there
    if end - at < 2 or data[at] != _OPENS or data[end - 1] != _CLOSES:
        return False
    at, member = _skip_blanks(data, at + 1), 0
    if data[at] == _CLOSES:
        return at == end - 1
    while member < _MEMBERS_MAX and data[at] == _QUOTE:
        start, closes = at + 1, _text_end(data, at + 1, end)
        if closes < 0:
            return False
        before = members[member]
        if not is_same_text(data, start, closes, data, before[0], before[1]):
            before[2] = _column_of(data, start, closes, wanted.names, wanted.name_ends)
        before[0], before[1], column = start, closes, before[2]
        at = _skip_blanks(data, closes + 1)
        if data[at] != _COLON:
            return False
        at = _skip_blanks(data, at + 1)
        kind, scale, place = _UNKNOWN, 0, kinds.shape[0]
        if column != _UNKNOWN:
            if filled[column] == record + 1:
                return False  # said twice
            filled[column] = record + 1
            kind, scale, place = kinds[column], wanted.scales[column], column
            if kind == NAME and data[at] != _SMALL_N:
                kinds[column] = kind = TEXT if data[at] == _QUOTE else WHOLE
        at = _take_value(
            data, at, end, kind, scale, values[place, record:], text_ends[place, record:], is_there[place, record:]
        )
        if at < 0:
            return False
        at = _skip_blanks(data, at)
        if data[at] == _CLOSES:
            return at == end - 1
        if data[at] != _COMMA:
            return False
        at, member = _skip_blanks(data, at + 1), member + 1
    return False


@kernel
def read_records(offsets: Int64, data: UInt8, wanted: JsonColumns) -> tuple[int, JsonValues, Int64]:
    """Read N records, int64 offsets[N + 1] into data uint8.

    Where wanted.kinds has NAME, it becomes what the column is.
    Returns: how many records there are before the first that is not plain; the values, and how many of them each
    column has, int64[C]: of use if all records are plain.
    """
    kinds = wanted.kinds
    count, columns = offsets.shape[0] - 1, kinds.shape[0]
    # One column more, for what nobody asked for.
    values, text_ends = np.zeros((columns + 1, count), np.int64), np.zeros((columns + 1, count), np.int64)
    is_there = np.zeros((columns + 1, count), np.uint8)
    out = JsonValues(values, text_ends, is_there)
    members, filled = np.zeros((_MEMBERS_MAX, 3), np.int64), np.zeros(columns, np.int64)
    members[:, 2] = _UNKNOWN
    for record in range(count):
        is_plain = _read_record(data, offsets[record], offsets[record + 1], record, wanted, members, filled, out)
        if not is_plain:
            return record, out, filled
        if record == 0:
            for column in range(columns):
                kinds[column] = TEXT if kinds[column] == NAME else kinds[column]
    for column in range(columns):
        filled[column] = is_there[column].sum()
    return count, out, filled
