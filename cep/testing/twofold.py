"""Averages, standard deviations and comparisons with an average, in plain Python: the operations of nfa/twofold.py.

A number is high + low, and its error is a share of its size. Null is None.
Tested by: tests/testing/test_values.py, tests/answers/numbers.py
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cep.lang.ir import Binary, Cast, Const, Expr, Unary
from cep.lang.ir_tests import Slot
from cep.nfa.twofold import FLOAT_SIZE, LEVEL, is_average, is_exact_float, written_rest

_SPLIT = 134217729.0
_BOUND = 1e290
_MASK = 0xFFFFFFFF
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


class Twofold(NamedTuple):
    """A number: the nearest float, the rest, and the size that its error is a share of."""

    high: float
    low: float
    size: float


def exact(high: float, low: float = 0.0) -> Twofold:
    """Return a number with the error of a twofold, or without error."""
    return Twofold(high, low, abs(high))


def mean_of(numbers: Sequence[int | float], scale: int | None) -> Twofold | None:
    """Compute the average of decimals with `scale` digits, or of floats (None), as the engine does: in order."""
    if not numbers:
        return None
    count = exact(float(len(numbers)))
    if scale is None:
        total, rest = float(numbers[0]), _sum_rest(0.0, float(numbers[0]))
        for number in numbers[1:]:
            rest += _sum_rest(total, number)
            total += number
        return _divided(_sum(total, rest), count)
    whole = [int(number) for number in numbers]
    high, low = sum(number >> 32 for number in whole), sum(number & _MASK for number in whole)
    mean = _divided(_sum(float(high) * 2.0**32, float(low)), count)
    return mean if scale == 0 or mean is None else _divided(mean, exact(float(10**scale)))


def spread_of(numbers: Sequence[int | float], scale: int | None) -> float:
    """Return the standard deviation of the population, from how far the numbers are from the first one."""
    total = squares = 0.0
    for number in numbers:
        offset = number - numbers[0]
        offset = offset if scale is None else float(max(_INT64_MIN, min(offset, _INT64_MAX)))
        total, squares = total + offset, squares + offset * offset
    count = float(len(numbers))
    number = count * squares - total * total
    spread = (number if math.isnan(number) else math.sqrt(max(number, 0.0))) / count
    return spread / float(10**scale) if scale else spread


def compared(expr: Binary, value: Callable[[Expr], Slot], average: Callable[[Expr], Twofold | None]) -> bool | None:
    """Compare two sides of which at least one has an average. `value` and `average` evaluate the parts."""
    left, right = (side_of(side, value, average) for side in (expr.left, expr.right))
    if left is None or right is None:
        return None
    difference = (left.high - right.high) + (left.low - right.low)
    size = left.size + right.size
    if abs(difference) < size * LEVEL or (math.isnan(difference) and math.isinf(size)):
        difference = 0.0
    match expr.op:
        case "<":
            return difference < 0
        case "<=":
            return difference <= 0
        case ">":
            return difference > 0
        case ">=":
            return difference >= 0
        case "==":
            return difference == 0
        case _:
            return difference != 0


def side_of(expr: Expr, value: Callable[[Expr], Slot], average: Callable[[Expr], Twofold | None]) -> Twofold | None:
    """Evaluate one side of such a comparison as a float and its rest."""
    if is_average(expr):
        return average(expr)
    if not expr.type.is_float:
        return _of_decimal(value(expr), expr.type.scale)
    match expr:
        case Const():
            return None if expr.value is None else exact(float(expr.value), written_rest(float(expr.value)))
        case Cast() if not expr.argument.type.is_float:
            return _of_decimal(value(expr.argument), expr.argument.type.scale)
        case Cast():
            return side_of(expr.argument, value, average)
        case Unary(op="neg" | "abs"):
            number = side_of(expr.argument, value, average)
            turned = number is not None and (expr.op == "neg" or number.high < 0)
            return Twofold(-number.high, -number.low, number.size) if number is not None and turned else number
        case Binary(op="+" | "-" | "*" | "/"):
            left, right = side_of(expr.left, value, average), side_of(expr.right, value, average)
            return None if left is None or right is None else _arithmetic(expr.op, left, right)
        case _:
            slot = value(expr)
            if slot is None:
                return None
            plain = exact(float(slot))
            return plain if is_exact_float(expr) else plain._replace(size=plain.size * FLOAT_SIZE)


def _of_decimal(slot: Slot, scale: int) -> Twofold | None:
    return None if slot is None else exact(*_quotient(int(slot), 10**scale))


def _quotient(number: int, unit: int) -> tuple[float, float]:
    """Return the float nearest to number / unit, and the rest."""
    high, low = float(number >> 32) * 4294967296.0, float(number & _MASK)
    whole, divisor = high + low, float(unit)
    rest = low - (whole - high)
    first = whole / divisor
    second = (((whole - first * divisor) - _product_rest(first, divisor)) + rest) / divisor
    nearest = first + second
    return nearest, second - (nearest - first)


def _arithmetic(op: str, left: Twofold, right: Twofold) -> Twofold | None:
    if op == "/":
        return _divided(left, right)
    if op == "*":
        rest = _product_rest(left.high, right.high) + (left.high * right.low + left.low * right.high)
        return _normal(left.high * right.high, rest, left.size * right.size)
    size = left.size + right.size
    if op == "-":
        right = Twofold(-right.high, -right.low, right.size)
    rest = _sum_rest(left.high, right.high) + (left.low + right.low)
    return _normal(left.high + right.high, rest, size)


def _sum(one: float, other: float) -> Twofold:
    return exact(one + other, _sum_rest(one, other))


def _divided(number: Twofold, divisor: Twofold) -> Twofold | None:
    if divisor.high == 0:
        return None
    first = number.high / divisor.high
    rest = (number.high - first * divisor.high) - _product_rest(first, divisor.high)
    rest = (rest + number.low) - first * divisor.low
    size = number.size / abs(divisor.high)
    if divisor.size != abs(divisor.high):
        size *= divisor.size / abs(divisor.high)
    return _normal(first, rest / divisor.high, size)


def _normal(high: float, low: float, size: float) -> Twofold:
    return Twofold(high + low, _sum_rest(high, low), size)


def _sum_rest(x: float, y: float) -> float:
    total = x + y
    if not math.isfinite(total):
        return 0.0
    part = total - x
    return (x - (total - part)) + (y - part)


def _product_rest(x: float, y: float) -> float:
    product = x * y
    if not (abs(product) < _BOUND and abs(x) < _BOUND and abs(y) < _BOUND):
        return 0.0
    wide = _SPLIT * x
    x_head = wide - (wide - x)
    wide = _SPLIT * y
    y_head = wide - (wide - y)
    x_tail, y_tail = x - x_head, y - y_head
    return ((x_head * y_head - product) + x_head * y_tail + x_tail * y_head) + x_tail * y_tail
