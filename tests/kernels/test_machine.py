"""Arithmetic at the edge of 64 bits: null and counted, never a wrong number."""

from __future__ import annotations

import numpy as np
import pytest

from cep.engine.advance import advance
from tests.engine.rules import batch, program, rule

END_MS = 2**61 - 1
LARGEST = 92_233_720_368_547_758  # whole units of a decimal(2) in 64 bits


@pytest.mark.parametrize(
    ("left", "op", "right", "fits"),
    [
        (LARGEST, "+", 0, True),
        (LARGEST, "+", 1, False),
        (-LARGEST, "-", 1, False),
        (LARGEST, "-", LARGEST, True),
        (3_037_000, "*", 3_037_000, True),
        (30_370_005, "*", 3_037_000_499, True),  # 3 037 000 500 * 3 037 000 499 units is just below 2**63
        (30_370_005, "*", 3_037_000_501, False),
        (LARGEST, "*", 0, True),
        (LARGEST, "*", 1, True),
        (LARGEST, "*", 2, False),
        (-(2**40), "*", 2**40, False),
    ],
)
def test_what_does_not_fit_is_null_and_counted(left: int, op: str, right: int, *, fits: bool) -> None:
    both = program(
        rule(f"seq a\nwhere a: e kind == a and amount {op} {right}.00 == amount {op} {right}.00", "vector"),
        rule(f"seq a -> b\nwhere a: e kind == a\n b: e kind == b\nemit m = a.amount {op} {right}.00", "scalar"),
    )
    done = advance(both, None, batch(f"x a@1 {left}.00", "x b@2"), END_MS)
    matches = done.matches
    assert int((matches.rule == 0).sum()) == fits
    (row,) = np.flatnonzero(matches.rule == 1)
    assert bool(matches.measures_null[row, 0]) != fits
    assert (done.counters.get("arithmetic_overflows", 0) > 0) != fits
    if fits:
        ((_, type_),) = both.rules[1].measures
        expected = {"+": left + right, "-": left - right, "*": left * right}[op]
        assert matches.measures[row, 0] == expected * 10**type_.scale


@pytest.mark.parametrize("divisor", ["0", "0.00"])
def test_division_by_zero_is_null(divisor: str) -> None:
    compiled = program(rule(f"seq a\nwhere a: e\nemit m = a.amount / {divisor}"))
    matches = advance(compiled, None, batch("x a@1 5.00"), END_MS).matches
    assert matches.measures_null[0, 0] == 1
