"""`cep explain`: the code of a diagnostic to its long form.

Tested by: tests/cli/test_authoring.py
"""

from __future__ import annotations

import argparse

from cep.base.errors import UsageError
from cep.cli.help_pages import page_of_code
from cep.cli.paths import printed
from cep.lang.diagnostics import did_you_mean
from cep.lang.explain.catalogue import CATALOGUE, examples, explain

HELP = """\
Explain the code of a mistake or a finding: the reason, a correction, and an example.

examples:
  cep explain CEP401
  cep explain --all
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("code", nargs="?", metavar="CODE", help="like CEP401")
    which.add_argument("--all", action="store_true", help="list every code with its title")


def run(options: argparse.Namespace) -> int:
    """Print the explanation of a code, or the list of codes. Raises: UsageError for an unknown code."""
    if options.all:
        for code, entry in CATALOGUE.items():
            printed(f"{code}  {entry.title}")
        return 0
    text = explain(options.code)
    if text is None:
        hint = did_you_mean(options.code.upper(), CATALOGUE)
        raise UsageError(f"`{options.code}` is not a code; {hint or 'see `cep explain --all`'}")
    printed(text)
    printed(f"Example:\n\n{examples()[options.code.upper()]}")
    printed(f"All codes: `cep docs diagnostics`; read on: `cep docs {page_of_code(options.code.upper())}`")
    return 0
