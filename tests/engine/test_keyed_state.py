"""Keyed state under other programs, of an earlier build, in parts, and in slices; state of removed rules is counted."""

import json
import lzma
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cep.base.schema import Kind, Type
from cep.engine import advance as engine_advance
from cep.engine.advance import Matches, advance
from cep.engine.alerts import sort_alerts
from cep.engine.keyed_state import KeyedState, partition_keys
from cep.engine.migrate import migrate_state
from cep.nfa.compile import problems
from cep.nfa.program import Program
from cep.state.past import decode_page, encode_page
from cep.step.match import MatchOutput, match_events
from tests.engine.bridge import Delivery, batch_of, engine_answers, program_of, split, whole
from tests.engine.rules import batch, program, rule
from tests.engine.selected import select_keys
from tests.histories.test_oracle import with_past
from tests.oracle.random_cases import SCHEMA, random_case

END_MS = 2**61 - 1
PAIR = "seq a -> b within 1 h\nwhere a: e kind == a\n b: e kind == b\nemit m = a.amount"
NOTED = "seq a{2,} -> c within 1 h\nwhere a: e kind == a\n c: e kind == c\nemit n = first(a).note, s = sum(a.amount)"


def test_the_same_program_needs_no_fitting() -> None:
    compiled = program(rule(PAIR))
    state = advance(compiled, None, batch("x a@1"), 1).keyed_state
    assert migrate_state(state, compiled) == (state, 0)


def test_order_and_neighbours_of_rules_do_not_matter() -> None:
    first = program(rule(PAIR, "p"), rule(NOTED, "n"))
    state = advance(first, None, batch("x a@1 1.00 one", "x a@2 2.00 two", "y a@2 5.00 five"), 2).keyed_state
    other = program(rule(NOTED, "n"), rule('seq c\nwhere c: e kind == c and note == "z"', "new"), rule(PAIR, "p"))
    fitted, dropped = migrate_state(state, other)
    assert (dropped, len(fitted)) == (0, len(state))
    matches = advance(other, state, batch("x b@3", "x c@4", "y b@5"), END_MS).matches
    by_rule = {other.rules[r].deployed.rule_id: int((matches.rule == r).sum()) for r in range(3)}
    assert by_rule["p"] >= 2
    assert by_rule["n"] >= 1
    (row,) = np.flatnonzero(matches.rule == 0)[:1]
    assert matches.texts[int(matches.measures[row, 0])].as_py() == "one"


def test_a_column_that_is_newly_kept_is_null_in_events_bound_before() -> None:
    state = advance(program(rule(PAIR, "p")), None, batch("x a@1 1.00 one"), 1).keyed_state
    fitted, _ = migrate_state(state, program(rule(PAIR, "p"), rule(NOTED, "n")))
    assert fitted.events.columns["note"].to_pylist() == [None]
    assert fitted.events.columns["amount"].to_pylist() == [100]


@pytest.mark.parametrize("seed", range(60))
def test_rules_that_come_and_go_beside_change_nothing(seed: int) -> None:
    random = Random(seed)
    case = random_case(seed, 2 + seed % 2)
    if problems(case.pattern, SCHEMA):
        return
    others = [random_case(30_000 + seed * 9 + i, 1 + i % 3).pattern for i in range(6)]
    beside = [pattern for pattern in others if not problems(pattern, SCHEMA)]
    events = batch_of(SCHEMA, case.events)
    at_once = engine_answers(program_of(SCHEMA, case.pattern), whole(events))
    programs = [
        program_of(SCHEMA, case.pattern, *random.sample(beside, random.randint(0, len(beside)))) for _ in range(9)
    ]
    assert engine_answers(programs, split(events, random)) == at_once, f"random_case({case.seed}, {case.level})"


@pytest.mark.parametrize("seed", range(40))
def test_it_is_what_selecting_gives(seed: int) -> None:
    random = np.random.default_rng(seed)
    patterns = [random_case(seed * 7 + i, 1 + i % 3).pattern for i in range(4)]
    chosen = [pattern for pattern in patterns if not problems(pattern, SCHEMA)]
    if not chosen:
        return
    program = program_of(SCHEMA, *chosen)
    events = batch_of(SCHEMA, random_case(seed, 3).events)
    keyed_state = advance(program, None, events, int(np.median(events.time_ms))).keyed_state
    parts_count = int(random.integers(1, 5))
    part = random.integers(0, parts_count, len(keyed_state.keys))
    cut = partition_keys(keyed_state, part, parts_count, program.row_registers)
    for number, share in enumerate(cut):
        expected = select_keys(keyed_state, part == number, program.row_registers)
        assert encode_page(share) == encode_page(expected)


PAGES: list[dict[str, Any]] = json.loads(
    lzma.decompress(Path(__file__).with_name("earlier_pages.json.xz").read_bytes())
)


def matches_after_cut(
    compiled: Program, before: KeyedState | None, case: dict[str, Any], *, after_cut: bool
) -> list[Any]:
    """Return the matches that are completed after the cut: rule, bound events and measures."""
    events = batch(*case["events"])
    cut_ms = 60_000 * case["cut"]
    matches = advance(
        compiled, before, events.take(np.arange(case["cut"] if after_cut else 0, len(events))), END_MS
    ).matches
    matched = []
    for row, (first, end) in enumerate(pairwise(matches.offsets.tolist())):
        if matches.detected_ms[row] >= cut_ms:
            described = compiled.rules[int(matches.rule[row])]
            values = [_measure(matches, row, number, type_) for number, (_, type_) in enumerate(described.measures)]
            bound = matches.event_id[first:end].to_pylist()
            matched.append((described.deployed.rule_id, bound, values))
    return sorted(matched, key=str)


def _measure(matches: Matches, row: int, number: int, type_: Type) -> object:
    slot = matches.measures[row, number]
    if matches.measures_null[row, number]:
        return None
    if type_.kind is Kind.STRING:
        return matches.texts[int(slot)].as_py()
    return pytest.approx(float(slot.view(np.float64)), rel=1e-6, abs=1e-6) if type_.is_float else int(slot)


@pytest.mark.parametrize("case", PAGES, ids=range(len(PAGES)))
def test_runs_of_an_earlier_build_go_on(case: dict[str, Any]) -> None:
    compiled = program(rule(case["other"], "other"), rule(case["text"]))
    stored = decode_page(bytes.fromhex(case["page"]))
    assert stored.layout.is_earlier
    state, orphans = migrate_state(stored, compiled)
    assert (orphans, len(state)) == (0, len(stored))
    fresh = matches_after_cut(compiled, None, case, after_cut=False)
    continued = matches_after_cut(compiled, state, case, after_cut=True)
    assert continued == fresh


PAIRS = "seq a ->> b within 1 h\nwhere a: e\n b: e\nskip none"
# Work depends on the division of the events.
_OF_WORK = ("run_steps",)


def _matched(compiled: Program, deliveries: list[Delivery]) -> tuple[pa.Table, Counter[str]]:
    output = MatchOutput()
    state: KeyedState | None = None
    for events, watermark_ms in deliveries:
        state = match_events(compiled, state, events, watermark_ms, output)
    return sort_alerts(output.alert_table()), Counter({n: c for n, c in output.counters.items() if n not in _OF_WORK})


@pytest.mark.parametrize("level", [1, 2, 3])
def test_slices_change_nothing(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    subjects, sliced = [], 0
    for seed in range(300_000, 300_020):
        case = random_case(seed, level)
        case = with_past(case) if seed % 2 else case
        if not problems(case.pattern, SCHEMA):
            compiled = program_of(SCHEMA, case.pattern, case.pattern)
            subjects.append((compiled, split(batch_of(SCHEMA, case.events), Random(seed), cuts_max=2)))
    at_once = [_matched(compiled, deliveries) for compiled, deliveries in subjects]
    for name in ("MATCHES_AT_ONCE_MAX", "BINDINGS_AT_ONCE_MAX"):
        monkeypatch.setattr(f"cep.engine.advance.{name}", 1)
        for (compiled, deliveries), (alerts, counters) in zip(subjects, at_once, strict=True):
            again, counted = _matched(compiled, deliveries)
            assert again.equals(alerts)
            assert counted == counters
            sliced += alerts.num_rows > 1
    assert sliced > 10


@pytest.mark.parametrize("same_time", [False, True])
def test_no_part_has_many_more_matches_than_the_bound(same_time: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All events have one key, and in one case one time: then they are divided by their ids."""
    monkeypatch.setattr("cep.engine.advance.MATCHES_AT_ONCE_MAX", 500)
    monkeypatch.setattr("cep.engine.outputs._ROOM_MIN", 64)
    compiled = program(rule(PAIRS))
    rows = [f"x a@{1 if same_time else n}" for n in range(400)]
    events = batch(*rows).take(np.random.default_rng(1).permutation(400))
    parts = [len(part.matches) for part in engine_advance.advance_in_slices(compiled, None, events, 0)]
    assert sum(parts) == sum(min(n, 100) for n in range(400))
    assert max(parts) <= 500
    assert len(parts) < 400, "halves, not single events"
