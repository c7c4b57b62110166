"""Tallies of floats: exact sums over windows, carried from call to call (float_sums.py) and rounded once.

Tested by: tests/histories/test_tally.py, tests/histories/test_values.py
"""

from __future__ import annotations

import numpy as np

from cep.histories.numbers.spreads import can_be_squared
from cep.histories.numbers.tally import Moves
from cep.kernels.histories import records
from cep.kernels.histories.float_sums import FLOATS_AT, SQUARES_AT, float_tallies_after, float_tallies_at
from cep.kernels.layout import Int64

# ∞, −∞ and NaN are counted in 21 bits each of one number: no history counts that many events.
_SPECIAL_BITS = 21
_SPECIALS = (np.inf, -np.inf, np.nan)


def float_windows(
    tally: Int64, moves: Moves, segment: Int64, lows: Int64, highs: Int64, *, with_rests: bool
) -> tuple[Int64, np.ndarray, np.ndarray]:
    """Move carried tallies of floats along the new events, and return each window's count, sum and rounding error.

    Shapes: the results are int64[Q], float64[Q] and float64[Q]; the errors are empty without `with_rests`. Each window
    has a segment int64[Q] and members lows <= i < highs. If the tally has squares, the second result is the population
    standard deviation in place of the sum.
    """
    starts = np.searchsorted(moves.segment, segment)
    is_spread = tally.shape[1] > SQUARES_AT
    values, specials = _parted(moves.values, is_spread=is_spread)
    counts = tally[segment, :FLOATS_AT]
    entered, departed = (_running(weight, specials) for weight in (moves.enters, moves.leaves))
    counts += entered[highs] - entered[starts] - departed[lows] + departed[starts]
    out, rests = counts[:, 0].astype(np.float64), np.zeros(len(counts) if with_rests else 0, np.float64)
    finite = records.Moves(moves.segment, values, moves.enters, moves.leaves)
    float_tallies_at(tally, finite, records.SegmentWindows(segment, lows, highs), out, rests)
    return counts[:, 0], _with_specials(out, counts[:, 1], is_spread=is_spread), rests


def float_tallies_of(tally: Int64, moves: Moves) -> tuple[Int64, bool]:
    """Return the tally after the call, and whether its floats can express every sum. If not, discard the tally."""
    after = tally.copy()
    values, specials = _parted(moves.values, is_spread=tally.shape[1] > SQUARES_AT)
    change = moves.enters - moves.gone
    np.add.at(after[:, :FLOATS_AT], moves.segment, _weighted(change, specials))
    return after, bool(float_tallies_after(after, moves.segment, values, change))


def float_values(tally: Int64) -> tuple[np.ndarray, np.ndarray]:
    """float64[S]: the sum or the standard deviation of each tally, and the rounding error of a sum."""
    nothing, bounds = np.zeros(0, np.int64), np.zeros(len(tally), np.int64)
    moves = Moves(nothing, nothing, nothing, nothing, nothing)
    return float_windows(tally, moves, np.arange(len(tally)), bounds, bounds, with_rests=tally.shape[1] <= SQUARES_AT)[
        1:
    ]


def _parted(values: Int64, *, is_spread: bool) -> tuple[Int64, Int64]:
    """Separate finite floats from infinities and NaN.

    Return the bits of the finite floats, and counters of the other values.

    Shapes: both int64[M]. The first is 0 where a value is not finite. The second has one bit field for each special
    value, so that a sum of it counts each of them. For standard deviations, a value that is too large to be squared is
    also special.
    """
    floats = values.view(np.float64)
    is_finite = can_be_squared(values) if is_spread else np.isfinite(floats)
    specials = np.zeros(len(values), np.int64)
    if is_finite.all():
        return values, specials
    if is_spread:
        specials[~is_finite & np.isfinite(floats)] = 1
    for index, special_value in enumerate(_SPECIALS):
        specials[np.isnan(floats) if np.isnan(special_value) else floats == special_value] = 1 << (
            _SPECIAL_BITS * index
        )
    return np.where(is_finite, values, 0), specials


def _with_specials(sums: np.ndarray, counts: Int64, *, is_spread: bool) -> np.ndarray:
    if not counts.any():
        return sums
    if is_spread:
        return np.where(counts != 0, np.nan, sums)
    for index, special in enumerate(_SPECIALS):
        has = (counts >> (_SPECIAL_BITS * index)) & ((1 << _SPECIAL_BITS) - 1) != 0
        with np.errstate(invalid="ignore"):
            sums = np.where(has, sums + special, sums)
    return sums


def _weighted(weight: Int64, specials: Int64) -> Int64:
    return np.stack([weight, weight * specials], axis=1)


def _running(weight: Int64, specials: Int64) -> Int64:
    rows = np.concatenate([np.zeros((1, FLOATS_AT), np.int64), _weighted(weight, specials)])
    return np.cumsum(rows, axis=0)
