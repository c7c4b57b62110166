"""State that is stored once for rules with the same beginning changes no match, in any cut and with any rules."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from cep.base.limits import NODE_TEXT_BYTES, NODES_PER_KEY_MAX, RUNS_PER_KEY_MAX, TIME_MS_MAX
from cep.columnar.batch import EventBatch
from cep.engine.advance import Matches, advance
from cep.engine.keyed_state import KeyedState
from cep.engine.migrate import migrate_state
from cep.kernels import layout as y
from cep.nfa.deployed import DeployedRule
from cep.nfa.prefixes import shares
from cep.nfa.program import Program
from cep.state.past import decode_page, encode_page
from tests.engine.bridge import END_MS, split
from tests.engine.rules import batch, program, rule
from tests.seeds import seeds

NEVER = 10**6  # so many rules share no start
LONG_AGO_MS = -(10**9)
STEPS = (
    "a -> b", "a ->> b", "a -> b{2}", "a -> b+ any -> c", "a ->> b -> c", "a -> (b | c)", "a -> c?, b", "a -> b -> a2",
    "a -> b* -> c", "a{2} -> b", "a{2,} -> b", "a+ ->> b", "a{3} any -> b -> c", "a+ any -> c? -> b", "a -> !b -> c",
)  # fmt: skip
# Steps whose prefix has several conditions, if these look only at the event.
LONGER = (
    "a -> b -> c -> z", "a -> b -> z", "a -> b ->> z", "a ->> b -> z", "a{2} -> b -> z", "a -> b+ -> z", "a+ -> b -> z",
    "a -> b{2} -> c -> z", "a -> b? -> c -> z", "a -> b -> c? -> z", "a -> b* -> c -> z", "a -> (b | c) -> z",
    "a -> (b | c) -> d -> z", "(a -> b){2} -> z", "a{2,3} any -> b -> z", "a -> b -> d -> z", "a -> b -> a2 -> z",
    "a -> b -> x -> d -> z", "a -> b{1,3} ->> z", "a -> (b & c) -> z", "a -> b -> c+ any -> z", "a -> (b -> c)+ -> z",
)  # fmt: skip
CONDITIONS = {
    "a": "e kind == a",
    "b": ("e kind == b", "e kind == b and amount > a.amount", "e amount >= a.amount and kind == b"),
    "c": ("e kind == c", "e kind == c and note == a.note"),
    "a2": "e kind == a and amount > 3.00",
    "d": ("e kind == b and amount < 3.00", "e kind != a and amount < 2.00"),
    "x": "e kind == c and amount > a.amount",
    "z": ('e note == "u"', 'e note == "u" and amount >= a.amount', 'e note == "v" and kind != a'),
}
# The first seeds belong to the fast loop.
SEEDS, LONG_SEEDS = seeds(30, 3), seeds(80, 3)
SKIPS = ("none", "past last", "to next", "to first b", "to last b")


@cache
def _parsed(text: str) -> DeployedRule:
    return rule(text)


def some_rule(
    random: Random, number: int, from_ms: int = LONG_AGO_MS, steps: str | None = None,
    chosen: Mapping[str, str] | None = None,
) -> DeployedRule:  # fmt: skip
    """Return a rule that begins with an `a`; it may share its beginning, or not.

    `chosen` are conditions of the rule, so that it has a prefix in common with others.
    """
    steps = steps or random.choice(STEPS)
    used = [name for name in CONDITIONS if name in re.findall(r"[a-z]\d?", steps.replace("any", ""))]
    conditions = {name: text for name, text in CONDITIONS.items() if isinstance(text, str)} | dict(chosen or {})
    lines = [f"{name}: {conditions[name] if name in conditions else random.choice(CONDITIONS[name])}" for name in used]
    skip = random.choice(SKIPS if "b" in used and "!b" not in steps and "|" not in steps else SKIPS[:3])
    text = f"seq {steps} within {random.choice((5, 20, 60))} ms\nwhere " + "\n ".join(lines) + f"\nskip {skip}"
    which = "b" if chosen and random.random() < 0.5 else "a"
    text += random.choice(("", f"\nemit several = count({which}), total = sum({which}.amount), least = min(a.amount)"))
    until_ms = random.choice((TIME_MS_MAX, TIME_MS_MAX, max(0, from_ms) + 40))
    starts_until_ms = random.choice((until_ms, max(0, from_ms) + 20))
    return replace(
        _parsed(text), rule_id=f"r{number}", content_hash=text, from_ms=from_ms, until_ms=until_ms,
        starts_until_ms=min(until_ms, starts_until_ms),
    )  # fmt: skip


def alike(
    random: Random, numbers: Iterable[int], from_ms: int = LONG_AGO_MS, family: str | None = None
) -> list[DeployedRule]:
    """Return rules of which most have a common prefix and no end; the prefix of a `family` is always the same."""
    family_random = Random(family) if family else random
    c, d = family_random.choice(("e kind == c", "e amount > 3.00")), family_random.choice(CONDITIONS["d"])
    steps, chosen = family_random.choice(LONGER), {"b": "e kind == b", "c": c, "d": d}
    rules = [
        some_rule(random, number, from_ms, *((steps, chosen) if random.random() < 0.8 else (None, None)))
        for number in numbers
    ]
    return [
        replace(one, until_ms=TIME_MS_MAX, starts_until_ms=TIME_MS_MAX) if random.random() < 0.8 else one
        for one in rules
    ]


def some_events(random: Random, count: int) -> EventBatch:
    time_ms, rows = 0, []
    for _ in range(count):
        time_ms += random.choice((0, 1, 1, 3, 12))
        amount, note = f"{random.randint(0, 5)}.00", random.choice("-uv")
        rows.append(f"{random.choice('xxyz')} {random.choice('aaabc')}@{time_ms} {amount} {note}")
    return batch(*rows)


def with_long_ids(events: EventBatch, random: Random) -> EventBatch:
    """Return the events with long ids at some times; all events of one time have long ids, as ids give the order.

    An event with a long id counts for several events.
    """
    long = {time_ms for time_ms in sorted({*events.time_ms.tolist()}) if random.random() < 0.3}
    dots = [3 * NODE_TEXT_BYTES if time_ms in long else 0 for time_ms in events.time_ms.tolist()]
    ids = [f"{name}{'.' * count}" for name, count in zip(events.event_id.to_pylist(), dots, strict=True)]
    return replace(events, event_id=pa.array(ids, events.event_id.type))


@contextmanager
def shared_from(count: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Share starts from so many rules on."""
    with monkeypatch.context() as patched:
        patched.setattr("cep.nfa.prefixes.SHARED_MIN", count)
        yield


def found_in(program: Program, matches: Matches) -> Counter[tuple[object, ...]]:
    """Count each match in words: rule, key, time, the bound events with their variables, and the emitted values."""
    counts: Counter[tuple[object, ...]] = Counter()
    for row in range(len(matches)):
        span = range(int(matches.offsets[row]), int(matches.offsets[row + 1]))
        own_rule = program.rules[int(matches.rule[row])]
        bound = tuple((own_rule.variables[matches.variable[place]], matches.event_id[place].as_py()) for place in span)
        key = matches.keys[int(matches.key[row])].as_py()
        has_value = matches.measures_null[row] == 0
        measures = tuple(np.where(has_value, matches.measures[row], -1)[: len(own_rule.measures)].tolist())
        counts[own_rule.identity, key, int(matches.detected_ms[row]), bound, measures] += 1
    return counts


def carried(
    programs: Sequence[Program], deliveries: Sequence[tuple[EventBatch, int]]
) -> tuple[Counter[tuple[object, ...]], Counter[str], KeyedState | None]:
    """Return all matches with a program at each delivery, the counters, and the last state; bytes between calls."""
    counts: Counter[tuple[object, ...]] = Counter()
    counters: Counter[str] = Counter()
    keyed_state: KeyedState | None = None
    for current, (events, watermark_ms) in zip(programs, deliveries, strict=True):
        advanced = advance(current, keyed_state, events, watermark_ms)
        counts += found_in(current, advanced.matches)
        counters.update(advanced.counters)
        keyed_state = decode_page(encode_page(advanced.keyed_state))
    return counts, counters, keyed_state


def set_limits(monkeypatch: pytest.MonkeyPatch, runs: int, nodes: int = NODES_PER_KEY_MAX) -> None:
    for room in ("cep.engine.starts", "cep.nfa.rule_tables"):
        monkeypatch.setattr(f"{room}.RUNS_PER_KEY_MAX", runs)
        monkeypatch.setattr(f"{room}.NODES_PER_KEY_MAX", nodes)


def assert_sharing_changes_nothing(
    rules: Sequence[DeployedRule], events: EventBatch, random: Random, monkeypatch: pytest.MonkeyPatch,
    counts: Sequence[int] = (1,),
) -> None:  # fmt: skip
    """Check all matches in one call and in several; starts are shared from one of `counts` rules on."""
    deliveries = split(events, random)
    with shared_from(NEVER, monkeypatch):
        expected, _, _ = carried([program(*rules)], [(events, END_MS)])
    with shared_from(random.choice(counts), monkeypatch):
        together = program(*rules)
    at_once, _, _ = carried([together], [(events, END_MS)])
    in_parts, _, _ = carried([together] * len(deliveries), deliveries)
    assert at_once == in_parts == expected


def assert_any_split_evicts_the_same(
    rules: Sequence[DeployedRule], events: EventBatch, random: Random, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[DeployedRule], list[tuple[EventBatch, int]]]:
    """Check matches past a limit. Return the rules, compiled again with the lower limit, and the parts of events."""
    rules, deliveries = [replace(one, pattern=replace(one.pattern)) for one in rules], split(events, random)
    with shared_from(1, monkeypatch):
        together = program(*rules)
    at_once, counters, _ = carried([together], [(events, END_MS)])
    in_parts, _, _ = carried([together] * len(deliveries), deliveries)
    assert at_once == in_parts
    assert not together.shared or counters["runs_evicted"] > 0
    return rules, deliveries


@pytest.mark.parametrize("seed", SEEDS)
def test_no_match_depends_on_whether_starts_are_shared(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    rules = [some_rule(random, number) for number in range(random.randint(2, 7))]
    assert_sharing_changes_nothing(rules, some_events(random, 90), random, monkeypatch)


@pytest.mark.parametrize("seed", LONG_SEEDS)
def test_nor_on_whether_longer_prefixes_are(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(3_000 + seed)
    rules = alike(random, range(random.randint(2, 7)))
    assert_sharing_changes_nothing(rules, some_events(random, 120), random, monkeypatch, (1, 1, 2, 3))


@pytest.mark.parametrize("seed", LONG_SEEDS[:40])
def test_nor_on_how_long_the_texts_of_events_are(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event with long texts that is not a start is taken at once, and the events around it are put off."""
    random = Random(6_000 + seed)
    rules = alike(random, range(random.randint(3, 7)))
    assert_sharing_changes_nothing(rules, with_long_ids(some_events(random, 120), random), random, monkeypatch)


def test_the_drawn_rules_share_longer_prefixes_and_match(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: Counter[int] = Counter()
    matched = 0
    for seed in range(80):
        random = Random(3_000 + seed)
        with shared_from(2, monkeypatch):
            drawn = program(*alike(random, range(random.randint(2, 7))))
        lengths.update(len(start.predicates) for start in drawn.shared)
        matched += len(advance(drawn, None, some_events(random, 120), END_MS).matches)
    assert lengths[2] > 20
    assert lengths[3] > 10
    assert matched > 600


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


def in_force(
    rules: list[DeployedRule],
    deliveries: Sequence[tuple[EventBatch, int]],
    changed: Callable[[list[DeployedRule], int, int], list[DeployedRule]],
) -> list[list[DeployedRule]]:
    """Return the rules at each delivery: `changed` takes the rules before, the delivery's number and a time before."""
    rules_in_force, after_ms = [], 0
    for number, (events, _) in enumerate(deliveries):
        if len(events):
            after_ms = max(after_ms, int(events.time_ms.min()))
        if number:
            rules = changed(rules, number, after_ms)
        rules_in_force.append(rules)
        after_ms = max(after_ms, int(events.time_ms.max()) + 1 if len(events) else 0)
    return rules_in_force


@pytest.mark.parametrize("seed", SEEDS)
def test_nor_when_rules_come_and_go(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every delivery some rules end and others begin, so that starts become shared, or are no longer shared."""
    random = Random(1_000 + seed)
    deliveries = split(some_events(random, 90), random)

    def changed(rules: list[DeployedRule], number: int, after_ms: int) -> list[DeployedRule]:
        rules = [one for one in rules if random.random() < 0.7]
        return rules + [some_rule(random, 10 * number + offset, after_ms) for offset in range(random.randint(0, 3))]

    rules_in_force = in_force([some_rule(random, number) for number in range(3)], deliveries, changed)
    with shared_from(NEVER, monkeypatch):
        expected, _, _ = carried([program(*rules) for rules in rules_in_force], deliveries)
    with shared_from(random.choice((1, 2, 3)), monkeypatch):
        matches, _, _ = carried([program(*rules) for rules in rules_in_force], deliveries)
    assert matches == expected


@pytest.mark.parametrize("seed", LONG_SEEDS)
def test_nor_when_prefixes_become_longer_and_shorter(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules come and go, and their common prefixes differ in length.

    The limit of the length changes too, as for state from before longer prefixes existed.
    """
    random = Random(4_000 + seed)
    deliveries = split(some_events(random, 120), random)
    names = [f"{seed} {n}" for n in range(2)]

    def changed(rules: list[DeployedRule], number: int, after_ms: int) -> list[DeployedRule]:
        rules = [one for one in rules if random.random() < 0.8]
        new = range(10 * number, 10 * number + random.randint(0, 3))
        return rules + alike(random, new, after_ms, family=random.choice(names))

    rules_in_force = in_force(alike(random, range(4), family=names[0]), deliveries, changed)
    with shared_from(NEVER, monkeypatch):
        expected, _, _ = carried([program(*rules) for rules in rules_in_force], deliveries)
    programs = []
    for rules in rules_in_force:
        with shared_from(random.choice((1, 2, 3)), monkeypatch), monkeypatch.context() as patched:
            patched.setattr("cep.nfa.prefixes.LENGTH_MAX", random.choice((1, 2, 32, 32, 32)))
            programs.append(program(*rules))
    matches, _, _ = carried(programs, deliveries)
    assert matches == expected


@pytest.mark.parametrize("seed", LONG_SEEDS[:40])
def test_past_the_limit_a_longer_prefix_is_the_same_in_any_split(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, 3)
    random = Random(5_000 + seed)
    rules = alike(random, range(5))
    assert_any_split_evicts_the_same(rules, some_events(random, 120), random, monkeypatch)


@pytest.mark.parametrize("seed", LONG_SEEDS[:40])
def test_past_the_limit_of_texts_a_longer_prefix_is_the_same_in_any_split(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limits(monkeypatch, 4, 14)
    random = Random(7_000 + seed)
    rules = alike(random, range(5))
    assert_any_split_evicts_the_same(rules, with_long_ids(some_events(random, 120), random), random, monkeypatch)


@pytest.mark.parametrize(
    "steps", ["a -> b -> z", "a -> b+ -> z", "a -> b{2} -> z", "(a -> b){2} -> z", "a{2} -> b* -> z"]
)
@pytest.mark.parametrize("long", [False, True])
def test_what_waits_behind_the_starts_of_a_key_is_bounded(
    steps: str, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many events follow one start, five rules store at most the limit of starts and their limit of events."""
    runs_max, nodes_max = RUNS_PER_KEY_MAX // 4, NODES_PER_KEY_MAX // 4  # the work grows with their product
    set_limits(monkeypatch, runs_max, nodes_max)
    text = f"seq {steps} within 9 h\nwhere a: e kind == a\n b: e kind == b\n z: e kind == c and amount == "
    rules = [replace(_parsed(f"{text}{n}.00"), rule_id=f"r{n}", content_hash=f"{n}") for n in range(5)]
    rules = [replace(one, pattern=replace(one.pattern)) for one in rules]  # compiled again, with the lower limit
    together, keyed_state, sizes = program(*rules), None, list[int]()
    assert together.shared
    count = 2_000  # four times this is more than the limit, and once where ids are long
    for number in range(4):
        events = batch(*(f"x {'a' if n == 0 else 'b'}@{number * count + n}" for n in range(count)))
        ids = [f"{number}/{n}{'.' * 3 * NODE_TEXT_BYTES * long}" for n in range(len(events))]
        events = replace(events, event_id=pa.array(ids, events.event_id.type))
        keyed_state = advance(together, keyed_state, events, (number + 1) * count - 1).keyed_state
        sizes.append(len(keyed_state.events))
    assert max(sizes) <= nodes_max + 2 * runs_max
    assert not long or max(sizes) <= nodes_max // 4 + runs_max


@pytest.mark.parametrize("seed", SEEDS[:12])
def test_past_the_limit_the_oldest_starts_are_dropped_in_any_split(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, 2)
    random = Random(2_000 + seed)
    rules = [some_rule(random, number) for number in range(5)]
    events = some_events(random, 90)
    rules, deliveries = assert_any_split_evicts_the_same(rules, events, random, monkeypatch)
    # Where a start only begins a run, and may always do so, each rule alone would drop the same starts.
    simple = [one for one in rules if one.content_hash[:6] not in ("seq a{", "seq a+")]
    simple = [replace(one, until_ms=TIME_MS_MAX, starts_until_ms=TIME_MS_MAX) for one in simple]
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
    assert (len(started), len(state)) == (4, 5)  # four starts, and one rule's note of the starts that it has taken over


def test_of_a_rule_that_is_gone_only_its_own_runs_are_counted() -> None:
    rules = pairs(6)
    first = advance(program(*rules), None, batch("x a@1", "x a@2", "x b@3 9.00"), 3)
    _, orphans = migrate_state(first.keyed_state, program(*rules[1:]))
    assert orphans == 0
    state, orphans = migrate_state(first.keyed_state, program(*rules[4:]))  # two share nothing
    assert (orphans, len(state)) == (0, 4)
    _, orphans = migrate_state(first.keyed_state, program())
    assert orphans == 2


def test_stored_starts_name_the_rules_that_share_them() -> None:
    places = program(*pairs(5)).places
    assert [shares(identity) for identity, _, _ in places] == [[], [], [], [], [], [0, 1, 2, 3, 4]]
    assert np.cumsum([count for _, _, count in places])[-1] == places[-1][1] + 1


def test_a_rule_that_kept_its_own_starts_finds_no_match_twice() -> None:
    """A version that takes over runs keeps its own starts; after the version before has gone, it shares new ones."""
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
    matches, _, _ = carried([first, then, then], deliveries)
    assert sorted((key, bound) for (_, key, _, bound, _) in matches) == [
        ("x", (("a", "e0"), ("b", "e0"))),
        ("x", (("a", "e1"), ("b", "e0"))),
        ("y", (("a", "e1"), ("b", "e1"))),
    ]
    assert set(matches.values()) == {1}


def threes(count: int, within: str = "1 h") -> list[DeployedRule]:
    text = f"seq a -> b -> c within {within}\nwhere a: e kind == a\n b: e kind == b\n c: e kind == c and amount == "
    return [replace(_parsed(f"{text}{n}.00"), rule_id=f"r{n}", content_hash=f"{n}") for n in range(count)]


def kept_ids(keyed_state: KeyedState, rules_count: int) -> list[str]:
    """Return the ids of the events that are stored for several rules."""
    is_shared = keyed_state.run_rule >= rules_count
    ids: list[str] = keyed_state.events.event_id.take(keyed_state.runs[is_shared, y.RUN_START_ROW]).to_pylist()
    return ids


def test_of_what_follows_a_start_only_that_is_kept_for_which_a_run_may_wait() -> None:
    together = program(*threes(50, "10 ms"))
    first = advance(together, None, batch("x b@1", "x a@2", "x b@3", "x b@4", "y b@5", "y c@6 1.00", "x a@7"), 7)
    assert kept_ids(first.keyed_state, 50) == ["e1", "e2", "e6"]
    assert first.counters["runs_started"] == 2
    second = advance(together, first.keyed_state, batch("x b@8", "x b@9", "z a@9"), 9)
    assert kept_ids(second.keyed_state, 50) == ["e1", "e2", "e6", "e0", "e2"]
    third = advance(together, second.keyed_state, batch("z b@12"), 12)  # the first start of x expires with its events
    assert kept_ids(third.keyed_state, 50) == ["e6", "e0", "e2", "e0"]
    assert third.counters == {"runs_expired": 1}
    last = advance(together, third.keyed_state, batch("x c@13 7.00", "z c@14 9.00", "z c@15 60.00"), 13)
    assert [(last.matches.rule[n], last.matches.event_id[3 * n : 3 * n + 3].to_pylist()) for n in range(2)] == [
        (7, ["e6", "e0", "e0"]),
        (9, ["e2", "e0", "e1"]),
    ]
    assert len(last.matches) == 2


def test_what_fifty_rules_keep_of_a_prefix_is_what_one_keeps() -> None:
    events = batch(*(f"k{n % 7} {'aab'[n % 3]}@{n}" for n in range(200)))
    sizes = []
    for count in (4, 50):
        state = advance(program(*threes(count)), None, events, 200).keyed_state
        assert (state.run_rule >= count).all()
        sizes.append((len(state), len(state.nodes), len(state.events)))
    assert sizes[0] == sizes[1]


def test_a_run_that_a_rule_has_of_its_own_is_waited_for_too() -> None:
    """Two rules have their own runs when others join and all share the prefix: the events for these runs are stored."""
    rules = threes(6)
    before = advance(program(*rules[:2]), None, batch("x a@1", "y a@2", "y b@3"), 3)
    together = program(*rules)
    assert [len(start.predicates) for start in together.shared] == [2]
    after = advance(together, before.keyed_state, batch("x b@4", "y b@5", "x b@6"), 6)
    assert kept_ids(after.keyed_state, 6) == ["e0"]
    last = advance(together, after.keyed_state, batch("x c@7 1.00", "y c@8 1.00", "x c@9 4.00"), 9)
    assert [last.matches.event_id[n : n + 3].to_pylist() for n in (0, 3)] == [["e0", "e0", "e0"], ["e1", "e2", "e1"]]
    assert set(last.matches.rule.tolist()) == {1}


def test_state_with_shared_first_conditions_goes_on_with_longer_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    """State from before prefixes of several conditions were shared, and the way back."""
    rules = threes(5)
    longer = program(*rules)
    with monkeypatch.context() as patched:
        patched.setattr("cep.nfa.prefixes.LENGTH_MAX", 1)
        shorter = program(*rules)
    assert [place[0][2] for place in (shorter.places[-1], longer.places[-1])] == ["0,1,2,3,4", "0,1,2,3,4/2"]
    deliveries = [(batch("x a@1", "y a@2"), 2), (batch("x b@3", "x a@4"), 4), (batch("y b@5"), 5)]
    deliveries.append((batch(*(f"{key} c@{6 + n} {n}.00" for n in range(5) for key in "xy")), 20))
    for programs in ([shorter, longer, longer, longer], [longer, longer, shorter, longer], [longer, shorter] * 2):
        matches, _, _ = carried(programs, deliveries)
        assert sorted((str(match[0])[2:4], match[1]) for match in matches) == [
            (f"r{n}", k) for n in range(5) for k in "xy"
        ]
