"""count, sum, avg and stddev of whole numbers: carry a tally, and update it with events that enter and leave.

Tested by: tests/histories/test_tally.py, tests/histories/test_values.py
"""

import numpy as np

from cep.histories.call import Call
from cep.histories.kinds.kind import Column, pin_nothing
from cep.histories.numbers.folds import Members, counts_in, tallies_in
from cep.histories.numbers.tally import (
    Tallied,
    at_clock,
    at_events,
    averages,
    entries_after,
    no_entries,
    of_windows,
    segments_of,
    spreads,
    whole_sums,
)
from cep.histories.store import SubTallies, tally_width
from cep.kernels.layout import Int64
from cep.nfa.histories import HistoryColumn


def values(call: Call, history: HistoryColumn, windows: Members) -> Column:
    """Return the count, sum, average or standard deviation of the integers or decimals in each window."""
    if call.windows.is_tallied(history):
        segment = windows.segment[call.new_rows][windows.events]
        moves = call.windows.moves(history, None)
        sums = at_events(begin(call, history), moves, segment, windows.lows, windows.highs)
        return _column(history, sums, sums[:, 0])
    counts = windows.highs - windows.lows
    if history.expr.fn == "count":
        return Column(counts, np.zeros(len(counts), np.uint8))
    events = call.windows.values(history, windows.rows)
    return _column(history, of_windows(events, windows.lows, windows.highs, tally_width(history.tally)), counts)


def carry(call: Call, history: HistoryColumn, clock_ms: int) -> Tallied:
    """Move the carried tally to the clock."""
    return named(call, history, at_clock(begin(call, history), call.windows.moves(history, clock_ms)))


pin = pin_nothing  # because the tally is enough


def folded_values(call: Call, history: HistoryColumn, windows: Members) -> Column:
    """Add the parts of tallies in panes."""
    both = call.woven(history)
    if history.expr.fn == "count":
        counts = counts_in(both)
        return Column(counts, np.zeros(len(counts), np.uint8))
    sums = tallies_in(history, both, call.windows.values(history, windows.rows))
    sums[windows.folded == 0] = 0  # their overflows are already counted
    return _column(history, sums, sums[:, 0])


def begin(call: Call, history: HistoryColumn) -> Int64:
    """Return the tallies that the previous call left, by segment of the table: int64[S, W], zeros where none exists."""
    if not history.by:
        tally = call.windows.before.by_key.get(history.tally)
        return np.zeros((call.table.keys_count, tally_width(history.tally)), np.int64) if tally is None else tally
    return call.once("begin", history.tally, lambda: _begin_by_sub_key(call, history))


def _begin_by_sub_key(call: Call, history: HistoryColumn) -> Int64:
    segment, _ = call.table.segments(history.by)
    sums = np.zeros((int(segment.max(initial=-1)) + 1, tally_width(history.tally)), np.int64)
    entries, segments = _entries(call, history)
    with_segment = np.flatnonzero(segments >= 0)
    sums[segments[with_segment]] = entries.sums[with_segment]
    return sums


def named(call: Call, history: HistoryColumn, tally: Int64) -> Tallied:
    """Store the tally after the call under the history's name; by sub-key, as entries."""
    if not history.by:
        return Tallied({history.tally: tally})
    before, segments = _entries(call, history)
    after = entries_after(before, segments, tally, call.table, history.by, history.expr.by)
    return Tallied(by_sub_key={history.tally: after})


def _entries(call: Call, history: HistoryColumn) -> tuple[SubTallies, Int64]:
    """Return the entries of the previous call, and the segment of each."""
    entries = call.windows.before.by_sub_key.get(history.tally)
    if entries is None:
        entries = no_entries(call.table, history.expr.by, tally_width(history.tally))
    return entries, call.once("segments", history.tally, lambda: segments_of(entries, call.table, history.by))


def _column(history: HistoryColumn, sums: Int64, counts: Int64) -> Column:
    """Convert the tally of each window (count, sum and sum of squares) to the value of the history's function."""
    fn, argument = history.expr.fn, history.expr.argument
    is_empty = (counts == 0).astype(np.uint8)
    if fn == "count" or argument is None:
        return Column(counts, np.zeros(len(counts), np.uint8))
    if fn == "stddev":
        return Column((spreads(sums) / float(10**argument.type.scale)).view(np.int64), is_empty)
    if fn == "sum":
        totals, overflows = whole_sums(sums)
        return Column(totals, np.zeros(len(counts), np.uint8), overflows)
    nearest, rest = averages(sums, counts, argument.type.scale)
    return Column(nearest.view(np.int64), is_empty, rests=rest.view(np.int64))
