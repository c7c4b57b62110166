"""Conditions → conjuncts, simplified by the facts at a position of the pattern.

At each position some variables are certainly bound and some cannot be. `up.amount is null or amount > up.amount` is
true where `up` cannot be bound yet, and `amount > up.amount` where it is bound.
Tested by: tests/nfa/test_code.py
"""

import operator as op
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import attrgetter
from typing import Any

from cep.base.schema import Kind, Type, valueclass
from cep.lang.ir import Aggregate, Binary, Call, Cast, Const, CurrentField, Expr, If, In, Unary, VarField

TRUE = Const(True, Type(Kind.BOOL))
FALSE = Const(False, Type(Kind.BOOL))


@valueclass(frozen=True, slots=True)
class Facts:
    """The facts at a position: the variables bound on every path to it, and on some path to it.

    `never_null` are the fields that are never null in the event types that have them.
    """

    bound: frozenset[str]
    possible: frozenset[str]
    never_null: frozenset[str]


def conjuncts(expr: Expr | None, facts: Facts) -> list[Expr]:
    """Split a condition into parts that must all be true, [FALSE] if they cannot be. Null counts as not true."""
    if expr is None:
        return []
    parts: list[Expr] = []
    for part in _flatten(simplify(expr, facts)):
        if part == TRUE:
            continue
        if isinstance(part, Const):
            return [FALSE]
        if part not in parts:
            parts.append(part)
    return parts


def all_of(parts: Sequence[Expr]) -> Expr:
    """Join conjuncts to one condition."""
    return reduce(lambda one, other: Binary("and", one, other, TRUE.type.as_nullable()), parts)


def _flatten(expr: Expr) -> list[Expr]:
    if isinstance(expr, Binary) and expr.op == "and":
        return _flatten(expr.left) + _flatten(expr.right)
    return [expr]


def needs_run(expr: Expr) -> bool:
    """Return True if the expression reads bound events."""
    if isinstance(expr, (VarField, Aggregate)):
        return True
    for child in children(expr):  # noqa: SIM110 - a generator for each node costs more than the rest
        if needs_run(child):
            return True
    return False


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the operands of an expression; an aggregate's argument concerns other events and is not one."""
    operands = _OPERANDS.get(expr.__class__)
    return () if operands is None else operands(expr)


_OPERANDS: dict[type, Callable[[Any], tuple[Expr, ...]]] = {
    Unary: lambda expr: (expr.argument,),
    Cast: lambda expr: (expr.argument,),
    Binary: attrgetter("left", "right"),
    In: lambda expr: (expr.argument, *expr.items),
    If: attrgetter("condition", "then", "otherwise"),
    Call: attrgetter("arguments"),
}


def simplify(expr: Expr, facts: Facts) -> Expr:
    """Replace parts of an expression whose value follows from the facts, such as a field of an unbound variable.

    `facts` are the variables that may be bound at a position of the pattern (`possible`), and the ones that surely are,
    whose fields decide `is null` (_unary). The value is unchanged, except that null may become false: a condition
    counts both as not true."""
    if isinstance(expr, (CurrentField, Const)):
        return expr
    if isinstance(expr, VarField):
        return expr if expr.variable in facts.possible else Const(None, expr.type)
    if isinstance(expr, Aggregate):
        if expr.variable in facts.possible:
            return expr
        return Const(0, expr.type) if expr.fn in ("count", "sum", "distinct") else Const(None, expr.type)
    if isinstance(expr, Unary):
        return _unary(replace(expr, argument=simplify(expr.argument, facts)), facts)
    if isinstance(expr, Binary):
        left, right = simplify(expr.left, facts), simplify(expr.right, facts)
        is_new = left is not expr.left or right is not expr.right
        return _binary(replace(expr, left=left, right=right) if is_new else expr, facts)
    if isinstance(expr, Cast):
        argument = simplify(expr.argument, facts)
        return Const(None, expr.type) if argument == Const(None, argument.type) else replace(expr, argument=argument)
    if isinstance(expr, In):
        items = tuple(simplify(item, facts) for item in expr.items)
        return replace(expr, argument=simplify(expr.argument, facts), items=items)
    if isinstance(expr, If):
        return _choice(expr, facts)
    if isinstance(expr, Call):
        return replace(expr, arguments=tuple(simplify(a, facts) for a in expr.arguments))
    return expr


def _choice(expr: If, facts: Facts) -> Expr:
    condition = simplify(expr.condition, facts)
    then, otherwise = simplify(expr.then, facts), simplify(expr.otherwise, facts)
    if isinstance(condition, Const):
        return then if condition.value is True else otherwise
    return replace(expr, condition=condition, then=then, otherwise=otherwise)


def _unary(expr: Unary, facts: Facts) -> Expr:
    """Simplify an operator of a constant, and `is null` of a field if the facts decide that it is never null here."""
    argument = expr.argument
    if expr.op == "is_null":
        if isinstance(argument, Const):
            return TRUE if argument.value is None else FALSE
        certain = isinstance(argument, VarField) and argument.which != "prev" and argument.variable in facts.bound
        if isinstance(argument, VarField) and certain and argument.field in facts.never_null:  # prev may be unbound
            return FALSE
        if isinstance(argument, CurrentField) and argument.field in facts.never_null:
            return FALSE
    if isinstance(argument, Const):
        if argument.value is None:
            return Const(None, expr.type)
        if expr.op == "not":
            return FALSE if argument.value else TRUE
    return expr


def _binary(expr: Binary, facts: Facts) -> Expr:
    """Simplify `and`, `or` and comparisons whose operands are constants."""
    left, right = expr.left, expr.right
    if expr.op == "and":
        if FALSE in (left, right):
            return FALSE
        return right if left == TRUE else left if right == TRUE else expr
    if expr.op == "or":
        if TRUE in (left, right):
            return TRUE
        return right if left == FALSE else left if right == FALSE else expr
    if any(isinstance(side, Const) and side.value is None for side in (left, right)):
        return Const(None, expr.type)
    if isinstance(left, Const) and isinstance(right, Const) and expr.op in _COMPARE and left.type == right.type:
        return TRUE if _COMPARE[expr.op](left.value, right.value) else FALSE
    if isinstance(left, Aggregate) and isinstance(right, Const) and left.fn == "count" and left.argument is None:
        return _count_against(expr, left, right, facts)
    return expr


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": op.eq, "!=": op.ne, "<": op.lt, "<=": op.le, ">": op.gt, ">=": op.ge,
}  # fmt: skip


def _count_against(expr: Binary, left: Aggregate, right: Const, facts: Facts) -> Expr:
    """Simplify `count(x) == 0`, `count(x) > 0` and the like where x is certainly bound."""
    if left.variable not in facts.bound or not isinstance(right.value, int):
        return expr
    if expr.op in ("==", "<=") and right.value <= 0:
        return FALSE
    if expr.op == "<" and right.value <= 1:
        return FALSE
    if (expr.op in (">", "!=") and right.value <= 0) or (expr.op == ">=" and right.value <= 1):
        return TRUE
    return expr
