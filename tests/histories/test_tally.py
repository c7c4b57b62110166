"""Tallies equal the results of Python's integers, for any window, up to the ends of 64 bits."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt
from random import Random

import numpy as np
import pytest

from cep.histories.numbers.tally import Moves, at_clock, at_events, averages, of_windows, spreads, whole_sums
from cep.histories.store import tally_width
from cep.nfa.histories import SQUARES

WIDTH = tally_width("any" + SQUARES)
LEAST, GREATEST = -(2**63), 2**63 - 1


def values_of(random: Random, count: int) -> list[int]:
    """Return small values, some that lie close together far from 0, or some at the ends of 64 bits."""
    far = random.choice((0, 10**6, 10**17, GREATEST - 3, LEAST))
    kinds = ((far, far + 1, far + 3), (random.randint(-50, 50),), (LEAST, GREATEST, 0, -1))
    return [random.choice(random.choice(kinds)) for _ in range(count)]


def exact_spread(values: list[int]) -> float:
    """Return the root of n Σx² − (Σx)², computed with 60 bits more than a float has, and then divided."""
    under = len(values) * sum(v * v for v in values) - sum(values) ** 2
    return float(Fraction(isqrt(under << 240), 1 << 120) / len(values))


def words(tallies: np.ndarray) -> list[tuple[int, int, int]]:
    return [
        (
            int(row[0]),
            (int(row[1]) << 32) + int(row[2]),
            sum(int(word) << (32 * place) for place, word in enumerate(row[3:])),
        )
        for row in tallies
    ]


def expected(values: list[int]) -> tuple[int, int, int]:
    return len(values), sum(values), sum(v * v for v in values)


@pytest.mark.parametrize("seed", range(20))
def test_a_window_is_added_up_without_rounding(seed: int) -> None:
    random = Random(seed)
    values = values_of(random, 60)
    lows = sorted(random.randint(0, 60) for _ in range(30))
    highs = [random.randint(low, 60) for low in lows]
    tallies = of_windows(np.array(values, np.int64), np.array(lows), np.array(highs), WIDTH)
    windows = [values[low:high] for low, high in zip(lows, highs, strict=True)]
    assert words(tallies) == [expected(window) for window in windows]
    for window, ours in zip(windows, spreads(tallies).tolist(), strict=True):
        assert ours == (pytest.approx(exact_spread(window), rel=4e-16) if window else 0.0)
    sums, overflows = whole_sums(tallies)
    assert sums.tolist() == [min(max(sum(window), LEAST), GREATEST) for window in windows]
    assert overflows == sum(not LEAST <= sum(window) <= GREATEST for window in windows)
    nearest, rests = averages(tallies, tallies[:, 0], 2)
    for window, high, low in zip(windows, nearest.tolist(), rests.tolist(), strict=True):
        if window:
            exact = Fraction(sum(window), 100 * len(window))
            assert high == float(exact)
            assert abs(Fraction(high) + Fraction(low) - exact) <= abs(exact) / 2**100


@pytest.mark.parametrize("seed", range(20))
def test_what_is_carried_is_what_is_added_up_anew(seed: int) -> None:
    """For any cut, a carried tally of three segments equals the tally of the whole window."""
    random = Random(f"carried {seed}")
    segments = np.sort(np.array([random.randrange(3) for _ in range(80)]))
    values = values_of(random, 80)
    is_old = np.array([random.random() < 0.6 for _ in range(80)])
    has_left = is_old & np.array([random.random() < 0.5 for _ in range(80)])
    before = np.zeros((3, WIDTH), np.int64)
    old = Moves(segments, np.array(values, np.int64), is_old.astype(np.int64), is_old.astype(np.int64), 0 * segments)
    before = at_clock(before, old)
    moves = Moves(segments, old.values, (~is_old).astype(np.int64), np.ones(80, np.int64), has_left.astype(np.int64))
    after = at_clock(before, moves)
    for segment in range(3):
        window = [v for v, s, gone in zip(values, segments, has_left, strict=True) if s == segment and not gone]
        assert words(after)[segment] == expected(window)
        assert spreads(after)[segment] == spreads(of_windows(np.array(window, np.int64), *_whole(window), WIDTH))[0]
        # Old values come before new ones; the window of an event after all of them contains all.
        first, end = np.searchsorted(segments, [segment, segment + 1])
        at_end = at_events(before, moves, np.array([segment]), np.array([first]), np.array([end]))
        assert words(at_end) == [expected(values[first:end])]


def _whole(values: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([0]), np.array([len(values)])
