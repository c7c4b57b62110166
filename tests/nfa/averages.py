"""Random columns of decimals, ints and floats: comparisons with aggregates, against exact fractions.

    python -m tests.nfa.averages 100000        compare so many, from seed 0 on; exits with 1 if one differs

A column has a scale of 0 to 18 and up to 18 digits. Amounts repeat, so that many comparisons are between equal numbers.
Tested by: tests/nfa/test_averages.py
"""

import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from random import Random

import pyarrow as pa

import cep

_START_MS = 1_772_359_200_000
_STEP_MS = 1_000
EVENTS = 24
_OPERATORS: dict[str, Callable[[Fraction, Fraction], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_FACTORS = ("1", "3", "1.1", "0.25", "1.5", "2.75")
_SPREAD_ERROR = Fraction(1, 2**46)  # a spread in a comparison has 48 bits, its square one less
_INT64 = (-(2**63), 2**63 - 1)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of amounts: its type in a pattern, its decimal digits (None: floats) and its values."""

    type: str
    scale: int | None
    values: Sequence[int | float]

    @property
    def fractions(self) -> list[Fraction]:
        """Return the values as exact numbers."""
        return [Fraction(value) / 10 ** (self.scale or 0) for value in self.values]

    @property
    def arrow(self) -> pa.Array:
        if self.scale is None:
            return pa.array(self.values, pa.float64())
        if self.scale == 0:
            return pa.array(self.values, pa.int64())
        return pa.array([Decimal(value).scaleb(-self.scale) for value in self.values], pa.decimal128(18, self.scale))


def random_column(random: Random) -> Column:
    """Return a column in which amounts repeat."""
    scale = random.choice([None, *range(19)])
    top = 10 ** random.randint(1, 18)
    few = [random.randint(1, top - 1) for _ in range(random.randint(1, 3))]
    few += [few[0] * 3, few[0] + 1, -few[0]][: random.randint(0, 3)]
    values: list[int | float] = [value for value in few if abs(value) < 10**18]
    if scale is None:
        values = [value / 100 for value in values]
    return Column(
        "float" if scale is None else "int" if scale == 0 else f"decimal({scale})",
        scale,
        [random.choice(values) for _ in range(EVENTS)],
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison in a pattern, and its answer for the last amount and the window's amounts."""

    text: str
    answer: Callable[[Fraction, Sequence[Fraction]], bool | None]


def _mean(window: Sequence[Fraction]) -> Fraction:
    return sum(window, Fraction(0)) / len(window)


def _variance(window: Sequence[Fraction]) -> Fraction:
    mean = _mean(window)
    return sum(((value - mean) * (value - mean) for value in window), Fraction(0)) / len(window)


def _is_lost(window: Sequence[Fraction]) -> bool:
    """Return True for a spread of floats that counts as a rounding error (kernels/histories/exact_sums.py)."""
    count, squares = len(window), sum((value * value for value in window), Fraction(0))
    return 0 < count * _variance(window) <= squares / 2**100


def _signed_square(number: Fraction) -> Fraction:
    squared: Fraction = number * abs(number)
    return squared


def _by_spread(holds: Callable[[Fraction, Fraction], bool], square: Fraction, other: Fraction) -> bool | None:
    """Compare squares; return None where they are too near for a spread, which is a float."""
    is_near = square != other and abs(square - other) <= _SPREAD_ERROR * max(abs(square), abs(other))
    return None if is_near else holds(square, other)


def comparisons(random: Random, column: Column, aggregate: Callable[[str], str], count: int) -> Iterator[Comparison]:
    """Yield comparisons of the field `a` with aggregates, which `aggregate` writes."""
    for _ in range(count):
        forms = _forms(random.choice(list(_OPERATORS)), random.choice(_FACTORS), column, aggregate)
        yield random.choice(forms)


def _forms(sign: str, factor: str, column: Column, aggregate: Callable[[str], str]) -> list[Comparison]:
    holds, times = _OPERATORS[sign], Fraction(factor)
    units: int = 10 ** (column.scale or 0)
    avg, stddev, least, most = (aggregate(fn) for fn in ("avg", "stddev", "min", "max"))

    def total(window: Sequence[Fraction]) -> Fraction:
        return max(Fraction(_INT64[0]), min(sum(window, Fraction(0)) * units, Fraction(_INT64[1]))) / units

    def is_lost(window: Sequence[Fraction]) -> bool:
        return column.scale is None and _is_lost(window)

    forms = [
        Comparison(f"t.a {sign} {avg}", lambda a, w: holds(a, _mean(w))),
        Comparison(f"t.a {sign} {factor} * {avg}", lambda a, w: holds(a, times * _mean(w))),
        Comparison(f"{avg} / {factor} {sign} t.a", lambda a, w: holds(_mean(w) / times, a)),
        Comparison(f"t.a - {avg} {sign} {factor}", lambda a, w: holds(a - _mean(w), times)),
        Comparison(
            f"t.a - {avg} {sign} {factor} * {stddev}",
            lambda a, w: (
                None if is_lost(w) else _by_spread(holds, _signed_square(a - _mean(w)), times * times * _variance(w))
            ),
        ),
        Comparison(f"{most} {sign} {avg}", lambda _, w: holds(max(w), _mean(w))),
        Comparison(f"{least} {sign} t.a", lambda a, w: holds(min(w), a)),
        Comparison(f"{stddev} == 0.0", lambda _, w: None if is_lost(w) else _variance(w) == 0),
    ]
    if column.scale is not None:
        forms.append(Comparison(f"t.a {sign} {aggregate('sum')}", lambda a, w: holds(a, total(w))))
    return forms


def wrong_answers(seed: int, count: int) -> tuple[int, list[str]]:
    """Compare `count` comparisons over one random column. Return the number of answers, and the wrong ones."""
    random = Random(seed)
    column = random_column(random)
    size = random.randint(2, 9)
    if random.random() < 0.5:
        body = "seq t where t: tx"
        window = f"over {size} s"
        questions = list(comparisons(random, column, lambda fn: f"{fn}(tx.a {window})", count))
    else:
        body = f"seq t{{{size}}} where t: tx"
        questions = list(comparisons(random, column, lambda fn: f"{fn}(t.a)", count))
    emits = ", ".join(f"c{number} = {one.text}" for number, one in enumerate(questions))
    text = (
        f"event tx {{ tx_id id  event_time time  card string  a {column.type} }}\n"
        f"pattern p by card {{ {body} skip none emit first_id = first(t).tx_id, last_id = last(t).tx_id, {emits} }}"
    )
    events = pa.table(
        {
            "tx_id": [f"{number:03}" for number in range(EVENTS)],
            "event_time": pa.array(
                [_START_MS + _STEP_MS * number for number in range(EVENTS)], pa.timestamp("ms", "UTC")
            ),
            "card": ["c"] * EVENTS,
            "a": column.arrow,
        }
    )
    wrong, answers_count = [], 0
    fractions = column.fractions
    for fields in cep.parse(text).match(events).measures("p").to_pylist():
        first, last = int(fields["first_id"]), int(fields["last_id"])
        begin = first if "{" in body else max(0, last - size + 1)
        amounts = fractions[begin : last + 1]
        for number, one in enumerate(questions):
            answers_count += 1
            expected = one.answer(fractions[last], amounts)
            if expected is not None and fields[f"c{number}"] is not expected:
                values = [column.values[i] for i in range(begin, last + 1)]
                wrong.append(
                    f"seed {seed}: {one.text} of {column.type} {values}: {fields[f'c{number}']}, not {expected}"
                )
    return answers_count, wrong


def main(count: int) -> int:
    """Compare at least `count` comparisons. Return 1 if one differs."""
    compared_count, seed = 0, 0
    while compared_count < count:
        answers_count, wrong = wrong_answers(seed, 25)
        compared_count, seed = compared_count + answers_count, seed + 1
        if wrong:
            print("\n".join(wrong[:10]))
            return 1
    print(f"{compared_count} comparisons over {seed} columns are right")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000))
