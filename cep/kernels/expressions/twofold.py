"""Numbers with twice the digits of a float64: a high float, which is the nearest one, and the rest.

nfa/twofold.py generates the code that computes with them, for comparisons with an average. The rest of a result that is
not finite is 0. After Dekker, "A floating-point technique for extending the available precision" (1971), and Knuth's
exact sum.
Tested by: tests/nfa/test_averages.py
"""

import numpy as np

from cep.kernels.jit import inlined
from cep.kernels.layout import int64

_SPLIT = 134217729.0  # 2^27 + 1: multiplying by it divides a float into a head and a tail of half its digits
# 2^-98: the possible error of twofold arithmetic, with a margin. Different amounts of 18 digits, times 100 000 events
# and a factor of six digits, differ by more.
_LEVEL = 3.1554436208840472e-30
_EXACT_INT = int64(2**53)


@inlined
def sum_rest(x: float, y: float) -> float:
    """Return (x + y) − fl(x + y), exactly."""
    total = x + y
    rest = 0.0
    if np.isfinite(total):
        part = total - x
        rest = (x - (total - part)) + (y - part)
    return rest


@inlined
def product_rest(x: float, y: float) -> float:
    """Return the rounding error of x · y: exact, without parts that are too small for a float. 0.0 from 1e290 on."""
    product = x * y
    rest = 0.0
    if abs(product) < 1e290 and abs(x) < 1e290 and abs(y) < 1e290:  # the split of larger numbers could overflow
        wide = _SPLIT * x  # splits x into a head and a tail of half its digits, whose products are exact
        x_head = wide - (wide - x)
        wide = _SPLIT * y
        y_head = wide - (wide - y)
        x_tail, y_tail = x - x_head, y - y_head
        rest = ((x_head * y_head - product) + x_head * y_tail + x_tail * y_head) + x_tail * y_tail
    return rest


@inlined
def quotient(x: int, unit: int) -> tuple[float, float]:
    """Return the float64 nearest to x / unit, and the rest. The unit is at most 10^22, so that a float64 has it."""
    high = np.float64(x >> int64(32)) * 4294967296.0
    low = np.float64(x & int64(0xFFFFFFFF))
    whole, divisor = high + low, np.float64(unit)
    rest = low - (whole - high)
    first = whole / divisor
    product = first * divisor
    second = (((whole - product) - product_rest(first, divisor)) + rest) / divisor
    nearest = first + second
    return nearest, second - (nearest - first)


@inlined
def as_nearest_float(x: int, unit: int) -> float:
    """Return the float64 nearest to x / unit."""
    value: float = np.float64(x) / np.float64(unit)
    if unit != 1 and (x > _EXACT_INT or x < -_EXACT_INT):
        value = quotient(x, unit)[0]
    return value


@inlined
def settled(difference: float, size: float) -> float:
    """Return 0.0 for a difference that is no more than the error of numbers of this size, else the difference."""
    value = difference
    if abs(difference) < size * _LEVEL or (np.isnan(difference) and np.isinf(size)):
        value = 0.0
    return value
