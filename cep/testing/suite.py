"""Pattern files → the outcome of all their tests.

Tested by: tests/cli/test_test.py
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cep.lang.load import Checked, load_files
from cep.lang.test_ir import RefusedTest
from cep.testing.coverage import Coverage, coverage_of
from cep.testing.harness import Outcome, Verdict, run_test


@dataclass(frozen=True, slots=True)
class Suite:
    """All tests of a set of files. `refused` could not be carried out: their text or their pattern's is wrong."""

    checked: Checked
    tested: tuple[Verdict, ...]
    refused: tuple[RefusedTest, ...]

    def count(self, outcome: Outcome) -> int:
        """How many tests ended so; refused ones are errors."""
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
        """The coverage of each pattern, also of those without tests, by name."""
        found: list[Coverage] = []
        for name, pattern in sorted(self.checked.patterns.items()):
            own = [t for t in self.tested if t.test.pattern.name == name]
            found.append(coverage_of(pattern, (trace for t in own for trace in t.traces.values())))
        return found


def run_suite(paths: Iterable[str | Path]) -> Suite:
    """Check the files together, with what they import, and run every test in them. Prints and raises nothing."""
    checked = load_files(paths)
    return Suite(checked, tuple(run_test(checked.schema, test) for test in checked.tests), checked.refused_tests)
