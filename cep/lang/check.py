"""Resolved declarations to checked patterns: the last step before a pattern is IR.

A pattern with an error gives no IR; the others of the file do.
Tested by: tests/lang/test_check.py, tests/lang/golden/
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cep.base.limits import MEASURES_MAX, VARIABLES_MAX
from cep.base.schema import EventType, Kind, Schema, Type
from cep.lang.bind import bind
from cep.lang.check_expressions import ExpressionChecker
from cep.lang.check_params import check_params
from cep.lang.check_produced import check_circles, check_produced
from cep.lang.check_structure import StructureChecker
from cep.lang.diagnostics import Collector, Fix, Label, Span, did_you_mean, nearest_fix
from cep.lang.ir import Expr, Measure, ParamDecl, PatternIR, Skip, Variable
from cep.lang.order import Before, Order, order_of
from cep.lang.resolve import Resolved, duplicate
from cep.lang.scope import Bound, Scope, VariableInScope
from cep.lang.syntax import (
    ChoiceSyntax,
    ElementSyntax,
    ExprSyntax,
    MeasureSyntax,
    PatternSyntax,
    SequenceSyntax,
    SkipSyntax,
    VariableSyntax,
    WhereSyntax,
)


def check(resolved: Resolved, collector: Collector) -> dict[str, PatternIR]:
    """Check every pattern; those without errors come back."""
    found: dict[str, PatternIR] = {}
    for pattern in resolved.patterns.values():
        checked = _PatternChecker(pattern, resolved, collector).check()
        if checked is not None:
            found[pattern.name] = checked
    check_circles(found, resolved, collector)
    return found


@dataclass(slots=True)
class _Typed:
    """The variables of a pattern with their event types and conditions as written."""

    event_types: dict[str, EventType]
    wheres: dict[str, WhereSyntax]


class _PatternChecker:
    def __init__(self, pattern: PatternSyntax, resolved: Resolved, collector: Collector) -> None:
        self.pattern = pattern
        self.resolved = resolved
        self.collector = collector
        self.expressions = ExpressionChecker(collector)
        self.params: tuple[ParamDecl, ...] = ()
        self.order = Order()
        self.typed = _Typed({}, {})
        self.param_types: dict[str, Type] = {}

    def check(self) -> PatternIR | None:
        errors = self.collector.error_count
        self.params = check_params(self.pattern, self.resolved.list_types(), self.collector)
        self.param_types = {p.name: p.type for p in self.params}
        structure = self.pattern.structure
        if structure is None:
            if not self.pattern.broken:
                message = f"the pattern `{self.pattern.name}` has no `seq`"
                self.collector.add("CEP112", message, self.pattern.span, "add `seq a -> b`")
            return None
        self.order = order_of(structure)
        self._unique_variables()
        self.typed = self._types()
        read = self._event_types()
        self._key(read)
        self._hidden_fields()
        checked = self._build(structure, tuple(e.name for e in read))
        faulty = any(e.name in self.resolved.faulty for e in read)
        if self.pattern.broken or faulty or self.collector.error_count > errors:
            return None
        self._defaults(checked)
        return checked if self.collector.error_count == errors else None

    def _build(self, structure: SequenceSyntax, read: tuple[str, ...]) -> PatternIR:
        conditions = self._conditions()
        untils = self._untils(structure, read)
        checker = StructureChecker(self.collector, self.param_types, untils)
        root = checker.check(structure)
        end = self._in_scope(self.order.end, own=None)
        pattern = self.pattern
        timeout: tuple[Measure, ...] | None = None
        if pattern.timeout_measures is not None:
            if not checker.has_window and pattern.timeout_span is not None:
                help_line = "add `within 10 min` to `seq`"
                self.collector.add("CEP419", "no time can run out: there is no window", pattern.timeout_span, help_line)
            maybe = self._in_scope(Before(self.order.end.may), own=None)
            timeout = self._measures(pattern.timeout_measures, maybe)
        measures = self._measures(pattern.measures, end)
        if pattern.produces is not None and len(measures) == len(pattern.measures):
            check_produced(pattern, measures, self.resolved, self.collector)
        return PatternIR(
            name=pattern.name,
            params=self.params,
            key=tuple(k.name for k in pattern.key),
            structure=root,
            variables=tuple(
                Variable(v.name, self.typed.event_types[v.name].name, conditions.get(v.name))
                for v in self._first_places()
                if v.name in self.typed.event_types
            ),
            measures=measures,
            event_types=read,
            skip=self._skip(pattern.skip),
            within_ms=checker.within_ms,
            within_events=checker.within_events,
            timeout_measures=timeout,
            doc=pattern.doc,
            produces=None if pattern.produces is None else pattern.produces.name,
        )

    # ---------------------------------------------------------------------------------- variables and types

    def _first_places(self) -> list[VariableSyntax]:
        seen: dict[str, VariableSyntax] = {}
        for variable, _ in self.order.places:
            seen.setdefault(variable.name, variable)
        return list(seen.values())

    def _unique_variables(self) -> None:
        seen: dict[str, Span] = {}
        for variable, _ in self.order.places:
            if variable.name in seen:
                message = f"the variable `{variable.name}` stands twice in the structure"
                help_line = "give each place its own name, or repeat it: `a{2}`"
                labels = (Label(seen[variable.name], "first here"),)
                self.collector.add("CEP406", message, variable.span, help_line, labels)
            seen.setdefault(variable.name, variable.span)
        if len(seen) > VARIABLES_MAX:
            message = f"this pattern has {len(seen)} variables, more than {VARIABLES_MAX}"
            self.collector.add("CEP415", message, self.pattern.span)

    def _types(self) -> _Typed:
        typed = _Typed({}, {})
        names = [v.name for v in self._first_places()]
        for where in self.pattern.wheres:
            if where.variable in typed.wheres:
                duplicate("condition of", where.variable, where.span, typed.wheres[where.variable].span, self.collector)
                continue
            if where.variable not in names:
                message = f"`{where.variable}` does not stand in `seq`"
                help_line, fix = (
                    did_you_mean(where.variable, names, "variables"),
                    nearest_fix(where.variable, names, where.span),
                )
                self.collector.add("CEP204", message, where.span, help_line, fix=fix)
                continue
            typed.wheres[where.variable] = where
            event_type = self._event_type(where)
            if event_type is not None:
                typed.event_types[where.variable] = event_type
        self._default_types(typed)
        return typed

    def _event_type(self, where: WhereSyntax) -> EventType | None:
        name = where.event_type.name
        found = self.resolved.events.get(name)
        if found is None:
            help_line = did_you_mean(name, self.resolved.events, "event types")
            fix = nearest_fix(name, self.resolved.events, where.event_type.span)
            owner = next((e for e in self.resolved.events.values() if e.field(name)), None)
            if owner is not None:
                help_line = f"the event type comes first: `{where.variable}: {owner.name} {name} …`"
                fix = Fix(where.event_type.span, f"{owner.name}  {name}")
            self.collector.add("CEP202", f"`{name}` is not an event type", where.event_type.span, help_line, fix=fix)
        return found

    def _default_types(self, typed: _Typed) -> None:
        """A variable without a condition is of the only event type there is."""
        events = list(self.resolved.events.values())
        for variable in self._first_places():
            if variable.name in typed.wheres:
                continue
            if len(events) == 1:
                typed.event_types[variable.name] = events[0]
            elif not self.pattern.broken:
                example = events[0].name if events else "transaction"
                message = f"the variable `{variable.name}` has no event type"
                help_line = f"add `{variable.name}: {example}` to `where`"
                self.collector.add("CEP216", message, variable.span, help_line)

    def _event_types(self) -> list[EventType]:
        """The stream that contiguity looks at, in the order of the schema."""
        key = [k.name for k in self.pattern.key]
        named = {e.name for e in self.typed.event_types.values()}
        if self.pattern.over_all:
            # An event without the key fields belongs to no key, so the pattern cannot see it.
            named |= {e.name for e in self.resolved.events.values() if all(e.field(k) for k in key)}
        return [e for e in self.resolved.events.values() if e.name in named]

    def _key(self, read: list[EventType]) -> None:
        seen: dict[str, Span] = {}
        for key in self.pattern.key:
            if key.name in seen:
                duplicate("key field", key.name, key.span, seen[key.name], self.collector)
            seen.setdefault(key.name, key.span)
            for event_type in read:
                if event_type.name in self.resolved.faulty:
                    continue
                field = event_type.field(key.name)
                span = self.resolved.event_spans[event_type.name]
                if field is None:
                    names = [f.name for f in event_type.fields]
                    message = f"the key field `{key.name}` is missing in the event type `{event_type.name}`"
                    labels = (Label(span, "this event type has no such field"),)
                    help_line, fix = did_you_mean(key.name, names, "its fields"), nearest_fix(key.name, names, key.span)
                    self.collector.add("CEP417", message, key.span, help_line, labels, fix)
                elif field.type.kind in (Kind.FLOAT, Kind.TIME, Kind.DURATION):
                    message = f"a key cannot be of type {field.type}"
                    self.collector.add("CEP417", message, key.span, "use an id, a text, a number or an enum")

    def _hidden_fields(self) -> None:
        for param in self.pattern.params:
            for event_type in self.typed.event_types.values():
                if event_type.field(param.name) is not None:
                    message = f"the parameter `{param.name}` has the name of a field of `{event_type.name}`"
                    self.collector.add("CEP508", message, param.span, "rename the parameter")
                    break

    # ------------------------------------------------------------------------------------------- expressions

    def _in_scope(self, before: Before, own: str | None) -> dict[str, VariableInScope]:
        found: dict[str, VariableInScope] = {}
        negated = self.order.negated
        for variable in self._first_places():
            event_type = self.typed.event_types.get(variable.name)
            if event_type is None:
                continue
            bound = Bound.LATER
            if variable.name in negated:
                bound = Bound.NEGATED
            elif variable.name in before.must:
                bound = Bound.ALWAYS
            elif variable.name in before.may or variable.name == own:
                bound = Bound.MAYBE
            found[variable.name] = VariableInScope(event_type, bound, variable.span)
        return found

    def _scope(self, fields: Mapping[str, Type] | None, fields_of: str, variables: dict[str, VariableInScope]) -> Scope:
        key = tuple(k.name for k in self.pattern.key)
        events = self.resolved.events
        definitions = self.resolved.definitions
        untyped = frozenset(v.name for v in self._first_places()) - variables.keys()
        params = self.param_types
        return Scope(definitions, fields, fields_of, variables, params, events=events, key=key, untyped=untyped)

    def _conditions(self) -> dict[str, Expr | None]:
        found: dict[str, Expr | None] = {}
        for name, where in self.typed.wheres.items():
            event_type = self.typed.event_types.get(name)
            if where.condition is None or event_type is None:
                continue
            fields = {f.name: f.type for f in event_type.fields}
            variables = self._in_scope(self.order.at[name], name)
            scope = self._scope(fields, f"`{event_type.name}`", variables)
            found[name] = self.expressions.check_condition(where.condition, scope, f"the condition of `{name}`")
        return found

    def _untils(self, structure: SequenceSyntax, read: tuple[str, ...]) -> dict[Span, Expr | None]:
        """`until` looks at every event of the stream, so it sees the fields of all its event types."""
        schema = Schema(tuple(e for name, e in self.resolved.events.items() if name in read))
        found: dict[Span, Expr | None] = {}
        for span, node in _until_nodes(structure):
            variables = self._in_scope(self.order.at_until[span], None)
            scope = self._scope(schema.columns(), "the events of the pattern", variables)
            found[span] = self.expressions.check_condition(node, scope, "the condition of `until`")
        return found

    def _measures(
        self, measures: tuple[MeasureSyntax, ...], variables: dict[str, VariableInScope]
    ) -> tuple[Measure, ...]:
        found: list[Measure] = []
        spans: dict[str, Span] = {}
        scope = self._scope(None, "", variables)
        for measure in measures:
            if measure.name in spans:
                duplicate("value", measure.name, measure.span, spans[measure.name], self.collector)
            spans.setdefault(measure.name, measure.span)
            value = self.expressions.check_value(measure.value, scope)
            if value is not None:
                found.append(Measure(measure.name, value))
        every = (*self.pattern.measures, *(self.pattern.timeout_measures or ()))
        if measures and len(every) > MEASURES_MAX:
            message = f"this pattern emits {len(every)} values, more than {MEASURES_MAX}"
            self.collector.add("CEP423", message, every[MEASURES_MAX].span, "emit what the alert's reader needs")
        return tuple(found)

    def _skip(self, skip: SkipSyntax | None) -> Skip:
        if skip is None:
            return Skip()
        if skip.variable is None:
            return Skip(skip.kind, None, skip.in_order)
        names = [v.name for v in self._first_places() if v.name not in self.order.negated]
        name = skip.variable.name
        if name not in names:
            absent = name in self.order.negated
            message = f"`{name}` {'stands for an absence' if absent else 'does not stand in `seq`'}"
            help_line, fix = did_you_mean(name, names, "variables"), nearest_fix(name, names, skip.variable.span)
            self.collector.add("CEP418", message, skip.variable.span, help_line, fix=fix)
        return Skip(skip.kind, name, skip.in_order)

    def _defaults(self, checked: PatternIR) -> None:
        """The defaults must make a sound pattern, as far as all parameters have one."""
        if any(p.default is None for p in checked.params):
            return
        for diagnostic in bind(checked, {})[1]:
            span = next((p.span for p in self.pattern.params if f"`{p.name}`" in diagnostic.message), self.pattern.span)
            self.collector.add(diagnostic.code, diagnostic.message, span, diagnostic.help)


def _until_nodes(body: SequenceSyntax | ChoiceSyntax) -> list[tuple[Span, ExprSyntax]]:
    elements: list[ElementSyntax]
    elements = [s.element for s in body.steps] if isinstance(body, SequenceSyntax) else list(body.items)
    found: list[tuple[Span, ExprSyntax]] = []
    for element in elements:
        suffix = element.suffix
        if suffix.until is not None and suffix.until_span is not None:
            found.append((suffix.until_span, suffix.until))
        if not isinstance(element, VariableSyntax):
            found.extend(_until_nodes(element.body))
    return found
