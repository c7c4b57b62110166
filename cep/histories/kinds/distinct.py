"""distinct: pin the latest event with each value. If there are many values, carry only their count.

Tested by: tests/histories/test_classes.py, tests/histories/test_values.py
"""

import numpy as np

from cep.functions.calendar import window_starts_ms
from cep.histories.context import Context
from cep.histories.kinds.kind import Column
from cep.histories.numbers.folds import EventWindows
from cep.histories.numbers.panes import values_from_panes
from cep.histories.numbers.tally import NO_TALLIES, Tallies
from cep.kernels.histories import windows as kernels
from cep.kernels.layout import Int64, UInt8
from cep.nfa.histories import HistoryColumn


def values(context: Context, history: HistoryColumn, windows: EventWindows) -> Column:
    """Count the distinct values of each window."""
    table, counts = context.table, np.empty(len(windows.lows), np.int64)
    # In the window of one key, pairs of key and value differ exactly where the values differ.
    pairs, _ = table.segments((*history.by, history.value))
    codes = pairs[windows.rows]
    kernels.count_distinct(codes, int(codes.max(initial=-1)) + 1, windows.lows, windows.highs, counts)
    if context.windows.has_carried_count(history):
        counts += _distinct_outside_table(context, history)[table.key[context.new_rows][windows.events]]
    return Column(counts, np.zeros(len(counts), np.uint8))


def carry_tallies(context: Context, history: HistoryColumn, clock_ms: int) -> Tallies:
    """Return each key's number of distinct values at the clock, int64[K, 1], with which the next batch begins.

    The table lacks some events of the window. The number of the previous batch, named `counted`, includes their values.
    """
    if not context.windows.has_carried_count(history):
        return NO_TALLIES
    assert history.expr.window is not None, "it has a window"
    rows = context.windows.windows_of(history).rows
    is_in_window = context.table.time[rows] > window_starts_ms(history.expr.window, np.array([clock_ms]))[0]
    counts = _distinct_outside_table(context, history) + _count_distinct(context, history, rows[is_in_window])
    is_known = context.windows.restarted_keys(history.counted)  # this batch has read their whole window
    counts_before = context.windows.tallies_before.by_key.get(history.counted)  # of the previous batch
    if counts_before is not None:  # 0: unknown, because no batch has read the key's window yet
        is_known = is_known | (counts_before[:, 0] != 0)
    return Tallies({history.counted: np.where(is_known, counts, 0).reshape(-1, 1)})


def pin_events(context: Context, history: HistoryColumn, starts_ms: Int64) -> UInt8 | None:
    """Pin the latest event with each value."""
    if not context.windows.has_carried_value(history):
        return None
    table, pinned = context.table, np.zeros(len(context.table.time), np.uint8)
    segment, order = table.segments((*history.by, history.value))
    rows = order[context.windows.member_mask(history)[order] != 0]
    kernels.mark_retained(rows, segment, table.time, starts_ms, 1, history.is_first, pinned)
    return pinned


def values_with_panes(context: Context, history: HistoryColumn, _windows: EventWindows) -> Column:
    """Count the distinct hashes of events and panes."""
    return Column(*values_from_panes(history, context.panes_and_events(history)))


def _distinct_outside_table(context: Context, history: HistoryColumn) -> Int64:
    """int64[K]: the number of each key's values that stay in the window and are not in the table."""
    return context.once("elsewhere", history.counted, lambda: _count_outside_table(context, history))


def _count_outside_table(context: Context, history: HistoryColumn) -> Int64:
    table, windows = context.table, context.windows
    counts_before = windows.tallies_before.by_key.get(history.counted)
    if counts_before is None:
        return np.zeros(table.keys_count, np.int64)
    rows = windows.windows_of(history).rows
    rows = rows[(table.new_at[rows] < 0) & ~windows.restarted_keys(history.counted)[table.key[rows]]]
    return counts_before[:, 0] - _count_distinct(context, history, rows[windows.is_still_inside(history, rows)])


def _count_distinct(context: Context, history: HistoryColumn, rows: Int64) -> Int64:
    """int64[K]: the number of distinct values in these rows, by key."""
    table = context.table
    pairs, _ = table.segments((history.value,))
    key_of = np.full(int(pairs.max(initial=-1)) + 1, -1, np.int64)
    key_of[pairs[rows]] = table.key[rows]
    return np.bincount(key_of[key_of >= 0], minlength=table.keys_count)
