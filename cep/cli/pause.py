"""`cep rules pause` and `cep rules resume`: a rule of a job that runs → stopped until it is told to go on.

Tested by: tests/cli/test_publish.py
"""

from __future__ import annotations

import argparse

from cep.base.terminal import Terminal
from cep.cli.signed_changes import send_change
from cep.cli.topics import (
    add_person_arguments,
    add_topic_arguments,
    effective_at,
    numbered,
    published,
    running_rule,
    taken_so_far,
    topics_of,
)
from cep.model.rule import PauseRecord, ResumeRecord

HELP = """\
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `cep rules pause`."""
    parser.add_argument("rule", metavar="RULE", help="the rule's id")
    add_person_arguments(parser)
    add_topic_arguments(parser)


def add_arguments_resume(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `cep rules resume`, which are the same."""
    add_arguments(parser)


def run(options: argparse.Namespace) -> int:
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
