"""Values in plain Python against the engine's, and their printed form."""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from cep.base.schema import Kind, Schema, Type
from cep.lang.check.bind import bind
from cep.lang.ir import Binary, Cast, Const, Expr, History, PatternIR, Slot
from cep.lang.load import load_text
from cep.lang.show import show_expr
from cep.testing.events import past_values
from cep.testing.explain import operands
from cep.testing.harness import Verdict
from cep.testing.journal import Conditions, parts_of
from cep.testing.values import Fields, UnexplainedError, value_of
from tests.engine.bridge import batch_of, engine_answers, event_id, program_of, whole
from tests.lang.common import shown
from tests.nfa.test_functions import EVENTS, SCHEMA, ZONES, condition_of, pattern, random_events, taken_by_a
from tests.oracle.expressions import Value
from tests.oracle.matcher import Event
from tests.seeds import seeds
from tests.testing.common import EVENTS as COMMON_EVENTS
from tests.testing.common import verdict_of

# Plain values equal the kernels' values: the engine and the trace emit the same nulls and exact decimals.

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
    loaded = load_text(f"{COMMON_EVENTS} pattern p by card {{ seq a where a: pay {condition} }}")
    assert loaded.ok, shown(loaded)
    where = loaded.patterns["p"].variables[0].where
    assert where is not None
    assert value_of(where, EVENT, {}) is holds


def test_what_needs_past_events_is_not_explained() -> None:
    where = History("count", "pay", None, None, (), None, None, Type(Kind.INT))
    with pytest.raises(UnexplainedError, match="past events"):
        value_of(where, EVENT, {})


# Random expressions on awkward values: plain Python and the engine return the same value, to the last bit.
#
# As a condition an expression runs in the kernels over columns, as a measure in the interpreter of single runs.

FLOATS = (math.inf, -math.inf, math.nan, 0.0, -0.0, 0.49999999999999994, 2.0**52 + 1, -(2.0**53) - 2, 1e300, -1e-300)
TEXTS = ("", "a", "a%", "100%", r"a\b", r"\%", "_", "a_b", "Straße", "a\nb", "İ", "10.0.0.1")
LIKES = (r"a\\b", r"\\%", r"a\\_b", "a%", "_", "%\\\\%", "100\\\\%", "a\nb", "%", "")
DAY_MS = 86_400_000


class Expressions:
    """Random expressions over the fields of an event, by type. Each field has the prefix `of`."""

    def __init__(self, random: Random, of: str = "") -> None:
        self.random, self.of = random, of

    def number(self, depth: int) -> str:
        """Return a float, or an expression that becomes one next to a float."""
        pick = self.random.choice
        if depth == 0:
            return pick((f"{self.of}f", f"{self.of}f", f"{self.of}d", "0e0", "5e-1", "-3e0", "1e300", "7", "2.50"))
        inner, other = self.number(depth - 1), self.number(depth - 1)
        forms = (
            f"round({inner})", f"round({self.of}f, {pick((1, 2, 5))})", f"floor({inner})", f"ceil({inner})",
            f"abs({inner})", f"(-{inner})", f"({inner} + {self.of}f)", f"({inner} - {self.of}f)",
            f"({self.of}f * {inner})", f"({inner} / {other})", f"sqrt({inner})", f"sin({inner})", f"cos({inner})",
            f"asin({inner})", f"least({inner}, {self.of}f)", f"greatest({self.of}f, {inner})",
            f"distance_km({inner}, {self.of}f, 1e0, {other})", f"(if {self.truth(depth - 1)} then {inner} else 1e0)",
        )  # fmt: skip
        return pick(forms)

    def exact(self, depth: int) -> str:
        pick = self.random.choice
        if depth == 0:
            return pick((f"{self.of}d", f"{self.of}d", f"{self.of}fine", "0.01", "92233720368547758.07", "-1.50"))
        inner = self.exact(depth - 1)
        forms = (
            f"round({inner})", f"round({self.of}d, 1)", f"floor({inner})", f"ceil({inner})", f"abs({inner})",
            f"(-{inner})", f"({inner} + {self.of}d)", f"({inner} - {self.of}d)", f"({self.of}d * {pick((1, 3, -1))})",
            f"least({inner}, {self.of}d)", f"(round({self.of}fine) % 7)",
        )  # fmt: skip
        return pick(forms)

    def truth(self, depth: int) -> str:
        pick = self.random.choice
        if depth <= 0:
            return pick((f"{self.of}f > 0e0", f"{self.of}d is null", f"{self.of}d == 0"))
        forms: list[Callable[[], str]] = [
            lambda: f"{self.number(depth)} {pick(('<', '<=', '==', '!=', '>', '>='))} {self.of}f",
            lambda: f"{self.exact(depth)} {pick(('<', '==', '>='))} {self.of}d",
            lambda: f"{self.number(depth)} in [0e0, 1e0, 5e-1]",
            lambda: f"({self.truth(depth - 1)} {pick(('and', 'or'))} not ({self.truth(depth - 1)}))",
        ]
        return pick(forms)()

    def of_text_or_time(self) -> str:
        """Return a function of the event's text or time, which can only be part of a condition."""
        pick = self.random.choice
        zone = pick(ZONES)
        return pick((
            f's like "{pick(LIKES)}"', f'lower(s) == "{pick(("a", "straße", "i̇"))}"',
            f"length(upper(s)) > {pick((1, 5))}",
            f'substring(s, {pick((1, 2))}, 2) == "{pick(("a", "ab", "tr"))}"', 's matches "^[a-c].?"',
            f'date(event_time, "{zone}") + {pick((0, 24, 25))} h > event_time', f'hour(event_time, "{zone}") < 3',
            f'weekday(event_time, "{zone}") == 7', f'in_cidr(s, "10.0.0.0/{pick((8, 31))}")',
        ))  # fmt: skip


def events_of(random: Random) -> list[Event]:
    """Return events with values at the edges of arithmetic and around changes of the clock."""
    change_ms = random.choice((1_572_148_800_000, 1_604_196_000_000, 1_648_342_800_000))
    events = random_events(random, 40, lambda: change_ms + random.randint(-DAY_MS, DAY_MS) // 60_000 * 60_000)
    events_with_fields: list[Event] = []
    for event in events:
        awkward = {"f": random.choice(FLOATS)} if random.random() < 0.5 else {}
        fields = {**event.fields, **awkward, "s": random.choice((None, *TEXTS))}
        events_with_fields.append(replace(event, fields=fields))
    return events_with_fields


def same(mine: Value, engines: Value) -> bool:
    """Return True if two values are equal to the last bit; a sine may be rounded differently."""
    if isinstance(mine, float) and isinstance(engines, float):
        close = math.isclose(mine, engines, rel_tol=1e-13)
        return (math.isnan(mine) and math.isnan(engines)) or mine == engines or close
    return mine == engines and type(mine) is type(engines)


def asked_for(body: str) -> PatternIR | None:
    """Return the pattern, or None: random text may need more digits than a type has, or a number that does not fit."""
    if not load_text(f"{EVENTS}\npattern p by key {{ {body} }}").ok:
        return None
    return pattern(body)


@pytest.mark.parametrize("seed", range(6))
def test_conditions(seed: int) -> None:
    random = Random(seed)
    taken_count = left_count = 0
    for _ in range(15):
        expressions = Expressions(random)
        text = expressions.truth(3) if random.random() < 0.5 else expressions.of_text_or_time()
        bound = asked_for(f"seq a where a: e {text}")
        if bound is None:
            continue
        events = events_of(random)
        mine = {event_id(e.order) for e in events if value_of(condition_of(bound), e.fields, {}) is True}
        assert mine == taken_by_a(bound, events), text
        taken_count, left_count = taken_count + len(mine), left_count + len(events) - len(mine)
    assert taken_count
    assert left_count


@pytest.mark.parametrize("seed", range(6))
def test_measures(seed: int) -> None:
    random = Random(seed)
    compared = 0
    for _ in range(8):
        expressions = Expressions(random, "a.")
        text = random.choice((expressions.number, expressions.exact))(2)
        bound = asked_for(f"seq a where a: e emit m = {text}")
        if bound is None:
            continue
        events = events_of(random)
        answers = engine_answers(program_of(SCHEMA, bound), whole(batch_of(SCHEMA, {"x": events})))
        values_by_event = {ids[0]: values[0][1] for _, ((_, ids),), _, values in answers.matches}
        for event in events:
            mine = value_of(bound.measures[0].value, {}, {"a": [event.fields]})
            assert same(mine, values_by_event[event_id(event.order)]), (
                text,
                event.fields,
                mine,
                values_by_event[event_id(event.order)],
            )
            compared += 1
    assert compared


AGGREGATES = ("count", "sum", "avg", "min", "max", "distinct", "stddev")


@pytest.mark.parametrize("seed", range(4))
def test_aggregates(seed: int) -> None:
    """Aggregates over the events of a loop: sums that overflow, NaN, and both zeros."""
    random = Random(seed)
    fields = [f"m{n} = {fn}(a.{f})" for n, (fn, f) in enumerate((fn, f) for fn in AGGREGATES for f in ("f", "d"))]
    loop_pattern = pattern(f"seq a{{3,6}} strict where a: e emit {', '.join(fields)}")
    events = events_of(random)
    answers = engine_answers(program_of(SCHEMA, loop_pattern), whole(batch_of(SCHEMA, {"x": events})))
    by_id = {event_id(e.order): e.fields for e in events}
    assert len(answers.matches) > 50
    for _, ((_, ids),), _, values in answers.matches:
        bound = {"a": [by_id[i] for i in ids]}
        for measure, (name, engines) in zip(loop_pattern.measures, values, strict=True):
            mine = value_of(measure.value, {}, bound)
            assert same(mine, engines), (fields, name, bound, mine, engines)


# The printed operands of a comparison, read back as fractions, are in the order that the engine found.

HEAD = """
event e { id id  event_time time  key string  f float  d decimal(2)  fine decimal(18)  n int }
pattern p by key { seq a{3} -> b where a: e  b: e CONDITION }
"""
OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
             "!=": operator.ne}  # fmt: skip
NEAR_FLOATS = (0.1, 0.30000000000000004, 0.3, 1.1, 49.99, 1e15 + 0.125, 123456789.123456, 1e300, -2.5e-17)
UNITS = (10, 30, 110, 4_999, 5_000, 12_345_678_912, 9_000_000_000_000_001)
FINE = (10**17, 10**17 + 1, 3 * 10**17, 11 * 10**17, 9 * 10**18)
WHOLE = (0, 1, 3, 50, 2**53, 2**53 + 1, 2**60, 2**60 + 1, 2**62)


class Sides:
    """Random numbers of the language, near each other."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def side(self, depth: int = 2) -> str:
        pick, field = self.random.choice, self.random.choice(("f", "d", "n", "fine"))
        if depth == 0:
            return pick(("f", "d", "fine", "n", "0.30", "49.99", "1.1e0", "50", "1.000000000000000001"))
        inner = self.side(depth - 1)
        forms = (
            field, "fine", f"avg(a.{field})", f"stddev(a.{field})", f"avg(e.{field} over 1 d)",
            f"stddev(e.{field} over 1 d)", f"median(e.{field} over 1 d)", f"avg(e.{field} over previous 1 d)",
            f"{pick(('1.2', '3', '1.1e0'))} * avg(a.{field})", f"sum(a.{field})", f"sum(e.{field} over 1 d)",
            f"({inner} - avg(e.{field} over 1 d))", f"{field} * {pick((1, 3))}", f"avg(e.{field} * 3 over 1 d)",
            f"({inner} / {pick(('3', 'n'))})", f"({field} + {self.side(0)})", f"({inner} * {self.side(0)})",
            f"abs({inner})", f"(-{inner})", f"greatest({inner}, {self.side(0)})", f"least({self.side(0)}, {inner})",
            f"round({inner})", f"sqrt({inner})", f"(if f > 1.0 then {inner} else {self.side(0)})",
            f"min(a.{field})", f"first(a).{field}",
        )  # fmt: skip
        return pick(forms)


def pattern_of(condition: str) -> tuple[Schema, PatternIR] | None:
    loaded = load_text(HEAD.replace("CONDITION", condition))
    if not loaded.ok:
        return None
    pattern, _ = bind(loaded.patterns["p"], {})
    assert pattern is not None
    return loaded.schema, pattern


def events_near(random: Random) -> list[Event]:
    """Events whose values are equal, or differ in the last digits."""
    few = [random.choice(values) for values in (NEAR_FLOATS, UNITS, FINE, WHOLE)]

    def value(place: int, values: tuple[float, ...]) -> float:
        return few[place] if random.random() < 0.7 else random.choice(values)

    return [
        Event(n, "e", n * 1_000, n, {"key": "x", "f": value(0, NEAR_FLOATS), "d": value(1, UNITS),
                                     "fine": value(2, FINE), "n": value(3, WHOLE)})
        for n in range(4)
    ]  # fmt: skip


def engine_verdict(schema: Schema, pattern: PatternIR, events: list[Event]) -> bool:
    """Return True if the kernels find that the last event fulfils its condition after the others."""
    program = program_of(schema, pattern)
    return bool(engine_answers(program, whole(batch_of(schema, {"x": events}))).matches)


def readable(side: Expr, printed: Mapping[str, str]) -> Fraction | float | None:
    """Read the printed text of a side; a float for infinities and NaN, None for a null."""
    uncast = side.argument if isinstance(side, Cast) else side
    text = show_expr(side) if isinstance(uncast, Const) else printed[show_expr(side)]
    if text == "null":
        return None
    return Fraction(text) if math.isfinite(float(text)) else float(text)


@pytest.mark.parametrize("seed", seeds(30, 3))
def test_printed_sides_prove_the_verdict(seed: int) -> None:
    random = Random(seed)
    judged = 0
    while judged < 25:
        sides = Sides(random)
        checked = pattern_of(f"{sides.side()} {random.choice(list(OPERATORS))} {sides.side()}")
        if checked is None:
            continue
        schema, pattern = checked
        (part,) = parts_of(next(v.where for v in pattern.variables if v.name == "b"))
        assert isinstance(part, Binary)
        events = events_near(random)
        past = past_values(schema, pattern, batch_of(schema, {"x": events}))
        event: Mapping[str, Slot] = {**events[-1].fields, **past.get(event_id(events[-1].order), {})}
        bound = {"a": [e.fields for e in events[:-1]]}
        printed = dict(operands(part, event, bound))
        left_side, right = readable(part.left, printed), readable(part.right, printed)
        verdict = engine_verdict(schema, pattern, events)
        read = left_side is not None and right is not None and OPERATORS[part.op](left_side, right)
        assert read == verdict, (show_expr(part), printed, event, bound)
        judged += 1
