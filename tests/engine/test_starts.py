"""Starts that are kept once for several rules change no match, whatever the cuts and the changes of the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest

from cep.columnar.batch import EventBatch
from cep.engine.advance import Matches, advance
from cep.engine.fit import fit
from cep.engine.keyed_state import KeyedState
from cep.nfa.deployed import DeployedRule
from cep.nfa.program import Program
from cep.nfa.shared import shares
from cep.state.pages import decode_page, encode_page
from tests.engine.bridge import END_MS, split
from tests.engine.rules import batch, program, rule

NEVER = 10**6  # so many rules share no start
STEPS = (
    "a -> b", "a ->> b", "a -> b{2}", "a -> b+ any -> c", "a ->> b -> c", "a -> (b | c)", "a -> c?, b", "a -> b -> a2",
    "a -> b* -> c", "a{2} -> b", "a{2,} -> b", "a+ ->> b", "a{3} any -> b -> c", "a+ any -> c? -> b", "a -> !b -> c",
)  # fmt: skip
CONDITIONS = {
    "a": "e kind == a",
    "b": ("e kind == b", "e kind == b and amount > a.amount", "e amount >= a.amount and kind == b"),
    "c": ("e kind == c", "e kind == c and note == a.note"),
    "a2": "e kind == a and amount > 3.00",
}
# The first seeds belong to the fast loop.
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow, pytest.mark.always] if seed >= 3 else []) for seed in range(30)]
SKIPS = ("none", "past last", "to next", "to first b", "to last b")


@cache
def _parsed(text: str) -> DeployedRule:
    return rule(text)


def some_rule(random: Random, number: int, from_ms: int = -(10**9)) -> DeployedRule:
    """A rule that begins with an `a`, of any kind that may share its starts and of some that may not."""
    steps = random.choice(STEPS)
    used = [name for name in ("a", "b", "c", "a2") if name in steps.replace("a2", "A").split("A")[0] or name in steps]
    wanted = {name: CONDITIONS[name] for name in used}
    lines = [f"{name}: {text if isinstance(text, str) else random.choice(text)}" for name, text in wanted.items()]
    skip = random.choice(SKIPS if "b" in used and "!b" not in steps and "|" not in steps else SKIPS[:3])
    text = f"seq {steps} within {random.choice((5, 20, 60))} ms\nwhere " + "\n ".join(lines) + f"\nskip {skip}"
    text += random.choice(("", "\nemit several = count(a), total = sum(a.amount), least = min(a.amount)"))
    until_ms = random.choice((END_MS, END_MS, max(0, from_ms) + 40))
    starts_until_ms = random.choice((until_ms, max(0, from_ms) + 20))
    return replace(
        _parsed(text), rule_id=f"r{number}", content_hash=text, from_ms=from_ms, until_ms=until_ms,
        starts_until_ms=min(until_ms, starts_until_ms),
    )  # fmt: skip


def some_events(random: Random, count: int) -> EventBatch:
    time_ms, rows = 0, []
    for _ in range(count):
        time_ms += random.choice((0, 1, 1, 3, 12))
        amount, note = f"{random.randint(0, 5)}.00", random.choice("-uv")
        rows.append(f"{random.choice('xxyz')} {random.choice('aaabc')}@{time_ms} {amount} {note}")
    return batch(*rows)


@contextmanager
def shared_from(count: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Starts are shared from so many rules on."""
    with monkeypatch.context() as patched:
        patched.setattr("cep.nfa.shared.SHARED_MIN", count)
        yield


def found_in(program: Program, matches: Matches) -> Counter[tuple[object, ...]]:
    """Each match in words: rule, key, time, what is bound as what, and what it emits."""
    found: Counter[tuple[object, ...]] = Counter()
    for row in range(len(matches)):
        span = range(int(matches.offsets[row]), int(matches.offsets[row + 1]))
        own = program.rules[int(matches.rule[row])]
        bound = tuple((own.variables[matches.variable[at]], matches.event_id[at].as_py()) for at in span)
        key = matches.keys[int(matches.key[row])].as_py()
        known = matches.measures_null[row] == 0
        measures = tuple(np.where(known, matches.measures[row], -1)[: len(own.measures)].tolist())
        found[own.identity, key, int(matches.detected_ms[row]), bound, measures] += 1
    return found


def carried(
    programs: Sequence[Program], deliveries: Sequence[tuple[EventBatch, int]]
) -> tuple[Counter[tuple[object, ...]], Counter[str], KeyedState | None]:
    """All matches with a program at each delivery, the counters, and the last state; between calls it is bytes."""
    found: Counter[tuple[object, ...]] = Counter()
    counters: Counter[str] = Counter()
    keyed_state: KeyedState | None = None
    for current, (events, watermark_ms) in zip(programs, deliveries, strict=True):
        advanced = advance(current, keyed_state, events, watermark_ms)
        found += found_in(current, advanced.matches)
        counters.update(advanced.counters)
        keyed_state = decode_page(encode_page(advanced.keyed_state))
    return found, counters, keyed_state


@pytest.mark.parametrize("seed", SEEDS)
def test_no_match_depends_on_whether_starts_are_shared(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    rules = [some_rule(random, number) for number in range(random.randint(2, 7))]
    events = some_events(random, 90)
    deliveries = split(events, random)
    with shared_from(NEVER, monkeypatch):
        alone = program(*rules)
        expected, _, _ = carried([alone], [(events, END_MS)])
    with shared_from(1, monkeypatch):
        together = program(*rules)
        at_once, _, _ = carried([together], [(events, END_MS)])
        in_parts, _, _ = carried([together] * len(deliveries), deliveries)
    assert at_once == in_parts == expected


@pytest.mark.slow
@pytest.mark.always
def test_the_drawn_rules_share_starts_and_match(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = matched = 0
    for seed in range(30):
        random = Random(seed)
        with shared_from(1, monkeypatch):
            drawn = program(*(some_rule(random, number) for number in range(random.randint(2, 7))))
        shared += sum(len(start.rules) for start in drawn.shared)
        matched += len(advance(drawn, None, some_events(random, 90), END_MS).matches)
    assert shared > 60
    assert matched > 300


@pytest.mark.parametrize("seed", SEEDS)
def test_nor_when_rules_come_and_go(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every delivery some rules are taken away and others begin, so that starts come to be shared, or no more."""
    random = Random(1_000 + seed)
    deliveries = split(some_events(random, 90), random)
    rules = [some_rule(random, number) for number in range(3)]
    in_force, after_ms = [], 0
    for number, (events, _) in enumerate(deliveries):
        if len(events):
            after_ms = max(after_ms, int(events.time_ms.min()))
        if number:
            rules = [one for one in rules if random.random() < 0.7]
            rules += [some_rule(random, 10 * number + at, after_ms) for at in range(random.randint(0, 3))]
        in_force.append(list(rules))
        after_ms = max(after_ms, int(events.time_ms.max()) + 1 if len(events) else 0)
    with shared_from(NEVER, monkeypatch):
        expected, _, _ = carried([program(*own) for own in in_force], deliveries)
    with shared_from(random.choice((1, 2, 3)), monkeypatch):
        found, _, _ = carried([program(*own) for own in in_force], deliveries)
    assert found == expected


@pytest.mark.parametrize("seed", SEEDS[:12])
def test_past_the_limit_the_oldest_starts_are_dropped_in_any_split(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.engine.starts.RUNS_PER_KEY_MAX", 2)
    monkeypatch.setattr("cep.nfa.rule_tables.RUNS_PER_KEY_MAX", 2)
    random = Random(2_000 + seed)
    rules = [some_rule(random, number) for number in range(5)]
    rules = [replace(one, pattern=replace(one.pattern)) for one in rules]  # compiled anew, with the lower limit
    events = some_events(random, 90)
    deliveries = split(events, random)
    with shared_from(1, monkeypatch):
        together = program(*rules)
    at_once, counters, _ = carried([together], [(events, END_MS)])
    in_parts, _, _ = carried([together] * len(deliveries), deliveries)
    assert at_once == in_parts
    assert not together.shared or counters["runs_evicted"] > 0
    # Where a start only begins a run, and may always do so, they are those that each rule alone would drop.
    simple = [one for one in rules if one.content_hash[:6] not in ("seq a{", "seq a+")]
    simple = [replace(one, until_ms=END_MS, starts_until_ms=END_MS) for one in simple]
    with shared_from(1, monkeypatch):
        shared, _, _ = carried([program(*simple)] * len(deliveries), deliveries)
    with shared_from(NEVER, monkeypatch):
        alone, _, _ = carried([program(*simple)], [(events, END_MS)])
    assert shared == alone


PAIR = "seq a -> b within 1 h\nwhere a: e kind == a\n b: e kind == b\nskip none"


def pairs(count: int) -> list[DeployedRule]:
    texts = [f"seq a -> b within 1 h\nwhere a: e kind == a\n b: e kind == b and amount == {n}.00" for n in range(count)]
    return [replace(_parsed(text), rule_id=f"r{n}", content_hash=text) for n, text in enumerate(texts)]


def test_a_start_is_kept_once_until_a_rule_goes_on_from_it() -> None:
    together = program(*pairs(50))
    first = advance(together, None, batch("x a@1", "x a@2", "y a@3"), 3)
    assert len(first.keyed_state) == 3
    assert first.counters == {"runs_started": 3}
    second = advance(together, first.keyed_state, batch("x b@5 7.00", "x a@6"), 6)
    assert len(second.matches) == 1  # past last: the earlier start alone
    state = second.keyed_state
    started = state.runs[state.run_rule >= 50, 3]
    assert (len(started), len(state)) == (4, 5)  # four starts, and what one rule notes of those it has taken over


def test_of_a_rule_that_is_gone_only_its_own_runs_are_counted() -> None:
    rules = pairs(6)
    first = advance(program(*rules), None, batch("x a@1", "x a@2", "x b@3 9.00"), 3)
    _, orphans = fit(first.keyed_state, program(*rules[1:]))
    assert orphans == 0
    left, orphans = fit(first.keyed_state, program(*rules[4:]))  # two share nothing
    assert (orphans, len(left)) == (0, 4)
    _, orphans = fit(first.keyed_state, program())
    assert orphans == 2


def test_stored_starts_name_the_rules_that_share_them() -> None:
    places = program(*pairs(5)).places
    assert [shares(identity) for identity, _, _ in places] == [[], [], [], [], [], [0, 1, 2, 3, 4]]
    assert np.cumsum([count for _, _, count in places])[-1] == places[-1][1] + 1


def test_a_rule_that_kept_its_own_starts_finds_no_match_twice() -> None:
    """A version that takes over runs keeps its own starts; once the one before is gone, it shares those to come."""
    others = pairs(5)
    giver = replace(rule(PAIR), rule_id="r", starts_until_ms=10)
    taker = replace(giver, version=2, content_hash="newer", from_ms=10, starts_until_ms=END_MS, carries=1)
    first, then = program(*others, giver, taker), program(*others, taker)
    assert [start.rules.tolist() for start in (*first.shared, *then.shared)] == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]
    deliveries = [
        (batch("x a@12 1.00", "y a@13 1.00"), 13),
        (batch("z c@14", "x a@15 2.00"), 15),
        (batch("x b@20 9.00", "y b@21 9.00"), 21),
    ]
    found, _, _ = carried([first, then, then], deliveries)
    assert sorted((key, bound) for (_, key, _, bound, _) in found) == [
        ("x", (("a", "e0"), ("b", "e0"))),
        ("x", (("a", "e1"), ("b", "e0"))),
        ("y", (("a", "e1"), ("b", "e1"))),
    ]
    assert set(found.values()) == {1}
