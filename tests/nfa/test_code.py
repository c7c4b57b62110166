"""Compiled and simplified expressions, over whole batches and over one run, against the oracle that walks the tree."""

import math
from random import Random

import pytest

from cep.base.schema import Kind, Type
from cep.lang import ir
from cep.lang.ir import Aggregate, Binary, Const, CurrentField, Expr, Unary, VarField
from cep.nfa.simplify import FALSE, TRUE, Facts, conjuncts, needs_run, simplify
from tests.engine.bridge import Answers, batch_of, engine_answers, event_id, program_of, whole
from tests.nfa.expressions import BOOL, CENTS, FLOAT, INT, SCHEMA, TEXT, Maker, of_event, of_run, random_events
from tests.oracle.expressions import Value, evaluate
from tests.oracle.matcher import Event
from tests.seeds import seeds

SEEDS = seeds(150, 50)


def pattern(where: ir.Expr | None, measures: dict[str, ir.Expr], times: int = 1) -> ir.PatternIR:
    """Return the pattern `a{times}`, with every combination."""
    node = ir.VarNode("a", ir.Quantifier(times, times))
    return ir.PatternIR(
        name="p",
        params=(),
        key=("key",),
        structure=ir.SequenceNode((ir.Step(ir.Link.FOLLOWED_BY, node),)),
        variables=(ir.Variable("a", "e", where),),
        measures=tuple(ir.Measure(name, value) for name, value in measures.items()),
        event_types=("e",),
        skip=ir.Skip(ir.SkipKind.NONE),
    )


def answers(subject: ir.PatternIR, events: list[Event]) -> Answers:
    return engine_answers(program_of(SCHEMA, subject), whole(batch_of(SCHEMA, {"x": events})))


def same(one: Value, other: Value) -> bool:
    """Return True if the values are equal, or both NaN; a bool equals the integer that its slot holds."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    return (one is None) == (other is None) and one == other


@pytest.mark.parametrize("seed", SEEDS)
def test_a_condition_over_a_batch_is_what_the_oracle_says(seed: int) -> None:
    random = Random(seed)
    events = random_events(random, 130)  # more than two words of a bitmap
    for _ in range(3):
        where = Maker(random, of_event).make(BOOL, random.randint(1, 5))
        matched = {ids[0] for _, ((_, ids),), _, _ in answers(pattern(where, {}), events).matches}
        expected = {event_id(e.order) for e in events if evaluate(where, e.fields, {}) is True}
        assert matched == expected, f"seed {seed}: {where}"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_value_of_a_run_is_what_the_oracle_says(seed: int) -> None:
    random = Random(seed)
    events = random_events(random, 40)
    maker = Maker(random, of_run)
    types = (INT, CENTS, FLOAT, BOOL, TEXT)
    measures = {f"m{n}": maker.make(type_, random.randint(0, 5)) for n, type_ in enumerate(types)}
    matches = answers(pattern(None, measures), events).matches
    assert len(matches) == len(events)
    for _, ((_, (own_id,)),), _, values in matches:
        event = events[int(own_id)]
        for name, value in values:
            expected = evaluate(measures[name], event.fields, {"a": [event.fields]})
            assert same(value, expected), f"seed {seed}: {measures[name]} of {event.fields}: {value}, not {expected}"


@pytest.mark.parametrize("seed", SEEDS)
def test_both_kinds_of_code_agree(seed: int) -> None:
    """The same expression is a condition of the event and a measure of the run."""
    random = Random(seed)
    events = random_events(random, 70)
    where = Maker(Random(seed), of_event).make(BOOL, 4)
    measure = Maker(Random(seed), of_run).make(BOOL, 4)
    matched = {ids[0] for _, ((_, ids),), _, _ in answers(pattern(where, {}), events).matches}
    matches = answers(pattern(None, {"m": measure}), events).matches
    assert {ids[0] for _, ((_, ids),), _, values in matches if values[0][1] == 1} == matched, f"seed {seed}: {where}"


@pytest.mark.parametrize("seed", seeds(30, 10))
def test_aggregates(seed: int) -> None:
    random = Random(seed)
    arguments: dict[str, ir.Expr] = {
        "i": ir.CurrentField("i", INT), "d": ir.CurrentField("d", CENTS), "f": ir.CurrentField("f", FLOAT),
        "wide": ir.Cast(ir.CurrentField("i", INT), CENTS),
    }  # fmt: skip
    measures: dict[str, ir.Expr] = {"count": ir.Aggregate("count", "a", None, Type(Kind.INT))}
    for name, argument in arguments.items():
        for fn in ("count", "sum", "min", "max", "avg", "stddev"):
            type_ = {"count": Type(Kind.INT), "avg": FLOAT, "stddev": FLOAT}.get(fn, argument.type)
            measures[f"{fn} {name}"] = ir.Aggregate(fn, "a", argument, type_)
        if isinstance(argument, ir.CurrentField):
            measures[f"distinct {name}"] = ir.Aggregate("distinct", "a", argument, Type(Kind.INT))
    events = random_events(random, 7)
    # One aggregate takes up to three registers of a run, which has 64.
    for name, measure in measures.items():
        for _, ((_, ids),), _, ((_, value),) in answers(pattern(None, {"m": measure}, times=4), events).matches:
            bound = [events[int(i)].fields for i in ids]
            expected = evaluate(measure, bound[-1], {"a": bound})
            close = (
                value == expected
                if expected is None or value is None
                else math.isclose(float(value), float(expected), abs_tol=1e-9)
            )
            assert close, f"seed {seed}: {name} of {bound}: {value}, not {expected}"


@pytest.mark.parametrize("fn", ["sin", "cos", "asin", "sqrt"])
def test_functions_of_floats(fn: str) -> None:
    events = random_events(Random(fn), 40)
    measure = ir.Call(fn, (of_run("f", FLOAT),), FLOAT)
    for _, ((_, (own_id,)),), _, ((_, value),) in answers(pattern(None, {"m": measure}), events).matches:
        expected = evaluate(measure, {}, {"a": [events[int(own_id)].fields]})
        assert value == (None if expected is None else pytest.approx(expected, abs=1e-12))


def test_the_distance_from_paris_to_new_york() -> None:
    degrees = [ir.Const(d, Type(Kind.FLOAT)) for d in (48.8566, 2.3522, 40.7128, -74.0060)]
    measure = ir.Call("distance_km", tuple(degrees), FLOAT)
    ((_, _, _, ((_, value),)),) = answers(pattern(None, {"m": measure}), random_events(Random(0), 1)).matches
    assert value == pytest.approx(5837.2, abs=0.1)


@pytest.mark.parametrize(("fn", "text"), [("starts_with", "ab"), ("contains", "b"), ("like", "_b%"), ("like", "b\\%")])
def test_tests_of_text(fn: str, text: str) -> None:
    events = random_events(Random(3), 130)
    where = ir.Call(fn, (ir.CurrentField("s", TEXT), ir.Const(text, Type(Kind.STRING))), BOOL)
    matched = {ids[0] for _, ((_, ids),), _, _ in answers(pattern(where, {}), events).matches}

    def passes(value: str) -> bool:
        if fn == "starts_with":
            return value.startswith(text)
        if fn == "contains":
            return text in value
        return value[1:2] == "b" if text == "_b%" else value == "b%"

    expected = {event_id(e.order) for e in events if e.fields["s"] is not None and passes(str(e.fields["s"]))}
    assert matched == expected


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
