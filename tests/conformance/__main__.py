"""Scenario files with another matcher's answers → how ours compare: `python -m tests.conformance FILE…`.

Exit code 0 if every scenario passes or has known differences only, 1 if one does not, 2 if a file cannot be read.
Tested by: tests/conformance/test_conformance.py
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cep.base.errors import UsageError
from tests.conformance.compare import Outcome, Verdict
from tests.conformance.judge import difference_lines, event_line, headline, is_clean, judge, summary
from tests.conformance.scenario import read_scenarios

HELP = """\
Run scenario files (JSON, also gzipped) through the engine and compare matches, their times and time-outs with the
answers in the file. A disagreement that is known and meant is shown as `differs` with its number.

examples:
  python -m tests.conformance scenarios.json more.json.gz
  python -m tests.conformance scenarios.json --only "greedy: bounded" --show
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the scenarios of the files. Returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        scenarios = [s for path in options.files for s in read_scenarios(path) if options.only in s.name]
    except UsageError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    outcomes = []
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


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=HELP, formatter_class=formatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a scenario file, *.json or *.json.gz")
    parser.add_argument("--show", action="store_true", help="print the pattern text of each scenario")
    parser.add_argument("--only", metavar="TEXT", default="", help="scenarios whose name contains TEXT")
    parser.add_argument("--verbose", action="store_true", help="a line for every scenario, and a diff for known ones")
    return parser


def _print_outcome(outcome: Outcome, *, show: bool, verbose: bool) -> None:
    if outcome.verdict is Verdict.PASS and not (show or verbose):
        return
    lines = [headline(outcome)]
    if show and outcome.written is not None:
        lines += ["    " + line for line in outcome.written.text.splitlines()]
    if outcome.verdict is Verdict.FAIL or verbose:
        differences = difference_lines(outcome)
        lines += [f"    events: {event_line(outcome.scenario)}"] * bool(differences)
        lines += ["    " + line for line in differences]
    encoding = sys.stdout.encoding or "utf-8"
    print("\n".join(lines).encode(encoding, "backslashreplace").decode(encoding))


if __name__ == "__main__":
    sys.exit(main())
