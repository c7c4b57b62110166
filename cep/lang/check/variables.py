"""The variables of a pattern: each stands in one place, has one event type, and its events have the key.

Tested by: tests/lang/test_check.py, tests/lang/golden/diagnostics/
"""

from __future__ import annotations

from cep.base.limits import VARIABLES_MAX
from cep.base.schema import NO_KEY_KINDS, EventType
from cep.lang.check.draft import Draft
from cep.lang.check.order import order_of
from cep.lang.check.resolve import duplicate
from cep.lang.diagnostics import Fix, Label, Span
from cep.lang.syntax import WhereSyntax


def check_places(draft: Draft) -> None:
    """Collect the variables of the structure, and for each the variables that are bound before it."""
    structure = draft.pattern.structure
    assert structure is not None, "the runner of the passes looks first"
    draft.order = order_of(structure)
    span_by_name: dict[str, Span] = {}
    for variable, _ in draft.order.places:
        if variable.name in span_by_name:
            message = f"the variable `{variable.name}` stands twice in the structure"
            help_line = "give each place its own name, or repeat it: `a{2}`"
            labels = (Label(span_by_name[variable.name], "first here"),)
            draft.collector.add("CEP406", message, variable.span, help_line, labels)
        span_by_name.setdefault(variable.name, variable.span)
    if len(span_by_name) > VARIABLES_MAX:
        message = f"this pattern has {len(span_by_name)} variables, more than {VARIABLES_MAX}"
        draft.collector.add("CEP415", message, draft.pattern.span)


def check_event_types(draft: Draft) -> None:
    """Find the event type of each variable, and the stream of the pattern."""
    names = [v.name for v in draft.variables]
    for where in draft.pattern.wheres:
        name = where.variable
        if name in draft.wheres:
            duplicate("condition of", name, where.span, draft.wheres[name].span, draft.collector)
        elif name not in names:
            message = f"`{name}` does not stand in `seq`"
            draft.collector.unknown("CEP204", message, name, where.span, names, "variables")
        else:
            draft.wheres[name] = where
            event_type = _event_type(draft, where)
            if event_type is not None:
                draft.event_types[name] = event_type
    _set_default_types(draft)
    draft.stream = _stream(draft)


def _event_type(draft: Draft, where: WhereSyntax) -> EventType | None:
    """Return the event type of a variable, None after a report."""
    name, events = where.event_type.name, draft.resolved.events
    event_type = events.get(name)
    if event_type is None:
        owner = next((e for e in events.values() if e.field(name)), None)
        message, span = f"`{name}` is not an event type", where.event_type.span
        if owner is None:
            draft.collector.unknown("CEP202", message, name, span, events, "event types")
        else:
            help_line = f"the event type comes first: `{where.variable}: {owner.name} {name} …`"
            draft.collector.add("CEP202", message, span, help_line, fix=Fix(span, f"{owner.name}  {name}"))
    return event_type


def _set_default_types(draft: Draft) -> None:
    """Give variables without an entry in `where` the only event type there is."""
    events = list(draft.resolved.events.values())
    for variable in draft.variables:
        if variable.name in draft.wheres:
            continue
        if len(events) == 1:
            draft.event_types[variable.name] = events[0]
        elif not draft.pattern.broken:
            example = events[0].name if events else "transaction"
            message = f"the variable `{variable.name}` has no event type"
            help_line = f"add `{variable.name}: {example}` to `where`"
            draft.collector.add("CEP216", message, variable.span, help_line)


def _stream(draft: Draft) -> list[EventType]:
    key = [k.name for k in draft.pattern.key]
    events = draft.resolved.events.values()
    names = {e.name for e in draft.event_types.values()}
    if draft.pattern.over_all:
        # An event without the key fields belongs to no key, so the pattern cannot see it.
        names |= {e.name for e in events if all(e.field(k) for k in key)}
    return [e for e in events if e.name in names]


def check_key(draft: Draft) -> None:
    """Check that the key fields exist in every event type of the stream."""
    span_by_name: dict[str, Span] = {}
    for key in draft.pattern.key:
        if key.name in span_by_name:
            duplicate("key field", key.name, key.span, span_by_name[key.name], draft.collector)
        span_by_name.setdefault(key.name, key.span)
        for event_type in draft.stream:
            if event_type.name in draft.resolved.faulty:
                continue
            field = event_type.field(key.name)
            if field is None:
                names = [f.name for f in event_type.fields]
                message = f"the key field `{key.name}` is missing in the event type `{event_type.name}`"
                span = draft.resolved.event_spans[event_type.name]
                labels = (Label(span, "this event type has no such field"),)
                draft.collector.unknown("CEP417", message, key.name, key.span, names, "its fields", labels)
            elif field.type.kind in NO_KEY_KINDS:
                message = f"a key cannot be of type {field.type}"
                draft.collector.add("CEP417", message, key.span, "use an id, a text, a number or an enum")


def check_hidden_fields(draft: Draft) -> None:
    """Refuse a parameter that has the name of a field: in a condition it would hide the field."""
    for param in draft.pattern.params:
        for event_type in draft.event_types.values():
            if event_type.field(param.name) is not None:
                message = f"the parameter `{param.name}` has the name of a field of `{event_type.name}`"
                draft.collector.add("CEP508", message, param.span, "rename the parameter")
                break
