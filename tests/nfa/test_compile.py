"""The rules of a key are compiled to one program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cep.nfa.compile import problems
from cep.nfa.deployed import DeployedRule
from tests.engine.rules import SCHEMA, program, rule

PAIR = "seq a -> b within 10 min\nwhere a: e kind == a\n b: e kind == b\nemit n = b.note"


def test_the_same_rules_are_the_same_program() -> None:
    one, other = program(rule(PAIR, "r1"), rule(PAIR, "r2")), program(rule(PAIR, "r1"), rule(PAIR, "r2"))
    assert one.fingerprint == other.fingerprint
    assert np.array_equal(one.vector.code, other.vector.code)
    assert np.array_equal(one.start_runs, other.start_runs)


@pytest.mark.parametrize(
    "changed",
    [{"version": 2}, {"content_hash": "x"}, {"from_ms": 5}, {"starts_until_ms": 5}, {"until_ms": 5}, {"rule_id": "s"}],
)
def test_whatever_decides_matches_changes_the_fingerprint(changed: dict[str, object]) -> None:
    other: DeployedRule = replace(rule(PAIR), **changed)  # type: ignore[arg-type]
    assert program(rule(PAIR)).fingerprint != program(other).fingerprint


def test_rules_that_ask_the_same_share_their_conditions() -> None:
    one, many = program(rule(PAIR)), program(*(rule(PAIR, f"r{i}") for i in range(50)))
    assert len(many.vector.code) == len(one.vector.code)
    assert len(many.vector.predicate_registers) == len(one.vector.predicate_registers)


def test_only_columns_that_rules_read_are_there() -> None:
    names = {column.name: column.retained for column in program(rule(PAIR)).columns}
    assert "amount" not in names
    assert names["note"]
    assert not names["kind"]


def test_a_pattern_without_problems_and_one_that_is_too_large() -> None:
    assert problems(rule(PAIR).pattern, SCHEMA) == []
    large = rule("seq ((a -> b){90} -> c){90}\nwhere a: e kind == a\n b: e kind == b\n c: e kind == c")
    (problem,) = problems(large.pattern, SCHEMA)
    assert "1024" in problem
