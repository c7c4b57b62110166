"""The clauses of a pattern that hold expressions: `where`, `until`, `emit`, `on timeout`, and `skip`.

Tested by: tests/lang/test_check.py, tests/lang/golden/diagnostics/
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cep.base.limits import MEASURES_MAX
from cep.base.schema import EventType, Schema, Type
from cep.lang.check.draft import Draft
from cep.lang.check.order import Before, Names, may_be_last
from cep.lang.check.resolve import duplicate
from cep.lang.check.types import as_symbol
from cep.lang.diagnostics import Span
from cep.lang.ir import Measure, Skip
from cep.lang.syntax import ChoiceSyntax, ExprSyntax, MeasureSyntax, SequenceSyntax, VariableSyntax


def check_conditions(draft: Draft) -> None:
    """Check the condition of each variable. It may use the event under test and the variables bound before."""
    for name, where in draft.wheres.items():
        event_type = draft.event_types.get(name)
        if where.condition is None or event_type is None:
            continue
        variables = draft.variables_in_scope(draft.order.at[name], under_test=name)
        scope = draft.scope(event_type.types, f"`{event_type.name}`", variables)
        subject = f"the condition of `{name}`"
        draft.conditions[name] = draft.expressions.check_condition(where.condition, scope, subject)


def check_untils(draft: Draft) -> None:
    """Check each `until`. It looks at every event of the stream, so it sees the fields of all its event types."""
    structure = draft.pattern.structure
    assert structure is not None, "the runner of the passes looks first"
    untils = list(_untils(structure))
    fields = Schema(tuple(draft.stream)).columns() if untils else {}
    for span, node in untils:
        variables = draft.variables_in_scope(draft.order.at_until[span])
        scope = draft.scope(fields, "the events of the pattern", variables)
        draft.untils[span] = draft.expressions.check_condition(node, scope, "the condition of `until`")


def _untils(body: SequenceSyntax | ChoiceSyntax) -> Iterator[tuple[Span, ExprSyntax]]:
    elements = [s.element for s in body.steps] if isinstance(body, SequenceSyntax) else body.items
    for element in elements:
        suffix = element.suffix
        if suffix.until is not None and suffix.until_span is not None:
            yield suffix.until_span, suffix.until
        if not isinstance(element, VariableSyntax):
            yield from _untils(element.body)


def check_timeout(draft: Draft) -> None:
    """Check the values of `on timeout emit`, where any variable may be unbound."""
    pattern = draft.pattern
    if pattern.timeout_measures is None:
        return
    if not draft.has_window and pattern.timeout_span is not None:
        message, help_line = "no time can run out: there is no window", "add `within 10 min` to `seq`"
        draft.collector.add("CEP419", message, pattern.timeout_span, help_line)
    every = frozenset(variable.name for variable in draft.variables) - draft.order.negated
    draft.timeout_measures = _measures(draft, pattern.timeout_measures, Before(draft.order.end.may), every)


def check_measures(draft: Draft) -> None:
    """Check the values of `emit`."""
    structure = draft.pattern.structure
    assert structure is not None, "the runner of the passes looks first"
    draft.measures = _measures(draft, draft.pattern.measures, draft.order.end, may_be_last(structure))


def _measures(draft: Draft, written: tuple[MeasureSyntax, ...], before: Before, may_end: Names) -> tuple[Measure, ...]:
    """Check the values that a pattern emits. The last event of the match is one of the variables `may_end`."""
    measures: list[Measure] = []
    spans: dict[str, Span] = {}
    last = [draft.event_types[name] for name in may_end if name in draft.event_types]
    scope = draft.scope(None, "", draft.variables_in_scope(before), _common_fields(last))
    produces = draft.pattern.produces
    produced = None if produces is None else draft.resolved.events.get(produces.name)
    for measure in written:
        if measure.name in spans:
            duplicate("value", measure.name, measure.span, spans[measure.name], draft.collector)
        spans.setdefault(measure.name, measure.span)
        field = None if produced is None else produced.types.get(measure.name)
        value = draft.expressions.check_value(measure.value, scope, field)
        if value is not None and field is not None:
            value = as_symbol(value, field)
        if value is not None:
            measures.append(Measure(measure.name, value))
    all_measures = (*draft.pattern.measures, *(draft.pattern.timeout_measures or ()))
    if written and len(all_measures) > MEASURES_MAX:
        message = f"this pattern emits {len(all_measures)} values, more than {MEASURES_MAX}"
        draft.collector.add("CEP423", message, all_measures[MEASURES_MAX].span, "emit what the alert's reader needs")
    return tuple(measures)


def _common_fields(event_types: Sequence[EventType]) -> dict[str, Type]:
    """Return the fields that all of these event types have."""
    if len(event_types) == 1:
        return dict(event_types[0].types)
    columns = Schema(tuple(event_types)).columns()
    return {name: type_ for name, type_ in columns.items() if all(e.field(name) is not None for e in event_types)}


def check_skip(draft: Draft) -> None:
    """Check that `skip to first x` and `skip to last x` name a variable that a match binds."""
    skip = draft.pattern.skip
    if skip is None:
        return
    draft.skip = Skip(skip.kind, None if skip.variable is None else skip.variable.name, skip.in_order)
    if skip.variable is None:
        return
    name, negated = skip.variable.name, draft.order.negated
    names = [v.name for v in draft.variables if v.name not in negated]
    if name not in names:
        message = f"`{name}` {'stands for an absence' if name in negated else 'does not stand in `seq`'}"
        draft.collector.unknown("CEP418", message, name, skip.variable.span, names, "variables")
