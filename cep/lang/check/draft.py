"""One pattern on its way from syntax to IR: the results of earlier passes, for the later ones.

Tested by: tests/lang/test_check.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from cep.base.schema import EventType, Type
from cep.lang.check.expressions import ExpressionChecker
from cep.lang.check.order import Before, Order
from cep.lang.check.resolve import Resolved
from cep.lang.check.scope import Bound, Definitions, Scope, VariableInScope
from cep.lang.diagnostics import Collector, Span
from cep.lang.ir import Expr, Measure, Param, ParamDecl, SequenceNode, Skip
from cep.lang.syntax import PatternSyntax, VariableSyntax, WhereSyntax


@dataclass  # without slots, because it caches values that all passes need
class Draft:
    """A pattern that is being checked. Each pass of `passes.PATTERN_PASSES` reads some fields and fills others.

    `wheres` and `event_types` are by variable. `stream` has the event types that contiguity looks at, in the order of
    the schema. `untils` has the checked conditions by the span of their `until`.
    """

    pattern: PatternSyntax
    resolved: Resolved
    collector: Collector
    expressions: ExpressionChecker
    params: tuple[ParamDecl, ...] = ()
    order: Order = field(default_factory=Order)
    wheres: dict[str, WhereSyntax] = field(default_factory=dict)
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
    def variables(self) -> list[VariableSyntax]:
        """The first place of each variable, in written order. Known once `order` is."""
        first: dict[str, VariableSyntax] = {}
        for variable, _ in self.order.places:
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
        """Return the variables that an expression may use, each with whether it is bound by then.

        The expression follows the variables of `before`, and is tested on an event of `under_test`.
        """
        in_scope: dict[str, VariableInScope] = {}
        negated = self.order.negated
        for variable in self.variables:
            event_type = self.event_types.get(variable.name)
            if event_type is None:
                continue
            bound = Bound.LATER
            if variable.name in negated:
                bound = Bound.NEGATED
            elif variable.name in before.must:
                bound = Bound.ALWAYS
            elif variable.name in before.may or variable.name == under_test:
                bound = Bound.MAYBE
            in_scope[variable.name] = VariableInScope(event_type, bound, variable.span)
        return in_scope

    def scope(
        self,
        fields: Mapping[str, Type] | None,
        fields_of: str,
        variables: Mapping[str, VariableInScope],
        last: Mapping[str, Type] | None = None,
    ) -> Scope:
        """Collect the names that an expression of the pattern may use. Without `fields` it has no event under test."""
        return Scope(
            self.definitions,
            fields,
            fields_of,
            variables,
            self.param_types,
            events=self.resolved.events,
            key=tuple(key.name for key in self.pattern.key),
            untyped=frozenset(v.name for v in self.variables) - variables.keys(),
            last=last,
        )
