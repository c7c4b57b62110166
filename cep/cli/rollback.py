"""`cep rules rollback`: a rule of a job that runs → an earlier version of it, under a new number.

Tested by: tests/cli/test_publish.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from cep.base.errors import UsageError
from cep.base.terminal import Terminal
from cep.cli.earlier import in_git, on_topic
from cep.cli.signed_changes import send_change
from cep.cli.topics import (
    add_person_arguments,
    add_topic_arguments,
    effective_at,
    published,
    running_rule,
    taken_so_far,
    topics_of,
    written_against,
)
from cep.model.rule import RollbackRecord
from cep.rulebook.changes import signed_version

HELP = """\
Put an earlier version of a rule in force again. It gets a new number, because versions never go back. The file in
rules/ then needs a higher number: `cep rules bump` gives it one with the next change.

The earlier version comes from the control topic. If compaction has removed it there, it comes from the history of the
rules folder in git.

examples:
  cep rules rollback card_testing --to 3 --conf cep.toml
  cep rules rollback card_testing --to 3 --at-once --on-update restart --conf cep.toml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
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


def run(options: argparse.Namespace) -> int:
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
