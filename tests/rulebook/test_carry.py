"""Which versions may take over the runs of another."""

from __future__ import annotations

import pytest

from cep.rulebook.carry import same_automaton
from cep.rulebook.compatible import compile_rule
from tests.rulebook.records import SCHEMA, SOURCE, new_book, upsert


def bound(old: str = "", new: str = "", **params: object) -> object:
    found = compile_rule(upsert(1, source=SOURCE.replace(old, new) if old else SOURCE, params=params), SCHEMA, None)
    assert hasattr(found, "structure"), found
    return found


@pytest.mark.parametrize("params", [{}, {"large": 9}])
def test_numbers_may_differ(params: dict[str, object]) -> None:
    assert same_automaton(bound(), bound(**params), SCHEMA)  # type: ignore[arg-type]


def test_a_comment_may_differ() -> None:
    assert same_automaton(bound(), bound("pattern large", "## Says more.\npattern large"), SCHEMA)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("amount < 1.00", "amount <= 1.00"),
        ("small -> large_one", "small, large_one"),
        ("small -> large_one", "small{2,} -> large_one"),
        ("emit   amount = large_one.amount", "emit   amount = small.amount"),
        ("within window", "within 11 min"),
    ],
)
def test_all_else_may_not(old: str, new: str) -> None:
    assert not same_automaton(bound(), bound(old, new), SCHEMA)  # type: ignore[arg-type]


def test_a_version_that_may_not_carry_drains_and_says_so() -> None:
    book = new_book()
    book.apply(upsert(1), None)
    carrying = book.apply(upsert(2, effective_ms=1_000, on_update="carry", params={"large": 7}), None)
    draining = book.apply(upsert(3, effective_ms=2_000, on_update="carry", params={"window": "1 min"}), None)
    assert (carrying.kind, carrying.reason) == ("applied", "")
    assert draining.kind == "applied"
    assert "version 2 has another automaton or other windows" in draining.reason
    assert [rule.carries for rule in book.deployed()] == [0, 1, 0]
