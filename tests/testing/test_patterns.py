"""The tests of the project's own patterns pass, and so do the tests of the language reference."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from cep.lang.load import Checked, load_files, load_text
from cep.testing.coverage import coverage_of
from cep.testing.harness import Outcome, Verdict, run_test

ROOT = Path(__file__).parents[2]
PATTERNS = ROOT / "patterns"
LANGUAGE = ROOT / "cep" / "docs" / "reference"
PAGES = (LANGUAGE / "language.md", *sorted((LANGUAGE / "language").glob("*.md")), PATTERNS / "README.md")
CHECKED = load_files(sorted(PATTERNS.rglob("*.cep")))


def examples() -> list[Checked]:
    blocks = (re.findall(r"```(?:cep)?\n(event.*?)```", page.read_text(encoding="utf-8"), re.DOTALL) for page in PAGES)
    return [load_text(block) for page in blocks for block in page]


def test_the_patterns_are_clean() -> None:
    assert CHECKED.ok
    assert not CHECKED.refused_tests


@cache
def verdict(number: int) -> Verdict:
    """Return the outcome of a test by its number: two tests here read it."""
    return run_test(CHECKED.schema, CHECKED.tests[number])


@pytest.mark.parametrize(
    "number", range(len(CHECKED.tests)), ids=[f"{test.pattern.name}: {test.name}" for test in CHECKED.tests]
)
def test_a_pattern_test_passes(number: int) -> None:
    tested = verdict(number)
    assert (tested.outcome, tested.differences) == (Outcome.PASSED, ())


def test_every_pattern_has_one_that_fires_and_two_that_do_not() -> None:
    fires = Counter(t.pattern.name for t in CHECKED.tests if t.expected or t.counts)
    silent = Counter(t.pattern.name for t in CHECKED.tests if t.nothing)
    for name in CHECKED.patterns:
        assert fires[name] >= 1
        assert silent[name] >= 2


@pytest.mark.parametrize("name", CHECKED.patterns)
def test_every_state_transition_and_outcome_is_covered(name: str) -> None:
    tested = [verdict(number) for number, test in enumerate(CHECKED.tests) if test.pattern.name == name]
    coverage = coverage_of(CHECKED.patterns[name], (trace for t in tested for trace in t.traces.values()))
    assert coverage.states.missing() == []
    assert coverage.transitions.missing() == []
    assert coverage.outcomes.missing() == []


def test_the_tests_of_the_reference_pass() -> None:
    checked = examples()
    assert len(checked) >= 3
    outcomes = [run_test(c.schema, test).outcome for c in checked for test in c.tests]
    assert len(outcomes) >= 6
    assert set(outcomes) == {Outcome.PASSED}
