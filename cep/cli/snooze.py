"""`cep rules snooze`: a rule's alerts, on all keys or one → suppressed until a date, recorded and counted.

Tested by: tests/cli/test_publish.py
"""

from __future__ import annotations

import argparse

from cep.base.errors import UsageError
from cep.base.terminal import Terminal
from cep.base.utc import utc_ms, utc_text
from cep.cli.signed_changes import send_change
from cep.cli.topics import (
    add_person_arguments,
    add_topic_arguments,
    effective_at,
    numbered,
    published,
    rules_of_folder,
    running_rule,
    taken_so_far,
    topics_of,
    who,
)
from cep.model.rule import SnoozeRecord
from cep.rulebook.before_sending import values_in

HELP = """\
Suppress the alerts of a rule until a date. The rule continues to match. Suppressed alerts are recorded in the job's
folder (held/) and counted, so they are not lost. A date in the past ends a snooze.

examples:
  cep rules snooze card_testing --until 2026-07-01T00:00:00Z --why "campaign of the issuer" --conf cep.toml
  cep rules snooze card_testing --key c17 --until 2026-07-01T00:00:00Z --conf cep.toml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("rule", metavar="RULE", help="the rule's id")
    parser.add_argument("--until", required=True, metavar="TIME", help="event time, as 2026-07-01T00:00:00Z")
    parser.add_argument("--key", metavar="KEY", help="only alerts of this key")
    add_person_arguments(parser)
    add_topic_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Snooze. Returns 0, or 1 if the job refuses it. Raises: UsageError and other CepErrors."""
    console = Terminal(highlight=False, soft_wrap=True)
    topics = topics_of(options)
    records = published(topics)
    running_rule(options.rule, topics, records)
    try:
        until = utc_text(utc_ms(options.until))
    except ValueError as error:
        raise UsageError(f"--until: {error}") from error
    first = SnoozeRecord(
        id=options.rule,
        version=1,
        until=until,
        key=options.key,
        by=who(options),
        effective_at=effective_at(options, topics.settings),
    )
    reason = values_in(first, [*records, *rules_of_folder(topics)])
    if reason is not None:
        console.print(f"{reason}\nnothing is sent", markup=False)
        return 1
    record = numbered(first, taken_so_far(topics, records), options)
    answer = send_change(options, topics, record, records, console)
    if answer is None:
        return 0
    code, status = answer
    if status is not None:
        console.print(f"the job is at epoch {status['epoch']}", markup=False)
    return code
