"""The checked, typed form of patterns and of their tests: the input of the compiler. Small enough to remember.

A `PatternIR` comes out of `check` with its parameters still open (`Param` nodes); `bind` replaces them by constants.
After that every name is resolved, every expression has a type, and units have been checked:

- decimals are scaled integers; `Cast` nodes have brought both sides of `+ - == < …` to one type;
- a comparison or a boolean operator yields BOOL, nullable if an operand is (null is SQL's unknown);
- text is only compared for equality, never ordered.

In a `PatternTest` every field of every event has a value (fields that the test does not name have the defaults of
check/tests.py), so a test means the same in every runner. Times are milliseconds since the start of the test.
Tested by: tests/lang/test_check.py, tests/lang/golden/ir/, tests/lang/test_check_tests.py
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from cep.base.schema import Type, valueclass
from cep.lang.diagnostics import Span

# ---------------------------------------------------------------------------------------------- expressions


@valueclass(frozen=True, slots=True)
class Const:
    """A constant. `value` is the content of its slot.

    DECIMAL: scaled int. TIME and DURATION: ms. BOOL: bool. ENUM: the symbol's code. Text: str. FLOAT: float. Null:
    None. LIST: its name, or the JSON of its entries.
    """

    value: int | float | bool | str | None
    type: Type


@valueclass(frozen=True, slots=True)
class Param:
    """A parameter that `bind` replaces by a Const."""

    name: str
    type: Type


@valueclass(frozen=True, slots=True)
class CurrentField:
    """A field of the event under test."""

    field: str
    type: Type


Which = Literal["first", "last", "prev"]


@valueclass(frozen=True, slots=True)
class VarField:
    """A field of an event that the match has bound to `variable`; null while nothing is bound.

    In a `where` of the variable itself the event under test is not yet bound. `prev` is the one before the last.
    """

    variable: str
    which: Which
    field: str
    type: Type


AggregateFn = Literal["count", "sum", "avg", "min", "max", "distinct", "stddev"]


@valueclass(frozen=True, slots=True)
class Aggregate:
    """An aggregate over the events bound to `variable`. `argument` refers to each such event by CurrentField.

    count needs no argument. Without events count and sum are 0, the others are null. Nulls are left out. Types: count
    INT; sum, min, max the type of the argument; avg, stddev FLOAT; distinct INT.
    """

    fn: AggregateFn
    variable: str
    argument: Expr | None
    type: Type


UnaryOp = Literal["not", "neg", "is_null", "abs"]
BinaryOp = Literal["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "and", "or"]


@valueclass(frozen=True, slots=True)
class Unary:
    """An operator with one operand; `not` of null is null, `is_null` is never null."""

    op: UnaryOp
    argument: Expr
    type: Type


@valueclass(frozen=True, slots=True)
class Binary:
    """`/` of numbers is FLOAT (null when the divisor is 0); decimal * decimal adds the scales; `%` is of INTs.
    Except for `*` on decimals both sides have the same kind and scale."""

    op: BinaryOp
    left: Expr
    right: Expr
    type: Type


@valueclass(frozen=True, slots=True)
class Cast:
    """A numeric conversion that loses nothing, put in by the checker: INT → DECIMAL, DECIMAL → finer DECIMAL,
    INT or DECIMAL → FLOAT (the nearest double)."""

    argument: Expr
    type: Type


@valueclass(frozen=True, slots=True)
class In:
    """Membership in a list of constants (or parameters) of the argument's type."""

    argument: Expr
    items: tuple[Expr, ...]
    type: Type


@valueclass(frozen=True, slots=True)
class If:
    """`if condition then … else …`; a null condition takes `otherwise`."""

    condition: Expr
    then: Expr
    otherwise: Expr
    type: Type


@valueclass(frozen=True, slots=True)
class Call:
    """A call of the function `fn` of the language (functions.py). A CurrentField is a field of the event under test.

    round, floor, ceil: a DECIMAL becomes an INT; `round` with digits > 0 makes it a DECIMAL with so many digits.
    text functions: the first argument is a text field, or lower, upper or substring of one; the others are constants.
    `matches` finds the RE2 expression anywhere in the text.
    in_list(field, name): is the value in this list, whose entries may change? The list is read as it was at the time of
    the event. The result is null before its first version, and in a list of networks for an invalid address.
    hour, weekday, date: they take a field of kind TIME and a zone.
    """

    fn: str
    arguments: tuple[Expr, ...]
    type: Type


CalendarUnit = Literal["hour", "day", "week", "month", "year"]
_HOUR_MS = 3_600_000
CALENDAR_MS_MAX: dict[CalendarUnit, int] = {  # a clock that is put back makes a unit an hour longer
    "hour": 2 * _HOUR_MS,
    "day": 25 * _HOUR_MS,
    "week": 169 * _HOUR_MS,
    "month": (31 * 24 + 1) * _HOUR_MS,
    "year": (366 * 24 + 1) * _HOUR_MS,
}
HistoryFn = Literal[
    "count", "sum", "avg", "min", "max", "stddev", "distinct", "median", "percentile", "first", "last", "exists",
    "first_seen", "approx_distinct", "approx_percentile", "avg_rest",
]  # fmt: skip


@valueclass(frozen=True, slots=True)
class HistoryWindow:
    """The window of a history: with `ms` the past events in (t − ms, t], otherwise the events of t's calendar unit.

    t is the time of the event under test; the calendar unit, such as a day, is in `zone`. `previous` leaves that event
    out. At time t, only events up to it in the order (time, id) count.
    """

    ms: int | Param | None
    calendar: CalendarUnit | None
    zone: str = "UTC"
    previous: bool = False


@valueclass(frozen=True, slots=True)
class History:
    """A function of past events of the key, such as `count(payment over 1 h)`, at the time of the event under test.

    argument, where: a CurrentField in them is a field of the past event. Null arguments are left out.
    by: an event counts only if these fields have the same values as in the event under test, and none of them is null.
    window: None is the whole past; `last` and `exists` then leave out the event under test.
    percent: the percentage of a percentile, from 1 to 100; None for other functions.

    Without events count, distinct and sum are 0, exists is false, the others are null. `first_seen` is the time since
    the key first had the value that `by` has in the event under test; 0 if no earlier event had it. It has no event
    type (""), because it reads all types that have the field.

    Types: count, distinct INT; sum, min, max, last the type of the argument; avg, stddev, median, percentile FLOAT (the
    nearest rank); exists BOOL; first_seen DURATION. `approx_distinct` and `approx_percentile` are approximate: their
    windows begin with a whole pane (partial aggregate of one time slice). `avg_rest` is the rounding error of `avg`. No
    pattern can write it: the compiler uses it, so that comparisons with an average are exact.
    """

    fn: HistoryFn
    event_type: str
    argument: Expr | None
    where: Expr | None
    by: tuple[str, ...]
    window: HistoryWindow | None
    percent: Const | Param | None
    type: Type


Expr = Const | Param | CurrentField | VarField | Aggregate | Unary | Binary | Cast | In | If | Call | History

# ------------------------------------------------------------------------------------------------ structure


class Link(Enum):
    """The way in which a step follows the one before it."""

    NEXT = ","  # directly after
    FOLLOWED_BY = "->"  # some time after, events that do not fit are skipped
    FOLLOWED_BY_ANY = "->>"  # every later one


class Inner(Enum):
    """Contiguity between the repetitions of a loop."""

    RELAXED = "relaxed"
    STRICT = "strict"
    ANY = "any"


@valueclass(frozen=True, slots=True)
class Quantifier:
    """Repetition. `max_count` None is unbounded; min_count 0 is optional. Open parameters are Param nodes."""

    min_count: int | Param = 1
    max_count: int | Param | None = 1
    inner: Inner = Inner.RELAXED
    greedy: bool = False
    until: Expr | None = None
    gap_ms: int | Param | None = None


ONCE = Quantifier()


@valueclass(frozen=True, slots=True)
class VarNode:
    """One variable of the pattern, with its repetition."""

    variable: str
    quantifier: Quantifier = ONCE


@valueclass(frozen=True, slots=True)
class Step:
    """One element of a sequence. `link` of the first step is how a loop of the group continues; of another step, how it
    follows its predecessor. A negated step's node is a VarNode that occurs once.
    """

    link: Link
    node: Node
    negated: bool = False
    gap_min_ms: int | Param | None = None
    gap_max_ms: int | Param | None = None


@valueclass(frozen=True, slots=True)
class SequenceNode:
    """Steps one after the other, in parentheses or at the top, with the group's own repetition and window."""

    steps: tuple[Step, ...]
    quantifier: Quantifier = ONCE
    within_ms: int | Param | None = None


@valueclass(frozen=True, slots=True)
class AlternativeNode:
    """One of the options."""

    options: tuple[Node, ...]


@valueclass(frozen=True, slots=True)
class AnyOrderNode:
    """The items, in any order."""

    items: tuple[Node, ...]


Node = VarNode | SequenceNode | AlternativeNode | AnyOrderNode

# -------------------------------------------------------------------------------------------------- pattern


@valueclass(frozen=True, slots=True)
class Variable:
    """A variable of the pattern: which events fit it. `where` None is always true."""

    name: str
    event_type: str
    where: Expr | None


class SkipKind(Enum):
    """The place where matching resumes after a match."""

    NONE = "none"
    TO_NEXT = "to next"
    PAST_LAST = "past last"
    TO_FIRST = "to first"
    TO_LAST = "to last"


@valueclass(frozen=True, slots=True)
class Skip:
    """The place where matching resumes after a match. `in_order` waits for earlier starts, as SQL and Flink CEP do."""

    kind: SkipKind = SkipKind.PAST_LAST
    variable: str | None = None
    in_order: bool = False


@valueclass(frozen=True, slots=True)
class ParamDecl:
    """A declared parameter; `default` and bounds are slot contents (see Const)."""

    name: str
    type: Type
    default: int | float | bool | str | None = None
    minimum: int | float | None = None
    maximum: int | float | None = None


@valueclass(frozen=True, slots=True)
class Measure:
    """One value that the pattern emits with a match."""

    name: str
    value: Expr


@valueclass(frozen=True, slots=True)
class PatternIR:
    """A checked pattern.

    `key` are the fields that partition the stream. `event_types` is the stream that contiguity looks at: the types that
    the pattern names (all of the schema with `over all`). `produces` is the event type that its matches become, with
    the measures as fields.
    """

    name: str
    params: tuple[ParamDecl, ...]
    key: tuple[str, ...]
    structure: SequenceNode
    variables: tuple[Variable, ...]
    measures: tuple[Measure, ...]
    event_types: tuple[str, ...]
    skip: Skip = Skip()
    within_ms: int | Param | None = None
    within_events: int | Param | None = None
    timeout_measures: tuple[Measure, ...] | None = None
    doc: str = ""
    produces: str | None = None

    def variable(self, name: str) -> Variable:
        return next(v for v in self.variables if v.name == name)


# ---------------------------------------------------------------------------------------------------- tests

Slot = int | float | bool | str | None  # the content of a slot (see Const), None for null


@dataclass(frozen=True, slots=True)
class ScriptedEvent:
    """One event. `key` is the label of its key; `fields` has every field of its type but the time."""

    key: str
    event_type: str
    time_ms: int
    event_id: str
    fields: tuple[tuple[str, Slot], ...]
    span: Span


@dataclass(frozen=True, slots=True)
class ExpectedValue:
    """An emitted value: the slot, and how far a float may be off (half a unit of its last written digit)."""

    name: str
    value: Slot
    type: Type
    tolerance: float = 0.0


@dataclass(frozen=True, slots=True)
class Expected:
    """An expected match or time-out. An attribute of None, or a value that is not named, may be anything."""

    is_timeout: bool
    key: str | None
    at_ms: int | None
    values: tuple[ExpectedValue, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class ExpectedCount:
    """`expect matches 3`: how many matches there are, on one key or on all."""

    key: str | None
    count: int
    span: Span


@dataclass(frozen=True, slots=True)
class PatternTest:
    """A checked test. `pattern` is bound to the test's arguments; `todo` says why the test may fail for now, or None.

    The matches must be exactly the `expected` ones, unless `counts` give their number on a key: then the `expected`
    ones must be among them. Time-outs are compared if one is expected. `nothing` are keys (None: all keys) on which
    there must be no match and no time-out.
    """

    name: str
    pattern: PatternIR
    arguments: tuple[tuple[str, object], ...]
    events: tuple[ScriptedEvent, ...]
    expected: tuple[Expected, ...]
    counts: tuple[ExpectedCount, ...]
    nothing: tuple[str | None, ...]
    todo: str | None
    span: Span


@dataclass(frozen=True, slots=True)
class RefusedTest:
    """A test that cannot be carried out: the text of it or of its pattern has mistakes."""

    name: str
    pattern: str
    span: Span
