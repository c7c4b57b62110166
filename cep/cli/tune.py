"""`cep tune RULE`: events, labels and an aim → the parameters that meet it best, as a change of the rule's file.

Tested by: tests/cli/test_tune.py
"""

from __future__ import annotations

import argparse
import difflib
import re
from dataclasses import asdict
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

from cep.analysis.axes import axes_of
from cep.analysis.one_rule import one_rule
from cep.analysis.split import parts_of_time
from cep.analysis.tune import Aim, Row, Tuned, tune
from cep.base.errors import UsageError
from cep.base.secrets import use_secrets_file
from cep.base.terminal import Terminal
from cep.cli.given_events import given_events
from cep.cli.labelled import add_label_arguments, alerts_a_day, terms_of, write_bytes, write_json
from cep.cli.rejected import judged
from cep.lang.show import show_duration
from cep.model.setting_types import duration_ms

HELP = """\
Find the parameters of a rule that meet an aim best on labelled events. The first three fifths of the time choose, the
next fifth confirms, and the last fifth, which does not affect the choice, shows the quality to expect; between them is
a gap. The output ends with the change of the rule's file. The file is changed only with --write.

examples:
  cep tune card_testing --rules rules --events history.parquet --labels is_fraud --objective f1
  cep tune large --rules rules --events history/ --labels fraud.csv --objective recall --budget 50/day
  cep tune large --rules rules --events history/ --labels fraud.csv --try large=100..900/17 --try back=7d,14d,30d
"""
_WAYS = {
    "combined": "all of them exactly: each value of a threshold was replayed, and what a setting finds follows",
    "replayed": "each of them by a replay",
    "along the axes": "each of them by a replay, one parameter at a time from the present setting: there may be better",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("rule", metavar="RULE", help="the rule's id")
    parser.add_argument("--rules", type=Path, required=True, metavar="FOLDER", help="rule files (*.toml)")
    add_label_arguments(parser)
    parser.add_argument(
        "--objective",
        choices=("f1", "recall", "money"),
        default="f1",
        help="the figure to maximize: f1 of precision and recall of frauds, their recall, or the money found "
        "(default f1)",
    )
    parser.add_argument("--budget", metavar="N/day", help="the most alerts a day, on average")
    parser.add_argument(
        "--review-cost",
        type=float,
        default=0.0,
        metavar="MONEY",
        help="cost of an alert, subtracted from the money found",
    )
    parser.add_argument(
        "--try",
        action="append",
        default=[],
        dest="tries",
        metavar="PARAM=VALUES",
        help="values to try: 1,2,5, or 100..500, or 100..500/9 for nine of them (default: each threshold that is a "
        "number, 21 values from a quarter of its value to four times its value)",
    )
    parser.add_argument("--gap", metavar="TIME", help="time between the parts (default: the rule's window, or a day)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here, too")
    parser.add_argument("--write", action="store_true", help="change the rule's file")


def run(options: argparse.Namespace) -> int:
    """Tune and print; returns 0, or 1 if too many records were rejected. Raises: UsageError and other CepErrors."""
    use_secrets_file(options.secrets)
    aim, terms, tries = _aim(options), terms_of(options), _tries(options.tries)
    errors = Terminal(stderr=True, highlight=False)
    rule = one_rule(options.rules, options.rule)
    axes = axes_of(rule.pattern, rule.record.params, tries)
    gap_ms = rule.gap_ms if options.gap is None else _gap_ms(options.gap)
    given = given_events(options, rule.deployment.schema)
    measured = rule.measure(given, options.labels, terms, errors)
    parts = parts_of_time(measured.history.events, measured.marks, gap_ms)
    tuned = tune(rule.bench(given, measured, parts, terms, errors), rule.pattern, rule.bound, axes, aim)
    console = Terminal(highlight=False, soft_wrap=True)
    _print(tuned, gap_ms, console)
    if options.json is not None:
        write_json(asdict(tuned), options.json)
    return judged(options, errors, _propose(options, tuned, console), measured.history.replayed)


def _aim(options: argparse.Namespace) -> Aim:
    budget = None if options.budget is None else alerts_a_day(options.budget)
    return Aim(options.objective, budget, options.review_cost)


def _tries(given: list[str]) -> dict[str, str]:
    tries = {}
    for text in given:
        name, equals, values = text.partition("=")
        if not equals:
            raise UsageError(f"--try {text}: write it like large=100,200,500")
        tries[name.strip()] = values
    return tries


def _gap_ms(text: str) -> int:
    try:
        return duration_ms(text)
    except ValueError as error:
        raise UsageError(f"--gap: {error}") from error


# ----------------------------------------------------------------------------------------------------- printing


def _print(tuned: Tuned, gap_ms: int, console: Console) -> None:
    console.print(f"{tuned.settings_count:,} settings compared, {_WAYS[tuned.way]} ({tuned.replayed_count:,} replayed)")
    console.print(f"the time is cut 3 : 1 : 1, with gaps of {show_duration(gap_ms)}")
    console.print()
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("", "alerts a day", "precision", "recall", "f1", "money found"):
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    for name, rows in (("present", tuned.present_rows), ("proposed", tuned.proposed_rows)):
        for row in rows:
            table.add_row(f"{name}, {row.part}", f"{row.alerts_per_day:,.1f}", *_shares(row), f"{row.money:,.2f}")
    console.print(table)


def _shares(row: Row) -> list[str]:
    return ["–" if value is None else f"{value:.3f}" for value in (row.precision, row.recall, row.f1)]


def _propose(options: argparse.Namespace, tuned: Tuned, console: Console) -> int:
    """Print the change of the rule's file, and write it if that was asked for."""
    path: Path = options.rules / f"{options.rule}.toml"
    console.print()
    if tuned.present == tuned.proposed:
        console.print("the present setting is the best one that was tried")
        return 0
    before = path.read_text(encoding="utf-8")
    after = with_params(before, {name: tuned.proposed[name] for name in tuned.proposed
                                 if tuned.proposed[name] != tuned.present[name]})  # fmt: skip
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(path), str(path), lineterm="", n=1)
    console.print("\n".join(lines), markup=False)
    if options.write:
        write_bytes(after.encode(), path)
        console.print(f"wrote {path}; raise its version with: cep rules bump {options.rule}", markup=False)
    return 0


def with_params(text: str, values: dict[str, object]) -> str:
    """Return a rule file with these parameters, otherwise unchanged."""
    lines = text.splitlines()
    at = next((number for number, line in enumerate(lines) if line.strip() == "[params]"), None)
    if at is None:
        lines += ["", "[params]"]
        at = len(lines) - 1
    end = next((number for number in range(at + 1, len(lines)) if lines[number].lstrip().startswith("[")), len(lines))
    for name, value in values.items():
        written = orjson.dumps(value).decode()
        for number in range(at + 1, end):
            head = re.match(rf"(\s*{name}\s*=\s*)", lines[number])
            if head is not None:
                comment = re.search(r"\s+#[^\"]*$", lines[number])
                lines[number] = head[1] + written + (comment[0] if comment else "")
                break
        else:
            lines.insert(at + 1, f"{name} = {written}")
            end += 1
    return "\n".join(lines) + "\n"
