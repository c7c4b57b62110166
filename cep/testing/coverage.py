"""Traces of the tests of one pattern → the covered parts of its automaton.

It counts NFA states, transitions (waits that a run passed, or whose absence became certain), and both outcomes of every
condition, true and not true. Tests with other parameters may have another automaton: common parts count once.
Tested by: tests/testing/test_harness.py
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cep.lang.ir import PatternIR
from cep.lang.show import show_expr
from cep.nfa.positions import Automaton, Wait
from cep.testing.conditions import parts_of
from cep.testing.journal import Trace


@dataclass(slots=True)
class Share:
    """A set of items, such as the states of a pattern, and the items that tests have reached."""

    every: dict[str, str] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)

    def add(self, name: str, text: str, *, is_reached: bool) -> None:
        """Count a thing; of several texts the first is kept."""
        self.every.setdefault(name, text)
        if is_reached:
            self.reached.add(name)

    def missing(self) -> list[str]:
        """Return the texts of the things that no test reached."""
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
    """Coverage of a pattern by the traces of its tests; `pattern` names it."""
    coverage = Coverage(pattern.name)
    for trace in traces:
        automaton, names = trace.automaton, _state_names(trace.automaton)
        for position, name in enumerate(names[1:], start=1):
            coverage.states.add(name, name, is_reached=position in trace.covered.positions)
        for position, position_waits in enumerate(automaton.positions):
            for index, wait in enumerate(position_waits.waits):
                name = f"{names[position]} {_arrow(wait)} {_target(names, wait)}"
                coverage.transitions.add(name, name, is_reached=(position, index) in trace.covered.waits)
        _outcomes(coverage.outcomes, trace)
    return coverage


def _outcomes(share: Share, trace: Trace) -> None:
    parts = [(v.name, i, p) for v in trace.pattern.variables for i, p in enumerate(parts_of(v.where))]
    untils = {
        trace.automaton.positions[w.target].variable: until
        for position in trace.automaton.positions
        for w in position.waits
        if w.target is not None
        for until in w.untils
    }
    parts += [(f"until {name}", 0, until) for name, until in untils.items()]
    for name, index, part in parts:
        for holds in (True, False):
            shown = f"{name}: {show_expr(part)} is {'true' if holds else 'not true'}"
            # The values of parameters differ between tests, so the place of a condition is its name.
            share.add(f"{name} {index} {holds}", shown, is_reached=(name, index, holds) in trace.covered.outcomes)


def _state_names(automaton: Automaton) -> list[str]:
    """Name the variable of each state, numbered where a group's repetition or a choice has several of one variable."""
    variables = [p.variable for p in automaton.positions]
    names = ["start"]
    for position, name in enumerate(variables[1:], start=1):
        nth = variables[: position + 1].count(name)
        names.append(name if variables.count(name) == 1 else f"{name}#{nth}")
    return names


def _arrow(wait: Wait) -> str:
    assert wait.link is not None, "every wait has been joined"
    return wait.link.value


def _target(names: list[str], wait: Wait) -> str:
    if wait.target is not None:
        return names[wait.target]
    return " ".join(f"!{g.variable}" for g in wait.guards if g.variable is not None) + " until the time is up"
