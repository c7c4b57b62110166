"""`produce`: a match becomes a derived event, which other patterns read, with keys from its own fields.

    emit     payer = first.payer, payee = last.payee, amount = last.amount
    produce  hop

The emitted values are the event's fields; its id is the id of the match, its time the detection time. Patterns that
feed each other in a circle are refused, because no order of work would be right.
Tested by: tests/lang/test_check.py
"""

from __future__ import annotations

from cep.base.limits import PRODUCE_DEPTH_MAX
from cep.base.schema import TIME_FIELD, EventType, Field, Kind
from cep.lang.check.draft import Draft
from cep.lang.check.levels import levels_of
from cep.lang.check.resolve import Resolved
from cep.lang.check.types import same
from cep.lang.diagnostics import Collector, Label
from cep.lang.ir import Measure, PatternIR
from cep.lang.syntax import NameRef


def _comes_from_match(field: Field) -> bool:
    """Return True for the id and the time of an event that a match becomes."""
    return field.type.kind is Kind.ID or field.name == TIME_FIELD


def check_produced(draft: Draft) -> None:
    """Check that the emitted values make a whole event of the type that the pattern produces."""
    pattern, measures, resolved, collector = draft.pattern, draft.measures, draft.resolved, draft.collector
    name = pattern.produces
    if name is None or len(measures) < len(pattern.measures):
        return
    event_type = resolved.events.get(name.name)
    if event_type is None:
        message = f"`{name.name}` is not an event type"
        collector.unknown("CEP202", message, name.name, name.span, resolved.events, "event types")
        return
    label = (Label(resolved.event_spans[event_type.name], "this event type"),)
    emitted = {m.name: m for m in measures}
    for field in event_type.fields:
        if field.name not in emitted and not field.type.nullable and not _comes_from_match(field):
            message = f"an event `{event_type.name}` needs a field `{field.name}`, which the pattern does not emit"
            collector.add("CEP426", message, name.span, f"add `emit {field.name} = …`, or declare it with `?`", label)
    for syntax in pattern.measures:
        _check_value(syntax.name, emitted[syntax.name], event_type, NameRef(syntax.name, syntax.span), label, collector)


def _check_value(
    name: str, measure: Measure, event_type: EventType, place: NameRef, label: tuple[Label, ...], collector: Collector
) -> None:
    """Check that an emitted value fits the field of the produced event with the same name."""
    field = event_type.field(name)
    names = [f.name for f in event_type.fields if not _comes_from_match(f)]
    if field is None:
        message = f"an event `{event_type.name}` has no field `{name}`"
        collector.unknown("CEP426", message, name, place.span, names, "its fields", label)
    elif _comes_from_match(field):
        message = f"`{name}` is the {field.type.kind.value} of the event, and comes from the match"
        collector.add("CEP426", message, place.span, "leave it out", label)
    elif not same(field.type, measure.value.type):
        message = f"`{name}` is {measure.value.type} here and {field.type} in the event `{event_type.name}`"
        collector.add("CEP426", message, place.span, "give both the same type", label)
    elif measure.value.type.nullable and not field.type.nullable:
        message = f"`{name}` may be null here, but not in the event `{event_type.name}`"
        collector.add("CEP426", message, place.span, f"declare the field as `{name} {field.type}?`", label)


def check_circles(patterns: dict[str, PatternIR], resolved: Resolved, collector: Collector) -> None:
    """Refuse patterns that feed each other in a circle, or in too long a chain; they leave `patterns`."""
    levels = levels_of({name: (p.event_types, p.produces) for name, p in patterns.items()})
    for name in [n for n, p in patterns.items() if p.produces is not None and levels[n] >= PRODUCE_DEPTH_MAX]:
        place = resolved.patterns[name].produces
        assert place is not None, "a pattern in a circle produces"
        message = f"the events of `{name}` come back to it, or the chain is longer than {PRODUCE_DEPTH_MAX} patterns"
        collector.add("CEP427", message, place.span, "remove `produce` from the last pattern of the chain")
        del patterns[name]
