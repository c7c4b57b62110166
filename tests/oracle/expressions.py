"""Checked expression + one event + the events bound so far → value, by walking the tree.

None stands for null and behaves as SQL's unknown. Decimals are scaled integers and stay exact; only FLOAT is a Python
float. The module must not know anything of automata or columns: tests compare the compiled expressions with it.
Histories follow their definition: for every event, walk all past events of the key again; `approx_distinct` counts
exactly, as it does up to its limit.
Tested by: tests/oracle/test_oracle.py
"""

import ipaddress
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Protocol
from zoneinfo import ZoneInfo

from cep.base.schema import Kind, Type
from cep.lang import ir
from cep.lang.ir import Const, History, HistoryWindow

Value = int | float | bool | str | None
Fields = Mapping[str, Value]
Bound = Mapping[str, Sequence[Fields]]

EARTH_RADIUS_KM = 6371.0088
_EXACT = Context(prec=400)  # a double has at most 309 digits before the point


def evaluate(expr: ir.Expr, event: Fields, bound: Bound) -> Value:
    """Return the value of `expr` for the event under test, given the fields of the events bound to each variable."""
    match expr:
        case ir.Const(value=value):
            return value
        case ir.Param(name=name):
            raise AssertionError(f"parameter {name} has not been bound")
        case ir.CurrentField(field=field):
            return event.get(field)
        case ir.VarField(variable=variable, which=which, field=field):
            return _remembered(bound.get(variable, ()), which, field)
        case ir.Aggregate():
            return _aggregate(expr, bound)
        case ir.Unary(op=op, argument=argument):
            return _unary(op, evaluate(argument, event, bound))
        case ir.Binary(op="and" | "or" as op, left=left, right=right):
            return _logic(op, evaluate(left, event, bound), evaluate(right, event, bound))
        case ir.Binary(op=op, left=left, right=right):
            return _binary(op, evaluate(left, event, bound), evaluate(right, event, bound))
        case ir.Cast(argument=argument, type=target):
            return _cast(evaluate(argument, event, bound), argument.type, target)
        case ir.In(argument=argument, items=items):
            return _member(evaluate(argument, event, bound), [evaluate(item, event, bound) for item in items])
        case ir.If(condition=condition, then=then, otherwise=otherwise):
            chosen = then if evaluate(condition, event, bound) is True else otherwise
            return evaluate(chosen, event, bound)
        case ir.Call(fn="round" | "floor" | "ceil"):
            return _rounded(expr, evaluate(expr.arguments[0], event, bound))
        case ir.History():
            return event[repr(expr)]  # `values_at` gives it
        case ir.Call(fn=fn, arguments=arguments):
            return _call(fn, [evaluate(argument, event, bound) for argument in arguments])
    raise AssertionError(f"unknown expression {expr!r}")


def _remembered(events: Sequence[Fields], which: str, field: str) -> Value:
    """Return a field of the first, the last, or the second to last event; null if it is missing."""
    index = {"first": 0, "last": -1, "prev": -2}[which]
    needed = 2 if which == "prev" else 1
    return events[index].get(field) if len(events) >= needed else None


def _aggregate(expr: ir.Aggregate, bound: Bound) -> Value:
    """Aggregate over all events bound to the variable; nulls are left out, and sum and count of an empty set are 0."""
    events = bound.get(expr.variable, ())
    if expr.argument is None:
        return len(events)
    every = [evaluate(expr.argument, event, bound) for event in events]
    values = [value for value in every if value is not None]
    if expr.fn == "count":
        return len(values)
    if expr.fn == "distinct":
        return len(set(values))
    numbers = [_number(value) for value in values]
    total: int | float = 0
    for number in numbers:
        total = bounded(total + number)
    if expr.fn == "sum":
        return total if numbers else (0.0 if expr.type.is_float else 0)
    if not numbers:
        return None
    if expr.fn in ("min", "max"):
        return min(numbers) if expr.fn == "min" else max(numbers)
    units: int = 10**expr.argument.type.scale
    mean = average(numbers, units)
    if expr.fn == "avg":
        return mean
    return math.sqrt(sum((number / units - mean) ** 2 for number in numbers) / len(numbers))


def average(numbers: Sequence[int | float], units: int) -> float:
    """Return the float nearest to the average of these numbers of units."""
    if not all(math.isfinite(number) for number in numbers):
        return math.fsum(numbers) / len(numbers)
    return float(sum((Fraction(number) for number in numbers), Fraction(0)) / (units * len(numbers)))


def _unary(op: str, value: Value) -> Value:
    if op == "is_null":
        return value is None
    if value is None:
        return None
    if op == "not":
        return not value
    number = _number(value)
    return bounded(-number if op == "neg" else abs(number))


def _logic(op: str, left: Value, right: Value) -> Value:
    """Three-valued `and` and `or`: one false decides `and`, one true decides `or`, otherwise unknown stays unknown."""
    decisive = op == "or"
    if left is decisive or right is decisive:
        return decisive
    return None if left is None or right is None else not decisive


def _binary(op: str, left: Value, right: Value) -> Value:
    if left is None or right is None:
        return None
    if op in ("==", "!="):
        return (left == right) is (op == "==")
    x, y = _number(left), _number(right)
    match op:
        case "<":
            return x < y
        case "<=":
            return x <= y
        case ">":
            return x > y
        case ">=":
            return x >= y
        case "+":
            return bounded(x + y)
        case "-":
            return bounded(x - y)
        case "*":
            return bounded(x * y)
        case "/":
            return None if y == 0 else float(x) / float(y)
        case "%":
            return None if y == 0 else x - y * math.trunc(x / y) if isinstance(x, float) else _remainder(int(x), int(y))
    raise AssertionError(f"unknown operator {op}")


def _remainder(dividend: int, divisor: int) -> int:
    """Return the remainder with the sign of the dividend, as in SQL."""
    size = abs(dividend) % abs(divisor)
    return -size if dividend < 0 else size


def _cast(value: Value, source: Type, target: Type) -> Value:
    """Cast INT or DECIMAL to a finer DECIMAL exactly, or to the nearest FLOAT."""
    if value is None:
        return None
    number = _number(value)
    units: int = 10 ** (target.scale - source.scale if target.kind is Kind.DECIMAL else source.scale)
    if target.kind is Kind.FLOAT:
        return number if isinstance(number, float) else number / units
    return bounded(number * units) if target.kind is Kind.DECIMAL else number


def _member(value: Value, items: Sequence[Value]) -> Value:
    """Evaluate SQL's IN: unknown for null, and for a miss in a list that holds null."""
    if value is None:
        return None
    if any(item is not None and item == value for item in items):
        return True
    return None if None in items else False


def _call(fn: str, arguments: Sequence[Value]) -> Value:
    if any(argument is None for argument in arguments):
        return None
    if isinstance(arguments[0], str):
        return _text_call(fn, arguments[0], arguments[1:])
    if fn in ("hour", "weekday", "date"):
        return _calendar(fn, int(_number(arguments[0])), ZoneInfo(str(arguments[1])))
    numbers = [_number(argument) for argument in arguments]
    match fn:
        case "least":
            return min(numbers)
        case "greatest":
            return max(numbers)
        case "sqrt":
            return math.sqrt(numbers[0]) if numbers[0] >= 0 else None
        case "sin":
            return math.sin(numbers[0])
        case "cos":
            return math.cos(numbers[0])
        case "asin":
            return math.asin(numbers[0]) if abs(numbers[0]) <= 1 else None
        case "distance_km":
            return _distance_km(*(float(number) for number in numbers))
    raise AssertionError(f"unknown function {fn}")


def _rounded(call: ir.Call, value: Value) -> Value:
    """Round to the scale of a DECIMAL result, to digits of a FLOAT; halves away from zero, in exact decimals."""
    if value is None:
        return None
    source = call.arguments[0].type
    number = Decimal(_number(value)) if source.is_float else Decimal(_number(value)).scaleb(-source.scale, _EXACT)
    digits = call.type.scale
    if source.is_float and len(call.arguments) > 1:
        digits = int(_number(evaluate(call.arguments[1], {}, {})))
    ways = {"round": ROUND_HALF_UP, "floor": ROUND_FLOOR, "ceil": ROUND_CEILING}
    rounded = number.quantize(Decimal(1).scaleb(-digits), ways[call.fn], _EXACT)
    return float(rounded) if source.is_float else int(rounded.scaleb(digits, _EXACT))


def _calendar(fn: str, time_ms: int, zone: ZoneInfo) -> Value:
    local = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)).astimezone(zone)
    if fn == "date":
        midnight = datetime.combine(local.date(), time(), zone)
        return round((midnight - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1))
    return local.hour if fn == "hour" else local.isoweekday()


def _text_call(fn: str, text: str, constants: Sequence[Value]) -> Value:
    match fn:
        case "lower":
            return text.lower()
        case "upper":
            return text.upper()
        case "length":
            return len(text)
        case "substring":
            start, *length = (int(_number(constant)) for constant in constants)
            return text[start - 1 :][: length[0] if length else None]
    other = str(constants[0])
    if fn == "starts_with":
        return text.startswith(other)
    if fn == "ends_with":
        return text.endswith(other)
    if fn == "contains":
        return other in text
    if fn == "matches":
        return re.search(other, text) is not None
    if fn == "in_cidr":
        try:
            return ipaddress.ip_address(text) in ipaddress.ip_network(other)
        except ValueError:
            return None
    assert fn == "like", f"unknown function {fn}"
    wild = {"%": ".*", "_": "."}
    expression = "".join(wild.get(character, re.escape(character)) for character in other)
    return re.fullmatch(expression, text, re.DOTALL) is not None


def _distance_km(lat1: float, lon1: float, lat2: float, lon2: float) -> float:
    """Return the great-circle distance by the haversine formula; arguments in degrees."""
    phi1, phi2 = math.radians(lat1), math.radians(lat2)
    half_phi, half_lambda = (phi2 - phi1) / 2, math.radians(lon2 - lon1) / 2
    chord = math.sin(half_phi) ** 2 + math.cos(phi1) * math.cos(phi2) * math.sin(half_lambda) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(min(1.0, chord)))


def bounded(number: float) -> int | float:
    """Return a whole number, or the bound of 64 bits that it exceeds."""
    return max(-(2**63), min(number, 2**63 - 1)) if isinstance(number, int) else number


def _number(value: Value) -> int | float:
    assert isinstance(value, int | float), f"{value!r} is not a number"
    return value


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PANES = 64


class Event(Protocol):
    """One event of a key."""

    @property
    def type(self) -> str: ...
    @property
    def time_ms(self) -> int: ...
    @property
    def fields(self) -> Mapping[str, Value]: ...


def values_at(histories: Iterable[History], past: Sequence[Event]) -> dict[str, Value]:
    """Return the value of each history at the last of the events of a key, by the history's repr."""
    return {repr(history): value_at(history, past) for history in histories}


def value_at(history: History, past: Sequence[Event]) -> Value:
    """Return the value at the last of the events."""
    now = past[-1]
    if any(now.fields.get(name) is None for name in history.by):
        chosen = []
    else:
        chosen = [e for e in past if all(e.fields.get(n) == now.fields[n] for n in history.by)]
    if history.fn == "first_seen":
        return now.time_ms - chosen[0].time_ms if chosen else None
    is_inside = in_panes if history.fn.startswith("approx_") else in_window
    chosen = [e for e in chosen if e.type == history.event_type and is_inside(history.window, e, now)]
    if history.where is not None:
        chosen = [e for e in chosen if evaluate(history.where, e.fields, {}) is True]
    if history.fn == "exists":
        return bool(chosen)
    if history.fn in ("first", "last"):
        assert history.argument is not None
        one = 0 if history.fn == "first" else -1
        return evaluate(history.argument, chosen[one].fields, {}) if chosen else None
    if history.argument is None:
        return len(chosen)
    values = [evaluate(history.argument, e.fields, {}) for e in chosen]
    return _aggregate_past(history, [v for v in values if v is not None])


def in_window(window: HistoryWindow | None, event: Event, now: Event) -> bool:
    """Return True if the event, which is not later, is in the window of the one under test."""
    if window is None:
        return event is not now
    if window.previous and event is now:
        return False
    if window.calendar is not None:
        return event.time_ms >= _unit_start_ms(window, now.time_ms)
    assert isinstance(window.ms, int)
    return event.time_ms > now.time_ms - window.ms


def in_panes(window: HistoryWindow | None, event: Event, now: Event) -> bool:
    """Return True if the event is in the window after its far edge is rounded outwards to a pane or calendar unit."""
    assert window is not None
    if window.calendar is not None:
        return in_window(window, event, now)
    assert isinstance(window.ms, int)
    pane_ms = math.ceil(Fraction(window.ms, PANES))
    oldest_ms = now.time_ms - window.ms + 1
    return not (window.previous and event is now) and event.time_ms >= oldest_ms - oldest_ms % pane_ms


def bucket_middle(number: float, units: int | None) -> float:
    """Return the value of a bucket, 50 buckets an octave; `units` is 1 for a whole number, None for a float."""
    if number == 0:
        return 0.0
    octave = math.frexp(abs(number))[1] - 1
    width = Fraction(2) ** octave / 50
    least = Fraction(2) ** octave + (Fraction(abs(number)) - Fraction(2) ** octave) // width * width
    middle = least + width / 2
    if units is not None:
        middle = Fraction(math.ceil(least) + math.ceil(least + width) - 1, 2 * units)
    return math.copysign(float(middle), number)


def _is_before_skip(time_ms: int, local: datetime) -> bool:
    """Return True for a time in an earlier hour of the clock than `local` if the clock is put forward between them."""
    earlier = (_EPOCH + timedelta(milliseconds=time_ms)).astimezone(local.tzinfo)
    offsets = [moment.utcoffset() or timedelta() for moment in (earlier, local)]
    return offsets[0] < offsets[1] and earlier.hour != local.hour


def _unit_start_ms(window: HistoryWindow, time_ms: int) -> int:
    local = (_EPOCH + timedelta(milliseconds=time_ms)).astimezone(ZoneInfo(window.zone))
    if window.calendar == "hour":
        start_ms = time_ms - (local.minute * 60 + local.second) * 1000 - local.microsecond // 1000
        while _is_before_skip(start_ms, local):
            start_ms += 60_000
        return start_ms
    day = local.date()
    if window.calendar == "week":
        day -= timedelta(days=day.weekday())
    elif window.calendar == "month":
        day = day.replace(day=1)
    elif window.calendar == "year":
        day = day.replace(month=1, day=1)
    midnight = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(window.zone))
    return (midnight - _EPOCH) // timedelta(milliseconds=1)


def _aggregate_past(history: History, values: Sequence[Value]) -> Value:
    assert history.argument is not None
    if history.fn == "count":
        return len(values)
    if history.fn in ("distinct", "approx_distinct"):
        return len(set(values))
    kind = history.argument.type
    numbers = [v for v in values if isinstance(v, int | float)]
    total = math.fsum(numbers) if kind.is_float else sum(numbers)
    if history.fn == "sum":
        return bounded(total)
    if not numbers:
        return None
    if history.fn in ("min", "max"):
        return min(numbers) if history.fn == "min" else max(numbers)
    units = 10**kind.scale if kind.kind is Kind.DECIMAL else 1
    if history.fn == "avg":
        return average(numbers, units)
    if history.fn in ("median", "percentile", "approx_percentile"):
        percent = history.percent.value if isinstance(history.percent, Const) else 50
        assert isinstance(percent, int)
        rank = max(math.ceil(Fraction(percent * len(numbers), 100)), 1)
        if history.fn == "approx_percentile":
            return bucket_middle(sorted(numbers)[rank - 1], None if kind.is_float else units)
        return sorted(numbers)[rank - 1] / units
    exact = [Fraction(n / units) for n in numbers]
    mean = sum(exact, Fraction(0)) / len(exact)
    return math.sqrt(sum(((x - mean) ** 2 for x in exact), Fraction(0)) / len(exact))
