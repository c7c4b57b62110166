"""The conditions of a pattern, part by part: whether an event fits a variable, stops a loop, or closes a wait.

A variable's condition is cut at its outermost `and`s, so that it can be said which part of it did not hold.
Tested by: tests/testing/test_explain.py
"""

from __future__ import annotations

from cep.lang.ir import Binary, Expr, PatternIR
from cep.nfa.positions import Guard
from cep.nfa.simplify import needs_run
from cep.testing.journal import Covered, Run, TracedEvent
from cep.testing.values import BoundFields, value_of

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
        """Return True if the event can fit the variable at all."""
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

    def holds(self, condition: Expr, name: str, event: TracedEvent, run: Run) -> bool:
        """Return True if a condition of `until` holds for the event."""
        holds = value_of(condition, event.fields, self.bound(run)) is True
        self.covered.outcomes.add((name, 0, holds))
        return holds

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
