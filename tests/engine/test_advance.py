"""advance: pure, bounded, every loss counted; a condition that is often null has a fast form, which equals its code."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

import cep
from cep.columnar.batch import EventBatch
from cep.engine.advance import advance
from cep.engine.keyed_state import KeyedState
from cep.nfa.deployed import DeployedRule
from cep.nfa.program import Program
from cep.state.past import encode_page
from tests.engine.rules import batch, program, rule

END_MS = 2**61 - 1
PAIR = "seq a -> b within 10 ms\nwhere a: e kind == a\n b: e kind == b\n"
# The same pattern for the general matcher: the plain one does not support an absence.
GUARDED = PAIR.replace("a -> b", "a -> !c -> b").rstrip() + "\n c: e kind == c\n"


def bound(rules: list[DeployedRule], *rows: str, watermark_ms: int = END_MS) -> list[list[str]]:
    """Return the ids bound by each match, in a fixed order."""
    matches = advance(program(*rules), None, batch(*rows), watermark_ms).matches
    ids = matches.event_id.to_pylist()
    return sorted(ids[matches.offsets[i] : matches.offsets[i + 1]] for i in range(len(matches)))


def test_arguments_are_left_unchanged() -> None:
    compiled = program(rule(PAIR))
    before = advance(compiled, None, batch("x a@1", "y a@2"), 2).keyed_state
    content, events = encode_page(before), batch("x b@3", "y a@4")
    first = advance(compiled, before, events, 4)
    assert encode_page(before) == content
    again = advance(compiled, before, events, 4)
    assert encode_page(again.keyed_state) == encode_page(first.keyed_state)
    assert len(first.matches) == len(again.matches) == 1


# The state withholds a complete match until a better one is impossible.
HELD = """seq a+ within 21 ms
where a: e kind == a
skip to first a in order
"""


def test_what_is_held_back_outlives_the_waits_of_its_run() -> None:
    compiled, events = program(rule(HELD)), batch("x a@3", "x a@4", "x c@9", "x a@9")
    answers, state = [], None
    for row, watermark_ms in enumerate((2, 3, 8, END_MS)):
        state, matches = _once(compiled, state, events.take(np.array([row])), watermark_ms)
        answers += matches
    whole = [("e0",), ("e0", "e1"), ("e0", "e1", "e3"), ("e1",), ("e1", "e3"), ("e3",)]
    assert sorted(ids for _, ids, _ in answers) == whole


def test_the_end_of_a_window_of_events_frees_what_is_held_back() -> None:
    """The event that ends the window of the earlier run may fit no step."""
    where = "where a: e kind == a\n b: e kind == b and amount > 5.00\n c: e kind == c\n"
    text = f"seq (a -> b) | c within 3 events\n{where}skip past last in order"
    matches = advance(program(rule(text)), None, batch("x a@1", "x c@2", "x b@3", "x b@4", "x b@5"), 5).matches
    assert (matches.event_id.to_pylist(), matches.detected_ms.tolist()) == (["e1"], [4])


# Two events may be one round of the group, or a round each; both ways end in the absence.
ROUNDS = """seq (a{1,2} -> !b){1,2} %s within 24 ms
where a: e kind == a
      b: e kind == b
skip none
on timeout emit n = 1
"""


@pytest.mark.parametrize("gap", ["", "[7 ms]"])
@pytest.mark.parametrize("splits", [[0], [2], [1, 2, 3]])
def test_what_is_bound_on_two_ways_is_emitted_once(gap: str, splits: list[int]) -> None:
    compiled = program(rule(ROUNDS % gap))
    rows = ["x a@1", "x a@4", "x a@6"]
    events, answers, state = batch(*rows), [], None
    for start, end in pairwise([0, *splits, len(rows)]):
        watermark_ms = 18 if end == len(rows) else int(events.time_ms[end]) - 1
        state, matches = _once(compiled, state, events.take(np.arange(start, end)), watermark_ms)
        answers += matches
    answers += _once(compiled, state, batch(), END_MS)[1]
    matched = [answer[1:] for answer in answers if answer[0] == "match"]
    timed_out = [answer[1] for answer in answers if answer[0] == "time-out"]
    assert sorted(matched) == sorted(set(matched))
    assert sorted(timed_out) == sorted(set(timed_out))
    # A round of two and then one, or the other way round: only one of the ways may go on.
    assert ("match", ("e0", "e1", "e2"), 25) in answers
    assert ("time-out", ("e1", "e2"), 13 if gap else 28) in answers


@pytest.mark.parametrize("skip", ["to last x", "to last x in order", "to first x in order"])
def test_hundreds_of_matches_of_one_event_are_all_handed_out(skip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either variable may bind every b, in its own round or not. Without x the skip strategy drops no matches.

    Runs that bind the same events in another way count until they are dropped: two thousand runs and ways to match.
    """
    for name in ("RUNS_PER_KEY_MAX", "MATCHES_PER_EVENT_MAX", "WAYS_PER_EVENT_MAX"):
        monkeypatch.setattr(f"cep.nfa.rule_tables.{name}", 10_000)
    text = """seq x? -> (b+ any -> c?)+ any within 1 h
    where x: e kind == a
          b: e kind == b
          c: e kind == b
    skip """
    rows = [f"x b@{n}" for n in range(1, 8)]
    every = bound([rule(text + "none")], *rows)
    assert sorted(bound([rule(text + skip)], *rows)) == sorted(every)
    assert len(every) > 300


def _once(
    compiled: Program, state: KeyedState | None, events: EventBatch, watermark_ms: int
) -> tuple[KeyedState, list[tuple[str, tuple[str, ...], int]]]:
    """Return the state after a call, and (match or time-out, ids, time) of its answers."""
    result = advance(compiled, state, events, watermark_ms)
    ids, answers = result.matches.event_id.to_pylist(), []
    for i in range(len(result.matches)):
        bound_ids = tuple(ids[result.matches.offsets[i] : result.matches.offsets[i + 1]])
        kinds = ["match"] * bool(result.matches.completed[i]) + ["time-out"] * bool(result.matches.timed_out[i])
        answers += [(kind, bound_ids, int(result.matches.detected_ms[i])) for kind in kinds]
    return result.keyed_state, answers


def test_the_watermark_frees_runs_of_keys_that_never_come_back() -> None:
    compiled = program(rule(PAIR))
    state = advance(compiled, None, batch("x a@1", "y a@5"), 5).keyed_state
    assert (len(state), state.expiry_min) == (2, 11)
    later = advance(compiled, state, batch(), 11)
    assert (len(later.keyed_state), later.counters["runs_expired"]) == (1, 1)
    assert later.keyed_state.keys.to_pylist() == ["y"]
    assert len(advance(compiled, later.keyed_state, batch(), END_MS).keyed_state.events) == 0


def test_a_version_sees_its_own_span() -> None:
    early, late = ["x a@1", "x b@2"], ["x a@21", "x b@22"]
    assert bound([rule(PAIR, from_ms=20)], *early, *late) == [["e2", "e3"]]
    assert bound([rule(PAIR, starts_until_ms=20)], *early, *late) == [["e0", "e1"]]
    across = ["x a@19", "x b@21"]
    assert bound([rule(PAIR, starts_until_ms=20)], *across) == [["e0", "e1"]]
    assert bound([rule(PAIR, starts_until_ms=20, until_ms=20)], *across) == []


@pytest.mark.parametrize("timeouts", [False, True])
def test_no_deadline_after_its_span_is_a_match_or_a_time_out(timeouts: bool) -> None:
    """In any cut of the stream: the rule may still exist when the deadline passes, as in a replay or a pause."""
    text = "seq a -> !b within 10 ms\nwhere a: e kind == a\n b: e kind == b\n"
    if timeouts:
        text = PAIR + "emit n = count(a)\non timeout emit n = count(a)\n"
    for until_ms, expected in ((11, ["e0"]), (14, ["e0"]), (15, ["e0", "e1"])):
        compiled = program(rule(text, starts_until_ms=until_ms, until_ms=until_ms))
        events = batch("x a@1", "x a@5")
        for cuts in ([END_MS], [5, END_MS], [5, 12, END_MS], [5, 11, 13, 14, 20, END_MS]):
            keyed_state: KeyedState | None = None
            ids: list[str] = []
            expired = 0
            for number, watermark_ms in enumerate(cuts):
                advanced = advance(compiled, keyed_state, events if number == 0 else batch(), watermark_ms)
                keyed_state = advanced.keyed_state
                ids += advanced.matches.event_id.to_pylist()
                expired += advanced.counters.get("runs_expired", 0)
            assert keyed_state is not None
            assert (ids, len(keyed_state), expired) == (expected, 0, 2), (until_ms, cuts)


def test_runs_of_a_rule_that_is_gone_are_counted() -> None:
    state = advance(program(rule(PAIR, "r1"), rule(PAIR, "r2")), None, batch("x a@1"), 1).keyed_state
    after = advance(program(rule(PAIR, "r2")), state, batch("x b@2"), 2)
    assert (after.counters["runs_orphaned"], len(after.matches)) == (1, 1)


def test_another_content_is_another_rule() -> None:
    state = advance(program(rule(PAIR)), None, batch("x a@1"), 1).keyed_state
    changed = replace(rule(PAIR), content_hash="another")
    assert advance(program(changed), state, batch("x b@2"), 2).counters["runs_orphaned"] == 1


def test_runs_go_on_among_new_neighbours() -> None:
    state = advance(program(rule(PAIR + "emit m = a.amount")), None, batch("x a@1 5.00"), 1).keyed_state
    others = [
        rule("seq a{2} -> c\nwhere a: e kind == a\n c: e\nemit t = sum(a.amount), n = c.note", f"s{i}")
        for i in range(3)
    ]
    joined = program(*others, rule(PAIR + "emit m = a.amount"))
    matches = advance(joined, state, batch("x b@2 7.00"), 2).matches
    assert matches.measures[0, 0] == 500


def test_overflow_stays_above_every_limit_and_is_counted() -> None:
    text = "seq a\nwhere a: e amount * amount * amount * amount > 0"
    large = "9" * 15 + ".00"
    advanced = advance(program(rule(text)), None, batch(f"x a@1 {large}", "x a@2 1.00"), END_MS)
    assert (advanced.counters["arithmetic_overflows"] > 0, len(advanced.matches)) == (True, 2)


@pytest.mark.parametrize("text", [PAIR, GUARDED])
def test_too_many_runs_of_a_key_are_evicted_and_counted(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.nfa.rule_tables.RUNS_PER_KEY_MAX", 5)
    compiled = program(rule(text + "skip none"))
    state = advance(compiled, None, batch(*(f"x a@{i}" for i in range(9)), "y a@1"), 8)
    assert (state.counters["runs_evicted"], len(state.keyed_state)) == (4, 6)
    # The oldest were dropped: they are nearest to their end.
    assert state.keyed_state.events.event_id.to_pylist() == [f"e{i}" for i in range(4, 10)]


@pytest.mark.parametrize("text", [PAIR, GUARDED])
def test_too_many_matches_of_an_event_are_dropped_and_counted(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.nfa.rule_tables.MATCHES_PER_EVENT_MAX", 3)
    compiled = program(rule(text + "skip none"))
    result = advance(compiled, None, batch(*(f"x a@{i}" for i in range(5)), "x b@6"), END_MS)
    assert (result.counters["matches_dropped"], len(result.matches)) == (2, 3)
    assert result.counters["rule_matches_dropped[r@1]"] == 2


def test_many_runs_and_matches_enlarge_what_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.nfa.rule_tables.MATCHES_PER_EVENT_MAX", 1_000)
    rows = [f"k{i % 3} a@{i}" for i in range(3_000)] + [f"k{i} b@3001" for i in range(3)]
    text = "seq a -> b within 1 h\nwhere a: e kind == a\n b: e kind == b\nskip none"
    result = advance(program(rule(text)), None, batch(*rows), END_MS)
    assert len(result.matches) == 3_000
    assert np.bincount(result.matches.key).tolist() == [1_000] * 3


@pytest.mark.parametrize("text", [PAIR, GUARDED])
def test_what_was_enlarged_again_and_again_holds_the_same(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = program(rule(text + "skip none"), rule("seq a ->> b\nwhere a: e\n b: e\nskip none", "r2"))
    first = batch(*(f"k{i % 3} a@{i // 9}" for i in range(60)))
    second = batch(*(f"k{i % 4} {'abc'[i % 3]}@{7 + i // 9}" for i in range(60)))

    def advanced_twice() -> tuple[bytes, int, list[str | None]]:
        state = advance(compiled, advance(compiled, None, first, 6).keyed_state, second, 9)
        return encode_page(state.keyed_state), len(state.matches), state.matches.event_id.to_pylist()

    with_room = advanced_twice()
    assert with_room[1] > 100
    for name, rows in (("_WORK_ROWS", 2), ("_ROOM_MIN", 1), ("_ROOM_MAX", 1)):
        monkeypatch.setattr(f"cep.engine.outputs.{name}", rows)
    assert advanced_twice() == with_room


def test_no_rule_reads_nothing() -> None:
    result = advance(program(), None, batch("x a@1"), END_MS)
    assert (len(result.matches), len(result.keyed_state)) == (0, 0)


def test_what_a_shadow_and_the_version_beside_it_cost_is_counted() -> None:
    """A shadow that starts more runs costs more; rules without a shadow are not counted."""
    strict = "seq a -> b within 1 h\nwhere a: e kind == a and amount > 5.00\n b: e kind == b\nskip none"
    live, shadow = rule(strict), rule(strict.replace("5.00", "1.00"), version=2, status="shadow", from_ms=2)
    events = batch("x a@1 9.00", "x a@2 2.00", "x a@3 2.00", "x b@4", "x b@5")
    counters = advance(program(live, shadow, rule(strict, "other")), None, events, END_MS).counters
    costs = {name: count for name, count in counters.items() if name.startswith("rule_")}
    assert costs["rule_events[r@1]"] == 5
    assert costs["rule_events[r@2]"] == 4
    assert costs["rule_steps[r@2]"] > costs["rule_steps[r@1]"] > 0
    assert len(costs) == 4


EVENT = """event tx { tx_id id  event_time time  card string  amount decimal(2)?  rate float?  kind enum(a, b) }
"""
STEPS = ("up{3}", "up{2,} -> last", "first -> up{2}")
FIELDS = ("amount", "rate")


def loop_pattern(name: str, steps: str, field: str, condition: str, skip: str) -> str:
    more = {"up{2,} -> last": "  last: tx kind == b", "first -> up{2}": "  first: tx kind == a"}.get(steps, "")
    where = f"  up: tx {condition.format(x=f'up.{field}', y=field)}"
    return f"pattern {name} by card {{\n  seq {steps} within 1 h\n  where {more}\n {where}\n  skip {skip}\n}}\n"


@pytest.mark.parametrize("seed", range(6))
def test_the_fast_form_equals_the_code(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    start = datetime(2026, 3, 1, tzinfo=UTC)
    rows = [
        {
            "tx_id": f"t{n}", "event_time": start + timedelta(seconds=n), "card": random.choice("xyz"),
            "amount": random.choice([None, 1.0, 2.0, 3.0, 4.0, 5.0]),
            "rate": random.choice([None, 0.5, 1.5, 2.5, 1e300]), "kind": random.choice("ab"),
        }
        for n in range(60)
    ]  # fmt: skip
    texts, names = [EVENT], list[str]()
    for steps in STEPS:
        for field in FIELDS:
            op, skip = random.choice(["<", "<=", ">", ">=", "==", "!="]), random.choice(["none", "past last"])
            name = f"p{len(names)}"
            names.append(name)
            null = f"{{{random.choice('xy')}}} is null"
            fast = random.choice([f"{null} or {{y}} {op} {{x}}", f"{{y}} {op} {{x}} or {null}"])
            code = f"if {null} then true else {{y}} {op} {{x}}"
            texts += [
                loop_pattern(f"{name}_fast", steps, field, fast, skip),
                loop_pattern(f"{name}_code", steps, field, code, skip),
            ]  # fmt: skip
    (tmp_path / "p.cep").write_text("\n".join(texts))
    result = cep.load(tmp_path / "p.cep").match(pa.Table.from_pylist(rows))
    events: dict[str, list[str]] = {}
    for rule_id, alert in zip(result.table["rule_id"].to_pylist(), result.table["events"].to_pylist(), strict=True):
        events.setdefault(rule_id, []).append(str(alert))
    assert sum(map(len, events.values())) > 20
    for name in names:
        assert sorted(events.get(f"{name}_fast", [])) == sorted(events.get(f"{name}_code", [])), name
