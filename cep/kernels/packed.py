"""Rows of small integers ↔ the bytes of pages: each column of each page in as few bytes as it needs.

    column of a page:  | width of a value + 16 × width of the base, u8 | base | value - base, for each row |

Numbers are little-endian; the base is the least value, with its sign in the lowest bit; a width is 0 to 8 bytes, so
that a column that is the same in all rows of a page costs no byte a row. Columns of a page stand one after the other.
A cursor says for each page where its next byte stands: tables that are written one after the other are read in the
same order.
Tested by: tests/kernels/test_packed.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels.jit import bare, inlined

_BYTE = np.uint64(255)
_EIGHT = np.uint64(8)
_ONE = np.uint64(1)


@inlined
def _width(number: Any) -> Any:
    """How many bytes an unsigned number needs; none for 0."""
    width, value = 0, number
    while value != np.uint64(0):
        value >>= _EIGHT
        width += 1
    return width


@inlined
def _folded(value: Any) -> Any:
    """A signed number as an unsigned one, near 0 where it is near 0."""
    return (np.uint64(value) << _ONE) ^ np.uint64(value >> 63)


@inlined
def _unfolded(value: Any) -> Any:
    """What `_folded` was given."""
    return np.int64(value >> _ONE) ^ -np.int64(value & _ONE)


@bare
def measure_columns(table: Any, bounds: Any, widths: Any, bases: Any, sizes: Any) -> None:
    """How the columns of each page are to be written.

    Shapes: table int64[n, C], whose rows bounds[p] <= i < bounds[p + 1] are those of page p; out widths uint8[P, C],
    bases int64[P, C]; sizes int64[P] grow by the bytes that a page takes.
    """
    for page in range(bounds.shape[0] - 1):
        first, end = bounds[page], bounds[page + 1]
        size = 0
        for column in range(table.shape[1]):
            least = most = table[first, column] if first < end else np.int64(0)
            for row in range(first + 1, end):
                value = table[row, column]
                least = min(least, value)
                most = max(most, value)
            # Modulo 2**64 the difference is right however far apart the two are.
            width, base_width = _width(np.uint64(most) - np.uint64(least)), _width(_folded(least))
            widths[page, column] = width + 16 * base_width
            bases[page, column] = least
            size += 1 + base_width + width * (end - first)
        sizes[page] += size


@bare
def write_columns(table: Any, bounds: Any, widths: Any, bases: Any, out: Any, cursor: Any) -> None:
    """Write what `measure_columns` has measured into out uint8[bytes], from cursor int64[P] on, which moves on."""
    for page in range(bounds.shape[0] - 1):
        at = cursor[page]
        for column in range(table.shape[1]):
            code = widths[page, column]
            width, base_width = np.int64(code) & 15, np.int64(code) >> 4
            out[at] = code
            at += 1
            base = _folded(bases[page, column])
            for _ in range(base_width):
                out[at] = np.uint8(base & _BYTE)
                base >>= _EIGHT
                at += 1
            least = np.uint64(bases[page, column])
            for row in range(bounds[page], bounds[page + 1]):
                value = np.uint64(table[row, column]) - least
                for _ in range(width):
                    out[at] = np.uint8(value & _BYTE)
                    value >>= _EIGHT
                    at += 1
        cursor[page] = at


@bare
def read_columns(data: Any, ends: Any, cursor: Any, bounds: Any, table: Any) -> Any:
    """Read what `write_columns` has written. Page p ends before data[ends[p]].

    Returns: whether all bytes were there; if they were not, what was read means nothing.
    """
    for page in range(bounds.shape[0] - 1):
        at, end = cursor[page], ends[page]
        rows = bounds[page + 1] - bounds[page]
        for column in range(table.shape[1]):
            if at >= end:
                return False
            width, base_width = np.int64(data[at]) & 15, np.int64(data[at]) >> 4
            at += 1
            if width > 8 or base_width > 8 or at + base_width + width * rows > end:
                return False
            folded, shift = np.uint64(0), np.uint64(0)
            for _ in range(base_width):
                folded |= np.uint64(data[at]) << shift
                shift += _EIGHT
                at += 1
            least = np.uint64(_unfolded(folded))
            for row in range(bounds[page], bounds[page + 1]):
                value, shift = np.uint64(0), np.uint64(0)
                for _ in range(width):
                    value |= np.uint64(data[at]) << shift
                    shift += _EIGHT
                    at += 1
                table[row, column] = np.int64(least + value)
        cursor[page] = at
    return True


@bare
def write_bytes(content: Any, bounds: Any, out: Any, cursor: Any) -> None:
    """Write content[bounds[p]:bounds[p + 1]] of each page, from its cursor on, which moves on."""
    for page in range(bounds.shape[0] - 1):
        at = cursor[page]
        for i in range(bounds[page], bounds[page + 1]):
            out[at] = content[i]
            at += 1
        cursor[page] = at


@bare
def read_bytes(data: Any, ends: Any, cursor: Any, bounds: Any, content: Any) -> Any:
    """Read what `write_bytes` has written; returns whether all bytes were there."""
    for page in range(bounds.shape[0] - 1):
        at = cursor[page]
        if at + bounds[page + 1] - bounds[page] > ends[page]:
            return False
        for i in range(bounds[page], bounds[page + 1]):
            content[i] = data[at]
            at += 1
        cursor[page] = at
    return True
