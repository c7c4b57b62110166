"""`cep settings`: a file with every setting of a job and its meaning, as a start; or a check of a settings file.

Tested by: tests/cli/test_main.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from cep.cli.paths import printed
from cep.model.settings import default_file, read_settings

HELP = """\
Print a settings file with every setting, its default and its meaning; or check an existing file.

examples:
  cep settings > cep.toml
  cep settings --check cep.toml
  cep live --conf cep.toml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument(
        "--check", type=Path, metavar="FILE", help="say whether this file can be used; secrets come from here as well"
    )


def run(options: argparse.Namespace) -> int:
    """Print the file, or check one. Raises: UsageError with every problem of the file."""
    if options.check is None:
        print(default_file(), end="")
        return 0
    read_settings(options.check, {})
    printed(f"{options.check} can be used")
    return 0
