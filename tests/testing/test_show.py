"""The printed operands of a comparison, read back as fractions, are in the order that the engine found."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from fractions import Fraction
from random import Random

import pytest

from cep.base.schema import Schema
from cep.lang.check.bind import bind
from cep.lang.ir import Binary, Cast, Const, Expr, PatternIR
from cep.lang.ir_tests import Slot
from cep.lang.load import load_text
from cep.lang.show import show_expr
from cep.testing.conditions import parts_of
from cep.testing.past import past_values
from cep.testing.show import operands
from tests.engine.bridge import batch_of, engine_answers, event_id, program_of, whole
from tests.oracle.matcher import Event
from tests.seeds import seeds

HEAD = """
event e { id id  event_time time  key string  f float  d decimal(2)  fine decimal(18)  n int }
pattern p by key { seq a{3} -> b where a: e  b: e CONDITION }
"""
OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
             "!=": operator.ne}  # fmt: skip
FLOATS = (0.1, 0.30000000000000004, 0.3, 1.1, 49.99, 1e15 + 0.125, 123456789.123456, 1e300, -2.5e-17)
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


def events_of(random: Random) -> list[Event]:
    """Events whose values are equal, or differ in the last digits."""
    few = [random.choice(values) for values in (FLOATS, UNITS, FINE, WHOLE)]

    def value(place: int, values: tuple[float, ...]) -> float:
        return few[place] if random.random() < 0.7 else random.choice(values)

    return [
        Event(n, "e", n * 1_000, n, {"key": "x", "f": value(0, FLOATS), "d": value(1, UNITS), "fine": value(2, FINE),
                                       "n": value(3, WHOLE)})
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
        events = events_of(random)
        past = past_values(schema, pattern, batch_of(schema, {"x": events}))
        event: Mapping[str, Slot] = {**events[-1].fields, **past.get(event_id(events[-1].order), {})}
        bound = {"a": [e.fields for e in events[:-1]]}
        printed = dict(operands(part, event, bound))
        left_side, right = readable(part.left, printed), readable(part.right, printed)
        verdict = engine_verdict(schema, pattern, events)
        read = left_side is not None and right is not None and OPERATORS[part.op](left_side, right)
        assert read == verdict, (show_expr(part), printed, event, bound)
        judged += 1
