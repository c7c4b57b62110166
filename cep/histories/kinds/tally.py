"""count, sum, avg and stddev of whole numbers: carry a tally, and update it with events that enter and leave.

Tested by: tests/histories/test_tally.py, tests/histories/test_values.py
"""

import numpy as np

from cep.histories.context import Context
from cep.histories.kinds.kind import Column, pin_nothing
from cep.histories.numbers import tally as arithmetic
from cep.histories.numbers.folds import EventWindows, counts_in, tallies_in
from cep.histories.numbers.tally import Tallies
from cep.histories.store import SubTallies, tally_width
from cep.kernels.layout import Int64
from cep.nfa.histories import HistoryColumn


def values(context: Context, history: HistoryColumn, windows: EventWindows) -> Column:
    """Compute count, sum, avg or stddev of whole numbers in each window, from a carried tally or from all its events.

    A tally is the running count and sum of a segment (key and sub-key). It changes by `moves`: events enter or leave.
    """
    if context.windows.has_carried_tally(history):
        segment = windows.segment[context.new_rows[windows.events]]  # of each window's new event
        moves = context.windows.moves(history, clock_ms=None)  # None: up to each new event, not to the end of the batch
        before = carried_tallies(context, history)
        sums = arithmetic.tallies_at_events(before, moves, segment, windows.lows, windows.highs)
        return _column(history, sums, counts=sums[:, 0])
    counts = windows.highs - windows.lows  # a window is windows.rows[low:high]
    if history.expr.fn == "count":
        return Column(counts, np.zeros(len(counts), np.uint8))
    events = context.windows.values(history, windows.rows)
    sums = arithmetic.tallies_of_windows(events, windows.lows, windows.highs, tally_width(history.tally))
    return _column(history, sums, counts)


def carry_tallies(context: Context, history: HistoryColumn, clock_ms: int) -> Tallies:
    """Move the carried tally to the clock."""
    moves = context.windows.moves(history, clock_ms)
    return named_tallies(context, history, arithmetic.tallies_at_clock(carried_tallies(context, history), moves))


pin_events = pin_nothing  # because the tally is enough


def values_with_panes(context: Context, history: HistoryColumn, windows: EventWindows) -> Column:
    """Add the parts of tallies in panes."""
    merged = context.panes_and_events(history)
    if history.expr.fn == "count":
        counts = counts_in(merged)
        return Column(counts, np.zeros(len(counts), np.uint8))
    sums = tallies_in(history, merged, context.windows.values(history, windows.rows))
    sums[windows.folded == 0] = 0  # their overflows are already counted
    return _column(history, sums, sums[:, 0])


def carried_tallies(context: Context, history: HistoryColumn) -> Int64:
    """Return the tallies that the previous call left, by segment of the table: int64[S, W], zeros where none exists."""
    if not history.by:
        tally = context.windows.tallies_before.by_key.get(history.tally)
        return np.zeros((context.table.keys_count, tally_width(history.tally)), np.int64) if tally is None else tally
    return context.once("begin", history.tally, lambda: _carried_by_sub_key(context, history))


def _carried_by_sub_key(context: Context, history: HistoryColumn) -> Int64:
    segment, _ = context.table.segments(history.by)
    sums = np.zeros((int(segment.max(initial=-1)) + 1, tally_width(history.tally)), np.int64)
    entries, segments = _entries(context, history)
    with_segment = np.flatnonzero(segments >= 0)
    sums[segments[with_segment]] = entries.sums[with_segment]
    return sums


def named_tallies(context: Context, history: HistoryColumn, tally: Int64) -> Tallies:
    """Store the tally after the call under the history's name; by sub-key, as entries."""
    if not history.by:
        return Tallies({history.tally: tally})
    before, segments = _entries(context, history)
    after = arithmetic.update_entries(before, segments, tally, context.table, history.by, history.expr.by)
    return Tallies(by_sub_key={history.tally: after})


def _entries(context: Context, history: HistoryColumn) -> tuple[SubTallies, Int64]:
    """Return the entries of the previous call, and the segment of each."""
    entries = context.windows.tallies_before.by_sub_key.get(history.tally)
    if entries is None:
        entries = arithmetic.no_entries(context.table, history.expr.by, tally_width(history.tally))
    return entries, context.once(
        "segments", history.tally, lambda: arithmetic.segments_of_entries(entries, context.table, history.by)
    )


def _column(history: HistoryColumn, sums: Int64, counts: Int64) -> Column:
    """Convert the tally of each window (count, sum, sum of squares) to the function's value; a float as its bits."""
    fn, argument = history.expr.fn, history.expr.argument
    is_empty = (counts == 0).astype(np.uint8)
    if fn == "count" or argument is None:
        return Column(counts, np.zeros(len(counts), np.uint8))
    if fn == "stddev":
        return Column((arithmetic.deviations(sums) / float(10**argument.type.scale)).view(np.int64), is_empty)
    if fn == "sum":
        totals, overflows = arithmetic.whole_sums(sums)
        return Column(totals, np.zeros(len(counts), np.uint8), overflows)
    nearest, error = arithmetic.averages(sums, counts, argument.type.scale)  # the exact average is their sum
    return Column(nearest.view(np.int64), is_empty, rounding_errors=error.view(np.int64))
