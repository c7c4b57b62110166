"""Floats in windows → sums and spreads to twice the digits, where what is summed up is not the events themselves.

histories/windows.py does the same for windows of events. Here a window may hold floats that stand for many (folds.py).
Tested by: tests/histories/test_folds.py, tests/histories/test_float_tally.py
"""

from __future__ import annotations

import numpy as np

from cep.kernels.histories.windows import sum_floats
from cep.kernels.layout import Int64

_SPLIT = 134217729.0  # 2^27 + 1
# The squares of smaller ones, added up and multiplied by how many there are, stay below the greatest float.
_SQUARED_MAX = 2.0**480
# What two floats a sum can be off, in a spread of equal values: 2^-101 of the sum of squares.
_LEVEL = 2.0**-101
Pair = tuple[np.ndarray, np.ndarray]  # float64[N] each: a number is the sum of both, the first one the nearest to it


def can_be_squared(values: Int64) -> np.ndarray:
    """bool[N]: of which floats, by their bits, a spread can be told. A window with another one has none: it is no
    number."""
    is_small: np.ndarray = np.abs(values.view(np.float64)) < _SQUARED_MAX
    return is_small


def squares(values: Int64) -> tuple[Int64, Int64]:
    """Return the squares of floats: the nearest float, and what it is off; bits, as the values are."""
    floats = values.view(np.float64)
    square = floats * floats
    return square.view(np.int64), _square_rest(floats, square).view(np.int64)


def two_sums(values: Int64, lows: Int64, highs: Int64) -> Pair:
    """Return the sum of values[low:high] of finite floats, by their bits, for windows that never go back."""
    sums, rest = np.empty(len(lows), np.float64), np.empty(len(lows), np.float64)
    sum_floats(values, lows, highs, sums)
    # Behind each window its sum is taken away, and added again for those that follow.
    off_and_on = np.stack([-sums, sums], axis=1).reshape(-1).view(np.int64)
    longer = np.insert(values, np.repeat(highs, 2), off_and_on)
    before = np.searchsorted(highs, lows, side="right")  # windows whose sums stand before each begin
    ends = highs + 2 * np.arange(len(highs)) + 1
    sum_floats(longer, np.minimum(lows + 2 * before, ends), ends, rest)
    return sums, rest


def spreads_of(counts: Int64, sums: Pair, of_squares: Pair) -> np.ndarray:
    """float64[Q]: population standard deviations, √(n Σx² − (Σx)²) / n; 0 of nothing."""
    n = counts.astype(np.float64)
    left = n * of_squares[0]
    left_rest = _product_rest(n, of_squares[0], left) + n * of_squares[1]
    right = sums[0] * sums[0]
    right_rest = _square_rest(sums[0], right) + 2.0 * sums[0] * sums[1]
    number = (left - right) + (left_rest - right_rest)
    spreads: np.ndarray = np.sqrt(np.where(number > left * _LEVEL, number, 0.0)) / np.maximum(n, 1.0)
    return spreads


def quotients(numbers: Pair, divisors: np.ndarray) -> Pair:
    """Return the numbers divided by floats that are not 0, as two doubles each."""
    first = numbers[0] / divisors
    product = first * divisors
    rest = ((numbers[0] - product) - _product_rest(first, divisors, product)) + numbers[1]
    second = rest / divisors
    second = np.where(np.isfinite(second), second, 0.0)
    nearest = first + second
    return nearest, np.where(np.isfinite(nearest), second - (nearest - first), 0.0)


def _product_rest(one: np.ndarray, other: np.ndarray, product: np.ndarray) -> np.ndarray:
    """Return what the product is off, exactly (Dekker, "A floating-point technique for extending the available
    precision", 1971)."""
    (head, tail), (other_head, other_tail) = _split(one), _split(other)
    rest: np.ndarray = ((head * other_head - product) + head * other_tail + tail * other_head) + tail * other_tail
    return rest


def _square_rest(numbers: np.ndarray, square: np.ndarray) -> np.ndarray:
    return _product_rest(numbers, numbers, square)


def _split(numbers: np.ndarray) -> Pair:
    wide = _SPLIT * numbers
    head = wide - (wide - numbers)
    return head, numbers - head
