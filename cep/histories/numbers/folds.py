"""Windows with more events than the limit: exact up to the limit; older events are folded into panes (panes.py).

The far edge of a window with more than `events_max` events of its key is rounded outwards to a pane. So its value is
the same whether its older events are still there one by one, as in a replay, or only as rows of panes
(`fold_into_panes`). Sums and counts stay exact. `first` reads the first event of each pane, which stays an event.

Each remembered value of a sub-key has panes of its own (sub_keys.py); the limit applies to all values together. Windows
without a carried tally are computed here from all their events.
Tested by: tests/histories/test_folds.py, tests/histories/test_values.py, tests/histories/test_store.py.
"""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from cep.base.schema import Type
from cep.histories.numbers import tally as arithmetic
from cep.histories.numbers.panes import PaneRows, PanesAndEvents, argument_type, codes_of_values, concat_panes, pane_of
from cep.histories.numbers.tally import Pair
from cep.histories.store import tally_width
from cep.kernels.histories import windows as kernels
from cep.kernels.layout import Int64, UInt8
from cep.nfa.histories import HistoryColumn


@dataclass(frozen=True, slots=True)
class EventWindows:
    """The rows that count for a history, and for each new event the window of rows up to it (histories/windows.py).

    Shapes: rows int64[M], sorted by segment and event order; segment int64[N], the (sub-)key of each row of the table;
    lows, highs int64[Q]: a window contains rows[lows:highs]; events int64[Q], the index of each window's new event;
    folded uint8[Q], 1 for a window with more events than the limit.
    """

    rows: Int64
    segment: Int64
    lows: Int64
    highs: Int64
    events: Int64
    folded: UInt8


def sortable(values: Int64, type_: Type) -> Int64:
    """Map the slots of values to integers in value order. Applied twice, it returns the slots."""
    if not type_.is_float:
        return values
    flipped: Int64 = values ^ ((values >> 63) & np.int64(0x7FFFFFFFFFFFFFFF))
    return flipped


def extreme(values: Int64, type_: Type, windows: EventWindows, *, is_least: bool) -> Int64:
    """Return the least or the greatest value of each window; undefined for an empty window."""
    ordered = sortable(values, type_)
    out = np.empty(len(windows.lows), np.int64)
    kernels.least(ordered if is_least else ~ordered, windows.lows, windows.highs, out)
    return values[np.maximum(out, 0)] if len(values) else np.zeros(len(out), np.int64)


def as_floats(values: Int64, type_: Type) -> np.ndarray:
    """Convert slots to the numbers that they represent."""
    return values.view(np.float64) if type_.is_float else values / float(10**type_.scale)


def float_sums(values: Int64, windows: EventWindows, *, with_errors: bool) -> Pair:
    """Return two arrays: the sum of each window, rounded once, and its rounding error (empty without `with_errors`)."""
    floats = values.view(np.float64)  # `values` are the bits of floats, as int64
    finite = np.isfinite(floats)
    finite_values = np.where(finite, values, 0)  # the kernels below take bits, too; bits 0 are the float 0.0
    if with_errors:
        out, rounding_errors = arithmetic.two_sums(finite_values, windows.lows, windows.highs)
    else:
        out, rounding_errors = np.empty(len(windows.lows), np.float64), np.empty(0, np.float64)
        kernels.sum_floats(finite_values, windows.lows, windows.highs, out)
    if not finite.all():
        for special in (np.inf, -np.inf, np.nan):
            has = np.isnan(floats) if special != special else floats == special  # noqa: PLR0124 nan alone differs
            out = np.where(_summed(has, windows) > 0, out + special, out)
    return out, rounding_errors


def float_deviations(values: Int64, windows: EventWindows) -> Int64:
    """Return the population standard deviation of each window, as slots."""
    is_squarable = arithmetic.can_be_squared(values)
    out = np.empty(len(windows.lows), np.float64)
    kernels.spread_floats(np.where(is_squarable, values, 0), windows.lows, windows.highs, out)
    return np.where(_summed(~is_squarable, windows) > 0, np.nan, out).view(np.int64)


def of_rank(ordered: Int64, percent: int, lows: Int64, highs: Int64) -> Int64:
    """Return the value at a rank of each window; undefined for an empty window."""
    different, codes = np.unique(ordered, return_inverse=True)
    out = np.empty(len(lows), np.int64)
    kernels.find_rank(codes, len(different), percent, lows, highs, out)
    return different[np.maximum(out, 0)] if len(different) else np.zeros(len(out), np.int64)


def rows_of_events(history: HistoryColumn, key: Int64, time_ms: Int64, values: Int64, texts: pa.Array) -> PaneRows:
    """Return single events in the form of panes: one row each, with its value as code (0 for a tally) and weight 1."""
    nothing = np.zeros(len(key), np.int64)
    return PaneRows(key, pane_of(history, time_ms), _codes(history, values, texts), weight=nothing + 1, sub=nothing)


def fold_into_panes(history: HistoryColumn, rows: PaneRows, values: Int64) -> PaneRows:
    """Convert events (`rows_of_events`) to rows of panes (partial aggregates of time slices): a code with a weight.

    Weights of equal codes are added later. One event becomes these rows, written as `code → weight`:
        min, max, distinct, median   value (for `distinct` a hash, for `median` and percentiles a bucket) → 1
        sums of whole numbers        column of the tally (count, parts of sums) → part of the event; a row a column
        sums of floats               bits of the value → 0, and 0 → 1, which counts the event
        stddev of floats             the same two rows, and bits of each part of the exact square → -1
    """
    zeros = np.zeros(len(rows), np.int64)
    if history.is_float_sum or history.is_float_spread:
        count_rows = replace(rows, code=zeros)
        if history.is_float_sum:
            return concat_panes([replace(rows, weight=zeros), count_rows])
        is_squarable = arithmetic.can_be_squared(values)
        codes = np.where(is_squarable, values, np.float64(np.inf).view(np.int64))  # ∞ makes the result NaN
        square_parts = arithmetic.squares(np.where(is_squarable, values, 0))
        square_rows = [replace(rows, code=part, weight=zeros - 1) for part in square_parts]
        return concat_panes([replace(rows, code=codes, weight=zeros), count_rows, *square_rows])
    if not history.tally or history.expr.fn == "count":
        return rows  # these need one row for each event
    parts = arithmetic.parts_of(values, tally_width(history.tally))
    columns = range(parts.shape[1])
    return concat_panes([replace(rows, code=zeros + column, weight=parts[:, column]) for column in columns])


def tallies_in(history: HistoryColumn, merged: PanesAndEvents, values: Int64) -> Int64:
    """int64[Q, W]: the tally of each window; `values` are the members' values."""
    width = tally_width(history.tally)
    rows = merged.rows
    parts = np.zeros((len(rows), width), np.int64)
    parts[merged.event_positions] = arithmetic.parts_of(values, width)
    old_rows = np.flatnonzero(_is_pane(merged))
    parts[old_rows, rows.code[old_rows]] = rows.weight[old_rows]
    return arithmetic.tallies_of_parts(parts, merged.lows, merged.highs)


def counts_in(merged: PanesAndEvents) -> Int64:
    """int64[Q]: the number of events in each window."""
    return _summed(merged.rows.weight, merged)


def float_sums_in(
    merged: PanesAndEvents, windows: EventWindows, *, with_errors: bool
) -> tuple[np.ndarray, np.ndarray, Int64]:
    """float64[Q] sums of windows, float64[Q] their rounding errors, and int64[Q] their event counts."""
    wide = replace(windows, lows=merged.lows, highs=merged.highs)
    return *float_sums(merged.rows.code, wide, with_errors=with_errors), counts_in(merged)


def float_deviations_in(merged: PanesAndEvents) -> tuple[Int64, Int64]:
    """Return the population standard deviation of each window over panes and single events, and its event count.

    A pane (partial aggregate of a time slice) has a row for each part of its sum, and with weight -1 for each part of
    its sum of squares. A code is the bits of such a part, or of an event's value. Other weights count events. Shapes:
    int64[Q] both; a deviation is the bits of a float64, NaN if an event of the window is not finite.
    """
    rows, is_pane = merged.rows, _is_pane(merged)
    events = merged.event_positions
    is_square, is_finite = is_pane & (rows.weight < 0), np.where(is_pane, np.isfinite(rows.code.view(np.float64)), True)
    is_finite[events] = arithmetic.can_be_squared(rows.code[events])  # the squares of events are computed here
    finite = np.where(is_finite, rows.code, 0)
    square_pairs = np.zeros((len(rows), 2), np.int64)  # each square as the nearest float and its rounding error
    square_pairs[is_square, 0] = finite[is_square]
    square_pairs[events] = np.stack(arithmetic.squares(finite[events]), axis=1)
    counts = _summed(np.maximum(rows.weight, 0), merged)
    deviation = arithmetic.deviations_of(
        counts,
        arithmetic.two_sums(np.where(is_square, 0, finite), merged.lows, merged.highs),
        arithmetic.two_sums(square_pairs.reshape(-1), 2 * merged.lows, 2 * merged.highs),  # two entries for each row
    )
    is_all_finite = _summed(~is_finite, merged) == 0
    return np.where(is_all_finite, deviation, np.nan).view(np.int64), counts


def extreme_in(history: HistoryColumn, merged: PanesAndEvents) -> Int64:
    """Return the least or greatest value of each window; undefined for an empty window."""
    positions = np.empty(len(merged.lows), np.int64)
    kernels.least(merged.rows.code, merged.lows, merged.highs, positions)
    chosen = merged.rows.code[np.maximum(positions, 0)] if len(merged.rows) else positions
    return sortable(chosen if history.expr.fn == "min" else ~chosen, argument_type(history))


def _is_pane(merged: PanesAndEvents) -> np.ndarray:
    is_pane = np.ones(len(merged.rows), bool)
    is_pane[merged.event_positions] = False
    return is_pane


def _summed(numbers: np.ndarray, windows: EventWindows | PanesAndEvents) -> Int64:
    """int64[Q]: the sum of integers or flags in each window."""
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(numbers)])
    summed: Int64 = running[windows.highs] - running[windows.lows]
    return summed


def _codes(history: HistoryColumn, values: Int64, texts: pa.Array) -> Int64:
    if history.is_float_sum or history.is_float_spread:
        return values
    if history.tally:
        return np.zeros(len(values), np.int64)
    if history.is_extreme:
        ordered = sortable(values, argument_type(history))
        return ordered if history.expr.fn == "min" else ~ordered
    return codes_of_values(history, values, texts)
