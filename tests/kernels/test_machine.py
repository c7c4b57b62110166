"""Arithmetic: results stop at the bounds of 64 bits and are counted; sums of floats equal `math.fsum`."""

import math
from random import Random

import numpy as np
import orjson
import pyarrow as pa
import pytest

from cep.columnar.decode import decode_json, route
from cep.engine.advance import advance
from cep.kernels.histories.exact_sums import CHUNKS, accumulate, rounded
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from tests.engine.rules import batch, program, rule
from tests.lang.common import bound_pattern

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
def test_what_does_not_fit_is_the_bound_and_counted(left: int, op: str, right: int, *, fits: bool) -> None:
    exact = {"+": left + right, "-": left - right, "*": left * right}[op]
    both = program(
        rule(f"seq a\nwhere a: e kind == a and amount {op} {right}.00 {'>' if exact > 0 else '<='} 0.00", "vector"),
        rule(f"seq a -> b\nwhere a: e kind == a\n b: e kind == b\nemit m = a.amount {op} {right}.00", "scalar"),
    )
    result = advance(both, None, batch(f"x a@1 {left}.00", "x b@2"), END_MS)
    matches = result.matches
    assert int((matches.rule == 0).sum()) == 1
    (row,) = np.flatnonzero(matches.rule == 1)
    assert not matches.measures_null[row, 0]
    assert (result.counters.get("arithmetic_overflows", 0) > 0) != fits
    assert [result.counters.get(f"rule_overflows[{name}@1]", 0) > 0 for name in ("vector", "scalar")] == 2 * [not fits]
    ((_, type_),) = both.rules[1].measures
    assert matches.measures[row, 0] == min(max(exact * 10**type_.scale, -(2**63)), 2**63 - 1)


@pytest.mark.parametrize("divisor", ["0", "0.00"])
def test_division_by_zero_is_null(divisor: str) -> None:
    compiled = program(rule(f"seq a\nwhere a: e\nemit m = a.amount / {divisor}"))
    matches = advance(compiled, None, batch("x a@1 5.00"), END_MS).matches
    assert matches.measures_null[0, 0] == 1


EDGES = (-(2**63), -(2**63) + 1, -(2**62), -1_000_000_007, -3, -2, -1, 0, 1, 2, 3, 100, 2**62, 2**63 - 2, 2**63 - 1)
NUMBERS = "event n { id id event_time time key string x int y int rest int? }"


def truncated(dividend: int, divisor: int) -> int | None:
    """Return SQL's remainder, with the sign of the dividend, in Python's integers."""
    size = abs(dividend) % abs(divisor) if divisor else None
    return None if size is None else -size if dividend < 0 else size


@pytest.mark.parametrize("where", ["n x % y == rest", "n (if x % y is null then rest is null else x % y == rest)"])
def test_the_remainder_is_that_of_whole_numbers(where: str) -> None:
    """For columns and for bound values of a run, and every pair of numbers at the edges."""
    bound, schema = bound_pattern(f"{NUMBERS}\npattern p by key {{ seq a where a: {where} emit m = a.x % a.y }}")
    compiled = compile_rules(schema, ("key",), (DeployedRule("p", 1, 1, "", bound),))
    pairs = {f"{x} {y}": (x, y, truncated(x, y)) for x in EDGES for y in EDGES}
    records = [
        orjson.dumps({"id": key, "event_time": 1, "key": key, "x": x, "y": y, "rest": rest})
        for key, (x, y, rest) in pairs.items()
    ]
    decoded = decode_json(schema, pa.array(records, pa.binary()))
    events = route(decoded, ("key",), schema.columns())[0]
    matches = advance(compiled, None, events, END_MS).matches
    nulls = matches.measures_null[:, 0].astype(bool)
    values = [None if null else int(value) for value, null in zip(matches.measures[:, 0], nulls, strict=True)]
    keys = matches.keys.take(pa.array(matches.key)).to_pylist()
    expected = {key: rest for key, (_, _, rest) in pairs.items() if rest is not None or "null" in where}
    assert dict(zip(keys, values, strict=True)) == expected


EXTREMES = (0.0, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 1e308, -1e308, 1.7976931348623157e308, 2.0**-1022)


def bits(value: float) -> int:
    return int(np.float64(value).view(np.int64))


def some(random: Random) -> float:
    kind = random.randrange(4)
    if kind == 0:
        return random.choice(EXTREMES) / 64
    if kind == 1:
        return random.choice((0.1, 0.2, 0.3, 1e16, -1e16, 1.0, 2.0**53))
    return random.uniform(-1, 1) * 10.0 ** random.randint(-30, 30)


@pytest.mark.parametrize("seed", range(60))
def test_sums_are_rounded_once(seed: int) -> None:
    random = Random(seed)
    acc = np.zeros(CHUNKS, np.int64)
    numbers: list[float] = []
    for _ in range(80):
        if numbers and random.random() < 0.4:
            value = numbers.pop(random.randrange(len(numbers)))
            accumulate(acc, bits(value), -1)
        else:
            value = some(random)
            numbers.append(value)
            accumulate(acc, bits(value), 1)
        assert rounded(acc) == math.fsum(numbers)
