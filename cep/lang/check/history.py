"""Transaction history: aggregates over the past events of the key, whether or not a match is under way.

    count(transaction over 1 h where status == declined)      avg(transaction.amount over previous 30 d)
    sum(transaction.amount over day in "Europe/Paris" by merchant_id)      last(transaction).country

Inside, `transaction.f`, and a bare field in `where`, is a field of each past event; parameters are in sight, the
variables of the pattern are not.
Tested by: tests/lang/test_functions.py
"""

from dataclasses import replace
from typing import get_args

from cep.base.schema import EventType, Kind, Type
from cep.lang import syntax
from cep.lang.check.operators import condition
from cep.lang.check.scope import AggregateArgument, Bound, Checker, Refused, Scope, VariableInScope
from cep.lang.check.text import constant_problem
from cep.lang.check.types import BOOL, DURATION, FLOAT, INT, is_ordered
from cep.lang.diagnostics import Fix
from cep.lang.ir import CalendarUnit, Const, CurrentField, Expr, History, HistoryFn, HistoryWindow, Param

FUNCTIONS: dict[str, HistoryFn] = {name: name for name in get_args(HistoryFn)}
APPROXIMATE = "approx_"  # prefix of the names of approximate functions
UNITS: dict[str, CalendarUnit] = {unit: unit for unit in get_args(CalendarUnit)}
_OF_ONE_EVENT = ("first", "last")
_WITHOUT_WINDOW = (*_OF_ONE_EVENT, "exists", "first_seen")
_WITHOUT_FIELD = ("count", "exists")
_OF_PERCENT = ("percentile", "approx_percentile")
_COUNTS = ("count", "distinct", "approx_distinct")


def is_event_type(node: syntax.ExprSyntax, scope: Scope) -> bool:
    """Return True for an event type, or a field of one. Variables go before."""
    node, scope = scope.follow(node.owner if isinstance(node, syntax.Member) else node)
    return isinstance(node, syntax.NameRef) and node.name in scope.events and node.name not in scope.variables


def history(checker: Checker, node: syntax.HistorySyntax, scope: Scope, field: syntax.Member | None = None) -> Expr:
    """Check a history (function of past events). `field` is the field of `last(…).field` or `first(…).field`."""
    if scope.fields is None and scope.last is not None:  # in `emit`: look back from the last event of the match
        scope = replace(scope, fields=scope.last, fields_owner="the last event of a match")
    _check_place(checker, node, scope)
    fn = FUNCTIONS.get(node.name)
    if fn is None:
        message = f"`{node.name}` is not a function of past events"
        checker.collector.unknown("CEP317", message, node.name, node.name_span, FUNCTIONS, "functions", scope.labels())
        raise Refused
    if fn == "first_seen":
        return _first_seen(checker, node, scope)
    sub_key = [name for name, _ in map(scope.follow, node.by) if isinstance(name, syntax.NameRef)]
    if len(sub_key) < len(node.by):
        checker.refuse("CEP317", "`by` takes fields, this is another value", node.span, "name a field", scope.labels())
    node = replace(node, by=tuple(sub_key))
    if node.window is None and fn not in _WITHOUT_WINDOW:
        message = f"`{fn}` over past events needs a window"
        checker.refuse("CEP318", message, node.span, "write `over 1 h` behind the field", scope.labels())
    window = None if node.window is None else _window(checker, node.window, scope)
    _check_panes(checker, node, window, scope)  # of an approximate function
    event_type, argument = _argument(checker, node, fn, scope, field)
    fields = {f.name: f.type for f in event_type.fields}
    inside = replace(scope, fields=fields, fields_owner=f"`{event_type.name}`", variables={}, past=True)  # for `where`
    where = None if node.where is None else condition(checker, node.where, inside, "what follows `where`")
    _check_sub_key(checker, node, event_type, scope)
    percent = _percent(checker, node, fn, scope)
    result = _result(checker, node, fn, argument, scope)
    by = tuple(name.name for name in node.by)
    return History(fn, event_type.name, argument, where, by, window, percent, result)


def history_call(checker: Checker, node: syntax.CallSyntax, scope: Scope, field: syntax.Member | None = None) -> Expr:
    """Check a call without a window that reads past events: `exists(transaction)`, `first_seen(device_id)`."""
    if not node.arguments:
        checker.refuse("CEP307", f"`{node.name}` takes an argument", node.span)
    extra = node.arguments[1:]
    whole = syntax.HistorySyntax(node.name, node.name_span, node.arguments[0], None, (), None, extra, node.span)
    return history(checker, whole, scope, field)


def _check_place(checker: Checker, node: syntax.HistorySyntax, scope: Scope) -> None:
    """Refuse a history without an event under test, or in another history or an aggregate."""
    message, help_line = "", ""
    if scope.aggregate is not None:
        message = f"`{node.name}` over past events cannot stand inside `{scope.aggregate.fn}`"
    elif scope.past:
        message = "a history cannot stand inside another one"
    elif scope.fields is None:
        message = "there is no event under test here, so there is no past to look at"
        help_line = "put it into the condition of a variable"
    if message:
        checker.refuse("CEP317", message, node.span, help_line, scope.labels())


def _window(checker: Checker, node: syntax.HistoryWindowSyntax, scope: Scope) -> HistoryWindow:
    """Check how far back a history looks: a duration, a calendar unit such as `day`, or a parameter."""
    bound = node.bound
    zone = "UTC" if node.zone is None else str(node.zone.value)
    if node.zone is not None and constant_problem("date", zone) is not None:
        checker.refuse("CEP316", f"`{zone[:60]}` is not a time zone", node.zone.span, 'like "Europe/Paris"')
    if isinstance(bound, syntax.DurationLiteral):
        if bound.ms < 1:
            checker.refuse("CEP402", "a window must be longer than 0", bound.span)
        return HistoryWindow(bound.ms, None, zone, node.previous)
    if isinstance(bound, syntax.Literal):
        message, help_line = "how far back needs a unit of time", f"write `over {bound.value} min`"
        checker.refuse("CEP104", message, bound.span, help_line)
    param = scope.params.get(bound.name)
    if param is not None and param.kind is Kind.DURATION:
        return HistoryWindow(Param(bound.name, param), None, zone, node.previous)
    if bound.name in UNITS and param is None:
        return HistoryWindow(None, UNITS[bound.name], zone, node.previous)
    names = [*UNITS, *(name for name, kind in scope.params.items() if kind.kind is Kind.DURATION)]
    message = f"`{bound.name}` is neither a unit of the calendar nor a parameter of type duration"
    checker.collector.unknown("CEP318", message, bound.name, bound.span, names, labels=scope.labels())
    raise Refused


def _check_panes(checker: Checker, node: syntax.HistorySyntax, window: HistoryWindow | None, scope: Scope) -> None:
    """Refuse an approximate function without panes, which need a window of fixed length and no sub-key."""
    if node.name.startswith(APPROXIMATE) and (node.by or window is None or window.calendar is not None):
        exact = node.name.removeprefix(APPROXIMATE)
        clause = f"by `{node.by[0].name}`" if node.by else "over a unit of the calendar"
        help_line = f"write `{exact}`, which is exact, or a length of time like `over 90 d` without `by`"
        checker.refuse("CEP319", f"`{node.name}` cannot be {clause}", node.span, help_line, scope.labels())


def _argument(
    checker: Checker, node: syntax.HistorySyntax, fn: HistoryFn, scope: Scope, field: syntax.Member | None
) -> tuple[EventType, Expr | None]:
    """Check the argument of a history, as in `sum(payment.amount over 1 h)`. Return its event type and its value."""
    argument = node.argument
    if isinstance(argument, syntax.NameRef):
        event_type = _event_type(checker, argument, scope)
        _check_key(checker, argument, event_type, scope)
        if fn in _OF_ONE_EVENT and field is not None:
            return event_type, _field_of(checker, event_type, field, scope)
        if fn in _WITHOUT_FIELD:
            return event_type, None
        message, help_line = f"`{fn}` needs a field", f"write `{fn}({argument.name}.field over 1 h)`"
        if fn in _OF_ONE_EVENT:
            help_line = f"write `{fn}({argument.name}).field`"
        checker.refuse("CEP317", message, argument.span, help_line, scope.labels())
    if fn in (*_OF_ONE_EVENT, "exists"):
        message = f"`{fn}` takes an event type"
        checker.refuse("CEP317", message, argument.span, f"write `{fn}(transaction …)`", scope.labels())
    # Check `transaction.amount` as in an aggregate over a variable: here each event type stands for a variable.
    holder = AggregateArgument(fn)  # the check below writes the name of the event type into `holder.variable`
    variables = {n: VariableInScope(e, Bound.ALWAYS, argument.span) for n, e in scope.events.items()}
    value = checker.check(argument, replace(scope, aggregate=holder, variables=variables, past=True))
    if holder.variable is None:
        message = f"`{fn}` over past events needs their event type"
        checker.refuse("CEP317", message, argument.span, f"write `{fn}(transaction.field over …)`")
    event_type = scope.events[holder.variable]
    _check_key(checker, argument, event_type, scope)
    return event_type, value


def _event_type(checker: Checker, node: syntax.NameRef, scope: Scope) -> EventType:
    event_type = scope.events.get(node.name)
    if event_type is not None:
        return event_type
    owner = next((n for n, e in scope.events.items() if e.field(node.name)), None)
    message, labels = f"`{node.name}` is not an event type", scope.labels()
    if owner is not None:
        fix = Fix(node.span, f"{owner}.{node.name}")
        checker.refuse("CEP202", message, node.span, f"write `{fix.replacement}`", labels, fix)
    checker.collector.unknown("CEP202", message, node.name, node.span, scope.events, labels=labels)
    raise Refused


def _check_key(checker: Checker, node: syntax.ExprSyntax, event_type: EventType, scope: Scope) -> None:
    missing = [name for name in scope.key if event_type.field(name) is None]
    if missing:
        message = f"events of `{event_type.name}` have no `{missing[0]}`, so they belong to no key of this pattern"
        checker.refuse("CEP417", message, node.span, "", scope.labels())


def _field_of(checker: Checker, event_type: EventType, field: syntax.Member, scope: Scope) -> Expr:
    declared = event_type.field(field.field)
    if declared is not None:
        return CurrentField(declared.name, declared.type)
    if event_type.name not in scope.definitions.unreadable:
        names = [f.name for f in event_type.fields]
        message = f"`{event_type.name}` has no field `{field.field}`"
        checker.collector.unknown("CEP203", message, field.field, field.field_span, names, "its fields", scope.labels())
    raise Refused


def _first_seen(checker: Checker, node: syntax.HistorySyntax, scope: Scope) -> Expr:
    """Check `first_seen`: how long ago the key first had the value that this field has now."""
    argument, fields = scope.follow(node.argument)[0], scope.fields or {}
    has_more = node.window is not None or node.by or node.where is not None or node.extra
    if not isinstance(argument, syntax.NameRef) or argument.name not in fields or has_more:
        message = "`first_seen` takes a field of the event under test and nothing else"
        checker.refuse("CEP317", message, argument.span, "write `first_seen(device_id) < 1 d`", scope.labels())
    kind = DURATION.as_nullable(fields[argument.name].nullable)
    return History("first_seen", "", None, None, (argument.name,), None, None, kind)


def _check_sub_key(checker: Checker, node: syntax.HistorySyntax, event_type: EventType, scope: Scope) -> None:
    """Refuse a field after `by` that the past events or the event under test do not have."""
    for name in node.by:
        for fields, owner in (  # their values are compared, so both events need the field
            ({f.name for f in event_type.fields}, f"`{event_type.name}`"),
            (scope.fields or (), scope.fields_owner),
        ):
            if name.name in fields:
                continue
            if not scope.lacks_fields() and event_type.name not in scope.definitions.unreadable:
                message = f"`{name.name}` is not a field of {owner}"
                checker.collector.unknown("CEP203", message, name.name, name.span, fields, labels=scope.labels())
            raise Refused  # if some fields could not be read, that is reported already


def _percent(checker: Checker, node: syntax.HistorySyntax, fn: HistoryFn, scope: Scope) -> Const | Param | None:
    """Return the checked percentage of a percentile. Return None for other functions, which take one argument."""
    count = 1 if fn in _OF_PERCENT else 0  # arguments after the first
    if len(node.extra) != count:
        more = f"the field and a number, `{fn}(t.amount over 30 d, 95)`" if count else "one argument"
        names = [extra.name for extra in node.extra if isinstance(extra, syntax.NameRef)]
        help_line = ""
        if len(node.by) == 1 and names:  # `by a, b` is read as `by a` and a further argument b
            help_line = f"for a sub-key of several fields write `by ({', '.join((node.by[0].name, *names))})`"
        checker.collector.add("CEP307", f"`{fn}` takes {more}", node.span, help_line, scope.labels())
        if count:
            raise Refused
    if not count:
        return None
    value, place = checker.check(node.extra[0], scope), node.extra[0].span
    if not isinstance(value, Const | Param) or value.type.kind is not Kind.INT:
        checker.refuse("CEP317", "the percentage is a whole number", place, "", scope.labels())
    if isinstance(value, Const) and isinstance(value.value, int) and not 0 < value.value <= 100:
        checker.refuse("CEP317", "the percentage is from 1 to 100", place, "", scope.labels())
    return value


def _result(checker: Checker, node: syntax.HistorySyntax, fn: HistoryFn, argument: Expr | None, scope: Scope) -> Type:
    """Return the type of a history's value. Refuse an argument that the function does not accept."""
    if fn in _COUNTS:
        return INT
    if fn == "exists":
        return BOOL
    assert argument is not None, "the others have a field"
    kind = argument.type
    if fn in _OF_ONE_EVENT:
        return kind.as_nullable()
    is_extreme = fn in ("min", "max")
    if not (is_ordered(kind) if is_extreme else kind.is_number):
        noun = "an ordered value" if is_extreme else "a number"
        checker.refuse("CEP301", f"`{fn}` needs {noun}, this is {kind}", node.argument.span, labels=scope.labels())
    if is_extreme:
        return kind.as_nullable()
    return kind.as_nullable(nullable=False) if fn == "sum" else FLOAT.as_nullable()
