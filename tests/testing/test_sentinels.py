"""Explanations in words never show the bounds of time that stand for never and for ever."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.nfa.compile import problems
from cep.testing.explain import Explainer
from cep.testing.inquiry import Answer, World, why, why_not
from cep.testing.report import clock
from cep.testing.trace import trace_key
from tests.engine.bridge import batch_of, rule_of
from tests.oracle.random_cases import SCHEMA, START_MS, Case, random_case
from tests.seeds import seeds
from tests.testing.test_trace import traced

BLOCK = 40
# The events lie in the first second of 1970: any number of nine digits, and any other year, is a bound.
BOUND = re.compile(r"\d{9}|\b(?!1970-01-01T)\d{4,}-\d\d-\d\dT")


def written(answer: Answer) -> Iterator[str]:
    """Yield every text of an answer."""
    for path in answer.matches:
        yield from (path.detected, *(cell for step in path.steps for cell in step))
        yield from (text for pair in path.measures for text in pair)
    for head, details in answer.reasons:
        yield from (head, *details)


def explained(case: Case, random: Random) -> Iterator[str]:
    """Yield the output of `cep test`, `cep why` and `cep why-not`: for the whole rule and for some intervals."""
    times_ms = [event.time_ms for events in case.events.values() for event in events]
    intervals = [(TIME_MS_MIN, TIME_MS_MAX, TIME_MS_MAX)]
    for _ in range(2):
        start, end = sorted(random.choices(times_ms, k=2))
        intervals.append((start, end, random.choice([end + 3, TIME_MS_MAX])))
    for key, events in case.events.items():
        yield from Explainer(traced(case, events), clock).lines()
        batch = batch_of(SCHEMA, {key: events})
        ids = batch.event_id.to_pylist()
        for from_ms, starts_until_ms, until_ms in intervals:
            rule = replace(rule_of(case.pattern), from_ms=from_ms, starts_until_ms=starts_until_ms, until_ms=until_ms)
            for at_ms in (None, random.choice(times_ms), START_MS + 500):
                yield from written(why_not(World(SCHEMA), [rule], batch, at_ms, frozenset(ids[:1])))
            for match in trace_key(case.pattern, traced(case, events).events).matches[:3]:
                bound = [ids[row] for row in match.run.rows()]
                yield from written(why(World(SCHEMA), rule, batch, bound, is_timeout=match.is_timeout))


@pytest.mark.parametrize("block", seeds(12))
def test_no_explanation_shows_one(block: int) -> None:
    shown = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        case = random_case(seed, 3)
        if problems(case.pattern, SCHEMA):
            continue
        texts = list(explained(case, Random(seed)))
        shown += len(texts)
        assert [text for text in texts if BOUND.search(text.replace("000000", ""))] == [], f"random_case({seed}, 3)"
    assert shown > 100
