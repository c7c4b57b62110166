"""`cep report`: rules, events and labels → one page of HTML to hand round, and a JSON file with its numbers.

Tested by: tests/cli/test_quality.py
"""

import argparse
from functools import partial
from pathlib import Path

from cep.analysis.labels import read_labels
from cep.analysis.measure import measure_files
from cep.analysis.one_rule import Replays, one_rule, replay_for_charts
from cep.analysis.report import Report, report
from cep.base.errors import UsageError
from cep.base.limits import REPORT_REPLAYED_EVENTS_MAX
from cep.base.secrets import use_secrets_file
from cep.base.terminal import Terminal, shown_progress
from cep.cli.given_events import exit_code_of, given_events
from cep.cli.labelled import add_label_arguments, deployed_folder, terms_of, write_bytes
from cep.cli.verbs import Parser
from cep.runners.output import check_writable

HELP = """\
Replay a history, in this process, and write a report about the alerts of the rules. It has alerts by day, the figures
of each rule, and the frauds that a team with a given number of alerts a day would find. It shows the contribution of
each rule, how far frauds came in each pattern, and the conditions that stopped them. It shows the weeks with the values
that conditions read, and some alerts and misses with their events.

It is one file below a megabyte that needs no network and no script. The same input gives the same bytes. Values of
protected fields are hidden. Charts need the extra `charts`: pip install 'cep[charts]'.

examples:
  cep report --rules rules --events history.parquet --labels is_fraud --out report.html
  cep report --rules rules --against before/rules --events history/ --labels chargebacks.csv --out report.html
  cep report --rules rules --thresholds card_testing --events history/ --labels is_fraud --out report.html
  cep report --rules rules --thresholds none --events history/ --labels is_fraud --out report.html
"""


_NONE = "none"  # of --thresholds: draw nothing


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    parser.declare("--rules FOLDER", "rule files (*.toml)", required=True)
    parser.declare("--against FOLDER", "other rules, to be shown next to these")
    add_label_arguments(parser)
    parser.declare("--review-cost MONEY", "cost of the review of an alert (default 0)", default=0.0)
    parser.declare(
        "--thresholds RULE",
        "draw the results of this rule with other values of each parameter that is a number or a length "
        "of time, from a quarter of its value to four times its value, and the alerts near the threshold: "
        "dozens of replays. May be given several times; `none` leaves it out (default: the rule with the most "
        "alerts that has such "
        f"parameters, in a history of up to {REPORT_REPLAYED_EVENTS_MAX:,} events)",
        action="append",
    )
    parser.declare("--out FILE", "the page, *.html; its numbers go to the same name with .json", required=True)


def run(options: argparse.Namespace) -> int:
    """Replay rules over labelled events, and write a report. Return 0, or 1 if too many records were rejected."""
    use_secrets_file(options.secrets)
    if options.out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--out {options.out}: name it *.html; the numbers get the same name with .json")
    check_writable(options.out)
    errors = Terminal(stderr=True, highlight=False)
    terms = terms_of(options)
    folders = [options.rules] if options.against is None else [options.rules, options.against]
    deployments = [deployed_folder(folder, errors) for folder in folders]
    names = _named(options)  # the rules whose thresholds are drawn; None: the default
    for name in names or ():
        one_rule(options.rules, name)  # an unknown rule is refused before the long work
    records = [given_events(options, each.schema) for each in deployments]
    measured = [
        measure_files(each, events, options.labels, terms, errors)
        for each, events in zip(deployments, records, strict=True)
    ]
    pieces_of = terms.period.reader(records[0])  # reads the events again, in pieces
    replays = Replays(
        partial(one_rule, options.rules),
        pieces_of,
        lambda schema: read_labels(options.labels, given_events(options, schema), schema, terms.label_words),
        terms,
        errors,
    )
    other = measured[1] if len(measured) > 1 else None
    curves = replay_for_charts(replays, measured[0].figures, names)
    with shown_progress(errors, "walking frauds", None) as progress:
        history_report = report(measured[0], pieces_of, other, options.review_cost, curves, progress)
    console = Terminal(highlight=False, soft_wrap=True)
    for path in write_report(history_report, options.out):
        console.print(f"wrote {path}", markup=False)
    return exit_code_of(options, errors, 0, *(each.history.replayed for each in measured))


def _named(options: argparse.Namespace) -> list[str] | None:
    """Return the rules whose thresholds are asked for; None if the default is wanted. Raises: UsageError."""
    names: list[str] | None = options.thresholds
    if names is None or _NONE not in names:
        return names
    if len(names) > 1:
        raise UsageError(f"--thresholds {_NONE} draws nothing; leave it out, or the rules {', '.join(names)}")
    return []


def write_report(history_report: Report, path: Path) -> tuple[Path, Path]:
    """Write the page, and the file of its numbers. Return both paths. Raises: SinkError."""
    numbers = path.with_suffix(".json")
    write_bytes(history_report.numbers, numbers)
    write_bytes(history_report.html.encode(), path)
    return path, numbers
