"""Operators: compatible types, result types, and the casts that bring both sides to one type.

Tested by: tests/lang/test_expressions.py
"""

from __future__ import annotations

from cep.base.limits import DECIMAL_SCALE_MAX
from cep.base.schema import Kind, Type
from cep.lang import syntax
from cep.lang.check import types
from cep.lang.check.scope import Checker, Scope
from cep.lang.check.text import in_list, text_test
from cep.lang.diagnostics import Fix, Label, Span
from cep.lang.ir import Binary, BinaryOp, Const, Expr, If, In, Param, Unary

_COMPARISONS: dict[str, BinaryOp] = {"==": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_ARITHMETIC: dict[str, BinaryOp] = {"+": "+", "-": "-", "*": "*", "/": "/", "%": "%"}
_TIMES = (Kind.TIME, Kind.DURATION)


def is_symbol(node: syntax.ExprSyntax, scope: Scope) -> bool:
    """Return True for a bare name that only an enum can explain."""
    while isinstance(node, syntax.NameRef) and node.name in scope.arguments:
        node, scope = scope.argument(node.name)
    if not isinstance(node, syntax.NameRef):
        return False
    is_named = node.name in scope.params or (scope.fields is not None and node.name in scope.fields)
    return not is_named and node.name not in scope.definitions.defines


def condition(checker: Checker, node: syntax.ExprSyntax, scope: Scope, where: str) -> Expr | None:
    """Check an expression that must be true or false."""
    value = checker.check(node, scope, types.BOOL)
    if value is None or value.type.kind is Kind.BOOL:
        return value
    message = f"{where} must be true or false, this is {value.type}"
    checker.collector.add("CEP302", message, node.span, labels=scope.labels())
    return None


def chain(checker: Checker, node: syntax.ChainSyntax, scope: Scope) -> Expr | None:
    """Check `and` and `or` of any length."""
    operands = [condition(checker, operand, scope, f"each side of `{node.op}`") for operand in node.operands]
    checked = [operand for operand in operands if operand is not None]
    return types.balanced(node.op, checked) if len(checked) == len(operands) else None


def unary(checker: Checker, node: syntax.UnarySyntax, scope: Scope) -> Expr | None:
    """Check `not x` and `-x`. Return None after a report."""
    if node.op == "not":
        argument = condition(checker, node.argument, scope, "what follows `not`")
        return None if argument is None else Unary("not", argument, argument.type)
    value = checker.check(node.argument, scope)
    if value is None:
        return None
    if not (value.type.is_number or value.type.kind is Kind.DURATION):
        message = f"`-` needs a number or a duration, this is {value.type}"
        checker.collector.add("CEP301", message, node.span, labels=scope.labels())
        return None
    if isinstance(value, Const) and isinstance(value.value, int | float):
        return Const(-value.value, value.type)
    return Unary("neg", value, value.type)


def is_null(checker: Checker, node: syntax.IsNullSyntax, scope: Scope) -> Expr | None:
    """Check `is null`, which is itself never unknown."""
    value = checker.check(node.argument, scope)
    if value is None:
        return None
    test = Unary("is_null", value, types.BOOL)
    return Unary("not", test, types.BOOL) if node.negated else test


def sides(
    checker: Checker, left: syntax.ExprSyntax, right: syntax.ExprSyntax, scope: Scope
) -> tuple[Expr, Expr] | None:
    """Check both sides. A bare symbol comes after the side that says which enum is meant."""
    if is_symbol(left, scope) and not is_symbol(right, scope):
        second = checker.check(right, scope)
        first = checker.check(left, scope, second.type) if second is not None else None
    else:
        first = checker.check(left, scope)
        # A bare symbol next to a mistake is not a second mistake.
        blind = first is None and is_symbol(right, scope)
        second = None if blind else checker.check(right, scope, first.type if first is not None else None)
    return None if first is None or second is None else (first, second)


def unify(
    checker: Checker, first_value: Expr, second_value: Expr, spans: tuple[Span, Span], scope: Scope, *, exact: bool
) -> tuple[Expr, Expr] | None:
    """Convert two values to one type. Return None after a report of types that do not fit.

    With `exact`, a literal must not have more digits than the value that it is compared with.
    """
    for const, other, span in ((first_value, second_value, spans[0]), (second_value, first_value, spans[1])):
        if isinstance(const, Const) and types.is_raw(const, other.type):
            raw(checker, other.type, span, scope)
            return None
    first_value, second_value = (
        types.as_symbol(first_value, second_value.type),
        types.as_symbol(second_value, first_value.type),
    )
    if types.same(first_value.type, second_value.type):
        pair = (
            (types.cast(first_value, second_value.type), types.cast(second_value, first_value.type))
            if first_value.type.is_text
            else (first_value, second_value)
        )
        assert pair[0] is not None
        assert pair[1] is not None
        return pair[0], pair[1]
    if not (first_value.type.is_number and second_value.type.is_number):
        mismatch(checker, first_value, second_value, spans, scope)
        return None
    target = types.common_number(first_value.type, second_value.type)
    for const, other, span in ((first_value, second_value, spans[0]), (second_value, first_value, spans[1])):
        if isinstance(const, Const) and not isinstance(other, Const) and types.cast(const, other.type) is not None:
            target = other.type
        elif exact and isinstance(const, Const) and _is_finer(const, other):
            finer(checker, const, other.type, span, scope)
            return None
    first, second = types.cast(first_value, target), types.cast(second_value, target)
    if first is None or second is None:
        checker.collector.add("CEP309", f"this number does not fit into {target}", spans[0].to(spans[1]))
        return None
    return first, second


def raw(checker: Checker, protected: Type, span: Span, scope: Scope) -> None:
    """Report a constant compared with a value that rules see only as a token. The report does not quote it."""
    message = f"a value of type {protected} is a token here, and this is none"
    help_line = "write the token, as alerts show it; never write the value itself into a rule"
    checker.collector.add("CEP320", message, span, help_line, scope.labels())


def _is_finer(const: Const, other: Expr) -> bool:
    decimals = const.type.kind is Kind.DECIMAL and other.type.kind is Kind.DECIMAL
    return decimals and not isinstance(other, Const) and types.shortened(const).type.scale > other.type.scale


def finer(checker: Checker, const: Const, other: Type, span: Span, scope: Scope) -> None:
    """Report a literal with more digits than the value it is compared with can have."""
    message = f"this number has {types.shortened(const).type.scale} decimals, but it is compared with {other}"
    digits = f"write at most {other.scale} decimals" if other.scale else "write a whole number"
    checker.collector.add("CEP304", message, span, digits, scope.labels())


def mismatch(checker: Checker, left: Expr, right: Expr, spans: tuple[Span, Span], scope: Scope) -> None:
    """Report two incompatible types."""
    help_line = ""
    fix: Fix | None = None
    for one, other, span in ((left, right, spans[1]), (right, left, spans[0])):
        if one.type.kind is Kind.ENUM and isinstance(other, Const) and other.type.is_text:
            help_line = f"symbols stand without quotes: {other.value}"
            fix = Fix(span, str(other.value)) if other.value in one.type.symbols else None
        if one.type.kind is Kind.DURATION and other.type.is_number:
            help_line = "a duration has a unit, like `10 min`"
    labels = (Label(spans[0], f"this is {left.type}"), Label(spans[1], f"this is {right.type}"))
    message = f"{left.type} and {right.type} do not fit together"
    checker.collector.add("CEP301", message, spans[0].to(spans[1]), help_line, (*labels, *scope.labels()), fix)


def binary(checker: Checker, node: syntax.BinarySyntax, scope: Scope) -> Expr | None:
    """Check a comparison, `like`, `matches`, or arithmetic."""
    for side in (node.left, node.right):
        if node.op in _COMPARISONS and isinstance(side, syntax.Literal) and side.value is None:
            instead = "is null" if node.op == "==" else "is not null"
            message = "a comparison with null is never true"
            place = Span(node.span.file, node.op_span.start, node.right.span.end)
            fix = Fix(place, instead) if side is node.right and node.op in ("==", "!=") else None
            checker.collector.add("CEP303", message, node.span, f"write `{instead}`", scope.labels(), fix)
            return None
    pair = sides(checker, node.left, node.right, scope)
    if pair is None:
        return None
    spans = (node.left.span, node.right.span)
    if node.op in _COMPARISONS:
        return compare(checker, _COMPARISONS[node.op], pair, spans, scope)
    if node.op in ("like", "matches"):
        return text_test(checker, node.op, list(pair), (node.left, node.right), scope)
    return arithmetic(checker, _ARITHMETIC[node.op], pair, spans, scope)


def compare(
    checker: Checker, op: BinaryOp, pair: tuple[Expr, Expr], spans: tuple[Span, Span], scope: Scope
) -> Expr | None:
    """Compare two checked values."""
    alike = pair[0].type.is_text == pair[1].type.is_text
    if op not in ("==", "!=") and alike and not (types.is_ordered(pair[0].type) and types.is_ordered(pair[1].type)):
        culprit = pair[1] if types.is_ordered(pair[0].type) else pair[0]
        message = f"values of type {culprit.type} have no order"
        checker.collector.add("CEP306", message, spans[0].to(spans[1]), "use `==`, `!=` or `in`", scope.labels())
        return None
    both = unify(checker, pair[0], pair[1], spans, scope, exact=True)
    if both is None:
        return None
    return Binary(op, both[0], both[1], types.BOOL.as_nullable(both[0].type.nullable or both[1].type.nullable))


def between(checker: Checker, node: syntax.BetweenSyntax, scope: Scope) -> Expr | None:
    """Check `a between b and c` as `a >= b and a <= c`."""
    tests: list[Expr] = []
    for op, bound in ((">=", node.low), ("<=", node.high)):
        test = binary(checker, syntax.BinarySyntax(op, bound.span, node.argument, bound, node.span), scope)
        if test is None:
            return None
        tests.append(test)
    both = types.balanced("and", tests)
    return Unary("not", both, both.type) if node.negated else both


def membership(checker: Checker, node: syntax.InSyntax, scope: Scope) -> Expr | None:
    """Check `e in [a, b]` or `e in name`."""
    argument = checker.check(node.argument, scope)
    named_list = checker.find_list(node.items, scope) if isinstance(node.items, syntax.NameRef) else None
    if argument is None or (named_list is None and isinstance(node.items, syntax.NameRef)):
        return None
    if isinstance(named_list, Const | Param):
        listed = in_list(checker, argument, named_list, node.argument, scope)
        return Unary("not", listed, listed.type) if listed is not None and node.negated else listed
    items = list_items(node.items, named_list, scope)
    values: list[Expr] = []
    for item, item_scope in items:
        value = checker.check(item, item_scope, argument.type)
        if value is None:
            return None
        if value.type.kind is Kind.NULL:
            checker.collector.add("CEP303", "null is in no list", item.span, "write `or … is null`")
            return None
        both = unify(checker, argument, value, (node.argument.span, item.span), scope, exact=True)
        if both is None:
            return None
        argument, value = both
        values.append(value)
    aligned = [types.cast(value, argument.type) for value in values]
    assert all(value is not None for value in aligned)
    result = types.BOOL.as_nullable(argument.type.nullable or any(value.type.nullable for value in values))
    test: Expr = In(argument, tuple(value for value in aligned if value is not None), result)
    if any(value.type.nullable for value in values):  # the test of a set knows no null among its members
        test = types.balanced("or", [Binary("==", argument, value, result) for value in aligned if value is not None])
    return Unary("not", test, result) if node.negated else test


def list_items(
    items: tuple[syntax.ExprSyntax, ...] | syntax.NameRef, declared: syntax.ListSyntax | None, scope: Scope
) -> list[tuple[syntax.ExprSyntax, Scope]]:
    """Return the items of a list, each with the scope that its names belong to."""
    if not isinstance(items, syntax.NameRef):
        return [(item, scope) for item in items]
    assert declared is not None, "named"
    inside = Scope(scope.definitions, expansions=(*scope.expansions, (items.name, items.span)))
    return [(item, inside) for item in declared.items]


def choose(checker: Checker, node: syntax.IfSyntax, scope: Scope, expected: Type | None) -> Expr | None:
    """Check `if c then a else b`. A branch that is null takes the type of the other branch."""
    test = condition(checker, node.condition, scope, "the condition of `if`")
    then = checker.check(node.then, scope, expected)
    otherwise = checker.check(node.otherwise, scope, expected or (then.type if then is not None else None))
    if test is None or then is None or otherwise is None:
        return None
    if then.type.kind is Kind.NULL or otherwise.type.kind is Kind.NULL:
        target = otherwise.type if then.type.kind is Kind.NULL else then.type
        both: tuple[Expr, Expr] | None = (cast_null(then, target), cast_null(otherwise, target))
    else:
        spans = (node.then.span, node.otherwise.span)
        both = unify(checker, then, otherwise, spans, scope, exact=False)
    if both is None:
        return None
    result = both[0].type.as_nullable(both[0].type.nullable or both[1].type.nullable)
    return If(test, both[0], both[1], result)


def cast_null(value: Expr, target: Type) -> Expr:
    """Give the literal null the type of its surroundings. Return other values unchanged."""
    return Const(None, target.as_nullable()) if value.type.kind is Kind.NULL else value


def arithmetic(
    checker: Checker, op: BinaryOp, pair: tuple[Expr, Expr], spans: tuple[Span, Span], scope: Scope
) -> Expr | None:
    """Check `+ - * / %` on numbers, and the operations of times and durations."""
    left, right = pair
    nullable = left.type.nullable or right.type.nullable
    if left.type.kind in _TIMES or right.type.kind in _TIMES:
        result = _time_result(op, left.type.kind, right.type.kind)
        if result is not None:
            return Binary(op, left, right, result.as_nullable(nullable or op == "/"))
    elif left.type.is_number and right.type.is_number:
        return _number_arithmetic(checker, op, pair, spans, scope)
    message = f"`{op}` does not work on {left.type} and {right.type}"
    labels = (Label(spans[0], f"this is {left.type}"), Label(spans[1], f"this is {right.type}"))
    checker.collector.add("CEP301", message, spans[0].to(spans[1]), labels=(*labels, *scope.labels()))
    return None


def _time_result(op: BinaryOp, left: Kind, right: Kind) -> Type | None:
    table = {
        ("-", Kind.TIME, Kind.TIME): types.DURATION,
        ("+", Kind.TIME, Kind.DURATION): types.TIME,
        ("-", Kind.TIME, Kind.DURATION): types.TIME,
        ("+", Kind.DURATION, Kind.TIME): types.TIME,
        ("+", Kind.DURATION, Kind.DURATION): types.DURATION,
        ("-", Kind.DURATION, Kind.DURATION): types.DURATION,
        ("/", Kind.DURATION, Kind.DURATION): types.FLOAT,
    }
    return table.get((op, left, right))


def _number_arithmetic(
    checker: Checker, op: BinaryOp, pair: tuple[Expr, Expr], spans: tuple[Span, Span], scope: Scope
) -> Expr | None:
    """Check `+ - * / %` of two numbers. The quotient of `/` is a float, and null if the divisor is 0."""
    left, right = pair
    nullable = left.type.nullable or right.type.nullable
    if op == "/":
        first, second = types.cast(left, types.FLOAT), types.cast(right, types.FLOAT)
        assert first is not None
        assert second is not None
        return Binary("/", first, second, types.FLOAT.as_nullable(nullable or not _is_not_zero(right)))
    if op == "%":
        if Kind.FLOAT in (left.type.kind, right.type.kind):
            message = "`%` works on integers and decimals"
            checker.collector.add("CEP301", message, spans[0].to(spans[1]), labels=scope.labels())
            return None
        nullable = nullable or not _is_not_zero(right)
    if op == "*" and types.common_number(left.type, right.type).kind is Kind.DECIMAL:
        return _product(checker, left, right, spans, scope)
    both = unify(checker, left, right, spans, scope, exact=False)
    return None if both is None else Binary(op, both[0], both[1], both[0].type.as_nullable(nullable))


def _product(checker: Checker, left: Expr, right: Expr, spans: tuple[Span, Span], scope: Scope) -> Expr | None:
    """Check a product of decimals: its scale is the sum of both scales. An integer counts as a decimal of scale 0."""
    factors: list[Expr] = []
    for value in (left, right):
        whole = Type(Kind.DECIMAL, value.type.nullable)
        factor = types.shortened(value) if isinstance(value, Const) else value
        converted = types.cast(factor, whole) if factor.type.kind is Kind.INT else factor
        assert converted is not None
        factors.append(converted)
    scale = factors[0].type.scale + factors[1].type.scale
    if scale > DECIMAL_SCALE_MAX:
        message = f"this product has {scale} decimals, more than {DECIMAL_SCALE_MAX}"
        checker.collector.add("CEP308", message, spans[0].to(spans[1]), "use fewer decimals", scope.labels())
        return None
    nullable = left.type.nullable or right.type.nullable
    return Binary("*", factors[0], factors[1], Type(Kind.DECIMAL, nullable, scale))


def _is_not_zero(value: Expr) -> bool:
    return isinstance(value, Const) and value.value != 0 and value.value is not None
