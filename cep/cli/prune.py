"""`cep rules prune`: rules, events and labels → the few rules that find nearly the same, and the gain of the others.

Tested by: tests/cli/test_quality.py
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cep.analysis.measure import measure_files
from cep.analysis.prune import Pruned, prune
from cep.base.errors import UsageError
from cep.base.secrets import use_secrets_file
from cep.base.terminal import Terminal, print_whole
from cep.cli.given_events import given_events, judged
from cep.cli.labelled import (
    add_label_arguments,
    add_rules_argument,
    alerts_a_day,
    deployed_folder,
    rules_path,
    terms_of,
    write_json,
)
from cep.rulebook.suppression import SHADOW
from cep.runners.output import check_writable

HELP = """\
Say which rules could go: the remaining rules find as many frauds as all, or nearly as many with --tolerance. A rule
also goes if its alerts cost more than the frauds that only this rule finds (--alert-cost). Alerts are counted as they
are sent.

With --budget the remaining rules have at most so many alerts a day, and find as many frauds as a set with that limit
can be expected to find. Each other rule is listed with the frauds that it would have added. Rules are not changed.

examples:
  cep rules prune --rules rules --events history.parquet --labels is_fraud
  cep rules prune --rules rules --events history/ --labels chargebacks.csv --tolerance 0.01 --budget 50/day
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    add_rules_argument(parser)
    add_label_arguments(parser)
    parser.add_argument(
        "--tolerance", type=float, default=0.0, metavar="SHARE", help="recall of frauds that may be lost (default 0)"
    )
    parser.add_argument("--budget", metavar="N/day", help="the most alerts a day of the rules that stay, on average")
    parser.add_argument(
        "--alert-cost",
        type=float,
        metavar="FRAUDS",
        help="how many frauds an alert must find to be worth a look, 0 for a look that costs nothing (default: a tenth "
        "of the frauds that an alert of the budget finds on average; without --budget, one of the present alerts)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here, too")


def run(options: argparse.Namespace) -> int:
    """Find the rules that could be removed, and print them.

    Return 1 if there are any, or too many records were rejected.

    Raises: UsageError and other CepErrors.
    """
    use_secrets_file(options.secrets)
    if not 0 <= options.tolerance < 1:
        raise UsageError(f"--tolerance {options.tolerance}: a share of the frauds, like 0.01")
    if options.alert_cost is not None and not options.alert_cost >= 0:
        raise UsageError(f"--alert-cost {options.alert_cost}: a number of frauds for an alert, like 0.01")
    budget = None if options.budget is None else alerts_a_day(options.budget)
    if options.json is not None:
        check_writable(options.json)
    errors = Terminal(stderr=True, highlight=False)
    deployment = deployed_folder(rules_path(options), errors)
    measured = measure_files(
        deployment, given_events(options, deployment.schema), options.labels, terms_of(options), errors
    )
    alerts_max = None if budget is None else budget * measured.figures.about["days"]
    spared = [each.rule for each in measured.figures.rules if each.status == SHADOW]
    pruned = prune(measured.judged, measured.marks, options.tolerance, alerts_max, options.alert_cost, spared)
    _print(pruned, Terminal(highlight=False, soft_wrap=True))
    if options.json is not None:
        write_json(asdict(pruned), options.json)
    return judged(options, errors, int(bool(pruned.removed)), measured.history.replayed)


def _print(pruned: Pruned, console: Console) -> None:
    """Print which rules stay, which could be removed, and what that would cost."""
    total = len(pruned.stay) + len(pruned.removed)
    console.print(
        f"{len(pruned.stay)} of {total} rules find {pruned.frauds_after:,} of the {pruned.frauds_before:,} frauds that "
        f"all find, with {pruned.alerts_after:,} of {pruned.alerts_before:,} alerts, {pruned.wrong_after:,} of "
        f"{pruned.wrong_before:,} wrong"
    )
    console.print(f"an alert costs {pruned.alert_cost:.4g} frauds (--alert-cost)")
    console.print(f"they stay: {', '.join(pruned.stay) or 'none'}", markup=False)
    if not pruned.removed:
        return
    console.print()
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("could go", "frauds", "would add", "money", "alerts", "wrong"):
        table.add_column(title, justify="left" if title == "could go" else "right", no_wrap=True)
    for each in pruned.removed:
        numbers = (
            f"{each.frauds:,}",
            f"{each.adds:,}",
            f"{each.adds_money:,.2f}",
            f"{each.alerts:,}",
            f"{each.wrong:,}",
        )
        table.add_row(each.rule, *numbers)
    print_whole(table, console)
