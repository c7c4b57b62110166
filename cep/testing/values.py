"""Checked expression + the event under test + the events bound so far → value, in plain Python, one event at a time.

The kernels compute over columns. This module explains their results: it computes operation by operation in the order of
nfa/code.py, so that even the last bit is equal. Null is None and SQL's unknown, decimals are scaled integers, floats
have infinities. An integer overflow is the bound of 64 bits. Averages, standard deviations and comparisons with an
average use the operations of nfa/twofold.py. Functions of text and of calendars are the engine's own.
Tested by: tests/testing/test_values.py, tests/answers/numbers.py
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from cep.base.errors import CepError
from cep.base.schema import Type
from cep.columnar.batch import TEXT
from cep.functions.calendar import of_times
from cep.functions.columns import of_texts
from cep.lang.functions import COLUMN_FUNCTIONS, IN_LIST, ROUNDING
from cep.lang.ir import Aggregate, Binary, Call, Cast, Const, CurrentField, Expr, History, If, In, Slot, Unary, VarField
from cep.lang.show import show_expr
from cep.nfa.code import EARTH_RADIUS_KM, same_units
from cep.nfa.twofold import FLOAT_ERROR, LEVEL, has_average, is_average, is_exact_float, written_rest

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_SPLIT = 134217729.0
_BOUND = 1e290
_MASK = 0xFFFFFFFF
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


class Twofold(NamedTuple):
    """A number with twice the digits of a float: the sum of `high` and `low`."""

    high: float  # the nearest float
    low: float  # the rest
    error_scale: float  # the error is at most a fixed share of it


def exact(high: float, low: float = 0.0) -> Twofold:
    """Return a number with the error of a twofold, or without error."""
    return Twofold(high, low, abs(high))


def mean_of(numbers: Sequence[int | float], scale: int | None) -> Twofold | None:
    """Compute the average of decimals with `scale` digits, or of floats (None), as a sum of two floats. It equals the
    engine's average to the last bit, so decimals are summed as there: the upper and lower 32 bits separately."""
    if not numbers:
        return None
    count = exact(float(len(numbers)))
    if scale is None:
        total, rest = float(numbers[0]), _sum_error(0.0, float(numbers[0]))
        for number in numbers[1:]:
            rest += _sum_error(total, number)  # the digits that the next line rounds away
            total += number
        return _twofold_quotient(_twofold_sum(total, rest), count)
    whole = [int(number) for number in numbers]
    high, low = sum(number >> 32 for number in whole), sum(number & _MASK for number in whole)
    mean = _twofold_quotient(_twofold_sum(float(high) * 2.0**32, float(low)), count)
    return mean if scale == 0 or mean is None else _twofold_quotient(mean, exact(float(10**scale)))


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


def compared(expr: Binary, event: Fields, bound: BoundFields) -> bool | None:
    """Compare two sides of which at least one has an average."""
    left, right = (side_of(side, event, bound) for side in (expr.left, expr.right))
    if left is None or right is None:
        return None
    difference = (left.high - right.high) + (left.low - right.low)
    size = left.error_scale + right.error_scale
    if abs(difference) < size * LEVEL or (math.isnan(difference) and math.isinf(size)):
        difference = 0.0
    return _COMPARE[expr.op](difference, 0)


def side_of(expr: Expr, event: Fields, bound: BoundFields) -> Twofold | None:
    """Evaluate one side of a comparison with an average, as a sum of two floats (Twofold). One float is not enough:
    its rounding could change the order of the sides. The error is at most a fixed share of `error_scale`."""
    if is_average(expr):
        return _average(expr, event, bound)
    if not expr.type.is_float:
        return _of_decimal(value_of(expr, event, bound), expr.type.scale)
    match expr:
        case Const():
            return None if expr.value is None else exact(float(expr.value), written_rest(float(expr.value)))
        case Cast() if not expr.argument.type.is_float:
            return _of_decimal(value_of(expr.argument, event, bound), expr.argument.type.scale)
        case Cast():
            return side_of(expr.argument, event, bound)
        case Unary(op="neg" | "abs"):
            number = side_of(expr.argument, event, bound)
            flips = number is not None and (expr.op == "neg" or number.high < 0)
            return Twofold(-number.high, -number.low, number.error_scale) if number is not None and flips else number
        case Binary(op="+" | "-" | "*" | "/"):
            left, right = side_of(expr.left, event, bound), side_of(expr.right, event, bound)
            return None if left is None or right is None else _arithmetic(expr.op, left, right)
        case _:
            slot = value_of(expr, event, bound)
            if slot is None:
                return None
            plain = exact(float(slot))  # its error is larger if the computation of the float has rounded
            return plain if is_exact_float(expr) else plain._replace(error_scale=plain.error_scale * FLOAT_ERROR)


def _of_decimal(slot: Slot, scale: int) -> Twofold | None:
    return None if slot is None else exact(*_quotient(int(slot), 10**scale))


def _quotient(number: int, unit: int) -> tuple[float, float]:
    """Return the float nearest to number / unit, and the rest."""
    high, low = float(number >> 32) * 4294967296.0, float(number & _MASK)
    whole, divisor = high + low, float(unit)
    rest = low - (whole - high)
    first = whole / divisor
    second = (((whole - first * divisor) - _product_error(first, divisor)) + rest) / divisor
    nearest = first + second
    return nearest, second - (nearest - first)


def _arithmetic(op: str, left: Twofold, right: Twofold) -> Twofold | None:
    if op == "/":
        return _twofold_quotient(left, right)
    if op == "*":
        rest = _product_error(left.high, right.high) + (left.high * right.low + left.low * right.high)
        return _normal(left.high * right.high, rest, left.error_scale * right.error_scale)
    size = left.error_scale + right.error_scale
    if op == "-":
        right = Twofold(-right.high, -right.low, right.error_scale)
    rest = _sum_error(left.high, right.high) + (left.low + right.low)
    return _normal(left.high + right.high, rest, size)


def _twofold_sum(one: float, other: float) -> Twofold:
    return exact(one + other, _sum_error(one, other))


def _twofold_quotient(number: Twofold, divisor: Twofold) -> Twofold | None:
    if divisor.high == 0:
        return None
    first = number.high / divisor.high
    rest = (number.high - first * divisor.high) - _product_error(first, divisor.high)
    rest = (rest + number.low) - first * divisor.low
    size = number.error_scale / abs(divisor.high)
    if divisor.error_scale != abs(divisor.high):
        size *= divisor.error_scale / abs(divisor.high)
    return _normal(first, rest / divisor.high, size)


def _normal(high: float, low: float, size: float) -> Twofold:
    return Twofold(high + low, _sum_error(high, low), size)


def _sum_error(x: float, y: float) -> float:
    total = x + y
    if not math.isfinite(total):
        return 0.0
    part = total - x
    return (x - (total - part)) + (y - part)


def _product_error(x: float, y: float) -> float:
    product = x * y
    if not (abs(product) < _BOUND and abs(x) < _BOUND and abs(y) < _BOUND):
        return 0.0
    wide = _SPLIT * x
    x_head = wide - (wide - x)
    wide = _SPLIT * y
    y_head = wide - (wide - y)
    x_tail, y_tail = x - x_head, y - y_head
    return ((x_head * y_head - product) + x_head * y_tail + x_tail * y_head) + x_tail * y_tail


Fields = Mapping[str, Slot]
BoundFields = Mapping[str, Sequence[Fields]]

_DEGREE = math.pi / 180.0


class UnexplainedError(CepError):
    """An expression that plain Python cannot evaluate for one event: the engine can."""


def value_of(expr: Expr, event: Fields, bound: BoundFields) -> Slot:
    """Evaluate an expression for an event (fields and values of histories) and the events bound so far, by variable."""
    match expr:
        case Const():
            return expr.value
        case CurrentField():
            return event.get(expr.field)
        case VarField():
            return _bound_field(expr, bound.get(expr.variable, ()))
        case Aggregate():
            return _aggregate(expr, bound.get(expr.variable, ()))
        case Unary():
            return _unary(expr, value_of(expr.argument, event, bound))
        case Binary(op="/"):
            return _divided(expr, event, bound)
        case Binary() if expr.op in _COMPARE and has_average(expr):
            return compared(expr, event, bound)
        case Binary():
            left, right = value_of(expr.left, event, bound), value_of(expr.right, event, bound)
            return _logic(expr.op, left, right) if expr.op in ("and", "or") else _binary(expr, left, right)
        case Cast():
            return _cast(value_of(expr.argument, event, bound), expr.argument.type, expr.type)
        case In():
            return _in(value_of(expr.argument, event, bound), [value_of(item, event, bound) for item in expr.items])
        case If():
            holds = value_of(expr.condition, event, bound) is True
            return value_of(expr.then if holds else expr.otherwise, event, bound)
        case Call():
            if expr.fn == IN_LIST:  # whether a list has the value
                return _value_from_engine(expr, event)
            if expr.fn in COLUMN_FUNCTIONS:
                return _column_function(expr, event)
            return _call(expr, [value_of(argument, event, bound) for argument in expr.arguments])
        case _:  # a history: an aggregate over past events
            return _value_from_engine(expr, event)


def twofold_sides(expr: Binary, event: Fields, bound: BoundFields) -> tuple[Twofold, Twofold]:
    """Return the sides of a comparison with an average, which are not null, as the comparison computes with them."""
    left, right = side_of(expr.left, event, bound), side_of(expr.right, event, bound)
    assert left is not None, "a comparison with an outcome has two sides"
    assert right is not None, "a comparison with an outcome has two sides"
    return left, right


def _value_from_engine(expr: Expr, event: Fields) -> Slot:
    """Return a value that needs more than the event; testing/events.py adds it to the event's fields."""
    name = show_expr(expr)
    if name not in event:
        raise UnexplainedError(f"the past events or the list that this looks at are not there: {name}")
    return event[name]


def _bound_field(expr: VarField, events: Sequence[Fields]) -> Slot:
    n = {"first": 0, "last": len(events) - 1, "prev": len(events) - 2}[expr.which]
    return events[n].get(expr.field) if 0 <= n < len(events) else None


def _aggregate(expr: Aggregate, events: Sequence[Fields]) -> Slot:
    argument = expr.argument
    if argument is None:  # count(a): the events that the variable has bound
        return len(events)
    values = [v for v in (value_of(argument, event, {}) for event in events) if v is not None]
    if expr.fn in ("count", "distinct"):
        return len(values) if expr.fn == "count" else len({_bits(v) for v in values})  # 0.0 and -0.0 are two
    numbers = [_number(v) for v in values]
    if expr.fn == "sum":
        return _sum(numbers, is_float=expr.type.is_float)
    if not numbers:
        return None
    if expr.fn in ("min", "max"):
        return min(numbers) if expr.fn == "min" else max(numbers)
    scale = None if argument.type.is_float else argument.type.scale
    if expr.fn == "stddev":
        return spread_of(numbers, scale)
    mean = mean_of(numbers, scale)
    return None if mean is None else mean.high  # the nearest float


def _average(expr: Expr, event: Fields, bound: BoundFields) -> Twofold | None:
    """Return an average with its rounding error."""
    if isinstance(expr, Aggregate):
        argument = expr.argument
        assert argument is not None, "avg has an argument"
        values = [value_of(argument, fields, {}) for fields in bound.get(expr.variable, ())]
        scale = None if argument.type.is_float else argument.type.scale
        return mean_of([_number(v) for v in values if v is not None], scale)
    assert isinstance(expr, History), "there are no other averages"
    value, rest = (_value_from_engine(part, event) for part in (expr, replace(expr, fn="avg_rest")))
    return None if value is None or rest is None else exact(_number(value), _number(rest))


def _sum(numbers: Sequence[int | float], *, is_float: bool) -> int | float:
    """One after the other. An integer sum stops at the bounds of 64 bits, and the engine counts it."""
    total: int | float = 0.0 if is_float else 0
    for index, number in enumerate(numbers):
        total = _bounded(number if index == 0 else total + number)
    return total


def _bits(value: Slot) -> Slot:
    """Floats are counted by their bits: 0.0 and -0.0 are two values, and NaN is one."""
    return int(np.float64(value).view(np.int64)) if isinstance(value, float) else value


def _unary(expr: Unary, value: Slot) -> Slot:
    if expr.op == "is_null":
        return value is None
    if value is None:
        return None
    if expr.op == "not":
        return not value
    return _bounded(-_number(value) if expr.op == "neg" else abs(_number(value)))


def _logic(op: str, left: Slot, right: Slot) -> Slot:
    decides = op == "or"
    if left is decides or right is decides:
        return decides
    return None if left is None or right is None else not decides


def _binary(expr: Binary, left: Slot, right: Slot) -> Slot:
    """Compute an operator with two operands, null if one of them is null."""
    if left is None or right is None:
        return None
    if isinstance(left, str) or isinstance(right, str):
        return _COMPARE[expr.op](left, right)
    first, second = _number(left), _number(right)
    if expr.left.type.is_float or expr.right.type.is_float:
        first, second = _as_float(first, expr.left.type), _as_float(second, expr.right.type)
    if expr.op in _COMPARE:
        return _COMPARE[expr.op](first, second)
    if expr.op == "%":  # the remainder has the sign of the first operand
        return None if second == 0 else (abs(first) % abs(second)) * (-1 if first < 0 else 1)
    if expr.op == "*":
        return _bounded(first * second)
    return _bounded(first + second if expr.op == "+" else first - second)


def _divided(expr: Binary, event: Fields, bound: BoundFields) -> Slot:
    """Divide two numbers; the result is null if the divisor is 0. If both are counts of the same unit, such as cents,
    divide the counts, because they are exact. Otherwise divide the floats."""
    units = same_units(expr.left, expr.right)  # expressions of the two counts, or None
    sides = units or (expr.left, expr.right)
    left, right = (value_of(side, event, bound) for side in sides)
    if left is None or right is None:
        return None
    if units is not None:
        dividend, divisor = float(left), float(right)
    else:
        dividend, divisor = _as_float(_number(left), expr.left.type), _as_float(_number(right), expr.right.type)
    return None if divisor == 0 else dividend / divisor


def _cast(value: Slot, source: Type, target: Type) -> Slot:
    if value is None:
        return None
    if target.is_float:
        return _as_float(_number(value), source)
    return _bounded(_number(value) * 10 ** (target.scale - source.scale))


def _in(value: Slot, items: Sequence[Slot]) -> Slot:
    if value is None:
        return None
    # with `==`, because `in` treats NaN as equal to itself
    if any(value == item for item in items if item is not None):
        return True
    return None if None in items else False


def _column_function(expr: Call, event: Fields) -> Slot:
    """Evaluate a function of the event's text or time with the engine's function for columns, for an equal result."""
    field: Expr = expr
    while isinstance(field, Call):
        field = field.arguments[0]
    assert isinstance(field, CurrentField), "checked before"
    value = event.get(field.field)
    if value is None:
        return None
    if not field.type.is_text:
        zone = expr.arguments[1]  # a function of a time has a time zone
        assert isinstance(zone, Const), "checked before"
        return int(of_times(expr.fn, str(zone.value), np.array([value], np.int64))[0])
    value_of_text: Slot = of_texts(expr, pa.array([value], TEXT))[0].as_py()
    return value_of_text


def _call(expr: Call, arguments: Sequence[Slot]) -> Slot:
    """Evaluate a function of numbers, null if an argument is null."""
    if None in arguments:
        return None
    if expr.fn in ROUNDING:
        return _rounded(expr, _number(arguments[0]))
    numbers = [_number(a) for a in arguments]
    if expr.fn in ("least", "greatest"):
        if expr.type.is_float:
            numbers = [_as_float(n, a.type) for n, a in zip(numbers, expr.arguments, strict=True)]
        return min(numbers) if expr.fn == "least" else max(numbers)
    floats = [_as_float(n, a.type) for n, a in zip(numbers, expr.arguments, strict=True)]
    if expr.fn == "distance_km":
        return _distance(*floats)
    return _FLOAT_FUNCTIONS[expr.fn](floats[0])


def _sine(x: float) -> float:
    return math.sin(x) if math.isfinite(x) else math.nan


def _cosine(x: float) -> float:
    return math.cos(x) if math.isfinite(x) else math.nan


_FLOAT_FUNCTIONS: dict[str, Callable[[float], Slot]] = {
    "sqrt": lambda x: None if x < 0 else math.sqrt(x),
    "sin": _sine,
    "cos": _cosine,
    "asin": lambda x: math.asin(x) if -1.0 <= x <= 1.0 else None,
}


def _rounded(expr: Call, value: float) -> Slot:
    """Apply floor, ceil or round (halves away from zero). A decimal is a count of small units, such as cents."""
    source = expr.arguments[0].type
    if source.is_float:
        digits = expr.arguments[1] if len(expr.arguments) > 1 else None
        return _rounded_float(expr.fn, value, int(digits.value or 0) if isinstance(digits, Const) else 0)
    units: int = 10 ** (source.scale - expr.type.scale)  # small units of the argument in one unit of the result
    whole = int(value)
    if expr.fn == "floor":
        return whole // units
    if expr.fn == "ceil":
        return -(-whole // units)
    magnitude = (abs(whole) + units // 2) // units
    return -magnitude if whole < 0 else magnitude


def _rounded_float(fn: str, value: float, digits: int) -> float:
    if fn == "floor":
        return float(np.floor(value))
    if fn == "ceil":
        return -float(np.floor(-value))
    units = 10.0**digits
    magnitude = abs(value) * units
    whole = float(np.floor(magnitude))
    # The fractional part is exact, magnitude + 0.5 is not. For an infinity it is NaN, which is below a half.
    nearest = (whole + 1.0 if magnitude - whole >= 0.5 else whole) / units
    return -nearest if value < 0 else nearest


def _distance(lat1: float, lon1: float, lat2: float, lon2: float) -> Slot:
    lat1, lon1, lat2, lon2 = (degrees * _DEGREE for degrees in (lat1, lon1, lat2, lon2))
    north, east = _sine((lat2 - lat1) * 0.5), _sine((lon2 - lon1) * 0.5)
    chord = min(north * north + _cosine(lat1) * _cosine(lat2) * (east * east), 1.0)
    return None if math.isnan(chord) else math.asin(math.sqrt(chord)) * (2.0 * EARTH_RADIUS_KM)


def _number(value: Slot) -> int | float:
    assert isinstance(value, int | float), f"{value!r} is not a number"
    return value


def _as_float(value: float, source: Type) -> float:
    """Return the nearest float of a count, divided by its unit."""
    return value if source.is_float else value / 10**source.scale  # of whole numbers: the nearest float


def _bounded(value: float) -> float:
    """Return the integer, or the bound of 64 bits that it leaves."""
    return max(_INT64_MIN, min(value, _INT64_MAX)) if isinstance(value, int) else value
