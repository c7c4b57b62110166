"""`cep backtest`, `cep rules prune`: rules, events and labels → the value of each rule; the few rules that suffice.

Tested by: tests/cli/test_quality.py
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from rich.console import Console

from cep.analysis.backtest import Backtest, Figures, Ratio, time_text, with_interval
from cep.analysis.measure import Measured, measure_files
from cep.analysis.prune import Pruned, prune
from cep.base.errors import UsageError
from cep.base.secrets import use_secrets_file
from cep.base.terminal import Terminal, new_table, print_whole
from cep.cli.given_events import exit_code_of, given_events
from cep.cli.labelled import (
    add_label_arguments,
    add_rules_argument,
    alerts_a_day,
    deployed_folder,
    rules_path,
    terms_of,
    write_json,
)
from cep.cli.verbs import Parser
from cep.rulebook.suppression import SHADOW
from cep.runners.output import check_writable

HELP = """\
Replay a history, in this process, and measure by labels the alerts of each rule and of all together: precision and
recall with intervals of 95 %, money, lead times, and the contribution of each rule. The first figures describe the
alerts that are sent. Then come the figures of all matches, including shadow versions and suppressed alerts. `cep docs
guides/measure` explains each figure.

examples:
  cep backtest --rules rules --events history.parquet --labels is_fraud
  cep backtest --rules rules --events history/ --labels chargebacks.csv --as-of 2026-03-01T00:00:00Z --json figures.json
"""


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    add_rules_argument(parser)
    add_label_arguments(parser)
    parser.declare("--json FILE", "write all figures here, too")


def run(options: argparse.Namespace) -> int:
    """Measure the rules and print the figures. Return 0, or 1 if too many records were rejected."""
    errors = Terminal(stderr=True, highlight=False)
    measured = _measured(options, errors)
    console = Terminal(highlight=False, soft_wrap=True)
    print_figures(measured.figures, console)
    if options.json is not None:
        write_json(measured.figures.to_json(), options.json)
        console.print(f"wrote {options.json}", markup=False)
    return exit_code_of(options, errors, 0, measured.history.replayed)


def _measured(options: argparse.Namespace, errors: Console) -> Measured:
    use_secrets_file(options.secrets)
    if options.json is not None:
        check_writable(options.json)
    deployment = deployed_folder(rules_path(options), errors)
    events = given_events(options, deployment.schema)
    return measure_files(deployment, events, options.labels, terms_of(options), errors)


_Columns = Mapping[str, Callable[[Figures], str]]
_COLUMNS: _Columns = {
    "alerts": lambda each: f"{each.alerts:,}",
    "a day": lambda each: f"{each.alerts_per_day:,.1f}",
    "precision": lambda each: with_interval(each.precision),
    "of cases": lambda each: show_ratio(each.case_precision),
    "of keys": lambda each: show_ratio(each.key_precision),
    "not mature": lambda each: f"{each.immature:,}",
    "recall of frauds": lambda each: with_interval(each.fraud_recall),
    "money found": lambda each: f"{each.money_found:,.2f}",
    "from the alert on": lambda each: f"{each.money_after_alert:,.2f}",
}
_MORE: _Columns = {
    "recall of events": lambda each: show_ratio(each.event_recall),
    "of keys": lambda each: "–" if each.key_recall is None else show_ratio(each.key_recall),
    "lift": lambda each: "–" if each.lift is None else f"{each.lift:,.1f}",
    "money missed": lambda each: f"{each.money_missed:,.2f}",
    "repeats": lambda each: "–" if each.repeat_rate is None else f"{each.repeat_rate:.1%}",
    "first event to alert": lambda each: time_text(each.seconds_to_alert),
    "alert to last event": lambda each: time_text(each.seconds_ahead),
    "it alone finds": lambda each: "–" if each.adds is None else f"{each.adds:,}",
    "its share": lambda each: f"{each.share:,.1f}",
}


def print_figures(figures: Backtest, console: Console) -> None:
    """Print a line about the history, then figures of each rule and of all together: as sent, and of all matches."""
    about = figures.about  # facts about the history, by name
    console.print(
        f"{about['events']:,} events of {about['days']:,} days; {about['frauds']:,} frauds with "
        f"{about['fraud_events']:,} events are known as of {about['as_of']}"
    )
    if about["episodes"]:  # a text that says which labelled events are one fraud
        console.print(f"a fraud is all {about['episodes']} (--episodes)", markup=False)
    if about["fraud_events_immature"]:
        console.print(f"{about['fraud_events_immature']:,} events of frauds are too recent to count")
    if about["labels_without_event"]:
        console.print(f"{about['labels_without_event']:,} labels are of no event of this history")
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in about["matches_not_sent"].items())
    every = (*figures.rules, figures.together)  # each rule, then all rules together
    _print_table(
        f"as sent{f' ({reasons} are not)' if reasons else ', which are all matches'}", every, _COLUMNS, console
    )
    _print_table("as sent: more", every, _MORE, console)
    if reasons:
        matches = figures.all_matches
        _print_table("all matches", (*matches.rules, matches.together), _COLUMNS, console)


def _print_table(title: str, every: Sequence[Figures], columns: _Columns, console: Console) -> None:
    table = new_table(("rule",), columns, no_wrap=True)
    for each in every:
        table.add_row(each.rule, *(text(each) for text in columns.values()))
    console.print()
    console.print(f"{title}:", markup=False)
    print_whole(table, console)


def show_ratio(share: Ratio) -> str:
    """Return a share with three digits, or a dash if the divisor is zero."""
    return "–" if share.value is None else f"{share.value:.3f}"


HELP_PRUNE = """\
Say which rules could go: the remaining rules find as many frauds as all, or nearly as many with --tolerance. A rule
also goes if its alerts cost more than the frauds that only this rule finds (--alert-cost). Alerts are counted as they
are sent.

With --budget the remaining rules have at most so many alerts a day, and find as many frauds as a set with that limit
can be expected to find. Each other rule is listed with the frauds that it would have added. Rules are not changed.

examples:
  cep rules prune --rules rules --events history.parquet --labels is_fraud
  cep rules prune --rules rules --events history/ --labels chargebacks.csv --tolerance 0.01 --budget 50/day
"""


def add_arguments_prune(parser: Parser) -> None:
    """Declare the arguments of `cep rules prune`, which finds rules that others replace or that cost too much."""
    add_rules_argument(parser)
    add_label_arguments(parser)
    parser.declare("--tolerance SHARE", "recall of frauds that may be lost (default 0)", default=0.0)
    parser.declare("--budget N/day", "the most alerts a day of the rules that stay, on average")
    parser.declare(
        "--alert-cost FRAUDS",
        "how many frauds an alert must find to be worth a look, 0 for a look that costs nothing (default: a tenth "
        "of the frauds that an alert of the budget finds on average; without --budget, one of the present alerts)",
    )
    parser.declare("--json FILE", "write all figures here, too")


def run_prune(options: argparse.Namespace) -> int:
    """Print the rules that could go: others find their frauds, or their alerts cost more than the frauds that only they
    find. Shadow rules send no alerts and stay. Return 1 if a rule could go, or too many records were rejected."""
    if not 0 <= options.tolerance < 1:
        raise UsageError(f"--tolerance {options.tolerance}: a share of the frauds, like 0.01")
    if options.alert_cost is not None and not options.alert_cost >= 0:
        raise UsageError(f"--alert-cost {options.alert_cost}: a number of frauds for an alert, like 0.01")
    budget = None if options.budget is None else alerts_a_day(options.budget)
    errors = Terminal(stderr=True, highlight=False)
    measured = _measured(options, errors)
    alerts_max = None if budget is None else budget * measured.figures.about["days"]
    spared = [each.rule for each in measured.figures.rules if each.status == SHADOW]
    pruned = prune(measured.judged, measured.labelled, options.tolerance, alerts_max, options.alert_cost, spared)
    _print(pruned, Terminal(highlight=False, soft_wrap=True))
    if options.json is not None:
        write_json(asdict(pruned), options.json)
    return exit_code_of(options, errors, int(bool(pruned.removed)), measured.history.replayed)


def _print(pruned: Pruned, console: Console) -> None:
    """Print the rules that stay, and for each other rule the frauds that it finds and how many it would add."""
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
    table = new_table(("could go",), ("frauds", "would add", "money", "alerts", "wrong"), no_wrap=True)
    for each in pruned.removed:
        numbers = (
            f"{each.frauds:,}",
            f"{each.adds:,}",  # frauds that no remaining rule finds
            f"{each.adds_money:,.2f}",
            f"{each.alerts:,}",
            f"{each.wrong:,}",  # alerts that are about no fraud
        )
        table.add_row(each.rule, *numbers)
    print_whole(table, console)
