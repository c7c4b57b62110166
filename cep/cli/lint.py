"""`cep lint`: pattern files → constructions that are allowed but probably not intended.

Tested by: tests/cli/test_authoring.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from cep.cli.help_pages import read_on
from cep.cli.paths import pattern_files, printed, replace_text
from cep.lang.diagnostics import Diagnostic
from cep.lang.edit.assist import fixed
from cep.lang.explain.render import render_text, summary, to_json
from cep.lang.lint.run import lint
from cep.lang.load import Checked, file_name, load_files
from cep.nfa.compile import compilable
from cep.report.plan import find_large_states

HELP = """\
Find code in pattern files that is allowed but probably not meant: conditions that are never true, unused names,
patterns without tests, windows longer than events are kept, too much state. Mistakes that `cep check` reports come
first. Silence a finding on its line with `# allow(CEP702): reason`.

examples:
  cep lint patterns
  cep lint --fix patterns/cards.cep   (applies the changes that a machine can make)
  cep explain CEP701
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a pattern file, or a folder of them (*.cep)")
    parser.add_argument("--fix", action="store_true", help="apply the fixes of mistakes and findings, then look again")
    parser.add_argument("--json", action="store_true", help="print findings as JSON")


def run(options: argparse.Namespace, color: bool) -> int:
    """Lint the files. Return 1 if there are findings."""
    files = pattern_files(options.paths)
    checked = compilable(load_files(files))
    if options.fix:
        for _ in range(_ROUNDS_MAX):
            if not _fix(checked, files):
                break
            checked = compilable(load_files(files))
    findings = [d for d in checked.diagnostics if d.is_error] + _findings(checked, files)
    if options.json:
        printed(json.dumps({"ok": not findings, "findings": [to_json(d, checked.sources) for d in findings]}, indent=2))
    else:
        if findings:
            printed(render_text(findings, checked.sources, color=color), is_styled=True)
        printed(summary(findings, checked.dropped))
        if line := read_on(findings):
            printed(line)
    return int(bool(findings))


# One fix may bring another one to light; past this something goes in a circle.
_ROUNDS_MAX = 10


def _findings(checked: Checked, files: list[Path]) -> list[Diagnostic]:
    return lint(checked, [file_name(path) for path in files], find_large_states(checked))


def _fix(checked: Checked, files: list[Path]) -> bool:
    """Apply all fixes to the named files; says whether there were any."""
    by_name = {file_name(path): path for path in files}
    diagnostics = [d for d in checked.diagnostics if d.is_error] + _findings(checked, files)
    changed = {name: text for name, text in fixed(diagnostics, checked.sources).items() if name in by_name}
    for name, text in changed.items():
        replace_text(by_name[name], text)
        printed(f"fixed {by_name[name]}")
    return bool(changed)
