"""Pattern files → the outcome of all their tests, or of the requested ones.

Tested by: tests/cli/test_authoring.py
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cep.base.errors import UsageError
from cep.lang.diagnostics import did_you_mean
from cep.lang.ir_tests import PatternTest, RefusedTest
from cep.lang.load import Checked, load_files
from cep.nfa.given_lists import given_lists
from cep.testing.coverage import Coverage, coverage_of
from cep.testing.harness import Outcome, Verdict, run_test


@dataclass(frozen=True, slots=True)
class Suite:
    """The outcomes of the tests of a set of files.

    `refused` tests could not run: their text or their pattern has mistakes.
    """

    checked: Checked
    tested: tuple[Verdict, ...]
    refused: tuple[RefusedTest, ...]

    def count(self, outcome: Outcome) -> int:
        """Count the tests with this outcome; refused tests are errors."""
        refused_count = len(self.refused) if outcome is Outcome.BROKEN else 0
        return refused_count + sum(t.outcome is outcome for t in self.tested)

    @property
    def total(self) -> int:
        return len(self.tested) + len(self.refused)

    @property
    def ok(self) -> bool:
        """No mistake in the files, no test that failed or could not be carried out, and some that were."""
        bad = self.count(Outcome.FAILED) + self.count(Outcome.BROKEN)
        return self.checked.ok and bad == 0 and self.total > 0

    def coverage(self) -> list[Coverage]:
        """Return the coverage of each pattern, also of those without tests, by name."""
        coverages: list[Coverage] = []
        for name, pattern in sorted(self.checked.patterns.items()):
            tests_of_pattern = [t for t in self.tested if t.test.pattern.name == name]
            coverages.append(coverage_of(pattern, (trace for t in tests_of_pattern for trace in t.traces.values())))
        return coverages


def run_suite(paths: Iterable[str | Path], only: str | None = None) -> Suite:
    """Check the files together, with their imports, and run their tests. Prints nothing.

    Raises: UsageError if no test is called `only`.
    """
    return run_checked(load_files(paths), only)


def run_checked(checked: Checked, only: str | None = None) -> Suite:
    """Run the tests of checked files.

    `only` is a test's name, a pattern's, or both (`card_testing: three declines`): without an exact match, every test
    with this text in its name. Raises: UsageError if no test matches.
    """
    tests, refused = checked.tests, checked.refused_tests
    if only is not None:
        every_test: list[PatternTest | RefusedTest] = [*tests, *refused]
        names = {_names(test)[0]: _names(test) for test in every_test}
        chosen = {full for full, called in names.items() if only in called}
        chosen = chosen or {full for full in names if only.casefold() in full.casefold()}
        if not chosen:
            every = [name for called in names.values() for name in called]
            raise UsageError(f"no test has `{only}` in its name; {did_you_mean(only, every) or 'there are no tests'}")
        tests = tuple(test for test in tests if _names(test)[0] in chosen)
        refused = tuple(test for test in refused if _names(test)[0] in chosen)
    lists = given_lists(checked).timelines()
    return Suite(checked, tuple(run_test(checked.schema, test, lists) for test in tests), refused)


def _names(test: PatternTest | RefusedTest) -> tuple[str, str, str]:
    """Return the names of a test: both, its own, its pattern's."""
    pattern = test.pattern.name if isinstance(test, PatternTest) else test.pattern
    return f"{pattern}: {test.name}", test.name, pattern
