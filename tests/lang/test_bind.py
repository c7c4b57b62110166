"""Arguments in place of parameters."""

from __future__ import annotations

from decimal import Decimal

import pytest

from cep.lang.check.bind import bind
from cep.lang.ir import Param, PatternIR, SequenceNode, VarNode
from cep.lang.load import load_text
from tests.lang.common import EVENTS, checked_pattern, pattern_codes
from tests.lang.dump import dump_expr, dump_pattern

HEADER = (
    "pattern p(least: int = 2 in 1..10, most: int = 5, limit: decimal = 2.00, window: duration = 5 min, "
    "gap: duration, near: float = 0.5, kind: enum(approved, declined) = declined, on_line: bool = true, "
    'land: string = "KP", fine: decimal(4) = 1) by card_id'
)


@pytest.fixture(scope="module")
def pattern() -> PatternIR:
    body = """
      seq   a{least,most}[gap] ->[window] b within window
      where a: transaction amount > limit and online == on_line and country == land
            b: transaction amount > fine and lat > near and country in [land, "IR"]
      emit  r = a.amount + limit
    """
    return checked_pattern(body, HEADER)


def messages(pattern: PatternIR, **arguments: object) -> list[str]:
    bound, diagnostics = bind(pattern, {"gap": "30 s"} | arguments)
    assert (bound is None) == bool(diagnostics)
    return [f"{d.code} {d.message}" for d in diagnostics]


def test_defaults(pattern: PatternIR) -> None:
    bound, diagnostics = bind(pattern, {"gap": "30 s"})
    assert not diagnostics
    assert bound is not None
    assert bound.params == ()
    assert "$" not in dump_pattern(bound)
    assert bound.within_ms == 300_000
    first = bound.structure.steps[0].node
    assert isinstance(first, VarNode)
    assert (first.quantifier.min_count, first.quantifier.max_count, first.quantifier.gap_ms) == (2, 5, 30_000)
    where = bound.variables[1].where
    assert where is not None
    assert "10000:decimal(4)" in dump_expr(where)


def test_the_pattern_itself_stays_open(pattern: PatternIR) -> None:
    bind(pattern, {"gap": "30 s"})
    assert isinstance(pattern.structure, SequenceNode)
    assert isinstance(pattern.within_ms, Param)


@pytest.mark.parametrize("value", ["3.50", 3.5, Decimal("3.50"), "35e-1"], ids=repr)
def test_decimals_are_exact_whatever_they_come_as(pattern: PatternIR, value: object) -> None:
    bound, _ = bind(pattern, {"gap": "1 s", "limit": value})
    assert bound is not None
    assert "350:decimal(2)" in dump_pattern(bound)


@pytest.mark.parametrize(("value", "ms"), [("10 min", 600_000), ("5m", 300_000), ("1.5 s", 1_500), ("250 ms", 250)])
def test_durations(pattern: PatternIR, value: object, ms: int) -> None:
    bound, _ = bind(pattern, {"gap": "1 s", "window": value})
    assert bound is not None
    assert bound.within_ms == ms


def test_unknown_and_missing(pattern: PatternIR) -> None:
    bound, diagnostics = bind(pattern, {"limitt": 1})
    assert bound is None
    assert [d.code for d in diagnostics] == ["CEP501", "CEP502"]
    assert diagnostics[0].help == "did you mean `limit`?"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", "2.005"),
        ("limit", "two"),
        ("limit", None),
        ("limit", float("nan")),
        ("limit", "1e400"),
        ("limit", "9" * 500),
        ("limit", 10**30),
        ("limit", True),
        ("least", "3"),
        ("least", 2.0),
        ("least", True),
        ("least", 2**70),
        ("window", "10"),
        ("window", 600_000),
        ("window", "10 parsecs"),
        ("window", "0.0001 s"),
        ("window", -5),
        ("window", 2**80),
        ("near", "x"),
        ("near", 10**400),
        ("near", float("inf")),
        ("kind", "reversed"),
        ("kind", 1),
        ("on_line", 1),
        ("land", 5),
        ("land", ["KP"]),
    ],
)
def test_values_that_do_not_fit(pattern: PatternIR, name: str, value: object) -> None:
    (message,) = messages(pattern, **{name: value})
    assert message.startswith(f"CEP503 the parameter `{name}`")


def test_bounds(pattern: PatternIR) -> None:
    assert messages(pattern, least=11) == ["CEP504 the parameter `least` must be in 1 .. 10, it is 11"]
    assert messages(pattern, least=6) == ["CEP504 the most of a repetition is below its least (`least`, `most`)"]
    assert messages(pattern, window="0 s")[0] == "CEP504 the parameter `window` is 0 where the pattern needs at least 1"


def test_defaults_that_make_no_sound_pattern_are_found_by_the_check() -> None:
    assert pattern_codes("seq a{n,m} -> b within 1 h", "pattern p(n: int = 5, m: int = 2) by card_id") == ["CEP504"]
    assert pattern_codes("seq a{n,} -> b within 1 h", "pattern p(n: int = 0) by card_id") == ["CEP504"]


def test_a_pattern_without_parameters_is_itself() -> None:
    pattern = next(iter(load_text(EVENTS + "pattern p by card_id { seq a }").patterns.values()))
    assert bind(pattern, {}) == (pattern, [])


@pytest.mark.parametrize("value", ["9e999999999", "1e-999999999", "-1e-400", "0.001", "NaN", "1e30"])
def test_a_decimal_that_is_too_large_or_too_fine_is_never_rounded(value: str) -> None:
    text = "pattern p(x: decimal(2) = 1.00) by card_id { seq a where a: transaction amount > x }"
    _, diagnostics = bind(load_text(EVENTS + text).patterns["p"], {"x": value})
    assert [d.code for d in diagnostics] == ["CEP503"]
