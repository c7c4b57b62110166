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
    """A wait of an NFA state as numbers: the event it takes, its guards and its bounds on time.

    `target` is the next NFA state or -1; `kind` a WAIT_ constant; `predicate`, `code` and `simple` its condition;
    `count` the register of the loop counter and the interval in which it must lie; `reset` the counter that it sets to
    0, or -1; `marks` the registers that note the time. `code` counts instructions.
    """

    target: int
    kind: int
    predicate: int
    code: Row
    simple: Row
    count: Row
    reset: int
    reopens: int
    marks: list[int]
    guards: list[GuardRow]
    bounds: list[Row]


@dataclass(slots=True)
class StateRow:
    """An NFA state. An action's column is a number, or a derived column's number plus DERIVED."""

    accept: Row
    variable: int
    waits: list[WaitRow] = field(default_factory=list)
    actions: list[Row] = field(default_factory=list)


DERIVED = 1 << 20  # added to a column number that counts derived columns
