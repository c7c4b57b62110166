"""Compiled expressions, over whole batches and over one run, against the oracle that walks the tree."""

from __future__ import annotations

import math
from random import Random

import pytest

from cep.base.schema import Kind, Type
from cep.lang import ir
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
