"""The passes over the clauses of one pattern, and the draft that they fill on its way from syntax to IR.

`produce` makes a match an event that other patterns read: the emitted values are its fields, its id is the id of the
match, its time the detection time.
Tested by: tests/lang/test_check.py, tests/lang/golden/diagnostics/
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cep.base.limits import MEASURES_MAX, PARAMS_MAX, PRODUCE_DEPTH_MAX, VARIABLES_MAX
from cep.base.schema import NO_KEY_KINDS, TIME_FIELD, EventType, Field, Kind, Schema, Type, list_kind
from cep.lang import syntax
from cep.lang.check.expressions import ExpressionChecker
from cep.lang.check.order import Before, Names, Order, levels_of, may_be_last, order_of
from cep.lang.check.resolve import Resolved, duplicate, once
from cep.lang.check.scope import Bound, Definitions, Scope, VariableInScope
from cep.lang.check.types import (
    as_symbol,
    convert_const,
    literal_const,
    resolve_list_type,
    resolve_type,
    same,
    symbol_const,
    written_constant,
)
from cep.lang.diagnostics import Collector, Fix, Label, Span, did_you_mean
from cep.lang.ir import Expr, Measure, Param, ParamDecl, PatternIR, SequenceNode, Skip, Slot


@dataclass  # without slots, because it caches values that all passes need
class Draft:
    """A pattern that is being checked. Each pass of `load.PATTERN_PASSES` reads some fields and fills others.

    `wheres` and `event_types` are by variable. `stream` has the event types that contiguity looks at, in the order of
    the schema. `untils` has the checked conditions by the span of their `until`.
    """

    pattern: syntax.PatternSyntax
    resolved: Resolved
    collector: Collector
    expressions: ExpressionChecker
    params: tuple[ParamDecl, ...] = ()
    order: Order = field(default_factory=Order)
    wheres: dict[str, syntax.WhereSyntax] = field(default_factory=dict)
    event_types: dict[str, EventType] = field(default_factory=dict)
    stream: list[EventType] = field(default_factory=list)
    conditions: dict[str, Expr | None] = field(default_factory=dict)
    untils: dict[Span, Expr | None] = field(default_factory=dict)
    structure: SequenceNode | None = None
    within_ms: int | Param | None = None
    within_events: int | Param | None = None
    has_window: bool = False
    measures: tuple[Measure, ...] = ()
    timeout_measures: tuple[Measure, ...] | None = None
    skip: Skip = field(default_factory=Skip)

    @cached_property
    def variables(self) -> list[syntax.VariableSyntax]:
        """The first place of each variable, in written order. Known once `order` is."""
        first: dict[str, syntax.VariableSyntax] = {}
        for variable, _ in self.order.variables:
            first.setdefault(variable.name, variable)
        return list(first.values())

    @cached_property
    def definitions(self) -> Definitions:
        return self.resolved.definitions

    @cached_property
    def param_types(self) -> dict[str, Type]:
        """The types of the parameters. Known once `params` are."""
        return {param.name: param.type for param in self.params}

    def variables_in_scope(self, before: Before, under_test: str | None = None) -> dict[str, VariableInScope]:
        """Return each variable as an expression sees it. `before`: which of them may or must have events by then."""
        in_scope: dict[str, VariableInScope] = {}
        negated = self.order.negated
        for variable in self.variables:
            event_type = self.event_types.get(variable.name)
            if event_type is None:
                continue  # its type is unknown, as is reported already
            bound = Bound.LATER  # no event yet
            if variable.name in negated:
                bound = Bound.NEGATED
            elif variable.name in before.surely:
                bound = Bound.ALWAYS
            elif variable.name in before.maybe or variable.name == under_test:  # if repeated, it has an earlier event
                bound = Bound.MAYBE
            in_scope[variable.name] = VariableInScope(event_type, bound, variable.span)
        return in_scope

    def scope(
        self,
        fields: Mapping[str, Type] | None,  # of the event under test; None in `emit`, which tests no event
        fields_owner: str,  # whose fields they are, for messages
        variables: Mapping[str, VariableInScope],
        last: Mapping[str, Type] | None = None,  # fields of the match's last event, from which `emit` looks back
    ) -> Scope:
        """Collect the names that an expression of the pattern may use."""
        return Scope(
            self.definitions,
            fields,
            fields_owner,
            variables,
            self.param_types,
            events=self.resolved.events,
            key=tuple(key.name for key in self.pattern.key),
            untyped=frozenset(v.name for v in self.variables) - variables.keys(),  # of unknown type: reported
            last=last,
        )


def check_conditions(draft: Draft) -> None:
    """Check the condition of each variable. It may use the event under test and the variables bound before."""
    for name, where in draft.wheres.items():
        event_type = draft.event_types.get(name)
        if where.condition is None or event_type is None:
            continue
        variables = draft.variables_in_scope(draft.order.before[name], under_test=name)
        scope = draft.scope(event_type.types, f"`{event_type.name}`", variables)
        subject = f"the condition of `{name}`"
        draft.conditions[name] = draft.expressions.check_condition(where.condition, scope, subject)


def check_untils(draft: Draft) -> None:
    """Check each `until`. It looks at every event of the stream, so it sees the fields of all its event types."""
    structure = draft.pattern.structure
    assert structure is not None, "without `seq` no pass runs"
    untils = list(_untils(structure))
    fields = Schema(tuple(draft.stream)).columns() if untils else {}
    for span, node in untils:
        variables = draft.variables_in_scope(draft.order.before_until[span])
        scope = draft.scope(fields, "the events of the pattern", variables)
        draft.untils[span] = draft.expressions.check_condition(node, scope, "the condition of `until`")


def _untils(body: syntax.SequenceSyntax | syntax.ChoiceSyntax) -> Iterator[tuple[Span, syntax.ExprSyntax]]:
    elements = [s.element for s in body.steps] if isinstance(body, syntax.SequenceSyntax) else body.items
    for element in elements:
        suffix = element.suffix
        if suffix.until is not None and suffix.until_span is not None:
            yield suffix.until_span, suffix.until
        if not isinstance(element, syntax.VariableSyntax):
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
    draft.timeout_measures = _measures(draft, pattern.timeout_measures, Before(draft.order.end.maybe), every)


def check_measures(draft: Draft) -> None:
    """Check the values of `emit`."""
    structure = draft.pattern.structure
    assert structure is not None, "without `seq` no pass runs"
    draft.measures = _measures(draft, draft.pattern.measures, draft.order.end, may_be_last(structure))


def _measures(
    draft: Draft, written: tuple[syntax.AssignSyntax, ...], before: Before, may_end: Names
) -> tuple[Measure, ...]:
    """Check the emitted values. `before`: variables with events by then; `may_end`: one of these has the last event."""
    measures: list[Measure] = []
    names: dict[str, syntax.AssignSyntax] = {}
    last = [draft.event_types[name] for name in may_end if name in draft.event_types]
    scope = draft.scope(None, "", draft.variables_in_scope(before), _common_fields(last))  # no event is tested here
    produces = draft.pattern.produces
    produced = None if produces is None else draft.resolved.events.get(produces.name)  # a match becomes this
    for measure in written:
        once(names, measure, "value", draft.collector)
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
    names = [v.name for v in draft.variables if v.name not in negated]  # a match never binds an absence
    if name not in names:
        message = f"`{name}` {'stands for an absence' if name in negated else 'does not stand in `seq`'}"
        draft.collector.unknown("CEP418", message, name, skip.variable.span, names, "variables")


_BOUNDED = (Kind.INT, Kind.DECIMAL, Kind.FLOAT, Kind.DURATION)
_ALLOWED = (*_BOUNDED, Kind.BOOL, Kind.STRING, Kind.ENUM)
_SCALE_LEAST = 2  # digits of a `decimal` parameter, unless its default or a bound has more; money has two


def check_params(draft: Draft) -> None:
    """Check the type, default and bounds of each parameter."""
    pattern, collector = draft.pattern, draft.collector
    lists = draft.definitions.list_types
    params: list[ParamDecl] = []
    names: dict[str, syntax.ParamSyntax] = {}
    if len(pattern.params) > PARAMS_MAX:
        message = f"this pattern has {len(pattern.params)} parameters, more than {PARAMS_MAX}"
        collector.add("CEP507", message, pattern.params[PARAMS_MAX].span)
    for param in pattern.params:
        value_type = _type(param, collector) if once(names, param, "parameter", collector) else None
        if value_type is not None and value_type.kind is Kind.LIST:
            params.append(_declare_list(param, value_type, lists, collector))
        elif value_type is not None:
            params.append(_declare(param, value_type, collector))
    draft.params = tuple(params)


def _type(param: syntax.ParamSyntax, collector: Collector) -> Type | None:
    """Return the type of a parameter, None after a report. `decimal` takes its digits from the default and bounds."""
    if param.type.of is not None:
        return resolve_list_type(param.type.of, collector)
    value_type = resolve_type(param.type, collector)
    if value_type is None:
        return None
    if value_type.nullable or value_type.kind not in _ALLOWED:
        message = f"a parameter cannot be of type {value_type}"
        allowed = ", ".join(kind.value for kind in _ALLOWED)
        collector.add("CEP506", message, param.type.span, f"it can be one of: {allowed}")
        return None
    if value_type.scale < 0:  # `decimal` was written without a number of digits
        scales = [_written_scale(node) for node in (param.default, param.low, param.high) if node is not None]
        return Type(value_type.kind, scale=max([_SCALE_LEAST, *scales]))
    return value_type


def _written_scale(node: syntax.ExprSyntax) -> int:
    if isinstance(node, syntax.UnarySyntax):
        return _written_scale(node.argument)
    const = literal_const(node) if isinstance(node, syntax.Literal) else None
    return const.type.scale if const is not None else 0


def _declare_list(
    param: syntax.ParamSyntax, value_type: Type, lists: Mapping[str, Type], collector: Collector
) -> ParamDecl:
    """Check a parameter whose value is a list. Its default must be the name of a list that may change."""
    default = param.default
    if param.low is not None:
        collector.add("CEP505", f"values of type {value_type} have no bounds", param.low.span)
    if default is None:
        return ParamDecl(param.name, value_type)
    if not isinstance(default, syntax.NameRef) or default.name not in lists:
        help_line = did_you_mean(default.name, lists, "lists") if isinstance(default, syntax.NameRef) else ""
        declares = f"declare one with `list name: {list_kind(value_type)}`"
        collector.add("CEP505", "this is not the name of a list that may change", default.span, help_line or declares)
        return ParamDecl(param.name, value_type)
    if lists[default.name] != value_type:
        message = f"`{default.name}` is a {lists[default.name]}, the parameter a {value_type}"
        collector.add("CEP505", message, default.span)
    return ParamDecl(param.name, value_type, default.name)


def _declare(param: syntax.ParamSyntax, value_type: Type, collector: Collector) -> ParamDecl:
    """Check the default and the bounds of a parameter whose value is not a list."""
    default = _slot(param.default, value_type, collector)
    low = _slot(param.low, value_type, collector)
    high = _slot(param.high, value_type, collector)
    if param.low is not None and value_type.kind not in _BOUNDED:
        collector.add("CEP505", f"values of type {value_type} have no bounds", param.low.span)
        low = high = None
    minimum = low if isinstance(low, int | float) else None
    maximum = high if isinstance(high, int | float) else None
    if minimum is not None and maximum is not None and param.low is not None and minimum > maximum:
        collector.add("CEP505", "the lower bound is above the upper one", param.low.span)
    elif isinstance(default, int | float) and param.default is not None:
        below = minimum is not None and default < minimum
        if below or (maximum is not None and default > maximum):
            collector.add("CEP505", "the default is outside of the bounds", param.default.span)
    return ParamDecl(param.name, value_type, default, minimum, maximum)


def _slot(node: syntax.ExprSyntax | None, value_type: Type, collector: Collector) -> Slot:
    """Return the value of a default or a bound, None after a report or if there is none."""
    if node is None:
        return None
    if isinstance(node, syntax.NameRef):
        if node.name in value_type.symbols:
            return value_type.symbols.index(node.name)
        help_line = did_you_mean(node.name, value_type.symbols, "its symbols")
        collector.add("CEP505", f"`{node.name}` is not a constant of type {value_type}", node.span, help_line)
        return None
    const = written_constant(node)
    converted = None if const is None else symbol_const(const.value, value_type) or convert_const(const, value_type)
    if converted is None or converted.value is None:
        collector.add("CEP505", f"this is not a constant of type {value_type}", node.span)
        return None
    return converted.value


def check_variables(draft: Draft) -> None:
    """Find the variables of `seq`, and which variables precede each of them. Refuse equal names and too many."""
    structure = draft.pattern.structure
    assert structure is not None, "without `seq` no pass runs"
    draft.order = order_of(structure)
    span_by_name: dict[str, Span] = {}
    for variable, _ in draft.order.variables:
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
    """Find the event type of each variable, and the stream of the pattern (the event types that it reads)."""
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


def _event_type(draft: Draft, where: syntax.WhereSyntax) -> EventType | None:
    """Return the event type that an entry of `where` names, None after a report."""
    name, events = where.event_type.name, draft.resolved.events
    event_type = events.get(name)
    if event_type is None:
        owner = next((e for e in events.values() if e.field(name)), None)
        message, span = f"`{name}` is not an event type", where.event_type.span
        if owner is None:
            draft.collector.unknown("CEP202", message, name, span, events, "event types")
        else:  # a field stands in its place
            help_line = f"the event type comes first: `{where.variable}: {owner.name} {name} …`"
            draft.collector.add("CEP202", message, span, help_line, fix=Fix(span, f"{owner.name}  {name}"))
    return event_type


def _set_default_types(draft: Draft) -> None:
    """Give variables without an entry in `where` the one declared event type. Report them if there are several."""
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
    if draft.pattern.over_all:  # without the key fields an event belongs to no key, so the pattern cannot see it
        names |= {e.name for e in events if all(e.field(k) for k in key)}
    return [e for e in events if e.name in names]


def check_key(draft: Draft) -> None:
    """Check that the key fields exist in every event type of the stream."""
    key_fields: dict[str, syntax.NameRef] = {}
    for key in draft.pattern.key:
        once(key_fields, key, "key field", draft.collector)
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


def _comes_from_match(field: Field) -> bool:
    """Return True for the id and the time of an event that a match becomes."""
    return field.type.kind is Kind.ID or field.name == TIME_FIELD


def check_produced(draft: Draft) -> None:
    """Check that the emitted values make a whole event of the type that the pattern produces."""
    pattern, measures, resolved, collector = draft.pattern, draft.measures, draft.resolved, draft.collector
    name = pattern.produces
    if name is None or len(measures) < len(pattern.measures):
        return  # the pattern produces nothing, or an emitted value has a mistake
    event_type = resolved.events.get(name.name)
    if event_type is None:
        message = f"`{name.name}` is not an event type"
        collector.unknown("CEP202", message, name.name, name.span, resolved.events, "event types")
        return
    label = (Label(resolved.event_spans[event_type.name], "this event type"),)
    emitted = {m.name: m for m in measures}
    for declared in event_type.fields:
        if declared.name not in emitted and not declared.type.nullable and not _comes_from_match(declared):
            message = f"an event `{event_type.name}` needs a field `{declared.name}`, which the pattern does not emit"
            collector.add(
                "CEP426", message, name.span, f"add `emit {declared.name} = …`, or declare it with `?`", label
            )
    for written in pattern.measures:
        _check_value(emitted[written.name], event_type, written.span, label, collector)


def _check_value(
    measure: Measure, event_type: EventType, span: Span, label: tuple[Label, ...], collector: Collector
) -> None:
    """Check one emitted value of a pattern with `produce`: it must be a field of the produced event, of its type."""
    name = measure.name
    field = event_type.field(name)
    names = [f.name for f in event_type.fields if not _comes_from_match(f)]
    if field is None:
        message = f"an event `{event_type.name}` has no field `{name}`"
        collector.unknown("CEP426", message, name, span, names, "its fields", label)
    elif _comes_from_match(field):
        message = f"`{name}` is the {field.type.kind.value} of the event, and comes from the match"
        collector.add("CEP426", message, span, "leave it out", label)
    elif not same(field.type, measure.value.type):
        message = f"`{name}` is {measure.value.type} here and {field.type} in the event `{event_type.name}`"
        collector.add("CEP426", message, span, "give both the same type", label)
    elif measure.value.type.nullable and not field.type.nullable:
        message = f"`{name}` may be null here, but not in the event `{event_type.name}`"
        collector.add("CEP426", message, span, f"declare the field as `{name} {field.type}?`", label)


def check_circles(patterns: dict[str, PatternIR], resolved: Resolved, collector: Collector) -> None:
    """Remove and report patterns that feed each other in a circle or too long a chain: no order of work is right."""
    levels = levels_of({name: (p.event_types, p.produces) for name, p in patterns.items()})
    for name in [n for n, p in patterns.items() if p.produces is not None and levels[n] >= PRODUCE_DEPTH_MAX]:
        place = resolved.patterns[name].produces
        assert place is not None, "a pattern in a circle produces"
        message = f"the events of `{name}` come back to it, or the chain is longer than {PRODUCE_DEPTH_MAX} patterns"
        collector.add("CEP427", message, place.span, "remove `produce` from the last pattern of the chain")
        del patterns[name]
