"""Rule files, control records, or pattern files → the versions in force, as in a live job, and the refusals.

The job begins with the rules of the folder, and then the control records follow. Without a folder it begins with the
control records. Each pattern of a pattern file becomes a rule, with the parameters of the pattern itself.
Tested by: tests/api/test_match.py, tests/cli/test_why.py, tests/cli/test_replay.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from cep.base.errors import UsageError
from cep.lang.explain.render import render_text
from cep.lang.load import bundle_source, load_files
from cep.lists.store import ListStore
from cep.model.rule import ControlRecord, RetireRecord, UpsertRecord
from cep.nfa.deployed import DeployedRule
from cep.nfa.given_lists import GivenList, given_lists
from cep.rulebook.compatible import KeyDomains, checked_text
from cep.rulebook.deploy import Deployment, deploy, deploy_to_job
from cep.rulebook.files import list_record, read_control
from cep.rulebook.levels import levels_needed
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.trust import Trust
from cep.runners.job import read_folder

_USUAL = Path("rules")
_OWNER_CHARS = 100


@dataclass(frozen=True, slots=True)
class GivenRules:
    """The rules of a folder and the changes that came after, as they would be deployed in a job of `levels_count`."""

    shown: str
    records: tuple[ControlRecord, ...]
    problems: tuple[str, ...]
    deployment: Deployment
    levels_count: int
    lists: ListStore

    @staticmethod
    def read(
        folder: Path | None,
        control: Path | None,
        levels_count: int = 1,
        keys: KeyDomains | None = None,
        trust: Trust | None = None,
    ) -> GivenRules:
        """Without rules and control records, the folder `rules` is read.

        The job has `levels_count` levels, or as many as it begins with, and routes also by `keys`, None: by any. With
        `trust` a change must be signed.

        Raises: UsageError for a missing or unreadable folder.
        """
        if folder is None and control is None:
            if not _USUAL.is_dir():
                raise UsageError(f"give --rules, --control, or both; there is no folder {_USUAL} here")
            folder = _USUAL
        first: list[ControlRecord] = []
        later: list[ControlRecord] = []
        problems: list[str] = []
        lists = ListStore()
        if folder is not None:
            if not folder.is_dir():
                raise UsageError(f"--rules {folder} is not a folder")
            first, problems = read_folder(folder, lists, trust)
        if control is not None:
            later, more = read_control(control)
            problems += more
        if folder is None:
            first, later = later, []
        deployment = deploy(first, lists, trust)
        levels_count = max(levels_count, levels_needed(deployment.rulebook.deployed()))
        if later:
            deployment = deploy_to_job(deployment, later, keys, levels_count)
        shown = " with ".join(str(path) for path in (folder, control) if path is not None)
        return GivenRules(shown, (*first, *later), tuple(problems), deployment, levels_count, lists)

    @staticmethod
    def of_patterns(source: str, shown: str, lists: Sequence[GivenList] = ()) -> GivenRules:
        """Make a rule of each pattern of a sound text without imports, live from the beginning of time."""
        store = ListStore()
        checked = checked_text(source)
        records = [
            UpsertRecord(
                id=name, version=1, pattern=name, status="live", severity="medium", owner=shown[:_OWNER_CHARS],
                message=name, source=source,
            )
            for name in checked.patterns
        ]  # fmt: skip
        list_records = [list_record(each, store) for each in lists]
        deployment = deploy([*list_records, *records], store)
        levels_count = levels_needed(deployment.rulebook.deployed())
        return GivenRules(shown, (*list_records, *records), (), deployment, levels_count, store)

    @staticmethod
    def of_file(path: Path) -> GivenRules:
        """Make a rule of each pattern of a file. Raises: UsageError with all mistakes, each with its line."""
        checked = load_files([path])
        lists = given_lists(checked)
        mistakes = [each for each in (*checked.diagnostics, *lists.diagnostics) if each.is_error]
        if mistakes:
            raise UsageError(f"{path} has mistakes:\n{render_text(mistakes, checked.sources)}")
        if not checked.patterns:
            schema = checked.schema
            return GivenRules(str(path), (), (), Deployment(schema, Rulebook(schema, None), ()), 1, ListStore())
        return GivenRules.of_patterns(bundle_source(path), str(path), tuple(lists.lists.values()))

    def newest(self, rule_id: str) -> UpsertRecord:
        """Return the record of the highest version. Raises: UsageError for an unknown rule."""
        records = [each for each in self.records if isinstance(each, UpsertRecord) and each.id == rule_id]
        if not records:
            raise UsageError(self.reason_against(rule_id))
        return max(records, key=lambda each: each.version)

    def versions(self, rule_id: str) -> list[DeployedRule]:
        """Those in force at some time, the oldest first."""
        return [rule for rule in self.deployment.rulebook.deployed() if rule.rule_id == rule_id]

    def set_aside(self, rule_id: str) -> list[str]:
        """List the versions of a rule that were refused, with the reasons."""
        return [
            f"{rule_id} version {rule.version} is set aside: {rule.reason}"
            + "".join(f"\n  {d.code} {d.message}" for d in rule.diagnostics)
            for rule in self.deployment.set_aside
            if rule.rule_id == rule_id
        ]

    def reason_against(self, rule_id: str) -> str:
        """Return why no version of a rule is in force. Raises: UsageError for an unknown rule."""
        set_aside = self.set_aside(rule_id)
        if set_aside:
            return "\n".join(set_aside)
        for problem in self.problems:
            if Path(problem.split(": ")[0]).stem == rule_id:
                return f"{rule_id} cannot be read: {problem}"
        changes = [r for r in self.records if isinstance(r, UpsertRecord | RetireRecord)]
        for record in reversed(changes):
            if record.id == rule_id:
                status = "retired" if isinstance(record, RetireRecord) else record.status
                return f"{rule_id} version {record.version} is {status}: it is not matched"
        near = get_close_matches(rule_id, [r.id for r in changes], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"{self.shown} has no rule {rule_id}{hint}")
