"""`cep check`: pattern files to a list of their mistakes.

Tested by: tests/lang/test_cli_check.py
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from cep.cli.help_pages import read_on
from cep.lang.explain.render import render_text, summary, to_json
from cep.lang.load import load_files
from cep.nfa.diagnose import compilable

HELP = """\
Check pattern files: every mistake of every file, with its place and the nearest valid name.

examples:
  cep check patterns
  cep check --json patterns/cards.cep | jq .
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="a pattern file, or a folder of them (*.cep)")
    parser.add_argument("--json", action="store_true", help="print diagnostics as JSON, for editors")
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto: when standard output is a terminal and NO_COLOR is not set",
    )


def run(paths: list[str], as_json: bool, color: bool) -> int:
    """Check files and folders (their `*.cep` files) together; prints, returns 1 if there are errors, else 0."""
    files = [file for path in paths for file in _expanded(Path(path))]
    checked = compilable(load_files(files))
    if as_json:
        data = {
            "ok": checked.ok,
            "patterns": sorted(checked.patterns),
            "diagnostics": [to_json(d, checked.sources) for d in checked.diagnostics],
            "dropped": checked.dropped,
        }
        _print(json.dumps(data, indent=2))
        return 0 if checked.ok else 1
    if checked.diagnostics:
        _print(render_text(checked.diagnostics, checked.sources, color=color))
    names = f"{len(checked.patterns)} pattern{'' if len(checked.patterns) == 1 else 's'}"
    more = f" ({checked.dropped} more not shown)" if checked.dropped else ""
    _print(f"{names}, {summary(checked.diagnostics, checked.dropped)}{more}")
    if line := read_on(checked.diagnostics):
        _print(line)
    return 0 if checked.ok else 1


def _expanded(path: Path) -> list[Path]:
    return sorted(path.rglob("*.cep")) if path.is_dir() else [path]


def _print(text: str) -> None:
    """Print what the terminal's encoding can say; a file name may hold what it cannot."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
