"""`cep describe`: a file or folder of records → the event declaration that describes it, as a draft to edit.

Tested by: tests/cli/test_main.py
"""

import argparse
import re
import shlex

from cep.api.describe import describe
from cep.cli.paths import printed
from cep.cli.verbs import Parser
from cep.columnar.mapping import form_of_flags

HELP = """\
Draft the event declaration that fits records: types, enums, nullable fields, and the flags for names that a field
cannot have. Read it before you use it: a value that the file does not have may still come.

examples:
  cep describe payments.parquet --name payment > patterns/events.cep
  cep describe day.csv
"""
_CSV_FLAGS = ("delimiter", "quote", "encoding", "decimal", "thousands")
_FLAGS = {"tz": "--time-zone"}  # a flag with another name than its form
_NO_NAME = re.compile(r"[^a-z0-9_]+")


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    parser.declare("events PATH", "a file or folder of Parquet, CSV or JSON lines")
    for option in _CSV_FLAGS:
        parser.add_argument(f"--{option}", metavar="SIGN", help="of CSV, as in cep replay (default: detected)")
    parser.declare("--name NAME", "of the event type (default: from the name of the path)")


def run(options: argparse.Namespace) -> int:
    """Print a draft declaration for the files, and the flags to read them with. Return 0."""
    stem = options.events.name.partition(".")[0].lower()  # the event type is named after the file
    name = options.name or _NO_NAME.sub("_", stem).strip("_0123456789") or "record"
    csv_values = [getattr(options, option) or "" for option in _CSV_FLAGS]  # "": to be detected
    drafted = describe(str(options.events), name, form_of_flags(*csv_values))
    flags = [("--columns", f"{field}={column}") for field, column in drafted.columns.items()]  # then: how values look
    flags += [(_FLAGS.get(kind, f"--{kind.replace('_', '-')}"), value) for kind, value in drafted.forms.items()]
    if flags:
        printed(f"# read it with: {' '.join(f'{flag} {shlex.quote(value)}' for flag, value in flags)}")
    if "time_base" in drafted.forms:
        printed("# the moment of --time-base is a guess, and so may the unit be; change them if you know better")
    if drafted.is_day_unclear:
        printed("# day and month may be the other way round: no time in these records says which")
    printed(drafted.text)
    return 0
