"""The histories of all rules of a program → the past events that the engine stores, and the values that it computes.

A history has a value for each event, even without a match in progress. So it is a column of the event table, computed
before the matcher runs; equal histories of different rules are one column. Its `where` and its argument concern past
events: they are code over a separate table, the *history table*, with the stored events of each key followed by the new
ones.
Tested by: tests/histories/test_values.py
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from cep.base.limits import HISTORY_EVENTS_MAX, HISTORY_PANES, TIME_MS_MAX
from cep.base.schema import Kind, Schema, Type
from cep.kernels import layout as y
from cep.kernels.layout import Int64
from cep.lang.ir import CALENDAR_MS_MAX, CurrentField, History, HistoryFn, HistoryWindow
from cep.nfa.code import Constants, VectorCode, VectorProgram
from cep.nfa.columns import Column, ColumnMap, identity_of
from cep.nfa.simplify import Facts, conjuncts

SQUARES, FLOATS, FLOAT_SQUARES = "+squares", "+floats", "+squares of floats"
DIFFERENT, RANKS, BAND = "+different", "+ranks", "+band"
CUT = "+cut"


@dataclass(frozen=True, slots=True)
class HistoryColumn:
    """One history: the column of the event table that it fills, and the part of the history table that it reads.

    `member` is the bitmap of the events that count (-1: all), `event_type` the code of their type (-1: any), `value`
    the column of its argument (-1: none), `by` the columns of its sub-key. `events_max` is how many of the newest
    members of a (sub-)key can decide its value and are stored. `average` is the identity of the average to which the
    value, or its rest, belongs, "" for other functions.

    These names are the same in every program: `identity` for equal histories, `tally` for equal tallies
    (numbers/tally.py), "" without one, `panes` for equal panes (numbers/panes.py), 0 without panes, and
    `known_sub_keys` for histories that count the same events by the same sub-key (histories/sub_keys.py), 0 without
    one. `tally` ends in `SQUARES`, `FLOATS` or `FLOAT_SQUARES` if a tally has more than counts and integer sums.
    """

    number: int
    expr: History
    event_type: int
    member: int
    value: int
    by: tuple[int, ...]
    events_max: int
    identity: str
    tally: str
    panes: int
    known_sub_keys: int
    average: str = ""

    @property
    def is_approximate(self) -> bool:
        return is_approximate(self.expr)

    @property
    def is_hashed(self) -> bool:
        """True if its panes have hashes, whose least ones give the count."""
        return self.expr.fn in ("approx_distinct", "distinct")

    @property
    def is_extreme(self) -> bool:
        """True if its panes have one value each, the least or the greatest."""
        return self.expr.fn in ("min", "max")

    @property
    def is_float_sum(self) -> bool:
        """True if its panes have sums of floats."""
        return self.expr.fn in ("sum", "avg", "avg_rest") and _is_of_floats(self.expr)

    @property
    def has_float_tally(self) -> bool:
        return bool(self.tally) and _is_of_floats(self.expr)

    @property
    def is_float_spread(self) -> bool:
        """True if its panes have sums of floats and of their squares."""
        return self.expr.fn == "stddev" and _is_of_floats(self.expr)

    @property
    def is_foldable(self) -> bool:
        return is_foldable(self.expr)

    @property
    def is_first_of_window(self) -> bool:
        """True if folded windows use the first event of each pane, which stays an event."""
        return self.is_foldable and self.expr.fn == "first"

    @property
    def is_of_calendar(self) -> bool:
        """True if its panes are calendar units, so that its window is one of them."""
        return self.expr.window is not None and self.expr.window.calendar is not None

    @property
    def pane_ms(self) -> int:
        return pane_ms(self.expr)

    @property
    def panes_span_ms(self) -> int:
        """Return how long after its start a pane may be needed at most."""
        return self.span_ms + (0 if self.is_of_calendar else self.pane_ms)

    @property
    def is_single(self) -> bool:
        return is_single(self.expr)

    @property
    def is_sparse(self) -> bool:
        """True if few events of its window can still decide its value: extremes, or the latest with each value."""
        return self.expr.fn in ("min", "max", "distinct")

    @property
    def retention_ms(self) -> int:
        """Return how long after an event its window may include it: a folded window has whole panes at its far edge."""
        return self.span_ms + (self.pane_ms - 1 if self.is_foldable and not self.is_of_calendar else 0)

    @property
    def carried(self) -> str:
        """The name under which its deciding values are carried from call to call; "" if its windows are read."""
        return self.tally or (self.identity if self.is_sparse else "")

    @property
    def counted(self) -> str:
        """The name under which the number of a key's distinct values is carried, if pinned events would be too many."""
        is_of_field = isinstance(self.expr.argument, CurrentField) and self.expr.window is not None
        return self.identity + DIFFERENT if self.expr.fn == "distinct" and is_of_field and not self.by else ""

    @property
    def ranked(self) -> str:
        """The name under which ranks in its windows are carried (numbers/bands.py); "" if its windows are read."""
        is_rank = self.expr.fn in ("median", "percentile") and not self.by
        return self.identity + RANKS if is_rank else ""

    @property
    def band(self) -> str:
        """The name under which the values around its rank are carried."""
        return self.identity + BAND

    @property
    def percent(self) -> int:
        percent = 50 if self.expr.percent is None else getattr(self.expr.percent, "value", None)
        assert isinstance(percent, int), "parameters are bound before compilation"
        return percent

    @property
    def span_ms(self) -> int:
        return span_ms(self.expr)

    @property
    def is_oldest(self) -> bool:
        """True if its value comes from the oldest event of its window, of any kind."""
        expr = self.expr
        return expr.fn == "first" and expr.window is not None and expr.where is None and not expr.by

    @property
    def is_first(self) -> bool:
        """True if the oldest event that counts decides, not the newest."""
        return self.expr.fn in ("first", "first_seen")


@dataclass(frozen=True)
class HistoryPlan:
    """The histories of a program; the columns of the history table, with code and constants of their own.

    `bitmaps_count` is the number of predicates. `retained_ms`: how long the schema retains events, by type code.
    """

    histories: tuple[HistoryColumn, ...]
    columns: tuple[Column, ...]
    vector: VectorProgram
    constants: Int64
    text_constants: tuple[tuple[int, str], ...]
    bitmaps_count: int
    retained_ms: Mapping[int, int]
    types_count: int

    @cached_property
    def span_max_ms(self) -> int:
        """Return how long after an event of a segment it may be needed at most; 0 if no event is stored."""
        spans = [history.span_ms for history in self.histories if not history.is_single]
        of_panes = [history.panes_span_ms for history in self.histories if history.panes]
        return max([*spans, *of_panes, *self.retained_ms.values()], default=0)

    @cached_property
    def stored_columns(self) -> tuple[Column, ...]:
        """The stored columns of past events: fields, and the results of lists."""
        return tuple(c for c in self.columns[y.COLUMNS_FIXED :] if c.is_field or c.is_listed)

    @cached_property
    def events_max(self) -> int:
        """Return how many of the newest events of a key can decide the value of one of its histories."""
        of_events = (h for h in self.histories if not h.is_single and not h.is_approximate)
        return max((history.events_max for history in of_events), default=HISTORY_EVENTS_MAX)

    @cached_property
    def written(self) -> tuple[HistoryColumn, ...]:
        """The histories that patterns write. The others are rests of averages."""
        return tuple(history for history in self.histories if history.expr.fn != "avg_rest")

    @cached_property
    def identities(self) -> frozenset[str]:
        return frozenset(history.identity for history in self.histories)

    @cached_property
    def panes(self) -> Mapping[int, HistoryColumn]:
        """A history for each number of panes, which is worked out from them."""
        return {history.panes: history for history in self.histories if history.panes}

    @cached_property
    def by_known_sub_keys(self) -> Mapping[int, HistoryColumn]:
        """A history for each number of known sub-keys, whose panes have no values."""
        return {
            h.known_sub_keys: replace(h, expr=replace(h.expr, fn="first"), panes=h.known_sub_keys, tally="")
            for h in self.histories
            if h.known_sub_keys
        }

    @cached_property
    def retained_panes(self) -> Mapping[int, HistoryColumn]:
        """A history for each number of segments of panes, which are stored as its panes are."""
        return {**self.panes, **self.by_known_sub_keys}

    @cached_property
    def approximate(self) -> Mapping[int, HistoryColumn]:
        """The panes of approximate histories, which have all events."""
        return {number: history for number, history in self.panes.items() if history.is_approximate}

    @cached_property
    def carried(self) -> frozenset[str]:
        return frozenset(history.carried for history in self.histories if history.carried)

    def tally_windows(self, names: frozenset[str]) -> tuple[HistoryWindow, ...]:
        """Return the different windows of tallies of these names."""
        windows = (h.expr.window for h in self.histories if names & {h.tally, h.counted, h.ranked})
        return tuple(dict.fromkeys(replace(window, previous=False) for window in windows if window is not None))

    @cached_property
    def stored_names(self) -> frozenset[str]:
        return frozenset(column.name for column in self.stored_columns)

    @cached_property
    def derived_first(self) -> int:
        return next((i for i, c in enumerate(self.columns) if c.derived), len(self.columns))


def span_ms(expr: History) -> int:
    """Return how long after an event a history may ask for it at most."""
    window = expr.window
    if window is None:
        return TIME_MS_MAX
    if window.calendar is not None:
        return CALENDAR_MS_MAX[window.calendar]
    assert isinstance(window.ms, int), "parameters are bound before compilation"
    return window.ms


def pane_ms(expr: History) -> int:
    """Return how long the panes of its window are."""
    assert expr.window is not None, "panes are of windows"
    assert isinstance(expr.window.ms, int), "panes are of lengths of time"
    return -(-expr.window.ms // HISTORY_PANES)


def is_single(expr: History) -> bool:
    """Return True if one event alone decides the value. The first one of a window changes with the window."""
    return expr.fn in ("last", "exists", "first_seen") or (expr.fn == "first" and expr.window is None)


def plan_histories(schema: Schema, histories: Mapping[int, History]) -> HistoryPlan | None:
    """Return the plan for histories by the column that they fill; None if there are none and nothing is retained."""
    return _planned(schema, tuple(histories.items()), HISTORY_EVENTS_MAX)


@lru_cache(16)  # a change of one rule seldom changes the histories
def _planned(schema: Schema, histories: tuple[tuple[int, History], ...], events_max: int) -> HistoryPlan | None:
    retained_ms = {schema.code(e.name): e.retain_ms for e in schema.event_types if e.retain_ms is not None}
    if not histories and not retained_ms:
        return None
    constants, columns = Constants(), ColumnMap(schema)
    vector = VectorCode(constants, columns)
    everywhere = frozenset(name for name, type_ in schema.columns().items() if not type_.nullable)
    facts = Facts(frozenset(), frozenset(), schema.never_null & everywhere)
    members: dict[object, int] = {}
    derived: dict[int, History] = {}
    planned: list[tuple[int, History, int, int]] = []
    for number, expr in histories:
        conditions = conjuncts(expr.where, facts)
        code = schema.code(expr.event_type) if expr.event_type and len(schema.event_types) > 1 else None
        member = -1
        if conditions or code is not None:
            key = (tuple(conditions), code)
            if key not in members:
                members[key] = len(members)
                vector.predicate(conditions, code)
            member = members[key]
        value = -1
        if isinstance(expr.argument, CurrentField):
            value = columns.number(expr.argument.field)
        elif expr.argument is not None:
            index = vector.derived(expr.argument)
            derived.setdefault(index, expr)
            value = -2 - index  # placed below, when the number of columns is known
        for name in expr.by:
            columns.number(name)
        planned.append((number, expr, member, value))
    for event_type in schema.event_types:
        if event_type.retain_ms is not None:
            for field in event_type.fields:
                if field.name not in (event_type.id_field, event_type.time_field):
                    columns.number(field.name)
    finished = vector.finish()
    types = [derived[index].argument for index in sorted(derived)]
    table = columns.columns([argument.type for argument in types if argument is not None])
    first_derived = len(table) - len(derived)
    return HistoryPlan(
        histories=tuple(
            HistoryColumn(
                number,
                expr,
                schema.code(expr.event_type) if expr.event_type else -1,
                member,
                value if value >= -1 else first_derived - 2 - value,
                tuple(columns.number(name) for name in expr.by),
                1 if is_single(expr) else events_max,
                identity_of(expr),
                _tally(expr),
                _panes(expr),
                _known_sub_keys(expr),
                identity_of(replace(expr, fn="avg")) if expr.fn in ("avg", "avg_rest") else "",
            )
            for number, expr, member, value in planned
        ),
        columns=table,
        vector=finished,
        constants=np.array(constants.slots, np.int64),
        text_constants=tuple(constants.texts),
        bitmaps_count=len(members),
        retained_ms=retained_ms,
        types_count=len(schema.event_types),
    )


def _tally(expr: History) -> str:
    """Return the name of its tally: the number of events, their sum, and for spreads the sum of squares."""
    if expr.fn not in ("count", "sum", "avg", "avg_rest", "stddev") or expr.window is None:
        return ""
    # What tells them apart is worked out from it: the function, its type, and whether the event itself counts.
    alike = replace(expr, fn="count", type=Type(Kind.INT), window=replace(expr.window, previous=False))
    if _is_of_floats(expr):
        return identity_of(alike) + (FLOAT_SQUARES if expr.fn == "stddev" else FLOATS)
    return identity_of(alike) + SQUARES * (expr.fn == "stddev")


def _is_of_floats(expr: History) -> bool:
    return expr.argument is not None and expr.argument.type.is_float


def is_approximate(expr: History) -> bool:
    """Return True if it is worked out from panes alone."""
    return expr.fn in ("approx_distinct", "approx_percentile")


def is_foldable(expr: History) -> bool:
    """Return True if its window may have more events than the limit; older ones are then folded (folds.py)."""
    return expr.window is not None and not (is_single(expr) or is_approximate(expr))


def _panes(expr: History) -> int:
    """Return the number of its panes: one for all percentages, and whether or not the event itself counts."""
    if expr.window is None or is_single(expr) or expr.fn == "first":  # the first ones of panes stay events
        return 0
    same: dict[HistoryFn, HistoryFn] = {"avg": "sum", "avg_rest": "sum", "median": "percentile"}
    window = replace(expr.window, previous=False)
    identical = replace(expr, fn=same.get(expr.fn, expr.fn), percent=None, window=window, type=Type(Kind.INT))
    return int(identity_of(identical)[:15], 16) + 1


def _known_sub_keys(expr: History) -> int:
    """Return the number of its known sub-keys: one for histories that count the same events."""
    if not (expr.by and is_foldable(expr)):
        return 0
    assert expr.window is not None, "they have a window"
    argument, window = None if expr.fn == "first" else expr.argument, replace(expr.window, previous=False)
    identical = replace(expr, fn="exists", argument=argument, percent=None, window=window, type=Type(Kind.INT))
    return int(identity_of(identical)[:15], 16) + 1
