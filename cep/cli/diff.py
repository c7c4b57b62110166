"""`cep diff OLD NEW --events PATH`: two folders of rules over one history → alerts gained and lost, quality, cost.

Tested by: tests/cli/test_quality.py
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cep.analysis.backtest import Figures
from cep.analysis.labels import label_words
from cep.analysis.measure import Measured, Terms, measure_files
from cep.base.terminal import Terminal, new_table, print_whole
from cep.cli.backtest import show_ratio
from cep.cli.given_events import (
    add_events_arguments,
    add_period_arguments,
    add_to_the_end_argument,
    exit_code_of,
    given_events,
    given_period,
)
from cep.cli.labelled import add_label_terms, deployed_folder
from cep.cli.verbs import Parser
from cep.rulebook.difference import Comparison, compare
from cep.runners.embedded import replay as embedded
from cep.runners.output import Replayed
from cep.runners.warm import warm_up
from cep.step.job import Job

HELP = """\
Replay a history with two sets of rules, in this process, and compare them. The report says which alerts come and go,
with examples, and the cost of an event with each set.

With --label, a column of the events or a file says which events are bad. The report then has precision and recall of
the alerts as they are sent, then of all matches, which include shadow versions and suppressed alerts: for all rules
together, and for each rule. The examples are taken from all matches.

examples:
  git worktree add /tmp/before main && cep diff /tmp/before/rules rules --events history.parquet
  cep diff before/rules rules --events history.parquet --label is_fraud
"""


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    parser.declare("old OLD", "folder of rules", type=Path)
    parser.declare("new NEW", "folder of rules", type=Path)
    add_events_arguments(parser)
    add_period_arguments(parser)
    add_to_the_end_argument(parser)
    parser.declare("--label COLUMN|FILE", "column of the events that is true, or 1, for bad ones, or a file of labels")
    add_label_terms(parser)
    parser.declare("--examples N", "alerts shown of each kind (3)", default=3)
    parser.declare("--cores N", "cores of this machine to use (default 2)", default=2)


def run(options: argparse.Namespace) -> int:
    """Compare the alerts of two sets of rules. Return 1 if they differ, or too many records were rejected."""
    console = Terminal(highlight=False, soft_wrap=True)
    errors = Terminal(stderr=True, highlight=False)
    period = given_period(options)
    deployments = [deployed_folder(folder, errors) for folder in (options.old, options.new)]
    warm_up()  # Without this, the first replay would pay for everything that is compiled or loaded once.
    records = [given_events(options, each.schema) for each in deployments]
    measured: list[Measured] = []
    readers = [period.reader(events) for events in records]
    if options.label is not None:
        words = label_words(options.label_words)
        terms = Terms(cores=options.cores, period=period, label_words=words, allow_label=options.allow_label)
        measured = [
            measure_files(each, events, options.label, terms, errors)
            for each, events in zip(deployments, records, strict=True)
        ]
        replays = [each.history.replayed for each in measured]
    else:
        replays = [
            embedded.replay_shown(
                Job(each.schema, each.key_domains, dedup_ms=period.dedup_ms).begin(),
                each.rulebook,
                read(each.schema),
                options.cores,
                errors,
            )
            for each, read in zip(deployments, readers, strict=True)
        ]
    comparison = compare(replays[0].alerts, replays[1].alerts)
    _print_figures(replays, measured, console)
    print_changes(comparison, options.examples, console)
    return exit_code_of(options, errors, int(bool(comparison.gained or comparison.lost)), *replays)


def _print_figures(replays: Sequence[Replayed], measured: Sequence[Measured], console: Console) -> None:
    """Print a table of the old and the new rules: their alerts, how good these are if labels tell, and their costs."""
    table = new_table(("",), ("old", "new"))
    if measured:
        _add_quality(table, "alerts sent", [(each.figures.together, each.figures.rules) for each in measured])
        matches = [each.figures.all_matches for each in measured]
        _add_quality(table, "all matches", [(each.together, each.rules) for each in matches])
    else:
        table.add_row("alerts", *(f"{each.alerts.num_rows:,}" for each in replays))
    table.add_row("µs an event", *(_per_event(each, each.seconds * 1e6, 2) for each in replays))
    for name in ("run_steps", "runs_started"):  # a run step: a partial match is offered an event
        rates = (_per_event(each, each.counters[name], 3) for each in replays)
        table.add_row(f"{name.replace('_', ' ')} an event", *rates)
    print_whole(table, console)


def _add_quality(table: Table, title: str, sets: Sequence[tuple[Figures, Sequence[Figures]]]) -> None:
    """Add rows for all rules together, then, if there are several, for each of them. `sets` are old and new."""
    _add_figures(table, title, [together for together, _ in sets])
    by_name = [{each.rule: each for each in rules} for _, rules in sets]
    names = sorted({name for rules in by_name for name in rules})
    for name in names if len(names) > 1 else ():
        _add_figures(table, f"  {name}", [rules.get(name) for rules in by_name])


def _add_figures(table: Table, title: str, figures: Sequence[Figures | None]) -> None:
    indent = " " * (len(title) - len(title.lstrip()) + 2)
    table.add_row(title, *("–" if each is None else f"{each.alerts:,}" for each in figures))
    table.add_row(f"{indent}precision", *("–" if each is None else show_ratio(each.precision) for each in figures))
    table.add_row(f"{indent}recall", *("–" if each is None else show_ratio(each.event_recall) for each in figures))


def _per_event(replayed: Replayed, amount: float, digits: int) -> str:
    events = replayed.counters["events"]
    return f"{amount / events:.{digits}f}" if events else "–"


def print_changes(comparison: Comparison, examples_count: int, console: Console) -> None:
    """Print how many alerts are gained, lost and unchanged, by rule, with examples."""
    console.print(f"\nkept {comparison.kept_count:,}, gained {len(comparison.gained):,}, lost {len(comparison.lost):,}")
    for title, alerts, style in (("gained", comparison.gained, "green"), ("lost", comparison.lost, "red")):
        by_rule: dict[str, list[dict[str, Any]]] = {}
        for alert in alerts:
            by_rule.setdefault(alert["rule_id"], []).append(alert)
        for rule_id, of_rule in sorted(by_rule.items()):
            console.print(Text(f"{title} {len(of_rule):,} of {rule_id}", style=style))
            for alert in of_rule[:examples_count]:
                detected_at = str(alert["detected_at"])[:19]  # date and time, to the second
                events = ", ".join(event["event_id"] for event in alert["events"])
                console.print(f"  {detected_at}  {alert['key']}  {alert['message']}  [{events}]", markup=False)
