"""Checked expression + the event under test + the events bound so far → value, in plain Python, one event at a time.

The kernels compute over columns. This module computes the same once more to explain it: operation by operation in the
order of nfa/code.py, so that even the last bit is equal. Null is None and SQL's unknown, decimals are scaled integers,
floats have infinities. An integer overflow is the bound of 64 bits. Functions of text and of calendars are the engine's
own. Slow, for single keys only.
Tested by: tests/testing/test_values.py
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from cep.base.errors import CepError
from cep.base.schema import Type
from cep.columnar.batch import TEXT
from cep.functions.calendar import of_times
from cep.functions.columns import of_texts
from cep.lang.functions import COLUMN_FUNCTIONS, IN_LIST, ROUNDING
from cep.lang.ir import Aggregate, Binary, Call, Cast, Const, CurrentField, Expr, History, If, In, Unary, VarField
from cep.lang.ir_tests import Slot
from cep.lang.show import show_expr
from cep.nfa.code import EARTH_RADIUS_KM, same_units
from cep.nfa.twofold import has_average
from cep.testing.twofold import Twofold, compared, exact, mean_of, side_of, spread_of

Fields = Mapping[str, Slot]
BoundFields = Mapping[str, Sequence[Fields]]

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_DEGREE = math.pi / 180.0


class UnexplainedError(CepError):
    """An expression that plain Python cannot evaluate for one event: the engine can."""


def value_of(expr: Expr, event: Fields, bound: BoundFields) -> Slot:
    """Evaluate an expression in plain Python, as a reference for the engine.

    The argument of an aggregate refers to each bound event by CurrentField.
    """
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
            return compared(expr, lambda e: value_of(e, event, bound), lambda e: _average(e, event, bound))
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
            if expr.fn == IN_LIST:
                return _given(expr, event)
            if expr.fn in COLUMN_FUNCTIONS:
                return _column_function(expr, event)
            return _call(expr, [value_of(argument, event, bound) for argument in expr.arguments])
        case _:
            return _given(expr, event)


def twofold_sides(expr: Binary, event: Fields, bound: BoundFields) -> tuple[Twofold, Twofold]:
    """Return the sides of a comparison with an average, which are not null, as the comparison computes with them."""

    def twofold(side: Expr) -> Twofold:
        number = side_of(side, lambda e: value_of(e, event, bound), lambda e: _average(e, event, bound))
        assert number is not None, "a comparison with an outcome has two sides"
        return number

    return twofold(expr.left), twofold(expr.right)


def _given(expr: Expr, event: Fields) -> Slot:
    """Return a value that needs more than the event; testing/past.py adds it to the event's fields."""
    name = show_expr(expr)
    if name not in event:
        raise UnexplainedError(f"the past events or the list that this looks at are not there: {name}")
    return event[name]


def _bound_field(expr: VarField, events: Sequence[Fields]) -> Slot:
    n = {"first": 0, "last": len(events) - 1, "prev": len(events) - 2}[expr.which]
    return events[n].get(expr.field) if 0 <= n < len(events) else None


def _aggregate(expr: Aggregate, events: Sequence[Fields]) -> Slot:
    """Compute an aggregate over the events of a variable."""
    argument = expr.argument
    if argument is None:
        return len(events)
    values = [v for v in (value_of(argument, event, {}) for event in events) if v is not None]
    if expr.fn in ("count", "distinct"):
        return len(values) if expr.fn == "count" else len({_bits(v) for v in values})
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
    return None if mean is None else mean.high


def _average(expr: Expr, event: Fields, bound: BoundFields) -> Twofold | None:
    """Return an average with its rounding error."""
    if isinstance(expr, Aggregate):
        argument = expr.argument
        assert argument is not None, "avg has an argument"
        values = [value_of(argument, fields, {}) for fields in bound.get(expr.variable, ())]
        scale = None if argument.type.is_float else argument.type.scale
        return mean_of([_number(v) for v in values if v is not None], scale)
    assert isinstance(expr, History), "there are no other averages"
    value, rest = (_given(part, event) for part in (expr, replace(expr, fn="avg_rest")))
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
    x, z = _number(left), _number(right)
    if expr.left.type.is_float or expr.right.type.is_float:
        x, z = _as_float(x, expr.left.type), _as_float(z, expr.right.type)
    if expr.op in _COMPARE:
        return _COMPARE[expr.op](x, z)
    if expr.op == "%":
        return None if z == 0 else (abs(x) % abs(z)) * (-1 if x < 0 else 1)
    if expr.op == "*":
        return _bounded(x * z)
    return _bounded(x + z if expr.op == "+" else x - z)


def _divided(expr: Binary, event: Fields, bound: BoundFields) -> Slot:
    """Divide two numbers; null if the divisor is 0.

    If both sides count the same unit, the counts are divided, otherwise the floats.
    """
    units = same_units(expr.left, expr.right)
    sides = units or (expr.left, expr.right)
    left, right = (value_of(side, event, bound) for side in sides)
    if left is None or right is None:
        return None
    if units is not None:
        x, z = float(left), float(right)
    else:
        x, z = _as_float(_number(left), expr.left.type), _as_float(_number(right), expr.right.type)
    return None if z == 0 else x / z


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
    """Evaluate a function of the event's text or time with the engine's function for columns."""
    field: Expr = expr
    while isinstance(field, Call):
        field = field.arguments[0]
    assert isinstance(field, CurrentField), "checked before"
    value = event.get(field.field)
    if value is None:
        return None
    if not field.type.is_text:
        zone = expr.arguments[1]
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


def _root(x: float) -> Slot:
    return None if x < 0 else math.sqrt(x)


def _arc_sine(x: float) -> Slot:
    return math.asin(x) if -1.0 <= x <= 1.0 else None


def _sine(x: float) -> float:
    return math.sin(x) if math.isfinite(x) else math.nan


def _cosine(x: float) -> float:
    return math.cos(x) if math.isfinite(x) else math.nan


_FLOAT_FUNCTIONS: dict[str, Callable[[float], Slot]] = {
    "sqrt": _root,
    "sin": _sine,
    "cos": _cosine,
    "asin": _arc_sine,
}


def _rounded(expr: Call, value: float) -> Slot:
    """Round a number: halves away from zero. A decimal gets a coarser scale."""
    source = expr.arguments[0].type
    if source.is_float:
        digits = expr.arguments[1] if len(expr.arguments) > 1 else None
        return _rounded_float(expr.fn, value, int(digits.value or 0) if isinstance(digits, Const) else 0)
    step: int = 10 ** (source.scale - expr.type.scale)
    whole = int(value)
    if expr.fn == "floor":
        return whole // step
    if expr.fn == "ceil":
        return -(-whole // step)
    size = (abs(whole) + step // 2) // step
    return -size if whole < 0 else size


def _rounded_float(fn: str, value: float, digits: int) -> float:
    if fn == "floor":
        return float(np.floor(value))
    if fn == "ceil":
        return -float(np.floor(-value))
    units = 10.0**digits
    size = abs(value) * units
    whole = float(np.floor(size))
    # The fractional part is exact, size + 0.5 is not. For an infinity it is NaN, which is below a half.
    nearest = (whole + 1.0 if size - whole >= 0.5 else whole) / units
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
