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
from cep.cli.help_pages import RULE_FILES, with_page
from cep.cli.paths import printed, replace_text
from cep.cli.rule_card import card_of
from cep.cli.trust_flags import add_trust_arguments
from cep.model.rule import UpsertRecord, control_json_schema, rule_file_json_schema
from cep.rulebook.deploy import Deployment, deploy
from cep.rulebook.files import declared_lists, read_rules
from cep.rulebook.history import at_commit, history
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
from cep.rulebook.signed_lists import entries_name, list_name
from cep.rulebook.signers import given_trust

HELP = """\
List, show, lock and number the rules of a folder. rules.lock ties each version to the hash of its meaning, so that the
meaning of a version never changes.

examples:
  cep rules list
  cep rules show card_testing
  cep rules history card_testing     (from git)
  cep rules bump card_testing        (after a change of the rule's meaning)
  cep rules lock                     (after that, or for a new rule)
  cep rules card card_testing > card_testing.md
  cep rules schema > control.schema.json
"""
_WIDTH = 200
_CHANGED_LIST = "list {name}: its entries have changed since they were locked; sign the rules that read it again"
_SHORT = 12  # characters of a hash that a person can compare


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs below `cep rules` and their arguments."""
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    _folder(verbs.add_parser("list", help="all rules with version, status and mistakes"))
    _folder(_rule(verbs.add_parser("show", help="one rule: its meaning, key, parameters and text")))
    _folder(_rule(verbs.add_parser("history", help="the versions of a rule in git, the newest first")))
    _folder(verbs.add_parser("lock", help="write the versions that rules.lock has not; refuse changed meanings"))
    bump = _folder(_rule(verbs.add_parser("bump", help="raise the version of a rule in its file and lock it")))
    bump.add_argument("--above", type=int, default=0, metavar="VERSION", help="at least one more than this")
    card = _folder(_rule(verbs.add_parser("card", help="one rule as a page: purpose, versions, tests, approvals")))
    card.add_argument("--figures", type=Path, metavar="FILE", help="figures of the last backtest (a JSON object)")
    add_trust_arguments(card)
    schema = verbs.add_parser("schema", help="JSON schema of control records, or of rule files")
    schema.add_argument("--files", action="store_true", help="of rule files, for editors")


def run(options: argparse.Namespace) -> int:
    """Run `cep rules`. Returns 0, or 1 if something is wrong with the rules. Raises: UsageError."""
    if options.what == "schema":
        printed(json.dumps(rule_file_json_schema() if options.files else control_json_schema(), indent=2))
        return 0
    if not options.rules.is_dir():
        raise UsageError(f"--rules {options.rules} is not a folder")
    records, problems = read_rules(options.rules)
    # Into a file or another program nothing is cut off.
    console = Terminal(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _WIDTH)
    match options.what:
        case "list":
            return _list(options.rules, records, problems, console)
        case "lock":
            return _lock(options.rules, records, problems, console)
        case "bump":
            return _bump(options, records, problems, console)
        case "card":
            trust = given_trust(options.signers, options.root_key)
            printed(card_of(options.rules, _record(options, records, problems), trust, options.figures).rstrip())
            return 0
        case "show":
            return _show(_record(options, records, problems), console)
        case _:
            return _history(options, console)


def _folder(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--rules", type=Path, default=Path("rules"), metavar="FOLDER", help="rule files (rules)")
    return parser


def _rule(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("rule", metavar="RULE", help="the rule's id")
    return parser


def _record(options: argparse.Namespace, records: list[UpsertRecord], problems: list[str]) -> UpsertRecord:
    for record in records:
        if record.id == options.rule:
            return record
    mistakes = [problem for problem in problems if Path(problem.split(": ")[0]).stem == options.rule]
    raise UsageError("\n".join(mistakes) if mistakes else f"{options.rules} has no rule {options.rule}")


def _list(directory: Path, records: list[UpsertRecord], problems: list[str], console: Console) -> int:
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


def _show(record: UpsertRecord, console: Console) -> int:
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


def _history(options: argparse.Namespace, console: Console) -> int:
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
    console.print(table)
    return 0


def _lock(directory: Path, records: list[UpsertRecord], problems: list[str], console: Console) -> int:
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


def _bump(options: argparse.Namespace, records: list[UpsertRecord], problems: list[str], console: Console) -> int:
    record = _record(options, records, problems)
    lock = read_lock(options.rules)
    version = max(record.version, options.above, *lock.get(record.id, {0: ""})) + 1
    path = options.rules / f"{record.id}.toml"
    try:
        replace_text(path, with_version(path.read_text(encoding="utf-8"), version))
    except ValueError as error:
        raise UsageError(f"{path} {error}") from error
    raised = record.model_copy(update={"version": version})
    write_lock(options.rules, locked([raised], lock)[0])
    console.print(f"{record.id}: version {record.version} → {version}, locked", markup=False)
    return 0
