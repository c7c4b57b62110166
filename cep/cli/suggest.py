"""`cep suggest`: events and labels → patterns that find frauds, as a pattern file with tests, to be judged by a person.

Tested by: tests/cli/test_suggest.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from cep.analysis.labels import read_labels
from cep.analysis.measure import measure
from cep.analysis.suggest import Suggested, check_wanted, fields_of, suggest
from cep.base.errors import UsageError
from cep.base.limits import SUGGEST_STEPS_MAX
from cep.base.secrets import use_secrets_file
from cep.base.terminal import Terminal
from cep.cli.backtest import show_ratio
from cep.cli.given_events import given_events
from cep.cli.labelled import add_label_arguments, deployed_folder, terms_of, write_bytes
from cep.cli.rejected import judged
from cep.runners.output import check_writable

HELP = """\
Look for sequences that frauds have and other events have not, and write the best ones as patterns. They are mined from
the first seven tenths of the time. The rest, behind a gap, is cut in two: what is precise on its first half is
proposed, each with three tests from the data, and the second half, which has no say, shows what to expect.

The rules of the folder say which events there are; what they find already is told apart. With --out stands a rule of
each beside it, in status shadow. Nothing is put in force: give a pattern a name, and say why it is fraud.

examples:
  cep suggest --rules rules --events history.parquet --labels is_fraud --key card_id
  cep suggest --rules rules --events history/ --labels fraud.csv --key card_id --max-steps 4 --out suggested.cep
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("--rules", type=Path, required=True, metavar="FOLDER", help="rule files (*.toml) in force")
    add_label_arguments(parser)
    parser.add_argument("--key", required=True, metavar="FIELD", help="field that the events of a sequence share")
    parser.add_argument(
        "--max-steps",
        type=int,
        default=3,
        metavar="N",
        help=f"events of a sequence, 1 to {SUGGEST_STEPS_MAX} (default 3)",
    )
    parser.add_argument("--count", type=int, default=5, metavar="N", help="patterns at most (default 5)")
    parser.add_argument(
        "--precision",
        type=float,
        default=0.8,
        metavar="SHARE",
        help="least precision on the time that chooses (default 0.8)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the patterns here instead of printing them")


def run(options: argparse.Namespace) -> int:
    """Mine and print; returns 0, or 1 if nothing is good enough or too many records were rejected.

    Raises: UsageError and other CepErrors.
    """
    use_secrets_file(options.secrets)
    check_wanted(wanted := (options.max_steps, options.count, options.precision))
    if options.out is not None:
        check_writable(options.out)
    errors = Terminal(stderr=True, highlight=False)
    deployment = deployed_folder(options.rules, errors)
    schema = deployment.schema
    fields = fields_of(schema)
    if options.key not in fields:
        raise UsageError(f"--key {options.key} is no field of the rules' events; these are: {', '.join(fields)}")
    given = given_events(options, schema)
    terms = terms_of(options)
    pieces_of = terms.period.reader(given)
    labels = read_labels(options.labels, given, schema)
    measured = measure(deployment, pieces_of, labels, terms, errors, fields)
    present = np.asarray(measured.judged.has_detected.any(axis=0))
    outcome = suggest(measured.history.events, measured.marks, pieces_of, options.key, wanted, present)
    console = Terminal(highlight=False, soft_wrap=True)
    _print(outcome, options.precision, console)
    if outcome.suggestions and options.out is not None:
        write_bytes(outcome.text.encode(), options.out)
        for each in outcome.suggestions:
            write_bytes(_rule_file(each.name, options.out.name).encode(), options.out.with_name(f"{each.name}.toml"))
        console.print(
            f"wrote {options.out}, and {len(outcome.suggestions)} rules in status shadow beside it; run its tests "
            f"with: cep test {options.out}", markup=False,
        )  # fmt: skip
    elif outcome.suggestions:
        console.print(f"\n{outcome.text}", markup=False)
    return judged(options, errors, int(not outcome.suggestions), measured.history.replayed)


def _rule_file(name: str, file: str) -> str:
    """Return a rule that is matched and recorded, and sends nothing."""
    return f"""\
id       = "{name}"
pattern  = "{name}"
file     = {orjson.dumps(file).decode()}
version  = 1
status   = "shadow"
severity = "low"
owner    = "nobody yet"
message  = "{{key}} did what labelled frauds do"
"""


def _print(outcome: Suggested, precision: float, console: Console) -> None:
    console.print(
        f"{outcome.tried} sequences mined. {len(outcome.suggestions)} have a precision of {precision} or more on the "
        "time that chooses, and frauds of their own there"
    )
    if not outcome.suggestions:
        return
    console.print(
        f"the last {outcome.held_out_days:.1f} days, which had no say, have {outcome.held_out_frauds:,} frauds"
    )
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("in these days", "alerts", "precision", "recall", "not yet found", "precision when chosen"):
        table.add_column(title, justify="left" if title == "in these days" else "right", no_wrap=True)
    for each in outcome.suggestions:
        shares = (show_ratio(share) for share in (each.precision, each.recall))
        table.add_row(each.name, f"{each.alerts:,}", *shares, str(each.new), show_ratio(each.chosen_for))
    console.print(table)
