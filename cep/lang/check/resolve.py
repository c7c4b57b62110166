"""Declarations of all files to names: the event types, lists, definitions and patterns, each name once.

Tested by: tests/lang/test_check.py
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Protocol, TypeVar

from cep.base.schema import TIME_FIELD, EventType, Field, Kind, Schema, Type
from cep.lang import syntax
from cep.lang.check.scope import Definitions
from cep.lang.check.types import resolve_field_type, resolve_list_type, same
from cep.lang.diagnostics import Collector, Label, Span, did_you_mean
from cep.lang.functions import FUNCTIONS

ListValue = int | float | str | bool | Decimal
_ORDER_KINDS = (Kind.INT, Kind.DECIMAL, Kind.DURATION, Kind.TIME)


@dataclass(slots=True)
class Resolved:
    """The declarations of a file set, by name.

    `events` has all event types. The declarations of the `faulty` types have mistakes, so the schema leaves them out.
    Some fields of the `unreadable` types could not be read, so a field that seems to be missing is not reported.
    """

    events: dict[str, EventType] = field(default_factory=dict)
    event_spans: dict[str, Span] = field(default_factory=dict)
    faulty: set[str] = field(default_factory=set)
    unreadable: set[str] = field(default_factory=set)
    lists: dict[str, syntax.ListSyntax] = field(default_factory=dict)
    defines: dict[str, syntax.DefineSyntax] = field(default_factory=dict)
    patterns: dict[str, syntax.PatternSyntax] = field(default_factory=dict)
    tests: list[syntax.PatternTestSyntax] = field(default_factory=list)

    @property
    def schema(self) -> Schema:
        derived = {p.produces.name for p in self.patterns.values() if p.produces is not None}
        sound = (e for name, e in self.events.items() if name not in self.faulty)
        return Schema(tuple(replace(e, derived=e.name in derived) for e in sound))

    @property
    def definitions(self) -> Definitions:
        return Definitions(self.lists, self.defines, self.list_types(), self.unreadable)

    def list_values(self) -> dict[str, tuple[ListValue, ...]]:
        """Return the constants of each list that cannot change: durations in milliseconds, enum symbols by name."""
        constant = {name: declared for name, declared in self.lists.items() if declared.of is None}
        return {name: tuple(list_value(item) for item in declared.items) for name, declared in constant.items()}

    def list_types(self) -> dict[str, Type]:
        """Return the type of each list that may change. Leave out those with a mistake in it."""
        ignored = Collector()
        types = {n: resolve_list_type(d.of, ignored) for n, d in self.lists.items() if d.of is not None}
        return {name: type_ for name, type_ in types.items() if type_ is not None}


class _Named(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def span(self) -> Span: ...


_T = TypeVar("_T", bound=_Named)


def resolve(files: Iterable[syntax.FileSyntax], collector: Collector) -> Resolved:
    """Collect the declarations of all files."""
    resolved = Resolved()
    events: dict[str, syntax.EventSyntax] = {}
    for file in files:
        for declaration in file.declarations:
            if isinstance(declaration, syntax.EventSyntax):
                once(events, declaration, "event type", collector)
            elif isinstance(declaration, syntax.ListSyntax) and once(resolved.lists, declaration, "list", collector):
                _check_list(declaration, collector)
            elif isinstance(declaration, syntax.DefineSyntax):
                _define(resolved, declaration, collector)
            elif isinstance(declaration, syntax.PatternSyntax):
                once(resolved.patterns, declaration, "pattern", collector)
            elif isinstance(declaration, syntax.PatternTestSyntax):
                resolved.tests.append(declaration)
    first_types: dict[str, tuple[Type, Span]] = {}  # by field name: the type and place of its first declaration
    for event in events.values():
        _event(resolved, event, first_types, collector)
    return resolved


def duplicate(noun: str, name: str, span: Span, first: Span, collector: Collector) -> None:
    """Report a name that was given before, with both places."""
    message = f"the {noun} `{name}` is declared twice"
    collector.add("CEP207", message, span, "rename one of the two", (Label(first, "first declared here"),))


def once(names: dict[str, _T], declaration: _T, noun: str, collector: Collector) -> bool:
    """Add a declaration to the names. Return False after a report that its name was given before."""
    before = names.get(declaration.name)
    if before is not None:
        duplicate(noun, declaration.name, declaration.span, before.span, collector)
        return False
    names[declaration.name] = declaration
    return True


def _define(resolved: Resolved, define: syntax.DefineSyntax, collector: Collector) -> None:
    if define.name in FUNCTIONS:
        message = f"`{define.name}` is a function of the language"
        collector.add("CEP207", message, define.span, "choose another name")
    elif once(resolved.defines, define, "definition", collector):
        param_names: dict[str, syntax.NameRef] = {}
        for param in define.params:
            once(param_names, param, "parameter", collector)


def _event(
    resolved: Resolved, event: syntax.EventSyntax, first_types: dict[str, tuple[Type, Span]], collector: Collector
) -> None:
    """Check the declaration of an event type and add it to `resolved`, even if it is faulty: patterns refer to it."""
    errors = collector.error_count
    field_names: dict[str, syntax.FieldSyntax] = {}
    fields: list[Field] = []
    complete = not event.broken  # could every field be read?
    for declared in event.fields:
        value_type = resolve_field_type(declared.type, collector)
        if value_type is not None and value_type.scale < 0:  # `decimal` without digits
            help_line = "write `decimal(2)` for two digits after the point"
            collector.add("CEP212", "a decimal field needs its number of decimals", declared.type.span, help_line)
            value_type = None
        complete = complete and value_type is not None
        if once(field_names, declared, "field", collector) and value_type is not None:
            fields.append(Field(declared.name, value_type))
            _report_clash(declared, value_type, first_types, collector)  # a name has one type in all event types
    if complete:
        _identity(event, fields, collector)
        _order(event, fields, collector)
    else:
        resolved.unreadable.add(event.name)  # so that patterns may name fields that are not known
    resolved.events[event.name] = EventType(
        event.name,
        tuple(fields),
        None if event.retain is None else event.retain.ms,
        order_field="" if event.order is None else event.order.name,
    )
    resolved.event_spans[event.name] = event.span
    if collector.error_count > errors or event.broken:
        resolved.faulty.add(event.name)


def _report_clash(
    declared: syntax.FieldSyntax, value_type: Type, first_types: dict[str, tuple[Type, Span]], collector: Collector
) -> None:
    earlier, span = first_types.setdefault(declared.name, (value_type, declared.span))
    if (earlier.kind, earlier.protected) == (value_type.kind, value_type.protected) and same(earlier, value_type):
        return
    plain = value_type.as_nullable(nullable=False)
    other = earlier.as_nullable(nullable=False)
    message = f"the field `{declared.name}` is {plain} here and {other} in another event type"
    help_line = "a field name has one type everywhere; rename one of the two"
    collector.add("CEP215", message, declared.span, help_line, (Label(span, "the other type"),))


def _identity(event: syntax.EventSyntax, fields: list[Field], collector: Collector) -> None:
    """Check that an event type has one id field and a time field `event_time`, neither of them nullable."""
    spans = {declared.name: declared.span for declared in reversed(event.fields)}
    ids = [f for f in fields if f.type.kind is Kind.ID]
    if not ids:
        message = f"the event type `{event.name}` has no field of type id"
        collector.add("CEP213", message, event.span, "add `tx_id id`")
    for extra in ids[1:]:
        message = f"the event type `{event.name}` has two fields of type id"
        collector.add("CEP213", message, spans[extra.name], "make this one of type string")
    time = next((f for f in fields if f.name == TIME_FIELD), None)
    if time is None:
        other = next((f for f in fields if f.type.kind is Kind.TIME), None)
        if other is None:
            message = f"the event type `{event.name}` has no field of type time"
            collector.add("CEP213", message, event.span, f"add `{TIME_FIELD} time`")
        else:
            message = f"the time of an event is called `{TIME_FIELD}`"
            help_line = f"rename this field, or add `{TIME_FIELD} time`"
            collector.add("CEP213", message, spans[other.name], help_line)
    elif time.type.kind is not Kind.TIME:
        message = f"`{TIME_FIELD}` is the time of the event, and not of type {time.type}"
        collector.add("CEP213", message, spans[TIME_FIELD], f"write `{TIME_FIELD} time`, or rename this field")
    for identity in (*ids[:1], *([] if time is None else [time])):
        if identity.type.nullable:
            message = f"the {identity.type.kind.value} of an event cannot be null"
            collector.add("CEP213", message, spans[identity.name], "leave out the `?`")


def _order(event: syntax.EventSyntax, fields: list[Field], collector: Collector) -> None:
    """Check that the field which orders events of one time is there and has whole numbers or units."""
    if event.order is None:
        return
    named = next((f for f in fields if f.name == event.order.name), None)
    if named is None:
        message = f"the event type `{event.name}` has no field `{event.order.name}`"
        collector.add("CEP217", message, event.order.span, did_you_mean(event.order.name, [f.name for f in fields]))
    elif named.type.kind not in _ORDER_KINDS or named.name == TIME_FIELD:
        message = f"`{named.name}` is of type {named.type}: it cannot order events of one time"
        collector.add("CEP217", message, event.order.span, "name a field of type int, decimal(n), duration or time")


def _list_kind(item: syntax.ExprSyntax) -> str | None:
    """Return the kind of an item of a list, None if it is not a constant."""
    if isinstance(item, syntax.UnarySyntax) and item.op == "-" and isinstance(item.argument, syntax.Literal):
        return "number" if _list_kind(item.argument) == "number" else None
    if isinstance(item, syntax.DurationLiteral):
        return "duration"
    if isinstance(item, syntax.NameRef):
        return "symbol"
    if not isinstance(item, syntax.Literal) or item.value is None or isinstance(item.value, bool):
        return None
    return "text" if isinstance(item.value, str) else "number"


def _check_list(declared: syntax.ListSyntax, collector: Collector) -> None:
    if declared.of is not None:
        resolve_list_type(declared.of, collector)
    kinds = [_list_kind(item) for item in declared.items]
    for item, kind in zip(declared.items, kinds, strict=True):
        if kind is None:
            collector.add("CEP313", "a list holds numbers, texts, durations or symbols", item.span)
        elif declared.of is None and {kind, kinds[0]} == {"symbol", "text"}:
            continue  # a symbol that is not a word stands in quotes: a condition with the list checks which it is
        elif kind != kinds[0] and kinds[0] is not None:
            labels = (Label(declared.items[0].span, f"the first item is a {kinds[0]}"),)
            collector.add("CEP313", f"this item is a {kind}, the others are not", item.span, labels=labels)


def list_value(item: syntax.ExprSyntax) -> ListValue:
    """Return the constant that is written as an item of a list."""
    if isinstance(item, syntax.UnarySyntax):
        inner = list_value(item.argument)
        return inner if isinstance(inner, str) else -inner
    if isinstance(item, syntax.DurationLiteral):
        return item.ms
    if isinstance(item, syntax.NameRef):
        return item.name
    return item.value if isinstance(item, syntax.Literal) and item.value is not None else ""
