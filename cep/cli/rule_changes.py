"""`cep rules pause`, `resume`, `snooze` and `rollback`: a change of one rule of a running job → a control record.

Tested by: tests/cli/test_publish.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

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
    written_against,
)
from cep.model.rule import PauseRecord, ResumeRecord, RollbackRecord, SnoozeRecord
from cep.rulebook.changes import signed_version
from cep.rulebook.files import in_git
from cep.rulebook.publish import on_topic, values_in

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


def add_arguments_pause(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `cep rules pause`."""
    parser.add_argument("rule", metavar="RULE", help="the rule's id")
    add_person_arguments(parser)
    add_topic_arguments(parser)


add_arguments_resume = add_arguments_pause


def add_arguments_snooze(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `cep rules snooze`."""
    parser.add_argument("rule", metavar="RULE", help="the rule's id")
    parser.add_argument("--until", required=True, metavar="TIME", help="event time, as 2026-07-01T00:00:00Z")
    parser.add_argument("--key", metavar="KEY", help="only alerts of this key")
    add_person_arguments(parser)
    add_topic_arguments(parser)


def add_arguments_rollback(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `cep rules rollback`."""
    parser.add_argument("rule", metavar="RULE", help="the rule's id")
    parser.add_argument("--to", type=int, required=True, metavar="VERSION", help="the version to go back to")
    parser.add_argument("--rules", type=Path, default=Path("rules"), metavar="FOLDER", help="rule files in git (rules)")
    parser.add_argument(
        "--on-update",
        choices=("drain", "restart", "carry"),
        default="drain",
        help="how the runs of the replaced version end (drain)",
    )
    add_person_arguments(parser)
    add_topic_arguments(parser)


def run_pause(options: argparse.Namespace) -> int:
    """Pause. Raises: UsageError and other CepErrors."""
    return _turn(options, PauseRecord)


def run_resume(options: argparse.Namespace) -> int:
    """Resume. Raises: UsageError and other CepErrors."""
    return _turn(options, ResumeRecord)


def _turn(options: argparse.Namespace, kind: type[PauseRecord | ResumeRecord]) -> int:
    """Send a pause or a resumption. Return 0, or 1 if the job refuses it."""
    console = Terminal(highlight=False, soft_wrap=True)
    topics = topics_of(options)
    there = published(topics)
    running_rule(options.rule, topics, there)
    first = kind(id=options.rule, version=1, effective_at=effective_at(options, topics.settings))
    record = numbered(first, taken_so_far(topics, there), options)
    answer = send_change(options, topics, record, there, console)
    if answer is None:
        return 0
    code, status = answer
    if status is not None:
        status_text = "paused" if options.rule in status["paused"] else "not paused"
        console.print(f"{options.rule} is {status_text}; the job is at epoch {status['epoch']}", markup=False)
    return code


def run_snooze(options: argparse.Namespace) -> int:
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


def run_rollback(options: argparse.Namespace) -> int:
    """Roll back. Returns 0, or 1 if the job refuses it. Raises: UsageError and other CepErrors."""
    console = Terminal(highlight=False, soft_wrap=True)
    topics = topics_of(options)
    records = published(topics)
    version = running_rule(options.rule, topics, records).version
    earlier = on_topic(records, options.rule, options.to) or in_git(options.rules, options.rule, options.to)
    if earlier is None:
        raise UsageError(
            f"version {options.to} of {options.rule} is neither on the control topic nor in the history of "
            f"{options.rules} in git; write it again under a new version and run `cep rules publish`"
        )
    record = RollbackRecord(
        id=options.rule,
        version=version + 1,
        to_version=options.to,
        rule=signed_version(options.rules, earlier) or earlier,
        effective_at=effective_at(options, topics.settings),
        on_update=options.on_update,
    )
    record = written_against(record, taken_so_far(topics, records), options)
    answer = send_change(options, topics, record, records, console)
    if answer is None:
        return 0
    code, _ = answer
    if code == 0:
        again = f"cep rules bump {options.rule} --above {record.version}"
        console.print(
            f"{options.rule} is version {record.version}, which is {options.to} again; mend the file and run `{again}`"
        )
    return code
