"""The meaning of names at one place of a file: the fields, variables, parameters and definitions in sight.

A check of an expression reports a mistake and raises `Refused`. Where several parts stand side by side, `each` and
`attempt` check the others all the same. `Refused` never leaves `ExpressionChecker`.
Tested by: tests/lang/test_check.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NoReturn, ParamSpec, TypeVar

from cep.base.schema import EventType, Kind, Type, valueclass
from cep.lang.diagnostics import Collector, Fix, Label, Span, did_you_mean, nearest_fix
from cep.lang.ir import Const, Expr, Param
from cep.lang.syntax import DefineSyntax, ExprSyntax, ListSyntax, NameRef

# The help of a message about a value that cannot be used inside a history.
COMPARE_RESULT = "compare the result of a history with it, as in `amount > min(transaction.amount over previous 1 h)`"


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
    """The names that a whole file set shares. `unreadable` event types have fields that could not be read."""

    lists: Mapping[str, ListSyntax] = field(default_factory=dict)
    defines: Mapping[str, DefineSyntax] = field(default_factory=dict)
    list_types: Mapping[str, Type] = field(default_factory=dict)  # lists that may change
    unreadable: Collection[str] = ()


@valueclass(frozen=True, slots=True)
class Scope:
    """The visible names. `fields` None: an `emit` has no event under test. Then `last` has the fields of the last event
    of a match, from which a history looks back.

    Inside a definition `arguments` holds its parameters, each with the scope of the place that wrote it, and the
    parameters and variables of the pattern are not visible: a definition means the same wherever it is used.
    """

    definitions: Definitions
    fields: Mapping[str, Type] | None = None
    fields_owner: str = ""
    variables: Mapping[str, VariableInScope] = field(default_factory=dict)
    params: Mapping[str, Type] = field(default_factory=dict)
    arguments: Mapping[str, tuple[ExprSyntax, Scope]] = field(default_factory=dict)
    expansions: tuple[tuple[str, Span], ...] = ()
    aggregate: AggregateArgument | None = None
    events: Mapping[str, EventType] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    untyped: frozenset[str] = frozenset()  # variables of the pattern whose event type is wrong or missing: said already
    past: bool = False  # inside a history: the fields belong to past events
    outside: bool = False  # an argument used inside a history, but written outside: its fields are not past ones
    last: Mapping[str, Type] | None = None

    def inside(self, define: DefineSyntax, arguments: tuple[ExprSyntax, ...], used: Span) -> Scope:
        """Return the scope of a definition's body, used here with these arguments."""
        bound = {p.name: (a, self) for p, a in zip(define.params, arguments, strict=True)}
        expansions = (*self.expansions, (define.name, used))
        return replace(self, arguments=bound, params={}, variables={}, untyped=frozenset(), expansions=expansions)

    def lacks_fields(self) -> bool:
        """Return True if some fields of the event under test could not be read: then missing ones are not reported."""
        unreadable = self.definitions.unreadable
        several = not self.fields_owner.startswith("`")
        return self.fields is not None and bool(unreadable) and (several or self.fields_owner.strip("`") in unreadable)

    def labels(self) -> tuple[Label, ...]:
        """Return where the definitions were used that led to this place, the outermost first."""
        return tuple(Label(span, f"`{name}` is used here") for name, span in self.expansions[:2])

    def argument(self, name: str) -> tuple[ExprSyntax, Scope]:
        """Return the argument for a parameter of the definition, with its scope. An aggregate or history stays."""
        node, scope = self.arguments[name]
        scope = replace(scope, aggregate=self.aggregate or scope.aggregate)
        if self.past and not scope.past:
            scope = replace(scope, variables={}, past=True, outside=True)
        return node, scope

    def follow(self, node: ExprSyntax) -> tuple[ExprSyntax, Scope]:
        """Return the argument for a parameter of a definition, any other node as it is, each with its scope."""
        scope = self
        while isinstance(node, NameRef) and node.name in scope.arguments:
            node, scope = scope.argument(node.name)
        return node, scope


P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")


class Refused(Exception):  # noqa: N818 - control flow inside the check, not an error that anyone sees
    """The mistake is reported; the expression around it has no type."""


def attempt(check: Callable[P, V], *args: P.args, **kwargs: P.kwargs) -> V | None:
    """Return the result of a check, None if it is refused."""
    try:
        return check(*args, **kwargs)
    except Refused:
        return None


def each(check: Callable[[T], V], items: Iterable[T]) -> list[V]:
    """Return the results of a check of all items. Raises: Refused after the last item if one of them is refused."""
    checked: list[V] = []
    is_refused = False
    for item in items:
        try:  # not `attempt`: a level of nesting must cost few Python frames
            checked.append(check(item))
        except Refused:
            is_refused = True
    if is_refused:
        raise Refused
    return checked


class Checker(ABC):
    """Checks expressions, and reports their mistakes."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector

    @abstractmethod
    def check(self, node: ExprSyntax, scope: Scope, expected: Type | None = None) -> Expr:
        """Return the typed expression. `expected` gives a bare enum symbol its enum. Raises: Refused."""

    def refuse(
        self,
        code: str,
        message: str,
        span: Span | None,
        help_line: str = "",
        labels: Iterable[Label] = (),
        fix: Fix | None = None,
    ) -> NoReturn:
        """Report an error and give up."""
        self.collector.add(code, message, span, help_line, labels, fix)
        raise Refused

    def find_variable(self, node: NameRef, scope: Scope) -> VariableInScope:
        """Return the variable of this name, if an expression may use its events here."""
        variable = scope.variables.get(node.name)
        if node.name in scope.untyped:
            raise Refused  # its event type is unknown, as is reported already
        if variable is None:
            help_line = did_you_mean(node.name, scope.variables, "variables")
            message = f"`{node.name}` is not a variable of the pattern"
            if scope.past and not scope.variables:
                message = f"`{node.name}` cannot be used inside a history"
                is_type = node.name in scope.events and not scope.outside  # `where transaction.amount > 5`
                help_line = "write the field alone" if is_type else COMPARE_RESULT
            elif scope.expansions and not scope.variables:  # in a definition
                help_line = "a definition sees no variables; give it as an argument"
            fix = nearest_fix(node.name, scope.variables, node.span)
            self.refuse("CEP204", message, node.span, help_line, scope.labels(), fix)
        labels = (Label(variable.span, "it stands here"), *scope.labels())
        if variable.bound is Bound.NEGATED:
            message = f"`{node.name}` stands for an absence: no event is ever bound to it"
            self.refuse("CEP408", message, node.span, labels=labels)
        if variable.bound is Bound.LATER:
            message = f"`{node.name}` can only be bound later than this condition is tested"
            help_line = f"move the comparison to the condition of `{node.name}`"
            self.refuse("CEP407", message, node.span, help_line, labels)
        return variable

    def find_list(self, node: NameRef, scope: Scope) -> ListSyntax | Const | Param:
        """Return the list of this name. If its entries may change, or a parameter gives them, return only its name."""
        param_type = scope.params.get(node.name)
        if param_type is not None and param_type.kind is Kind.LIST:
            return Param(node.name, param_type)
        declared = scope.definitions.lists.get(node.name)
        if declared is None:
            message, lists = f"`{node.name}` is not a list", scope.definitions.lists
            self.collector.unknown("CEP206", message, node.name, node.span, lists, "lists", scope.labels())
            raise Refused
        if declared.of is None:  # without a type its entries are fixed
            return declared
        if node.name not in scope.definitions.list_types:
            raise Refused  # its type was reported where it is declared
        return Const(node.name, scope.definitions.list_types[node.name])
