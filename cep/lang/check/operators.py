"""Operators: compatible types, result types, and the casts that bring both sides to one type.

Tested by: tests/lang/test_expressions.py
"""

from dataclasses import replace
from typing import NoReturn

from cep.base.limits import DECIMAL_SCALE_MAX
from cep.base.schema import Kind, Type
from cep.lang import syntax
from cep.lang.check import types
from cep.lang.check.scope import Checker, Refused, Scope, attempt, each
from cep.lang.check.text import in_list, text_test
from cep.lang.diagnostics import Fix, Label, Span
from cep.lang.ir import Binary, BinaryOp, Const, Expr, If, In, Param, Unary

_COMPARISONS: dict[str, BinaryOp] = {"==": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_ARITHMETIC: dict[str, BinaryOp] = {"+": "+", "-": "-", "*": "*", "/": "/", "%": "%"}
_TIME_RESULTS = {
    ("-", Kind.TIME, Kind.TIME): types.DURATION,
    ("+", Kind.TIME, Kind.DURATION): types.TIME,
    ("-", Kind.TIME, Kind.DURATION): types.TIME,
    ("+", Kind.DURATION, Kind.TIME): types.TIME,
    ("+", Kind.DURATION, Kind.DURATION): types.DURATION,
    ("-", Kind.DURATION, Kind.DURATION): types.DURATION,
    ("/", Kind.DURATION, Kind.DURATION): types.FLOAT,
}


def is_symbol(node: syntax.ExprSyntax, scope: Scope) -> bool:
    """Return True for a bare name that only an enum can explain."""
    while isinstance(node, syntax.NameRef) and node.name in scope.arguments:
        node, scope = scope.argument(node.name)
    if not isinstance(node, syntax.NameRef):
        return False
    is_named = node.name in scope.params or (scope.fields is not None and node.name in scope.fields)
    return not is_named and node.name not in scope.definitions.defines


def condition(checker: Checker, node: syntax.ExprSyntax, scope: Scope, where: str) -> Expr:
    """Check an expression that must be true or false."""
    value = checker.check(node, scope, types.BOOL)
    if value.type.kind is not Kind.BOOL:
        message = f"{where} must be true or false, this is {value.type}"
        checker.refuse("CEP302", message, node.span, labels=scope.labels())
    return value


def chain(checker: Checker, node: syntax.ChainSyntax, scope: Scope) -> Expr:
    """Check `and` and `or` of any length."""
    where = f"each side of `{node.op}`"
    return types.balanced(node.op, each(lambda operand: condition(checker, operand, scope, where), node.operands))


def unary(checker: Checker, node: syntax.UnarySyntax, scope: Scope) -> Expr:
    """Check `not x` and `-x`."""
    if node.op == "not":
        argument = condition(checker, node.argument, scope, "what follows `not`")
        return Unary("not", argument, argument.type)
    value = checker.check(node.argument, scope)
    if not (value.type.is_number or value.type.kind is Kind.DURATION):
        message = f"`-` needs a number or a duration, this is {value.type}"
        checker.refuse("CEP301", message, node.span, labels=scope.labels())
    if isinstance(value, Const) and isinstance(value.value, int | float):
        return Const(-value.value, value.type)  # so `-5` is a constant
    return Unary("neg", value, value.type)


def is_null(checker: Checker, node: syntax.IsNullSyntax, scope: Scope) -> Expr:
    """Check `is null`, which is itself never unknown."""
    test = Unary("is_null", checker.check(node.argument, scope), types.BOOL)
    return Unary("not", test, types.BOOL) if node.negated else test


def sides(checker: Checker, left: syntax.ExprSyntax, right: syntax.ExprSyntax, scope: Scope) -> tuple[Expr, Expr]:
    """Check both sides. A bare symbol comes after the side that says which enum is meant."""
    if is_symbol(left, scope) and not is_symbol(right, scope):
        second = checker.check(right, scope)
        return checker.check(left, scope, second.type), second
    try:
        first = checker.check(left, scope)
    except Refused:
        if not is_symbol(right, scope):  # next to a mistake, a bare symbol is not a second mistake
            checker.check(right, scope)
        raise
    return first, checker.check(right, scope, first.type)


def unify(
    checker: Checker, first_value: Expr, second_value: Expr, spans: tuple[Span, Span], scope: Scope, *, exact: bool
) -> tuple[Expr, Expr]:
    """Convert two values to one type. With `exact`, refuse a literal that has more decimals than the other value."""
    for value, other, span in ((first_value, second_value, spans[0]), (second_value, first_value, spans[1])):
        parts = types.branches(value) if exact else (value,)  # `exact`: in a comparison
        if any(isinstance(part, Const) and types.is_raw(part, other.type) for part in parts):
            # A protected field holds tokens (keyed hashes), so a card number never equals one. It must not be quoted.
            message = f"a value of type {other.type} is a token here, and this is none"
            help_line = "write the token, as alerts show it; never write the value itself into a rule"
            checker.refuse("CEP320", message, span, help_line, scope.labels())
    first_value, second_value = (  # a text in quotes next to an enum becomes a symbol
        types.as_symbol(first_value, second_value.type),
        types.as_symbol(second_value, first_value.type),
    )
    targets = (second_value.type, first_value.type)  # each value is cast to the type at its place
    if not types.same(*targets):  # apart from null
        if not (first_value.type.is_number and second_value.type.is_number):
            mismatch(checker, first_value, second_value, spans, scope)
        target = types.common_number(*targets)
        for const, other, span in ((first_value, second_value, spans[0]), (second_value, first_value, spans[1])):
            if isinstance(const, Const) and not isinstance(other, Const) and types.cast(const, other.type) is not None:
                target = other.type  # a literal takes the type of the other value, if no digit is lost
            elif exact and isinstance(const, Const) and not isinstance(other, Const):
                _check_digits(checker, const, other.type, span, scope)
        targets = (target, target)
    first, second = types.cast(first_value, targets[0]), types.cast(second_value, targets[1])
    if first is None or second is None:
        checker.refuse("CEP309", f"this number does not fit into {targets[0]}", spans[0].to(spans[1]))
    return first, second


def _check_digits(checker: Checker, const: Const, other: Type, span: Span, scope: Scope) -> None:
    """Refuse a literal with more digits than the value it is compared with can have."""
    scale = types.shortened(const).type.scale
    if const.type.kind is other.kind is Kind.DECIMAL and scale > other.scale:
        message = f"this number has {scale} decimals, but it is compared with {other}"
        digits = f"write at most {other.scale} decimals" if other.scale else "write a whole number"
        checker.refuse("CEP304", message, span, digits, scope.labels())


def mismatch(checker: Checker, left: Expr, right: Expr, spans: tuple[Span, Span], scope: Scope) -> NoReturn:
    """Refuse two incompatible types."""
    help_line = ""
    fix: Fix | None = None
    for one, other, span in ((left, right, spans[1]), (right, left, spans[0])):
        if one.type.kind is Kind.ENUM and isinstance(other, Const) and other.type.is_text:
            help_line = f"symbols stand without quotes: {other.value}"
            fix = Fix(span, str(other.value)) if other.value in one.type.symbols else None
        if one.type.kind is Kind.DURATION and other.type.is_number:
            help_line = "a duration has a unit, like `10 min`"
    message = f"{left.type} and {right.type} do not fit together"
    checker.refuse("CEP301", message, spans[0].to(spans[1]), help_line, _type_labels(left, right, spans, scope), fix)


def _type_labels(left: Expr, right: Expr, spans: tuple[Span, Span], scope: Scope) -> tuple[Label, ...]:
    places = zip(spans, (left, right), strict=True)
    return (*(Label(span, f"this is {value.type}") for span, value in places), *scope.labels())


def binary(checker: Checker, node: syntax.BinarySyntax, scope: Scope) -> Expr:
    """Check a comparison, `like`, `matches`, or arithmetic."""
    for side in (node.left, node.right):
        if node.op in _COMPARISONS and isinstance(side, syntax.Literal) and side.value is None:
            instead = "is null" if node.op == "==" else "is not null"
            message = "a comparison with null is never true"
            place = Span(node.span.file, node.op_span.start, node.right.span.end)  # of `== null`
            fix = Fix(place, instead) if side is node.right and node.op in ("==", "!=") else None
            checker.refuse("CEP303", message, node.span, f"write `{instead}`", scope.labels(), fix)
    pair = sides(checker, node.left, node.right, scope)
    spans = (node.left.span, node.right.span)
    if node.op in _COMPARISONS:
        return compare(checker, _COMPARISONS[node.op], pair, spans, scope)
    if node.op in ("like", "matches"):
        return text_test(checker, node.op, list(pair), (node.left, node.right), scope)
    return arithmetic(checker, _ARITHMETIC[node.op], pair, spans, scope)


def compare(checker: Checker, op: BinaryOp, pair: tuple[Expr, Expr], spans: tuple[Span, Span], scope: Scope) -> Expr:
    """Compare two checked values."""
    alike = pair[0].type.is_text == pair[1].type.is_text
    if op not in ("==", "!=") and alike and not (types.is_ordered(pair[0].type) and types.is_ordered(pair[1].type)):
        culprit = pair[1] if types.is_ordered(pair[0].type) else pair[0]
        message = f"values of type {culprit.type} have no order"
        checker.refuse("CEP306", message, spans[0].to(spans[1]), "use `==`, `!=` or `in`", scope.labels())
    first, second = unify(checker, *pair, spans, scope, exact=True)
    return Binary(op, first, second, types.BOOL.as_nullable(first.type.nullable or second.type.nullable))


def between(checker: Checker, node: syntax.BetweenSyntax, scope: Scope) -> Expr:
    """Check `a between b and c` as `a >= b and a <= c`."""
    tests = [
        binary(checker, syntax.BinarySyntax(op, bound.span, node.argument, bound, node.span), scope)
        for op, bound in ((">=", node.low), ("<=", node.high))
    ]
    both = types.balanced("and", tests)
    return Unary("not", both, both.type) if node.negated else both


def membership(checker: Checker, node: syntax.InSyntax, scope: Scope) -> Expr:
    """Check `e in [a, b]` or `e in name`."""
    items, item_scope = node.items, scope
    checked = attempt(checker.check, node.argument, scope)
    if isinstance(items, syntax.NameRef):
        named_list = checker.find_list(items, scope)
        if checked is not None and isinstance(named_list, Const | Param):  # a list that may change, or a parameter
            listed = in_list(checker, checked, named_list, node.argument, scope)
            return Unary("not", listed, listed.type) if node.negated else listed
        # A list with fixed items: they see no names of the pattern, and an error in them tells where the list is used.
        item_scope = Scope(scope.definitions, expansions=(*scope.expansions, (items.name, items.span)))
        items = named_list.items if isinstance(named_list, syntax.ListSyntax) else ()  # refused below
    if checked is None:
        raise Refused
    argument = checked
    values: list[Expr] = []
    for item in items:
        value = checker.check(item, item_scope, argument.type)
        if value.type.kind is Kind.NULL:
            checker.refuse("CEP303", "null is in no list", item.span, "write `or … is null`")
        if isinstance(value, Const) and value.type.kind is Kind.DECIMAL and types.cast(value, argument.type) is None:
            argument = checked  # an item with fewer digits stands before this one
        argument, value = unify(checker, argument, value, (node.argument.span, item.span), scope, exact=True)
        values.append(value)
    aligned = [types.cast(value, argument.type) for value in values]  # a later item may have a wider type
    values = [value for value in aligned if value is not None]
    if len(values) < len(aligned):
        checker.refuse("CEP309", f"a number of this list does not fit into {argument.type}", node.span)
    is_nullable = any(value.type.nullable for value in values)
    result = types.BOOL.as_nullable(argument.type.nullable or is_nullable)
    test: Expr = In(argument, tuple(values), result)
    if is_nullable:  # compare one by one, because a set has no null among its members
        test = types.balanced("or", [Binary("==", argument, value, result) for value in values])
    return Unary("not", test, result) if node.negated else test


def choose(checker: Checker, node: syntax.IfSyntax, scope: Scope, expected: Type | None) -> Expr:
    """Check `if c then a else b`. A branch that is null takes the type of the other branch."""
    test = attempt(condition, checker, node.condition, scope, "the condition of `if`")
    then = attempt(checker.check, node.then, scope, expected)
    otherwise = checker.check(node.otherwise, scope, expected or (then.type if then is not None else None))
    if test is None or then is None:
        raise Refused
    if then.type.kind is Kind.NULL or otherwise.type.kind is Kind.NULL:
        target = otherwise.type if then.type.kind is Kind.NULL else then.type
        then, otherwise = _cast_null(then, target), _cast_null(otherwise, target)
    else:
        then, otherwise = unify(checker, then, otherwise, (node.then.span, node.otherwise.span), scope, exact=False)
    nullable = then.type.nullable or otherwise.type.nullable
    protected = then.type.protected or otherwise.type.protected
    return If(test, then, otherwise, replace(then.type, nullable=nullable, protected=protected))


def _cast_null(value: Expr, target: Type) -> Expr:
    """Give the literal null the type of its surroundings. Return other values unchanged."""
    return Const(None, target.as_nullable()) if value.type.kind is Kind.NULL else value


def arithmetic(checker: Checker, op: BinaryOp, pair: tuple[Expr, Expr], spans: tuple[Span, Span], scope: Scope) -> Expr:
    """Check `+ - * / %` on numbers, and the operations of times and durations."""
    left, right = pair
    if left.type.is_number and right.type.is_number:
        return _number_arithmetic(checker, op, pair, spans, scope)
    result = _TIME_RESULTS.get((op, left.type.kind, right.type.kind))
    if result is None:
        message = f"`{op}` does not work on {left.type} and {right.type}"
        labels = _type_labels(left, right, spans, scope)
        checker.refuse("CEP301", message, spans[0].to(spans[1]), labels=labels)
    return Binary(op, left, right, result.as_nullable(left.type.nullable or right.type.nullable or op == "/"))


def _number_arithmetic(
    checker: Checker, op: BinaryOp, pair: tuple[Expr, Expr], spans: tuple[Span, Span], scope: Scope
) -> Expr:
    """Check `+ - * / %` of two numbers. The quotient of `/` is a float, and null if the divisor is 0."""
    left, right = pair
    nullable = left.type.nullable or right.type.nullable
    if op in ("/", "%"):
        nullable = nullable or not isinstance(right, Const) or right.value in (0, None)  # a divisor of 0 gives null
    if op == "/":
        result = types.FLOAT.as_nullable(nullable)
        return Binary("/", types.widened(left, types.FLOAT), types.widened(right, types.FLOAT), result)
    if op == "%" and Kind.FLOAT in (left.type.kind, right.type.kind):
        message = "`%` works on integers and decimals"
        checker.refuse("CEP301", message, spans[0].to(spans[1]), labels=scope.labels())
    if op == "*" and types.common_number(left.type, right.type).kind is Kind.DECIMAL:
        return _product(checker, left, right, spans, scope)
    first, second = unify(checker, left, right, spans, scope, exact=False)
    return Binary(op, first, second, first.type.as_nullable(nullable))


def _product(checker: Checker, left: Expr, right: Expr, spans: tuple[Span, Span], scope: Scope) -> Expr:
    """Check a product of decimals: its scale is the sum of both scales. An integer counts as a decimal of scale 0."""
    factors: list[Expr] = []
    for value in (left, right):
        factor = types.shortened(value) if isinstance(value, Const) else value  # 1.50 counts as 1.5
        whole = Type(Kind.DECIMAL, value.type.nullable)  # of scale 0
        factors.append(types.widened(factor, whole) if factor.type.kind is Kind.INT else factor)
    scale = factors[0].type.scale + factors[1].type.scale
    if scale > DECIMAL_SCALE_MAX:
        message = f"this product has {scale} decimals, more than {DECIMAL_SCALE_MAX}"
        checker.refuse("CEP308", message, spans[0].to(spans[1]), "use fewer decimals", scope.labels())
    nullable = left.type.nullable or right.type.nullable
    return Binary("*", factors[0], factors[1], Type(Kind.DECIMAL, nullable, scale))
