"""Checked expressions and slot contents → text as a rule author would write it.

Tested by: tests/lang/test_expressions.py
"""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from cep.base.limits import TIME_MS_MAX
from cep.base.schema import Kind, Type, list_kind, shown_symbol
from cep.lang import ir

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))
_PRECEDENCE = {
    "or": 1, "and": 2, "==": 4, "!=": 4, "<": 4, "<=": 4, ">": 4, ">=": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6,
}  # fmt: skip
_NOT, _COMPARISON, _SIGN, _ATOM = 3, 4, 7, 9
END_OF_EVENTS = "the end of the events"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def show_duration(ms: int) -> str:
    """Return `1 h 30 min`; 0 is `0 s`."""
    if ms == 0:
        return "0 s"
    parts: list[str] = []
    rest = abs(ms)
    for unit, size in _UNITS:
        if rest >= size:
            parts.append(f"{rest // size} {unit}")
            rest %= size
    return ("-" if ms < 0 else "") + " ".join(parts)


def written_duration(ms: int) -> str:
    """Return `90 min`, with one unit, as an expression has it; 0 is `0 s`."""
    size, unit = next((size, unit) for unit, size in _UNITS if ms % size == 0)
    return f"{ms // size} {unit}" if ms else "0 s"


def show_time(ms: int) -> str:
    """Return ISO 8601 in UTC, milliseconds only if there are any; outside of the calendar the milliseconds alone."""
    if ms >= TIME_MS_MAX:
        return END_OF_EVENTS
    try:
        moment = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return f"{ms} ms"
    return moment.isoformat(timespec="milliseconds" if ms % 1_000 else "seconds").replace("+00:00", "Z")


def show_value(value: ir.Slot, type_: Type) -> str:
    """Return the content of a slot (one stored value) as text. Decimals, enums and times are stored as integers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, float):
        return f"{value:.10g}"  # ten digits are enough to read
    if type_.kind is Kind.DECIMAL:
        return f"{Decimal(value).scaleb(-type_.scale):f}"  # 1050 with scale 2 is 10.50
    if type_.kind is Kind.ENUM:
        return shown_symbol(type_.symbols[value])  # the value is the number of its symbol
    if type_.kind is Kind.BOOL:  # stored as 0 or 1
        return "true" if value else "false"
    if type_.kind is Kind.DURATION:
        return show_duration(value)
    return show_time(value) if type_.kind is Kind.TIME else str(value)


def written_float(value: float) -> str:
    """Return ten digits if they are the whole number, otherwise as many as the float has."""
    short = f"{value:.10g}"
    return short if float(short) == value else repr(value)


def show_expr(expr: ir.Expr) -> str:
    """Return an expression as it could have been written, with parameters and definitions put in."""
    return _show(expr, "")[0]


def _show(expr: ir.Expr, owner: str) -> tuple[str, int]:
    """Text and precedence. Inside an aggregate `owner` is the variable whose fields are meant."""
    match expr:
        case ir.Const():
            if isinstance(expr.value, int) and expr.type.kind is Kind.DURATION:
                return written_duration(expr.value), _ATOM
            text = written_float(expr.value) if isinstance(expr.value, float) else show_value(expr.value, expr.type)
            return text, _ATOM
        case ir.Param():
            return expr.name, _ATOM
        case ir.CurrentField():
            return (f"{owner}.{expr.field}" if owner else expr.field), _ATOM
        case ir.VarField():
            name = expr.variable if expr.which == "last" else f"{expr.which}({expr.variable})"
            return f"{name}.{expr.field}", _ATOM
        case ir.Aggregate():
            inner = expr.variable if expr.argument is None else _show(expr.argument, expr.variable)[0]
            return f"{expr.fn}({inner})", _ATOM
        case ir.Unary():
            return _unary(expr, owner)
        case ir.Binary():
            precedence = _PRECEDENCE[expr.op]
            is_same = isinstance(expr.right, ir.Binary) and expr.right.op == expr.op
            chains = is_same and expr.op in ("and", "or", "+", "*")
            left = _within(expr.left, owner, precedence + (precedence == _COMPARISON))
            right = _within(expr.right, owner, precedence + (not chains))
            return f"{left} {expr.op} {right}", precedence
        case ir.Cast():
            return _show(expr.argument, owner)
        case ir.In():
            items = ", ".join(_show(item, owner)[0] for item in expr.items)
            return f"{_within(expr.argument, owner, _COMPARISON + 1)} in [{items}]", _COMPARISON
        case ir.If():
            parts = [_show(part, owner)[0] for part in (expr.condition, expr.then, expr.otherwise)]
            return f"if {parts[0]} then {parts[1]} else {parts[2]}", 0
        case ir.Call():
            if expr.fn == "in_list":
                return (
                    f"{_within(expr.arguments[0], owner, _COMPARISON + 1)} in {_listed(expr.arguments[1])}",
                    _COMPARISON,
                )
            if expr.fn in ("like", "matches"):
                sides = [_within(a, owner, _COMPARISON + 1) for a in expr.arguments]
                return f" {expr.fn} ".join(sides), _COMPARISON
            return f"{expr.fn}({', '.join(_show(a, owner)[0] for a in expr.arguments)})", _ATOM
        case ir.History():
            return _history(expr), _ATOM
        case _:
            return type(expr).__name__, _ATOM


def _listed(named: ir.Expr) -> str:
    """Return the name of a list, or the entries that a rule gives. Lists of two kinds may have one name."""
    name = named.name if isinstance(named, ir.Param) else str(named.value) if isinstance(named, ir.Const) else ""
    kind = list_kind(named.type)
    return name if kind == "string" else f"{name}: {kind}"


def _history(expr: ir.History) -> str:
    """Write a function of past events, such as `sum(payment.amount over 7 d by card)` or `last(payment).country`."""
    if expr.fn == "first_seen":
        return f"first_seen({expr.by[0]})"
    is_one = expr.fn in ("first", "last")  # one past event, whose field stands after the brackets
    field = "" if expr.argument is None else _show(expr.argument, expr.event_type)[0]  # [0] is the text
    parts = [expr.event_type if is_one or not field else field]  # `count(payment)` has no field
    window = expr.window
    if window is not None:
        length = f'{window.calendar} in "{window.zone}"'  # such as `day in "Europe/Paris"`
        if window.ms is not None:
            length = window.ms.name if isinstance(window.ms, ir.Param) else written_duration(window.ms)
        parts.append(f"over {'previous ' if window.previous else ''}{length}")
    if expr.by:
        parts.append(f"by {expr.by[0]}" if len(expr.by) == 1 else f"by ({', '.join(expr.by)})")
    if expr.where is not None:  # its fields stand without the name of the event type
        parts.append(f"where {_show(expr.where, '')[0]}")
    percent = "" if expr.percent is None else f", {_show(expr.percent, '')[0]}"
    text = f"{expr.fn}({' '.join(parts)}{percent})"
    return f"{text}.{field.removeprefix(f'{expr.event_type}.')}" if is_one else text


def _within(expr: ir.Expr, owner: str, least: int) -> str:
    text, precedence = _show(expr, owner)
    return text if precedence >= least else f"({text})"


def _unary(expr: ir.Unary, owner: str) -> tuple[str, int]:
    argument = expr.argument
    if expr.op == "is_null":
        return f"{_within(argument, owner, _COMPARISON + 1)} is null", _COMPARISON
    if expr.op == "abs":
        return f"abs({_show(argument, owner)[0]})", _ATOM
    if expr.op == "neg":
        return f"-{_within(argument, owner, _SIGN)}", _SIGN
    if isinstance(argument, ir.Unary) and argument.op == "is_null":
        return f"{_within(argument.argument, owner, _COMPARISON + 1)} is not null", _COMPARISON
    return f"not {_within(argument, owner, _NOT)}", _NOT
