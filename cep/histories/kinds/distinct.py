"""distinct: pin the latest event with each value. If there are many values, carry only their count.

Tested by: tests/histories/test_classes.py, tests/histories/test_values.py
"""

import numpy as np

from cep.functions.calendar import opens_ms
from cep.histories.call import Call
from cep.histories.kinds.kind import Column
from cep.histories.numbers.folds import Members
from cep.histories.numbers.panes import values_of
from cep.histories.numbers.tally import NOTHING_TALLIED, Tallied
from cep.kernels.histories import windows as kernels
from cep.kernels.layout import Int64, UInt8
from cep.nfa.histories import HistoryColumn


def values(call: Call, history: HistoryColumn, windows: Members) -> Column:
    """Count the distinct values of each window."""
    table, counts = call.table, np.empty(len(windows.lows), np.int64)
    # In the window of one key, pairs of key and value differ exactly where the values differ.
    pairs, _ = table.segments((*history.by, history.value))
    codes = pairs[windows.rows]
    kernels.count_distinct(codes, int(codes.max(initial=-1)) + 1, windows.lows, windows.highs, counts)
    if call.windows.is_counted(history):
        counts += _elsewhere(call, history)[table.key[call.new_rows][windows.events]]
    return Column(counts, np.zeros(len(counts), np.uint8))


def carry(call: Call, history: HistoryColumn, clock_ms: int) -> Tallied:
    """Return each key's number of distinct values at the clock: int64[K, 1], 0 where the number is unknown."""
    if not call.windows.is_counted(history):
        return NOTHING_TALLIED
    assert history.expr.window is not None, "it has a window"
    rows = call.windows.windows_of(history).rows
    is_in_window = call.table.time[rows] > opens_ms(history.expr.window, np.array([clock_ms]))[0]
    counts = _elsewhere(call, history) + _different(call, history, rows[is_in_window])
    is_begun, tally = call.windows.begun(history.counted), call.windows.before.by_key.get(history.counted)
    if tally is not None:
        is_begun = is_begun | (tally[:, 0] != 0)
    return Tallied({history.counted: np.where(is_begun, counts, 0).reshape(-1, 1)})


def pin(call: Call, history: HistoryColumn, opens: Int64) -> UInt8 | None:
    """Pin the latest event with each value."""
    if not call.windows.is_carried(history):
        return None
    table, pinned = call.table, np.zeros(len(call.table.time), np.uint8)
    segment, order = table.segments((*history.by, history.value))
    rows = order[call.windows.member(history)[order] != 0]
    kernels.mark_retained(rows, segment, table.time, opens, 1, history.is_first, pinned)
    return pinned


def folded_values(call: Call, history: HistoryColumn, _windows: Members) -> Column:
    """Count the distinct hashes of events and panes."""
    return Column(*values_of(history, call.woven(history)))


def _elsewhere(call: Call, history: HistoryColumn) -> Int64:
    """int64[K]: the number of each key's values that stay in the window and are not in the table."""
    return call.once("elsewhere", history.counted, lambda: _count_elsewhere(call, history))


def _count_elsewhere(call: Call, history: HistoryColumn) -> Int64:
    table, windows = call.table, call.windows
    tally = windows.before.by_key.get(history.counted)
    if tally is None:
        return np.zeros(table.keys_count, np.int64)
    rows = windows.windows_of(history).rows
    rows = rows[(table.new_at[rows] < 0) & ~windows.begun(history.counted)[table.key[rows]]]
    return tally[:, 0] - _different(call, history, rows[windows.is_still_inside(history, rows)])


def _different(call: Call, history: HistoryColumn, rows: Int64) -> Int64:
    """int64[K]: the number of distinct values in these rows, by key."""
    table = call.table
    pairs, _ = table.segments((history.value,))
    key_of = np.full(int(pairs.max(initial=-1)) + 1, -1, np.int64)
    key_of[pairs[rows]] = table.key[rows]
    return np.bincount(key_of[key_of >= 0], minlength=table.keys_count)
