"""Ranks in windows of which only a band of values is known: the ones around the rank that is asked for.

    all values in order   ── below ──┊ band: their values are known ┊── above ──

    held   int64[S, 2] by segment: how many events are in the window | how many of them are below the band
    band   int64[B], those of segment s are band[starts[s]:starts[s + 1]], ascending

What enters or leaves outside the band changes a number, inside it the band. Where nothing is below or above, the band
grows there. So the rank stays in the band for as many changes as the band is wide at least.
Tested by: tests/engine/test_ranks.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels.jit import bare, kernel
from cep.kernels.search import first_at

_COUNT, _BELOW, _SIZE = range(3)


@bare
def _enter(work: Any, now: Any, value: Any) -> Any:
    """Whether it is known where the value belongs; it is added there."""
    size, below = now[_SIZE], now[_BELOW]
    above = now[_COUNT] - below - size
    if size == 0 and below + above > 0:
        return False
    now[_COUNT] += 1
    at = first_at(work, 0, size, value)
    if at == 0 and below > 0 and value < work[0]:
        now[_BELOW] += 1
    elif at < size or above == 0:
        for i in range(size, at, -1):
            work[i] = work[i - 1]
        work[at] = value
        now[_SIZE] += 1
    return True


@bare
def _leave(work: Any, now: Any, value: Any) -> Any:
    """Whether it is known where the value was, one of the window; it is taken away."""
    size = now[_SIZE]
    if size == 0:
        return False
    now[_COUNT] -= 1
    at = first_at(work, 0, size, value)
    if at < size and work[at] == value:
        for i in range(at, size - 1):
            work[i] = work[i + 1]
        now[_SIZE] -= 1
    elif at == 0:
        now[_BELOW] -= 1
    return True


@bare
def _begin(work: Any, now: Any, held: Any, starts: Any, band: Any, segment: Any) -> None:
    first, size = starts[segment], starts[segment + 1] - starts[segment]
    for i in range(size):
        work[i] = band[first + i]
    now[_COUNT], now[_BELOW], now[_SIZE] = held[segment, 0], held[segment, 1], size


@kernel
def ranks_at(
    held: Any, starts: Any, band: Any, segment: Any, values: Any, enters: Any, leaves: Any, of: Any, lows: Any,
    highs: Any, percent: Any, counts: Any, out: Any,
) -> Any:  # fmt: skip
    """Fill counts int64[Q] and out int64[Q] with how many events each window has, and the value of nearest rank in it,
    ⌈percent · n / 100⌉ of n.

    Shapes: of M members by segment, in their order: segment, values int64[M]; enters and leaves int64[M] of 0 and 1; of
    Q windows in the same order: of int64[Q] the segment, members lows <= i < highs. A window is the segment's as it is
    held, with what enters before high, without what leaves before low.
    Returns: whether every rank was in its band. Cost: O(band) an event that enters or leaves it.
    """
    work, now = np.empty(band.shape[0] + values.shape[0] + 1, np.int64), np.zeros(3, np.int64)
    is_known = True
    low = high = 0
    for q in range(of.shape[0]):
        if q == 0 or of[q] != of[q - 1]:
            _begin(work, now, held, starts, band, of[q])
            while high < segment.shape[0] and segment[high] < of[q]:
                high += 1
            low = high
        while high < highs[q]:
            if enters[high] != 0:
                is_known = _enter(work, now, values[high]) and is_known
            high += 1
        while low < lows[q]:
            if leaves[low] != 0:
                is_known = _leave(work, now, values[low]) and is_known
            low += 1
        counts[q], out[q] = now[_COUNT], 0
        if counts[q] > 0:
            at = (percent * counts[q] + 99) // 100 - 1 - now[_BELOW]
            is_known = is_known and at >= 0 and at < now[_SIZE]
            out[q] = work[min(max(at, 0), max(now[_SIZE] - 1, 0))]
    return is_known


@kernel
def bands_after(
    held: Any, starts: Any, band: Any, segment: Any, values: Any, change: Any, percent: Any, reach: Any,
    reach_changes: Any, held_out: Any, starts_out: Any, out: Any,
) -> None:  # fmt: skip
    """Fill held_out int64[S, 2], starts_out int64[S + 1] and out int64[B + M] with what becomes of segments in which
    members enter (change int64[M] is 1) or leave (−1): the values so far from the rank, and farther by reach_changes
    for each change. One that has not held anything has all that enters. Nothing is held of one of which it is not known
    any more where its rank is.
    """
    work, now = np.empty(band.shape[0] + values.shape[0] + 1, np.int64), np.zeros(3, np.int64)
    i = 0
    for s in range(held.shape[0]):
        _begin(work, now, held, starts, band, s)
        is_known, has_held, changes = True, held[s, _COUNT] > 0, 0
        while i < segment.shape[0] and segment[i] == s:
            changes += change[i] != 0
            if change[i] > 0 and not has_held:
                work[now[_SIZE]] = values[i]
                now[_SIZE] += 1
            elif change[i] > 0:
                is_known = _enter(work, now, values[i]) and is_known
            elif change[i] < 0 and has_held:
                is_known = _leave(work, now, values[i]) and is_known
            i += 1
        if not has_held:
            work[: now[_SIZE]].sort()
            now[_COUNT] = now[_SIZE]
        wanted = (percent * now[_COUNT] + 99) // 100 - 1 - now[_BELOW]
        first = max(wanted - reach - reach_changes * changes, 0)
        end = min(wanted + reach + reach_changes * changes + 1, now[_SIZE])
        starts_out[s + 1] = starts_out[s]
        if is_known and first < end:
            held_out[s, 0], held_out[s, 1] = now[_COUNT], now[_BELOW] + first
            for j in range(first, end):
                out[starts_out[s] + j - first] = work[j]
            starts_out[s + 1] += end - first
