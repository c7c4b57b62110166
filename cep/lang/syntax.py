"""The syntax tree: the written text with the place of every part, before name resolution.

Tested by: tests/lang/test_parser.py
"""

from __future__ import annotations

from decimal import Decimal

from cep.base.schema import valueclass
from cep.lang.diagnostics import Span
from cep.lang.ir import Inner, Link, SkipKind

# ---------------------------------------------------------------------------------------------- expressions


@valueclass(frozen=True, slots=True)
class Literal:
    """A constant as written: int, Decimal, float, str, bool, or None for null."""

    value: int | Decimal | float | str | bool | None
    span: Span


@valueclass(frozen=True, slots=True)
class DurationLiteral:
    """`10 min`, in milliseconds."""

    ms: int
    span: Span


@valueclass(frozen=True, slots=True)
class NameRef:
    """A bare name: field, parameter, list, enum symbol or variable, to be resolved."""

    name: str
    span: Span


@valueclass(frozen=True, slots=True)
class Member:
    """`x.f` or `first(x).f`."""

    owner: ExprSyntax
    field: str
    field_span: Span
    span: Span


@valueclass(frozen=True, slots=True)
class CallSyntax:
    """`name(a, b)`: a function, an aggregate or a macro."""

    name: str
    name_span: Span
    arguments: tuple[ExprSyntax, ...]
    span: Span


@valueclass(frozen=True, slots=True)
class HistoryWindowSyntax:
    """`over 1 h`, `over previous 30 d`, `over day in "Europe/Paris"`; a name is a calendar unit or a parameter."""

    bound: Bound
    previous: bool
    zone: Literal | None
    span: Span


@valueclass(frozen=True, slots=True)
class HistorySyntax:
    """`sum(t.amount over 24 h by merchant_id where status == approved)`; `extra` are arguments after the first one."""

    name: str
    name_span: Span
    argument: ExprSyntax
    window: HistoryWindowSyntax | None
    by: tuple[NameRef, ...]
    where: ExprSyntax | None
    extra: tuple[ExprSyntax, ...]
    span: Span


@valueclass(frozen=True, slots=True)
class UnarySyntax:
    """`not e` or `-e`."""

    op: str
    argument: ExprSyntax
    span: Span


@valueclass(frozen=True, slots=True)
class BinarySyntax:
    """Arithmetic, comparison and `like`."""

    op: str
    op_span: Span
    left: ExprSyntax
    right: ExprSyntax
    span: Span


@valueclass(frozen=True, slots=True)
class ChainSyntax:
    """`a and b and c` or `a or b or c`, flat: long chains must not nest deep."""

    op: str
    operands: tuple[ExprSyntax, ...]
    span: Span


@valueclass(frozen=True, slots=True)
class InSyntax:
    """Check `e in [a, b]` or `e in name`."""

    argument: ExprSyntax
    items: tuple[ExprSyntax, ...] | NameRef
    negated: bool
    span: Span


@valueclass(frozen=True, slots=True)
class BetweenSyntax:
    """`e between a and b`, both ends included."""

    argument: ExprSyntax
    low: ExprSyntax
    high: ExprSyntax
    negated: bool
    span: Span


@valueclass(frozen=True, slots=True)
class IsNullSyntax:
    """`e is null` or `e is not null`."""

    argument: ExprSyntax
    negated: bool
    span: Span


@valueclass(frozen=True, slots=True)
class IfSyntax:
    """`if c then a else b`."""

    condition: ExprSyntax
    then: ExprSyntax
    otherwise: ExprSyntax
    span: Span


ExprSyntax = (
    Literal
    | DurationLiteral
    | NameRef
    | Member
    | CallSyntax
    | HistorySyntax
    | UnarySyntax
    | BinarySyntax
    | ChainSyntax
    | InSyntax
    | BetweenSyntax
    | IsNullSyntax
    | IfSyntax
)

# ------------------------------------------------------------------------------------------------ structure

Bound = Literal | DurationLiteral | NameRef  # a number or duration as written, or the name of a parameter


@valueclass(frozen=True, slots=True)
class WindowSyntax:
    """`within 10 min` or `within 20 events`."""

    bound: Bound
    in_events: bool
    span: Span


@valueclass(frozen=True, slots=True)
class RepeatSyntax:
    """`? * + {n} {n,} {n,m}`; maximum None is unbounded."""

    minimum: Bound
    maximum: Bound | None
    span: Span


@valueclass(frozen=True, slots=True)
class SuffixSyntax:
    """The suffix of a variable or a group, such as `{2,5}[1 h] greedy until (amount > 9)`."""

    repeat: RepeatSyntax | None = None
    gap: Bound | None = None  # `[1 h]`: the most time between two repetitions
    inner: Inner = Inner.RELAXED  # whether other events may come between two repetitions
    inner_span: Span | None = None  # of `strict` or `any`
    greedy_span: Span | None = None  # of `greedy`, which takes as many events as fit; None without it
    until: ExprSyntax | None = None  # the condition that ends the repetition
    until_span: Span | None = None

    @property
    def first_span(self) -> Span | None:
        """Return the place of the first part in this order, for a message; None without a suffix."""
        gap = self.gap.span if self.gap is not None else None
        repeat = self.repeat.span if self.repeat is not None else None
        return repeat or gap or self.greedy_span or self.inner_span or self.until_span


NO_SUFFIX = SuffixSyntax()


@valueclass(frozen=True, slots=True)
class VariableSyntax:
    """A variable in the structure."""

    name: str
    span: Span
    suffix: SuffixSyntax = NO_SUFFIX


@valueclass(frozen=True, slots=True)
class GroupSyntax:
    """Parentheses. `within` was written after the closing one (a window inside belongs to the body)."""

    body: SequenceSyntax | ChoiceSyntax
    span: Span
    suffix: SuffixSyntax = NO_SUFFIX
    within: WindowSyntax | None = None


ElementSyntax = VariableSyntax | GroupSyntax


@valueclass(frozen=True, slots=True)
class StepSyntax:
    """An element with the link before it."""

    link: Link
    element: ElementSyntax
    span: Span
    negated: bool = False
    gap_min: Bound | None = None
    gap_max: Bound | None = None


@valueclass(frozen=True, slots=True)
class SequenceSyntax:
    """Steps, and the windows written at their end."""

    steps: tuple[StepSyntax, ...]
    windows: tuple[WindowSyntax, ...]
    span: Span


@valueclass(frozen=True, slots=True)
class ChoiceSyntax:
    """`a | b` or `a & b`, with the windows written at the end."""

    op: str
    items: tuple[ElementSyntax, ...]
    windows: tuple[WindowSyntax, ...]
    span: Span


# --------------------------------------------------------------------------------------------- declarations


@valueclass(frozen=True, slots=True)
class TypeSyntax:
    """`decimal(2)?`, `enum(a, b)`, `string sensitive`; `list of prefix`, where `of` is the type of the entries."""

    name: str
    span: Span
    scale: int | None = None
    symbols: tuple[NameRef, ...] = ()
    nullable: bool = False
    of: TypeSyntax | None = None
    sensitive: bool = False


@valueclass(frozen=True, slots=True)
class FieldSyntax:
    """`amount decimal(2)`."""

    name: str
    span: Span
    type: TypeSyntax


@valueclass(frozen=True, slots=True)
class EventSyntax:
    """`event name { fields }`; `span` is of the name, here and below. Field `order` orders events of one time."""

    name: str
    span: Span
    fields: tuple[FieldSyntax, ...]
    broken: bool  # a field could not be read, so missing fields are not reported
    doc: str
    retain: DurationLiteral | None = None
    order: NameRef | None = None


@valueclass(frozen=True, slots=True)
class ImportSyntax:
    """`import "file.cep"`."""

    path: str
    span: Span  # of the whole declaration


@valueclass(frozen=True, slots=True)
class ListSyntax:
    """`list name = [items]`; with a type its entries may change: `list name: string = [items]`, `… from "file"`."""

    name: str
    span: Span
    items: tuple[ExprSyntax, ...]
    doc: str = ""
    of: TypeSyntax | None = None
    file: Literal | None = None


@valueclass(frozen=True, slots=True)
class DefineSyntax:
    """`define name(params) = body`."""

    name: str
    span: Span
    params: tuple[NameRef, ...]
    body: ExprSyntax
    doc: str = ""


@valueclass(frozen=True, slots=True)
class ParamSyntax:
    """`name: type = default in low..high`."""

    name: str
    span: Span
    type: TypeSyntax
    default: ExprSyntax | None = None
    low: ExprSyntax | None = None
    high: ExprSyntax | None = None


@valueclass(frozen=True, slots=True)
class WhereSyntax:
    """`x: event_type condition`."""

    variable: str
    span: Span
    event_type: NameRef
    condition: ExprSyntax | None


@valueclass(frozen=True, slots=True)
class AssignSyntax:
    """`name = value` of an `emit`, or of an event, a key or an argument of a test; `name: value` of an expectation."""

    name: str
    span: Span
    value: ExprSyntax


@valueclass(frozen=True, slots=True)
class SkipSyntax:
    """`skip to first x in order`."""

    kind: SkipKind
    variable: NameRef | None
    in_order: bool
    span: Span


@valueclass(frozen=True, slots=True)
class PatternSyntax:
    """A pattern as written. `broken`: a clause could not be read, and therefore missing parts are not reported."""

    name: str
    span: Span
    params: tuple[ParamSyntax, ...]
    key: tuple[NameRef, ...]  # the fields after `by`: only events with equal values in them can match together
    structure: SequenceSyntax | None  # the steps after `seq`
    wheres: tuple[WhereSyntax, ...]  # one entry for each variable
    skip: SkipSyntax | None  # where matching goes on after a match
    measures: tuple[AssignSyntax, ...]  # the values of `emit`
    over_all: bool  # `over all`: the pattern reads all events that have its key
    timeout_measures: tuple[AssignSyntax, ...] | None  # the values of `on timeout emit`
    timeout_span: Span | None  # the place of the word `on` in `on timeout emit`
    produces: NameRef | None  # the event type that a match becomes
    broken: bool
    doc: str


@valueclass(frozen=True, slots=True)
class ScriptedEventSyntax:
    """`20s transaction amount=1.10 x5 every 20s` of a test; `every` is None for an event that comes once."""

    time: DurationLiteral
    event_type: NameRef
    fields: tuple[AssignSyntax, ...]
    count: int
    every: DurationLiteral | None
    span: Span


@valueclass(frozen=True, slots=True)
class ScriptedKeySyntax:
    """`c1:` or `c1(payer = "a", payee = "b"):` with its events. `label` is a name, text or integer as written."""

    label: Literal | NameRef
    fields: tuple[AssignSyntax, ...]
    events: tuple[ScriptedEventSyntax, ...]


@valueclass(frozen=True, slots=True)
class ExpectSyntax:
    """`expect match on c1 at 5m { amount: 900.00 }`; kind is match, none, timeout or matches (with `count`)."""

    kind: str
    key: Literal | NameRef | None
    at: DurationLiteral | None
    count: int
    measures: tuple[AssignSyntax, ...]
    span: Span


@valueclass(frozen=True, slots=True)
class PatternTestSyntax:
    """`test "name" of pattern { … }`; `span` is of the name, `whole` of the test, `todo_span` of the word `todo`."""

    name: str
    span: Span
    pattern: NameRef
    arguments: tuple[AssignSyntax, ...]
    keys: tuple[ScriptedKeySyntax, ...]  # each with its events
    expects: tuple[ExpectSyntax, ...]
    todo: str | None  # the text after `todo` (a test of a known gap), "" without a text; None without `todo`
    todo_span: Span | None
    broken: bool  # an entry could not be read
    whole: Span


Declaration = EventSyntax | ImportSyntax | ListSyntax | DefineSyntax | PatternSyntax | PatternTestSyntax


@valueclass(frozen=True, slots=True)
class FileSyntax:
    """One parsed file."""

    name: str
    declarations: tuple[Declaration, ...]
