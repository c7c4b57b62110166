"""Explanations in words of a run's end, the trace behind them, and the frauds of the demo."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pyarrow.compute as pc
import pytest

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.columnar.batch import EventBatch
from cep.columnar.decode import KeyDomain, decode_table, route
from cep.demo.stream import Planted, StreamSize, build
from cep.engine.advance import advance
from cep.nfa.compile import problems
from cep.nfa.deployed import DeployedRule
from cep.rulebook.deploy import Deployment, deploy
from cep.rulebook.files import read_rules
from cep.testing.explain import Explainer
from cep.testing.harness import clock
from cep.testing.inquiry import Answer, World, why, why_not
from cep.testing.journal import Conditions, Trace, TracedEvent
from cep.testing.trace import trace_key
from cep.testing.values import value_of
from tests.engine.bridge import END_MS, Answers, Found, _found, batch_of, event_id, oracle_answers, program_of, rule_of
from tests.oracle.matcher import Event
from tests.oracle.random_cases import SCHEMA, START_MS, Case, random_case, with_nulls
from tests.seeds import seeds
from tests.testing.common import verdict_of

# Explanations in words of a run's end: one planted case for each way in which a wait can end.


def story(pattern: str, events: str, header: str = "pattern p by card") -> list[str]:
    """Return the lines for the key c1."""
    verdict = verdict_of(pattern, f"c1: {events} expect matches 0", header=header)
    return Explainer(verdict.traces["c1"], clock).lines()


WHERE = "where a: pay amount < 10  b: pay amount > 100"


@pytest.mark.parametrize(
    ("pattern", "events", "lines"),
    [
        pytest.param(
            f"seq a -> b within 5 min {WHERE}",
            "0s pay amount=1  1m pay amount=99.99",
            [
                "a 0 s · then waited for b",
                "  1 min e00002 is no b: amount > 100.00 is not true (amount = 99.99)",
                "  the window was over at 5 min (within 5 min)",
            ],
            id="a condition that does not hold",
        ),
        pytest.param(
            f"seq a -> b {WHERE} and note == a.note",
            "0s pay amount=1  1m pay amount=200",
            [
                "a 0 s · then waited for b",
                "  1 min e00002 is no b: note == a.note is not known (note = null, a.note = null)",
                "  nothing more came",
            ],
            id="a condition on null",
        ),
        pytest.param(
            f"seq a, !b {WHERE}",
            "0s pay amount=1",
            ["a 0 s · match at the end of the events"],
            id="an absence that only the end makes certain",
        ),
        pytest.param(
            f"seq a, b {WHERE}",
            "0s pay amount=1  1m pay amount=50  2m pay amount=200",
            [
                "a 0 s · then waited for b",
                "  1 min e00002 is no b: amount > 100.00 is not true (amount = 50.00)",
                "  b had to be the very next event",
            ],
            id="the next event does not fit",
        ),
        pytest.param(
            f"seq a, b {WHERE} over all",
            "0s pay amount=1  1m login  2m pay amount=200",
            ["a 0 s · then waited for b", "  b had to be the very next event, which was e00002 at 1 min"],
            id="the next event is of another type",
        ),
        pytest.param(
            f"seq a ->[1 min] b within 1 h {WHERE}",
            "0s pay amount=1  1m pay amount=200",
            [
                "a 0 s · then waited for b",
                "  the time for the step to b was up at 1 min (less than 1 min)",
                "  e00002 at 1 min is b, 0 s too late",
            ],
            id="the time of a step",
        ),
        pytest.param(
            f"seq a, b within 5 min {WHERE}",
            "0s pay amount=1  7m pay amount=200",
            [
                "a 0 s · then waited for b",
                "  the window was over at 5 min (within 5 min)",
                "  e00002 at 7 min is b, 2 min too late",
            ],
            id="an event after the window",
        ),
        pytest.param(
            f"seq a -> !n -> b {WHERE} n: pay ok == true",
            "0s pay amount=1  1m pay amount=50 ok=true  2m pay amount=200",
            [
                "a 0 s · then waited for b",
                "  1 min e00002 is no b: amount > 100.00 is not true (amount = 50.00)",
                "  e00002 at 1 min is n, which must not come (ok = true)",
            ],
            id="an absence in the middle",
        ),
        pytest.param(
            "seq a -> !n within 5 min where a: pay amount < 10  n: login",
            "0s pay amount=1  1m login",
            ["a 0 s · then waited for no n", "  e00002 at 1 min is n, which must not come"],
            id="an absence at the end",
        ),
        pytest.param(
            "seq a+ greedy, b where a: pay amount < 100  b: pay amount > 50",
            "0s pay amount=1  1m pay amount=75",
            [
                "a 0 s, 1 min · then waited for another a or b",
                "  nothing more came",
            ],
            id="a greedy loop goes on",
        ),
        pytest.param(
            "seq a+ until (ok == true) -> b within 5 min where a: pay amount < 10  b: pay amount > 100",
            "0s pay amount=1  1m pay amount=50 ok=true",
            [
                "a 0 s · then waited for another a or b",
                "  1 min e00002 is no b: amount > 100.00 is not true (amount = 50.00)",
                "  e00002 at 1 min stopped the loop",
                "  the window was over at 5 min (within 5 min)",
            ],
            id="until",
        ),
        pytest.param(
            "seq (n -> a+ until (ok == true))+ until (amount > 5) -> b within 5 min "
            "where n: login  a: pay amount < 10  b: pay amount > 100",
            "0s login  1m pay amount=1 ok=true",
            [
                "n 0 s · then waited for a",
                "  1 min e00002 is no a: it stops the loop, ok == true is true (ok = true)",
                "  e00002 at 1 min stopped the loop",
            ],
            id="until of a loop in a group",
        ),
        pytest.param(
            "seq a{3} -> b where a: pay amount < 10  b: pay amount > 100",
            "0s pay amount=1  1m pay amount=2  2m pay amount=200",
            [
                "a 0 s, 1 min · then waited for another a",
                "  b is waited for after 3 a, there were 2",
                "  2 min e00003 is no a: amount < 10.00 is not true (amount = 200.00)",
                "  nothing more came",
            ],
            id="a loop that is too short",
        ),
        pytest.param(
            f"seq a -> b within 3 events {WHERE}",
            "0s pay amount=1  1m pay amount=50 x3 every 1m",
            [
                "a 0 s · then waited for b",
                "  2 min e00003 is no b: amount > 100.00 is not true (amount = 50.00)",
                "  the window of 3 events was over at 3 min",
            ],
            id="a window in events",
        ),
        pytest.param(
            f"seq a -> b {WHERE}",
            "0s pay amount=200",
            ["no run started", "  0 s e00001 is no a: amount < 10.00 is not true (amount = 200.00)"],
            id="no event starts a run",
        ),
        pytest.param(
            f"seq a -> b {WHERE}", "0s login", ["no run started: no event is a pay"], id="events of other types"
        ),
    ],
)
def test_what_stopped_a_run(pattern: str, events: str, lines: list[str]) -> None:
    assert story(pattern, events)[: len(lines)] == lines


def test_a_match_covers_others() -> None:
    verdict = verdict_of(
        f"seq a -> b ->> c {WHERE} c: pay ok == true skip to next", "c1: 0s pay amount=1 expect matches 0"
    )
    assert verdict.traces["c1"].emitted() == []
    verdict = verdict_of(
        f"seq a -> b {WHERE} skip past last", "c1: 0s pay amount=1 1s pay amount=2 2s pay amount=200 expect match"
    )
    explainer = Explainer(verdict.traces["c1"], clock)
    assert [s.reached for s in explainer.furthest()] == [
        "a 0 s → b 2 s · match at 2 s",
        "a 1 s → b 2 s · then nothing more",
    ]
    assert explainer.furthest()[1].reasons == ("the match at 2 s covers it (skip past last)",)


def test_long_runs_and_many_runs_are_cut() -> None:
    lines = story(f"seq a+ -> b within 1 h {WHERE}", "0s pay amount=1 x20 every 1s")
    assert lines[0] == "a 0 s, 1 s, … 19 s (20 events) · then waited for another a or b"
    assert lines[-1] == "and 17 more runs that came less far"


def test_the_path_of_a_match() -> None:
    verdict = verdict_of(
        """seq a -> b where a: pay amount < 10  b: pay amount > 10 * a.amount and kind == web
           emit s = a.amount + b.amount""",
        "c1: 0s pay amount=1 2s pay amount=200 kind=web expect match",
    )
    explainer = Explainer(verdict.traces["c1"], clock)
    (match,) = verdict.traces["c1"].emitted()
    assert explainer.path(match.run) == [
        ("0 s", "e00001", "a", "amount = 1.00"),
        ("2 s", "e00002", "b", "amount = 200.00, 10 * a.amount = 10.00, kind = web"),
    ]
    assert explainer.measures(match.run) == [("s", "201.00")]


# Every planted fraud of the demo has a path, every near miss a reason.

SIZE = StreamSize(cards_count=400, payments_per_card=5)
STREAM = build(7, SIZE)
RULES = Path(__file__).parents[2] / "rules"


@cache
def deployment() -> Deployment:
    return deploy(read_rules(RULES)[0])


@cache
def routed(domain: KeyDomain) -> EventBatch:
    schema = deployment().schema
    return route(decode_table(schema, STREAM.payments, str), domain, schema.columns())[0]


def rule_and_batch(case: Planted) -> tuple[DeployedRule, EventBatch]:
    (rule,) = (r for r in deployment().rulebook.deployed() if r.rule_id == case.rule_id)
    batch = routed(rule.pattern.key)
    return rule, batch.take(np.asarray(pc.equal(batch.key, case.key)))


@pytest.mark.parametrize("case", [c for c in STREAM.planted if c.fires], ids=lambda c: f"{c.rule_id} {c.key}")
def test_a_fraud_has_a_path(case: Planted) -> None:
    rule, batch = rule_and_batch(case)
    answer = why_not(World(deployment().schema), [rule], batch, case.last_ms)
    assert [tuple(step[1] for step in match.steps) for match in answer.matches] == [case.tx_ids]
    (path,) = why(World(deployment().schema), rule, batch, case.tx_ids).matches
    assert path == answer.matches[0]


@pytest.mark.parametrize("case", [c for c in STREAM.planted if not c.fires], ids=lambda c: f"{c.rule_id} {c.key}")
def test_a_near_miss_has_a_reason(case: Planted) -> None:
    rule, batch = rule_and_batch(case)
    for at_ms in (None, case.last_ms):
        answer = why_not(World(deployment().schema), [rule], batch, at_ms)
        assert answer.matches == []
        assert answer.reasons
        assert all(details for _, details in answer.reasons)
    near_miss = why(World(deployment().schema), rule, batch, case.tx_ids)
    assert near_miss.matches == []
    assert near_miss.reasons


# The trace finds the same matches as the engine, and explains each match that was not found.

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


# Explanations in words never show the bounds of time that stand for never and for ever.

BLOCK_OF_TIMES = 40
# The events lie in the first second of 1970: any number of nine digits, and any other year, is a bound.
BOUND = re.compile(r"\d{9}|\b(?!1970-01-01T)\d{4,}-\d\d-\d\dT")


def written(answer: Answer) -> Iterator[str]:
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
    for seed in range(block * BLOCK_OF_TIMES, (block + 1) * BLOCK_OF_TIMES):
        case = random_case(seed, 3)
        if problems(case.pattern, SCHEMA):
            continue
        texts = list(explained(case, Random(seed)))
        shown += len(texts)
        assert [text for text in texts if BOUND.search(text.replace("000000", ""))] == [], f"random_case({seed}, 3)"
    assert shown > 100
