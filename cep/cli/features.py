"""`cep features`: events and functions of past events → the events with a column for the value of each.

Tested by: tests/api/test_features.py, tests/cli/test_rejected.py
"""

import argparse
import re
import sys
from functools import partial
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from cep.api.events import HistoryForms
from cep.api.features import rejecting_features
from cep.api.frames import Naming
from cep.base.errors import SinkError, UsageError
from cep.base.files import replace_file
from cep.base.terminal import Terminal
from cep.base.text import visible
from cep.cli.given_events import add_events_arguments, add_period_arguments, given_forms, tell_rejections
from cep.cli.paths import printed
from cep.cli.verbs import Parser
from cep.sinks.csv_cells import write_csv

HELP = """\
Compute functions of past events at every event, and write the events with a column for each function. Conditions of
patterns compare the same values. The key of a function is --by, otherwise the fields after its own `by`. In a CSV file
a text that a spreadsheet would run as a formula has an apostrophe in front.

examples:
  cep features --events payments.parquet --out features.parquet "spent=sum(payment.amount over 7 d by card_id)"
  cep features --events day.csv --declare patterns/events.cep --by card_id --out out.csv "count(transaction over 1 h)"
"""
_NAMED = re.compile(r"([A-Za-z_]\w*)=(?!=)(.*)", re.DOTALL)
_FORMATS = (".parquet", ".csv")


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    parser.declare("expressions [NAME=]EXPRESSION", "a function of past events", nargs="+")
    add_events_arguments(parser)
    add_period_arguments(parser)
    parser.declare("--out FILE", "*.parquet or *.csv", required=True)
    parser.declare("--by FIELDS", "fields of the key, with commas between them")
    parser.declare("--declare FILE", "pattern file that declares the events (default: as they look)")
    parser.declare("--tz ZONE", "the same as --time-zone")


def run(options: argparse.Namespace) -> int:
    """Write the events with a column for each expression. Return 0, or 1 if too many records were rejected."""
    if options.out.suffix not in _FORMATS:
        raise UsageError(f"cannot tell the format of {options.out}; name it *.parquet or *.csv")
    named = [_NAMED.fullmatch(text) for text in options.expressions]  # like `spent=sum(p.amount over 7 d)`
    expressions = {
        text if match is None else match[1]: text if match is None else match[2]
        for text, match in zip(options.expressions, named, strict=True)
    }
    if len(expressions) < len(options.expressions):
        raise UsageError(f"two columns have the same name; name each of {', '.join(expressions)} once")
    by = () if options.by is None else tuple(field.strip() for field in options.by.split(","))
    columns, tz, forms = given_forms(options)
    zone = options.tz or tz
    period = {name: at for name in ("since", "until", "dedup") if (at := getattr(options, name)) is not None}
    naming = Naming(columns, zone, forms)
    outcome = rejecting_features(options.events, expressions, by, options.declare, naming, cast("HistoryForms", period))
    try:
        replace_file(options.out, partial(_write, outcome.frame, options.out.suffix))
    except OSError as error:
        raise SinkError(f"{options.out} cannot be written: {error}; make room or name another file") from error
    if outcome.skipped_times:
        print(visible(f"cep: {outcome.times_line()}"), file=sys.stderr)
    printed(f"wrote {options.out}: {outcome.rows:,} events, {len(expressions)} more columns")
    return tell_rejections(outcome.rejections, options.rejected_max, Terminal(stderr=True, highlight=False))


def _write(table: pa.Table, suffix: str, file: Any) -> None:
    if suffix == ".csv":
        write_csv(table, file)
    else:
        pq.write_table(table, file, compression="zstd")
