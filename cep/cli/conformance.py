"""`cep conformance`: scenario files with another matcher's answers → how ours compare.

Tested by: tests/cli/test_conformance.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cep.testing.conformance.compare import Outcome, Verdict
from cep.testing.conformance.judge import difference_lines, event_line, headline, is_clean, judge, summary
from cep.testing.conformance.scenario import read_scenarios

HELP = """\
Run scenario files (JSON, also gzipped) through the engine and compare matches, their times and time-outs with the
answers in the file. A disagreement that is known and meant is shown as `differs` with its number.

examples:
  cep conformance scenarios.json more.json.gz
  cep conformance scenarios.json --only "greedy: bounded" --show
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a scenario file, *.json or *.json.gz")
    parser.add_argument("--show", action="store_true", help="print the pattern text of each scenario")
    parser.add_argument("--only", metavar="TEXT", default="", help="scenarios whose name contains TEXT")
    parser.add_argument("--verbose", action="store_true", help="a line for every scenario, and a diff for known ones")


def run(options: argparse.Namespace) -> int:
    """Compare; returns 0 if every scenario passes or differs as is known, else 1. Raises: UsageError."""
    scenarios = [s for path in options.files for s in read_scenarios(path) if options.only in s.name]
    outcomes: list[Outcome] = []
    for scenario in scenarios:
        outcome = judge(scenario)
        outcomes.append(outcome)
        _print_outcome(outcome, show=options.show, verbose=options.verbose)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for name, count in summary(outcomes):
        table.add_row(name, f"{count:,}")
    Console(highlight=False, markup=False).print(table)
    return 0 if is_clean(outcomes) else 1


def _print_outcome(outcome: Outcome, *, show: bool, verbose: bool) -> None:
    if outcome.verdict is Verdict.PASS and not (show or verbose):
        return
    lines = [headline(outcome)]
    if show and outcome.written is not None:
        lines += ["    " + line for line in outcome.written.text.splitlines()]
    if outcome.verdict is Verdict.FAIL or verbose:
        found = difference_lines(outcome)
        lines += [f"    events: {event_line(outcome.scenario)}"] * bool(found)
        lines += ["    " + line for line in found]
    encoding = sys.stdout.encoding or "utf-8"
    print("\n".join(lines).encode(encoding, "backslashreplace").decode(encoding))
