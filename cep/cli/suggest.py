"""`cep rules suggest`: events and labels → patterns that find frauds, as a pattern file with tests; a person decides.

Tested by: tests/cli/test_quality.py
"""

import argparse
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
from rich.console import Console

from cep.analysis.labels import read_labels
from cep.analysis.measure import measure
from cep.analysis.suggest import Suggested, Wanted, check_wanted, fields_of, key_fields, left_out_fields, suggest
from cep.base.errors import UsageError
from cep.base.limits import SUGGEST_STEPS_MAX
from cep.base.secrets import use_secrets_file
from cep.base.terminal import Terminal, new_table, print_whole, shown_progress
from cep.base.text import utc_text
from cep.cli.backtest import show_ratio
from cep.cli.given_events import exit_code_of, given_events
from cep.cli.labelled import add_label_arguments, add_rules_argument, deployed_folder, rules_path, terms_of, write_bytes
from cep.cli.verbs import Parser
from cep.rulebook.deploy import Deployment
from cep.runners.output import check_writable

HELP = """\
Look for sequences that occur in frauds and not in other events, and write the best ones as patterns. They are mined
from the first seven tenths of the time. The rest, after a gap, is cut in two. A sequence that is precise on the first
half is proposed, with three tests from the data. The second half does not affect the choice, so it shows the quality to
expect.

The rules of the folder declare the events; frauds that they already find are reported separately. With --out, each
pattern gets a rule file next to it, in status shadow. No rule is put in force: give a pattern a name, and say why it is
fraud.

examples:
  cep rules suggest --rules rules --events history.parquet --labels is_fraud --key card_id
  cep rules suggest --rules rules --events history/ --labels fraud.csv --key card_id --max-steps 4 --out suggested.cep
"""
_NAME = re.compile(r"suggested_(\d{1,9})")
_REJECTED_SHOWN = 3


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    add_rules_argument(parser)
    add_label_arguments(parser)
    parser.declare(
        "--key FIELD",
        "field that the events of a sequence share; payer+payee for a value that is in either field, so that a "
        "sequence goes over both sides of an account; with the paying field first, also over money that comes back to "
        "an account over two or three others",
        required=True,
    )
    parser.declare("--zone ZONE", "zone of the clock for hours and weekdays (default: --time-zone, or UTC)")
    parser.declare("--max-steps N", f"events of a sequence, 1 to {SUGGEST_STEPS_MAX} (default 3)", default=3)
    parser.declare("--count N", "patterns at most (default 5)", default=5)
    parser.declare("--precision SHARE", "least precision on the time that chooses (default 0.8)", default=0.8)
    parser.declare("--exclude FIELD", "a field that no condition may read; repeatable", action="append", default=[])
    parser.declare(
        "--use FIELD",
        "a field that conditions may read although its name looks like a label, a personal trait or a coordinate; "
        "repeatable",
        action="append",
        default=[],
    )
    parser.declare("--out FILE", "write the patterns to this new file instead of printing them")


def run(options: argparse.Namespace) -> int:
    """Mine and print. Return 0, or 1 if nothing is good enough or too many records were rejected."""
    use_secrets_file(options.secrets)
    chosen = (tuple(options.exclude), tuple(options.use), options.zone or options.time_zone or "UTC")
    wanted = Wanted(options.max_steps, options.count, options.precision, *chosen)
    check_wanted(wanted)
    if options.out is not None:
        _check_new(options.out)
        check_writable(options.out)
    errors = Terminal(stderr=True, highlight=False)
    deployment = deployed_folder(rules_path(options), errors, needs_rules=False)
    schema = deployment.schema
    fields = fields_of(schema)
    parts = key_fields(options.key, fields, schema)
    wanted = replace(wanted, last_number=_last_name(deployment, options.out))
    given = given_events(options, schema)
    terms = replace(terms_of(options), episode_gap_ms=0)  # each labelled event is to be found
    pieces_of = terms.period.reader(given)
    labels = read_labels(options.labels, given, schema, terms.label_words)
    wanted = replace(wanted, label_fields=labels.fields)
    left_out = left_out_fields(schema, options.key, wanted)
    more = (*parts, *(name for name in fields if name not in left_out))
    measured = measure(deployment, pieces_of, labels, terms, errors, more)
    present = np.asarray(measured.judged.has_detected.any(axis=0))
    events, labelled = measured.history.events, measured.labelled
    with shown_progress(errors, "mining", None) as report:
        outcome = suggest(
            events, labelled, pieces_of, options.key, wanted, present, measured.labelled_at,
            lambda count, total: report("mining", count, total),
        )  # fmt: skip
    console = Terminal(highlight=False, soft_wrap=True)
    _print(outcome, options.precision, console)
    if outcome.suggestions and options.out is not None:
        _write(outcome, options.out)
        console.print(
            f"wrote {options.out}, and {len(outcome.suggestions)} rules in status shadow beside it; run its tests "
            f"with: cep test {options.out}", markup=False,
        )  # fmt: skip
    elif outcome.suggestions:
        console.print(f"\n{outcome.text}", markup=False)
    return exit_code_of(options, errors, int(not outcome.suggestions), measured.history.replayed)


def _check_new(path: Path) -> None:
    """Refuse a file that exists, because its text may be edited. Raises: UsageError."""
    if path.exists():
        raise UsageError(f"{path} is there already, and may be edited; name a new file")


def _last_name(deployment: Deployment, out: Path | None) -> int:
    """Return the greatest number of a rule or a file next to `out` that is named suggested_N, 0 without one."""
    names = [rule.rule_id for rule in deployment.rulebook.deployed()]
    names += [rule.pattern.name for rule in deployment.rulebook.deployed()]
    names += [] if out is None else [path.stem for path in out.parent.glob("suggested_*.toml")]
    numbers = [int(found[1]) for name in names if (found := _NAME.fullmatch(name))]
    return max(numbers, default=0)


def _write(outcome: Suggested, out: Path) -> None:
    """Write the patterns, and the rule of each in its own file. Raises: UsageError if a file is there, SinkError."""
    rules = {out.with_name(f"{each.name}.toml"): _rule_file(each.name, out.name) for each in outcome.suggestions}
    for name in outcome.producers:
        rules[out.with_name(f"{name}.toml")] = _rule_file(name, out.name).replace('"shadow"', '"live"')
    for path in (out, *rules):
        _check_new(path)
    for path, text in {out: outcome.text, **rules}.items():
        write_bytes(text.encode(), path)


def _rule_file(name: str, file: str) -> str:
    """Write a rule file in shadow: it is matched and recorded, and sends no alerts."""
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
    """Print the result. Sequences are mined in a first part of the time, chosen in a second, measured in the last."""
    data = outcome.data
    console.print(
        f"mined {data.events:,} of {data.all_events:,} events of {data.keys:,} {data.key} with {data.frauds:,} frauds, "
        f"{utc_text(data.from_ms)[:10]} to {utc_text(data.until_ms)[:10]}", markup=False,
    )  # fmt: skip
    console.print(f"fields: {', '.join(data.fields) or 'none'}", markup=False)
    if data.left_out:
        reasons = ", ".join(f"{name} ({reason})" for name, reason in data.left_out.items())
        console.print(f"left out: {reasons}; --use FIELD takes one in", markup=False)
    console.print(
        f"{outcome.tried} sequences mined. {len(outcome.suggestions)} have a precision of {precision} or more on the "
        "time that chooses, and frauds of their own there"
    )
    if not outcome.suggestions:
        for rejected in outcome.rejected[:_REJECTED_SHOWN]:
            console.print(f"\nnot proposed: {rejected.reason}\n{rejected.text}", markup=False)
        return
    console.print(
        f"the last {outcome.held_out_days:.1f} days, which had no say, have {outcome.held_out_frauds:,} frauds"
    )
    numbers = ("alerts", "precision", "recall", "not yet found", "precision when chosen")
    table = new_table(("in these days",), numbers, no_wrap=True)
    for each in outcome.suggestions:
        shares = (show_ratio(share) for share in (each.precision, each.recall))
        table.add_row(
            each.name,
            f"{each.alerts:,}",
            *shares,
            "–" if each.new is None else f"{each.new:,}",  # frauds that the rules of the folder do not find
            show_ratio(each.chosen_for),  # on the second part of the time
        )
    print_whole(table, console)
