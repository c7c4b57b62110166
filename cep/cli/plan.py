"""`cep plan`: pattern files → the plan of the engine.

Tested by: tests/cli/test_authoring.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from cep.base.errors import UsageError
from cep.base.limits import PLAN_EVENTS_PER_KEY
from cep.cli.paths import pattern_files, printed, replace_text
from cep.lang.diagnostics import did_you_mean
from cep.lang.explain.render import render_text
from cep.lang.load import load_files
from cep.report.picture import picture
from cep.report.plan import plan, plan_text

HELP = """\
Show how the engine sees patterns: the automaton with its states and transitions, and the cost of a busy key. Conditions
come in two groups. The event alone decides the first group, which is evaluated once for all patterns. The second group
needs the run.

examples:
  cep plan patterns
  cep plan patterns --pattern card_testing --set tries=5 --svg card_testing.svg
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a pattern file, or a folder of them (*.cep)")
    parser.add_argument("--pattern", metavar="P", help="show only this pattern")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="give a parameter a value; repeat for more"
    )
    parser.add_argument(
        "--events",
        type=int,
        default=PLAN_EVENTS_PER_KEY,
        metavar="N",
        help="assume this many events of a busy key in a window",
    )
    parser.add_argument("--svg", metavar="FILE", help="write the automaton of one pattern as a picture")


def run(options: argparse.Namespace, color: bool) -> int:
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
    planned = plan(patterns.values(), checked.schema, _arguments(options.set), options.events)
    if options.svg is not None:
        if len(planned.patterns) != 1:
            raise UsageError(f"--svg draws one pattern, here are {len(planned.patterns)}; name it with --pattern")
        replace_text(Path(options.svg), picture(planned.patterns[0]))
    printed(plan_text(planned))
    return int(bool(planned.refused))


def _arguments(items: list[str]) -> dict[str, object]:
    """Parse `tries=5` as a rule file would: whole numbers and truth values as such, other values as text."""
    arguments: dict[str, object] = {}
    for item in items:
        name, sign, text = item.partition("=")
        if not sign:
            raise UsageError(f"--set {item}: write NAME=VALUE")
        value: object = text
        if text.lstrip("-").isdigit():
            value = int(text)
        elif text in ("true", "false"):
            value = text == "true"
        arguments[name] = value
    return arguments
