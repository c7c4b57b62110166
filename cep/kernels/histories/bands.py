"""A band of values around a rank, and the entering and leaving events → the rank, and the band after them.

    all values in order   ── below ──┊ band: known values ┊── above ──

    counts   int64[S, 2] by segment: the number of events in the window | the number of them below the band
    values   int64[B]; the values of segment s are values[starts[s]:starts[s + 1]], ascending

An event that enters or leaves outside the band changes a number; inside it, it changes the band. If no value is below
or above, the band grows on that side. So the rank stays in the band for at least as many changes as the band is wide.
Tested by: tests/histories/test_classes.py
"""

import numpy as np

from cep.kernels.groups import first_at
from cep.kernels.histories.records import Bands, Moves, SegmentWindows
from cep.kernels.jit import bare, kernel
from cep.kernels.layout import Int64

_COUNT, _BELOW, _SIZE = range(3)


@bare
def _add_to_band(band: Int64, sizes: Int64, value: int) -> bool:
    """Add a value to a band, the window's sorted values near a percentile. Return False if its position is unknown."""
    size, below = sizes[_SIZE], sizes[_BELOW]
    above = sizes[_COUNT] - below - size
    if size == 0 and below + above > 0:  # all values are outside of the band, where they are only counted
        return False
    sizes[_COUNT] += 1
    position = first_at(band, 0, size, value)
    if position == 0 and below > 0 and value < band[0]:
        sizes[_BELOW] += 1
    elif position < size or above == 0:  # inside; `band` has room for every value of a call
        for i in range(size, position, -1):
            band[i] = band[i - 1]
        band[position] = value
        sizes[_SIZE] += 1  # otherwise the value is above the band
    return True


@bare
def _remove_from_band(band: Int64, sizes: Int64, value: int) -> bool:
    """Remove a value from a band, the window's sorted values near a percentile. Return False if its side is unknown."""
    size = sizes[_SIZE]
    if size == 0:  # all values are outside, where they are only counted: below or above is unknown
        return False
    sizes[_COUNT] -= 1
    position = first_at(band, 0, size, value)
    if position < size and band[position] == value:
        for i in range(position, size - 1):
            band[i] = band[i + 1]
        sizes[_SIZE] -= 1
    elif position == 0:  # it was below; the number above the band is the total less the others
        sizes[_BELOW] -= 1
    return True


@bare
def _load_band(band: Int64, sizes: Int64, bands: Bands, segment: int) -> None:
    first, size = bands.starts[segment], bands.starts[segment + 1] - bands.starts[segment]
    for i in range(size):
        band[i] = bands.values[first + i]
    sizes[_COUNT], sizes[_BELOW], sizes[_SIZE] = bands.counts[segment, 0], bands.counts[segment, 1], size


@kernel
def ranks_at(bands: Bands, moves: Moves, windows: SegmentWindows, percent: int, counts: Int64, out: Int64) -> bool:
    """Fill counts int64[Q] with the size n of each window, out int64[Q] with the value of rank ⌈percent · n / 100⌉.

    A band has the sorted values near the percentile in the stored window of one segment (the number of a key or
    sub-key). A new event's window is the stored one, plus the moves before index `high` that enter, minus the moves
    before index `low` that leave. Return False if a rank was outside of its band. Cost: O(band) per move.
    """
    segment = moves.segment
    band, sizes = np.empty(bands.values.shape[0] + segment.shape[0] + 1, np.int64), np.zeros(3, np.int64)
    is_rank_known = True
    low = high = 0
    for q in range(windows.segment.shape[0]):
        window_segment = windows.segment[q]
        if q == 0 or window_segment != windows.segment[q - 1]:
            _load_band(band, sizes, bands, window_segment)  # sizes: of all values, below the band, in the band
            while high < segment.shape[0] and segment[high] < window_segment:
                high += 1
            low = high
        while high < windows.highs[q]:
            if moves.enters[high] != 0:
                is_rank_known = _add_to_band(band, sizes, moves.values[high]) and is_rank_known
            high += 1
        while low < windows.lows[q]:
            if moves.leaves[low] != 0:
                is_rank_known = _remove_from_band(band, sizes, moves.values[low]) and is_rank_known
            low += 1
        counts[q], out[q] = sizes[_COUNT], 0
        if counts[q] > 0:
            position = (percent * counts[q] + 99) // 100 - 1 - sizes[_BELOW]
            is_rank_known = is_rank_known and position >= 0 and position < sizes[_SIZE]
            out[q] = band[min(max(position, 0), max(sizes[_SIZE] - 1, 0))]
    return is_rank_known


@kernel
def bands_after(
    bands: Bands, segment: Int64, values: Int64, change: Int64, percent: int,
    half_width: int, width_per_change: int, out: Bands,
) -> None:  # fmt: skip
    """Fill `out` with the bands after events have entered windows (change int64[M] is 1) or left them (−1).

    A band has the sorted values near a percentile in the window of a segment (the number of a key or sub-key). A new
    band reaches `half_width` values from the rank to both sides, and `width_per_change` more for each change of this
    call, because the next call may have as many. If a segment had no events, its band is cut from all entering values.
    A band becomes empty if the value at the rank is unknown. `out` has room for B + M values.
    """
    band, sizes = np.empty(bands.values.shape[0] + values.shape[0] + 1, np.int64), np.zeros(3, np.int64)
    i = 0
    for s in range(bands.counts.shape[0]):
        _load_band(band, sizes, bands, s)
        is_rank_known, had_events, changes = True, bands.counts[s, _COUNT] > 0, 0
        while i < segment.shape[0] and segment[i] == s:
            changes += change[i] != 0
            if change[i] > 0 and not had_events:
                band[sizes[_SIZE]] = values[i]
                sizes[_SIZE] += 1
            elif change[i] > 0:
                is_rank_known = _add_to_band(band, sizes, values[i]) and is_rank_known
            elif change[i] < 0 and had_events:
                is_rank_known = _remove_from_band(band, sizes, values[i]) and is_rank_known
            i += 1
        if not had_events:
            band[: sizes[_SIZE]].sort()
            sizes[_COUNT] = sizes[_SIZE]
        rank = (percent * sizes[_COUNT] + 99) // 100 - 1 - sizes[_BELOW]  # position in the band; + 99 rounds up
        first = max(rank - half_width - width_per_change * changes, 0)
        end = min(rank + half_width + width_per_change * changes + 1, sizes[_SIZE])
        out.starts[s + 1] = out.starts[s]
        if is_rank_known and first < end:
            out.counts[s, 0], out.counts[s, 1] = sizes[_COUNT], sizes[_BELOW] + first  # all | below the band
            for j in range(first, end):
                out.values[out.starts[s] + j - first] = band[j]
            out.starts[s + 1] += end - first
