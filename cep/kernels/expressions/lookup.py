"""Events → the bits of indexed predicates, whose constants the event's value satisfies (cep/nfa/predicates.py).

Tested by: tests/nfa/test_predicates.py
"""

import numpy as np

from cep.kernels import layout as y
from cep.kernels.expressions.interpret import run_code
from cep.kernels.jit import bare, copied, inlined
from cep.kernels.layout import Int64, UInt8, int64
from cep.kernels.records import Events, PredicateIndex, Work

_run_code = copied(run_code)
FILTER_SIZE = 4_096  # a power of two; a value whose bucket is empty is in no entry


@bare
def _bucket(value: int) -> int:
    """Return the value's bucket, by Fibonacci hashing (Knuth, The Art of Computer Programming, vol. 3, 6.4)."""
    mixed = np.uint64(value) * np.uint64(0x9E3779B97F4A7C15)
    return int64(mixed >> np.uint64(52))


@inlined
def _find_satisfied(values: Int64, lo: int, hi: int, kind: int, value: int) -> tuple[int, int]:
    """Return the range of the entries i in [lo, hi) for which `value op values[i]` holds. The constants ascend."""
    first, end = lo, hi
    if kind == y.INDEX_EQ:  # a binary search; the loops for other operators visit only entries for which it holds
        while first < end:
            middle = (first + end) >> 1
            if values[middle] < value:
                first = middle + 1
            else:
                end = middle
        while end < hi and values[end] == value:
            end += 1
    elif kind == y.INDEX_GT or kind == y.INDEX_GE:  # holds for the smaller constants, from lo on
        end = lo
        while end < hi and (values[end] < value or (kind == y.INDEX_GE and values[end] == value)):
            end += 1
    else:  # INDEX_LT or INDEX_LE holds for the greater constants, up to hi
        first = hi
        while first > lo and (values[first - 1] > value or (kind == y.INDEX_LE and values[first - 1] == value)):
            first -= 1
    return first, end


@inlined
def _set_bit_if_met(image: Int64, entries: Int64, k: int, events: Events, row: int, work: Work, errors: Int64) -> None:
    """Set the bit of entry k's predicate for an event that fulfils its comparison, if its other conditions hold too."""
    event_type = entries[k, y.INDEX_TYPE]  # -1 for any type
    if event_type >= 0 and events.columns[y.COLUMN_TYPE, row] != event_type:
        return
    first = entries[k, y.INDEX_CODE]  # where the code of the other conditions begins, -1 if there are none
    if first >= 0:
        end, result = entries[k, y.INDEX_CODE_END], 2 * entries[k, y.INDEX_RESULT]
        before = work.counters[y.COUNT_OVERFLOW]
        _run_code(image, first, end, events, row, work, 0)  # the code reads no run, so any run would do
        if work.counters[y.COUNT_OVERFLOW] != before:
            errors[k] += work.counters[y.COUNT_OVERFLOW] - before
        if work.registers[result] == 0 or work.registers[result + 1] != 0:  # the value is false, or the flag says null
            return
    event_index = row - events.first_row
    events.bitmaps[entries[k, y.INDEX_PREDICATE], event_index >> 6] |= np.uint64(1) << np.uint64(event_index & 63)


@bare
def look_up(image: Int64, index: PredicateIndex, events: Events, occupied: UInt8, work: Work, errors: Int64) -> None:
    """Fill the bitmaps of indexed predicates (conditions on an event) for the new events. They are zero before.

    An entry is a comparison `column op constant` of a predicate, which may have other conditions too. The entries of a
    group have the same column and operator, and their constants ascend. `occupied` marks the hash buckets of the
    constants. If the operator is INDEX_EQ, it rejects most values without a search. Shapes: occupied uint8[FILTER_SIZE]
    is scratch; errors int64[E] counts overflows by entry. Cost: O(N) per group, and the satisfied entries.
    """
    entries, values = index.entries, index.values
    for g in range(index.groups.shape[0]):
        kind, column = index.groups[g, y.INDEX_KIND], index.groups[g, y.INDEX_COLUMN]
        lo, hi = index.groups[g, y.INDEX_FIRST], index.groups[g, y.INDEX_END]
        for b in range(FILTER_SIZE):
            occupied[b] = 0
        for k in range(lo, hi):
            occupied[_bucket(values[k])] = 1
        for row in range(events.first_row, events.columns.shape[1]):
            if events.nulls[column, row] != 0:
                continue
            value = events.columns[column, row]
            if kind == y.INDEX_EQ and occupied[_bucket(value)] == 0:
                continue
            k, end = _find_satisfied(values, lo, hi, kind, value)
            while k < end:
                _set_bit_if_met(image, entries, k, events, row, work, errors)
                k += 1
