"""Counts of different numbers equal the size of a set of them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from cep.columnar.numbers import different_count


@pytest.mark.parametrize(
    ("numbers", "count"),
    [
        (np.array([], np.int64), 0),
        (np.array([7], np.int64), 1),
        (np.array([3, -3, 3, 2**63 - 1, -(2**63)]), 4),
        (np.array([255, 0, 255], np.uint8), 2),
        (np.array([0.0, -0.0, 1.5, np.inf, -np.inf]), 4),
        (np.array([np.nan, 1.0, np.nan, 2.0, 2.0]), 3),
        (np.array([np.nan, np.nan]), 1),
    ],
)
def test_different_numbers_are_counted(numbers: NDArray[np.generic], count: int) -> None:
    before = numbers.copy()
    assert different_count(numbers) == count
    np.testing.assert_array_equal(numbers, before)


@pytest.mark.parametrize("seed", range(5))
def test_a_set_has_as_many(seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(-50, 50, 200)
    assert different_count(numbers) == len(set(numbers.tolist()))
