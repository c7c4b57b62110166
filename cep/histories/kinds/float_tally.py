"""sum, avg, stddev and count of floats: carry a tally of a few floats with exactly the same sum.

Tested by: tests/histories/test_tally.py, tests/histories/test_values.py
"""

import numpy as np

from cep.histories.context import Context
from cep.histories.kinds import tally
from cep.histories.kinds.kind import Column, pin_nothing
from cep.histories.numbers import folds
from cep.histories.numbers.folds import EventWindows
from cep.histories.numbers.tally import Tallies, float_tallies_at_clock, float_values_at_events, quotients
from cep.kernels.layout import Int64
from cep.nfa.histories import HistoryColumn


def values(context: Context, history: HistoryColumn, windows: EventWindows) -> Column:
    """Compute count, sum, avg or stddev of floats in each window, from a carried tally (running sum) or all events."""
    fn = history.expr.fn
    if context.windows.has_carried_tally(history):
        segment = windows.segment[context.new_rows][windows.events]  # the number of the event's key and sub-key
        before, moves = tally.carried_tallies(context, history), context.windows.moves(history, clock_ms=None)
        bounds = segment, windows.lows, windows.highs
        counts, numbers, rounding_errors = float_values_at_events(before, moves, *bounds, with_errors=fn == "avg")
        return _column(fn, counts, numbers, rounding_errors)
    counts = windows.highs - windows.lows
    if fn == "count":
        return _column(fn, counts, counts)
    events = context.windows.values(history, windows.rows)
    if fn == "stddev":
        return _column(fn, counts, folds.float_deviations(events, windows))
    return _column(fn, counts, *folds.float_sums(events, windows, with_errors=fn == "avg"))


def carry_tallies(context: Context, history: HistoryColumn, clock_ms: int) -> Tallies:
    """Move the carried floats to the clock, unless the sum needs too many of them to be exact."""
    before, moves = tally.carried_tallies(context, history), context.windows.moves(history, clock_ms)
    after, is_exact = float_tallies_at_clock(before, moves)
    return tally.named_tallies(context, history, after) if is_exact else Tallies(crowded=frozenset((history.tally,)))


pin_events = pin_nothing  # because the tally is enough


def values_with_panes(context: Context, history: HistoryColumn, windows: EventWindows) -> Column:
    """Add the floats in panes."""
    fn, merged = history.expr.fn, context.panes_and_events(history)
    if fn == "count":
        counts = folds.counts_in(merged)
        return _column(fn, counts, counts)
    if fn == "stddev":
        deviations, counts = folds.float_deviations_in(merged)
        return _column(fn, counts, deviations)
    sums, rounding_errors, counts = folds.float_sums_in(merged, windows, with_errors=fn == "avg")
    return _column(fn, counts, sums, rounding_errors)


def _column(fn: str, counts: Int64, numbers: np.ndarray, rounding_errors: np.ndarray | None = None) -> Column:
    """Convert each window's count int64[Q], and its sum or standard deviation, to the value of the function `fn`.

    numbers float64[Q] are the sums or standard deviations; rounding_errors float64[Q] belong to the sums. A column has
    the bits of floats as int64. An empty window has the count or sum 0; the other functions are null.
    """
    is_empty, never_null = (counts == 0).astype(np.uint8), np.zeros(len(counts), np.uint8)
    match fn:
        case "count":
            return Column(counts, never_null)
        case "stddev":
            return Column(numbers.view(np.int64), is_empty)
        case "sum":
            return Column(numbers.view(np.int64), never_null)
        case _:  # "avg"
            assert rounding_errors is not None, "sums have rounding errors"
            with np.errstate(invalid="ignore", over="ignore"):
                nearest, error = quotients((numbers, rounding_errors), np.maximum(counts, 1).astype(np.float64))
            return Column(nearest.view(np.int64), is_empty, rounding_errors=error.view(np.int64))
