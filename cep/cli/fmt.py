"""`cep fmt`, `cep explain`, `cep new pattern`: pattern files → their layout; a code → its text; a name → a new file.

Tested by: tests/cli/test_authoring.py
"""

import argparse
import io
import re
import sys
from pathlib import Path

from cep.base.errors import UnreadableError, UsageError
from cep.base.files import root_of, write_file
from cep.cli.help_pages import page_of_code
from cep.cli.paths import pattern_files, printed
from cep.cli.verbs import Parser
from cep.lang.diagnostics import did_you_mean
from cep.lang.explain.catalogue import CATALOGUE, WORDS, explain
from cep.lang.explain.render import render_text
from cep.lang.format.file import format_text
from cep.lang.functions import FUNCTIONS
from cep.lang.load import read_source
from cep.lang.parse.lexer import RESERVED

HELP = """\
Bring pattern files into the canonical layout, in place. Comments stay, formatting twice changes nothing, and a file
with mistakes of syntax is left alone. `-` reads standard input and writes standard output.

examples:
  cep fmt patterns
  cep fmt --check patterns      (for a build: names the files that would change)
"""


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    parser.declare("paths PATH", "a pattern file, a folder of them (*.cep), or -", type=str, nargs="+")
    parser.declare("--check", "change nothing; exit with 1 if something would change")


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
                    write_file(path, formatted.encode())
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
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):  # a pattern is UTF-8 in every locale
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    text = sys.stdin.read()
    formatted, mistakes = format_text(text, "<stdin>")
    if formatted is None:
        print(render_text(mistakes, {"<stdin>": text}), file=sys.stderr)
        return 1
    if check:
        return int(formatted != text)
    sys.stdout.write(formatted)
    return 0


HELP_EXPLAIN = """\
Explain the code of a mistake or a finding: the reason, a correction, and an example.

examples:
  cep explain CEP401
  cep explain greedy
  cep explain --all
"""


def add_arguments_explain(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    which = parser.add_mutually_exclusive_group(required=True)
    parser.declare("code CODE", "a code like CEP401, or a word or function of the language", nargs="?", group=which)
    parser.declare("--all", "list every code with its title", group=which)


def run_explain(options: argparse.Namespace) -> int:
    """Print the explanation of a code or word, or the list of codes. Raises: UsageError for an unknown name."""
    if options.all:
        for code, entry in CATALOGUE.items():
            printed(f"{code}  {entry.title}")
        return 0
    text = explain(options.code)
    if text is None:
        hint = did_you_mean(options.code.upper(), CATALOGUE) or did_you_mean(options.code, (*WORDS, *FUNCTIONS))
        raise UsageError(f"`{options.code}` is neither a code nor a word; {hint or 'see `cep explain --all`'}")
    printed(text)
    if options.code.upper() not in CATALOGUE:  # a word or a function
        printed("Read on: `cep docs language`")
        return 0
    printed(f"Example:\n\n{CATALOGUE[options.code.upper()].example}")
    printed(f"All codes: `cep docs diagnostics`; read on: `cep docs {page_of_code(options.code.upper())}`")
    return 0


HELP_NEW = """\
Write the skeleton of a pattern, with comments and tests, into a new file NAME.cep. Where the folder has a
file events.cep, the skeleton imports its event types.

examples:
  cep new pattern rapid_refunds
  cep new pattern rapid_refunds --folder patterns --events events.cep
"""
_EVENTS_FILE = "events.cep"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_EVENT = """\
# What happens, as the stream has it. Every event type has one id and one time, called event_time.
event transaction {
  tx_id       id
  event_time  time
  card_id     string
  amount      decimal(2)
  status      enum(approved, declined)
}
"""
_PATTERN = """\
## One sentence for the analyst who gets the alert: what happened, and why it matters.
## `small` and `large` can be set by the rule that deploys the pattern.
pattern {name}(small: decimal = 2.00, large: decimal = 500.00, window: duration = 10 min)
  by card_id
{{
  # Two small ones or more, then a large one, in the window. `->` skips other events, `,` does not.
  seq    probe{{2,}} -> hit  within window
  # The event type of each variable, and its condition; fields of earlier events are `probe.amount`.
  where  probe: transaction  status == declined and amount < small
         hit:   transaction  status == approved and amount > large
  # After a match go on behind its last event: one alert for one attack.
  skip   past last
  # What the alert says.
  emit   probes = count(probe), amount = hit.amount
}}

# A case that fires …
test "two small declines, then a large approval" of {name} {{
  c1:  0s  transaction amount=1.00 status=declined
      20s  transaction amount=1.50 status=declined
       5m  transaction amount=900  status=approved
  expect match on c1 at 5m {{ probes: 2, amount: 900.00 }}
}}

# … one that must not …
test "a large approval alone" of {name} {{
  c1:  0s  transaction amount=900 status=approved
  expect none
}}

# … and a near miss.
test "the large approval is not large enough" of {name} {{
  c1:  0s  transaction amount=1.00 status=declined x2 every 20s
       5m  transaction amount=500  status=approved
  expect none
}}
"""


def add_arguments_new(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    parser.declare("what", "the kind of skeleton", choices=("pattern",))
    parser.declare("name NAME", "its name, in lower case with underscores")
    parser.declare("--folder DIR", "where the file goes; here by default", default=".")
    parser.declare(
        "--events FILE",
        "import the event types from this file instead of declaring one; by default events.cep, if the folder has one",
        type=str,
    )


def run_new(options: argparse.Namespace) -> int:
    """Write a new pattern file. Raises: UsageError for an invalid name, for no folder, or if the file exists."""
    name = options.name
    if _NAME.fullmatch(name) is None or name in RESERVED:
        raise UsageError(
            f"`{name}` cannot name a pattern: lower-case letters, digits and underscores, not a reserved word"
        )
    folder = Path(options.folder)
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}")
    path = folder / f"{name}.cep"
    events = options.events
    if events is None and (folder / _EVENTS_FILE).is_file():
        events = _EVENTS_FILE
    head = _EVENT if events is None else f'import "{events}"\n'
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(f"{head}\n{_PATTERN.format(name=name)}")
    except FileExistsError:
        raise UsageError(f"there is a file {path} already; choose another name") from None
    printed(f"wrote {path}; next: cep check {path}, cep test {path}")
    return 0
