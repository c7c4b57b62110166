"""`cep rules …`: a folder of rules → its list, one rule, its card, history and lock, the next version, the schemas.

The card of a rule does not read the clock and follows the order of the files, so equal folders give equal cards.
Tested by: tests/cli/test_rules.py
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cep.base.errors import UnreadableError, UsageError
from cep.base.files import read_file, write_file
from cep.base.limits import FIGURES_FILE_BYTES_MAX
from cep.base.terminal import Terminal, new_table
from cep.cli.help_pages import RULE_FILES, with_page
from cep.cli.paths import printed
from cep.cli.settings import add_trust_arguments
from cep.cli.verbs import Parser
from cep.lang.load import Checked, load_files
from cep.model.rule import RollbackRecord, UpsertRecord, control_json_schema, rule_file_json_schema
from cep.rulebook.deploy import Deployment, deploy, entries_by_name
from cep.rulebook.files import (
    SIGNED_FOLDER,
    at_commit,
    declared_lists,
    history,
    read_change,
    read_rule_file,
    read_rules,
)
from cep.rulebook.lock import changed_lists, locked, locked_lists, problems_of_lock, read_lock, with_version, write_lock
from cep.rulebook.meaning import content_hash
from cep.rulebook.signers import given_trust
from cep.rulebook.trust import Trust, reason_against
from cep.testing.harness import run_checked

Row = tuple[object, ...]


def card_of(directory: Path, record: UpsertRecord, trust: Trust | None, figures: Path | None) -> str:
    """Write the card of a rule in Markdown. `trust` names the signers, `figures` is a file of the last backtest."""
    rule = read_rule_file(directory / f"{record.id}.toml")
    assert rule is not None, "it has been read before"
    checked = load_files([directory / rule.file])
    parts = [
        f"# {record.id}\n\n{_purpose(checked, record)}",
        _table("Rule", ("", ""), _facts(checked, record)),
        _table("Parameters", ("name", "value"), sorted((name, _shown(v)) for name, v in record.params.items())),
        _table("Versions", ("version", "meaning", "approvals"), _versions(directory, record, trust)),
        _table("Tests", ("test", "outcome"), _tests(checked, record.pattern)),
        _table("Figures", ("of the last backtest", ""), _figures(figures, record)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _purpose(checked: Checked, record: UpsertRecord) -> str:
    pattern = checked.patterns.get(record.pattern)
    doc = pattern.doc.strip() if pattern is not None else ""
    return doc or "The pattern says nothing of its purpose: write it above `pattern` with `##`."


def _facts(checked: Checked, record: UpsertRecord) -> list[Row]:
    """List the facts about a rule for its card, as (name, value) without empty values."""
    pattern = checked.patterns.get(record.pattern)
    facts: dict[str, object] = {
        "owner": record.owner,
        "author": record.author,
        "status": f"version {record.version}, {record.status}",
        "severity": f"{record.severity}, score {record.score}, priority {record.priority}",
        "pattern": record.pattern,
        "key": None if pattern is None else ", ".join(pattern.key),
        "event types": None if pattern is None else ", ".join(pattern.event_types),
        "message": record.message,
        "runbook": record.runbook,
        "review": record.review_date,
        "starts": record.effective_at,
        "runs of the version before": record.on_update,
        "one alert in": record.suppress,
        "unless greater": record.escalate,
        "only one alert of the group": record.exclusive,
        "at most": None if pattern is None else _limits(pattern.within_ms, pattern.within_events, record),
    }
    return [(name, value) for name, value in facts.items() if value]


def _limits(within_ms: object, within_events: object, record: UpsertRecord) -> str:
    spans = []
    for span, unit in ((within_ms, "ms"), (within_events, "events")):
        if isinstance(span, int):
            spans.append(f"{span} {unit}")
        elif span is not None:
            name = str(getattr(span, "name", ""))
            spans.append(f"{name} = {_shown(record.params.get(name, 'its default'))}")
    return ", ".join(spans)


def _versions(directory: Path, record: UpsertRecord, trust: Trust | None) -> list[Row]:
    """Return (version, content hash, approvals) of each known version, the newest first. The hash is of everything that
    decides alerts; the lock file has it for each released version."""
    content_hashes = dict(read_lock(directory).get(record.id, {}))
    content_hashes.setdefault(record.version, content_hash(record))
    approvals: dict[int, str] = {}
    for path in sorted((directory / SIGNED_FOLDER).glob(f"{record.id}.*.json")):
        if path.name.removeprefix(f"{record.id}.").removesuffix(".json").isdigit():
            signed = read_change(path)[0]
            digest = content_hashes.get(signed.version, "")
            if isinstance(signed, UpsertRecord | RollbackRecord):
                upsert = signed.as_upsert() if isinstance(signed, RollbackRecord) else signed
                digest = content_hash(upsert)
                if content_hashes.setdefault(signed.version, digest) != digest:  # not the version of the lock file
                    approvals[signed.version] = f"none: {path.name} is of another meaning"
                    continue
            content_hashes.setdefault(signed.version, signed.kind)  # a change without content, such as `retire`
            approvals[signed.version] = _people(signed, trust)
    return [
        (version, content_hashes[version][:_SHORT], approvals.get(version, "none"))
        for version in sorted(content_hashes, reverse=True)
    ]


def _people(signed: Any, trust: Trust | None) -> str:
    if signed.signed is None:
        return "none"
    refusal = None if trust is None else reason_against(signed, trust)
    if refusal is not None:
        return f"do not count: {refusal.reason}"
    keys = [s.key for s in (signed.signed.author, signed.signed.approver) if s is not None]
    people = [None if trust is None else trust.signer(key) for key in keys]
    names = [key if person is None else person.name for key, person in zip(keys, people, strict=True)]
    return " and ".join(names) + ("" if trust is not None else " (not verified: no signers are given)")


def _tests(checked: Checked, pattern: str) -> list[Row]:
    suite = run_checked(checked)
    tested = [(v.test.name, v.outcome.name.lower()) for v in suite.tested if v.test.pattern.name == pattern]
    return [*tested, *((test.name, "refused") for test in suite.refused if test.pattern == pattern)]


def _figures(path: Path | None, record: UpsertRecord) -> list[Row]:
    """Read the figures of a rule: output of `cep backtest --json`, a JSON object of values, or one object per rule."""
    if path is None:
        return []
    try:
        data = json.loads(read_file(path, FIGURES_FILE_BYTES_MAX))
    except (UnreadableError, ValueError, RecursionError) as error:
        raise UsageError(f"--figures {path} cannot be read: {error}; give a JSON object of figures") from error
    if isinstance(data, Mapping) and isinstance(data.get("rules"), list):
        data = _of_backtest(data, record.id)
    values = data.get(record.id, data) if isinstance(data, Mapping) else None
    if not isinstance(values, Mapping) or any(isinstance(value, dict | list) for value in values.values()):
        raise UsageError(f"--figures {path} has no figures of {record.id}; give a JSON object of names and values")
    return [(name, value) for name, value in values.items()]


def _of_backtest(data: Mapping[str, Any], rule_id: str) -> Mapping[str, Any] | None:
    """Return the figures of a rule of a backtest in a readable form; None if the backtest does not have the rule."""
    of_rule = next((each for each in data["rules"] if isinstance(each, dict) and each.get("rule") == rule_id), None)
    about = data.get("about")
    if of_rule is None or not isinstance(about, dict):
        return None
    history = {f"history: {name}": about[name] for name in ("events", "days", "frauds", "as_of") if name in about}
    shown = {name.replace("_", " "): _figure(value) for name, value in of_rule.items() if name != "rule"}
    return history | {name: value for name, value in shown.items() if value is not None}


def _figure(value: object) -> object:
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if not isinstance(value, Mapping):
        return value
    if value.get("value") is None or "low" not in value:
        return None  # nothing to divide by; or by kind of fraud
    low, middle, high = (_figure(float(value[name])) for name in ("low", "value", "high"))
    return f"{middle} ({low} to {high}; {value['part']} of {value['whole']})"


def _table(title: str, heads: tuple[str, ...], rows: Iterable[Row]) -> str:
    lines = ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"## {title}\n", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads), *lines])


def _cell(value: object) -> str:
    return " ".join(str(value).replace("\\", "\\\\").replace("|", "\\|").split())


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


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


def add_arguments_list(parser: Parser) -> None:
    """Declare the folder."""
    parser.declare("--rules FOLDER", "rule files (rules)", default=Path("rules"))


def add_arguments_show(parser: Parser) -> None:
    """Declare the rule and the folder."""
    parser.declare("rule RULE", "the rule's id")
    add_arguments_list(parser)


add_arguments_lock, add_arguments_history = add_arguments_list, add_arguments_show


def add_arguments_bump(parser: Parser) -> None:
    """Declare the arguments of `cep rules bump`."""
    add_arguments_show(parser)
    parser.declare("--above VERSION", "at least one more than this", default=0)


def add_arguments_card(parser: Parser) -> None:
    """Declare the arguments of `cep rules card`."""
    add_arguments_show(parser)
    parser.declare("--figures FILE", "figures of the last backtest (a JSON object)")
    add_trust_arguments(parser)


def add_arguments_schema(parser: Parser) -> None:
    """Declare the arguments of `cep rules schema`."""
    parser.declare("--files", "of rule files, for editors")


def run_schema(options: argparse.Namespace) -> int:
    """Print a schema. Returns 0."""
    printed(json.dumps(rule_file_json_schema() if options.files else control_json_schema(), indent=2))
    return 0


def _console() -> Console:
    # Into a file or another program nothing is cut off.
    return Terminal(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _WIDTH)


def _read(options: argparse.Namespace) -> tuple[list[UpsertRecord], list[str]]:
    if not options.rules.is_dir():
        raise UsageError(f"--rules {options.rules} is not a folder")
    return read_rules(options.rules)


def _record(options: argparse.Namespace) -> UpsertRecord:
    records, problems = _read(options)
    for record in records:
        if record.id == options.rule:
            return record
    mistakes = [problem for problem in problems if problem.startswith(f"{options.rules / options.rule}.toml: ")]
    raise UsageError("\n".join(mistakes) if mistakes else f"{options.rules} has no rule {options.rule}")


def run_card(options: argparse.Namespace) -> int:
    """Print the card of a rule. Returns 0. Raises: UsageError."""
    record = _record(options)
    printed(card_of(options.rules, record, given_trust(options.signers, options.root_key), options.figures).rstrip())
    return 0


def run_list(options: argparse.Namespace) -> int:
    """List the rules. Return 1 for a mistake, or a version with another content hash than in the lock file."""
    (records, problems), console, directory = _read(options), _console(), options.rules
    contradictions = {problem.rule_id: str(problem) for problem in problems_of_lock(records, read_lock(directory))}
    deployment: Deployment = deploy(records)
    set_aside = {rule.rule_id: rule.full_reason for rule in deployment.set_aside}
    table = new_table(("rule", "version", "status", "severity", "owner", "review", "meaning"), no_wrap=True)
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
    return entries_by_name(declared_lists(directory)[0])


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
    _read(options)  # only to refuse a missing folder
    lines = history(options.rules, options.rule)
    if not lines:
        raise UsageError(f"git knows nothing of {options.rules / (options.rule + '.toml')}; commit it first")
    table = new_table(("version", "status", "meaning", "commit", "when, who, why"))
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
    """Write the lock file, which fixes the content hash of each version. Return 0, or 1 if the rules have problems."""
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
    """Raise the version of a rule, and record its hash in the lock file. Returns 0. Raises: UsageError."""
    record = _record(options)
    lock = read_lock(options.rules)  # the hash of each version of each rule
    version = max(record.version, options.above, *lock.get(record.id, ())) + 1
    path = options.rules / f"{record.id}.toml"
    try:
        write_file(path, with_version(path.read_bytes().decode(), version).encode())
    except ValueError as error:
        raise UsageError(f"{path} {error}") from error
    raised = record.model_copy(update={"version": version})
    write_lock(options.rules, locked([raised], lock)[0])
    _console().print(f"{record.id}: version {record.version} → {version}, locked", markup=False)
    return 0
