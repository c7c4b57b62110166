"""Chains of earlier events and their results equal a search through lists; compiled and as plain Python."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest

from cep.kernels.chains import count_chains, count_distinct, fill_frauds, latest_before, prepended_rows
from cep.kernels.records import MinedEvents

LATE_MS = 20


@dataclass
class History:
    """Events in order, and chains of them: a list of rows each."""

    key_start: list[int]
    times: list[int]
    frauds: list[int]
    may: list[bool]
    weights: list[float]
    chains: list[list[int]]
    is_open: list[bool]

    @property
    def events(self) -> MinedEvents:
        columns = (np.array(self.times, np.int64), np.array(self.frauds, np.int64), np.array(self.may, np.bool_))
        return MinedEvents(*columns, np.array(self.weights))

    @property
    def steps(self) -> int:
        return len(self.chains[0]) if self.chains else 2

    def rows(self) -> np.ndarray:
        return np.array(self.chains, np.int64).reshape(-1, self.steps).T.copy()


def history(random: Random) -> History:
    key_start: list[int] = []
    times: list[int] = []
    for _ in range(random.randint(1, 4)):
        count, now, start = random.randint(1, 8), 0, len(times)
        for _ in range(count):
            now += random.choice((0, 1, 5, 19, 20))
            key_start.append(start)
            times.append(now)
    size, frauds_count, steps = len(times), random.randint(1, 4), random.randint(1, 3)
    frauds = [random.choice((-1, -1, random.randrange(frauds_count))) for _ in range(size)]
    ends = [[*sorted(random.choices(range(key_start[row], row + 1), k=steps - 1)), row] for row in range(size)]
    return History(
        key_start, times, frauds, [random.random() < 0.8 for _ in range(size)],
        [float(random.choice((1, 1, 7))) for _ in range(size)], random.sample(ends, random.randint(0, size)),
        [random.random() < 0.7 for _ in range(frauds_count)],
    )  # fmt: skip


def plain(kernel: Any) -> Callable[..., Any]:
    """Return the Python function of a kernel."""
    return getattr(kernel, "py_func", kernel)  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(50))
def test_different_codes_of_a_window(seed: int) -> None:
    random = Random(f"distinct {seed}")
    size = random.randint(1, 30)
    codes = [random.choice((-1, 0, 1, 2)) for _ in range(size)]
    begin = sorted(random.randint(0, size) for _ in range(size))
    begin = [min(first, row) for row, first in enumerate(begin)]
    expected = [len({*codes[begin[row] : row + 1]} - {-1}) for row in range(size)]
    for count in (count_distinct, plain(count_distinct)):
        out = np.empty(size, np.int64)
        count(np.array(codes, np.int64), np.array(begin, np.int64), np.zeros(3, np.int64), out)
        assert out.tolist() == expected


@pytest.mark.parametrize("seed", range(100))
def test_the_latest_event_before(seed: int) -> None:
    random = Random(f"latest {seed}")
    drawn = history(random)
    size = len(drawn.times)
    holds = [random.random() < 0.4 for _ in range(size)]
    values = [random.choice((-1, 0, 1, 2)) for _ in range(size)]
    order = np.argsort(values, kind="stable")
    begin = [[values[row] for row in order].index(values[row]) if values[row] >= 0 else size for row in order]
    by_key = [max((r for r in range(drawn.key_start[row], row) if holds[r]), default=-1) for row in range(size)]
    by_value = [
        max((r for r in range(row) if holds[r] and values[r] == values[row] >= 0), default=-1) for row in range(size)
    ]
    for run in (latest_before, plain(latest_before)):
        out = np.empty(size, np.int32)
        run(np.array(holds), np.arange(size), np.array(drawn.key_start, np.int64), out)
        assert out.tolist() == by_key
        run(np.array(holds), order, np.array(begin, np.int64), out)
        assert out.tolist() == by_value


@pytest.mark.parametrize("seed", range(100))
def test_chains_with_what_came_before(seed: int) -> None:
    random = Random(f"before {seed}")
    drawn = history(random)
    size, window_ms = len(drawn.times), random.choice((1, 20, 60))
    earlier, absent = (
        [random.choice((-1, *range(drawn.key_start[row], row))) for row in range(size)] for _ in range(2)
    )  # fmt: skip
    absent = random.choice(([], absent))
    expected = [
        [earlier[chain[0]], *chain]
        for chain in drawn.chains
        if earlier[chain[0]] >= 0
        and drawn.times[chain[-1]] - drawn.times[earlier[chain[0]]] < window_ms
        and (not absent or absent[chain[0]] <= earlier[chain[0]])
    ]
    for run in (prepended_rows, plain(prepended_rows)):
        longer = run(
            drawn.rows(), np.array(earlier, np.int32), np.array(absent, np.int32), drawn.events.time_ms, window_ms
        )  # fmt: skip
        assert longer.T.tolist() == expected
        assert longer.shape[0] == drawn.steps + 1


@pytest.mark.parametrize("by_any", [False, True])
@pytest.mark.parametrize("seed", range(100))
def test_what_chains_find(seed: int, by_any: bool) -> None:
    """With `by_any` a fraud before the end counts if it is recent and the end may be a fraud; the end always counts."""
    random = Random(f"found {seed}")
    drawn = history(random)

    def fraud(chain: list[int], step: int) -> int:
        row, end = chain[step], chain[-1]
        if step < len(chain) - 1 and (
            not by_any or drawn.times[end] - drawn.times[row] >= LATE_MS or not drawn.may[end]
        ):
            return -1
        return drawn.frauds[row]

    of_chains = [[fraud(chain, step) for step in range(drawn.steps)] for chain in drawn.chains]
    opened = [{number for number in numbers if number >= 0 and drawn.is_open[number]} for numbers in of_chains]
    wrong = [
        drawn.weights[chain[-1]] for chain, numbers in zip(drawn.chains, of_chains, strict=True) if max(numbers) < 0
    ]
    for fill, count in ((fill_frauds, count_chains), (plain(fill_frauds), plain(count_chains))):
        out = np.empty((drawn.steps, len(drawn.chains)), np.int64)
        fill(drawn.rows(), drawn.events, by_any, LATE_MS, out)
        assert out.T.tolist() == of_chains
        assert count(drawn.rows(), drawn.events, by_any, LATE_MS, np.array(drawn.is_open)) == (
            len(set().union(*opened)), sum(1 for each in opened if each), sum(wrong),
        )  # fmt: skip
