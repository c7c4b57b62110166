"""`cep rules …`: a folder of rules → its list, one rule, its history, its lock, the next version, the schemas.

Tested by: tests/cli/test_rules.py
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cep.base.errors import UsageError
from cep.base.terminal import Terminal
from cep.cli.configured import add_trust_arguments
from cep.cli.help_pages import RULE_FILES, with_page
from cep.cli.paths import printed, replace_text
from cep.cli.rule_card import card_of
from cep.model.rule import UpsertRecord, control_json_schema, rule_file_json_schema
from cep.rulebook.deploy import Deployment, deploy, entries_name, list_name
from cep.rulebook.files import at_commit, declared_lists, history, read_rules
from cep.rulebook.lock import (
    changed_lists,
    locked,
    locked_lists,
    problems_of_lock,
    read_lock,
    with_version,
    write_lock,
)
from cep.rulebook.meaning import content_hash
from cep.rulebook.signers import given_trust

HELP_LIST = """\
List the rules of a folder with version, status, owner and the hash of their meaning. Print every mistake of the files,
and every version whose meaning is not the locked one.

examples:
  cep rules list
  cep rules list --rules day/rules
"""
HELP_SHOW = """\
Show one rule: its fields, its parameters, the hash of its meaning and the text of its pattern.

examples:
  cep rules show card_testing
"""
HELP_HISTORY = """\
List the versions of a rule in git, the newest first, with commit, date, author and reason.

examples:
  cep rules history card_testing
"""
HELP_LOCK = """\
Write the versions that rules.lock does not have yet. rules.lock ties each version to the hash of its meaning, so that
the meaning of a version never changes. A locked version with another meaning is refused.

examples:
  cep rules lock                     (for a new rule, or after a change of its version)
"""
HELP_BUMP = """\
Raise the version of a rule in its file and lock it: after a change of the rule's meaning.

examples:
  cep rules bump card_testing
  cep rules bump card_testing --above 7     (after a rollback to version 7)
"""
HELP_CARD = """\
Print one rule as a page in Markdown: purpose, parameters, versions, tests and approvals.

examples:
  cep rules card card_testing > card_testing.md
"""
HELP_SCHEMA = """\
Print the JSON schema of control records, or of rule files.

examples:
  cep rules schema > control.schema.json
  cep rules schema --files > rule.schema.json
"""
_WIDTH = 200
_CHANGED_LIST = "list {name}: its entries have changed since they were locked; sign the rules that read it again"
_SHORT = 12  # characters of a hash that a person can compare


def add_arguments_list(parser: argparse.ArgumentParser) -> None:
    """Declare the folder."""
    parser.add_argument("--rules", type=Path, default=Path("rules"), metavar="FOLDER", help="rule files (rules)")


def add_arguments_show(parser: argparse.ArgumentParser) -> None:
    """Declare the rule and the folder."""
    parser.add_argument("rule", metavar="RULE", help="the rule's id")
    add_arguments_list(parser)


add_arguments_lock, add_arguments_history = add_arguments_list, add_arguments_show


def add_arguments_bump(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `cep rules bump`."""
    add_arguments_show(parser)
    parser.add_argument("--above", type=int, default=0, metavar="VERSION", help="at least one more than this")


def add_arguments_card(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `cep rules card`."""
    add_arguments_show(parser)
    parser.add_argument("--figures", type=Path, metavar="FILE", help="figures of the last backtest (a JSON object)")
    add_trust_arguments(parser)


def add_arguments_schema(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `cep rules schema`."""
    parser.add_argument("--files", action="store_true", help="of rule files, for editors")


def run_schema(options: argparse.Namespace) -> int:
    """Print a schema. Returns 0."""
    printed(json.dumps(rule_file_json_schema() if options.files else control_json_schema(), indent=2))
    return 0


def _console() -> Console:
    # Into a file or another program nothing is cut off.
    return Terminal(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _WIDTH)


def _read(options: argparse.Namespace) -> tuple[list[UpsertRecord], list[str]]:
    """Read the rules of the folder, and the mistakes of its files. Raises: UsageError."""
    if not options.rules.is_dir():
        raise UsageError(f"--rules {options.rules} is not a folder")
    return read_rules(options.rules)


def _record(options: argparse.Namespace) -> UpsertRecord:
    """Read the rule that is asked for. Raises: UsageError with the mistakes of its file."""
    records, problems = _read(options)
    for record in records:
        if record.id == options.rule:
            return record
    mistakes = [problem for problem in problems if Path(problem.split(": ")[0]).stem == options.rule]
    raise UsageError("\n".join(mistakes) if mistakes else f"{options.rules} has no rule {options.rule}")


def run_card(options: argparse.Namespace) -> int:
    """Print the card of a rule. Returns 0. Raises: UsageError."""
    record = _record(options)
    printed(card_of(options.rules, record, given_trust(options.signers, options.root_key), options.figures).rstrip())
    return 0


def run_list(options: argparse.Namespace) -> int:
    """List the rules. Returns 0, or 1 if something is wrong with them. Raises: UsageError."""
    (records, problems), console, directory = _read(options), _console(), options.rules
    contradictions = {problem.rule_id: str(problem) for problem in problems_of_lock(records, read_lock(directory))}
    deployment: Deployment = deploy(records)
    set_aside = {rule.rule_id: rule.full_reason for rule in deployment.set_aside}
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("rule", "version", "status", "severity", "owner", "review", "meaning"):
        table.add_column(title, no_wrap=True)
    for r in records:
        table.add_row(
            r.id, str(r.version), r.status, r.severity, r.owner, r.review_date or "", content_hash(r)[:_SHORT]
        )
    console.print(table)
    wrong = [f"{rule_id}: {reason}" for rule_id, reason in set_aside.items()]
    lists = [_CHANGED_LIST.format(name=name) for name in changed_lists(_list_entries(directory), read_lock(directory))]
    for problem in (*problems, *wrong, *contradictions.values(), *lists):
        console.print(problem, markup=False, style="red")
    return 1 if problems or set_aside or contradictions or lists else 0


def _list_entries(directory: Path) -> dict[str, str]:
    """Return the names of the entries of the declared lists."""
    return {list_name(declared): entries_name(declared) for declared in declared_lists(directory)[0]}


def run_show(options: argparse.Namespace) -> int:
    """Show a rule. Returns 0, or 1 if it cannot be in force. Raises: UsageError."""
    record, console = _record(options), _console()
    fields = record.model_dump(exclude={"source", "params", "kind"}, exclude_none=True)
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in {**fields, "meaning": content_hash(record)}.items():
        table.add_row(Text(name, style="bold"), Text(str(value)))
    for name, value in record.params.items():
        table.add_row(Text(f"params.{name}", style="bold"), Text(str(value)))
    console.print(table)
    printed("\n" + record.source.rstrip())
    deployment = deploy([record])
    for rule in deployment.set_aside:
        console.print(f"\nis not in force: {rule.full_reason}", markup=False, style="red")
    return 1 if deployment.set_aside else 0


def run_history(options: argparse.Namespace) -> int:
    """List the versions of a rule in git. Returns 0. Raises: UsageError."""
    _read(options)
    lines = history(options.rules, options.rule)
    if not lines:
        raise UsageError(f"git knows nothing of {options.rules / (options.rule + '.toml')}; commit it first")
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("version", "status", "meaning", "commit", "when, who, why"):
        table.add_column(title)
    for line in lines:
        commit, subject = line.split(" ", 1)
        record = at_commit(options.rules, commit, options.rule)
        cells = ("", "unsound or gone", "") if record is None else (
            str(record.version), record.status, content_hash(record)[:_SHORT],
        )  # fmt: skip
        table.add_row(*cells, commit[:_SHORT], Text(subject))
    _console().print(table)
    return 0


def run_lock(options: argparse.Namespace) -> int:
    """Write the lock file. Return 0, or 1 if the rules have problems. Raises: UsageError."""
    (records, problems), console, directory = _read(options), _console(), options.rules
    before = read_lock(directory)
    after, contradictions = locked(records, before)
    entries = _list_entries(directory)
    for name in changed_lists(entries, before):
        console.print(_CHANGED_LIST.format(name=name), markup=False, style="yellow")
    after = locked_lists(entries, after)
    for problem in (*problems, *contradictions):
        console.print(str(problem), markup=False, style="red")
    if problems:
        console.print(with_page("these files are not locked", RULE_FILES), markup=False)
    added = [
        f"{r} {v}" for r, versions in sorted(after.items()) for v in sorted(versions) if v not in before.get(r, {})
    ]
    if after != before:
        write_lock(directory, after)
    console.print(f"locked: {', '.join(added)}" if added else "nothing new to lock", markup=False)
    return 1 if problems or contradictions else 0


def run_bump(options: argparse.Namespace) -> int:
    """Raise the version of a rule. Returns 0. Raises: UsageError."""
    record = _record(options)
    lock = read_lock(options.rules)
    version = max(record.version, options.above, *lock.get(record.id, {0: ""})) + 1
    path = options.rules / f"{record.id}.toml"
    try:
        replace_text(path, with_version(path.read_text(encoding="utf-8"), version))
    except ValueError as error:
        raise UsageError(f"{path} {error}") from error
    raised = record.model_copy(update={"version": version})
    write_lock(options.rules, locked([raised], lock)[0])
    _console().print(f"{record.id}: version {record.version} → {version}, locked", markup=False)
    return 0
