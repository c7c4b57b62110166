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
def _enter(work: Int64, now: Int64, value: int) -> bool:
    """Add a value to the band at its position in order. Return False if the position is unknown."""
    size, below = now[_SIZE], now[_BELOW]
    above = now[_COUNT] - below - size
    if size == 0 and below + above > 0:
        return False
    now[_COUNT] += 1
    position = first_at(work, 0, size, value)
    if position == 0 and below > 0 and value < work[0]:
        now[_BELOW] += 1
    elif position < size or above == 0:
        for i in range(size, position, -1):
            work[i] = work[i - 1]
        work[position] = value
        now[_SIZE] += 1
    return True


@bare
def _leave(work: Int64, now: Int64, value: int) -> bool:
    """Remove a value that leaves the window from the band. Return False if its position is unknown."""
    size = now[_SIZE]
    if size == 0:
        return False
    now[_COUNT] -= 1
    position = first_at(work, 0, size, value)
    if position < size and work[position] == value:
        for i in range(position, size - 1):
            work[i] = work[i + 1]
        now[_SIZE] -= 1
    elif position == 0:
        now[_BELOW] -= 1
    return True


@bare
def _begin(work: Int64, now: Int64, bands: Bands, segment: int) -> None:
    first, size = bands.starts[segment], bands.starts[segment + 1] - bands.starts[segment]
    for i in range(size):
        work[i] = bands.values[first + i]
    now[_COUNT], now[_BELOW], now[_SIZE] = bands.counts[segment, 0], bands.counts[segment, 1], size


@kernel
def ranks_at(bands: Bands, moves: Moves, windows: SegmentWindows, percent: int, counts: Int64, out: Int64) -> bool:
    """Fill counts int64[Q] with the events n of each window, out int64[Q] with the value of rank ⌈percent · n / 100⌉.

    A window is the band's segment, plus the events that enter before high, minus the events that leave before low.
    Return True if every rank was in its band. Cost: O(band) per entering or leaving event.
    """
    segment = moves.segment
    work, now = np.empty(bands.values.shape[0] + segment.shape[0] + 1, np.int64), np.zeros(3, np.int64)
    is_inside = True
    low = high = 0
    for q in range(windows.segment.shape[0]):
        of_window = windows.segment[q]
        if q == 0 or of_window != windows.segment[q - 1]:
            _begin(work, now, bands, of_window)
            while high < segment.shape[0] and segment[high] < of_window:
                high += 1
            low = high
        while high < windows.highs[q]:
            if moves.enters[high] != 0:
                is_inside = _enter(work, now, moves.values[high]) and is_inside
            high += 1
        while low < windows.lows[q]:
            if moves.leaves[low] != 0:
                is_inside = _leave(work, now, moves.values[low]) and is_inside
            low += 1
        counts[q], out[q] = now[_COUNT], 0
        if counts[q] > 0:
            position = (percent * counts[q] + 99) // 100 - 1 - now[_BELOW]
            is_inside = is_inside and position >= 0 and position < now[_SIZE]
            out[q] = work[min(max(position, 0), max(now[_SIZE] - 1, 0))]
    return is_inside


@kernel
def bands_after(
    bands: Bands, segment: Int64, values: Int64, change: Int64, percent: int, reach: int, reach_changes: int, out: Bands
) -> None:
    """Fill `out`, with room for B + M values, with the bands after members enter (change int64[M] is 1) or leave (−1).

    Each band has the values within `reach` of the rank, and `reach_changes` more for each change. A segment without
    events takes all entering values. A band whose rank is no longer known becomes empty.
    """
    work, now = np.empty(bands.values.shape[0] + values.shape[0] + 1, np.int64), np.zeros(3, np.int64)
    i = 0
    for s in range(bands.counts.shape[0]):
        _begin(work, now, bands, s)
        is_inside, had_events, changes = True, bands.counts[s, _COUNT] > 0, 0
        while i < segment.shape[0] and segment[i] == s:
            changes += change[i] != 0
            if change[i] > 0 and not had_events:
                work[now[_SIZE]] = values[i]
                now[_SIZE] += 1
            elif change[i] > 0:
                is_inside = _enter(work, now, values[i]) and is_inside
            elif change[i] < 0 and had_events:
                is_inside = _leave(work, now, values[i]) and is_inside
            i += 1
        if not had_events:
            work[: now[_SIZE]].sort()
            now[_COUNT] = now[_SIZE]
        rank = (percent * now[_COUNT] + 99) // 100 - 1 - now[_BELOW]
        first = max(rank - reach - reach_changes * changes, 0)
        end = min(rank + reach + reach_changes * changes + 1, now[_SIZE])
        out.starts[s + 1] = out.starts[s]
        if is_inside and first < end:
            out.counts[s, 0], out.counts[s, 1] = now[_COUNT], now[_BELOW] + first
            for j in range(first, end):
                out.values[out.starts[s] + j - first] = work[j]
            out.starts[s + 1] += end - first
