"""Sums and standard deviations of floats to twice the digits, where each float may stand for many events (folds.py).

histories/windows.py does the same for windows of events.
Tested by: tests/histories/test_folds.py, tests/histories/test_tally.py
"""

from __future__ import annotations

import numpy as np

from cep.kernels.histories.windows import sum_floats
from cep.kernels.layout import Int64

_SPLIT = 134217729.0  # 2^27 + 1
# Squares of smaller values, summed and multiplied by their count, stay below the greatest float.
_SQUARED_MAX = 2.0**480
# Possible error of a sum of two floats, in the standard deviation of equal values: 2^-101 of the sum of squares.
_LEVEL = 2.0**-101
Pair = tuple[np.ndarray, np.ndarray]  # float64[N] each: their sum is the number, the first is the nearest float


def can_be_squared(values: Int64) -> np.ndarray:
    """bool[N]: the floats, given by their bits, that can have a standard deviation.

    A window with any other float has the standard deviation NaN.
    """
    is_small: np.ndarray = np.abs(values.view(np.float64)) < _SQUARED_MAX
    return is_small


def squares(values: Int64) -> tuple[Int64, Int64]:
    """Return the squares of floats, given by their bits: the nearest float and its error, as bits."""
    floats = values.view(np.float64)
    square = floats * floats
    return square.view(np.int64), _square_rest(floats, square).view(np.int64)


def two_sums(values: Int64, lows: Int64, highs: Int64) -> Pair:
    """Return the sums of values[low:high] of finite floats, given by their bits, for windows that never move back."""
    sums, rest = np.empty(len(lows), np.float64), np.empty(len(lows), np.float64)
    sum_floats(values, lows, highs, sums)
    # After each window its sum is subtracted, and added again for the windows that follow.
    off_and_on = np.stack([-sums, sums], axis=1).reshape(-1).view(np.int64)
    longer = np.insert(values, np.repeat(highs, 2), off_and_on)
    before = np.searchsorted(highs, lows, side="right")  # the number of windows whose sums are before each start
    ends = highs + 2 * np.arange(len(highs)) + 1
    sum_floats(longer, np.minimum(lows + 2 * before, ends), ends, rest)
    return sums, rest


def spreads_of(counts: Int64, sums: Pair, of_squares: Pair) -> np.ndarray:
    """float64[Q]: population standard deviations, √(n Σx² − (Σx)²) / n; 0 for an empty window."""
    n = counts.astype(np.float64)
    scaled_squares = n * of_squares[0]
    left_rest = _product_rest(n, of_squares[0], scaled_squares) + n * of_squares[1]
    right = sums[0] * sums[0]
    right_rest = _square_rest(sums[0], right) + 2.0 * sums[0] * sums[1]
    number = (scaled_squares - right) + (left_rest - right_rest)
    spreads: np.ndarray = np.sqrt(np.where(number > scaled_squares * _LEVEL, number, 0.0)) / np.maximum(n, 1.0)
    return spreads


def quotients(numbers: Pair, divisors: np.ndarray) -> Pair:
    """Divide the numbers by floats other than 0. The quotients are pairs of floats."""
    first = numbers[0] / divisors
    product = first * divisors
    rest = ((numbers[0] - product) - _product_rest(first, divisors, product)) + numbers[1]
    second = rest / divisors
    second = np.where(np.isfinite(second), second, 0.0)
    nearest = first + second
    return nearest, np.where(np.isfinite(nearest), second - (nearest - first), 0.0)


def _product_rest(one: np.ndarray, other: np.ndarray, product: np.ndarray) -> np.ndarray:
    """Return the exact rounding error of a product.

    Source: Dekker, "A floating-point technique for extending the available precision", 1971.
    """
    (head, tail), (other_head, other_tail) = _split(one), _split(other)
    rest: np.ndarray = ((head * other_head - product) + head * other_tail + tail * other_head) + tail * other_tail
    return rest


def _square_rest(numbers: np.ndarray, square: np.ndarray) -> np.ndarray:
    return _product_rest(numbers, numbers, square)


def _split(numbers: np.ndarray) -> Pair:
    wide = _SPLIT * numbers
    head = wide - (wide - numbers)
    return head, numbers - head
