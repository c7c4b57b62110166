"""Reports: the keyed state of a job, the plan of a pattern, and an alert drawn over time."""

import re
import tracemalloc
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import vl_convert

from cep.base.limits import NODES_PER_KEY_MAX, RUNS_PER_KEY_MAX
from cep.columnar.batch import EventBatch
from cep.columnar.decode import key_groups
from cep.engine.advance import advance
from cep.engine.keyed_state import KeyedState
from cep.engine.migrate import migrate_state
from cep.histories.store import Block, StoredSegment
from cep.histories.values import compact_page
from cep.kernels import layout as y
from cep.lang.load import load_text
from cep.nfa.compile import problems
from cep.nfa.program import Program
from cep.report.keyed_state import SHARED, BoundEvent, busiest_keys, count_runs, runs_of_key
from cep.report.past import past_of_key, past_shares
from cep.report.picture import picture, timeline, timeline_spec
from cep.report.plan import Plan, find_large_states, plan, plan_text, size_text
from cep.state import past as pasts
from tests.engine.bridge import batch_of, program_of
from tests.engine.rules import batch, program, rule
from tests.engine.selected import select_keys
from tests.histories.test_reach import payment, program_over
from tests.histories.test_values import EVENTS as PAST_EVENTS
from tests.lang.common import EVENTS, shown
from tests.lang.generate import random_file
from tests.oracle.random_cases import SCHEMA, random_case

# The report of keyed state: runs and histories in words, and counts and busiest keys that agree with the state.

# A random pattern, and two more, over the beginning of random events: the state of their runs, in two pages.

DOMAIN: tuple[str, ...] = ("key",)


@dataclass(frozen=True)
class RandomState:
    """The rules, the events so far, and the stored state: whole, by key group, and as pages."""

    rules: Program
    events: EventBatch
    keyed_state: KeyedState
    parts: list[KeyedState]
    pages: list[pasts.StoredPage]


def random_state(seed: int) -> RandomState | None:
    """Return the state of a seed; None if its pattern cannot be compiled."""
    case = random_case(seed, 3)
    if problems(case.pattern, SCHEMA):
        return None
    rules = program_of(SCHEMA, case.pattern, *(random_case(10_000 + seed + i, 1).pattern for i in range(2)))
    events = batch_of(SCHEMA, case.events)
    first = events.take(np.arange(Random(seed).randint(0, len(events))))
    keyed_state = advance(rules, None, first, -(2**60)).keyed_state
    group_of_key = key_groups(keyed_state.keys, 2)
    parts = [select_keys(keyed_state, group_of_key == group, rules.row_registers) for group in range(2)]
    pages = [pasts.StoredPage(group, DOMAIN, pasts.encode_page(part)) for group, part in enumerate(parts)]
    return RandomState(rules, first, keyed_state, parts, pages)


# The report of keyed state: examples in words, and sums that agree with the state itself.

CHAIN = "seq x -> y -> z within 1 min\nwhere x: e kind == a\ny: e kind == b\nz: e kind == c"
LOOP = "seq x+ -> y within 1 min\nwhere x: e kind == a\ny: e kind == b"
SILENCE = "seq x -> !y within 1 min\nwhere x: e kind == b\ny: e kind == c"


def test_runs_in_words() -> None:
    rules = program(rule(CHAIN, "chain"), rule(LOOP, "loop"), rule(SILENCE, "silence"))
    keyed_state = advance(rules, None, batch("k a@1000", "k b@2000", "other a@3000"), 0).keyed_state
    page = pasts.StoredPage(0, DOMAIN, pasts.encode_page(keyed_state))
    runs = {run.rule_id: run for run in runs_of_key([page], "k", [{DOMAIN: rules}])}
    assert runs.keys() == {"chain", "silence"}
    assert runs["chain"].bound == (
        BoundEvent("x", "e0", "e", "1970-01-01T00:00:01.000Z"),
        BoundEvent("y", "e1", "e", "1970-01-01T00:00:02.000Z"),
    )
    assert runs["chain"].waits_for == ("z",)
    assert runs["chain"].expires == "1970-01-01T00:01:01.000Z"
    assert runs["silence"].waits_for == ("the end of its window",)
    other = {run.rule_id: run.waits_for for run in runs_of_key([page], "other", [{DOMAIN: rules}])}
    assert other == {"chain": ("y",), "loop": ("x", "y")}
    levels = [{DOMAIN: program(rule(LOOP, "loop"), rule(SILENCE, "silence"))}, {DOMAIN: program(rule(CHAIN, "chain"))}]
    assert {run.rule_id: run for run in runs_of_key([page], "k", levels)} == runs
    assert list(runs_of_key([page], "nobody", [{DOMAIN: rules}])) == []
    shares = {(r.rule_id, r.runs, r.keys) for r in count_runs([page]).rules}
    assert shares == {("chain", 2, 2), ("loop", 1, 1), ("silence", 1, 1)}
    assert list(runs_of_key([page], "k", [{DOMAIN: program(rule(LOOP, "loop"))}])) == [], "its rules are gone"


@pytest.mark.parametrize("seed", range(60))
def test_sums_agree_and_bound_events_are_the_keys_own(seed: int) -> None:
    random_job = random_state(seed)
    if random_job is None:
        return
    rules, first, keyed_state = random_job.rules, random_job.events, random_job.keyed_state
    parts, pages = random_job.parts, random_job.pages
    counted = count_runs(pages)
    assert (counted.runs, counted.keys, counted.pages) == (len(keyed_state), len(keyed_state.keys), 2)
    assert sum(r.runs for r in counted.rules) == counted.runs
    assert counted.size == sum(len(page.content) for page in pages)
    with_runs = sum(len(page.content) for page, part in zip(pages, parts, strict=True) if len(part))
    assert abs(sum(r.size for r in counted.rules) - with_runs) <= 9, "but for rounding"
    runs = 0
    for key in keyed_state.keys.to_pylist():
        event_ids = {i for i, k in zip(first.event_id.to_pylist(), first.key.to_pylist(), strict=True) if k == key}
        for facts in runs_of_key(pages, key, [{DOMAIN: rules}]):
            runs += 1
            ids = [event.event_id for event in facts.bound]
            assert ids
            assert set(ids) <= event_ids
            assert len(set(ids)) == len(ids)
            assert [event.time for event in facts.bound] == sorted(event.time for event in facts.bound)
    assert runs == counted.runs


def test_starts_that_rules_share_are_told_once() -> None:
    later = [f"y{n}: e kind == b and amount == {n}.00" for n in range(6)]
    texts = [f"seq x -> y{n} within 1 min\nwhere x: e kind == a\n{later[n]}" for n in range(6)]
    rules = program(*(rule(text, f"r{n}") for n, text in enumerate(texts)))
    keyed_state = advance(rules, None, batch("k a@1000", "k a@2000", "k b@3000 9.00"), 0).keyed_state
    page = pasts.StoredPage(0, DOMAIN, pasts.encode_page(keyed_state))
    runs = list(runs_of_key([page], "k", [{DOMAIN: rules}]))
    assert [(run.rule_id, run.bound[0].variable, run.bound[0].event_id) for run in runs if run.version == 0] == [
        ("r0 and 5 more", "x", "e0"), ("r0 and 5 more", "x", "e1"),
    ]  # fmt: skip
    assert runs[-1].waits_for == ("y0", "y1", "y2", "y3", "y4", "y5")
    shares = {(r.rule_id, r.runs, r.keys) for r in count_runs([page]).rules}
    assert (SHARED, 2, 1) in shares
    assert count_runs([page]).runs == len(runs)


def test_what_follows_a_start_is_told_as_what_it_may_be_to_the_rules() -> None:
    where = "where x: e kind == a\n y: e kind == b\n"
    texts = [f"seq x -> y -> z{n} within 1 min\n{where} z{n}: e kind == c and amount == {n}.00" for n in range(4)]
    rules = program(*(rule(text, f"r{n}") for n, text in enumerate(texts)))
    keyed_state = advance(rules, None, batch("k a@1000", "k b@2000", "k b@3000", "j b@4000"), 0).keyed_state
    page = pasts.StoredPage(0, DOMAIN, pasts.encode_page(keyed_state))
    runs = [
        (run.rule_id, run.bound[0].variable, run.bound[0].event_id, run.waits_for)
        for run in runs_of_key([page], "k", [{DOMAIN: rules}])
    ]
    assert runs == [
        ("r0 and 3 more", "x", "e0", ("y",)),
        ("r0 and 3 more", "y", "e1", ("z0", "z1", "z2", "z3")),
    ]
    assert {(r.rule_id, r.runs, r.keys) for r in count_runs([page]).rules} == {(SHARED, 1, 1)}, (
        "a run is what begins one"
    )
    assert migrate_state(keyed_state, program())[1] == 1


# Compare the reported busiest keys with counts over the state itself.

PAIR = "seq x -> y within 1 h\nwhere x: e kind == a\ny: e kind == b"
HOUR_LOOP = "seq x+ -> y within 1 h\nwhere x: e kind == a\ny: e kind == b"


def page_of(state: KeyedState) -> pasts.StoredPage:
    return pasts.StoredPage(0, DOMAIN, pasts.encode_page(state))


def bound_of(state: KeyedState, node: int) -> set[int]:
    """Walk from a node to all nodes that lead to it, as a reader would: return the nodes that have an event."""
    if node < 0:
        return set()
    row, also_before, before = state.nodes[node].tolist()
    return bound_of(state, before) | ({node} if row >= 0 else bound_of(state, also_before))


def test_a_key_at_its_limit_is_told_first_with_all_of_it() -> None:
    lines = [f"busy a@{1_000 + number}" for number in range(RUNS_PER_KEY_MAX + 50)]
    rules = program(rule(PAIR, "pair"))
    events = batch("idle a@1000", *lines, "idle a@60000", "calm a@60000")
    state = advance(rules, None, events, 0).keyed_state
    first, second, third = busiest_keys([page_of(state)], 5)
    assert (first.rule_id, first.version, first.key, first.runs, first.bound) == (
        "pair", 1, "busy", RUNS_PER_KEY_MAX, RUNS_PER_KEY_MAX,
    )  # fmt: skip
    assert first.fullness == 1
    assert [(busy.key, busy.runs) for busy in (second, third)] == [("idle", 2), ("calm", 1)]
    assert [busy.key for busy in busiest_keys([page_of(state)], 2)] == ["busy", "idle"]


def test_events_that_one_run_has_bound_count_too() -> None:
    rules = program(rule(HOUR_LOOP, "loop"))
    state = advance(rules, None, batch(*(f"k a@{1_000 + number}" for number in range(300))), 0).keyed_state
    (busy,) = busiest_keys([page_of(state)], 5)
    assert busy.bound >= 300
    assert busy.fullness == max(busy.runs / RUNS_PER_KEY_MAX, busy.bound / NODES_PER_KEY_MAX)


def test_a_node_that_many_ways_lead_to_is_visited_once() -> None:
    text = "seq a -> b{11,} any until (kind == c) -> z within 10 h\nwhere a: e kind == a\nb: e kind == b\n"
    rules = program(rule(f"{text}z: e kind == a and amount == 7.00\nskip none", "loop"))
    lines = ["k a@1000", *(f"k b@{2_000 + number}" for number in range(22)), "k c@60000"]
    state = advance(rules, None, batch(*lines), 0).keyed_state
    tracemalloc.start()
    (busy,) = busiest_keys([page_of(state)], 5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert busy.bound > 22
    assert peak < 5 << 20, "a way for each choice of eleven events takes many times more"


def test_starts_that_rules_share() -> None:
    later = [f"y{n}: e kind == b and amount == {n}.00" for n in range(6)]
    texts = [f"seq x -> y{n} within 1 min\nwhere x: e kind == a\n{later[n]}" for n in range(6)]
    rules = program(*(rule(text, f"r{n}") for n, text in enumerate(texts)))
    state = advance(rules, None, batch("k a@1000", "k a@2000", "j a@3000"), 0).keyed_state
    rows = [(busy.rule_id, busy.version, busy.key, busy.runs) for busy in busiest_keys([page_of(state)], 9)]
    assert rows == [(SHARED, 0, "k", 2), (SHARED, 0, "j", 1)]


@pytest.mark.parametrize("seed", range(40))
def test_counts_agree_with_a_walk_over_each_run(seed: int) -> None:
    random_job = random_state(seed)
    if random_job is None:
        return
    rules, state = random_job.rules, random_job.keyed_state
    busy_keys = busiest_keys(random_job.pages, 1_000_000)
    runs: Counter[tuple[str, str]] = Counter()
    bound: dict[tuple[str, str], set[int]] = {}
    keys = state.keys.to_pylist()
    for run in np.flatnonzero(state.is_run).tolist():
        if state.run_rule[run] < len(rules.rules):
            pair = (rules.rules[state.run_rule[run]].deployed.rule_id, keys[state.run_key[run]])
            runs[pair] += 1
            bound.setdefault(pair, set()).update(bound_of(state, int(state.runs[run, y.RUN_NODE])))
    counts = {(busy.rule_id, busy.key): (busy.runs, busy.bound) for busy in busy_keys if busy.version and busy.runs}
    assert counts == {pair: (count, len(bound[pair])) for pair, count in runs.items()}
    assert [busy.fullness for busy in busy_keys] == sorted((busy.fullness for busy in busy_keys), reverse=True)


# Stored histories, counted and in words.

TIME_MS = 1_700_000_000_000


def test_the_past_of_a_key_in_words() -> None:
    program = program_over(
        "count(pay over 3 s) > 1", "sum(pay.amount over previous 3 s) > 1.00", "last(pay).size > 1",
        "stddev(pay.amount over 3 s) > 1", "count(pay over 3 s by way) > 1",
        "approx_percentile(pay.size over 6400 s, 50) > 1.0",
    )  # fmt: skip
    plan = program.histories
    assert plan is not None
    written: dict[int, bytes] = {}

    def load(stored: StoredSegment) -> Block:
        return pasts.decode_segment(written[stored.number])

    keyed_state: KeyedState | None = None
    for number in range(12):
        key, time_ms = "xy"[number % 3 == 2], TIME_MS + number * 1_000
        batch = batch_of(program.schema, {key: [payment(number, time_ms, key)]})
        keyed_state = advance(program, keyed_state, batch, time_ms).keyed_state
    assert keyed_state is not None
    histories = pasts.store_segments(
        compact_page(plan, keyed_state.histories, time_ms), written.__setitem__, load, pasts.SegmentCache(None)
    )
    page = pasts.StoredPast(0, DOMAIN, pasts.encode_head(histories), written)
    head = pasts.encode_head(histories)
    (share,) = past_shares([pasts.StoredPast(0, DOMAIN, head), pasts.StoredPast(1, DOMAIN, head)], [{DOMAIN: program}])
    parts = {(part.kind, part.of): (part.rows, part.size, part.rules) for part in share.parts}
    windowed, single = ("beside_1 v1", "beside_3 v1", "beside_4 v1", "subject v1"), ("beside_2 v1",)
    events = [s for s in histories.segments if not s.panes_number]
    panes = [s for s in histories.segments if s.panes_number]
    size = 2 * sum(s.stored.size for s in events if s.stored)
    assert parts["kept events", "pay for 3 s"] == (2 * sum(map(len, events)), size, windowed)
    (of_panes,) = (part_name for kind, part_name in parts if kind == "panes")
    assert parts["panes", of_panes][::2] == (2 * sum(map(len, panes)), ("beside_5 v1",))
    assert parts["pinned events", "pay"] == (2 * 2, 2 * histories.pinned.nbytes, single)
    assert parts["carried", "count(pay over 3 s)"] == (2 * 2, 2 * 2 * 24, ("subject v1",))
    assert parts["carried", "count(pay over 3 s by way)"][::2] == (2 * 2, ("beside_4 v1",))
    assert sum(part.size for part in share.parts if part.kind in ("kept events", "panes")) == share.size
    assert len(parts) == 3 + 4
    (share,) = past_shares([pasts.StoredPast(0, DOMAIN, head)], [])
    assert {part.rules for part in share.parts} == {()}, "nobody asks for it any more"
    assert (share.domain, share.pages, share.keys, share.events) == (DOMAIN, 1, 2, len(histories))
    assert share.panes == 2, "one size in one pane of each key"
    assert (share.segments, share.size) == (len(written), sum(map(len, written.values())))
    (past,) = past_of_key([page], "x", [{DOMAIN: program}])
    # At 11 s the window of 3 s has the events of 9, 10 and 11 s, of which the last one is of y.
    assert past.clock == "2023-11-14T22:13:31.000Z"
    assert dict(past.tallies) == {
        "count(pay over 3 s)": 2,
        "sum(pay.amount over previous 3 s)": 0.09 + 0.10,
        "stddev(pay.amount over 3 s)": 0.005,
        "count(pay over 3 s by way) [card]": 2,
    }
    assert past.events[-1]["event_time"] == "2023-11-14T22:13:30.000Z"
    assert (past.events[-1]["event_type"], past.events[-1]["amount"]) == ("pay", 0.10)
    assert past.panes_count == 1
    assert past.events_count == len({event["event_time"] for event in past.events}), "each event once"
    assert list(past_of_key([page], "nobody", [{DOMAIN: program}])) == []


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 2), (2, 1, 2)])
@pytest.mark.parametrize("condition", ["last(pay).size > 1", "max(pay.size over 3 s) > 1"])
def test_each_event_of_one_moment_is_told_once(sizes: tuple[int, ...], condition: str) -> None:
    program = program_over("count(pay over 3 s) > 1", "avg(pay.size over 3 s) > 1", condition)  # the last one pins
    events = [payment(number, TIME_MS, "x", size=size) for number, size in enumerate(sizes)]
    state = advance(program, None, batch_of(program.schema, {"x": events}), TIME_MS).keyed_state
    written: dict[int, bytes] = {}
    histories = pasts.store_segments(
        state.histories, written.__setitem__, lambda segment: pasts.decode_segment(written[segment.number]),
        pasts.SegmentCache(None),
    )  # fmt: skip
    page = pasts.StoredPast(0, DOMAIN, pasts.encode_head(histories), written)
    (past,) = past_of_key([page], "x", [{DOMAIN: program}])
    assert len(histories.pinned) >= 1
    assert (past.events_count, sorted(event["size"] for event in past.events)) == (len(sizes), sorted(sizes))
    dropped = program_over("count(pay over 3 s) > 1", events=re.sub(r"  size .*\n", "", PAST_EVENTS, count=1))
    (past,) = past_of_key([page], "x", [{DOMAIN: dropped}])
    assert past.events_count == len(sizes), "the schema has dropped the field"


# The plan of a pattern, and an alert drawn over time.

# The plan: states, conditions split and shared, estimates, and the budget.

TWO = (
    EVENTS
    + """
pattern one(least: int = 3) by card_id {
  seq    a{least,} -> b  within 10 min
  where  a: transaction  status == declined and amount < 2
         b: transaction  status == approved and amount > a.amount
}
pattern two by card_id {
  seq    a -> !b  within 1 h
  where  a: transaction  status == approved
         b: transaction  status == declined
}
"""
)


def planned(text: str, arguments: dict[str, object] | None = None) -> Plan:
    checked = load_text(text)
    assert checked.ok, shown(checked)
    return plan(checked.patterns.values(), checked.schema, arguments or {})


def test_conditions_are_split_and_shared() -> None:
    report = planned(TWO)
    b = report.patterns[0].variables[1]
    assert (len(b.on_event), len(b.with_run)) == (1, 1)
    assert dict(report.shared)["status == approved"] == ("one.b", "two.a")
    assert (report.conditions_written, report.conditions_evaluated) == (5, 3)


def test_text() -> None:
    text = plan_text(planned(TWO, {"least": 4}))
    assert "→ 2 b" in text
    assert "taken 4 times or more" in text
    assert "→ ◉ complete   when the window closes, unless b comes first" in text
    assert "run    amount > a.amount" in text


def test_a_pattern_that_needs_an_argument_is_refused_with_the_reason() -> None:
    text = EVENTS + "pattern p(least: int) by card_id { seq a{least,} -> b within 1 h }"
    assert "has no default" in planned(text).refused[0][1]
    assert planned(text, {"least": 2}).refused == ()


def test_what_branches_costs_more() -> None:
    def size(seq: str) -> int:
        return planned(EVENTS + f"pattern p by card_id {{ seq {seq} within 1 h }}").patterns[0].state_bytes

    assert size("a -> b") < size("a ->> b -> c")
    assert size("a+ -> b") < size("a+ any -> b")


def test_the_budget() -> None:
    text = (
        EVENTS + "pattern p by card_id { seq a+ any -> b within 1 h }\npattern q by card_id { seq a -> b within 1 h }"
    )
    (finding,) = find_large_states(load_text(text))
    assert finding.code == "CEP706"
    assert "`p`" in finding.message


@pytest.mark.parametrize(("size", "text"), [(999, "999 bytes"), (1_500, "1.5 kB"), (2_000_000, "2.0 MB")])
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text


def test_pictures_are_well_formed_and_nothing_lies_outside() -> None:
    for seed in range(12):
        for pattern_plan in planned(random_file(seed)).patterns:
            root = ET.fromstring(picture(pattern_plan))
            width, height = int(root.attrib["width"]), int(root.attrib["height"])
            boxes = [e for e in root.iter() if e.attrib.get("class", "").startswith("box")]
            assert len(boxes) >= len(pattern_plan.automaton.positions)
            for box in boxes:
                assert 0 <= int(box.attrib["x"]) <= width - int(box.attrib["width"])
                assert 0 <= int(box.attrib["y"]) <= height - int(box.attrib["height"])


def test_boxes_do_not_overlap() -> None:
    for pattern_plan in planned(TWO).patterns:
        root = ET.fromstring(picture(pattern_plan))
        corners = [(e.attrib["x"], e.attrib["y"]) for e in root.iter() if e.attrib.get("rx") == "8"]
        assert len(corners) == len(set(corners))


def test_what_is_kept_of_the_past() -> None:
    text = (
        EVENTS
        + """
pattern often by card_id {
  seq    a
  where  a: transaction  count(transaction over 1 h) > 3 and avg(transaction.amount over previous 90 d) < amount
                         and count(transaction over previous 1 h) < 9 and last(transaction).amount < amount
}
"""
    )
    (often,) = planned(text).patterns
    assert often.past is not None
    assert (often.past.events, often.past.pinned, often.past.tallies) == (100, 1, 2), "an hour is counted once"
    assert often.past.carried_bytes == 2 * 3 * 8
    (ranks,) = planned(text.replace("avg(transaction.amount", "median(transaction.amount")).patterns
    assert ranks.past is not None
    assert ranks.past.tallies == 1
    assert often.past.carried_bytes < ranks.past.carried_bytes < ranks.past.events * ranks.past.event_bytes
    (without, _) = planned(TWO).patterns
    assert without.past is None
    line = next(line for line in plan_text(planned(text)).splitlines() if "past  " in line)
    assert "100 events of" in line
    assert often.state_bytes > 100 * often.past.event_bytes
    (rank,) = planned(text.replace("count(transaction over 1 h)", "approx_percentile(transaction.amount over 90 d, 95)")
                      .replace("avg(transaction.amount over previous 90 d)", "1")
                      .replace("count(transaction over previous 1 h)", "2")).patterns  # fmt: skip
    assert rank.past is not None
    assert (rank.past.events, rank.past.pane_rows) == (0, 100), "no event of the 90 days"


# An alert drawn over time.

SVG = "{http://www.w3.org/2000/svg}"
START = datetime(2026, 3, 1, tzinfo=UTC)


def alert(*times_s: float, detected_s: float, message: str = "a & b") -> dict[str, Any]:
    events = [
        {"variable": f"v{n % 2}", "event_id": f"e{n}", "event_time": START + timedelta(seconds=s)}
        for n, s in enumerate(times_s)
    ]
    return {"rule_id": "r", "message": message, "events": events, "detected_at": START + timedelta(seconds=detected_s)}


def test_each_event_stands_at_its_time_on_the_line_of_its_variable() -> None:
    drawing = ET.fromstring(timeline(alert(0, 30, 60, detected_s=60)))
    circles = drawing.findall(f".//{SVG}circle")
    assert [circle.find(f"{SVG}title").text for circle in circles] == [  # type: ignore[union-attr]
        "e0 at 2026-03-01 00:00:00", "e2 at 2026-03-01 00:01:00", "e1 at 2026-03-01 00:00:30",
    ]  # fmt: skip
    first, right, middle = (int(circle.get("cx", "")) for circle in circles)
    assert (first + right) // 2 == middle
    assert len({circle.get("cy") for circle in circles}) == 2


def test_the_chart_has_what_the_picture_has() -> None:
    spec = timeline_spec(alert(0, 30, 60, detected_s=60))
    events, detected = spec["layer"]
    assert [(row["variable"], row["event"], row["time"]) for row in events["data"]["values"]] == [
        ("v0", "e0", "2026-03-01T00:00:00+00:00"), ("v1", "e1", "2026-03-01T00:00:30+00:00"),
        ("v0", "e2", "2026-03-01T00:01:00+00:00"),
    ]  # fmt: skip
    assert detected["data"]["values"] == [{"time": "2026-03-01T00:01:00+00:00"}]
    drawing = ET.fromstring(vl_convert.vegalite_to_svg(spec))
    texts = {text.text for text in drawing.iter(f"{SVG}text")}
    assert {"v0", "v1", "r: a & b"} <= texts


@pytest.mark.parametrize(
    ("span_s", "last"), [(0.25, "+0.25 s"), (90, "+1 min 30 s"), (7_200, "+2 h"), (200_000, "+2 d 7 h")]
)
def test_the_axis_ends_with_the_span(span_s: float, last: str) -> None:
    drawing = ET.fromstring(timeline(alert(0, span_s, detected_s=span_s)))
    assert [text.text for text in drawing.findall(f"{SVG}text")][-1] == last


def test_characters_that_xml_does_not_allow_are_drawn_as_escapes() -> None:
    shown = alert(0, detected_s=0, message="".join(map(chr, (0, 1, 0xB, 0xD800, 0xFFFE, 0xFFFF))))
    shown["events"][0] |= {"event_id": "e\x0b", "variable": "v\x1b"}
    texts = "".join(ET.fromstring(timeline(shown).encode()).itertext())
    assert r"r: \u0000\u0001\u000b\ud800\ufffe\uffff" in texts
    assert r"e\u000b at" in texts


def test_an_alert_of_one_moment() -> None:
    drawing = ET.fromstring(timeline(alert(5, detected_s=5)))
    assert [text.text for text in drawing.findall(f"{SVG}text")][-1] == "2026-03-01 00:00:05"
