"""Syntax to typed expressions: resolve names, expand definitions, insert casts, collect mistakes.

Each mistake is reported once, at its place. Operators, functions of text and histories are in the files next to it.
Tested by: tests/lang/test_expressions.py
"""

from dataclasses import replace
from typing import NoReturn, get_args

from cep.base.limits import DECIMAL_SCALE_MAX, EXPRESSION_NODES_MAX, NESTING_MAX
from cep.base.schema import Kind, Type
from cep.lang import syntax
from cep.lang.check import history as check_history
from cep.lang.check import operators as check_operators
from cep.lang.check import text as check_text
from cep.lang.check.history import history_call, is_event_type
from cep.lang.check.operators import is_symbol, mismatch, unify
from cep.lang.check.scope import COMPARE_RESULT, AggregateArgument, Bound, Checker, Refused, Scope, attempt, each
from cep.lang.check.text import check_count
from cep.lang.check.types import DURATION, FLOAT, INT, cast, is_ordered, literal_const, widened
from cep.lang.diagnostics import Collector, Fix, Label
from cep.lang.functions import FUNCTIONS, Family, Function
from cep.lang.ir import Aggregate, AggregateFn, Call, Const, CurrentField, Expr, Param, Unary, VarField, Which
from cep.lang.parse.lexer import NTH_EVENT

_AGGREGATES: dict[str, AggregateFn] = {name: name for name in get_args(AggregateFn)}
_IF_NULL = ("coalesce", "ifnull", "nvl", "isnull")  # as other languages name it
_EXTREMES = {"least": "least", "greatest": "greatest", "min": "least", "max": "greatest"}
_TEXT_TIME_ROUNDING = (Family.TEXT, Family.TIME, Family.ROUNDING)


def call(checker: Checker, node: syntax.CallSyntax, scope: Scope, expected: Type | None) -> Expr:
    """Check a definition, an aggregate or a function. They are looked up in this order; no two share a name."""
    define = scope.definitions.defines.get(node.name)
    if define is not None:
        return use_define(checker, define, node.arguments, node, scope, expected)
    function = FUNCTIONS.get(node.name)
    family = None if function is None else function.family
    is_aggregate = family is Family.AGGREGATE and not (node.name in _EXTREMES and len(node.arguments) > 1)  # min(a, b)
    if family is Family.PAST or (is_aggregate and len(node.arguments) == 1 and is_event_type(node.arguments[0], scope)):
        return history_call(checker, node, scope)  # over past events, bound to a variable or not
    if is_aggregate:
        return _aggregate(checker, _AGGREGATES[node.name], node, scope)
    if family is Family.CHOICE:
        checker.refuse("CEP203", f"`{node.name}(…)` needs a field", node.span, f"write `{node.name}(x).field`")
    if family in _TEXT_TIME_ROUNDING:
        return check_text.call(checker, node, scope)
    if node.name == "abs":
        return _abs(checker, node, scope)
    if function is not None and family is Family.FLOAT:
        return _float_call(checker, node, function, scope)
    if node.name in _EXTREMES:
        return _extreme(checker, _EXTREMES[node.name], node, scope)
    message = f"`{node.name}` is neither a function nor a definition"
    if node.name.lower() in _IF_NULL:
        help_line = "write `if value is null then other else value`"
        checker.refuse("CEP205", message, node.name_span, help_line, scope.labels())
    names = (*FUNCTIONS, *scope.definitions.defines)
    checker.collector.unknown("CEP205", message, node.name, node.name_span, names, "functions")
    raise Refused


def use_define(
    checker: Checker,
    define: syntax.DefineSyntax,
    arguments: tuple[syntax.ExprSyntax, ...],
    node: syntax.CallSyntax | syntax.NameRef,
    scope: Scope,
    expected: Type | None,
) -> Expr:
    """Check the body of a definition with its arguments in place, as if it were written here."""
    place = Label(define.span, "defined here")
    if any(name == define.name for name, _ in scope.expansions):
        checker.refuse("CEP210", f"`{define.name}` uses itself", node.span, labels=(place, *scope.labels()))
    if len(arguments) != len(define.params):
        message = f"`{define.name}` takes {len(define.params)} arguments, here are {len(arguments)}"
        checker.refuse("CEP307", message, node.span, labels=(place,))
    return checker.check(define.body, scope.inside(define, arguments, node.span), expected)


def _abs(checker: Checker, node: syntax.CallSyntax, scope: Scope) -> Expr:
    check_count(checker, node, 1, 1)
    value = checker.check(node.arguments[0], scope)
    if not (value.type.is_number or value.type.kind is Kind.DURATION):
        message = f"`abs` needs a number or a duration, this is {value.type}"
        checker.refuse("CEP301", message, node.arguments[0].span, labels=scope.labels())
    return Unary("abs", value, value.type)


def _float_call(checker: Checker, node: syntax.CallSyntax, function: Function, scope: Scope) -> Expr:
    """Check a call of a function of floats, such as `sqrt(x)`."""
    check_count(checker, node, *function.arguments)

    def as_float(argument: syntax.ExprSyntax) -> Expr:
        value = checker.check(argument, scope)
        if not value.type.is_number:
            message = f"`{node.name}` needs numbers, this is {value.type}"
            checker.refuse("CEP301", message, argument.span, labels=scope.labels())
        return widened(value, FLOAT)

    arguments = each(as_float, node.arguments)
    assert function.gives is not None, "a function of floats always gives the same type"
    nullable = function.gives.nullable or any(a.type.nullable for a in arguments)
    return Call(node.name, tuple(arguments), function.gives.as_nullable(nullable))


def _extreme(checker: Checker, fn: str, node: syntax.CallSyntax, scope: Scope) -> Expr:
    """Check `min` or `max` of several values of one type. The result is null if one of them is."""
    if len(node.arguments) < 2:
        checker.refuse("CEP307", f"`{node.name}` takes two arguments or more", node.span)
    values = each(lambda argument: checker.check(argument, scope), node.arguments)
    widest = values[0]
    for value, argument in zip(values, node.arguments, strict=True):
        spans = (node.arguments[0].span, argument.span)
        if not is_ordered(value.type):
            mismatch(checker, widest, value, spans, scope)
        widest = unify(checker, widest, value, spans, scope, exact=False)[0]  # only its type counts
    aligned = [cast(value, widest.type) for value in values]
    arguments = tuple(value for value in aligned if value is not None)
    if len(arguments) < len(aligned):
        checker.refuse("CEP309", f"a number does not fit into {widest.type}", node.span)
    return Call(fn, arguments, widest.type.as_nullable(any(a.type.nullable for a in arguments)))


def _aggregate(checker: Checker, fn: AggregateFn, node: syntax.CallSyntax, scope: Scope) -> Expr:
    """Check an aggregate over the events of a variable, such as `sum(b.amount)`."""
    if scope.aggregate is not None:
        message = f"`{fn}` cannot stand inside `{scope.aggregate.fn}`"
        checker.refuse("CEP310", message, node.span, labels=scope.labels())
    check_count(checker, node, 1, 1)
    argument, inner = scope.follow(node.arguments[0])
    if isinstance(argument, syntax.NameRef) and (fn == "count" or argument.name in inner.variables):
        checker.find_variable(argument, inner)
        if fn == "count":  # `count(b)`; the other functions need a field
            return Aggregate("count", argument.name, None, INT)
        message, help_line = f"`{fn}` needs a field of `{argument.name}`", f"write `{fn}({argument.name}.field)`"
        checker.refuse("CEP310", message, argument.span, help_line, inner.labels())
    if is_symbol(argument, inner):  # a name without a variable, such as `amount`
        help_line = f"write `{fn}(x.{argument.name})`" if isinstance(argument, syntax.NameRef) else ""
        checker.refuse("CEP310", f"`{fn}` needs a field of a variable", argument.span, help_line)
    holder = AggregateArgument(fn)  # the check below writes the variable of the argument into `holder.variable`
    value = checker.check(argument, replace(inner, aggregate=holder))
    if holder.variable is None:
        message = f"`{fn}` needs the events of a variable"
        help_line = f"write `{fn}(x.field)`; for the largest of two values, `max(a, b)`"
        checker.refuse("CEP310", message, argument.span, help_line, scope.labels())
    return _typed(checker, fn, holder.variable, value, node, scope)


def _typed(
    checker: Checker, fn: AggregateFn, variable: str, value: Expr, node: syntax.CallSyntax, scope: Scope
) -> Expr:
    """Check that an aggregate accepts the type of its argument, and return it with its own type."""
    kind, place = value.type, node.arguments[0].span
    fits = {"count": True, "distinct": True, "min": is_ordered(kind), "max": is_ordered(kind)}
    if not fits.get(fn, kind.is_number):
        noun = "an ordered value" if fn in fits else "a number"
        checker.refuse("CEP301", f"`{fn}` needs {noun}, this is {kind}", place, labels=scope.labels())
    if fn == "distinct" and not isinstance(value, CurrentField):
        message = "`distinct` counts the values of a field, but this is computed"
        checker.refuse("CEP310", message, place, "write `distinct(x.field)`", scope.labels())
    result = kind.as_nullable(nullable=False)
    if fn in ("count", "distinct"):
        result = INT
    elif fn in ("avg", "stddev"):
        result = FLOAT.as_nullable()
    elif fn in ("min", "max"):
        result = kind.as_nullable()
    return Aggregate(fn, variable, value, result)


_WHICH: dict[str, Which] = {"first": "first", "last": "last", "prev": "prev"}


class ExpressionChecker(Checker):
    """Checks expressions one after the other. `check_condition` and `check_value` return None after a report."""

    def __init__(self, collector: Collector) -> None:
        super().__init__(collector)
        self._depth = 0
        self._nodes = 0

    def check_condition(self, node: syntax.ExprSyntax, scope: Scope, where: str) -> Expr | None:
        self._nodes = 0
        return attempt(check_operators.condition, self, node, scope, where)

    def check_value(self, node: syntax.ExprSyntax, scope: Scope, expected: Type | None = None) -> Expr | None:
        """Check a whole expression of any type but the bare null. `expected` gives a symbol its enum."""
        self._nodes = 0
        value = attempt(self.check, node, scope, expected)
        if value is not None and value.type.kind is Kind.NULL:
            self.collector.add("CEP303", "null alone has no type", node.span)
            return None
        return value

    def check(self, node: syntax.ExprSyntax, scope: Scope, expected: Type | None = None) -> Expr:
        """Return the typed expression (see Checker). Refuse one that is too large or too deep."""
        self._nodes += 1  # since the whole expression began
        if self._nodes > EXPRESSION_NODES_MAX + 1:
            raise Refused  # reported already, at the first part too many
        if self._nodes > EXPRESSION_NODES_MAX:
            message = f"this expression has more than {EXPRESSION_NODES_MAX} parts when written out"
            self.refuse("CEP311", message, node.span, labels=scope.labels())
        if self._depth >= NESTING_MAX:
            message = f"this expression is nested more than {NESTING_MAX} levels deep when written out"
            self.refuse("CEP311", message, node.span, labels=scope.labels())
        self._depth += 1
        try:
            return self._dispatch(node, scope, expected)
        finally:
            self._depth -= 1

    def _dispatch(self, node: syntax.ExprSyntax, scope: Scope, expected: Type | None) -> Expr:
        match node:
            case syntax.Literal():
                return self._literal(node)
            case syntax.DurationLiteral():
                return Const(node.ms, DURATION)
            case syntax.NameRef():
                return self._name(node, scope, expected)
            case syntax.Member():
                return self._member(node, scope)
            case syntax.CallSyntax():
                return call(self, node, scope, expected)
            case syntax.HistorySyntax():
                return check_history.history(self, node, scope)
            case syntax.UnarySyntax():
                return check_operators.unary(self, node, scope)
            case syntax.BinarySyntax():
                return check_operators.binary(self, node, scope)
            case syntax.ChainSyntax():
                return check_operators.chain(self, node, scope)
            case syntax.InSyntax():
                return check_operators.membership(self, node, scope)
            case syntax.BetweenSyntax():
                return check_operators.between(self, node, scope)
            case syntax.IsNullSyntax():
                return check_operators.is_null(self, node, scope)
            case syntax.IfSyntax():
                return check_operators.choose(self, node, scope, expected)

    def _literal(self, node: syntax.Literal) -> Expr:
        const = literal_const(node)
        if const is None:
            message = f"a decimal has at most {DECIMAL_SCALE_MAX} digits after the point and 64 bits"
            self.refuse("CEP309", message, node.span)
        return const

    def _name(self, node: syntax.NameRef, scope: Scope, expected: Type | None) -> Expr:
        """Find the meaning of a bare name: argument, parameter, field, definition or enum symbol."""
        if node.name in scope.arguments:
            argument, its_scope = scope.argument(node.name)
            return self.check(argument, its_scope, expected)
        is_field = scope.fields is not None and node.name in scope.fields
        if node.name in scope.params:
            if is_field and not any(v.event_type.field(node.name) for v in scope.variables.values()):  # else reported
                message = f"`{node.name}` is a parameter, and a field of {scope.fields_owner}"
                self.refuse("CEP508", message, node.span, "rename the parameter", scope.labels())
            return Param(node.name, scope.params[node.name])
        if scope.fields is not None and node.name in scope.fields:
            if scope.outside:
                message = f"`{node.name}` of the event under test cannot be used inside a history"
                self.refuse("CEP317", message, node.span, COMPARE_RESULT, scope.labels())
            if scope.aggregate is None:
                return CurrentField(node.name, scope.fields[node.name])
            message = f"inside `{scope.aggregate.fn}` a field needs its variable"
            self.refuse("CEP310", message, node.span, f"write `x.{node.name}`", scope.labels())
        enum = expected if expected is not None and expected.kind is Kind.ENUM else None
        define = scope.definitions.defines.get(node.name)
        if define is not None and not (enum is not None and node.name in enum.symbols):  # symbols go before
            return use_define(self, define, (), node, scope, expected)
        if enum is None:
            self._unknown(node, scope)
        plain = enum.as_nullable(nullable=False)
        if node.name in enum.symbols:
            return Const(enum.symbols.index(node.name), plain)
        names = (*enum.symbols, *(scope.fields or ()), *scope.params)
        message = f"`{node.name}` is neither a symbol of {plain} nor a field or parameter"
        self.collector.unknown("CEP305", message, node.name, node.span, names, labels=scope.labels())
        raise Refused

    def _unknown(self, node: syntax.NameRef, scope: Scope) -> NoReturn:
        """Report a name without a meaning, with help for a variable, a list, a symbol or a misspelt name; and raise."""
        name, labels, fields = node.name, scope.labels(), scope.fields or {}
        if scope.lacks_fields() and name not in scope.variables:
            raise Refused  # it may be one of the fields that could not be read, as is reported already
        if name in scope.variables:
            help_line = f"write `{name}.field` or `count({name})`"
            self.refuse("CEP201", f"`{name}` is a variable, not a value", node.span, help_line, labels)
        if name in scope.definitions.lists:
            self.refuse("CEP201", f"`{name}` is a list, not a value", node.span, f"write `… in {name}`", labels)
        message = f"`{name}` is neither a field of {scope.fields_owner} nor a parameter"
        if scope.fields is None:  # in `emit`, which tests no event
            owner = next((v for v, s in scope.variables.items() if s.event_type.field(name)), None)
            if owner is not None:
                message = f"`{name}` needs a variable: there is no event under test here"
                qualified = f"{owner}.{name}"
                self.refuse("CEP211", message, node.span, f"write `{qualified}`", labels, Fix(node.span, qualified))
            message = f"`{name}` is not a parameter"
            types = [field.type for variable in scope.variables.values() for field in variable.event_type.fields]
            if any(name in type_.symbols for type_ in types):
                help_line = f'write the symbol as a text: "{name}"'
                self.refuse("CEP201", message, node.span, help_line, labels, Fix(node.span, f'"{name}"'))
        symbols = [symbol for type_ in fields.values() for symbol in type_.symbols]
        whole = next((symbol for symbol in symbols if symbol.startswith(f"{name}-")), None)
        if whole is not None:  # `in-store` was read as `in` minus `store`
            help_line = f'a symbol with a hyphen stands in quotes: "{whole}"'
            self.refuse("CEP201", f"`{name}` is not a field, and `-` is minus", node.span, help_line, labels)
        names = (*fields, *scope.params, *scope.arguments, *scope.definitions.defines)
        self.collector.unknown("CEP201", message, name, node.span, names, labels=labels)
        raise Refused

    def _member(self, node: syntax.Member, scope: Scope) -> Expr:
        """Check a field: `x.f`, `first(x).f` or `prev(x).f` of a variable, `last(payment over 1 h).f` of the past."""
        owner, which = node.owner, "last"
        if isinstance(owner, syntax.HistorySyntax) and owner.name in ("first", "last"):
            return check_history.history(self, owner, scope, node)
        if isinstance(owner, syntax.CallSyntax) and owner.name in _WHICH and len(owner.arguments) == 1:
            if owner.name != "prev" and check_history.is_event_type(owner.arguments[0], scope):
                return check_history.history_call(self, owner, scope, node)
            if scope.aggregate is not None:
                message = f"`{owner.name}` cannot stand inside `{scope.aggregate.fn}`"
                self.refuse("CEP310", message, owner.span, labels=scope.labels())
            which, owner = owner.name, owner.arguments[0]
        owner, inner = scope.follow(owner)
        if not isinstance(owner, syntax.NameRef):
            message, help_line = "only a variable has fields", "write `x.field`"
            if isinstance(owner, syntax.CallSyntax) and owner.name == "next":
                message = "a condition cannot see an event that comes later"
                help_line = "move the comparison to the condition of the later variable"
            elif isinstance(owner, syntax.CallSyntax) and owner.name in _WHICH:
                message, help_line = f"`{owner.name}` takes a variable, and no number", NTH_EVENT
            self.refuse("CEP204", message, owner.span, help_line, scope.labels())
        variable = self.find_variable(owner, inner)
        field = variable.event_type.field(node.field)
        if field is None:
            if variable.event_type.name not in scope.definitions.unreadable:  # otherwise it may have the field
                names = [f.name for f in variable.event_type.fields]
                message = f"`{variable.event_type.name}` has no field `{node.field}`"
                self.collector.unknown(
                    "CEP203", message, node.field, node.field_span, names, "its fields", scope.labels()
                )
            raise Refused
        aggregate = scope.aggregate or inner.aggregate
        if aggregate is not None:
            if aggregate.variable not in (None, owner.name):
                message = f"`{aggregate.fn}` runs over the events of one variable, `{aggregate.variable}`"
                self.refuse("CEP310", message, node.span, labels=scope.labels())
            aggregate.variable = owner.name  # a field of each of its events
            return CurrentField(node.field, field.type)
        nullable = field.type.nullable or which == "prev" or variable.bound is not Bound.ALWAYS
        return VarField(owner.name, _WHICH[which], node.field, field.type.as_nullable(nullable))
