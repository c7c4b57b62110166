"""A checkout of a build before 0.3.0 → pages of runs with averages and spreads, for test_keyed_state.py.

    PYTHONPATH=CHECKOUT NUMBA_DISABLE_JIT=1 python tests/engine/earlier_pages.py OUT.json.xz

Each case is a random pattern, the events before and after a cut, and the page at the cut as that build stores it.
Tested by: tests/engine/test_keyed_state.py
"""

import json
import lzma
import sys
from pathlib import Path
from random import Random

from cep.engine.advance import advance
from cep.state.past import encode_page
from tests.engine.rules import batch, program, rule

CASES = 30
_ARGUMENTS = ("amount", "amount / 7", "amount * 3", "amount - 1.00")


def value(random: Random) -> str:
    """Return an expression over the events that `a` has bound."""
    function = random.choice(("avg", "avg", "avg", "stddev", "stddev", "sum", "min", "max"))
    return f"{function}(a.{random.choice(_ARGUMENTS)})"


def pattern(random: Random) -> str:
    """Return a pattern whose runs store averages and spreads next to sums, counts and rows."""
    factor = random.choice(("0.37", "0.61", "1.13", "2"))
    conditions = [
        f"amount > {factor} * {value(random)}",
        f"{value(random)} < 3.3 * amount + {value(random)}",
        f"abs(amount - {value(random)}) > 0.1 * {value(random)}",
        f"(amount >= {value(random)} or amount <= {value(random)})",
        "(note is null or first(a).note != note)",
        "count(a) >= 2",
    ]
    chosen = random.sample(conditions, random.randint(1, 3))
    measures = [f"v{number} = {value(random)}" for number in range(random.randint(1, 4))]
    measures.insert(random.randint(0, len(measures)), "n = first(a).note")
    greedy = random.choice(("", " greedy"))
    link = random.choice(("->", "->>"))
    return (
        f"seq a{{{random.randint(1, 3)},}}{greedy} {link} b within 1 h\n"
        f"where a: e kind == a\n b: e kind == b and {' and '.join(chosen)}\nemit {', '.join(measures)}"
    )


def rows(random: Random) -> list[str]:
    """Return events of two keys."""
    lines = []
    for number in range(24):
        note = random.choice(("one", "two", "-"))
        amount = "-" if random.random() < 0.1 else f"{random.randint(100, 99_999) / 100:.2f}"
        lines.append(f"{random.choice('xy')} {random.choice('aaab')}@{60_000 * number} {amount} {note}")
    return lines


def main() -> None:
    cases = []
    for seed in range(CASES):
        random = Random(seed)
        text, other, events = pattern(random), pattern(random), rows(random)
        cut = random.randint(6, 18)
        before = batch(*events[:cut])
        compiled = program(rule(text), rule(other, "other"))
        stored = encode_page(advance(compiled, None, before, 0).keyed_state)
        cases.append({"text": text, "other": other, "events": events, "cut": cut, "page": stored.hex()})
    Path(sys.argv[1]).write_bytes(lzma.compress(json.dumps(cases).encode()))


if __name__ == "__main__":
    main()
