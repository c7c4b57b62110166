"""Random expressions on awkward values: plain Python and the engine return the same value, to the last bit.

As a condition an expression runs in the kernels over columns, as a measure in the interpreter of single runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from cep.lang.ir import PatternIR
from cep.lang.load import load_text
from cep.testing.values import value_of
from tests.engine.bridge import batch_of, engine_answers, event_id, program_of, whole
from tests.nfa.test_functions import EVENTS, SCHEMA, ZONES, condition_of, pattern, random_events, taken_by_a
from tests.oracle.expressions import Value
from tests.oracle.matcher import Event

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
        """Return a decimal."""
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
        """Return a condition."""
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
