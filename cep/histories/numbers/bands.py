"""Bands: the values around the rank of a percentile's windows, carried from call to call (kernels/histories/bands.py).

The cost of an event depends on its place in the band, not on the size of the window. In the rare call in which the rank
may leave the band, the key's whole window is read and its band starts again.
Tested by: tests/histories/test_classes.py, tests/histories/test_values.py
"""

import numpy as np

from cep.histories.store import SubTallies
from cep.kernels.histories.bands import bands_after, ranks_at
from cep.kernels.histories.records import Bands, Moves, SegmentWindows
from cep.kernels.layout import Int32, Int64

# Number of values on each side of the rank: this constant, plus twice the number of changes of the window in the call.
_REACH = 10
_REACH_CHANGES = 2
# Larger changes cost less in the tree of a whole window (kernels/histories/sketches.py) than in a shifted array.
_CHANGES_MAX = 1024


def clear_bands(bands: Bands, restarted: np.ndarray) -> Bands:
    """Clear the bands of the keys that are marked in `restarted`, bool[K]."""
    if not bands.counts[restarted].any():
        return bands
    sizes = np.where(restarted, 0, np.diff(bands.starts))
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return Bands(np.where(restarted[:, None], 0, bands.counts), starts, bands.values[~restarted[_keys(bands)]])


def entries_of_bands(bands: Bands) -> SubTallies:
    """Convert bands to the form in which they are stored: one entry for each value."""
    return SubTallies(_keys(bands), (), bands.values.reshape(-1, 1))


def bands_of_entries(counts: Int64 | None, entries: SubTallies | None, keys_count: int) -> Bands:
    """Build bands from stored counts and entries, for the present key numbers. An unknown band has no events."""
    if counts is None or entries is None:
        return Bands(np.zeros((keys_count, 2), np.int64), np.zeros(keys_count + 1, np.int64), np.zeros(0, np.int64))
    key, values = entries.key, entries.sums[:, 0]
    if (key[1:] < key[:-1]).any():
        values = values[np.argsort(key, kind="stable")]
    sizes = np.bincount(key, minlength=keys_count)
    return Bands(counts, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]), values)


def stays_in_band(bands: Bands, percent: int, new_counts: Int64, leaving_counts: Int64) -> np.ndarray:
    """bool[K]: the keys whose rank stays in the band if at most this many events enter and leave, in any order."""
    count, below, sizes = bands.counts[:, 0], bands.counts[:, 1], np.diff(bands.starts)
    above = count - below - sizes
    least, most = _rank(percent, count - leaving_counts), _rank(percent, count + new_counts)
    stays = ((below == 0) | (least > below + new_counts)) & ((above == 0) | (most <= below + sizes - leaving_counts))
    is_sure: np.ndarray = stays & (count > 0) & (new_counts + leaving_counts <= _CHANGES_MAX)
    return is_sure


def ranks_in_bands(
    bands: Bands, moves: Moves, percent: int, windows: tuple[Int64, Int64, Int64]
) -> tuple[Int64, Int64]:
    """Return the event count of each window, and the value at its percentile rank (undefined without events): int64[Q].

    A band is a sorted slice of a key's values around the rank, so that the other values of the window need not be read.
    `moves` are the events that enter or leave a window: they change the band. A window is given by its key and by its
    bounds (low, high) in `moves`. The caller passes only windows whose rank stays in the band.
    """
    keys, lows, highs = windows
    counts, chosen = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    is_inside = ranks_at(bands, moves, SegmentWindows(keys, lows, highs), percent, counts, chosen)
    assert is_inside, "the caller reads whole windows where the rank may leave the band"
    return counts, chosen


def moved_bands(bands: Bands, moves: Moves, percent: int) -> Bands:
    """Return the bands after the call, at their regular width. The band of a new key contains all values that enter."""
    values = np.empty(len(bands.values) + len(moves.values), np.int64)
    out = Bands(np.zeros_like(bands.counts), np.zeros_like(bands.starts), values)
    change = moves.enters - moves.gone
    bands_after(bands, moves.segment, moves.values, change, percent, _REACH, _REACH_CHANGES, out)
    return out._replace(values=values[: out.starts[-1]])


def _keys(bands: Bands) -> Int32:
    return np.repeat(np.arange(len(bands.counts), dtype=np.int32), np.diff(bands.starts))


def _rank(percent: int, count: Int64) -> Int64:
    return (percent * count + 99) // 100
