"""The tables of one compiled pattern, in numbers of its own (piece.py makes arrays of them).

Tested by: tests/nfa/test_compile.py
"""

from dataclasses import dataclass, field

Row = tuple[int, ...]
NO_CODE: Row = (-1, -1, -1)


@dataclass(slots=True)
class GuardRow:
    """A guard: its kind, predicate and code, the flags of the stop events that free it, and its bounds."""

    kind: int
    predicate: int
    code: Row
    freed: int
    bounds: list[Row]


@dataclass(slots=True)
class WaitRow:
    """A wait (a transition of an NFA state, for which a run waits) as numbers.

    Its condition has up to two parts: a `predicate` of the event alone, and a part that also reads the run, either as
    `code` or, for one comparison with a field of a bound event, in the faster `simple` form.
    """

    target: int  # the next NFA state; -1 for an absence, which takes no event: it waits while an event is forbidden
    kind: int  # a WAIT_ constant of kernels/layout.py
    predicate: int  # -1: any event
    code: Row  # first instruction, end, register of the result; or NO_CODE.
    simple: Row  # comparison, column of the event, register of the bound event, its column; or prefixes.NOT_SIMPLE.
    count: Row  # register of the loop counter, or -1, and the interval in which the counter must lie.
    reset: int  # the loop counter that the wait sets to 0, or -1
    reopens: int  # bits of the state's waits: while one of them is open, this wait stays open when it takes an event.
    marks: list[int]  # registers for the row of the taken event, if a group begins with it: the window's first event
    guards: list[GuardRow]  # events that close the wait
    bounds: list[Row]  # limits of the time since an earlier event


@dataclass(slots=True)
class StateRow:
    """An NFA state. An action's column is a number, or a derived column's number plus DERIVED."""

    accept: Row
    variable: int
    waits: list[WaitRow] = field(default_factory=list)
    actions: list[Row] = field(default_factory=list)


DERIVED = 1 << 20  # added to a column number that counts derived columns
