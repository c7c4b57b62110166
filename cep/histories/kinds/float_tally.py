"""sum, avg, stddev and count of floats: carry a tally of a few floats with exactly the same sum.

Tested by: tests/histories/test_tally.py, tests/histories/test_values.py
"""

import numpy as np

from cep.histories.call import Call
from cep.histories.kinds import tally
from cep.histories.kinds.kind import Column, pin_nothing
from cep.histories.numbers.folds import Members, counts_in, float_spreads, float_spreads_in, float_sums, float_sums_in
from cep.histories.numbers.tally import Tallied, float_tallies_of, float_windows, quotients
from cep.kernels.layout import Int64
from cep.nfa.histories import HistoryColumn


def values(call: Call, history: HistoryColumn, windows: Members) -> Column:
    """Return the count, sum, average or standard deviation of the floats in each window."""
    fn = history.expr.fn
    if call.windows.is_tallied(history):
        segment = windows.segment[call.new_rows][windows.events]
        before, moves = tally.begin(call, history), call.windows.moves(history, None)
        counts, numbers, rests = float_windows(
            before, moves, segment, windows.lows, windows.highs, with_rests=fn == "avg"
        )
        return _column(fn, counts, numbers, rests)
    counts = windows.highs - windows.lows
    if fn == "count":
        return _column(fn, counts, counts)
    events = call.windows.values(history, windows.rows)
    if fn == "stddev":
        return _column(fn, counts, float_spreads(events, windows))
    return _column(fn, counts, *float_sums(events, windows, with_rests=fn == "avg"))


def carry(call: Call, history: HistoryColumn, clock_ms: int) -> Tallied:
    """Move the carried floats to the clock, unless the sum needs too many of them to be exact."""
    after, is_exact = float_tallies_of(tally.begin(call, history), call.windows.moves(history, clock_ms))
    return tally.named(call, history, after) if is_exact else Tallied(crowded=frozenset((history.tally,)))


pin = pin_nothing  # because the tally is enough


def folded_values(call: Call, history: HistoryColumn, windows: Members) -> Column:
    """Add the floats in panes."""
    fn, both = history.expr.fn, call.woven(history)
    if fn == "count":
        counts = counts_in(both)
        return _column(fn, counts, counts)
    if fn == "stddev":
        spreads, counts = float_spreads_in(both)
        return _column(fn, counts, spreads)
    sums, rests, counts = float_sums_in(both, windows, with_rests=fn == "avg")
    return _column(fn, counts, sums, rests)


def _column(fn: str, counts: Int64, numbers: np.ndarray, rests: np.ndarray | None = None) -> Column:
    """Convert each window's count int64[Q], and its sum or standard deviation, to the value of the function `fn`.

    numbers float64[Q] are the sums or standard deviations; rests float64[Q] are the rounding errors of sums.
    """
    is_empty, never_null = (counts == 0).astype(np.uint8), np.zeros(len(counts), np.uint8)
    match fn:
        case "count":
            return Column(counts, never_null)
        case "stddev":
            return Column(numbers.view(np.int64), is_empty)
        case "sum":
            return Column(numbers.view(np.int64), never_null)
        case _:
            assert rests is not None, "sums have rests"
            with np.errstate(invalid="ignore", over="ignore"):
                nearest, rest = quotients((numbers, rests), np.maximum(counts, 1).astype(np.float64))
            return Column(nearest.view(np.int64), is_empty, rests=rest.view(np.int64))
