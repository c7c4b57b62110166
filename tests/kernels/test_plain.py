"""Plain rules: the short matcher agrees with the general one, and both sort by key, time and arrival."""

from copy import copy
from dataclasses import replace
from random import Random

import pytest

from cep.engine.advance import Advanced, advance
from cep.kernels import layout as y
from cep.nfa.program import Program
from cep.state.past import decode_page, encode_page
from tests.engine.bridge import END_MS, in_calls
from tests.engine.rules import batch, program, rule

# Pattern, and whether all its runs wait for the same condition.
PLAIN = {
    "pair": ("seq a -> b within 40 s\nwhere a: e kind == a\n b: e kind == b", True),
    "every pair": ("seq a ->> b within 40 s\nwhere a: e\n b: e amount != a.amount", True),
    "rising": ("seq a{5} within 90 s\nwhere a: e a.id is null or amount > a.amount", True),
    "not falling": ("seq a{3} within 90 s\nwhere a: e a.id is null or amount >= a.amount", True),
    "falling pair": ("seq a -> b\nwhere a: e kind == a\n b: e kind == b and amount < a.amount", True),
    "at most": ("seq a -> b within 40 s\nwhere a: e kind == a\n b: e amount <= a.amount", True),
    "same": ("seq a ->> b within 40 s\nwhere a: e kind == a\n b: e kind == b and amount == a.amount", True),
    "loop": ("seq a{2,} -> b within 60 s\nwhere a: e kind == a\n b: e kind == b", False),
    "code": ("seq a -> b within 60 s\nwhere a: e kind == a\n b: e amount > 2 * a.amount", False),
    "sum": ("seq a{2,4} -> b within 60 s\nwhere a: e kind == a\n b: e amount > sum(a.amount)", False),
    "either": ("seq a -> (b | c) within 60 s\nwhere a: e kind == a\n b: e kind == b\n c: e kind == c", False),
    "three": ("seq a -> b ->> c within 60 s\nwhere a: e kind == a\n b: e kind == b\n c: e amount > a.amount", False),
}
SKIPS = ("none", "to next", "past last", "to last a")


def _program(name: str, skip: str) -> Program:
    return program(rule(f"{PLAIN[name][0]}\nskip {skip}\nemit n = count(a), s = sum(a.amount)"))


def _changed(compiled: Program, word: int, value: int) -> Program:
    """Return the same program, with another value in each rule's row for the kernels."""
    rules = copy(compiled.rules)
    rules.rows = rules.rows.copy()
    rules.rows[:, word] = value
    return replace(compiled, rules=rules)


def _events(random: Random, count: int) -> list[str]:
    second, lines = 0, []
    for _ in range(count):
        second += random.choice((0, 0, 1, 1, 2, 5, 30))
        amount = "-" if random.random() < 0.1 else f"{random.randint(1, 9)}.00"
        lines.append(f"{random.choice('xyz')} {random.choice('aabc')}@{second}000 {amount}")
    return lines


def _matches(advanced: Advanced) -> list[tuple[object, ...]]:
    m = advanced.matches
    ids = m.event_id.to_pylist()
    return sorted(
        (int(m.detected_ms[r]), tuple(ids[m.offsets[r] : m.offsets[r + 1]]), *m.measures[r].tolist())
        for r in range(len(m))
    )


@pytest.mark.parametrize("skip", SKIPS)
@pytest.mark.parametrize("name", PLAIN)
def test_the_plain_matcher_finds_what_the_general_one_finds(name: str, skip: str) -> None:
    compiled = _program(name, skip)
    row = compiled.rules[0].row
    assert (row[y.R_PLAIN], row[y.R_SAME_WAIT]) == (1, int(PLAIN[name][1]))
    matched = 0
    for seed in range(4):
        events = batch(*_events(Random(f"{name}/{seed}"), 300))
        expected = advance(_changed(compiled, y.R_PLAIN, 0), None, events, END_MS)  # by the general matcher
        result = advance(compiled, None, events, END_MS)
        assert _matches(result) == _matches(expected), f"seed {seed}"
        matched += len(result.matches)
    assert matched > 0, "a pattern without matches shows nothing"


@pytest.mark.parametrize("name", PLAIN)
def test_no_split_changes_what_it_finds(name: str) -> None:
    compiled = _program(name, "none")
    random = Random(name)
    events = batch(*_events(random, 200))
    at_once = _matches(advance(compiled, None, events, END_MS))
    in_parts: list[tuple[object, ...]] = []
    for result in in_calls(compiled, events, [*sorted(random.sample(range(1, len(events)), 8)), len(events)]):
        in_parts += _matches(result)
    assert sorted(in_parts) == at_once
    assert len(decode_page(encode_page(result.keyed_state))) == 0, "what has a window is over at the end"


def test_runs_beyond_the_limit_leave_oldest_first() -> None:
    compiled = _changed(_program("pair", "none"), y.R_RUNS_MAX, 3)
    result = advance(compiled, None, batch(*(f"x a@{second}" for second in range(7))), 0)
    assert result.counters["runs_evicted"] == 4
    assert result.keyed_state.events.event_id.to_pylist() == ["e4", "e5", "e6"]


def test_runs_that_are_over_are_not_counted_against_the_limit() -> None:
    compiled = _changed(_program("pair", "none"), y.R_RUNS_MAX, 2)
    result = advance(compiled, None, batch("x a@1000", "x a@2000", "x a@60000", "x a@61000"), 0)
    assert "runs_evicted" not in result.counters
    assert result.counters["runs_expired"] == 2


@pytest.mark.parametrize("seed", range(10))
def test_events_are_matched_in_the_order_of_time_then_arrival(seed: int) -> None:
    random = Random(seed)
    rows = [f"k{random.randint(0, 2)} a@{random.randint(0, 9)}" for _ in range(60)]
    compiled = program(rule("seq a{2,} -> c within 1 h\nwhere a: e kind == a\n c: e kind == c\nskip none"))
    ordered = sorted(range(60), key=lambda i: (rows[i].split()[0], int(rows[i].split("@")[1])))
    expected = [f"e{i}" for i in ordered]
    state = advance(compiled, None, batch(*rows), 9).keyed_state
    events = [e for k in sorted(state.keys.to_pylist()) for e in expected if rows[int(e[1:])].startswith(k)]
    assert sorted(state.events.event_id.to_pylist()) == sorted(events)
    matches = advance(compiled, state, batch(*(f"k{i} c@20" for i in range(3))), END_MS).matches
    ids = matches.event_id.to_pylist()
    for i in range(len(matches)):
        bound = ids[matches.offsets[i] : matches.offsets[i + 1] - 1]
        assert [expected.index(e) for e in bound] == sorted(expected.index(e) for e in bound)
