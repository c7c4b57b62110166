"""A condition of a test → its operands, with their values.

A reader can check a verdict with the printed values: the texts of the two sides of a comparison, read as decimals, are
in the order that the comparison found. Ten digits are printed unless the order needs more.

    amount > avg(tx.amount over previous 30 d) is not true (amount = 1.10, avg(…) = 1.100000000000000033)

Tested by: tests/testing/test_values.py, tests/testing/test_explain.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from decimal import Context, Decimal

from cep.base.schema import Kind
from cep.lang.ir import Binary, Call, Cast, Const, Expr, If, In, Param, Unary
from cep.lang.show import show_expr, show_value, written_float
from cep.nfa.twofold import has_average
from cep.testing.twofold import Twofold
from cep.testing.values import BoundFields, Fields, twofold_sides, value_of

_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_NUMBERS = (Kind.INT, Kind.DECIMAL, Kind.FLOAT)
_FLOAT_DIGITS = 17
# Twofold numbers that differ at all differ within their first thirty digits.
_DIGITS_MAX = 40
_EXACT = Context(prec=2_500)  # a float has at most 767 digits, from 10^308 to 10^-1074


def operands(expr: Expr, event: Fields, bound: BoundFields) -> list[tuple[str, str]]:
    """List the operands of a condition with their values: the sides of its comparisons, or the names in it."""
    return merged(pair for part in _looked_at(expr) for pair in _shown(part, event, bound))


def merged(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Keep one value of each operand: the value with the most digits."""
    longest: dict[str, str] = {}
    for name, value in pairs:
        longest[name] = max(longest.get(name, ""), value, key=len)
    return list(longest.items())


def _shown(part: Expr, event: Fields, bound: BoundFields) -> Iterator[tuple[str, str]]:
    if isinstance(part, Binary):
        sides = (part.left, part.right)
        for side, text in zip(sides, _side_texts(part, event, bound), strict=True):
            if not isinstance(_uncast(side), Const):
                yield show_expr(side), text
        return
    value = value_of(part, event, bound)
    yield show_expr(part), written_float(value) if isinstance(value, float) else show_value(value, part.type)


def _side_texts(expr: Binary, event: Fields, bound: BoundFields) -> tuple[str, str]:
    """Write both sides of a comparison, with as many digits as its outcome needs."""
    short = [_short(_uncast(side), event, bound, digits=10) for side in (expr.left, expr.right)]
    order = _order(expr, event, bound) if expr.left.type.kind in _NUMBERS else None
    if order is None:
        return short[0], short[1]
    forms = [short] if not has_average(expr) else []
    forms += [
        [_short(_uncast(side), event, bound, digits=_FLOAT_DIGITS) for side in (expr.left, expr.right)],
        [_short(side, event, bound, digits=_FLOAT_DIGITS) for side in (expr.left, expr.right)],
    ]
    for first, second in forms:
        if _text_order(first, second) == order:
            return first, second
    return _long_texts(expr, event, bound, order)


def _short(side: Expr, event: Fields, bound: BoundFields, digits: int) -> str:
    value = value_of(side, event, bound)
    if isinstance(side, Const):
        return show_expr(side)
    return repr(value) if isinstance(value, float) and digits > 10 else show_value(value, side.type)


def _order(expr: Binary, event: Fields, bound: BoundFields) -> int | None:
    """Return -1, 0 or 1 as the comparison orders its sides; None with a null or NaN."""
    forms = (-1, replace(expr, op="<")), (0, replace(expr, op="==")), (1, replace(expr, op=">"))
    return next((order for order, form in forms if value_of(form, event, bound) is True), None)


def _text_order(first: str, second: str) -> int | None:
    number, other = Decimal(first), Decimal(second)
    return None if number.is_nan() or other.is_nan() else (number > other) - (number < other)


def _long_texts(expr: Binary, event: Fields, bound: BoundFields, order: int) -> tuple[str, str]:
    """Write the sides of a comparison with an average, whose exact values a float does not show."""
    sides = twofold_sides(expr, event, bound)
    if order == 0:
        text = _common_text(expr, sides, event, bound)
        return text, text
    for digits in range(_FLOAT_DIGITS, _DIGITS_MAX):
        first, second = (_rounded(side, digits) for side in sides)
        if _text_order(first, second) == order:
            return first, second
    raise AssertionError("sides that differ have different digits")


def _common_text(expr: Binary, sides: tuple[Twofold, Twofold], event: Fields, bound: BoundFields) -> str:
    """Write two sides that are equal within the error of their arithmetic."""
    for side in (_uncast(expr.left), _uncast(expr.right)):
        if isinstance(side, Const) or not side.type.is_float:
            return _short(side, event, bound, digits=_FLOAT_DIGITS)
    for digits in range(_FLOAT_DIGITS, 0, -1):
        first, second = (_rounded(side, digits) for side in sides)
        if _text_order(first, second) == 0:
            return first
    return min((_rounded(side, _FLOAT_DIGITS) for side in sides), key=len)


def _rounded(side: Twofold, digits: int) -> str:
    """Write high + low with so many digits."""
    exact = _EXACT.add(Decimal(side.high), Decimal(side.low))
    return str(Context(prec=digits).plus(exact).normalize())


def _looked_at(expr: Expr) -> list[Expr]:
    """List the parts of a condition whose values explain its outcome: comparisons, and other values."""
    match expr:
        case Const() | Param():
            return []
        case Cast():
            return _looked_at(expr.argument)
        case Binary() if expr.op in _COMPARISONS:
            return [expr]
        case Binary():
            return [*_looked_at(expr.left), *_looked_at(expr.right)]
        case Unary():
            return _looked_at(expr.argument)
        case In():
            return [_uncast(expr.argument)]
        case If():
            return [p for part in (expr.condition, expr.then, expr.otherwise) for p in _looked_at(part)]
        case Call():
            return [p for argument in expr.arguments for p in _looked_at(argument)]
        case _:
            return [expr]


def _uncast(expr: Expr) -> Expr:
    return expr.argument if isinstance(expr, Cast) else expr
