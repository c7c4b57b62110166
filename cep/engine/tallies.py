"""Tallies: counts and sums of whole numbers over windows, carried from call to call.

    tally    int64[K, 3] by key: how many events are in the window at the clock | sum = high · 2^32 + low

Of the history table, an event *enters* a tally if it is new, and *leaves* it if it was in it or is new. So a value is
what was carried, and what has entered up to an event, without what has left before its window. Nothing is rounded.
Tested by: tests/engine/test_histories.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cep.engine.history_state import TALLY_WIDTH
from cep.kernels.layout import Int64

_COUNT, _HIGH, _LOW = range(TALLY_WIDTH)
_MASK = np.int64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Moves:
    """What enters and leaves a tally in one call. Shapes: M members by key, in the order of the windows' bounds.

    key, values int64[M] (values: 0 where only events are counted); enters, leaves, gone int64[M] of 0 and 1: gone are
    those that have left at the clock after the call.
    """

    key: Int64
    values: Int64
    enters: Int64
    leaves: Int64
    gone: Int64


def at_events(tally: Int64, moves: Moves, key: Int64, lows: Int64, highs: Int64) -> Int64:
    """int64[Q, 3]: what is in the window of each new event, of keys int64[Q] and members lows <= i < highs."""
    starts = np.searchsorted(moves.key, key)
    found = tally[key]
    entered, left = _running(moves.enters, moves.values), _running(moves.leaves, moves.values)
    found += entered[highs] - entered[starts] - left[lows] + left[starts]
    return _normal(found)


def at_clock(tally: Int64, moves: Moves) -> Int64:
    """The tally after the call."""
    found = tally.copy()
    np.add.at(found, moves.key, _weighted(moves.enters - moves.gone, moves.values))
    return _normal(found)


def whole_sums(found: Int64) -> tuple[Int64, np.ndarray]:
    """The sums, and whether they fit 64 bits."""
    high = found[:, _HIGH]
    fits = (high >= -(2**31)) & (high < 2**31)
    return (np.where(fits, high, 0) << 32) | found[:, _LOW], fits


def _weighted(weight: Int64, values: Int64) -> Int64:
    return np.stack([weight, weight * (values >> 32), weight * (values & _MASK)], axis=1)


def _running(weight: Int64, values: Int64) -> Int64:
    rows = np.concatenate([np.zeros((1, TALLY_WIDTH), np.int64), _weighted(weight, values)])
    return np.cumsum(rows, axis=0)


def _normal(found: Int64) -> Int64:
    """With the low half in [0, 2^32)."""
    found[:, _HIGH] += found[:, _LOW] >> 32
    found[:, _LOW] &= _MASK
    return found
