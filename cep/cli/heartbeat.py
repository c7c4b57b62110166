"""`cep job heartbeat`: a time → a record of the control topic: no earlier event is to come.

Tested by: tests/cli/test_publish.py
"""

from __future__ import annotations

import argparse
import time

from cep.base.errors import UsageError
from cep.base.terminal import Terminal
from cep.base.utc import utc_ms, utc_text
from cep.cli.configured import add_setting_arguments
from cep.cli.keys import private_key
from cep.cli.topics import send, topics_of
from cep.model.rule import HeartbeatRecord
from cep.rulebook.statement import sign_heartbeat
from cep.rulebook.trust import reason_against_heartbeat

HELP = """\
Say that no event before a time will come, so that a job with silent sources continues: absences end, and events that
wait for the watermark are matched. A heartbeat applies to the records after it. Records before it in the source are
never late.

The writer of the events sends it, after the last event.

examples:
  cep job heartbeat --conf cep.toml
  cep job heartbeat --event-time 2026-06-01T00:00:00Z --conf cep.toml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("--event-time", metavar="TIME", help="as 2026-06-01T00:00:00Z (the clock of this machine)")
    add_setting_arguments(parser, "control", "publish", "kafka")


def run(options: argparse.Namespace) -> int:
    """Send one heartbeat, signed where the job asks for signatures. Raises: UsageError, SinkError."""
    topics = topics_of(options)
    try:
        at_ms = int(time.time() * 1_000) if options.event_time is None else utc_ms(options.event_time)
    except ValueError as error:
        raise UsageError(f"--event-time: {error}") from error
    record = HeartbeatRecord(event_time=utc_text(at_ms))
    trust = topics.trust
    if trust is not None:
        record = sign_heartbeat(record, private_key(topics.settings.publish.sign_with), trust.rule_set)
        refusal = reason_against_heartbeat(record, trust)
        if refusal is not None:
            raise UsageError(refusal.full_reason)
    topics.control.create()
    send(topics, [record], Terminal(highlight=False, soft_wrap=True))
    return 0
