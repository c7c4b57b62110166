"""The journal of a trace: events, runs, the end of each wait, near misses, matches, and covered runs.

Tested by: tests/testing/test_explain.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from cep.lang.ir import Expr, PatternIR
from cep.nfa.positions import Automaton, Guard
from cep.testing.values import Fields


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
    """The reason why a wait ended."""

    TAKEN = "an event was taken"
    CONDITION = "the next event does not fit, and no other may come between"
    BETWEEN = "another event came between"
    LATE = "the time of the step was up"
    ABSENCE = "an event came that must not come"
    GREEDY = "the loop goes on"
    STOP = "an event stopped the loop"
    SKIP = "a match covers the run"
    WITHIN = "the window was over"
    EVENTS = "the window in events was over"
    CERTAIN = "the absence was certain"


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
    """An event that matches a wait's event type but not its condition.

    `failed` are indices of the variable's conditions; `stopped`: the condition holds, but so does `until`.
    """

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
    is_suppressed: bool = False
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
        """Return the rows of the events taken, in order."""
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
    """The record of all runs of one key.

    `start` is the run that has taken no event; its misses are events that began no run. `misses` has by row of the
    event each run that the event did not fit.
    """

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
