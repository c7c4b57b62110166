"""A condition of a test → its operands, with their values.

Tested by: tests/testing/test_trace.py
"""

from __future__ import annotations

from cep.lang.ir import Binary, Call, Cast, Const, Expr, If, In, Param, Unary
from cep.lang.show import show_expr, show_value
from cep.nfa.twofold import has_average
from cep.testing.values import BoundFields, Fields, value_of

_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")


def operands(expr: Expr, event: Fields, bound: BoundFields) -> list[tuple[str, str]]:
    """List the operands of a condition with their values: the sides of its comparisons, or the names in it."""
    values: dict[str, str] = {}
    for part in _looked_at(expr):
        value = value_of(part, event, bound)
        # Ten digits of an average may look like the amount that it is compared with.
        shown = repr(value) if isinstance(value, float) and has_average(part) else show_value(value, part.type)
        values.setdefault(show_expr(part), shown)
    return list(values.items())


def _looked_at(expr: Expr) -> list[Expr]:
    match expr:
        case Const() | Param():
            return []
        case Cast():
            return _looked_at(expr.argument)
        case Binary() if expr.op in _COMPARISONS:
            return [side for side in (_uncast(expr.left), _uncast(expr.right)) if not isinstance(side, Const)]
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
