"""Transaction history: aggregates over the past events of the key, whether or not a match is under way.

    count(transaction over 1 h where status == declined)      avg(transaction.amount over previous 30 d)
    sum(transaction.amount over day in "Europe/Paris" by merchant_id)      last(transaction).country

Inside, `transaction.f`, and a bare field in `where`, is a field of each past event; parameters are in sight, the
variables of the pattern are not.
Tested by: tests/lang/test_functions.py
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from cep.base.schema import EventType, Kind, Type
from cep.lang import syntax
from cep.lang.check.operators import condition
from cep.lang.check.scope import AggregateArgument, Bound, Checker, Scope, VariableInScope
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


def is_event_type(node: object, scope: Scope) -> bool:
    """Return True for an event type, or a field of one. Variables go before."""
    if isinstance(node, syntax.Member):
        node = node.owner
    return isinstance(node, syntax.NameRef) and node.name in scope.events and node.name not in scope.variables


def history(
    checker: Checker, node: syntax.HistorySyntax, scope: Scope, field: syntax.Member | None = None
) -> Expr | None:
    """Check a history. Return None after a report. `field` is the field of `last(…).field` or `first(…).field`.

    In `emit` it looks back from the last event of the match.
    """
    if scope.fields is None and scope.last is not None:
        scope = replace(scope, fields=scope.last, fields_of="the last event of a match")
    if not _stands_well(checker, node, scope):
        return None
    fn = FUNCTIONS.get(node.name)
    if fn is None:
        message = f"`{node.name}` is not a function of past events"
        checker.collector.unknown("CEP317", message, node.name, node.name_span, FUNCTIONS, "functions", scope.labels())
        return None
    if fn == "first_seen":
        return _first_seen(checker, node, scope)
    if node.window is None and fn not in _WITHOUT_WINDOW:
        message = f"`{fn}` over past events needs a window"
        checker.collector.add("CEP318", message, node.span, "write `over 1 h` behind the field", scope.labels())
        return None
    window = None if node.window is None else _window(checker, node.window, scope)
    if node.window is not None and window is None:
        return None
    if not _has_panes(checker, node, window, scope):
        return None
    argument_parts = _argument(checker, node, fn, scope, field)
    if argument_parts is None:
        return None
    event_type, argument = argument_parts
    inside = _inside(scope, event_type)
    where = None if node.where is None else condition(checker, node.where, inside, "what follows `where`")
    if node.where is not None and where is None:
        return None
    if not _sub_key(checker, node, event_type, scope):
        return None
    percent = _percent(checker, node, fn, scope)
    if percent is None and fn in _OF_PERCENT:
        return None
    result = _result(checker, node, fn, argument, scope)
    if result is None:
        return None
    by = tuple(name.name for name in node.by)
    return History(fn, event_type.name, argument, where, by, window, percent, result)


def of_call(checker: Checker, node: syntax.CallSyntax, scope: Scope, field: syntax.Member | None = None) -> Expr | None:
    """Check a call without a window that reads past events: `exists(transaction)`, `first_seen(device_id)`."""
    if not node.arguments:
        checker.collector.add("CEP307", f"`{node.name}` takes an argument", node.span)
        return None
    extra = node.arguments[1:]
    whole = syntax.HistorySyntax(node.name, node.name_span, node.arguments[0], None, (), None, extra, node.span)
    return history(checker, whole, scope, field)


def _stands_well(checker: Checker, node: syntax.HistorySyntax, scope: Scope) -> bool:
    """Return True if a history may stand here: beside an event under test, and not in another history or aggregate."""
    message, help_line = "", ""
    if scope.aggregate is not None:
        message = f"`{node.name}` over past events cannot stand inside `{scope.aggregate.fn}`"
    elif scope.past:
        message = "a history cannot stand inside another one"
    elif scope.fields is None:
        message = "there is no event under test here, so there is no past to look at"
        help_line = "put it into the condition of a variable"
    if message:
        checker.collector.add("CEP317", message, node.span, help_line, scope.labels())
    return not message


def _window(checker: Checker, node: syntax.HistoryWindowSyntax, scope: Scope) -> HistoryWindow | None:
    """Check how far back a history looks: a duration, a calendar unit or a parameter. Return None after a report."""
    bound = node.bound
    zone = "UTC" if node.zone is None else str(node.zone.value)
    if node.zone is not None and constant_problem("date", zone) is not None:
        checker.collector.add("CEP316", f"`{zone[:60]}` is not a time zone", node.zone.span, 'like "Europe/Paris"')
        return None
    if isinstance(bound, syntax.DurationLiteral):
        if bound.ms < 1:
            checker.collector.add("CEP402", "a window must be longer than 0", bound.span)
            return None
        return HistoryWindow(bound.ms, None, zone, node.previous)
    if isinstance(bound, syntax.Literal):
        message, help_line = "how far back needs a unit of time", f"write `over {bound.value} min`"
        checker.collector.add("CEP104", message, bound.span, help_line)
        return None
    param = scope.params.get(bound.name)
    if param is not None and param.kind is Kind.DURATION:
        return HistoryWindow(Param(bound.name, param), None, zone, node.previous)
    if bound.name in UNITS and param is None:
        return HistoryWindow(None, UNITS[bound.name], zone, node.previous)
    names = [*UNITS, *(name for name, kind in scope.params.items() if kind.kind is Kind.DURATION)]
    message = f"`{bound.name}` is neither a unit of the calendar nor a parameter of type duration"
    checker.collector.unknown("CEP318", message, bound.name, bound.span, names, labels=scope.labels())
    return None


def _has_panes(checker: Checker, node: syntax.HistorySyntax, window: HistoryWindow | None, scope: Scope) -> bool:
    """Return False after a report of an approximate function without panes: they need a fixed window and no sub-key."""
    if not node.name.startswith(APPROXIMATE) or (not node.by and window is not None and window.calendar is None):
        return True
    exact = node.name.removeprefix(APPROXIMATE)
    clause = f"by `{node.by[0].name}`" if node.by else "over a unit of the calendar"
    help_line = f"write `{exact}`, which is exact, or a length of time like `over 90 d` without `by`"
    checker.collector.add("CEP319", f"`{node.name}` cannot be {clause}", node.span, help_line, scope.labels())
    return False


def _argument(
    checker: Checker, node: syntax.HistorySyntax, fn: HistoryFn, scope: Scope, field: syntax.Member | None
) -> tuple[EventType, Expr | None] | None:
    """Return the type of the past events of a history and the value of each event; None after a report."""
    argument = node.argument
    if isinstance(argument, syntax.NameRef):
        event_type = _event_type(checker, argument, scope)
        if event_type is None or not _has_key(checker, argument, event_type, scope):
            return None
        if fn in _OF_ONE_EVENT and field is not None:
            return _field_of(checker, event_type, field, scope)
        if fn in _WITHOUT_FIELD:
            return event_type, None
        message, help_line = f"`{fn}` needs a field", f"write `{fn}({argument.name}.field over 1 h)`"
        if fn in _OF_ONE_EVENT:
            help_line = f"write `{fn}({argument.name}).field`"
        checker.collector.add("CEP317", message, argument.span, help_line, scope.labels())
        return None
    if fn in (*_OF_ONE_EVENT, "exists"):
        message = f"`{fn}` takes an event type"
        checker.collector.add("CEP317", message, argument.span, f"write `{fn}(transaction …)`", scope.labels())
        return None
    # `transaction.amount` is a field of the "variable" transaction, as in an aggregate over bound events.
    holder = AggregateArgument(fn)
    variables = {n: VariableInScope(e, Bound.ALWAYS, argument.span) for n, e in scope.events.items()}
    value = checker.check(argument, replace(scope, aggregate=holder, variables=variables))
    if value is None:
        return None
    if holder.variable is None:
        message = f"`{fn}` over past events needs their event type"
        checker.collector.add("CEP317", message, argument.span, f"write `{fn}(transaction.field over …)`")
        return None
    event_type = scope.events[holder.variable]
    return (event_type, value) if _has_key(checker, argument, event_type, scope) else None


def _event_type(checker: Checker, node: syntax.NameRef, scope: Scope) -> EventType | None:
    event_type = scope.events.get(node.name)
    if event_type is None:
        owner = next((n for n, e in scope.events.items() if e.field(node.name)), None)
        message, labels = f"`{node.name}` is not an event type", scope.labels()
        if owner is None:
            checker.collector.unknown("CEP202", message, node.name, node.span, scope.events, labels=labels)
        else:
            fix = Fix(node.span, f"{owner}.{node.name}")
            checker.collector.add("CEP202", message, node.span, f"write `{fix.replacement}`", labels, fix)
    return event_type


def _has_key(checker: Checker, node: object, event_type: EventType, scope: Scope) -> bool:
    missing = [name for name in scope.key if event_type.field(name) is None]
    if missing:
        message = f"events of `{event_type.name}` have no `{missing[0]}`, so they belong to no key of this pattern"
        checker.collector.add("CEP417", message, getattr(node, "span", None), "", scope.labels())
    return not missing


def _field_of(
    checker: Checker, event_type: EventType, field: syntax.Member, scope: Scope
) -> tuple[EventType, Expr | None] | None:
    """Return the event type and the field that a history of one event reads, None after a report."""
    declared = event_type.field(field.field)
    if declared is None and event_type.name in scope.definitions.partial:
        return None
    if declared is None:
        names = [f.name for f in event_type.fields]
        message = f"`{event_type.name}` has no field `{field.field}`"
        checker.collector.unknown("CEP203", message, field.field, field.field_span, names, "its fields", scope.labels())
        return None
    return event_type, CurrentField(declared.name, declared.type)


def _first_seen(checker: Checker, node: syntax.HistorySyntax, scope: Scope) -> Expr | None:
    """Check `first_seen`: how long ago the key first had the value that this field has now."""
    argument = node.argument
    is_field = isinstance(argument, syntax.NameRef) and scope.fields is not None and argument.name in scope.fields
    if not is_field or node.window is not None or node.by or node.where is not None or node.extra:
        message = "`first_seen` takes a field of the event under test and nothing else"
        checker.collector.add("CEP317", message, argument.span, "write `first_seen(device_id) < 1 d`", scope.labels())
        return None
    assert isinstance(argument, syntax.NameRef)
    assert scope.fields is not None
    kind = DURATION.as_nullable(scope.fields[argument.name].nullable)
    return History("first_seen", "", None, None, (argument.name,), None, None, kind)


def _inside(scope: Scope, event_type: EventType) -> Scope:
    fields = {f.name: f.type for f in event_type.fields}
    return replace(scope, fields=fields, fields_of=f"`{event_type.name}`", variables={}, past=True)


def _sub_key(checker: Checker, node: syntax.HistorySyntax, event_type: EventType, scope: Scope) -> bool:
    """Return True if all fields after `by` exist in the past events and in the event under test; report the others."""
    for name in node.by:
        for fields, owner in (
            ({f.name for f in event_type.fields}, f"`{event_type.name}`"),
            (scope.fields or (), scope.fields_of),
        ):
            if name.name not in fields and (scope.lacks_fields() or event_type.name in scope.definitions.partial):
                return False
            if name.name not in fields:
                message = f"`{name.name}` is not a field of {owner}"
                checker.collector.unknown("CEP203", message, name.name, name.span, fields, labels=scope.labels())
                return False
    return True


def _percent(checker: Checker, node: syntax.HistorySyntax, fn: HistoryFn, scope: Scope) -> Const | Param | None:
    """Check the percentage of a percentile; other functions take one argument. Return None after a report."""
    count = 1 if fn in _OF_PERCENT else 0
    if len(node.extra) != count:
        more = f"the field and a number, `{fn}(t.amount over 30 d, 95)`" if count else "one argument"
        names = [extra.name for extra in node.extra if isinstance(extra, syntax.NameRef)]
        help_line = ""
        if len(node.by) == 1 and names:
            help_line = f"for a sub-key of several fields write `by ({', '.join((node.by[0].name, *names))})`"
        checker.collector.add("CEP307", f"`{fn}` takes {more}", node.span, help_line, scope.labels())
        return None
    if not count:
        return None
    value = checker.check(node.extra[0], scope)
    if value is None:
        return None
    if not isinstance(value, Const | Param) or value.type.kind is not Kind.INT:
        checker.collector.add("CEP317", "the percentage is a whole number", node.extra[0].span, "", scope.labels())
        return None
    if isinstance(value, Const) and isinstance(value.value, int) and not 0 < value.value <= 100:
        checker.collector.add("CEP317", "the percentage is from 1 to 100", node.extra[0].span, "", scope.labels())
        return None
    return value


def _result(
    checker: Checker, node: syntax.HistorySyntax, fn: HistoryFn, argument: Expr | None, scope: Scope
) -> Type | None:
    """Return the type of a history's value, None after a report of an argument that the function does not accept."""
    if fn in _COUNTS:
        return INT
    if fn == "exists":
        return BOOL
    assert argument is not None, "the others have a field"
    kind = argument.type
    if fn in _OF_ONE_EVENT:
        return kind.as_nullable()
    fits = is_ordered(kind) if fn in ("min", "max") else kind.is_number
    if not fits:
        noun = "an ordered value" if fn in ("min", "max") else "a number"
        checker.collector.add(
            "CEP301", f"`{fn}` needs {noun}, this is {kind}", node.argument.span, labels=scope.labels()
        )
        return None
    if fn in ("min", "max"):
        return kind.as_nullable()
    return kind.as_nullable(nullable=False) if fn == "sum" else FLOAT.as_nullable()
