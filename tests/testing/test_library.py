"""Each pattern of the library has full comments, four kinds of tests, and a row in the table.

`test_honest.py` tests that it is silent on honest events.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from cep.base.schema import Kind
from cep.lang.ir import History
from cep.lang.ir_tests import PatternTest
from cep.lang.load import Checked
from cep.lang.walk import nodes
from cep.rulebook.files import read_rules
from tests.testing.library import (
    DOMAINS,
    README,
    Entry,
    entries,
    flips,
    flips_in_time,
    library,
    looks_back,
    table,
    written_table,
)

ROOT = Path(__file__).parents[2]
ENTRIES = list(entries())
NAMES = [entry.name for entry in ENTRIES]
PATTERNS_MIN = 45
NUMBERS = (Kind.INT, Kind.DECIMAL, Kind.FLOAT, Kind.DURATION)


@cache
def checked() -> Checked:
    return library()


def written_for(name: str) -> list[PatternTest]:
    return [test for test in checked().tests if test.pattern.name == name]


def test_there_are_enough_in_every_domain() -> None:
    assert set(NAMES) == set(checked().patterns)
    assert len(NAMES) >= PATTERNS_MIN
    assert {entry.domain for entry in entries()} == {DOMAINS[path.stem] for path in files_with_patterns()}


def files_with_patterns() -> list[Path]:
    return [path for path in README.parent.glob("*.cep") if "\npattern " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("entry", ENTRIES, ids=NAMES)
def test_it_says_what_it_is_and_where_it_comes_from(entry: Entry) -> None:
    assert entry.detects
    assert set(entry.notes) == {"Source", "Defaults", "Measured"}


def test_every_number_has_bounds_and_a_default() -> None:
    """Bounds are part of the meaning of a rule, so patterns of deployed rules stay as they are."""
    deployed = {record.pattern for record in read_rules(ROOT / "rules")[0]}
    for name in set(NAMES) - deployed:
        for param in checked().patterns[name].params:
            if param.type.kind in NUMBERS:
                assert param.default is not None
                assert param.minimum is not None, f"{name}: {param.name}"
                assert param.maximum is not None, f"{name}: {param.name}"


@pytest.mark.parametrize("name", NAMES)
def test_it_has_the_four_kinds_of_tests(name: str) -> None:
    tests, params = written_for(name), checked().patterns[name].params
    silent = [test for test in tests if test.nothing]
    assert any(test.expected or test.counts for test in tests)
    assert len(silent) >= 2
    if any(param.type.kind is Kind.DURATION for param in params):
        assert any(flips(checked(), test, durations=True) for test in tests), "no test stands at the edge of a window"
    elif looks_back(checked().patterns[name]):
        assert any(flips_in_time(checked(), test) for test in tests), "no test stands at the edge of the calendar"
    if any(param.type.kind in NUMBERS[:3] for param in params):
        assert any(flips(checked(), test, durations=False) for test in silent), "no test misses by a single step"


def test_a_pattern_with_a_window_has_its_edge_tested_whatever_the_window_is() -> None:
    """A window is a parameter, or of the calendar. A window that is written as a number would escape the test."""
    for pattern in checked().patterns.values():
        if any(param.type.kind is Kind.DURATION for param in pattern.params):
            continue
        assert not isinstance(pattern.within_ms, int), f"{pattern.name}: make its window a parameter"
        windows = [node.window for node in nodes(pattern) if isinstance(node, History) and node.window is not None]
        assert all(window.calendar is not None for window in windows), f"{pattern.name}: make its window a parameter"


def test_the_page_has_the_table() -> None:
    """`.venv/bin/python -m tests.testing.library` writes it."""
    assert written_table(README.read_text(encoding="utf-8")) == table()
