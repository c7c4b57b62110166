"""Plain JSON records → values and texts of their columns, on the calling thread, so that a few records are cheap.

    {"id":"t1","amount":24.15,"online":true}  →  one value per column, or the start and end of a text

A plain record is an object of texts without escapes, numbers whose value is exact in a few steps, true, false and null,
with fields in any order, including unknown ones. Most producers write plain records. Any other record, including a
faulty one, is left to a complete reader.
Tested by: tests/columnar/test_decode.py, tests/kernels/test_alert_texts.py.
"""

import numpy as np

from cep.kernels.jit import bare, inlined, kernel
from cep.kernels.layout import Int64, UInt8, int64
from cep.kernels.records import JsonColumns, JsonValues
from cep.kernels.text.texts import is_same_text

# The kinds of a column; each allows null. AUTO: texts, or whole numbers if the first record has one.
WHOLE, DECIMAL, FLOAT, TRUTH, TEXT, AUTO = range(6)
_UNKNOWN = -1  # the column of a field that is not wanted
_MEMBERS_MAX = 256  # per record
_SPACE, _TAB, _LINE_BREAK, _QUOTE, _BACKSLASH, _OPENS, _CLOSES = (ord(mark) for mark in ' \t\n"\\{}')
_COLON, _COMMA, _MINUS, _PLUS, _POINT, _ZERO, _NINE, _SMALL_E, _LARGE_E = (ord(mark) for mark in ":,-+.09eE")
_SMALL_N, _SMALL_T = (ord(mark) for mark in "nt")
_NULL, _TRUE, _FALSE = (np.frombuffer(word, np.uint8) for word in (b"null", b"true", b"false"))
_FIRST_PLAIN = 32  # smaller bytes need an escape
# Up to here a mantissa and a power of ten are doubles without rounding, so their quotient is rounded once (Clinger,
# "How to read floating point numbers accurately", 1990).
_MANTISSA_MAX, _POWER_MAX = 1 << 53, 22
_POWERS = 10.0 ** np.arange(_POWER_MAX + 1)
_UNITS = 10 ** np.arange(19, dtype=np.int64)
_DIGITS_MAX, UNITS_DIGITS_MAX = 19, 18
_EXPONENT_DIGITS_MAX = 2  # with this many digits no number exceeds the range of a float, which Arrow refuses


@inlined
def _skip_blanks(data: UInt8, position: int) -> int:
    """Return the end of the blanks. There always is one, because a record's last byte is a brace."""
    while data[position] == _SPACE or data[position] == _TAB:
        position += 1
    return position


@inlined
def _text_end(data: UInt8, position: int, end: int) -> int:
    """Return the position of the quote after a text; -1 if there is none before `end`, or an escape."""
    while position < end:
        byte = data[position]
        if byte == _QUOTE:
            return position
        if byte < _FIRST_PLAIN or byte == _BACKSLASH:
            return -1
        position += 1
    return -1


@inlined
def _is_word(data: UInt8, position: int, end: int, word: UInt8) -> bool:
    if position + word.shape[0] > end:
        return False
    for k in range(word.shape[0]):
        if data[position + k] != word[k]:
            return False
    return True


@inlined
def _read_digits(data: UInt8, position: int, mantissa: int) -> tuple[int, int]:
    """Read digits; return the end, and the number with the digits appended."""
    while _ZERO <= data[position] <= _NINE:
        mantissa = mantissa * 10 + int64(data[position] - _ZERO)
        position += 1
    return position, mantissa


@inlined
def _read_number(data: UInt8, first: int) -> tuple[int, int, int, int, bool]:
    """Return a number's end, digits without sign and point, power of ten, count of digits, and True for an integer.

    A number with a point or an exponent is not an integer. The end is -1 if there is no number, or if it has too many
    digits for 64 bits.
    """
    begin = first + (data[first] == _MINUS)
    position, mantissa = _read_digits(data, begin, int64(0))
    count = position - begin
    if count == 0 or (count > 1 and data[begin] == _ZERO):  # JSON has no leading zeros
        return -1, mantissa, 0, 0, False
    power, is_whole = 0, True
    if data[position] == _POINT:
        point = position
        position, mantissa = _read_digits(data, position + 1, mantissa)
        power, is_whole = point + 1 - position, False
        count -= power  # the power is minus the number of decimals
        if power == 0:  # JSON has a digit after the point
            return -1, mantissa, 0, 0, False
    if data[position] == _SMALL_E or data[position] == _LARGE_E:
        position += 1
        sign = -1 if data[position] == _MINUS else 1
        if data[position] == _MINUS or data[position] == _PLUS:
            position += 1
        begin, is_whole = position, False
        position, exponent = _read_digits(data, position, int64(0))
        if not 0 < position - begin <= _EXPONENT_DIGITS_MAX:
            return -1, mantissa, 0, 0, False
        power += sign * exponent
    if count > _DIGITS_MAX or mantissa < 0:  # an overflow of 64 bits
        return -1, mantissa, 0, 0, False
    return position, mantissa, power, count, is_whole


@inlined
def _float(mantissa: int, power: int, is_negative: bool) -> float:
    value = np.float64(mantissa) * _POWERS[power] if power >= 0 else np.float64(mantissa) / _POWERS[-power]
    return -value if is_negative else value


@inlined
def _take_number(data: UInt8, position: int, kind: int, scale: int, value: Int64) -> int:
    """Parse a number into value[0], as the column stores it. Return its end; -1 leaves the record to another reader."""
    is_negative = data[position] == _MINUS
    end, mantissa, power, count, is_whole = _read_number(data, position)
    if end < 0 or kind == _UNKNOWN:  # a field of no column is skipped
        return end
    if kind == WHOLE and is_whole:
        value[0] = -mantissa if is_negative else mantissa
    elif kind == DECIMAL and -scale <= power <= 0 and count + scale + power <= UNITS_DIGITS_MAX:
        units = mantissa * _UNITS[scale + power]  # the value in units of 10^-scale
        value[0] = -units if is_negative else units
    elif kind == FLOAT and mantissa <= _MANTISSA_MAX and -_POWER_MAX <= power <= _POWER_MAX:
        value.view(np.float64)[0] = _float(mantissa, power, is_negative)  # its bits are stored as int64
    else:  # the value is not exact in this form, or is of another kind
        return -1
    return end


@inlined
def _take_value(
    data: UInt8, position: int, end: int, kind: int, scale: int, value: Int64, text_end: Int64, is_there: UInt8
) -> int:
    """Parse a JSON value that is not an object or array. Return its end; -1 leaves the record to another reader.

    value[0] becomes the number or truth value. For a text, value[0] becomes its start and text_end[0] its end.
    is_there[0] becomes 1 unless the value is null.
    """
    byte = data[position]
    if byte == _QUOTE and (kind == TEXT or kind == _UNKNOWN):  # _UNKNOWN: a field that is skipped
        closes = _text_end(data, position + 1, end)
        value[0], text_end[0], is_there[0] = position + 1, closes, 1
        return closes + 1 if closes >= 0 else -1
    if byte == _MINUS or _ZERO <= byte <= _NINE:
        is_there[0] = 1
        return _take_number(data, position, kind, scale, value)
    if byte == _SMALL_N:  # null: is_there stays 0
        return position + 4 if _is_word(data, position, end, _NULL) else -1
    if kind == TRUTH or kind == _UNKNOWN:
        is_true = byte == _SMALL_T
        value[0], is_there[0] = is_true, 1
        if is_true:
            return position + 4 if _is_word(data, position, end, _TRUE) else -1
        return position + 5 if _is_word(data, position, end, _FALSE) else -1
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
    data: UInt8, position: int, end: int, record: int, columns: JsonColumns, members: Int64, filled: Int64,
    out: JsonValues,
) -> bool:  # fmt: skip
    """Read a record into its row; return True if it is plain.

    Shapes: members int64[_MEMBERS_MAX, 3] has the start, end and column of each name of the previous record, because
    this record probably has the same names. filled int64[C] is one more than the last record that has the column.
    """
    kinds, values, text_ends, is_there = columns.kinds, out.values, out.text_ends, out.is_there
    if end - position < 2 or data[position] != _OPENS or data[end - 1] != _CLOSES:
        return False
    position, member = _skip_blanks(data, position + 1), 0
    if data[position] == _CLOSES:
        return position == end - 1
    while member < _MEMBERS_MAX and data[position] == _QUOTE:
        start, closes = position + 1, _text_end(data, position + 1, end)
        if closes < 0:
            return False
        before = members[member]
        if not is_same_text(data, start, closes, data, before[0], before[1]):
            before[2] = _column_of(data, start, closes, columns.names, columns.name_ends)
        before[0], before[1], column = start, closes, before[2]
        position = _skip_blanks(data, closes + 1)
        if data[position] != _COLON:
            return False
        position = _skip_blanks(data, position + 1)
        kind, scale, place = _UNKNOWN, 0, kinds.shape[0]
        if column != _UNKNOWN:
            if filled[column] == record + 1:
                return False  # duplicate name
            filled[column] = record + 1
            kind, scale, place = kinds[column], columns.scales[column], column
            if kind == AUTO and data[position] != _SMALL_N:
                kinds[column] = kind = TEXT if data[position] == _QUOTE else WHOLE
        slot, text_end, is_set = values[place, record:], text_ends[place, record:], is_there[place, record:]
        position = _take_value(data, position, end, kind, scale, slot, text_end, is_set)
        if position < 0:
            return False
        position = _skip_blanks(data, position)
        if data[position] == _CLOSES:
            return position == end - 1
        if data[position] != _COMMA:
            return False
        position, member = _skip_blanks(data, position + 1), member + 1
    return False


@kernel
def read_records(offsets: Int64, data: UInt8, wanted_columns: JsonColumns) -> tuple[int, JsonValues, Int64]:
    """Read N records, int64 offsets[N + 1] into data uint8, up to the first one that is not plain.

    A plain record is an object of numbers, truth values, nulls and texts without escapes, each name once. A column of
    kind AUTO becomes TEXT or WHOLE, as its value in the first record; without a value it becomes TEXT.
    Returns: the number of records before the first that is not plain; the values, to be used only if all records are
    plain; the number of values in each column, int64[C].
    """
    kinds = wanted_columns.kinds
    count, columns = offsets.shape[0] - 1, kinds.shape[0]
    # One more column, for fields that are not wanted.
    values, text_ends = np.zeros((columns + 1, count), np.int64), np.zeros((columns + 1, count), np.int64)
    is_there = np.zeros((columns + 1, count), np.uint8)
    out = JsonValues(values, text_ends, is_there)
    members, filled = np.zeros((_MEMBERS_MAX, 3), np.int64), np.zeros(columns, np.int64)
    members[:, 2] = _UNKNOWN  # a row of members: the start, end and column of a name in the previous record
    for record in range(count):
        is_plain = _read_record(
            data, offsets[record], offsets[record + 1], record, wanted_columns, members, filled, out
        )
        if not is_plain:
            return record, out, filled
        if record == 0:
            for column in range(columns):
                kinds[column] = TEXT if kinds[column] == AUTO else kinds[column]
    for column in range(columns):
        filled[column] = is_there[column].sum()
    return count, out, filled


@kernel
def join_lines(offsets: Int64, data: UInt8) -> tuple[UInt8, bool, int]:
    """Join N records, int64 offsets[N + 1] into data uint8, as lines for a reader that takes each line for a record.

    Returns: uint8[B]; True if each record begins with `{` and ends with `}`; the number of line breaks within records.
    """
    count = offsets.shape[0] - 1
    lines = np.empty(offsets[count] - offsets[0] + max(0, count - 1), np.uint8)
    in_braces, breaks, position = True, 0, 0
    for record in range(count):
        start, end = offsets[record], offsets[record + 1]
        in_braces &= end - start >= 2 and data[start] == _OPENS and data[end - 1] == _CLOSES
        if record > 0:
            lines[position] = _LINE_BREAK
            position += 1
        for k in range(start, end):
            byte = data[k]
            breaks += byte == _LINE_BREAK
            lines[position] = byte
            position += 1
    return lines, in_braces, breaks
