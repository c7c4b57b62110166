"""The meaning of names at one place of a file: the fields, variables, parameters and definitions in sight.

Tested by: tests/lang/test_check.py
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from cep.base.schema import EventType, Type, valueclass
from cep.lang.diagnostics import Collector, Label, Span
from cep.lang.ir import Const, Expr, Param
from cep.lang.syntax import DefineSyntax, ExprSyntax, ListSyntax, NameRef


class Bound(Enum):
    """The certainty, where an expression is tested, that a variable has an event."""

    ALWAYS = "always"  # at least one event is bound
    MAYBE = "maybe"
    LATER = "later"  # no event can be bound yet
    NEGATED = "negated"  # no event ever is


@valueclass(frozen=True, slots=True)
class VariableInScope:
    """A variable of the pattern as one expression sees it."""

    event_type: EventType
    bound: Bound
    span: Span


@dataclass(slots=True)
class AggregateArgument:
    """The inside of `sum(…)`: `x.f` there is a field of each event of the one variable x."""

    fn: str
    variable: str | None = None


@valueclass(frozen=True, slots=True)
class Definitions:
    """The names that a whole file set shares. `partial` event types have fields that could not be read."""

    lists: Mapping[str, ListSyntax] = field(default_factory=dict)
    defines: Mapping[str, DefineSyntax] = field(default_factory=dict)
    list_types: Mapping[str, Type] = field(default_factory=dict)  # lists that may change
    partial: Collection[str] = ()


@valueclass(frozen=True, slots=True)
class Scope:
    """The visible names. `fields` None: an `emit` has no event under test. Then `last` has the fields of the last event
    of a match, from which a history looks back.

    Inside a definition `arguments` holds its parameters, each with the scope of the place that wrote it, and the
    parameters and variables of the pattern are not visible: a definition means the same wherever it is used.
    """

    definitions: Definitions
    fields: Mapping[str, Type] | None = None
    fields_of: str = ""
    variables: Mapping[str, VariableInScope] = field(default_factory=dict)
    params: Mapping[str, Type] = field(default_factory=dict)
    arguments: Mapping[str, tuple[ExprSyntax, Scope]] = field(default_factory=dict)
    expansions: tuple[tuple[str, Span], ...] = ()
    aggregate: AggregateArgument | None = None
    events: Mapping[str, EventType] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    untyped: frozenset[str] = frozenset()  # variables of the pattern whose event type is wrong or missing: said already
    past: bool = False  # inside a history: the fields belong to past events
    last: Mapping[str, Type] | None = None

    def inside(self, define: DefineSyntax, arguments: tuple[ExprSyntax, ...], used: Span) -> Scope:
        """Return the scope of a definition's body, used here with these arguments."""
        bound = {p.name: (a, self) for p, a in zip(define.params, arguments, strict=True)}
        expansions = (*self.expansions, (define.name, used))
        return replace(self, arguments=bound, params={}, variables={}, untyped=frozenset(), expansions=expansions)

    def lacks_fields(self) -> bool:
        """Return True if some fields of the event under test could not be read: then missing ones are not reported."""
        partial = self.definitions.partial
        several = not self.fields_of.startswith("`")
        return self.fields is not None and bool(partial) and (several or self.fields_of.strip("`") in partial)

    def labels(self) -> tuple[Label, ...]:
        """Return where the definitions were used that led to this place, the outermost first."""
        return tuple(Label(span, f"`{name}` is used here") for name, span in self.expansions[:2])

    def argument(self, name: str) -> tuple[ExprSyntax, Scope]:
        """Return the argument for a parameter of the definition, with its scope. Inside an aggregate it stays so."""
        node, scope = self.arguments[name]
        return node, replace(scope, aggregate=self.aggregate or scope.aggregate)


class Checker(Protocol):
    """The methods of ExpressionChecker that the checks of calls, operators and histories use."""

    collector: Collector

    def check(self, node: ExprSyntax, scope: Scope, expected: Type | None = None) -> Expr | None:
        """Return the typed expression, None after a report. `expected` gives a bare enum symbol its enum."""

    def find_variable(self, node: NameRef, scope: Scope) -> VariableInScope | None:
        """Return the variable of this name if an expression may use its events here, None after a report."""

    def find_list(self, node: NameRef, scope: Scope) -> ListSyntax | Const | Param | None:
        """Return the list of this name, None after a report; the name of one that may change, or is a parameter."""
