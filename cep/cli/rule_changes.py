"""`cep rules pause`, `resume`, `snooze` and `rollback`, `cep job heartbeat`: one control record for a running job.

Tested by: tests/cli/test_publish.py
"""

import argparse
import time
from pathlib import Path

from cep.base.errors import UsageError
from cep.base.terminal import Terminal
from cep.base.text import utc_text
from cep.cli.keys import private_key
from cep.cli.settings import add_setting_arguments
from cep.cli.topics import (
    Topics,
    add_person_arguments,
    add_topic_arguments,
    effective_at,
    numbered,
    published,
    read_ledger,
    rules_of_folder,
    running_rule,
    send,
    send_change,
    short_text,
    topics_of,
    who,
    with_predecessor,
)
from cep.cli.verbs import Parser
from cep.model.rule import ControlRecord, HeartbeatRecord, PauseRecord, ResumeRecord, RollbackRecord, SnoozeRecord
from cep.model.setting_types import moment_ms
from cep.rulebook.files import in_git, signed_version
from cep.rulebook.publish import Running, on_topic, refusal_of_values
from cep.rulebook.trust import reason_against_heartbeat, sign_heartbeat

HELP_PAUSE = """\
Stop a rule until `cep rules resume`. A paused rule does not match, and its open runs are dropped. Versions that are
published during the pause count: after `cep rules resume` the version in force matches. To only suppress a rule's
alerts, use `cep rules snooze`.

examples:
  cep rules pause card_testing --why "floods the queue" --at-once --conf cep.toml
"""
HELP_RESUME = """\
Let a paused rule match again.

examples:
  cep rules resume card_testing --at-once --conf cep.toml
"""
HELP_SNOOZE = """\
Suppress the alerts of a rule until a date. The rule continues to match. Suppressed alerts are recorded in the job's
folder (held/) and counted, so they are not lost. A date in the past ends a snooze.

examples:
  cep rules snooze card_testing --until 2026-07-01T00:00:00Z --why "campaign of the issuer" --conf cep.toml
  cep rules snooze card_testing --key c17 --until 2026-07-01T00:00:00Z --conf cep.toml
"""
HELP_ROLLBACK = """\
Put an earlier version of a rule in force again. It gets a new number, because versions never go back. The file in
rules/ then needs a higher number: `cep rules bump` gives it one with the next change.

The earlier version comes from the control topic. If compaction has removed it there, it comes from the history of the
rules folder in git.

examples:
  cep rules rollback card_testing --to 3 --conf cep.toml
  cep rules rollback card_testing --to 3 --at-once --on-update restart --conf cep.toml
"""


HELP_HEARTBEAT = """\
Say that no event before a time will come, so that a job with silent sources continues: absences end, and events that
wait for the watermark are matched. A heartbeat applies to the records after it. Records before it in the source are
never late.

The writer of the events sends it, after the last event.

examples:
  cep job heartbeat --conf cep.toml
  cep job heartbeat --event-time 2026-06-01T00:00:00Z --conf cep.toml
"""


def add_arguments_pause(parser: Parser) -> None:
    """Declare the arguments of `cep rules pause`."""
    parser.declare("rule RULE", "the rule's id")
    add_person_arguments(parser)
    add_topic_arguments(parser)


add_arguments_resume = add_arguments_pause


def add_arguments_snooze(parser: Parser) -> None:
    """Declare the arguments of `cep rules snooze`."""
    parser.declare("rule RULE", "the rule's id")
    parser.declare("--until TIME", "event time, as 2026-07-01T00:00:00Z", required=True)
    parser.declare("--key KEY", "only alerts of this key")
    add_person_arguments(parser)
    add_topic_arguments(parser)


def add_arguments_rollback(parser: Parser) -> None:
    """Declare the arguments of `cep rules rollback`."""
    parser.declare("rule RULE", "the rule's id")
    parser.declare("--to VERSION", "the version to go back to", required=True)
    parser.declare("--rules FOLDER", "rule files in git (rules)", default=Path("rules"))
    parser.declare(
        "--on-update",
        "how the runs of the replaced version end (drain)",
        choices=("drain", "restart", "carry"),
        default="drain",
    )
    add_person_arguments(parser)
    add_topic_arguments(parser)


def add_arguments_heartbeat(parser: Parser) -> None:
    """Declare the arguments of `cep job heartbeat`."""
    parser.declare("--event-time TIME", "as 2026-06-01T00:00:00Z (the clock of this machine)")
    add_setting_arguments(parser, "control", "publish", "kafka")


def _topics_and_rule(options: argparse.Namespace) -> tuple[Topics, list[ControlRecord], Running]:
    """Return the topics of a job, the records on its control topic, and the running version of the verb's rule."""
    topics = topics_of(options, Terminal(highlight=False, soft_wrap=True))
    records = published(topics)
    return topics, records, running_rule(options.rule, topics, records)


def _turn(options: argparse.Namespace, kind: type[PauseRecord | ResumeRecord]) -> int:
    """Send a pause or a resumption of a rule. Return 0, or 1 if the job refuses it."""
    topics, records, _ = _topics_and_rule(options)
    unnumbered = kind(id=options.rule, version=1, effective_at=effective_at(topics))
    answer = send_change(topics, numbered(topics, unnumbered, read_ledger(topics, records)), records)
    is_paused = answer.status is not None and options.rule in answer.status["paused"]
    return answer.print_epoch(topics.console, f"{options.rule} is {'paused' if is_paused else 'not paused'}; ")


def run_pause(options: argparse.Namespace) -> int:
    """Pause. Raises: UsageError and other CepErrors."""
    return _turn(options, PauseRecord)


def run_resume(options: argparse.Namespace) -> int:
    """Resume. Raises: UsageError and other CepErrors."""
    return _turn(options, ResumeRecord)


def run_snooze(options: argparse.Namespace) -> int:
    """Suppress a rule's alerts until a date. Return 0, or 1 if the job refuses it."""
    topics, records, _ = _topics_and_rule(options)
    until = utc_text(moment_ms("--until", options.until))
    key = None if options.key is None else short_text("--key", options.key)
    unnumbered = SnoozeRecord(
        id=options.rule, version=1, until=until, key=key, by=who(options), effective_at=effective_at(topics)
    )
    reason = refusal_of_values(unnumbered, [*records, *rules_of_folder(topics)])
    if reason is not None:
        topics.console.print(f"{reason}\nnothing is sent", markup=False)
        return 1
    record = numbered(topics, unnumbered, read_ledger(topics, records))  # with the version after the last change
    return send_change(topics, record, records).print_epoch(topics.console)


def run_rollback(options: argparse.Namespace) -> int:
    """Put an earlier version of a rule in force again, under a new number. Return 0, or 1 if the job refuses it."""
    topics, records, running = _topics_and_rule(options)
    if options.to > running.version:
        raise UsageError(f"version {options.to} of {options.rule} is above {running.version}, which runs: publish it")
    earlier = on_topic(records, options.rule, options.to) or in_git(options.rules, options.rule, options.to)
    if earlier is None:
        raise UsageError(
            f"version {options.to} of {options.rule} is neither on the control topic nor in the history of "
            f"{options.rules} in git; write it again under a new version and run `cep rules publish`"
        )
    record = RollbackRecord(
        id=options.rule,
        version=running.version + 1,
        to_version=options.to,
        rule=signed_version(options.rules, earlier) or earlier,
        effective_at=effective_at(topics),
        on_update=options.on_update,
    )
    answer = send_change(topics, with_predecessor(topics, record, read_ledger(topics, records)), records)
    if answer.is_sent and answer.code == 0:
        again = f"cep rules bump {options.rule} --above {record.version}"  # the file's version is too low now
        topics.console.print(
            f"{options.rule} is version {record.version}, which is {options.to} again; mend the file and run `{again}`"
        )
    return answer.code


def run_heartbeat(options: argparse.Namespace) -> int:
    """Send one heartbeat, signed if the job needs signatures. Raises: UsageError, SinkError."""
    topics = topics_of(options, Terminal(highlight=False, soft_wrap=True))
    now_ms = int(time.time() * 1_000)
    at_ms = now_ms if options.event_time is None else moment_ms("--event-time", options.event_time)
    record = HeartbeatRecord(event_time=utc_text(at_ms))
    trust = topics.trust
    if trust is not None:
        record = sign_heartbeat(record, private_key(topics.settings.publish.sign_with), trust.rule_set)
        refusal = reason_against_heartbeat(record, trust)
        if refusal is not None:
            raise UsageError(refusal.full_reason)
    topics.control.create()
    send(topics, [record])
    return 0
