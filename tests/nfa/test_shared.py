"""Which rules share their starts, and what a program knows of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cep.kernels import layout as y
from cep.nfa.program import Program
from tests.engine.rules import program, rule

WHERE = "where a: e kind == a\n b: e kind == b and amount > a.amount\n c: e kind == c"


def of(*texts: str) -> Program:
    return program(*(rule(text, f"r{n}") for n, text in enumerate(texts)))


def pair(number: int, within: str = "1 h") -> str:
    return f"seq a -> b within {within}\nwhere a: e kind == a\n b: e kind == b and amount > {number}.00"


@pytest.mark.parametrize(
    ("steps", "may"),
    [
        (f"seq a -> b -> c within 1 h\n{WHERE}", True),
        (f"seq a -> b{{2}} -> c within 1 h\n{WHERE}\nskip past last", True),
        (f"seq a ->> (b | c) within 1 h\n{WHERE}\nskip none", True),
        ("seq a{2} -> b within 1 h\nwhere a: e kind == a\n b: e kind == b", True),
        ("seq a{2,} -> b within 1 h\nwhere a: e kind == a\n b: e kind == b\nemit total = sum(a.amount)", True),
        ("seq a+ -> b within 1 h\nwhere a: e kind == a\n b: e kind == b\nemit total = sum(a.amount * 2)", False),
        ("seq a -> b -> d within 1 h\nwhere a: e kind == a\n b: e kind == b\n d: e kind == a", False),  # completes
        (f"seq a -> b -> d -> c within 1 h\n{WHERE}\n d: e kind == a and amount > a.amount", False),  # asks for more
        ("seq a -> b within 1 h\nwhere a: e kind == a\n b: e amount > a.amount", False),  # every event may
        (f"seq a, b -> c within 1 h\n{WHERE}", False),  # what is directly after
        (f"seq a -> !b -> c within 1 h\n{WHERE}", False),  # an event closes it
        (f"seq a -> b ->[5 min] c within 1 h\n{WHERE}", False),  # a deadline of its own
        (f"seq a -> b -> c within 1 h\n{WHERE}\non timeout emit late = a.amount", False),  # time fires something
        (f"seq a -> b -> c within 1 h\n{WHERE}\nskip past last in order", False),
        ("seq (a | b) -> c within 1 h\nwhere a: e kind == a\n b: e kind == b\n c: e kind == c", False),  # two starts
        ("seq a -> b? within 1 h\nwhere a: e kind == a\n b: e kind == b", False),  # a start is a match
    ],
)
def test_which_rules_may(steps: str, may: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.nfa.shared.SHARED_MIN", 1)
    assert len(of(steps).shared) == may


def test_enough_rules_share_what_all_of_them_need() -> None:
    few, enough = of(pair(1), pair(2), pair(3)), of(pair(1), pair(2), pair(3, "2 h"), pair(4))
    assert few.shared == ()
    assert not any(r.row[y.R_SHARES] for r in few.rules)
    (start,) = enough.shared
    assert start.rules.tolist() == [0, 1, 2, 3]
    assert (start.slot, start.within_ms) == (4, 2 * 3_600_000)
    assert all(start.predicate not in enough.relevant_to(number) for number in range(4))
    assert all(start.predicate in program(rule(pair(number))).relevant_to(0) for number in range(4))


def test_starts_lie_where_one_of_the_rules_sees_them() -> None:
    rules = [rule(pair(n), f"r{n}", from_ms=10 * n, starts_until_ms=100 + n, until_ms=200 + n) for n in range(1, 6)]
    (start,) = program(*rules).shared
    assert (start.from_ms, start.until_ms) == (10, 205)


def test_rules_that_hand_runs_over_keep_their_own_starts() -> None:
    rules = [rule(pair(n), f"r{n}") for n in range(5)]
    giver = replace(rules[0], until_ms=2_000)
    taker = replace(rules[0], version=2, content_hash="newer", from_ms=1_000, carries=1)
    (start,) = program(*rules[1:], giver, taker).shared
    assert start.rules.tolist() == [0, 1, 2, 3]
