"""The language reference says what is true."""

from __future__ import annotations

import re
from pathlib import Path

from cep.lang.catalogue import CATALOGUE
from cep.lang.check_calls import AGGREGATES, FUNCTIONS, WHICH
from cep.lang.cursor import RESERVED
from cep.lang.lexer import UNITS_MS
from cep.lang.load import load_text
from tests.lang.common import shown

TEXT = (Path(__file__).parents[2] / "patterns" / "README.md").read_text(encoding="utf-8")


def test_the_example_is_clean() -> None:
    found = re.search(r"```\n(event.*?)```", TEXT, re.DOTALL)
    assert found is not None
    checked = load_text(found.group(1))
    assert not checked.diagnostics, shown(checked)


def test_the_example_of_patterns_that_feed_patterns_is_sound() -> None:
    found = re.search(r"```\n(event credit.*?)```", TEXT, re.DOTALL)
    assert found is not None
    transfer = "event transfer { tx_id id  event_time time  payer string  payee string  amount decimal(2) }\n"
    checked = load_text(transfer + found.group(1))
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
    for name in (*AGGREGATES, *WHICH, *FUNCTIONS):
        assert re.search(rf"\b{name}\b", TEXT), name


def test_every_lint_is_named() -> None:
    for code in CATALOGUE:
        if code.startswith("CEP7"):
            assert code in TEXT, code
