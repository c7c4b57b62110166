"""The events of windows → sums, extremes and standard deviations, computed from whole windows.

Tested by: tests/histories/test_values.py, tests/histories/test_store.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cep.base.schema import Type
from cep.histories.numbers.spreads import Pair, can_be_squared, two_sums
from cep.kernels.histories import windows as kernels
from cep.kernels.layout import Int64, UInt8


@dataclass(frozen=True, slots=True)
class Members:
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


def extreme(values: Int64, type_: Type, windows: Members, *, is_least: bool) -> Int64:
    """Return the least or the greatest value of each window; undefined for an empty window."""
    ordered = sortable(values, type_)
    out = np.empty(len(windows.lows), np.int64)
    kernels.least(ordered if is_least else ~ordered, windows.lows, windows.highs, out)
    return values[np.maximum(out, 0)] if len(values) else np.zeros(len(out), np.int64)


def as_floats(values: Int64, type_: Type) -> np.ndarray:
    """Convert slots to the numbers that they represent."""
    return values.view(np.float64) if type_.is_float else values / float(10**type_.scale)


def float_sums(values: Int64, windows: Members, *, with_rests: bool) -> Pair:
    """Return the sum of each window, rounded once, and its rounding error if `with_rests`, otherwise an empty array.

    Infinities and NaN are left out of the exact sum and added afterwards.
    """
    floats = values.view(np.float64)
    finite = np.isfinite(floats)
    finite_values = np.where(finite, values, 0)
    if with_rests:
        out, rests = two_sums(finite_values, windows.lows, windows.highs)
    else:
        out, rests = np.empty(len(windows.lows), np.float64), np.empty(0, np.float64)
        kernels.sum_floats(finite_values, windows.lows, windows.highs, out)
    if not finite.all():
        for special in (np.inf, -np.inf, np.nan):
            has = np.isnan(floats) if special != special else floats == special  # noqa: PLR0124 nan alone differs
            out = np.where(_any_in(has, windows), out + special, out)
    return out, rests


def _any_in(flags: np.ndarray, windows: Members) -> np.ndarray:
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(flags)])
    has_any: np.ndarray = running[windows.highs] > running[windows.lows]
    return has_any


def float_spreads(values: Int64, windows: Members) -> Int64:
    """Return the population standard deviation of each window, as slots."""
    is_squarable = can_be_squared(values)
    out = np.empty(len(windows.lows), np.float64)
    kernels.spread_floats(np.where(is_squarable, values, 0), windows.lows, windows.highs, out)
    return np.where(_any_in(~is_squarable, windows), np.nan, out).view(np.int64)


def of_rank(ordered: Int64, percent: int, lows: Int64, highs: Int64) -> Int64:
    """Return the value at a rank of each window; undefined for an empty window."""
    different, codes = np.unique(ordered, return_inverse=True)
    out = np.empty(len(lows), np.int64)
    kernels.find_rank(codes, len(different), percent, lows, highs, out)
    return different[np.maximum(out, 0)] if len(different) else np.zeros(len(out), np.int64)
