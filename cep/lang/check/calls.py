"""Functions, aggregates over the events of a variable, and the use of definitions.

Tested by: tests/lang/test_expressions.py
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from cep.base.schema import Kind, Type
from cep.lang.check import text as check_text
from cep.lang.check.history import is_event_type, of_call
from cep.lang.check.operators import is_symbol, mismatch, unify
from cep.lang.check.scope import AggregateArgument, Checker, Scope
from cep.lang.check.text import has_arguments
from cep.lang.check.types import FLOAT, INT, cast, is_ordered
from cep.lang.diagnostics import Label
from cep.lang.functions import FUNCTIONS, Family, Function
from cep.lang.ir import Aggregate, AggregateFn, Call, CurrentField, Expr, Unary
from cep.lang.syntax import CallSyntax, DefineSyntax, ExprSyntax, NameRef

_AGGREGATES: dict[str, AggregateFn] = {name: name for name in get_args(AggregateFn)}
_IF_NULL = ("coalesce", "ifnull", "nvl", "isnull")  # as other languages name it
_EXTREMES = {"least": "least", "greatest": "greatest", "min": "least", "max": "greatest"}
_TEXT_TIME_ROUNDING = (Family.TEXT, Family.TIME, Family.ROUNDING)


def call(checker: Checker, node: CallSyntax, scope: Scope, expected: Type | None) -> Expr | None:
    """Check a definition, an aggregate or a function. They are looked up in this order; no two share a name."""
    define = scope.definitions.defines.get(node.name)
    if define is not None:
        return use_define(checker, define, node.arguments, node, scope, expected)
    function = FUNCTIONS.get(node.name)
    family = None if function is None else function.family
    over_events = family is Family.AGGREGATE and not (node.name in _EXTREMES and len(node.arguments) > 1)
    if family is Family.PAST or (over_events and len(node.arguments) == 1 and is_event_type(node.arguments[0], scope)):
        return of_call(checker, node, scope)
    if over_events:
        return _aggregate(checker, _AGGREGATES[node.name], node, scope)
    if family is Family.CHOICE:
        checker.collector.add("CEP203", f"`{node.name}(…)` needs a field", node.span, f"write `{node.name}(x).field`")
        return None
    if family in _TEXT_TIME_ROUNDING:
        return check_text.call(checker, node, scope)
    if node.name == "abs":
        return _abs(checker, node, scope) if has_arguments(checker, node, 1, 1) else None
    if function is not None and family is Family.FLOAT:
        return _float_call(checker, node, function, scope)
    if node.name in _EXTREMES:
        return _extreme(checker, _EXTREMES[node.name], node, scope)
    names = (*FUNCTIONS, *scope.definitions.defines)
    message = f"`{node.name}` is neither a function nor a definition"
    if node.name.lower() in _IF_NULL:
        help_line = "write `if value is null then other else value`"
        checker.collector.add("CEP205", message, node.name_span, help_line, scope.labels())
        return None
    checker.collector.unknown("CEP205", message, node.name, node.name_span, names, "functions")
    return None


def use_define(
    checker: Checker,
    define: DefineSyntax,
    arguments: tuple[ExprSyntax, ...],
    node: CallSyntax | NameRef,
    scope: Scope,
    expected: Type | None,
) -> Expr | None:
    """Check the body of a definition with its arguments in place, as if it were written here."""
    if any(name == define.name for name, _ in scope.expansions):
        labels = (Label(define.span, "defined here"), *scope.labels())
        checker.collector.add("CEP210", f"`{define.name}` uses itself", node.span, labels=labels)
        return None
    if len(arguments) != len(define.params):
        message = f"`{define.name}` takes {len(define.params)} arguments, here are {len(arguments)}"
        checker.collector.add("CEP307", message, node.span, labels=(Label(define.span, "defined here"),))
        return None
    return checker.check(define.body, scope.inside(define, arguments, node.span), expected)


# --------------------------------------------------------------------------------------------------- functions


def _abs(checker: Checker, node: CallSyntax, scope: Scope) -> Expr | None:
    value = checker.check(node.arguments[0], scope)
    if value is None:
        return None
    if not (value.type.is_number or value.type.kind is Kind.DURATION):
        message = f"`abs` needs a number or a duration, this is {value.type}"
        checker.collector.add("CEP301", message, node.arguments[0].span, labels=scope.labels())
        return None
    return Unary("abs", value, value.type)


def _float_call(checker: Checker, node: CallSyntax, function: Function, scope: Scope) -> Expr | None:
    """Check a call of a function of floats, such as `sqrt(x)`. Return None after a report."""
    if not has_arguments(checker, node, *function.arguments):
        return None
    arguments: list[Expr] = []
    for argument in node.arguments:
        value = checker.check(argument, scope)
        if value is not None and not value.type.is_number:
            message = f"`{node.name}` needs numbers, this is {value.type}"
            checker.collector.add("CEP301", message, argument.span, labels=scope.labels())
            value = None
        converted = None if value is None else cast(value, FLOAT)
        if converted is not None:
            arguments.append(converted)
    if len(arguments) < len(node.arguments):
        return None
    assert function.gives is not None, "a function of floats always gives the same type"
    nullable = function.gives.nullable or any(a.type.nullable for a in arguments)
    return Call(node.name, tuple(arguments), function.gives.as_nullable(nullable))


def _extreme(checker: Checker, fn: str, node: CallSyntax, scope: Scope) -> Expr | None:
    """Check `min` or `max` of several values of one type. The result is null if one of them is."""
    if len(node.arguments) < 2:
        checker.collector.add("CEP307", f"`{node.name}` takes two arguments or more", node.span)
        return None
    checked = [checker.check(argument, scope) for argument in node.arguments]
    values = [value for value in checked if value is not None]
    if len(values) < len(checked):
        return None
    best = values[0]
    for value, argument in zip(values, node.arguments, strict=True):
        spans = (node.arguments[0].span, argument.span)
        if not is_ordered(value.type):
            mismatch(checker, best, value, spans, scope)
            return None
        both = unify(checker, best, value, spans, scope, exact=False)
        if both is None:
            return None
        best = both[0]
    aligned = [cast(value, best.type) for value in values]
    arguments = tuple(value for value in aligned if value is not None)
    if len(arguments) < len(aligned):
        checker.collector.add("CEP309", f"a number does not fit into {best.type}", node.span)
        return None
    return Call(fn, arguments, best.type.as_nullable(any(a.type.nullable for a in arguments)))


# -------------------------------------------------------------------------------------------------- aggregates


def _aggregate(checker: Checker, fn: AggregateFn, node: CallSyntax, scope: Scope) -> Expr | None:
    """Check an aggregate over the events of a variable, such as `sum(b.amount)`. Return None after a report."""
    if scope.aggregate is not None:
        message = f"`{fn}` cannot stand inside `{scope.aggregate.fn}`"
        checker.collector.add("CEP310", message, node.span, labels=scope.labels())
        return None
    if not has_arguments(checker, node, 1, 1):
        return None
    argument, inner = node.arguments[0], scope
    while isinstance(argument, NameRef) and argument.name in inner.arguments:
        argument, inner = inner.argument(argument.name)
    if isinstance(argument, NameRef) and (fn == "count" or argument.name in inner.variables):
        return _of_variable(checker, fn, argument, inner)
    if is_symbol(argument, inner):
        help_line = f"write `{fn}(x.{argument.name})`" if isinstance(argument, NameRef) else ""
        checker.collector.add("CEP310", f"`{fn}` needs a field of a variable", argument.span, help_line)
        return None
    holder = AggregateArgument(fn)
    value = checker.check(argument, replace(inner, aggregate=holder))
    if value is None:
        return None
    if holder.variable is None:
        message = f"`{fn}` needs the events of a variable"
        help_line = f"write `{fn}(x.field)`; for the largest of two values, `max(a, b)`"
        checker.collector.add("CEP310", message, argument.span, help_line, scope.labels())
        return None
    return _typed(checker, fn, holder.variable, value, node, scope)


def _of_variable(checker: Checker, fn: AggregateFn, name: NameRef, scope: Scope) -> Expr | None:
    variable = checker.find_variable(name, scope)
    if variable is None:
        return None
    if fn != "count":
        message = f"`{fn}` needs a field of `{name.name}`"
        checker.collector.add("CEP310", message, name.span, f"write `{fn}({name.name}.field)`", scope.labels())
        return None
    return Aggregate("count", name.name, None, INT)


def _typed(
    checker: Checker, fn: AggregateFn, variable: str, value: Expr, node: CallSyntax, scope: Scope
) -> Expr | None:
    """Check that an aggregate accepts the type of its argument, and return it with its own type."""
    kind = value.type
    fits = {"count": True, "distinct": True, "min": is_ordered(kind), "max": is_ordered(kind)}
    if not fits.get(fn, kind.is_number):
        noun = "an ordered value" if fn in fits else "a number"
        message = f"`{fn}` needs {noun}, this is {kind}"
        checker.collector.add("CEP301", message, node.arguments[0].span, labels=scope.labels())
        return None
    if fn == "distinct" and not isinstance(value, CurrentField):
        message = "`distinct` counts the values of a field, but this is computed"
        checker.collector.add("CEP310", message, node.arguments[0].span, "write `distinct(x.field)`", scope.labels())
        return None
    result = kind.as_nullable(nullable=False)
    if fn in ("count", "distinct"):
        result = INT
    elif fn in ("avg", "stddev"):
        result = FLOAT.as_nullable()
    elif fn in ("min", "max"):
        result = kind.as_nullable()
    return Aggregate(fn, variable, value, result)
