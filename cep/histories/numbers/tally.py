"""Tallies: counts, sums and squares of whole numbers over windows, carried from call to call.

    tally    int64[S, 3] by segment: the number of events in the window at the clock | sum = high · 2^32 + low
             int64[S, 7] for stddev: the same, and the sum of squares Σ word · 2^(32 at) | word 0 … word 3

A segment is a key, or one value of a sub-key within a key. A new event *enters* a tally. An event *leaves* it if it was
in the tally or is new. The value at an event is the carried tally, plus the events that entered up to it, minus the
events that left before its window. No value is rounded.
Tested by: tests/histories/test_tally.py, tests/histories/test_values.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cep.histories.numbers.spreads import quotients
from cep.kernels.layout import Int64

_COUNT, _HIGH, _LOW, _SQUARES = range(4)
_TALLY_WIDTH, _WORDS = 3, 4
_MASK = np.int64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Moves:
    """The events that enter and leave a tally in one call: M members by segment, in the order of the windows' bounds.

    Shapes: segment, values int64[M] (values are 0 where events are only counted); enters, leaves, gone int64[M] of 0
    and 1. `gone` marks the events that have left at the clock after the call.
    """

    segment: Int64
    values: Int64
    enters: Int64
    leaves: Int64
    gone: Int64


def at_events(tally: Int64, moves: Moves, segment: Int64, lows: Int64, highs: Int64) -> Int64:
    """int64[Q, W]: the content of each new event's window, given its segment int64[Q] and members lows <= i < highs."""
    starts = np.searchsorted(moves.segment, segment)
    sums = tally[segment]
    entered, departed = (_running(w, moves.values, tally.shape[1]) for w in (moves.enters, moves.leaves))
    sums += entered[highs] - entered[starts] - departed[lows] + departed[starts]
    return _normal(sums)


def at_clock(tally: Int64, moves: Moves) -> Int64:
    """Return the tally after the call."""
    after = tally.copy()
    np.add.at(after, moves.segment, _weighted(moves.enters - moves.gone, moves.values, tally.shape[1]))
    return _normal(after)


def of_windows(values: Int64, lows: Int64, highs: Int64, width: int) -> Int64:
    """int64[Q, W]: the tallies of values[low:high], if no tally is carried."""
    return of_parts(parts_of(values, width), lows, highs)


def parts_of(values: Int64, width: int) -> Int64:
    """int64[M, W]: the contribution of each value to a tally."""
    return _weighted(np.ones(len(values), np.int64), values, width)


def of_parts(parts: Int64, lows: Int64, highs: Int64) -> Int64:
    """int64[Q, W]: the tallies of parts[low:high]."""
    running = np.concatenate([np.zeros((1, parts.shape[1]), np.int64), np.cumsum(parts, axis=0)])
    return _normal(running[highs] - running[lows])


def whole_sums(tallies: Int64) -> tuple[Int64, int]:
    """Return the sums, and how many of them exceed 64 bits and were replaced by the least or the greatest integer.

    The tallies stay exact, so a sum is right again after the large values have left the window.
    """
    high = tallies[:, _HIGH]
    fits = (high >= -(2**31)) & (high < 2**31)
    bound = np.where(high < 0, np.int64(-(2**63)), np.int64(2**63 - 1))
    return np.where(fits, (np.where(fits, high, 0) << 32) | tallies[:, _LOW], bound), int((~fits).sum())


def averages(tallies: Int64, counts: Int64, scale: int) -> tuple[np.ndarray, np.ndarray]:
    """float64[N] twice: the floats nearest to the averages of decimals, and the rounding errors. Empty: undefined."""
    high, low = tallies[:, _HIGH] * 2.0**32, tallies[:, _LOW].astype(np.float64)
    total = high + low
    average = quotients((total, low - (total - high)), np.maximum(counts, 1).astype(np.float64))
    return quotients(average, np.full(1, 10.0**scale)) if scale else average


def spreads(tallies: Int64) -> np.ndarray:
    """Return the population standard deviation of each tally, √(n Σx² − (Σx)²) / n: float64[Q], 0 for an empty window.

    The value under the root is exact: it is computed in words of 32 bits and may be as large as 2^165.
    """
    count = tallies[:, _COUNT]
    is_negative = tallies[:, _HIGH] < 0
    low = np.where(is_negative, -tallies[:, _LOW], tallies[:, _LOW])
    high = np.where(is_negative, -tallies[:, _HIGH], tallies[:, _HIGH]) + (low >> 32)
    sums = [low & _MASK, high & _MASK, high >> 32]
    squares = [tallies[:, _SQUARES + index] for index in range(_WORDS)]
    squares[3:] = [squares[3] & _MASK, squares[3] >> 32]
    words = [np.zeros(len(tallies), np.int64) for _ in range(7)]
    for index, word in enumerate(squares):
        _add_product(words, index, count, word, 1)
    for i, one in enumerate(sums):
        for j, other in enumerate(sums):
            _add_product(words, i + j, one, other, -1)
    carry, root = np.zeros(len(tallies), np.int64), np.zeros(len(tallies), np.float64)
    for index, word in enumerate(words):
        whole = word + carry
        carry, words[index] = whole >> 32, whole & _MASK
    for word in reversed(words):
        root = root * 2.0**32 + word
    spread: np.ndarray = np.sqrt(root) / np.maximum(count, 1)
    return spread


def _add_product(words: list[Int64], index: int, one: Int64, other: Int64, sign: int) -> None:
    """Add the product of two numbers in [0, 2^32) to words of 32 bits. The caller carries the overflow later."""
    product = one.astype(np.uint64) * other.astype(np.uint64)
    words[index] += sign * (product & np.uint64(_MASK)).astype(np.int64)
    words[index + 1] += sign * (product >> np.uint64(32)).astype(np.int64)


def _weighted(weight: Int64, values: Int64, width: int) -> Int64:
    columns = [weight, weight * (values >> 32), weight * (values & _MASK)]
    if width > _TALLY_WIDTH:
        columns += [weight * word for word in _square(values)]
    return np.stack(columns, axis=1)


def _square(values: Int64) -> list[Int64]:
    """Four words of 32 bits whose sum Σ word · 2^(32 at) is the square, each below 2^35."""
    size = np.where(values < 0, np.uint64(0) - values.astype(np.uint64), values.astype(np.uint64))
    halves = [(size & np.uint64(_MASK)).astype(np.int64), (size >> np.uint64(32)).astype(np.int64)]
    words = [np.zeros(len(values), np.int64) for _ in range(_WORDS)]
    for i, one in enumerate(halves):
        for j, other in enumerate(halves):
            _add_product(words, i + j, one, other, 1)
    return words


def _running(weight: Int64, values: Int64, width: int) -> Int64:
    rows = np.concatenate([np.zeros((1, width), np.int64), _weighted(weight, values, width)])
    return np.cumsum(rows, axis=0)


def _normal(tallies: Int64) -> Int64:
    """Normalise, in place: the low half, and every word of squares except the last, is in [0, 2^32)."""
    tallies[:, _HIGH] += tallies[:, _LOW] >> 32
    tallies[:, _LOW] &= _MASK
    for column in range(_SQUARES, tallies.shape[1] - 1):
        tallies[:, column + 1] += tallies[:, column] >> 32
        tallies[:, column] &= _MASK
    return tallies
