"""Texts as offsets and bytes: copied, taken by row, numbered.

Texts of two columns are numbered and taken as if b stood behind a, without a copy of both first.
Tested by: tests/columnar/test_texts.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels.arrange import hash_bytes
from cep.kernels.jit import bare, inlined, kernel

_FIRST_WIDE = 128  # bytes of characters of several bytes
_TABLE_MIN = 16


@inlined
def copy_bytes(data: Any, start: Any, end: Any, out: Any, at: Any) -> Any:
    """Copy data[start:end] to where `at` is in `out`; returns where that ends."""
    for k in range(start, end):
        out[at] = data[k]
        at += 1
    return at


@kernel
def copy_texts(data: Any, starts: Any, ends: Any) -> Any:
    """The texts between those bounds one behind the other: int64 offsets[N + 1], uint8[B], whether all of it is ASCII.

    Shapes: int64 starts[N], ends[N] into data uint8.
    """
    count = starts.shape[0]
    offsets = np.zeros(count + 1, np.int64)
    for row in range(count):
        offsets[row + 1] = offsets[row] + ends[row] - starts[row]
    texts, at, all_bits = np.empty(offsets[count], np.uint8), 0, np.uint8(0)
    for row in range(count):
        for k in range(starts[row], ends[row]):
            texts[at] = data[k]
            all_bits |= data[k]
            at += 1
    return offsets, texts, all_bits < _FIRST_WIDE


@kernel
def take_texts(offsets_a: Any, data_a: Any, offsets_b: Any, data_b: Any, rows: Any) -> Any:
    """The texts of these rows, int64[N] in any order: int64 offsets[N + 1], uint8[B].

    Shapes: A texts int64 offsets_a[A + 1] into data_a uint8, and so for b, whose first row is A.
    """
    first_b, count = offsets_a.shape[0] - 1, rows.shape[0]
    offsets = np.zeros(count + 1, np.int64)
    for k in range(count):
        row = rows[k]
        if row < first_b:
            offsets[k + 1] = offsets[k] + offsets_a[row + 1] - offsets_a[row]
        else:
            offsets[k + 1] = offsets[k] + offsets_b[row - first_b + 1] - offsets_b[row - first_b]
    texts, at = np.empty(offsets[count], np.uint8), 0
    for k in range(count):
        row = rows[k]
        if row < first_b:
            at = copy_bytes(data_a, offsets_a[row], offsets_a[row + 1], texts, at)
        else:
            at = copy_bytes(data_b, offsets_b[row - first_b], offsets_b[row - first_b + 1], texts, at)
    return offsets, texts


@inlined
def is_same_text(data: Any, start: Any, end: Any, other: Any, other_start: Any, other_end: Any) -> Any:
    """Whether data[start:end] and other[other_start:other_end] are the same bytes."""
    if end - start != other_end - other_start:
        return False
    for k in range(end - start):
        if data[start + k] != other[other_start + k]:
            return False
    return True


@bare
def _number_rows(
    offsets: Any, data: Any, first_row: Any, offsets_a: Any, data_a: Any, offsets_b: Any, data_b: Any, table: Any,
    codes: Any, firsts: Any, found: Any,
) -> Any:  # fmt: skip
    """Number the texts of one of both columns, whose first row is that one; returns how many there are by now."""
    first_b, mask = offsets_a.shape[0] - 1, np.uint64(table.shape[0] - 1)
    for k in range(offsets.shape[0] - 1):
        start, end = offsets[k], offsets[k + 1]
        place = hash_bytes(data, start, end, 0) & mask
        while True:
            code = table[place]
            if code < 0:
                table[place] = code = found
                firsts[found] = first_row + k
                found += 1
                break
            row = firsts[code]
            if row < first_b:
                is_found = is_same_text(data, start, end, data_a, offsets_a[row], offsets_a[row + 1])
            else:
                is_found = is_same_text(
                    data, start, end, data_b, offsets_b[row - first_b], offsets_b[row - first_b + 1]
                )
            if is_found:
                break
            place = (place + np.uint64(1)) & mask
        codes[first_row + k] = code
    return found


@kernel
def number_texts(offsets_a: Any, data_a: Any, offsets_b: Any, data_b: Any, codes: Any, firsts: Any) -> Any:
    """Number texts in the order in which they first appear, equal ones alike; returns how many numbers there are.

    Shapes: texts as of `take_texts`; fills codes int32[A + B], and firsts int64[A + B] with the row where each of them
    stands first.
    """
    size = _TABLE_MIN
    while size < 2 * codes.shape[0]:
        size *= 2
    table = np.full(size, -1, np.int32)
    found = _number_rows(
        offsets_a, data_a, 0, offsets_a, data_a, offsets_b, data_b, table, codes, firsts, 0
    )  # fmt: skip
    return _number_rows(
        offsets_b, data_b, offsets_a.shape[0] - 1, offsets_a, data_a, offsets_b, data_b, table, codes, firsts, found
    )  # fmt: skip
