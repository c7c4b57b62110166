"""Plain values equal the kernels' values: the engine and the trace emit the same nulls and exact decimals."""

from __future__ import annotations

import pytest

from cep.base.schema import Kind, Type
from cep.lang.ir import History, PatternIR
from cep.lang.load import load_text
from cep.testing.conditions import Conditions
from cep.testing.harness import Verdict
from cep.testing.values import Fields, UnexplainedError, value_of
from tests.lang.common import shown
from tests.testing.common import EVENTS, verdict_of

EXPRESSIONS = [
    "a.amount + b.amount", "a.amount * b.amount", "a.amount / b.amount", "a.amount / (b.amount - b.amount)",
    "-a.amount", "abs(a.amount - b.amount)", "a.km * 2", "a.km > b.amount", "sqrt(a.km)", "sqrt(-a.km)", "sin(a.km)",
    "cos(a.km)", "asin(a.km)", "asin(b.km)", "distance_km(a.km, b.km, 40.7, -74.0)", "least(a.amount, 3)",
    "greatest(a.km, b.amount, 3)", "count(a)", "sum(a.amount)", "avg(a.amount)", "stddev(a.amount)", "min(a.amount)",
    "max(a.km)", "distinct(a.amount)", "count(c)", "sum(c.amount)", "avg(c.amount)", "max(c.amount)", "first(a).amount",
    "prev(a).amount", "c.amount", "a.note", "b.note", "b.note is null", "a.note is not null", "b.kind", "b.kind == web",
    "a.event_time", "b.event_time - a.event_time", "if a.ok then 1 else 2", "a.ok and b.note == b.note",
    "a.ok or b.note == b.note", "not (b.note == b.note)", "a.amount in [1.00, 2.00]", "b.amount in [7.00]",
    "b.amount between 1 and 500", "(b.event_time - a.event_time) / 1 min", "sum(a.amount * 2)", "7 % 3",
]  # fmt: skip


def both(pattern: str) -> tuple[Verdict, PatternIR]:
    verdict = verdict_of(
        pattern,
        'c1: 0s pay amount=1.50 km=0.5 note="x" ok=true  1s pay amount=2.25 km=0.25 note="x" ok=true'
        "  90s pay amount=200.10 km=48.85 kind=web  expect matches 1",
    )
    return verdict, verdict.test.pattern


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_the_engine_and_the_trace_emit_the_same(expression: str) -> None:
    where = "where a: pay amount < 10  b: pay amount > 100  c: pay amount > 1000"
    verdict, pattern = both(f"seq a{{2}} -> c? -> b within 5 min {where} emit x = {expression}")
    ((_, value, _),) = verdict.matches[0].values
    trace = verdict.traces["c1"]
    conditions = Conditions(pattern, tuple(p.variable for p in trace.automaton.positions), trace.events)
    (match,) = trace.emitted()
    mine = value_of(pattern.measures[0].value, {}, conditions.bound(match.run))
    assert mine == pytest.approx(value, rel=1e-12) if isinstance(value, float) else mine == value
    assert type(mine) is type(value)


@pytest.mark.parametrize("text", ["a%", "%b", "_b", "a_", "%", "ab", "b%", "a.b"])
def test_texts(text: str) -> None:
    verdict, _ = both(f'seq a where a: pay note like "{text}" or starts_with(note, "{text}") or note == "x" skip none')
    assert len(verdict.traces["c1"].emitted()) == 2


def test_an_integer_that_leaves_64_bits_is_the_bound() -> None:
    _, pattern = both("seq a where a: pay amount > 100 emit x = (a.amount + 9000000000000000.00) * 100.00")
    bound = {"a": [{"amount": 20_010}]}
    assert value_of(pattern.measures[0].value, {}, bound) == 2**63 - 1


EVENT: Fields = {
    "amount": -250, "km": 2.5, "note": "Ab_c", "event_time": 1_709_247_600_000, "card": "192.0.2.7", "ok": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("round(amount) == -3", True),  # halves away from zero
        ("floor(amount) == -3", True),
        ("ceil(amount) == -2", True),
        ("round(amount, 1) == -2.5", True),
        ("round(km) == 3e0", True),
        ("floor(km) == 2e0 and ceil(km) == 3e0 and round(-km) == -3e0", True),
        ('lower(note) == "ab_c" and upper(note) == "AB_C"', True),
        ('substring(note, 2) == "b_c" and substring(note, 1, 2) == "Ab"', True),
        ("length(note) == 4 and length(substring(note, 4, 9)) == 1", True),
        ('ends_with(note, "_c") and contains(note, "b_") and starts_with(note, "A")', True),
        ('note matches "^A.*c$"', True),
        ('note matches "^b"', False),
        ('in_cidr(card, "192.0.2.0/24")', True),
        ('in_cidr(card, "10.0.0.0/8")', False),
        ('in_cidr(note, "10.0.0.0/8")', None),
        ('hour(event_time, "UTC") == 23 and hour(event_time, "Europe/Paris") == 0', True),
        ('weekday(event_time, "UTC") == 4 and weekday(event_time, "Europe/Paris") == 5', True),
        ('event_time - date(event_time, "Europe/Paris") == 0 s', True),
        ("amount in [1.00, -2.50]", True),
        ("if km > 2 then ok else false", True),
    ],
)
def test_functions_of_one_event(condition: str, holds: bool | None) -> None:
    loaded = load_text(f"{EVENTS} pattern p by card {{ seq a where a: pay {condition} }}")
    assert loaded.ok, shown(loaded)
    where = loaded.patterns["p"].variables[0].where
    assert where is not None
    assert value_of(where, EVENT, {}) is holds


def test_what_needs_past_events_is_not_explained() -> None:
    where = History("count", "pay", None, None, (), None, None, Type(Kind.INT))
    with pytest.raises(UnexplainedError, match="past events"):
        value_of(where, EVENT, {})
