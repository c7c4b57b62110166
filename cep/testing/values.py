"""Checked expression + the event under test + the events bound so far → value, in plain Python, one event at a time.

What the kernels compute over columns is said here once more so that it can be explained: null is None and SQL's
unknown, decimals are scaled integers, an integer that leaves 64 bits is null. Slow, for single keys only.
Tested by: tests/testing/test_values.py
"""

from __future__ import annotations

import ipaddress
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from cep.base.errors import CepError
from cep.base.schema import Kind, Type
from cep.lang.ir import Aggregate, Binary, Call, Cast, Const, CurrentField, Expr, If, In, Unary, VarField
from cep.lang.show import show_expr
from cep.lang.test_ir import Slot

Fields = Mapping[str, Slot]
BoundFields = Mapping[str, Sequence[Fields]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARTH_DIAMETER_KM = 2 * 6371.0088
_INT64 = range(-(2**63), 2**63)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[[Any, Any], int | float]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}

_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "sqrt": math.sqrt, "sin": math.sin, "cos": math.cos, "asin": math.asin,
}  # fmt: skip


class UnexplainedError(CepError):
    """An expression that plain Python cannot evaluate for one event: the engine can."""


def value_of(expr: Expr, event: Fields, bound: BoundFields) -> Slot:
    """The value of the expression. An aggregate's argument speaks of each bound event by CurrentField."""
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
            return _call(expr, [value_of(argument, event, bound) for argument in expr.arguments])
        case _:
            raise UnexplainedError(f"a condition over past events cannot be explained: {show_expr(expr)}")


def _bound_field(expr: VarField, events: Sequence[Fields]) -> Slot:
    at = {"first": 0, "last": len(events) - 1, "prev": len(events) - 2}[expr.which]
    return events[at].get(expr.field) if 0 <= at < len(events) else None


def _aggregate(expr: Aggregate, events: Sequence[Fields]) -> Slot:
    if expr.argument is None:
        return len(events)
    values = [v for v in (value_of(expr.argument, event, {}) for event in events) if v is not None]
    if expr.fn in ("count", "distinct"):
        return len(values) if expr.fn == "count" else len(set(values))
    numbers = [_number(v) for v in values]
    if expr.fn == "sum":
        return _fitting(sum(numbers)) if numbers else (0.0 if expr.type.is_float else 0)
    if not numbers:
        return None
    if expr.fn in ("min", "max"):
        return min(numbers) if expr.fn == "min" else max(numbers)
    units: int = 10**expr.argument.type.scale
    mean = sum(numbers) / units / len(numbers)
    if expr.fn == "avg":
        return mean
    squares = sum((n / units) * (n / units) for n in numbers)
    return math.sqrt(max(squares / len(numbers) - mean * mean, 0.0))


def _unary(expr: Unary, value: Slot) -> Slot:
    if expr.op == "is_null":
        return value is None
    if value is None:
        return None
    if expr.op == "not":
        return not value
    return _fitting(-_number(value) if expr.op == "neg" else abs(_number(value)))


def _logic(op: str, left: Slot, right: Slot) -> Slot:
    decides = op == "or"
    if left is decides or right is decides:
        return decides
    return None if left is None or right is None else not decides


def _binary(expr: Binary, left: Slot, right: Slot) -> Slot:
    if left is None or right is None:
        return None
    if isinstance(left, str) or isinstance(right, str):
        return _COMPARE[expr.op](left, right)
    x, z = _number(left), _number(right)
    if expr.op == "/" or expr.left.type.is_float != expr.right.type.is_float:
        x, z = _as_float(x, expr.left.type), _as_float(z, expr.right.type)
    if expr.op in _COMPARE:
        return _COMPARE[expr.op](x, z)
    if expr.op == "/":
        return None if z == 0 else x / z
    if expr.op == "%":
        return None if z == 0 else (abs(x) % abs(z)) * (-1 if x < 0 else 1)
    return _fitting(_ARITHMETIC[expr.op](x, z))


def _cast(value: Slot, source: Type, target: Type) -> Slot:
    if value is None:
        return None
    if target.is_float:
        return _as_float(_number(value), source)
    return _fitting(_number(value) * 10 ** (target.scale - source.scale))


def _in(value: Slot, items: Sequence[Slot]) -> Slot:
    if value is None:
        return None
    if value in [item for item in items if item is not None]:
        return True
    return None if None in items else False


def _call(expr: Call, arguments: Sequence[Slot]) -> Slot:
    if None in arguments:
        return None
    if isinstance(arguments[0], str):
        return _text_call(expr.fn, arguments[0], arguments[1:])
    if expr.fn in ("hour", "weekday", "date"):
        return _calendar(expr.fn, int(arguments[0] or 0), str(arguments[1]))
    if expr.fn in ("round", "floor", "ceil"):
        return _rounded(expr, _number(arguments[0]))
    numbers = [_number(a) for a in arguments]
    if expr.fn in ("least", "greatest"):
        if expr.type.is_float:
            numbers = [_as_float(n, a.type) for n, a in zip(numbers, expr.arguments, strict=True)]
        return min(numbers) if expr.fn == "least" else max(numbers)
    floats = [_as_float(n, a.type) for n, a in zip(numbers, expr.arguments, strict=True)]
    if expr.fn == "distance_km":
        return _distance(*floats)
    if (expr.fn == "sqrt" and floats[0] < 0) or (expr.fn == "asin" and abs(floats[0]) > 1):
        return None
    return _FUNCTIONS[expr.fn](floats[0])


def _text_call(fn: str, text: str, others: Sequence[Slot]) -> Slot:
    if fn in ("lower", "upper"):
        return text.lower() if fn == "lower" else text.upper()
    if fn == "length":
        return len(text)
    if fn == "substring":
        start = int(_number(others[0])) - 1
        return text[start:] if len(others) == 1 else text[start : start + int(_number(others[1]))]
    other = str(others[0])
    if fn == "starts_with":
        return text.startswith(other)
    if fn == "ends_with":
        return text.endswith(other)
    if fn == "contains":
        return other in text
    if fn == "in_cidr":
        return _in_network(text, other)
    if fn == "matches":
        return bool(pc.match_substring_regex(pa.array([text]), other)[0].as_py())
    parts = [{"%": ".*", "_": "."}.get(c, re.escape(c)) for c in other]
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


def _in_network(text: str, network: str) -> Slot:
    """Null for what is no address."""
    try:
        return ipaddress.ip_address(text) in ipaddress.ip_network(network)
    except ValueError:
        return None


def _calendar(fn: str, time_ms: int, zone: str) -> Slot:
    moment = (_EPOCH + timedelta(milliseconds=time_ms)).astimezone(ZoneInfo(zone))
    if fn == "hour":
        return moment.hour
    if fn == "weekday":
        return moment.isoweekday()
    return (moment.replace(hour=0, minute=0, second=0, microsecond=0) - _EPOCH) // timedelta(milliseconds=1)


def _rounded(expr: Call, value: float) -> Slot:
    """Halves away from zero; a decimal becomes coarser, or a whole number."""
    source = expr.arguments[0].type
    if source.is_float:
        digits = expr.arguments[1] if len(expr.arguments) > 1 else None
        units = 10.0 ** (int(digits.value or 0) if isinstance(digits, Const) else 0)
        if expr.fn == "round":
            return math.copysign(math.floor(abs(value) * units + 0.5) / units, value)
        return float(math.floor(value) if expr.fn == "floor" else math.ceil(value))
    step: int = 10 ** (source.scale - expr.type.scale)
    whole = int(value)
    if expr.fn == "floor":
        return whole // step
    if expr.fn == "ceil":
        return -(-whole // step)
    size = (abs(whole) + step // 2) // step
    return -size if whole < 0 else size


def _distance(lat1: float, lon1: float, lat2: float, lon2: float) -> float:
    lat1, lon1, lat2, lon2 = (math.radians(degrees) for degrees in (lat1, lon1, lat2, lon2))
    across = math.sin((lat2 - lat1) / 2) ** 2 + math.cos(lat1) * math.cos(lat2) * math.sin((lon2 - lon1) / 2) ** 2
    return _EARTH_DIAMETER_KM * math.asin(min(1.0, math.sqrt(across)))


def _number(value: Slot) -> int | float:
    assert isinstance(value, int | float), f"{value!r} is not a number"
    return value


def _as_float(value: float, source: Type) -> float:
    return value / 10**source.scale if source.kind is Kind.DECIMAL else float(value)


def _fitting(value: float) -> Slot:
    """An integer that leaves 64 bits is null, as in the kernels."""
    return None if isinstance(value, int) and value not in _INT64 else value
