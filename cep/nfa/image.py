"""Tables that grow while rules are compiled → the flat image that kernels read (kernels/layout.py).

Tested by: tests/nfa/test_compile.py
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cep.kernels import layout as y
from cep.kernels.opcodes import MACHINE_WIDTH
from cep.nfa.code import Instruction

Row = tuple[int, ...]
NO_CODE: Row = (-1, -1, -1)


@dataclass(slots=True)
class WaitRow:
    """A wait, with what belongs to it. `code` counts instructions here, words in the image."""

    target: int
    kind: int
    predicate: int
    code: Row
    simple: Row
    count: Row
    reset: int
    reopens: int
    marks: list[int]
    guards: list[Row]
    bounds: list[Row]


@dataclass(slots=True)
class StateRow:
    """An NFA state. An action's column is a number, or a derived column's number plus DERIVED."""

    accept: Row
    variable: int
    waits: list[WaitRow] = field(default_factory=list)
    actions: list[Row] = field(default_factory=list)


DERIVED = 1 << 20  # added to a column number that counts derived columns


@dataclass(slots=True)
class Tables:
    """Everything that goes into the image."""

    states: list[StateRow] = field(default_factory=list)
    measures: list[Row] = field(default_factory=list)

    def image(self, code: list[Instruction], constants: list[int], first_derived: int) -> tuple[y.Int64, int]:
        """The image, and the offset of the first measure."""
        waits = [w for s in self.states for w in s.waits]
        at_states = y.HEADER_WIDTH
        at_waits = at_states + y.STATE_WIDTH * len(self.states)
        at_guards = at_waits + y.WAIT_WIDTH * len(waits)
        at_bounds = at_guards + y.GUARD_WIDTH * sum(len(w.guards) for w in waits)
        at_marks = at_bounds + y.BOUND_WIDTH * sum(len(w.bounds) for w in waits)
        at_actions = at_marks + sum(len(w.marks) for w in waits)
        at_measures = at_actions + y.ACTION_WIDTH * sum(len(s.actions) for s in self.states)
        at_code = at_measures + y.MEASURE_WIDTH * len(self.measures)
        at_constants = at_code + MACHINE_WIDTH * len(code)

        def placed(row: Row) -> Row:
            first, last, result = row
            return row if first < 0 else (at_code + MACHINE_WIDTH * first, at_code + MACHINE_WIDTH * last, result)

        state_words: list[int] = []
        action_words: list[int] = []
        wait_at, action_at = at_waits, at_actions
        for nfa_state in self.states:
            wait_end = wait_at + y.WAIT_WIDTH * len(nfa_state.waits)
            action_end = action_at + y.ACTION_WIDTH * len(nfa_state.actions)
            state_words += [wait_at, wait_end, *nfa_state.accept, action_at, action_end, nfa_state.variable]
            wait_at, action_at = wait_end, action_end
            for kind, register, column, other in nfa_state.actions:
                action_words += [
                    kind,
                    register,
                    column - DERIVED + first_derived if column >= DERIVED else column,
                    other,
                ]
        wait_words: list[int] = []
        guard_words: list[int] = []
        bound_words: list[int] = []
        mark_words: list[int] = []
        for wait in waits:
            guard_at, bound_at = at_guards + len(guard_words), at_bounds + len(bound_words)
            mark_at = at_marks + len(mark_words)
            for moment, predicate, first, last, result, low, high in wait.guards:
                guard_words += [moment, predicate, *placed((first, last, result)), low, high]
            bound_words += [word for row in wait.bounds for word in row]
            mark_words += wait.marks
            wait_words += [
                wait.target,
                wait.kind,
                wait.predicate,
                *placed(wait.code),
                *wait.simple,
                *wait.count,
                wait.reset,
            ]
            wait_words += [mark_at, at_marks + len(mark_words), guard_at, at_guards + len(guard_words)]
            wait_words += [bound_at, at_bounds + len(bound_words), wait.reopens]
        measure_words = [word for row in self.measures for word in placed(row)]
        code_words = [word for row in code for word in row]
        parts = [
            [at_states, at_constants], state_words, wait_words, guard_words, bound_words, mark_words, action_words,
            measure_words, code_words, constants,
        ]  # fmt: skip
        image = np.array([word for part in parts for word in part], np.int64)
        assert len(image) == at_constants + len(constants), "every part lies where the offsets say"
        return image, at_measures
