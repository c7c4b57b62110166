"""Changes that must not affect an answer: unrelated events, other keys, the order of keys.

Random patterns of every level (tests/oracle/random_cases.py), every other one with a condition over past events; splits
into batches and further rules are in test_against_oracle.py and tests/histories/test_oracle.py.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from cep.base.schema import EventType, Schema
from cep.lang.ir import SequenceNode
from cep.lang.walk import histories
from cep.nfa.compile import problems
from tests.engine.bridge import EventsByKey, batch_of, engine_answers, joined, oracle_answers, program_of, split, whole
from tests.engine.test_against_oracle import difference
from tests.histories.test_oracle import with_past
from tests.oracle.expressions import Value
from tests.oracle.matcher import Event
from tests.oracle.random_cases import EVENT_TYPE, SCHEMA, Case, random_case

OTHER = "other"
# A second event type with the key but without the fields in conditions.
TWO_TYPES = Schema((*SCHEMA.event_types, EventType(OTHER, SCHEMA.event_types[0].fields[:3])))
CASES = 40
LEVELS = pytest.mark.parametrize("level", [1, 2, 3])


def _cases(level: int) -> Iterator[tuple[Case, Random]]:
    for seed in range(200_000, 200_000 + CASES):
        case = random_case(seed, level)
        if seed % 2:
            case = with_past(case)
        if not problems(case.pattern, TWO_TYPES):
            yield case, Random(f"{level}/{seed}")


def _with_others(events: EventsByKey, random: Random) -> dict[str, list[Event]]:
    """Return the events with events of another type between them, of the same keys; times and order stay."""
    merged: dict[str, list[Event]] = {}
    for key, key_events in events.items():
        merged[key] = []
        for event in key_events:
            merged[key].append(replace(event, order=event.order * 10))
            for place in range(random.choice((0, 0, 1, 2))):
                order, time_ms = event.order * 10 + 1 + place, event.time_ms + random.choice((0, 0, 1))
                fields: dict[str, Value] = {"id": str(order), "event_time": time_ms, "key": key}
                merged[key].append(Event(1_000 + order, OTHER, time_ms, order, fields))
        merged[key].sort(key=lambda event: (event.time_ms, event.order))
    return merged


@LEVELS
def test_events_of_types_that_the_pattern_does_not_name_change_nothing(level: int) -> None:
    lines = []
    for case, random in _cases(level):
        program = program_of(TWO_TYPES, case.pattern)
        events = _with_others(case.events, random)
        own = {key: [event for event in key_events if event.type == EVENT_TYPE] for key, key_events in events.items()}
        without = engine_answers(program, whole(batch_of(TWO_TYPES, own)))
        batch = batch_of(TWO_TYPES, events)
        lines.append(difference(case, engine_answers(program, whole(batch)), without, "with others"))
        lines.append(difference(case, engine_answers(program, split(batch, random)), without, "with others, split"))
    assert [line for line in lines if line] == []


@LEVELS
def test_over_all_looks_at_every_type(level: int) -> None:
    lines, changed = [], 0
    for case, random in _cases(level):
        pattern = replace(case.pattern, event_types=(EVENT_TYPE, OTHER))
        program = program_of(TWO_TYPES, pattern)
        events = _with_others(case.events, random)
        batch, expected = batch_of(TWO_TYPES, events), oracle_answers(pattern, events)
        lines.append(difference(case, engine_answers(program, whole(batch)), expected, "over all"))
        lines.append(difference(case, engine_answers(program, split(batch, random)), expected, "over all, split"))
        changed += expected != oracle_answers(case.pattern, events)
    assert [line for line in lines if line] == []
    assert changed > 3 or level == 1, "`over all` should decide something now and then"


@LEVELS
def test_no_grouping_of_keys_and_no_order_of_theirs_changes_the_answer(level: int) -> None:
    lines = []
    for case, random in _cases(level):
        program, batch = program_of(SCHEMA, case.pattern), batch_of(SCHEMA, case.events)
        together = engine_answers(program, whole(batch))
        groups: list[dict[str, list[Event]]] = [{}, {}]
        for key, key_events in case.events.items():
            random.choice(groups)[key] = key_events
        apart = [engine_answers(program, split(batch_of(SCHEMA, group), random)) for group in groups]
        lines.append(difference(case, joined(apart), together, "in groups of keys"))
        keys = np.array(batch.key.to_pylist())
        chosen = random.sample(sorted(case.events), len(case.events))
        rows = np.concatenate([np.flatnonzero(keys == key) for key in chosen])
        lines.append(difference(case, engine_answers(program, whole(batch.take(rows))), together, "key after key"))
    assert [line for line in lines if line] == []


def test_the_random_cases_hold_what_the_properties_are_about() -> None:
    patterns = [case.pattern for level in (1, 2, 3) for case, _ in _cases(level)]
    steps = [step for p in patterns if isinstance(p.structure, SequenceNode) for step in p.structure.steps]
    assert sum(any(True for _ in histories(p)) for p in patterns) > 20
    assert sum(step.negated for step in steps) > 20
    assert sum(p.within_events is not None for p in patterns) > 2
    assert sum(p.timeout_measures is not None for p in patterns) > 5
