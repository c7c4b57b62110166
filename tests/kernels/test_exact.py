"""Exact sums: they equal `math.fsum`, after any numbers were added and removed."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest

from cep.kernels.histories.exact_sums import CHUNKS, accumulate, rounded

EXTREMES = (0.0, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 1e308, -1e308, 1.7976931348623157e308, 2.0**-1022)


def bits(value: float) -> int:
    return int(np.float64(value).view(np.int64))


def some(random: Random) -> float:
    kind = random.randrange(4)
    if kind == 0:
        return random.choice(EXTREMES) / 64
    if kind == 1:
        return random.choice((0.1, 0.2, 0.3, 1e16, -1e16, 1.0, 2.0**53))
    return random.uniform(-1, 1) * 10.0 ** random.randint(-30, 30)


@pytest.mark.parametrize("seed", range(60))
def test_sums_are_rounded_once(seed: int) -> None:
    random = Random(seed)
    acc = np.zeros(CHUNKS, np.int64)
    numbers: list[float] = []
    for _ in range(80):
        if numbers and random.random() < 0.4:
            value = numbers.pop(random.randrange(len(numbers)))
            accumulate(acc, bits(value), -1)
        else:
            value = some(random)
            numbers.append(value)
            accumulate(acc, bits(value), 1)
        assert rounded(acc) == math.fsum(numbers)
