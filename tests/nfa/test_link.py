"""A program that is linked from cached pieces equals a program that is compiled from scratch, array for array."""

from __future__ import annotations

import random
from dataclasses import fields, is_dataclass, replace
from functools import cache

import numpy as np
import pytest

from cep.kernels import layout as y
from cep.nfa import compile as compiling
from cep.nfa.compile import Compiler, compile_piece
from cep.nfa.deployed import DeployedRule
from cep.nfa.program import Program
from tests.engine.rules import SCHEMA, rule

_TEXTS = (
    "seq a -> b within 10 min\nwhere a: e kind == a and amount > {n}.00\n b: e kind == b\nemit n = b.note",
    """seq a{{2,}} greedy -> b within {n} min
where a: e kind == a
 b: e amount > 2 * max(a.amount)
emit total = sum(a.amount), several = count(a)""",
    """seq a -> b -> !c within 1 h
where a: e kind == a
 b: e amount > a.amount
 c: e kind == c and amount < {n}.00
skip past last""",
    'seq a -> b within {n} events\nwhere a: e note == "x{n}"\n b: e note in ["x{n}", "y"] and amount < 3.00',
    """seq a -> b within 1 h
where a: e count(e over {n} min where amount > {n}.00) > 3
 b: e amount + {n}.00 > a.amount
on timeout emit late = a.amount""",
    """seq a -> b+ any within 5 min
where a: e lower(note) == "x{n}" or amount < 1.00
 b: e amount == a.amount
emit total = sum(b.amount * 2)""",
)


@cache
def _parsed(text: str) -> DeployedRule:
    return rule(text)


def _some_rule(rng: random.Random, number: int) -> DeployedRule:
    text = rng.choice(_TEXTS).format(n=rng.randint(1, 12))
    from_ms = rng.choice([-(10**12), 5, 1_000])
    return replace(
        _parsed(text), rule_id=f"r{number:03}", content_hash=text, from_ms=from_ms, version=rng.randint(1, 9),
        carries=rng.choice([0, 0, 1]), status=rng.choice(["live", "shadow"]),
    )  # fmt: skip


def same(one: object, other: object, path: str = "program") -> None:
    """Assert that two programs are equal, arrays by their bytes."""
    if isinstance(one, np.ndarray):
        assert isinstance(other, np.ndarray)
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes()), path
    elif isinstance(one, tuple | list) or path.endswith(".rules"):
        assert len(one) == len(other), path  # type: ignore[arg-type]
        for number, (a, b) in enumerate(zip(one, other, strict=True)):  # type: ignore[call-overload]
            same(a, b, f"{path}[{number}]")
    elif is_dataclass(one) and not isinstance(one, DeployedRule):
        for field in fields(one):
            same(getattr(one, field.name), getattr(other, field.name), f"{path}.{field.name}")
    else:
        assert one == other, path


def compiled(rules: list[DeployedRule], compiler: Compiler | None = None) -> Program:
    return (compiler or Compiler(SCHEMA)).program(("key",), rules)


@pytest.mark.parametrize("seed", range(6))
def test_after_any_changes_a_program_is_as_if_compiled_at_once(seed: int) -> None:
    rng = random.Random(seed)
    compiler = Compiler(SCHEMA)
    rules = [_some_rule(rng, number) for number in range(rng.choice([2, 12, 40]))]
    for step in range(12):
        same(compiled(rules, compiler), compiled(rules))
        match rng.choice(["change", "change", "insert", "remove", "interval", "move"]):
            case "change":
                rules[rng.randrange(len(rules))] = _some_rule(rng, rng.randrange(1_000))
            case "insert":
                rules.insert(rng.randint(0, len(rules)), _some_rule(rng, 1_000 + step))
            case "remove" if len(rules) > 1:
                del rules[rng.randrange(len(rules))]
            case "interval":
                place = rng.randrange(len(rules))
                rules[place] = replace(rules[place], starts_until_ms=2_000, until_ms=3_000)
            case _:
                rng.shuffle(rules)


def test_only_what_is_new_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    compiler = Compiler(SCHEMA)
    rules = [_some_rule(rng, number) for number in range(50)]
    compiled(rules, compiler)
    new: list[object] = []

    def counting(*arguments: object) -> object:
        new.append(arguments[0])
        return compile_piece(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("cep.nfa.compile.compile_piece", counting)
    rules[20] = rule(_TEXTS[0].format(n=77))
    compiled([replace(r, version=r.version + 1) for r in rules], compiler)
    assert new == [rules[20].pattern]


def test_what_rules_that_are_gone_have_left_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "SYMBOLS_MAX", 40)
    monkeypatch.setattr(compiling, "PIECES_CACHED_MAX", 5)
    rng = random.Random(2)
    compiler = Compiler(SCHEMA)
    for _ in range(30):
        rules = [_some_rule(rng, number) for number in range(6)]
        same(compiled(rules, compiler), compiled(rules))
        assert len(compiler._pieces) <= 6
        assert len(compiler._symbols) < 500


def test_no_rules_are_a_program_too() -> None:
    nothing = compiled([])
    assert (len(nothing.rules), nothing.width, nothing.predicates.count) == (0, y.RUN_HEADER, 0)
    assert nothing.places == ()
