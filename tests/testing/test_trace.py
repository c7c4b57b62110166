"""The trace finds the same matches as the engine, and explains each match that was not found."""

from __future__ import annotations

import pytest

from cep.engine.advance import advance
from cep.nfa.compile import problems
from cep.testing.conditions import Conditions
from cep.testing.journal import Trace, TracedEvent
from cep.testing.trace import trace_key
from cep.testing.values import value_of
from tests.engine.bridge import END_MS, Answers, Found, _found, batch_of, event_id, oracle_answers, program_of
from tests.oracle.matcher import Event
from tests.oracle.random_cases import SCHEMA, Case, random_case, with_nulls

BLOCK = 50
# The first blocks of each level belong to the fast loop.
FAST_BLOCKS = 1
BLOCKS = [
    pytest.param(level, block, marks=[] if block < FAST_BLOCKS else [pytest.mark.slow, pytest.mark.always])
    for level, blocks in ((1, 3), (2, 6), (3, 10))
    for block in range(blocks)
]


def traced(case: Case, key_events: list[Event]) -> Trace:
    events = [
        TracedEvent(row, event_id(e.order), e.type, e.time_ms, e.fields, row)
        for row, e in enumerate(sorted(key_events, key=lambda e: (e.time_ms, e.order)))
    ]
    return trace_key(case.pattern, events)


def answers(case: Case) -> Answers:
    matches: list[Found] = []
    timeouts: list[Found] = []
    for key, events in case.events.items():
        trace = traced(case, events)
        names = tuple(p.variable for p in trace.automaton.positions)
        conditions = Conditions(case.pattern, names, trace.events)
        for match in trace.emitted():
            bound: dict[str, list[str]] = {}
            for step in match.run.taken():
                bound.setdefault(names[step.position], []).append(trace.events[step.row].event_id)
            one = (key, tuple(sorted((name, tuple(ids)) for name, ids in bound.items())), match.detected_ms)
            fields = conditions.bound(match.run)
            if match.is_match:
                measures = tuple((m.name, value_of(m.value, {}, fields)) for m in case.pattern.measures)
                matches.append((*one, measures))
            if match.is_timeout:
                late = case.pattern.timeout_measures or ()
                timeouts.append((*one, tuple((m.name, value_of(m.value, {}, fields)) for m in late)))
    return Answers(frozenset(matches), frozenset(timeouts))


def engine_answers(case: Case) -> Answers:
    """Return matches as sets: groups and alternatives can bind the same events in two ways, which make one alert."""
    program = program_of(SCHEMA, case.pattern)
    advanced = advance(program, None, batch_of(SCHEMA, case.events), END_MS)
    matches = list(_found(program, advanced.matches))
    return Answers(
        frozenset(one for timed_out, one in matches if not timed_out),
        frozenset(one for timed_out, one in matches if timed_out),
    )


@pytest.mark.parametrize(("level", "block"), BLOCKS)
def test_the_trace_finds_what_the_engine_finds(level: int, block: int) -> None:
    cases = [random_case(seed, level) for seed in range(block * BLOCK, (block + 1) * BLOCK)]
    cases += map(with_nulls, cases[:10])
    # If several bindings of the same events are one match, the trace may name any of them.
    assert [
        f"random_case({case.seed}, {case.level})"
        for case in cases
        if not problems(case.pattern, SCHEMA)
        and answers(case) not in (engine_answers(case), oracle_answers(case.pattern, case.events))
    ] == []
