"""`cep report`: rules, events and labels → one page of HTML to hand round, and its numbers as JSON beside it.

Tested by: tests/cli/test_report.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from cep.analysis.axes import numeric_axes
from cep.analysis.curves import Curve, Pair, curves, pairs
from cep.analysis.measure import Terms, measure_files
from cep.analysis.near import Line, lines
from cep.analysis.one_rule import OneRule, one_rule
from cep.analysis.report import Report, report
from cep.analysis.split import whole_time
from cep.base.errors import UsageError
from cep.base.secrets import use_secrets_file
from cep.cli.given_events import given_events
from cep.cli.labelled import add_label_arguments, deployed_folder, terms_of, write_bytes
from cep.runners.output import check_writable
from cep.sources.pieces import read_pieces

HELP = """\
Replay a history, in this process, and write a report about what the rules have found. It has alerts by day, the
figures of each rule, and what a team with so many alerts a day would find. It says what each rule adds, how far frauds
came in each pattern and what stopped them. It shows the weeks, and some alerts and misses with their events. It is one
file that needs no network and no script. The same input gives the same bytes. Values of protected fields are hidden.
Charts need the extra `charts`: pip install 'cep[charts]'.

examples:
  cep report --rules rules --events history.parquet --labels is_fraud --out report.html
  cep report --rules rules --against before/rules --events history/ --labels chargebacks.csv --out report.html
  cep report --rules rules --thresholds card_testing --events history/ --labels is_fraud --out report.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("--rules", type=Path, required=True, metavar="FOLDER", help="rule files (*.toml)")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="other rules, to be shown beside these")
    add_label_arguments(parser)
    parser.add_argument(
        "--review-cost", type=float, default=0.0, metavar="MONEY", help="what it costs to look at an alert (default 0)"
    )
    parser.add_argument(
        "--thresholds",
        metavar="RULE",
        help="draw what this rule would have found with other values of each parameter that is a number or a length of "
        "time, from a quarter of what it is to four times that, and which alerts are near the line: dozens of replays",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="the page, *.html; its numbers go to the same name with .json",
    )


def run(options: argparse.Namespace) -> int:
    """Write the report; returns 0. Raises: UsageError and other CepErrors."""
    use_secrets_file(options.secrets)
    if options.out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--out {options.out}: name it *.html; the numbers get the same name with .json")
    check_writable(options.out)
    errors = Console(stderr=True, highlight=False)
    terms = terms_of(options)
    folders = [options.rules] if options.against is None else [options.rules, options.against]
    deployments = [deployed_folder(folder, errors) for folder in folders]
    drawn = None if options.thresholds is None else one_rule(options.rules, options.thresholds)
    records = [given_events(options, each.schema) for each in deployments]
    measured = [
        measure_files(each, given, options.labels, terms, errors)
        for each, given in zip(deployments, records, strict=True)
    ]
    made = report(
        measured[0],
        lambda schema: read_pieces(records[0].paths, schema, records[0].mapping),
        measured[1] if len(measured) > 1 else None,
        options.review_cost,
        *(((), (), ()) if drawn is None else _curves(drawn, options, terms, errors)),
    )
    console = Console(highlight=False, soft_wrap=True)
    for path in write_report(made, options.out):
        console.print(f"wrote {path}", markup=False)
    return 0


def _curves(
    rule: OneRule, options: argparse.Namespace, terms: Terms, errors: Console
) -> tuple[tuple[Curve, ...], tuple[Pair, ...], tuple[Line, ...]]:
    """Replay the values of a rule's parameters, some two together, and those near its lines, over the whole history."""
    given = given_events(options, rule.deployment.schema)
    measured = rule.measure(given, options.labels, terms, errors)
    whole = whole_time(measured.history.events, measured.marks)
    bench = rule.bench(given, measured, [whole], terms, errors)
    axes = numeric_axes(rule.pattern, rule.record.params)
    single = curves(bench, axes, measured.figures.about["days"])
    return single, pairs(bench, single), lines(bench, axes)


def write_report(made: Report, path: Path) -> tuple[Path, Path]:
    """Write the page, and its numbers beside it. Return both paths. Raises: SinkError."""
    numbers = path.with_suffix(".json")
    write_bytes(made.numbers, numbers)
    write_bytes(made.html.encode(), path)
    return path, numbers
