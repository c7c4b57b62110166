"""Tallies equal the results of Python's integers, and carried sums of floats `math.fsum`, for any window."""

import math
from fractions import Fraction
from math import isqrt
from random import Random

import numpy as np
import pytest

from cep.histories.numbers.folds import EventWindows, float_deviations
from cep.histories.numbers.tally import (
    averages,
    deviations,
    float_tallies_at_clock,
    float_values,
    float_values_at_events,
    tallies_at_clock,
    tallies_at_events,
    tallies_of_windows,
    whole_sums,
)
from cep.histories.store import tally_width
from cep.kernels.histories.records import Moves
from cep.nfa.histories import FLOAT_SQUARES, FLOATS, SQUARES

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
    tallies = tallies_of_windows(np.array(values, np.int64), np.array(lows), np.array(highs), WIDTH)
    windows = [values[low:high] for low, high in zip(lows, highs, strict=True)]
    assert words(tallies) == [expected(window) for window in windows]
    for window, ours in zip(windows, deviations(tallies).tolist(), strict=True):
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
    before = tallies_at_clock(before, old)
    moves = Moves(segments, old.values, (~is_old).astype(np.int64), np.ones(80, np.int64), has_left.astype(np.int64))
    after = tallies_at_clock(before, moves)
    for segment in range(3):
        window = [v for v, s, gone in zip(values, segments, has_left, strict=True) if s == segment and not gone]
        assert words(after)[segment] == expected(window)
        whole = tallies_of_windows(np.array(window, np.int64), np.array([0]), np.array([len(window)]), WIDTH)
        assert deviations(after)[segment] == deviations(whole)[0]
        # Old values come before new ones; the window of an event after all of them contains all.
        first, end = np.searchsorted(segments, [segment, segment + 1])
        at_end = tallies_at_events(before, moves, np.array([segment]), np.array([first]), np.array([end]))
        assert words(at_end) == [expected(values[first:end])]


SPECIALS = (math.inf, -math.inf, math.nan)


def some(random: Random, special: float) -> float:
    if random.random() < special:
        return random.choice(SPECIALS)
    kind = random.randrange(3)
    if kind == 0:
        return random.choice((0.0, -0.0, 0.1, 0.2, 0.3, 1e16, -1e16, 2.0**53))
    return round(random.uniform(-1e6, 1e6), 2) if kind == 1 else random.uniform(-1, 1) * 10.0 ** random.randint(-9, 9)


LARGEST = 2.0**480  # the spread of floats from this size on is null


def total(values: list[float]) -> float:
    """Return the sum, rounded once. With a value that is not finite, the sum follows IEEE."""
    return sum(values) if any(not math.isfinite(v) for v in values) else math.fsum(values)


def spread(values: list[float]) -> float:
    if any(not abs(v) < LARGEST for v in values):
        return math.nan
    exact = [Fraction(v) for v in values]
    under = len(exact) * sum(v * v for v in exact) - sum(exact) ** 2
    return math.sqrt(under) / len(exact) if exact else 0.0


def moves_of(segments: np.ndarray, values: list[float], *flags: np.ndarray) -> Moves:
    return Moves(segments, np.array(values).view(np.int64), *(flag.astype(np.int64) for flag in flags))


@pytest.mark.parametrize("name", ["any" + FLOATS, "any" + FLOAT_SQUARES])
@pytest.mark.parametrize("seed", range(20))
def test_carried_floats_are_what_is_added_up_anew(seed: int, name: str) -> None:
    """A window moves over the values of three segments in calls of any size."""
    random = Random(f"{name} {seed}")
    special = random.choice((0.0, 0.0, 0.1))
    windows_of_segments: list[list[float]] = [[], [], []]
    tally = np.zeros((3, tally_width(name)), np.int64)
    for _ in range(25):
        segments: list[int] = []
        values: list[float] = []
        flags: list[tuple[int, int, int]] = []
        windows: list[tuple[int, int, int, list[float]]] = []
        for segment in range(3):
            numbers, leaving = windows_of_segments[segment], random.randint(0, len(windows_of_segments[segment]))
            new = [some(random, special) for _ in range(random.randint(0, 4))]
            first = len(values)
            segments += [segment] * (leaving + len(new))
            values += numbers[:leaving] + new
            flags += [(0, 1, 1)] * leaving + [(1, 1, 0)] * len(new)
            gone = 0
            for number in range(len(new)):
                gone = random.randint(gone, leaving)
                windows.append(
                    (segment, first + gone, first + leaving + number + 1, numbers[gone:] + new[: number + 1])
                )
            windows_of_segments[segment] = numbers[leaving:] + new
        moves = moves_of(np.array(segments, np.int64), values, *np.array(flags, bool).reshape(-1, 3).T)
        bounds = np.array([window[:3] for window in windows], np.int64).reshape(-1, 3).T
        counts, sums, rests = float_values_at_events(tally, moves, *bounds, with_errors=name.endswith(FLOATS))
        if name.endswith(FLOATS):
            _check_rests(sums.tolist(), rests.tolist(), [window for _, _, _, window in windows])
        for count, ours, (_, _, _, window) in zip(counts.tolist(), sums.tolist(), windows, strict=True):
            assert count == len(window)
            if name.endswith(FLOATS):
                assert ours == total(window) or (math.isnan(ours) and math.isnan(total(window)))
            else:
                assert ours == pytest.approx(spread(window), rel=1e-14, nan_ok=True)
        tally, fits = float_tallies_at_clock(tally, moves)
        assert fits
        assert tally[:, 0].tolist() == list(map(len, windows_of_segments))
        ends = [total(numbers) if name.endswith(FLOATS) else spread(numbers) for numbers in windows_of_segments]
        assert float_values(tally)[0].tolist() == [pytest.approx(end, rel=1e-14, nan_ok=True) for end in ends]


def _check_rests(sums: list[float], rests: list[float], windows: list[list[float]]) -> None:
    for nearest, rest, window in zip(sums, rests, windows, strict=True):
        if all(math.isfinite(value) for value in window) and math.isfinite(nearest):
            exact = sum((Fraction(value) for value in window), Fraction(0))
            assert abs(Fraction(nearest) + Fraction(rest) - exact) <= abs(Fraction(rest)) / 2**52


@pytest.mark.parametrize(
    "values",
    [[1.7e308, 1.7e308], [10.0**power for power in (300, 200, 100, 0, -100, -200)]],
    ids=["greater than any float", "more than four floats can say"],
)
def test_a_sum_that_floats_cannot_say_is_not_carried(values: list[float]) -> None:
    ones = np.ones(len(values), bool)
    tally = np.zeros((1, tally_width("any" + FLOATS)), np.int64)
    moves = moves_of(np.zeros(len(values), np.int64), values, ones, ones, ~ones)
    assert not float_tallies_at_clock(tally, moves)[1]
    zero = np.zeros(1, np.int64)
    assert float_values_at_events(tally, moves, zero, zero, zero + len(values), with_errors=False)[1][
        0
    ] == pytest.approx(sum(values)), "looked at"


@pytest.mark.parametrize(
    "largest", [1e130, LARGEST * (1 - 2**-53), LARGEST, -LARGEST, 1e155, -1e200, 1.7e308, math.inf]
)
def test_what_is_too_large_for_a_spread_has_none_however_it_is_worked_out(largest: float) -> None:
    """The spread of too large values is null, whether it is computed from events, a tally or both.

    Such values leave no trace in the tally. Other spreads equal DuckDB's.
    """
    import duckdb  # noqa: PLC0415 it tells of objects at the end of each process that has loaded it

    values = [3.0, largest, -largest / 3, largest, 1.0, 2.0, 4.0]
    bounds = np.array([(0, 1), (0, 2), (0, 4), (1, 5), (3, 6), (4, 7)], np.int64)
    lows, highs = bounds.T.copy()
    expected = [pytest.approx(spread(values[low:high]), rel=1e-14, nan_ok=True) for low, high in bounds.tolist()]
    bits, zeros, indexes = np.array(values).view(np.int64), np.zeros(len(values), np.int64), np.arange(len(bounds))
    windows = EventWindows(np.arange(len(values)), zeros, lows, highs, indexes, np.zeros(len(bounds), np.uint8))
    assert float_deviations(bits, windows).view(np.float64).tolist() == expected
    tally = np.zeros((1, tally_width("any" + FLOAT_SQUARES)), np.int64)
    is_first = np.arange(len(values)) < 4
    moves = moves_of(zeros, values, np.ones(len(values), bool), np.ones(len(values), bool), is_first)
    assert (
        float_values_at_events(tally, moves, zeros[: len(bounds)], lows, highs, with_errors=False)[1].tolist()
        == expected
    )
    carried, fits = float_tallies_at_clock(tally, moves._replace(gone=np.zeros(len(values), np.int64)))
    assert fits
    assert float_values(carried)[0].tolist() == [pytest.approx(spread(values), rel=1e-14, nan_ok=True)]
    leaving = moves_of(zeros[:4], values[:4], np.zeros(4, bool), np.ones(4, bool), np.ones(4, bool))
    assert float_values(float_tallies_at_clock(carried, leaving)[0])[0].tolist() == [
        pytest.approx(spread(values[4:]), rel=1e-14)
    ]
    for numbers in (values[low:high] for low, high in bounds.tolist()):
        if not math.isnan(spread(numbers)):
            query = "select stddev_pop(value) from (select unnest(?) :: double as value)"
            with duckdb.connect() as connection:
                assert connection.execute(query, [numbers]).fetchall() == [(pytest.approx(spread(numbers), rel=1e-12),)]
