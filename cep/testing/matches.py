"""Matches of the engine → plain values that can be compared with a test's expectations.

Tested by: tests/testing/test_harness.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cep.base.schema import Kind, Type
from cep.engine.advance import Matches
from cep.lang.ir_tests import Slot
from cep.nfa.program import Program


@dataclass(frozen=True, slots=True)
class ObservedMatch:
    """A match or a time-out: its key's text, the time when it was certain, its measures, and its events."""

    key: str
    at_ms: int
    is_timeout: bool
    values: tuple[tuple[str, Slot, Type], ...]
    bound: tuple[tuple[str, str], ...]  # variable and event id, in binding order


def observed_matches(program: Program, matches: Matches) -> set[ObservedMatch]:
    """Convert the matches and time-outs of a program with one rule to a set that tests can compare."""
    (rule,) = program.rules
    observed: set[ObservedMatch] = set()
    for row in range(len(matches)):
        span = range(int(matches.offsets[row]), int(matches.offsets[row + 1]))
        bound = tuple(
            (rule.variables[int(matches.variable[number])], str(matches.event_id[number].as_py())) for number in span
        )
        key, at_ms = str(matches.keys[int(matches.key[row])].as_py()), int(matches.detected_ms[row])
        if matches.completed[row]:
            values = tuple((n, _value(matches, row, number, t), t) for number, (n, t) in enumerate(rule.measures))
            observed.add(ObservedMatch(key, at_ms, False, values, bound))
        if matches.timed_out[row]:
            timeout_measures = enumerate(rule.timeout_measures, start=len(rule.measures))
            values = tuple((n, _value(matches, row, number, t), t) for number, (n, t) in timeout_measures)
            observed.add(ObservedMatch(key, at_ms, True, values, bound))
    return observed


def _value(matches: Matches, row: int, number: int, type_: Type) -> Slot:
    if matches.measures_null[row, number]:
        return None
    slot: np.int64 = matches.measures[row, number]
    if type_.is_text:
        return str(matches.texts[int(slot)].as_py())
    if type_.is_float:
        return float(slot.view(np.float64))
    return bool(slot) if type_.kind is Kind.BOOL else int(slot)
