"""`cep fmt`: pattern files to the canonical layout, in place.

Tested by: tests/cli/test_authoring.py
"""

from __future__ import annotations

import argparse
import sys

from cep.base.errors import UnreadableError, UsageError
from cep.base.files import root_of
from cep.cli.paths import pattern_files, printed, replace_text
from cep.lang.explain.render import render_text
from cep.lang.format.file import format_text
from cep.lang.load import read_source

HELP = """\
Bring pattern files into the canonical layout, in place. Comments stay, formatting twice changes nothing, and a file
with mistakes of syntax is left alone. `-` reads standard input and writes standard output.

examples:
  cep fmt patterns
  cep fmt --check patterns      (for a build: names the files that would change)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a pattern file, a folder of them (*.cep), or -")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if something would change")


def run(options: argparse.Namespace) -> int:
    """Format; returns 1 if a file cannot be formatted or, with --check, would change."""
    if options.paths == ["-"]:
        return _stream(options.check)
    failed = 0
    changed = 0
    files = pattern_files(options.paths)
    for path in files:
        try:
            text = read_source(path, root_of([path]))
        except UnreadableError as error:
            printed(f"{path}: cannot be read: {error}")
            failed += 1
            continue
        formatted, mistakes = format_text(text, str(path))
        if formatted is None:
            printed(render_text(mistakes, {str(path): text}))
            failed += 1
        elif formatted != text:
            if not options.check:
                try:
                    replace_text(path, formatted)
                except UsageError as error:
                    printed(str(error))
                    failed += 1
                    continue
            changed += 1
            printed(f"{'would format' if options.check else 'formatted'} {path}")
    verb = "would change" if options.check else "changed"
    printed(f"{len(files)} file{'' if len(files) == 1 else 's'}, {changed} {verb}, {failed} left alone")
    return int(bool(failed or (options.check and changed)))


def _stream(check: bool) -> int:
    text = sys.stdin.read()
    formatted, mistakes = format_text(text, "<stdin>")
    if formatted is None:
        print(render_text(mistakes, {"<stdin>": text}), file=sys.stderr)
        return 1
    if check:
        return int(formatted != text)
    sys.stdout.write(formatted)
    return 0
