"""Predicates by index: for each event, those whose constant its value meets (cep/nfa/predicates.py says which).

Tested by: tests/nfa/test_predicates.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels import layout as y
from cep.kernels.interpret import run_code
from cep.kernels.jit import bare

FILTER_SIZE = 4_096  # a power of two; a value whose bucket is empty is in no entry


@bare
def _bucket(value: Any) -> Any:
    """Fibonacci hashing (Knuth, The Art of Computer Programming, vol. 3, 6.4)."""
    mixed = np.uint64(value) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed >> np.uint64(52))


@bare
def _mark(
    image: Any, entries: Any, k: Any, columns: Any, nulls: Any, row: Any, at: Any, bitmaps: Any, nothing: Any,
    machine: Any, counters: Any,
) -> None:  # fmt: skip
    """Set the bit of entry k's predicate for new event number `at`, if the rest of the predicate holds."""
    event_type = entries[k, y.INDEX_TYPE]
    if event_type >= 0 and columns[y.COLUMN_TYPE, row] != event_type:
        return
    first = entries[k, y.INDEX_CODE]
    if first >= 0:
        end, result = entries[k, y.INDEX_CODE_END], 2 * entries[k, y.INDEX_RESULT]
        run_code(image, first, end, columns, nulls, row, nothing, 0, nothing, machine, counters)
        if machine[result] == 0 or machine[result + 1] != 0:
            return
    bitmaps[entries[k, y.INDEX_PREDICATE], at >> 6] |= np.uint64(1) << np.uint64(at & 63)


@bare
def look_up(
    image: Any, groups: Any, entries: Any, values: Any, columns: Any, nulls: Any, first_row: Any, bitmaps: Any,
    occupied: Any, nothing: Any, machine: Any, counters: Any,
) -> None:  # fmt: skip
    """Fill the bitmaps of indexed predicates for the events [first_row, N).

    Shapes: groups int64[G, 4], entries int64[E, 6] with values int64[E], ascending in each group; bitmaps as in
    evaluate.py, zero where an indexed predicate has its row; occupied uint8[FILTER_SIZE] and machine are scratch;
    nothing is an empty int64[0, 0].
    Cost: O(N) a group, plus the entries that are met.
    """
    for g in range(groups.shape[0]):
        kind, column = groups[g, y.INDEX_KIND], groups[g, y.INDEX_COLUMN]
        lo, hi = groups[g, y.INDEX_FIRST], groups[g, y.INDEX_END]
        for b in range(FILTER_SIZE):
            occupied[b] = 0
        for k in range(lo, hi):
            occupied[_bucket(values[k])] = 1
        for row in range(first_row, columns.shape[1]):
            if nulls[column, row] != 0:
                continue
            value, at = columns[column, row], row - first_row
            if kind == y.INDEX_EQ:
                if occupied[_bucket(value)] == 0:
                    continue
                low, high = lo, hi
                while low < high:
                    middle = (low + high) >> 1
                    if values[middle] < value:
                        low = middle + 1
                    else:
                        high = middle
                while low < hi and values[low] == value:
                    _mark(image, entries, low, columns, nulls, row, at, bitmaps, nothing, machine, counters)
                    low += 1
            elif kind == y.INDEX_GT or kind == y.INDEX_GE:
                k = lo
                while k < hi and (values[k] < value or (kind == y.INDEX_GE and values[k] == value)):
                    _mark(image, entries, k, columns, nulls, row, at, bitmaps, nothing, machine, counters)
                    k += 1
            else:
                k = hi - 1
                while k >= lo and (values[k] > value or (kind == y.INDEX_LE and values[k] == value)):
                    _mark(image, entries, k, columns, nulls, row, at, bitmaps, nothing, machine, counters)
                    k -= 1
