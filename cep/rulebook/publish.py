"""Files of rules and lists, and a job's status → the records that make the job run the files, or the reasons why not.

A list is compared by the hash of its entries. A change is one `replace` in as many records as necessary, with the next
version. Records that a replacement in force has made obsolete are forgotten, so that a compacted topic does not grow.
Tested by: tests/rulebook/test_publish.py, tests/rulebook/test_suppression.py
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.limits import CONTROL_RECORD_BYTES_MAX, TIME_MS_MIN
from cep.base.schema import Schema
from cep.lists.entries import Keys
from cep.lists.store import ListStore
from cep.model.rule import (
    ControlRecord,
    HeartbeatRecord,
    ListRecord,
    RetireRecord,
    RollbackRecord,
    SnoozeRecord,
    UpsertRecord,
)
from cep.nfa.deployed import DeployedRule
from cep.nfa.lists import GivenList
from cep.rulebook.compatible import compile_rule, raw_entries, raw_key
from cep.rulebook.deploy import schema_of
from cep.rulebook.ledger import Ledger, TakenVersion, chain_of, hash_of, item_of
from cep.rulebook.lists import ListKey, RuleLists
from cep.rulebook.meaning import content_hash
from cep.rulebook.outcome import ListReport, Outcome, PastReport
from cep.rulebook.rulebook import LevelBounds, level_of_new_rule
from cep.rulebook.trust import Signable


@dataclass(frozen=True, slots=True)
class Running:
    """The version of one rule that runs, and the hash of its meaning if the job says it."""

    version: int
    status: str
    digest: str | None


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a plan. `record` is None if there is nothing to do, or if it is not allowed."""

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
    """Compute the rules that a job would run after these records of a control topic, without a job's status."""
    running: dict[str, Running] = {}
    for published in records:
        record = published.as_upsert() if isinstance(published, RollbackRecord) else published
        if not isinstance(record, UpsertRecord | RetireRecord):
            continue
        if record.id in running and record.version <= running[record.id].version:
            continue  # of one version the first counts
        if isinstance(record, RetireRecord):
            running[record.id] = Running(record.version, "retired", None)
        else:
            running[record.id] = Running(record.version, record.status, content_hash(record))
    return running


def plan(
    records: Sequence[UpsertRecord], running: Mapping[str, Running], effective_at: str | None, *, retire_missing: bool
) -> list[Step]:
    """Plan the change of each rule: first the rules that have files. Changes without a start get `effective_at`."""
    steps = [_step(record, running.get(record.id), effective_at) for record in records]
    named = {record.id for record in records}
    for rule_id, current in sorted(running.items()):
        if rule_id in named or current.status in ("retired", "not matched"):
            continue
        if retire_missing:
            retire = RetireRecord(id=rule_id, version=current.version + 1, effective_at=effective_at)
            steps.append(Step(rule_id, "retired", f"version {current.version} {current.status} → retired", retire))
        else:
            action = f"version {current.version} {current.status} runs and has no file; --retire-missing ends it"
            steps.append(Step(rule_id, "missing", action))
    return steps


def _step(record: UpsertRecord, running: Running | None, effective_at: str | None) -> Step:
    stamped = record
    if record.effective_at is None and effective_at is not None:
        stamped = record.model_copy(update={"effective_at": effective_at})
    if running is None:
        return Step(record.id, "new", f"version {record.version} {record.status}", stamped)
    if record.version > running.version:
        action = f"version {running.version} {running.status} → {record.version} {record.status}"
        return Step(record.id, "changed", action, stamped)
    if record.version < running.version:
        action = (
            f"version {record.version} is behind {running.version}, which runs; a version never goes back: run "
            f"`cep rules bump {record.id} --above {running.version}`"
        )
        return Step(record.id, "refused", action)
    if running.digest is not None and running.digest != content_hash(record):
        action = f"version {record.version} runs with another meaning; run `cep rules bump {record.id}`"
        return Step(record.id, "refused", action)
    return Step(record.id, "unchanged", f"version {record.version} {record.status}")


def approval_problem(record: UpsertRecord) -> str | None:
    """Return why a change is not approved by a second person, None if it is."""
    if record.author is None or record.approved_by is None:
        return "two people must stand for a change: name `author` and `approved_by` in its file"
    if record.author.strip().casefold() == record.approved_by.strip().casefold():
        return f"`author` and `approved_by` are both {record.author}: another person must approve"
    return None


def accepted_records(
    status: Mapping[str, Any] | None, records: Iterable[ControlRecord]
) -> tuple[list[ControlRecord], Ledger]:
    """Return the records of a control topic that a job with this status report accepts, and its last versions then."""
    known_status = status or {}
    ledger = Ledger.from_json(known_status.get("taken", {}))
    for rule_id, version in known_status.get("last_versions", {}).items():
        ledger.take_saved_version(rule_id, version)  # reports of earlier builds have these only
    accepted: list[ControlRecord] = []
    for record in records:
        if isinstance(record, HeartbeatRecord) or refusal(known_status, record) is not None:
            continue
        if ledger.outcome(record) is None:
            accepted.append(record)
            ledger.take(record)
    return accepted, ledger


def acknowledged(status: Mapping[str, Any], records: Sequence[ControlRecord]) -> tuple[list[str], dict[str, str]]:
    """Return the published records that the job has not yet reported, and the refused ones with the reasons."""
    open_: list[str] = []
    reasons: dict[str, str] = {}
    for record in records:
        if isinstance(record, HeartbeatRecord):
            continue
        name = name_of_change(record)
        reason = refusal(status, record) or lost_to(status, record)
        if reason is not None:
            reasons[name] = reason
        elif not _is_taken(status, record):
            open_.append(name)
    return list(dict.fromkeys(open_)), reasons  # a list may have several parts


def lost_to(status: Mapping[str, Any], record: Signable) -> str | None:
    """Describe the change that the job has taken in the place of a record; None if it has taken none."""
    chain = status.get("taken", {}).get(chain_of(record), [])
    first = next((entry for entry in chain if entry["version"] >= record.version), None)
    if first is None or (first["version"] == record.version and first["hash"] in (hash_of(record), "")):
        return None
    return f"{TakenVersion(**first).text} was first"


def name_of_change(record: Signable) -> str:
    """Return the name of a change for a person."""
    noun_by_kind = {"pause": "pause of ", "resume": "resumption of ", "snooze": "snooze of ", "list": "list "}
    return f"{noun_by_kind.get(record.kind, '')}{record.id} version {record.version}"


def on_topic(records: Sequence[ControlRecord], rule_id: str, version: int) -> UpsertRecord | None:
    """Return the first record of a version; the job refused the later ones. Otherwise None."""
    upserts = (r.rule if isinstance(r, RollbackRecord) and r.version != version else r for r in records)
    whole = (r.as_upsert() if isinstance(r, RollbackRecord) else r for r in upserts)
    return next((r for r in whole if isinstance(r, UpsertRecord) and (r.id, r.version) == (rule_id, version)), None)


def first_of(records: Iterable[ControlRecord], record: Signable) -> Signable | None:
    """Return the first record of a control topic that has the version of this one."""
    place = (chain_of(record), record.version)
    others = (other for other in records if not isinstance(other, HeartbeatRecord))
    return next((other for other in others if (chain_of(other), other.version) == place), None)


def _is_taken(status: Mapping[str, Any], record: Signable) -> bool:
    if isinstance(record, ListRecord):  # the ledger also has versions that wait
        versions = {(r["name"], r["of"]): r["version"] for r in status.get("lists", ())}
        return bool(versions.get((record.id, record.of), 0) >= record.version)
    return any(entry["version"] == record.version for entry in status.get("taken", {}).get(chain_of(record), []))


def refusal(status: Mapping[str, Any], record: Signable) -> str | None:
    """Return why the job has refused this record, None if it has not."""
    place = (item_of(record), record.version)
    for refused in status.get("refused", ()):
        if (refused["rule_id"], refused["version"]) == place and refused.get("hash", "") in ("", hash_of(record)):
            reason: str = refused["reason"]
            return reason
    return None


def rules_without_level(
    rules: Iterable[DeployedRule], status: Mapping[str, Any] | None, schema: Schema
) -> dict[str, str]:
    """Predict which rules the job will refuse, and why: a rule must run at a later level than its producers."""
    if status is None or status.get("places") is None:  # the job has not reported its levels
        return {}
    bounds, levels_count = LevelBounds.from_json(status["places"]), status["levels_count"]
    refused: dict[str, str] = {}
    for rule in rules:
        level = level_of_new_rule(rule, bounds, schema, levels_count)  # or the reason why none is free
        if isinstance(level, str):  # it is the reason of the refusal
            refused[rule.rule_id] = level
        else:  # the next rules must find levels before or after it
            bounds = bounds.joined(LevelBounds.of([replace(rule, level=level)]))
    return refused


def lacking_past(status: Mapping[str, Any], records: Sequence[ControlRecord]) -> list[str]:
    """List the histories of published versions that look back further than the job has kept events."""
    published = {(record.id, record.version) for record in records if isinstance(record, UpsertRecord | RollbackRecord)}
    lines: dict[str, None] = {}
    for rule in status["rules"]:
        if (rule["rule_id"], rule["version"]) in published:
            for past in rule.get("past", ()):  # a job of an earlier build does not say
                lines[f"{rule['rule_id']} version {rule['version']}: {PastReport(**past).text}"] = None
    return list(lines)


_ENTRY_ROOM = 4  # in addition to an entry's bytes: quotes, a comma, sometimes an escape
_RECORD_BYTES = CONTROL_RECORD_BYTES_MAX // 2


@dataclass(frozen=True, slots=True)
class ListStep:
    """One line of a plan; `records` are to be sent."""

    name: str
    kind: Literal["new", "changed", "unchanged"]
    what: str
    records: tuple[ListRecord, ...] = ()


def running_lists(status: Mapping[str, Any] | None, records: Sequence[ControlRecord]) -> dict[ListKey, ListReport]:
    """Report each list's last version and waiting versions, as the newer source has them: job's status or topic."""
    lists = RuleLists(ListStore())
    for record in accepted_records(status, records)[0]:
        if isinstance(record, ListRecord):
            lists.apply(record, None)
    reports = {(report.name, report.of): report for report in lists.report()}
    for entry in (status or {}).get("lists", ()):
        from_ms = TIME_MS_MIN if entry["from_ms"] is None else entry["from_ms"]  # None: since the beginning of time
        report = ListReport(**{**entry, "from_ms": from_ms, "waiting": tuple(entry["waiting"])})
        of_topic = reports.get((report.name, report.of))  # newer if it has more: a later version, or more waiting ones
        if of_topic is None or (of_topic.version, of_topic.waiting) <= (report.version, report.waiting):
            reports[report.name, report.of] = report
    return reports


def next_version(running: ListReport | None) -> int:
    """Return the version of a change that is published now: above all versions, including waiting ones."""
    return 1 if running is None else max(running.version, *running.waiting, 0) + 1


def plan_lists(
    lists: Sequence[GivenList], running: Mapping[ListKey, ListReport], effective_at: str | None
) -> list[ListStep]:
    """Plan a step for each declared list."""
    return [_list_step(declared, running.get((declared.name, declared.kind)), effective_at) for declared in lists]


def _list_step(source: GivenList, running: ListReport | None, effective_at: str | None) -> ListStep:
    shown = f"list {source.name}"
    size = f"{len(source.content):,} of {source.kind}"
    if running is not None and not running.waiting and running.digest == source.content.digest:
        return ListStep(shown, "unchanged", f"version {running.version}, {size}")
    version = next_version(running)
    records = tuple(replacing(source.name, source.kind, version, source.entries, effective_at))
    if running is None or running.version == 0:
        return ListStep(shown, "new", f"version {version}, {size}", records)
    action = f"version {running.version}, {running.entries:,} → {version}, {size}"
    return ListStep(shown, "changed", action, records)


def replacing(
    name: str, kind: str, version: int, entries: pa.Array, effective_at: str | None,
    change: Literal["replace", "add", "remove"] = "replace",
) -> list[ListRecord]:  # fmt: skip
    """Build one or more records that replace or change a list. An equal `whole` marks them as parts of one change."""
    parts = list(_parts(entries))
    records = [
        ListRecord(
            id=name, of=kind, version=version, change=change, entries=part.to_pylist(), part=number, parts=len(parts),
        )
        for number, part in enumerate(parts, start=1)
    ]  # fmt: skip
    whole = hashlib.sha256(b"".join(hashlib.sha256(record.to_json()).digest() for record in records)).hexdigest()
    return [record.model_copy(update={"whole": whole, "effective_at": effective_at}) for record in records]


def _parts(entries: pa.Array) -> Iterator[pa.Array]:
    """Yield slices that each fit into a record; an empty one without entries."""
    if not len(entries):
        yield entries
        return
    sizes = np.asarray(pc.binary_length(entries)) + _ENTRY_ROOM
    number = (np.cumsum(sizes) - sizes) // _RECORD_BYTES
    bounds = [*np.flatnonzero(np.diff(number, prepend=-1)).tolist(), len(entries)]
    for start, end in pairwise(bounds):
        yield entries.slice(start, end - start)


def superseded_keys(keyed_records: Iterable[tuple[bytes, ControlRecord]], now_ms: int) -> list[bytes]:
    """Return the keys of list records that a newer, complete replacement made unnecessary, to delete them."""
    keys: list[bytes] = []
    by_list: dict[ListKey, list[tuple[bytes, ListRecord]]] = {}
    for key, record in keyed_records:
        if isinstance(record, ListRecord):
            by_list.setdefault((record.id, record.of), []).append((key, record))
    for same_list in by_list.values():
        first_records: dict[int, ListRecord] = {}  # by version: if two changes have one version, the first counts
        parts: dict[int, set[int]] = {}  # the numbers of the parts that are there
        for _, record in same_list:
            first = first_records.setdefault(record.version, record)
            is_begun = record.effective_ms is None or record.effective_ms <= now_ms
            is_same = record.whole == first.whole  # the hash of all parts of a change
            if record.change == "replace" and is_begun and is_same:
                parts.setdefault(record.version, set()).add(record.part)
        complete = [version for version, numbers in parts.items() if len(numbers) == first_records[version].parts]
        keys += [key for key, record in same_list if record.version < max(complete, default=0)]
    return list(dict.fromkeys(keys))


def refusal_of_values(change: ListRecord | SnoozeRecord, rules: Iterable[ControlRecord]) -> str | None:
    """Return why a job refuses raw values, such as card numbers, where its rules see tokens (keyed hashes); or None."""
    for record in rules:
        upsert = record.as_upsert() if isinstance(record, RollbackRecord) else record
        if not isinstance(upsert, UpsertRecord):
            continue
        if change.id not in (upsert.source if isinstance(change, ListRecord) else upsert.id):  # a quick look at texts
            continue  # the rule does not name the list, or is not the snoozed one: it need not be compiled
        schema = schema_of([upsert])
        pattern = compile_rule(upsert, schema, None)
        if isinstance(pattern, Outcome):
            continue
        if isinstance(change, ListRecord):
            outcome = raw_entries(change, [pattern], dict[str, Keys]().__getitem__)
        else:
            outcome = raw_key(change, [pattern] if upsert.id == change.id else [], schema)
        if outcome is not None:
            return outcome.full_reason
    return None
