"""The journal of a trace: events, runs, the end of each wait, near misses, matches; conditions, and their coverage.

A variable's condition is cut at its outermost `and`s, so that it can be said which part of it did not hold. Coverage
counts NFA states, transitions (waits that a run passed, or whose absence became certain), and both outcomes of every
condition, true and not true. Tests with other parameters may have another automaton: common parts count once.
Tested by: tests/testing/test_explain.py, tests/testing/test_harness.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from cep.lang.ir import Binary, Expr, PatternIR
from cep.lang.show import show_expr
from cep.nfa.positions import Automaton, Guard, Wait
from cep.nfa.simplify import needs_run
from cep.testing.values import BoundFields, Fields, value_of


@dataclass(frozen=True, slots=True)
class TracedEvent:
    """One event of the key; `ordinal` counts the events of the pattern's stream, -1 for one that is outside."""

    row: int
    event_id: str
    event_type: str
    time_ms: int
    fields: Fields
    ordinal: int


class Why(Enum):
    """The reason why a wait (a possible next step of a run) ended."""

    TAKEN = "an event was taken"
    CONDITION = "the next event does not fit, and no other may come between"
    BETWEEN = "another event came between"
    LATE = "the time of the step was up"
    ABSENCE = "an event came that must not come"
    GREEDY = "the loop goes on"  # a longer run, with this event in its greedy loop, goes on instead
    STOP = "an event stopped the loop"
    SKIP = "a match covers the run"
    WITHIN = "the window was over"
    EVENTS = "the window in events was over"
    CERTAIN = "the absence was certain"  # its time has passed without the forbidden event


@dataclass(frozen=True, slots=True)
class Closing:
    """The end of a wait: the event or match (indices) or deadline, and the event time."""

    wait: int
    why: Why
    at_ms: int
    row: int | None = None
    guard: Guard | None = None
    match: int | None = None


@dataclass(frozen=True, slots=True)
class Miss:
    """An event that matches a wait's event type but not its condition. `failed` are indices of the variable's
    conditions; `stopped`: the condition holds, but so does `until`."""

    wait: int
    row: int
    failed: tuple[int, ...]
    stopped: bool = False


@dataclass(slots=True)
class Run:
    """A run after one more event. Its parents are the earlier events; run 0 has taken no event."""

    number: int
    parent: Run | None
    position: int
    row: int = -1
    start_row: int = -1
    ordinal: int = -1
    start_ordinal: int = -1
    length: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    marks: dict[int, int] = field(default_factory=dict)
    open: list[int] = field(default_factory=list)
    opened: tuple[int, ...] = ()
    expiry_ms: int = 0
    is_reported: bool = False
    freed: list[Expr] = field(default_factory=list)
    awaits_emission: bool = False
    closings: list[Closing] = field(default_factory=list)
    misses: dict[int, Miss] = field(default_factory=dict)
    children: list[Run] = field(default_factory=list)
    matches: list[int] = field(default_factory=list)

    def taken(self) -> list[Run]:
        """Return the run after each of its events, the first one first."""
        runs: list[Run] = []
        run: Run | None = self
        while run is not None and run.row >= 0:
            runs.append(run)
            run = run.parent
        return runs[::-1]

    def rows(self) -> tuple[int, ...]:
        return tuple(run.row for run in self.taken())

    def descendants(self) -> Iterator[Run]:
        """Yield the run itself and all its descendants."""
        waiting = [self]
        while waiting:
            run = waiting.pop()
            yield run
            waiting += run.children


@dataclass(slots=True)
class TracedMatch:
    """A match or a time-out. `dropped_by` is the match that covered it at the moment when both were complete."""

    number: int
    run: Run
    detected_ms: int
    is_match: bool
    is_timeout: bool
    dropped_by: int | None = None


@dataclass(slots=True)
class Covered:
    """Positions reached, waits gone through, and the outcomes of each condition (variable or `until x`, index)."""

    positions: set[int] = field(default_factory=set)
    waits: set[tuple[int, int]] = field(default_factory=set)
    outcomes: set[tuple[str, int, bool]] = field(default_factory=set)


@dataclass(slots=True)
class Trace:
    """The record of all runs of one key. `start` is the run that has taken no event; its misses are events that began
    no run. `misses` maps the row of an event to the runs that could not take the event, each with the reason."""

    pattern: PatternIR
    automaton: Automaton
    events: tuple[TracedEvent, ...]
    start: Run
    matches: list[TracedMatch]
    covered: Covered
    misses: dict[int, list[tuple[Run, Miss]]]

    def emitted(self) -> list[TracedMatch]:
        """Return the matches and time-outs that become alerts."""
        return [m for m in self.matches if m.dropped_by is None]


_NOTHING: BoundFields = {}


def parts_of(expr: Expr | None) -> tuple[Expr, ...]:
    """Return the parts that all have to hold."""
    if expr is None:
        return ()
    if isinstance(expr, Binary) and expr.op == "and":
        return (*parts_of(expr.left), *parts_of(expr.right))
    return (expr,)


class Conditions:
    """Judges events for the runs of one key, and notes every outcome for the coverage."""

    def __init__(self, pattern: PatternIR, positions: tuple[str, ...], events: tuple[TracedEvent, ...]) -> None:
        self._events = events
        self._positions = positions  # the variable of each position
        self.covered = Covered()
        self._types = {v.name: v.event_type for v in pattern.variables}
        self._parts = {v.name: [(part, needs_run(part)) for part in parts_of(v.where)] for v in pattern.variables}

    def is_of_type(self, variable: str, event: TracedEvent) -> bool:
        return self._types[variable] == event.event_type

    def failed(self, variable: str, event: TracedEvent, run: Run) -> tuple[int, ...]:
        """Return the parts of the variable's condition that are not true for the event. All are looked at."""
        indices: list[int] = []
        for index, (part, asks_run) in enumerate(self._parts[variable]):
            bound = self.bound(run) if asks_run else _NOTHING
            holds = value_of(part, event.fields, bound) is True
            self.covered.outcomes.add((variable, index, holds))
            if not holds:
                indices.append(index)
        return tuple(indices)

    def stops(self, untils: tuple[Expr, ...], variable: str, event: TracedEvent, run: Run) -> bool:
        """Return True if a condition of `until` holds for the event. All are looked at."""
        outcomes = [value_of(until, event.fields, self.bound(run)) is True for until in untils]
        self.covered.outcomes.update((f"until {variable}", index, holds) for index, holds in enumerate(outcomes))
        return any(outcomes)

    def closes(self, guard: Guard, event: TracedEvent, run: Run) -> bool:
        """Return True if the guard speaks of this event."""
        if guard.variable is not None and (
            not self.is_of_type(guard.variable, event) or self.failed(guard.variable, event, run)
        ):
            return False
        if guard.condition is not None and value_of(guard.condition, event.fields, self.bound(run)) is not True:
            return False
        return all(value_of(unless, event.fields, self.bound(run)) is not True for unless in guard.unless)

    def bound(self, run: Run) -> BoundFields:
        """Return the fields of the events that the run has taken, by variable."""
        by_variable: dict[str, list[object]] = {}
        for step in run.taken():
            by_variable.setdefault(self._positions[step.position], []).append(self._events[step.row].fields)
        return by_variable  # type: ignore[return-value]


@dataclass(slots=True)
class Share:
    """A set of items, such as the states of a pattern, and the items that tests have reached."""

    every: dict[str, str] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)

    def add(self, name: str, text: str, *, is_reached: bool) -> None:
        """Add an item, and note whether a test reached it. An item that is added again keeps its first text."""
        self.every.setdefault(name, text)
        if is_reached:
            self.reached.add(name)

    def missing(self) -> list[str]:
        return [text for name, text in self.every.items() if name not in self.reached]

    @property
    def counts(self) -> tuple[int, int]:
        """(reached, all)."""
        return len(self.reached), len(self.every)


@dataclass(slots=True)
class Coverage:
    """The parts of one pattern that its tests have covered."""

    pattern: str
    states: Share = field(default_factory=Share)
    transitions: Share = field(default_factory=Share)
    outcomes: Share = field(default_factory=Share)


def coverage_of(pattern: PatternIR, traces: Iterable[Trace]) -> Coverage:
    """Return the states, transitions and outcomes of conditions that `traces`, of the pattern's tests, have reached."""
    coverage = Coverage(pattern.name)
    for trace in traces:
        automaton, names = trace.automaton, _state_names(trace.automaton)
        for position, name in enumerate(names[1:], start=1):  # position 0 is the start
            coverage.states.add(name, name, is_reached=position in trace.covered.positions)
        for position, position_waits in enumerate(automaton.positions):
            for index, wait in enumerate(position_waits.waits):
                assert wait.link is not None, "every wait has been joined"
                name = f"{names[position]} {wait.link.value} {_target(names, wait)}"
                coverage.transitions.add(name, name, is_reached=(position, index) in trace.covered.waits)
        _add_outcomes(coverage.outcomes, trace)
    return coverage


def _add_outcomes(outcomes: Share, trace: Trace) -> None:
    """Add to the coverage whether each condition, and each `until`, was both true and not true at events of a test."""
    parts = [(v.name, i, p) for v in trace.pattern.variables for i, p in enumerate(parts_of(v.where))]
    untils = {  # the conditions that stop the loop of a variable, or a group around it
        (f"until {trace.automaton.positions[w.target].variable}", index): until
        for position in trace.automaton.positions
        for w in position.waits
        if w.target is not None
        for index, until in enumerate(w.untils)
    }
    parts += [(*place, until) for place, until in untils.items()]
    for name, index, part in parts:
        for holds in (True, False):
            shown = f"{name}: {show_expr(part)} is {'true' if holds else 'not true'}"
            # The name is the place of the condition: its text has the values of parameters, which differ by test.
            outcomes.add(f"{name} {index} {holds}", shown, is_reached=(name, index, holds) in trace.covered.outcomes)


def _state_names(automaton: Automaton) -> list[str]:
    """Name the variable of each state, numbered where a group's repetition or a choice has several of one variable."""
    variables = [p.variable for p in automaton.positions]
    names = ["start"]
    for position, name in enumerate(variables[1:], start=1):
        nth = variables[: position + 1].count(name)
        names.append(name if variables.count(name) == 1 else f"{name}#{nth}")
    return names


def _target(names: list[str], wait: Wait) -> str:
    if wait.target is not None:
        return names[wait.target]
    return " ".join(f"!{g.variable}" for g in wait.guards if g.variable is not None) + " until the time is up"
