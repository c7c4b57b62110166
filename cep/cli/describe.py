"""`cep describe`: a file or folder of records → the event declaration that describes it, as a draft to edit.

Tested by: tests/cli/test_describe.py
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from cep.api.describe import describe

HELP = """\
Draft the event declaration that fits records: types, enums, what may be null, and the flags for names that no field can
have. Read it before you use it: a value that the file does not have may still come.

examples:
  cep describe payments.parquet --name payment > patterns/events.cep
  cep describe day.csv
"""
_NO_NAME = re.compile(r"[^a-z0-9_]+")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("events", type=Path, metavar="PATH", help="a file or folder of Parquet, CSV or JSON lines")
    parser.add_argument("--name", metavar="NAME", help="of the event type (default: from the name of the path)")


def run(options: argparse.Namespace) -> int:
    """Print the draft; returns 0. Raises: UsageError, SourceError."""
    stem = options.events.name.partition(".")[0].lower()
    name = options.name or _NO_NAME.sub("_", stem).strip("_0123456789") or "record"
    drafted = describe(str(options.events), name)
    if drafted.columns:
        flags = " ".join(f"--columns {field}={_path(column)}" for field, column in drafted.columns.items())
        print(f"# read it with: {flags}")
    print(drafted.text)
    return 0


def _path(column: str) -> str:
    return f"'\"{column}\"'" if "." in column or " " in column else column
