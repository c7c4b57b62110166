"""`cep rules publish`: rule files → the control topic of a job that runs, checked, compared, and acknowledged.

Tested by: tests/cli/test_publish.py
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cep.base.errors import UsageError
from cep.base.terminal import Terminal
from cep.cli.lint import findings_of
from cep.cli.lists import send_lists
from cep.cli.paths import printed
from cep.cli.topics import (
    Change,
    Topics,
    add_person_arguments,
    add_topic_arguments,
    await_answer,
    checked_changes,
    effective_at,
    last_status,
    published,
    read_ledger,
    running,
    send,
    signed_lists,
    signed_rules,
    topics_of,
    with_predecessor,
)
from cep.cli.verbs import Parser
from cep.lang.explain.render import render_text
from cep.lang.load import Checked, load_files
from cep.model.rule import ControlRecord, ListRecord, UpsertRecord
from cep.nfa.compile import compilable
from cep.nfa.lists import GivenList, asked_lists
from cep.rulebook.deploy import deploy
from cep.rulebook.difference import difference
from cep.rulebook.files import declared_lists, in_git, read_rule_file, read_rules
from cep.rulebook.ledger import chain_of
from cep.rulebook.lock import problems_of_lock, read_lock
from cep.rulebook.publish import (
    ListStep,
    Running,
    Step,
    approval_problem,
    lacking_past,
    name_of_change,
    on_topic,
    plan,
    plan_lists,
    rules_without_level,
    running_lists,
)
from cep.rulebook.trust import Signable
from cep.runners.assembly import runs_text
from cep.testing.harness import Outcome, run_checked

HELP = """\
Bring the rules of a folder into a running job. These checks come first:

  the files are sound, and agree with rules.lock   cep rules lock, cep rules bump
  their patterns have no mistakes and no findings  cep check, cep lint
  the patterns' tests pass                         cep test
  two people stand for each change                 if [publish] two_person = true is set
  the signatures of these two people               cep rules sign, cep rules approve; if the job has signers

Declared lists that the rules use are published with them if their entries have changed. The rules are compared with the
running rules, and sent to the control topic. The job acknowledges them on its status topic.

examples:
  cep rules publish --dry-run --conf cep.toml
  cep rules publish --bootstrap-servers kafka:9092 --control-topic rules --status-topic rules-status
  cep rules publish --conf cep.toml --effective-at 2026-06-01T00:00:00Z
  cep rules publish --conf cep.toml --change rules/signed/card_testing.pause.1.json
"""
_STYLES = {"new": "green", "changed": "yellow", "retired": "magenta", "refused": "bold red", "missing": "dim"}


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    parser.declare("--rules FOLDER", "rule files (rules)", default=Path("rules"))
    parser.declare("--only RULE", "this rule and no other; may be given again", action="append")
    parser.declare("--dry-run", "check, compare, and send nothing")
    parser.declare("--retire-missing", "end running rules without a file")
    parser.declare("--change FILE", "send only this signed change", action="append")
    add_person_arguments(parser)
    add_topic_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Publish changed rules. Return 0, or 1 if a change is refused here or by the job."""
    console = Terminal(highlight=False, soft_wrap=True)
    topics = topics_of(options, console)
    if options.change:
        return _send_changes(topics)
    records = _checked_records(topics)
    if records is None:
        return 1
    topic_records = published(topics)
    current, source_name = running(topics, topic_records)
    if options.only:  # The other rules are not read, so it is not known whether they have a file.
        current = {rule_id: rule for rule_id, rule in current.items() if rule_id in options.only}
    starts_at = effective_at(topics)
    steps = plan(records, current, starts_at, retire_missing=options.retire_missing and not options.only)
    status = last_status(topics)
    current_lists = running_lists(status, topic_records)
    list_steps = plan_lists(_declared(options.rules, records), current_lists, starts_at)
    running_versions = _RunningVersions(options.rules, topic_records, current, status)
    _print_plan([*list_steps, *steps], source_name, running_versions, console)
    ledger = read_ledger(topics, topic_records)  # the changes that the job has taken
    changes = [step.record for step in steps if step.record is not None]
    list_changes = [record for step in list_steps for record in step.records]
    refused = [step for step in steps if step.kind == "refused"]
    refused_count = len(refused) + _check_changes(topics, changes)
    too_high_count = _check_levels(topics, changes, status)  # a rule that reads events of another is a level above it
    # A job that has matched nothing determines its levels again for rules that start at once.
    refused_count += 0 if options.at_once else too_high_count
    if topics.trust is None:
        changes = [with_predecessor(topics, record, ledger) for record in changes]
        list_changes = [with_predecessor(topics, record, ledger) for record in list_changes]
    changes, unsigned_count = signed_rules(topics, changes)
    list_changes, unsigned_lists_count = signed_lists(topics, list_changes)
    refused_count += unsigned_count + unsigned_lists_count
    if refused_count:
        console.print("nothing is sent", markup=False)
        return 1
    if options.dry_run or not (changes or list_changes):
        console.print("a dry run: nothing is sent" if changes or list_changes else "nothing to send", markup=False)
        return 0
    return _send(topics, [*list_changes, *changes])


def _send_changes(topics: Topics) -> int:
    """Send signed changes unchanged. Return 0, or 1 if the job refuses one, or has taken a later change of its rule."""
    changes = checked_changes(topics)
    if changes is None or topics.options.dry_run:
        topics.console.print("nothing is sent" if changes is None else "a dry run: nothing is sent", markup=False)
        return 1 if changes is None else 0
    ledger = read_ledger(topics, published(topics))  # the changes that the job has taken
    overtaken = [record for record in changes if ledger.is_behind(record)]
    for record in overtaken:
        last = ledger.last(chain_of(record))
        assert last is not None, "it is behind a later change"
        refusal = f"{name_of_change(record)} is older than {last.text}, which holds; nothing is sent"
        topics.console.print(refusal, markup=False, style="red")
    if overtaken:
        return 1
    return _send(topics, changes)


def _send(topics: Topics, changes: Sequence[Signable]) -> int:
    """Send records, and print the answer of the job. Return 0, or 1 if it refuses one."""
    list_changes = [record for record in changes if isinstance(record, ListRecord)]
    others = [record for record in changes if not isinstance(record, ListRecord)]
    if list_changes:  # first, because a rule needs the lists that it uses
        send_lists(topics, list_changes)
    if others:
        send(topics, others)
    answer, console = await_answer(topics, changes), topics.console
    status = answer.status
    if status is not None:
        for line in lacking_past(status, changes):  # rules that look back further than the job has kept events
            console.print(line, markup=False, style="yellow")
        sent = {(record.id, record.version) for record in others}
        for rule in status["rules"]:
            if rule.get("runs") and (rule["rule_id"], rule["version"]) in sent:  # the open runs of the version before
                console.print(runs_text(rule, _open_runs(status, rule)), markup=False)
    return answer.print_epoch(console)


def _open_runs(status: Mapping[str, Any] | None, rule: Mapping[str, Any]) -> int | None:
    """Return how many runs of the version before were open when the job spoke last; None if it did not say."""
    if status is None or "open_runs" not in status:
        return None
    return int(status["open_runs"].get(f"{rule['rule_id']}@{rule['runs']['version']}", 0))


def _checked_records(topics: Topics) -> list[UpsertRecord] | None:
    """Read the folder's rules, and check them, their hashes in the lock file and their lists. None after a report."""
    options = topics.options
    if not options.rules.is_dir():
        raise UsageError(f"--rules {options.rules} is not a folder")
    records, problems = read_rules(options.rules)
    for name in options.only or ():
        if name not in {record.id for record in records} and not problems:
            raise UsageError(f"{options.rules} has no rule {name}")
    chosen = [record for record in records if not options.only or record.id in options.only]
    problems += [str(problem) for problem in problems_of_lock(chosen, read_lock(options.rules))]
    problems += declared_lists(options.rules)[1]  # the problems, without the lists
    deployment = deploy(chosen)  # as a trial: a rule that does not compile is set aside
    problems += [
        f"{rule.rule_id}: {rule.reason}" + "".join(f"\n  {d.code} {d.message}" for d in rule.diagnostics)
        for rule in deployment.set_aside
    ]
    for problem in problems:
        topics.console.print(problem, markup=False, style="red")
    return None if problems else chosen


def _declared(directory: Path, records: Sequence[UpsertRecord]) -> list[GivenList]:
    names_and_kinds = asked_lists(rule.pattern for rule in deploy(records).rulebook.deployed())
    return [declared for declared in declared_lists(directory)[0] if (declared.name, declared.kind) in names_and_kinds]


def _check_changes(topics: Topics, changes: Sequence[Change]) -> int:
    """Check the changes before they are sent: approvals and patterns. Print each problem, and return their number."""
    upserts = [record for record in changes if isinstance(record, UpsertRecord)]
    count = 0
    if topics.settings.publish.two_person:
        for record in upserts:
            problem = approval_problem(record)
            if problem is not None:
                topics.console.print(f"{record.id}: {problem}", markup=False, style="red")
                count += 1
    files = {_pattern_file(topics.options.rules, record.id) for record in upserts}
    return count + (_check_patterns(topics.console, sorted(files)) if files else 0)


def _check_levels(topics: Topics, changes: Sequence[Change], status: dict[str, Any] | None) -> int:
    """Print the rules that the job will refuse because they need more levels than it has. Return their number."""
    upserts = [record for record in changes if isinstance(record, UpsertRecord)]
    deployment = deploy(upserts)
    reasons = rules_without_level(deployment.rulebook.deployed(), status, deployment.schema)
    for rule_id, reason in reasons.items():
        topics.console.print(f"the job will refuse {rule_id}: {reason}", markup=False, style="red")
    return len(reasons)


def _pattern_file(directory: Path, rule_id: str) -> Path:
    path = directory / f"{rule_id}.toml"
    rule = read_rule_file(path)
    assert rule is not None, "it has been read before"
    return path.parent / rule.file


def _check_patterns(console: Console, files: Sequence[Path]) -> int:
    """Check, lint and test the patterns of changed rules. Print the problems and return their number."""
    checked: Checked = compilable(load_files(files))
    findings = findings_of(checked, files)
    if findings:
        printed(render_text(findings, checked.sources, color=not console.no_color), is_styled=True)
        return len(findings)
    suite = run_checked(checked)
    failed = [verdict for verdict in suite.tested if verdict.outcome in (Outcome.FAILED, Outcome.BROKEN)]
    for verdict in failed:
        console.print(f"test fails: {verdict.test.name}; run `cep test {verdict.test.span.file}`", style="red")
    return len(failed) + len(suite.refused)


_LATER_START = "2999-01-01T00:00:00Z"  # a start after the start of the running version


@dataclass(frozen=True, slots=True)
class _RunningVersions:
    """The running version of each rule, and the places that have its record: the control topic, or git."""

    directory: Path
    topic_records: Sequence[ControlRecord]
    running: Mapping[str, Running]
    status: Mapping[str, Any] | None

    def differences(self, step: Step | ListStep) -> list[str]:
        """Say how a changed rule differs from its running version, and if its open runs (partial matches) go on."""
        if not isinstance(step, Step) or step.kind != "changed" or not isinstance(step.record, UpsertRecord):
            return []
        rule_id, version = step.rule_id, self.running[step.rule_id].version
        before = on_topic(self.topic_records, rule_id, version) or in_git(self.directory, rule_id, version)
        if before is None:
            return [f"version {version} is neither on the control topic nor in git: what it was cannot be shown"]
        # Both records get the start of the running version, because another start alone does not change a rule.
        lines = difference(before, step.record.model_copy(update={"effective_at": before.effective_at}))
        # A rulebook with both versions, of which the new one starts later, reports which runs go on.
        report = deploy([before, step.record.model_copy(update={"effective_at": _LATER_START})]).rulebook.report()
        start = {"from_ms": step.record.effective_ms}  # the true start, in place of the later one
        rules = (
            {**asdict(rule), **start} for rule in report.rules if rule.version == step.record.version and rule.runs
        )
        return [*lines, *(runs_text(rule, _open_runs(self.status, rule)) for rule in rules)]


def _print_plan(steps: Sequence[Step | ListStep], source_name: str, before: _RunningVersions, console: Console) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    for step in steps:
        name = step.rule_id if isinstance(step, Step) else step.name
        table.add_row(name, Text(step.kind, style=_STYLES.get(step.kind, "")), step.what)
        for line in before.differences(step):
            table.add_row("", "", Text(f"  {line}"))
    console.print(f"compared with {source_name}:", markup=False)
    console.print(table)
