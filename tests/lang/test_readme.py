"""The statements of the language reference are true."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cep.base.limits import TIME_MS_MAX
from cep.columnar.decode import decode_table, route
from cep.engine.advance import advance
from cep.lang.explain.catalogue import CATALOGUE
from cep.lang.functions import FUNCTIONS
from cep.lang.load import load_text
from cep.lang.parse.lexer import RESERVED, UNITS_MS
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from tests.lang.common import shown

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "cep" / "docs" / "reference"
FILES = [REFERENCE / "language.md", *sorted((REFERENCE / "language").glob("*.md"))]
TEXT = "\n".join(file.read_text(encoding="utf-8") for file in FILES)
FIRST = (ROOT / "patterns" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", [TEXT, FIRST], ids=["reference", "patterns"])
def test_the_first_example_is_clean(text: str) -> None:
    example = re.search(r"```(?:cep)?\n(event.*?)```", text, re.DOTALL)
    assert example is not None
    checked = load_text(example.group(1))
    assert not checked.diagnostics, shown(checked)


OPERATORS = re.findall(r"^\| `(.+?)`(?: with `(skip .+?)`)? \| (`[a-c]\d.*`) \|$", TEXT, re.MULTILINE)
MINUTES = "a1 a2 b3 a4 x5 b6 c7"


@pytest.mark.parametrize(("written", "skip", "matches"), OPERATORS)
def test_each_operator_matches_what_is_said(written: str, skip: str, matches: str) -> None:
    structure = written.replace("\\|", "|")
    names = [v for v in "abc" if re.search(rf"\b{v}\b", re.sub(r"until \(.*?\)", "", structure))]
    where = " ".join(f"{v}: e kind == {v}" for v in names)
    checked = load_text(
        "event e { id id  event_time time  k string  kind enum(a, b, c, x) }\n"
        f"pattern p by k {{ seq {structure} where {where} {skip or 'skip none'} }}"
    )
    assert checked.ok, shown(checked)
    rows = MINUTES.split()
    minutes = pa.array([int(row[1:]) * 60_000 for row in rows], pa.timestamp("ms", "UTC"))
    columns = {"id": rows, "event_time": minutes, "k": ["k"] * len(rows), "kind": [row[0] for row in rows]}
    batch, _ = route(decode_table(checked.schema, pa.table(columns), str), ("k",), checked.schema.columns())
    program = compile_rules(checked.schema, ("k",), [DeployedRule("r", 1, 1, "h", checked.patterns["p"])])
    alerts = advance(program, None, batch, TIME_MS_MAX).matches
    ids = alerts.event_id.to_pylist()
    bound = {" ".join(ids[alerts.offsets[m] : alerts.offsets[m + 1]]) for m in np.flatnonzero(alerts.completed)}
    assert bound == set(re.findall(r"`(.+?)`", matches))


def test_the_operators_are_there() -> None:
    assert len(OPERATORS) > 20
    assert f"`{MINUTES}`" in TEXT


def test_the_example_of_patterns_that_feed_patterns_is_sound() -> None:
    match = re.search(r"```cep\n(event transfer.*?)```", TEXT, re.DOTALL)
    assert match is not None
    checked = load_text(match.group(1))
    assert checked.ok, shown(checked)
    assert [p.produces for p in checked.patterns.values()] == ["credit", "debit", "hop"]


def test_reserved_words_and_units_are_all_there() -> None:
    listed = re.search(r"Reserved words: `([^`]*)`", TEXT)
    assert listed is not None
    assert set(listed.group(1).split()) == RESERVED
    units = re.search(r"^unit +=(.*?);", TEXT, re.DOTALL | re.MULTILINE)
    assert units is not None
    assert set(re.findall(r'"(\w+)"', units.group(1))) == set(UNITS_MS)


def test_every_function_is_named() -> None:
    for name in FUNCTIONS:
        assert re.search(rf"\b{name}\b", TEXT), name


def test_every_lint_is_named() -> None:
    for code in CATALOGUE:
        if code.startswith("CEP7"):
            assert code in TEXT, code
