"""Bands: of the windows of a percentile the values around its rank, carried from call to call (histories/bands.py).

So an event costs what its place in the band costs, however many there are in the window. When the rank may leave the
band in a call, the key's whole window is looked at, and its band is begun anew: after so many changes of the window
that it makes little of the cost of each.
Tested by: tests/histories/test_rank.py, tests/histories/test_values.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cep.histories.numbers.tally import Moves
from cep.histories.store import SubTallies
from cep.kernels.histories import records
from cep.kernels.histories.bands import bands_after, ranks_at
from cep.kernels.layout import Int32, Int64

# How far a band reaches to either side of its rank: so far, and twice as far as the window has changed in the call.
_REACH = 10
_REACH_CHANGES = 2
# A band is an array that is shifted, so larger changes cost less in the tree of a whole window (count_tree.py).
_CHANGES_MAX = 1024


@dataclass(frozen=True, slots=True)
class Bands:
    """The bands of K keys, as kernels/histories/bands.py draws them. A band that is not known has no events.

    Shapes: counts int64[K, 2], starts int64[K + 1], values int64[B].
    """

    counts: Int64
    starts: Int64
    values: Int64

    @property
    def sizes(self) -> Int64:
        """int64[K]: how many values each key's band has."""
        return np.diff(self.starts)

    def without(self, begun: np.ndarray) -> Bands:
        """Return the same, in which nothing is known of some keys, bool[K]."""
        if not self.counts[begun].any():
            return self
        stays = ~begun[_keys(self)]
        sizes = np.where(begun, 0, self.sizes)
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        return Bands(np.where(begun[:, None], 0, self.counts), starts, self.values[stays])

    def entries(self) -> SubTallies:
        """Return the values, as they are kept."""
        return SubTallies(_keys(self), (), self.values.reshape(-1, 1))


def bands_of(counts: Int64 | None, entries: SubTallies | None, keys_count: int) -> Bands:
    """Those that were kept, of keys by their numbers now."""
    if counts is None or entries is None:
        return Bands(np.zeros((keys_count, 2), np.int64), np.zeros(keys_count + 1, np.int64), np.zeros(0, np.int64))
    key, values = entries.key, entries.sums[:, 0]
    if (key[1:] < key[:-1]).any():
        values = values[np.argsort(key, kind="stable")]
    sizes = np.bincount(key, minlength=keys_count)
    return Bands(counts, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]), values)


def sure(bands: Bands, percent: int, comes: Int64, goes: Int64) -> np.ndarray:
    """bool[K]: of which keys the rank stays in the band if at most so many events come and go, whatever their values
    and order."""
    count, below, sizes = bands.counts[:, 0], bands.counts[:, 1], bands.sizes
    above = count - below - sizes
    least, most = _rank(percent, count - goes), _rank(percent, count + comes)
    stays = ((below == 0) | (least > below + comes)) & ((above == 0) | (most <= below + sizes - goes))
    is_sure: np.ndarray = stays & (count > 0) & (comes + goes <= _CHANGES_MAX)
    return is_sure


def ranked(bands: Bands, moves: Moves, percent: int, windows: tuple[Int64, Int64, Int64]) -> tuple[Int64, Int64]:
    """(int64[Q] how many events, int64[Q] the value of the rank, any where there is none) of windows: their keys
    int64[Q], and members lows <= i < highs. The rank stays in the band (`sure`)."""
    keys, lows, highs = windows
    counts, chosen = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    moved = records.Moves(moves.segment, moves.values, moves.enters, moves.leaves)
    wanted = records.SegmentWindows(keys, lows, highs)
    is_inside = ranks_at(_record(bands), moved, wanted, percent, counts, chosen)
    assert is_inside, "whole windows are looked at where ranks may leave their bands"
    return counts, chosen


def after(bands: Bands, moves: Moves, percent: int) -> Bands:
    """Return the bands after the call, as wide as they should be; those of keys that have not held anything have all
    that enters."""
    out = records.Bands(
        np.zeros_like(bands.counts),
        np.zeros_like(bands.starts),
        np.empty(len(bands.values) + len(moves.values), np.int64),
    )
    change = moves.enters - moves.gone
    bands_after(_record(bands), moves.segment, moves.values, change, percent, _REACH, _REACH_CHANGES, out)
    return Bands(out.counts, out.starts, out.values[: out.starts[-1]])


def _record(bands: Bands) -> records.Bands:
    return records.Bands(bands.counts, bands.starts, bands.values)


def _keys(bands: Bands) -> Int32:
    return np.repeat(np.arange(len(bands.counts), dtype=np.int32), bands.sizes)


def _rank(percent: int, count: Int64) -> Int64:
    """Return the nearest rank, from 1."""
    return (percent * count + 99) // 100
