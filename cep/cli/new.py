"""`cep new pattern`: a name to a commented pattern file that passes the check and its own tests.

Tested by: tests/cli/test_authoring.py
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from cep.base.errors import UsageError
from cep.cli.paths import printed
from cep.lang.parse.lexer import RESERVED

HELP = """\
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("what", choices=("pattern",), help="the kind of skeleton")
    parser.add_argument("name", metavar="NAME", help="its name, in lower case with underscores")
    parser.add_argument("--folder", default=".", metavar="DIR", help="where the file goes; here by default")
    parser.add_argument(
        "--events",
        metavar="FILE",
        help="import the event types from this file instead of declaring one; by default events.cep, if the folder has "
        "one",
    )


def run(options: argparse.Namespace) -> int:
    """Write a new pattern or rule file. Raises: UsageError for an invalid name, or if the file exists."""
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
