"""Conditions at a position of the pattern: known values are put in, and the rest stays unchanged."""

from __future__ import annotations

from random import Random

import pytest

from cep.base.schema import Kind, Type
from cep.lang.ir import Aggregate, Binary, Const, CurrentField, Expr, Unary, VarField
from cep.nfa.simplify import FALSE, TRUE, Facts, conjuncts, needs_run, simplify
from tests.nfa.expressions import BOOL, INT, Maker, of_event, of_run, random_events
from tests.oracle.expressions import evaluate

NOTHING = Facts(frozenset(), frozenset(), frozenset({"j"}))
BOUND = Facts(frozenset({"a"}), frozenset({"a"}), frozenset({"j"}))
MAYBE = Facts(frozenset(), frozenset({"a"}), frozenset({"j"}))
A_J, A_I = VarField("a", "last", "j", INT), VarField("a", "last", "i", INT)
J, ONE = CurrentField("j", INT), Const(1, Type(Kind.INT))


def binary(op: str, left: Expr, right: Expr) -> Binary:
    return Binary(op, left, right, BOOL)  # type: ignore[arg-type]


def is_null(expr: Expr) -> Unary:
    return Unary("is_null", expr, Type(Kind.BOOL))


def test_the_first_of_a_rising_series_needs_no_predecessor() -> None:
    rising = binary("or", is_null(A_J), binary(">", J, A_J))
    assert conjuncts(rising, NOTHING) == []
    assert conjuncts(rising, BOUND) == [binary(">", J, A_J)]
    assert conjuncts(rising, MAYBE) == [rising]


def test_a_field_that_may_be_null_stays_in_doubt() -> None:
    assert conjuncts(is_null(A_I), BOUND) == [is_null(A_I)]
    assert conjuncts(is_null(VarField("a", "prev", "j", INT)), BOUND) == [is_null(VarField("a", "prev", "j", INT))]


def test_conjuncts_are_taken_apart_and_named_once() -> None:
    left, right = binary(">", J, ONE), binary(">", J, A_J)
    assert conjuncts(binary("and", left, binary("and", right, left)), MAYBE) == [left, right]
    assert [needs_run(part) for part in (left, right)] == [False, True]


@pytest.mark.parametrize(
    "never",
    [Const(None, BOOL), FALSE, binary(">", J, Const(None, INT)), binary("and", TRUE, FALSE), binary(">", J, A_J)],
)
def test_what_cannot_be_true_is_false(never: Expr) -> None:
    assert conjuncts(never, NOTHING) == [FALSE]


@pytest.mark.parametrize(
    ("op", "number", "bound", "expected"),
    [
        (">", 0, True, TRUE),
        (">=", 1, True, TRUE),
        ("==", 0, True, FALSE),
        ("<", 1, True, FALSE),
        ("==", 0, False, TRUE),
    ],
)
def test_counts_of_what_is_certain(op: str, number: int, *, bound: bool, expected: Expr) -> None:
    count = Aggregate("count", "a", None, Type(Kind.INT))
    comparison = binary(op, count, Const(number, Type(Kind.INT)))
    assert simplify(comparison, BOUND if bound else NOTHING) == expected


@pytest.mark.parametrize("seed", range(200))
def test_a_simplified_condition_is_true_where_the_condition_is(seed: int) -> None:
    random = Random(seed)
    events = random_events(random, 12)

    def leaf(field: str, type_: Type) -> Expr:
        return random.choice((of_event, of_run))(field, type_)

    condition = Maker(random, leaf).make(BOOL, 5)
    for binding, bound in ((BOUND, True), (MAYBE, True), (MAYBE, False), (NOTHING, False)):
        parts = conjuncts(condition, binding)
        for i, event in enumerate(events):
            fields = {"a": [events[i - 1].fields]} if bound else {}
            plain = evaluate(condition, event.fields, fields) is True
            split = all(evaluate(part, event.fields, fields) is True for part in parts)
            assert split == plain, f"seed {seed}: {condition} became {parts}"
