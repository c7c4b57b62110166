"""`cep pause` and `cep resume`: a rule of a job that runs → stopped until it is told to go on.

Tested by: tests/cli/test_publish.py
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from cep.cli.signed_changes import stand_for
from cep.cli.topics import (
    Topics,
    add_topic_arguments,
    await_status,
    effective_at,
    published,
    running_rule,
    send,
    topics_of,
)
from cep.model.rule import ControlRecord, PauseRecord, ResumeRecord

HELP = """\
Stop a rule until `cep resume`. It matches nothing, and its open runs are dropped. Versions that are published meanwhile
count: after `cep resume` the one in force matches. To only suppress a rule's alerts, use `cep snooze`.

examples:
  cep pause card_testing --reason "floods the queue" --at-once --conf cep.toml
"""
HELP_RESUME = """\
Let a paused rule match again.

examples:
  cep resume card_testing --at-once --conf cep.toml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `cep pause`."""
    parser.add_argument("--reason", metavar="TEXT", help="why the rule is paused, for the record")
    add_arguments_resume(parser)


def add_arguments_resume(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `cep resume`."""
    parser.add_argument("rule", metavar="RULE", help="the rule's id")
    add_topic_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Pause. Raises: UsageError and other CepErrors."""
    topics = topics_of(options)
    records = published(topics)
    running_rule(options.rule, topics, records)
    starts, version = effective_at(options, topics.settings), _next_version(options.rule, records)
    record = PauseRecord(id=options.rule, version=version, effective_at=starts, reason=options.reason)
    return _turn(options, topics, record, records, is_paused=True)


def run_resume(options: argparse.Namespace) -> int:
    """Resume. Raises: UsageError and other CepErrors."""
    topics = topics_of(options)
    records = published(topics)
    running_rule(options.rule, topics, records)
    starts, version = effective_at(options, topics.settings), _next_version(options.rule, records)
    record = ResumeRecord(id=options.rule, version=version, effective_at=starts)
    return _turn(options, topics, record, records, is_paused=False)


def _next_version(rule_id: str, records: list[ControlRecord]) -> int:
    return 1 + max(
        (r.version for r in records if isinstance(r, PauseRecord | ResumeRecord) and r.id == rule_id), default=0
    )


def _turn(
    options: argparse.Namespace,
    topics: Topics,
    record: PauseRecord | ResumeRecord,
    there: list[ControlRecord],
    *,
    is_paused: bool,
) -> int:
    console = Console(highlight=False, soft_wrap=True)
    signed = stand_for(options, topics, [record], there, console)
    if signed is None:
        return 0
    send(topics, signed, console)

    def is_done(status: dict[str, Any]) -> bool:
        return (record.id in status["paused"]) == is_paused

    status = await_status(options, topics, is_done, console)
    if status is not None:
        what = "paused" if is_paused else "not paused"
        console.print(f"{record.id} is {what}; the job is at epoch {status['epoch']}", markup=False)
    return 0
