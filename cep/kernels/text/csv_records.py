r"""The bytes of a CSV file → the ends of its records, the number of their fields, and what is wrong with them.

    plain field     ends at a delimiter or at a line end (\n, \r, \r\n); a quote inside of it is an ordinary sign
    quoted field    ends at a quote that is not doubled, and with `escape` has no backslash before it

Tested by: tests/sources/test_csv_damage.py
"""

import numpy as np

from cep.kernels.jit import kernel
from cep.kernels.layout import Int32, Int64, UInt8

# What a record is: as it should be, an empty line, of another number of fields, or damaged.
WHOLE, EMPTY, FIELDS, TEXT_AFTER_QUOTE, STRAY_QUOTE, ZERO_BYTE = range(6)
# Where in a record a reader is: it begins, a field begins, in either kind of field, after a quote, after a backslash.
_BEGIN, _FIELD, _PLAIN, _QUOTED, _CLOSED, _CLOSED_BLANK, _ESCAPED = range(7)
BEGIN, OPEN_STATES = _BEGIN, (_QUOTED, _ESCAPED)
_LINE_END, _RETURN, _SPACE, _BACKSLASH = 10, 13, 32, 92


@kernel
def cut_records(
    data: UInt8, delimiter: int, quote: int, escape: int, columns: int, place: int
) -> tuple[Int64, UInt8, Int32, int]:
    """Return the end of each record of uint8[N], what it is (WHOLE, …), its number of fields, and the place (`place`)
    in a record at the end of the bytes.

    `place` is the place at their begin: BEGIN, or the returned one of the bytes before. `escape`: 92 if a backslash
    in a quoted field belongs to the next sign, otherwise -1. `columns`: the right number of fields, or 0 for any.
    """
    count = 0
    for k in range(data.shape[0]):
        count += (data[k] == _LINE_END) + (data[k] == _RETURN)
    ends, faults, fields = np.empty(count, np.int64), np.empty(count, np.uint8), np.empty(count, np.int32)
    records, fields_count, fault = 0, 1, WHOLE
    is_stray = is_suspect = False  # a quote in a plain field; a quoted field of several lines, or with \" at its end
    k, size = 0, data.shape[0]
    is_sign = np.zeros(256, np.bool_)  # the bytes that matter inside of a field
    is_sign[0] = is_sign[_LINE_END] = is_sign[_RETURN] = is_sign[delimiter] = is_sign[quote] = True
    if escape >= 0:
        is_sign[escape] = True
    while k < size:
        if place == _PLAIN or place == _QUOTED:
            while k < size and not is_sign[data[k]]:
                k += 1
            if k == size:
                break
        byte = data[k]
        k += 1
        if byte == 0:
            fault = ZERO_BYTE
        if place == _QUOTED:
            if byte == quote:
                place = _CLOSED
                is_suspect = is_suspect or (k > 1 and data[k - 2] == _BACKSLASH)
            elif byte == escape:
                place = _ESCAPED
            elif byte == _LINE_END or byte == _RETURN:
                is_suspect = True
            continue
        if place == _ESCAPED:
            place = _QUOTED
            continue
        if byte == _LINE_END or byte == _RETURN:
            if byte == _RETURN and k < size and data[k] == _LINE_END:
                k += 1
            if fault == WHOLE and is_stray and is_suspect:
                fault = STRAY_QUOTE
            if fault == WHOLE and place == _BEGIN:
                fault = EMPTY
            if fault == WHOLE and columns > 0 and fields_count != columns:
                fault = FIELDS
            ends[records], faults[records], fields[records] = k, fault, fields_count
            records += 1
            place, fields_count, fault = _BEGIN, 1, WHOLE
            is_stray = is_suspect = False
        elif byte == delimiter:
            place = _FIELD
            fields_count += 1
        elif byte == quote:
            if place == _PLAIN:
                is_stray = True
            elif place == _CLOSED_BLANK:
                fault = TEXT_AFTER_QUOTE
                place = _PLAIN
            else:  # a field begins, or a doubled quote
                place = _QUOTED
        elif place == _CLOSED or place == _CLOSED_BLANK:
            if byte == _SPACE:
                place = _CLOSED_BLANK
            else:
                fault = TEXT_AFTER_QUOTE
                place = _PLAIN
        else:
            place = _PLAIN
    return ends[:records], faults[:records], fields[:records], place


@kernel
def without_escapes(data: UInt8, delimiter: int, quote: int) -> UInt8:
    """Return whole records with doubled quotes in place of quotes after a backslash, and one backslash in place of
    two. A backslash before another sign, or in a plain field, stays."""
    out = np.empty(data.shape[0], np.uint8)
    size, k, is_quoted, is_begin = 0, 0, False, True
    while k < data.shape[0]:
        byte = data[k]
        if is_quoted and byte == _BACKSLASH and k + 1 < data.shape[0] and data[k + 1] in (quote, _BACKSLASH):
            out[size] = data[k + 1]
            size += 1
            if data[k + 1] == quote:
                out[size] = quote
                size += 1
            k += 2
            continue
        if byte == quote and (is_quoted or is_begin):
            is_quoted = not is_quoted
            # After a closing quote another one opens the field again: the two are one quote of the text.
            is_begin = not is_quoted
        else:
            is_begin = not is_quoted and (byte == delimiter or byte == _LINE_END or byte == _RETURN)
        out[size] = byte
        size += 1
        k += 1
    return out[:size]
