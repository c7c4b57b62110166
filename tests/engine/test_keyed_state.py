"""Keyed state under other programs: matching state is carried over, state of removed rules is dropped and counted."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from cep.engine.advance import advance
from cep.engine.migrate import migrate_state
from cep.nfa.compile import problems
from tests.engine.bridge import batch_of, engine_answers, program_of, split, whole
from tests.engine.rules import batch, program, rule
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
