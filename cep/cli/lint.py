"""`cep lint`, `cep plan`: pattern files → code that is allowed but probably not intended; the plan of the engine.

Tested by: tests/cli/test_authoring.py
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from cep.base.errors import UsageError
from cep.base.files import write_file
from cep.base.limits import PLAN_EVENTS_PER_KEY
from cep.cli.help_pages import read_on
from cep.cli.paths import pairs, pattern_files, printed
from cep.cli.verbs import Parser
from cep.lang.diagnostics import Diagnostic, did_you_mean
from cep.lang.edit.assist import fixed
from cep.lang.explain.render import render_text, summary, to_json
from cep.lang.lint.run import lint
from cep.lang.load import Checked, file_name, load_files
from cep.nfa.compile import compilable
from cep.report.picture import picture
from cep.report.plan import find_large_states, plan, plan_text

HELP = """\
Find code in pattern files that is allowed but probably not meant: conditions that are never true, unused names,
patterns without tests, windows longer than events are kept, too much state. Mistakes that `cep check` reports come
first. Silence a finding on its line with `# allow(CEP702): reason`.

examples:
  cep lint patterns
  cep lint --fix patterns/cards.cep   (applies the changes that a machine can make)
  cep explain CEP701
"""


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    parser.declare("paths PATH", "a pattern file, or a folder of them (*.cep)", type=str, nargs="+")
    parser.declare("--fix", "apply the fixes of mistakes and findings, then look again")
    parser.declare("--json", "print findings as JSON")


def run(options: argparse.Namespace, color: bool) -> int:
    """Lint the files. Return 1 if there are findings."""
    files = pattern_files(options.paths)
    checked = compilable(load_files(files))
    if options.fix:
        for _ in range(_ROUNDS_MAX):
            if not _fix(checked, files):
                break
            checked = compilable(load_files(files))
    findings = findings_of(checked, files)
    if options.json:
        printed(json.dumps({"ok": not findings, "findings": [to_json(d, checked.sources) for d in findings]}, indent=2))
    else:
        if findings:
            printed(render_text(findings, checked.sources, color=color), is_styled=True)
        printed(summary(findings, checked.dropped))
        if line := read_on(findings):
            printed(line)
    return int(bool(findings))


_ROUNDS_MAX = 10  # one fix may bring another one to light; past this something goes in a circle


def findings_of(checked: Checked, files: Sequence[Path]) -> list[Diagnostic]:
    """Return the mistakes of checked files, then the findings in the named ones."""
    mistakes = [diagnostic for diagnostic in checked.diagnostics if diagnostic.is_error]
    return mistakes + lint(checked, [file_name(path) for path in files], find_large_states(checked))


def _fix(checked: Checked, files: list[Path]) -> bool:
    by_name = {file_name(path): path for path in files}
    changed = {
        name: text for name, text in fixed(findings_of(checked, files), checked.sources).items() if name in by_name
    }
    for name, text in changed.items():
        write_file(by_name[name], text.encode())
        printed(f"fixed {by_name[name]}")
    return bool(changed)


HELP_PLAN = """\
Show how the engine sees patterns: the automaton with its states and transitions, and the cost of a busy key. Conditions
come in two groups. The event alone decides the first group, which is evaluated once for all patterns. The second group
needs the run.

examples:
  cep plan patterns
  cep plan patterns --pattern card_testing --set tries=5 --svg card_testing.svg
"""


def add_arguments_plan(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    parser.declare("paths PATH", "a pattern file, or a folder of them (*.cep)", type=str, nargs="+")
    parser.declare("--pattern P", "show only this pattern")
    parser.declare("--set NAME=VALUE", "give a parameter a value; repeat for more", action="append", default=[])
    parser.declare("--events N", "assume this many events of a busy key in a window", default=PLAN_EVENTS_PER_KEY)
    parser.declare("--svg FILE", "write the automaton of one pattern as a picture", type=str)


def run_plan(options: argparse.Namespace, color: bool) -> int:
    """Print the plan; returns 1 if the files have mistakes or a pattern cannot be compiled."""
    checked = load_files(pattern_files(options.paths))
    if not checked.ok:
        printed(
            render_text([d for d in checked.diagnostics if d.is_error], checked.sources, color=color), is_styled=True
        )
        return 1
    patterns = checked.patterns
    if options.pattern is not None:
        if options.pattern not in patterns:
            hint = did_you_mean(options.pattern, patterns, "patterns")
            raise UsageError(f"there is no pattern `{options.pattern}`; {hint}")
        patterns = {options.pattern: patterns[options.pattern]}
    if options.events < 1:
        raise UsageError(f"--events is {options.events}, it must be at least 1")
    arguments = {name: _value(text) for name, text in pairs(options.set, "--set", "NAME=VALUE").items()}
    planned = plan(patterns.values(), checked.schema, arguments, options.events)
    if options.svg is not None:
        if len(planned.patterns) != 1:
            raise UsageError(f"--svg draws one pattern, here are {len(planned.patterns)}; name it with --pattern")
        write_file(Path(options.svg), picture(planned.patterns[0]).encode())
    printed(plan_text(planned))
    return int(bool(planned.refused))


def _value(text: str) -> object:
    """Read a value as a rule file would: whole numbers and truth values as such, other values as text."""
    if text.removeprefix("-").isdecimal():
        return int(text)
    return text == "true" if text in ("true", "false") else text
