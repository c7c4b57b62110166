"""Rule files, and what a job says it runs → the records that make the job run the files, and why not.

Tested by: tests/rulebook/test_publish.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cep.model.rule import (
    ControlRecord,
    PauseRecord,
    ResumeRecord,
    RetireRecord,
    RollbackRecord,
    SnoozeRecord,
    UpsertRecord,
)
from cep.rulebook.meaning import content_hash
from cep.rulebook.outcome import PastReport


@dataclass(frozen=True, slots=True)
class Running:
    """The version of one rule that runs, and the hash of its meaning if the job says it."""

    version: int
    status: str
    digest: str | None


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a plan. `record` is None where nothing is to be done, or nothing may be."""

    rule_id: str
    kind: Literal["new", "changed", "unchanged", "retired", "missing", "refused"]
    what: str
    record: UpsertRecord | RetireRecord | None = None


def running_of_status(status: Mapping[str, Any]) -> dict[str, Running]:
    """Read the running rules from a status. A rule without a version in force is retired, a draft, or paused."""
    running = {name: Running(version, "not matched", None) for name, version in status["last_versions"].items()}
    for rule in status["rules"]:
        if rule["version"] == running[rule["rule_id"]].version:
            running[rule["rule_id"]] = Running(rule["version"], rule["status"], rule["content_hash"])
    return running


def running_of_records(records: Sequence[ControlRecord]) -> dict[str, Running]:
    """Return the rules of a job that reads these records of a control topic, if no job has published a status yet."""
    running: dict[str, Running] = {}
    for given in records:
        record = given.as_upsert() if isinstance(given, RollbackRecord) else given
        if not isinstance(record, UpsertRecord | RetireRecord):
            continue
        if record.id in running and record.version <= running[record.id].version:
            continue
        if isinstance(record, RetireRecord):
            running[record.id] = Running(record.version, "retired", None)
        else:
            running[record.id] = Running(record.version, record.status, content_hash(record))
    return running


def plan(
    records: Sequence[UpsertRecord], running: Mapping[str, Running], effective_at: str | None, *, retire_missing: bool
) -> list[Step]:
    """Plan a step for each rule, files first. `effective_at` is stamped on changes that have no start of their own."""
    steps = [_step(record, running.get(record.id), effective_at) for record in records]
    named = {record.id for record in records}
    for rule_id, current in sorted(running.items()):
        if rule_id in named or current.status in ("retired", "not matched"):
            continue
        if retire_missing:
            retire = RetireRecord(id=rule_id, version=current.version + 1, effective_at=effective_at)
            steps.append(Step(rule_id, "retired", f"version {current.version} {current.status} → retired", retire))
        else:
            what = f"version {current.version} {current.status} runs and has no file; --retire-missing ends it"
            steps.append(Step(rule_id, "missing", what))
    return steps


def _step(record: UpsertRecord, running: Running | None, effective_at: str | None) -> Step:
    stamped = record
    if record.effective_at is None and effective_at is not None:
        stamped = record.model_copy(update={"effective_at": effective_at})
    if running is None:
        return Step(record.id, "new", f"version {record.version} {record.status}", stamped)
    if record.version > running.version:
        what = f"version {running.version} {running.status} → {record.version} {record.status}"
        return Step(record.id, "changed", what, stamped)
    if record.version < running.version:
        what = (
            f"version {record.version} is behind {running.version}, which runs; a version never goes back: run "
            f"`cep rules bump {record.id} --above {running.version}`"
        )
        return Step(record.id, "refused", what)
    if running.digest is not None and running.digest != content_hash(record):
        what = f"version {record.version} runs with another meaning; run `cep rules bump {record.id}`"
        return Step(record.id, "refused", what)
    return Step(record.id, "unchanged", f"version {record.version} {record.status}")


def approval_problem(record: UpsertRecord) -> str | None:
    """Return why a change is not approved by a second person, None if it is."""
    if record.author is None or record.approved_by is None:
        return "two people must stand for a change: name `author` and `approved_by` in its file"
    if record.author.strip().casefold() == record.approved_by.strip().casefold():
        return f"`author` and `approved_by` are both {record.author}: another person must approve"
    return None


def acknowledged(status: Mapping[str, Any], records: Sequence[ControlRecord]) -> tuple[list[str], dict[str, str]]:
    """Return the published records that the job has not spoken of yet, and those that it refused with the reasons."""
    refused = {(r["rule_id"], r["version"]): r["reason"] for r in status["refused"]}
    open_: list[str] = []
    reasons: dict[str, str] = {}
    for record in records:
        if not isinstance(record, UpsertRecord | RetireRecord | RollbackRecord):
            continue
        name = f"{record.id} version {record.version}"
        if (record.id, record.version) in refused:
            reasons[name] = refused[record.id, record.version]
        elif status["last_versions"].get(record.id, 0) < record.version:
            open_.append(name)
    return open_, reasons


def refused_turns(status: Mapping[str, Any], records: Sequence[ControlRecord]) -> dict[str, str]:
    """Return the pauses, resumptions and snoozes that the job has refused, with the reasons."""
    reasons = {(r["rule_id"], r["version"]): r["reason"] for r in status["refused"]}
    turns = [record for record in records if isinstance(record, PauseRecord | ResumeRecord | SnoozeRecord)]
    return {
        f"{record.kind} {record.id} version {record.version}": reasons[record.id, record.version]
        for record in turns
        if (record.id, record.version) in reasons
    }


def status_speaks_of(status: Mapping[str, Any], records: Sequence[ControlRecord]) -> bool:
    """Return True if the job has taken, or refused, these pauses, resumptions and snoozes."""
    refused = {(r["rule_id"], r["version"]) for r in status["refused"]}
    snoozes = {(rule_id, key): version for rule_id, key, version in status["snooze_versions"]}
    for record in records:
        if isinstance(record, PauseRecord | ResumeRecord):
            is_so = (record.id in status["paused"]) == isinstance(record, PauseRecord)
        elif isinstance(record, SnoozeRecord):
            is_so = snoozes.get((record.id, record.key), 0) >= record.version
        else:
            continue
        if not is_so and (record.id, record.version) not in refused:
            return False
    return True


def lacking_past(status: Mapping[str, Any], records: Sequence[ControlRecord]) -> list[str]:
    """List the histories of published versions that look back further than the job has kept events."""
    published = {(record.id, record.version) for record in records if isinstance(record, UpsertRecord | RollbackRecord)}
    lines: dict[str, None] = {}
    for rule in status["rules"]:
        if (rule["rule_id"], rule["version"]) in published:
            for past in rule.get("past", ()):  # a job of an earlier build does not say
                lines[f"{rule['rule_id']} version {rule['version']}: {PastReport(**past).text}"] = None
    return list(lines)
