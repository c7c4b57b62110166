"""`cep snooze`: a rule's alerts, on all keys or one → suppressed until a date, recorded and counted.

Tested by: tests/cli/test_publish.py
"""

from __future__ import annotations

import argparse
import getpass
from typing import Any

from rich.console import Console

from cep.base.errors import UsageError
from cep.cli.signed_changes import stand_for
from cep.cli.topics import add_topic_arguments, await_status, effective_at, published, running_rule, send, topics_of
from cep.model.rule import SnoozeRecord, utc_ms, utc_text

HELP = """\
Suppress the alerts of a rule until a date. The rule goes on matching. Suppressed alerts are recorded in the job's
folder (held/) and counted, so nothing is lost. A date in the past ends a snooze.

examples:
  cep snooze card_testing --until 2026-07-01T00:00:00Z --reason "campaign of the issuer" --conf cep.toml
  cep snooze card_testing --key c17 --until 2026-07-01T00:00:00Z --conf cep.toml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("rule", metavar="RULE", help="the rule's id")
    parser.add_argument("--until", required=True, metavar="TIME", help="event time, as 2026-07-01T00:00:00Z")
    parser.add_argument("--key", metavar="KEY", help="only alerts of this key")
    parser.add_argument("--by", metavar="NAME", help="who wants it (default: your name on this machine)")
    parser.add_argument("--reason", metavar="TEXT", help="for those who ask later")
    add_topic_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Snooze. Raises: UsageError and other CepErrors."""
    console = Console(highlight=False, soft_wrap=True)
    topics = topics_of(options)
    records = published(topics)
    running_rule(options.rule, topics, records)
    try:
        until = utc_text(utc_ms(options.until))
    except ValueError as error:
        raise UsageError(f"--until: {error}") from error
    at = options.rule, options.key
    earlier = [r.version for r in records if isinstance(r, SnoozeRecord) and (r.id, r.key) == at]
    record = SnoozeRecord(
        id=options.rule,
        version=max(earlier, default=0) + 1,
        until=until,
        key=options.key,
        by=options.by or getpass.getuser(),
        reason=options.reason,
        effective_at=effective_at(options, topics.settings),
    )
    signed = stand_for(options, topics, [record], records, console)
    if signed is None:
        return 0
    send(topics, signed, console)

    def is_done(status: dict[str, Any]) -> bool:
        return [options.rule, options.key, record.version] in status["snooze_versions"]

    status = await_status(options, topics, is_done, console)
    if status is not None:
        console.print(f"the job is at epoch {status['epoch']}", markup=False)
    return 0
