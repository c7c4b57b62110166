"""Sums of floats that are carried from call to call: a few floats replace an accumulator and have exactly its sum.

    tally   int64[S, 6] by segment: count | number of non-finite values | bits of 4 floats: Σ value
            int64[S, 12] for stddev: the same, and bits of 6 floats: Σ value²

The floats are the one nearest to the sum, the one nearest to the remainder, and so on, until the remainder is 0. Two
floats suffice for sums of money. A sum that needs more floats than there is room for is not carried.
Tested by: tests/histories/test_tally.py
"""

import numpy as np

from cep.kernels.histories.exact_sums import CHUNKS, accumulate, accumulate_square, as_two, rounded, spread_of
from cep.kernels.histories.records import Moves, SegmentWindows
from cep.kernels.jit import bare, kernel
from cep.kernels.layout import Float64, Int64

FLOATS_AT, SQUARES_AT, SQUARES_END = 2, 6, 12


@bare
def _load_sum(acc: Int64, tally: Int64, first: int, end: int) -> None:
    """Set the accumulator to the sum of the floats tally[first:end]."""
    acc[:] = 0
    for i in range(first, end):
        if tally[i] != 0:
            accumulate(acc, tally[i], 1)


@bare
def _store_sum(acc: Int64, tally: Int64, first: int, end: int, float_scratch: Float64, float_bits: Int64) -> bool:
    """Write the exact sum in acc to tally[first:end] as floats that add up to it. Return False if they are too few."""
    tally[first:end] = 0
    for i in range(first, end):
        float_scratch[0] = rounded(acc)
        if float_scratch[0] == 0.0:
            return True
        if not np.isfinite(float_scratch[0]):
            return False
        tally[i] = float_bits[0]
        accumulate(acc, float_bits[0], -1)
    return rounded(acc) == 0.0


@kernel
def float_tallies_at(tally: Int64, moves: Moves, windows: SegmentWindows, out: Float64, rests: Float64) -> None:
    """Fill out float64[Q] with the sum of each window, rounded once, or with squares its standard deviation.

    rests float64[Q] gets the rounding error of each sum; float64[0]: not requested. Shapes: tally int64[S, 6 or 12];
    values are the bits of finite floats. The sum is the tally's, plus the events that enter before high, minus the
    events that leave before low. For a standard deviation, `out` has the counts before.
    """
    is_spread = tally.shape[1] > SQUARES_AT
    segment, floats = moves.segment, moves.values.view(np.float64)
    sums, squares = np.zeros(CHUNKS, np.int64), np.zeros(CHUNKS, np.int64)
    pair, pair_squares, float_scratch = np.zeros(2, np.float64), np.zeros(2, np.float64), np.zeros(1, np.float64)
    float_bits = float_scratch.view(np.int64)
    low = high = 0
    for q in range(windows.segment.shape[0]):
        window_segment = windows.segment[q]
        if q == 0 or window_segment != windows.segment[q - 1]:
            _load_sum(sums, tally[window_segment], FLOATS_AT, SQUARES_AT)
            if is_spread:
                _load_sum(squares, tally[window_segment], SQUARES_AT, SQUARES_END)
            while high < segment.shape[0] and segment[high] < window_segment:
                high += 1
            low = high
        while high < windows.highs[q] or low < windows.lows[q]:
            is_entering = high < windows.highs[q]
            position = high if is_entering else low
            if (moves.enters if is_entering else moves.leaves)[position] != 0:
                accumulate(sums, moves.values[position], 1 if is_entering else -1)
                if is_spread:
                    accumulate_square(squares, floats[position], float_scratch, float_bits, 1 if is_entering else -1)
            high, low = (high + 1, low) if is_entering else (high, low + 1)
        if is_spread:
            as_two(sums, pair, float_scratch, float_bits)
            as_two(squares, pair_squares, float_scratch, float_bits)
            count = out[q]
            out[q] = np.sqrt(max(spread_of(count, pair, pair_squares), 0.0)) / count if count > 0 else 0.0
        else:
            if rests.shape[0] > 0:
                as_two(sums, pair, float_scratch, float_bits)
                out[q], rests[q] = pair[0], pair[1]
            else:
                out[q] = rounded(sums)


@kernel
def float_tallies_after(tally: Int64, segment: Int64, values: Int64, change: Int64) -> bool:
    """Add each value, `change` (1, 0 or −1) times, to the stored sum of its segment, a key or sub-key.

    Shapes: values int64[M], the bits of finite floats, by segment int64[M], with change int64[M]; tally int64[S, 6 or
    12] by segment: two counts, four floats that add up to the exact sum, and six floats for the sum of squares. To add,
    the kernel unpacks a sum into CHUNKS integers. Return False if the floats cannot express a sum; tally is undefined.
    """
    is_spread = tally.shape[1] > SQUARES_AT
    floats = values.view(np.float64)
    sums, squares = np.zeros(CHUNKS, np.int64), np.zeros(CHUNKS, np.int64)
    float_scratch = np.zeros(1, np.float64)
    float_bits = float_scratch.view(np.int64)  # the same memory: the bits of the float
    fits = True
    i = 0
    while i < segment.shape[0]:
        row, start, changes = tally[segment[i]], i, 0
        while i < segment.shape[0] and segment[i] == segment[start]:
            changes += change[i] != 0
            i += 1
        if changes == 0:
            continue
        _load_sum(sums, row, FLOATS_AT, SQUARES_AT)
        for j in range(start, i):
            if change[j] != 0:
                accumulate(sums, values[j], change[j])
        fits = _store_sum(sums, row, FLOATS_AT, SQUARES_AT, float_scratch, float_bits) and fits
        if is_spread:
            _load_sum(squares, row, SQUARES_AT, SQUARES_END)
            for j in range(start, i):
                if change[j] != 0:
                    accumulate_square(squares, floats[j], float_scratch, float_bits, change[j])
            fits = _store_sum(squares, row, SQUARES_AT, SQUARES_END, float_scratch, float_bits) and fits
    return fits
