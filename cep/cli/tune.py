"""`cep rules tune RULE`: events, labels and an aim → the parameters that meet it best, as a change of the rule's file.

Tested by: tests/cli/test_quality.py
"""

import argparse
import difflib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from cep.analysis.backtest import parts_of_time, with_interval
from cep.analysis.one_rule import one_rule
from cep.analysis.sweep import axes_of, skipped_params
from cep.analysis.tune import Aim, Interval, Tuned, tune
from cep.base.errors import UsageError
from cep.base.secrets import use_secrets_file
from cep.base.terminal import Terminal, new_table, print_whole
from cep.base.toml import with_value
from cep.cli.given_events import exit_code_of, given_events
from cep.cli.labelled import add_label_arguments, alerts_a_day, terms_of, write_bytes, write_json
from cep.cli.paths import pairs
from cep.cli.verbs import Parser
from cep.lang.show import show_duration
from cep.model.setting_types import length_ms

HELP = """\
Find the parameters of a rule that meet an aim best on labelled events. The first three fifths of the time choose, and
the next fifth confirms; between the parts is a gap. The last fifth decides whether the best setting is better than the
present setting, by a paired bootstrap. If it is not, the present setting stays. The output ends with the change of the
rule's file. The file is changed only with --write.

examples:
  cep rules tune card_testing --rules rules --events history.parquet --labels is_fraud --objective f1
  cep rules tune large --rules rules --events history/ --labels fraud.csv --objective recall --budget 50/day
  cep rules tune large --rules rules --events history/ --labels fraud.csv --try large=100..900/17 --try back=7d,14d,30d
"""
_SHOWN = 25  # settings that are printed; --json has all
_WAYS = {
    "combined": "all of them exactly: each value of a threshold was replayed, and what a setting finds follows",
    "replayed": "each of them by a replay",
    "along the axes": "each of them by a replay, one parameter at a time from the present setting: there may be better",
}


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of `cep rules tune`. The parts of the time are train, validation and test."""
    parser.declare("rule RULE", "the rule's id")
    parser.declare("--rules FOLDER", "rule files (*.toml)", required=True)
    add_label_arguments(parser)
    parser.declare(
        "--objective",
        "the figure to maximize: f1 of precision and recall of frauds, their recall, or the money found (default f1)",
        choices=("f1", "recall", "money"),
        default="f1",
    )
    parser.declare("--budget N/day", "the most alerts a day, on average")
    parser.declare("--review-cost MONEY", "cost of an alert, subtracted from the money found", default=0.0)
    parser.declare(
        "--try PARAM=VALUES",
        "values to try: 1,2,5, or 100..500, or 100..500/9 for nine of them (default: each threshold that is a "
        "number, 21 values from a quarter of its value to four times its value)",
        action="append",
        default=[],
        dest="tries",
    )
    parser.declare("--gap TIME", "time between the parts (default: the rule's window, or a day)")
    parser.declare("--json FILE", "write all figures here, too")
    parser.declare("--write", "change the rule's file")


def run(options: argparse.Namespace) -> int:
    """Tune a rule's parameters on labelled events, and print the result. Return 1 if too many records were rejected."""
    use_secrets_file(options.secrets)
    budget = None if options.budget is None else alerts_a_day(options.budget)
    aim = Aim(options.objective, budget, options.review_cost)
    terms, tries = terms_of(options), pairs(options.tries, "--try", "it like large=100,200,500")
    errors = Terminal(stderr=True, highlight=False)
    rule = one_rule(options.rules, options.rule)
    axes = axes_of(rule.pattern, rule.record.params, tries)  # each parameter with the values to try
    gap_ms = rule.gap_ms if options.gap is None else length_ms("--gap", options.gap)  # between parts of the time
    records = given_events(options, rule.deployment.schema)
    measured = rule.measure(records, options.labels, terms, errors)
    parts = parts_of_time(measured.history.events, measured.labelled, gap_ms, measured.labelled_at)
    skipped = skipped_params(rule.pattern, rule.record.params, axes, tries)
    tuned = tune(rule.replayer(records, measured, parts, terms, errors), rule.pattern, rule.bound, axes, aim, skipped)
    console = Terminal(highlight=False, soft_wrap=True)
    _print(tuned, gap_ms, aim, console)
    if options.json is not None:
        write_json(asdict(tuned), options.json)
    return exit_code_of(options, errors, _propose(options, tuned, console), measured.history.replayed)


def _print(tuned: Tuned, gap_ms: int, aim: Aim, console: Console) -> None:
    """Print the present setting and the candidate, as each part of the time shows them: train, validation, test."""
    console.print(f"{tuned.settings_count:,} settings compared, {_WAYS[tuned.way]} ({tuned.replayed_count:,} replayed)")
    console.print(f"the time is cut 3 : 1 : 1, with gaps of {show_duration(gap_ms)}")
    for part in tuned.parts:
        console.print(f"  {part.name}: {part.since} to {part.until}, {part.frauds:,} frauds known at its end")
    for name, reason in tuned.skipped.items():
        console.print(f"{name} was not tried: {reason}", markup=False)
    console.print()
    _print_tried(tuned, console)
    console.print()
    table = new_table(("",), ("alerts", "a day", "precision", "recall", "f1", "money found"), no_wrap=True)
    for name, rows in (("present", tuned.present_rows), ("candidate", tuned.candidate_rows)):
        if name == "present" or tuned.candidate != tuned.present:
            for row in rows:
                shares = (with_interval(row.precision), with_interval(row.recall), f"{row.f1:.3f}")
                numbers = (f"{row.alerts:,}", f"{row.alerts_per_day:,.1f}", *shares, f"{row.money:,.2f}")
                table.add_row(f"{name}, {row.part}", *numbers)
    print_whole(table, console)
    console.print()
    if tuned.candidate != tuned.present:
        console.print(f"{aim.objective} on test, with intervals of 95 %: present {_interval(tuned.test[0])}, candidate "
                      f"{_interval(tuned.test[1])}, difference {_interval(tuned.difference)}")  # fmt: skip


def _interval(each: Interval) -> str:
    return f"{each.value:,.3f} ({each.low:,.3f} to {each.high:,.3f})"


def _print_tried(tuned: Tuned, console: Console) -> None:
    """Print the settings, the best on train first, and the present one. `aim` is the value of the objective."""
    columns = tuned.tried
    names = [name for name in columns if name in tuned.present]
    ranks = [float("-inf") if value is None else value for value in columns["train_value"]]  # None: over the budget
    order = sorted(range(tuned.settings_count), key=ranks.__getitem__, reverse=True)
    (present_row,) = (row for row in order if all(columns[name][row] == tuned.present[name] for name in names))
    shown = order[:_SHOWN] if present_row in order[:_SHOWN] else [*order[: _SHOWN - 1], present_row]
    table = new_table(("",), (*names, "train: alerts", "aim", "validation: alerts", "aim"), no_wrap=True)
    for row in shown:
        figures = (
            f"{columns[f'{part}_{name}'][row]:,}" if name == "alerts" else _value(columns[f"{part}_{name}"][row])
            for part in ("train", "validation") for name in ("alerts", "value")
        )  # fmt: skip
        table.add_row("present" if row == present_row else "", *(str(columns[name][row]) for name in names), *figures)
    print_whole(table, console)
    if len(order) > len(shown):
        console.print(f"and {len(order) - len(shown):,} others, which --json has", markup=False)


def _value(value: float | None) -> str:
    return "over the budget" if value is None else f"{value:,.4f}"


_VERDICTS = {
    "the present setting is the best": "the present setting is the best one that was tried",
    "not better": "the candidate is not better than the present setting: the interval of the difference does not "
    "exclude it; the present setting stays",
    "better": "the candidate is better than the present setting",
    "within the budget": "the present setting is over the budget on train; the candidate keeps to it",
}


def _propose(options: argparse.Namespace, tuned: Tuned, console: Console) -> int:
    path: Path = options.rules / f"{options.rule}.toml"
    console.print(_VERDICTS[tuned.outcome])
    if tuned.present == tuned.proposed:
        return 0
    before = path.read_bytes().decode()
    after = with_params(before, {name: tuned.proposed[name] for name in tuned.proposed
                                 if tuned.proposed[name] != tuned.present[name]}, path)  # fmt: skip
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(path), str(path), lineterm="", n=1)
    console.print()
    console.print("\n".join(lines), markup=False)
    if options.write:
        write_bytes(after.encode(), path)
        console.print(f"wrote {path}; raise its version with: cep rules bump {options.rule}", markup=False)
    return 0


def with_params(text: str, values: Mapping[str, object], path: Path) -> str:
    """Return the text of a rule file with these parameters, and everything else as it was. Raises: UsageError."""
    try:
        for name, value in values.items():
            text = with_value(text, ("params", name), value)
    except ValueError as error:
        raise UsageError(f"{path} {error}") from error
    return text
