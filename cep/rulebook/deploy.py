"""Control records of a job → its event types, and the rulebook in force.

A job takes its schema and its keys from its initial rules. Two rules may describe one event type differently: their
fields are joined (joined_types.py), and a rule that contradicts an earlier one is set aside. Later records are judged
by the job's event types, keys and levels at that time (levels.py).
Tested by: tests/step/test_job.py, tests/rulebook/test_deploy.py
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cep.base.collection import paused
from cep.base.schema import Schema
from cep.lang.diagnostics import Diagnostic
from cep.lang.load import Checked
from cep.lists.store import ListStore
from cep.model.rule import (
    ControlRecord,
    HeartbeatRecord,
    ListRecord,
    RollbackRecord,
    UpsertRecord,
    VersionedRecord,
)
from cep.rulebook.compatible import KeyDomains, checked_text
from cep.rulebook.joined_types import JoinedTypes
from cep.rulebook.levels import levels_needed
from cep.rulebook.outcome import Outcome
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.trust import Trust, reason_against


@dataclass(frozen=True, slots=True)
class SetAside:
    """A rule that is not in force, and the reason. Diagnostics speak of `source` by the name `rule_id`."""

    rule_id: str
    version: int
    reason: str
    diagnostics: tuple[Diagnostic, ...]
    source: str
    status: str = "live"

    @property
    def full_reason(self) -> str:
        """The reason and the text of each diagnostic, with its next step, as one line."""
        messages = (f"{d.code} {d.message}" + (f" ({d.help})" if d.help else "") for d in self.diagnostics)
        return "; ".join([self.reason, *messages])


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record that a running job refuses, with its rules at that time: how many changes it had applied, their hash."""

    record: VersionedRecord
    outcome: Outcome
    epoch: int
    content_hash: str


@dataclass(frozen=True, slots=True)
class Deployment:
    """The event types and rules that a job can run, and the rules that were set aside.

    `refused` are later records, as the running job refused them. `taken` are all others.
    """

    schema: Schema
    rulebook: Rulebook
    set_aside: tuple[SetAside, ...]
    taken: tuple[ControlRecord, ...] = ()
    refused: tuple[RefusedRecord, ...] = ()

    @property
    def key_domains(self) -> tuple[tuple[str, ...], ...]:
        """The keys of the rules in force, which are those to route events by."""
        return tuple(self.rulebook.domains())


def deploy(records: Iterable[ControlRecord], lists: ListStore | None = None, trust: Trust | None = None) -> Deployment:
    """Apply records in their order, before any event has been seen: each version gets the interval it asks for.

    `lists` has the entries that list records name (files.read_lists). With `trust` the others must be signed.
    """
    ordered = list(records)
    counted = (record for record in ordered if isinstance(record, UpsertRecord))
    if trust is not None:
        counted = (record for record in counted if reason_against(record, trust) is None)
    with paused():
        rulebook = Rulebook(schema_of(counted), None, lists)
        rulebook.trust = trust
        return replace(_applied(Deployment(rulebook.schema, rulebook, ()), ordered, are_first=True), refused=())


def deploy_to_job(
    begun: Deployment, later: Iterable[ControlRecord], keys: KeyDomains | None, levels_count: int
) -> Deployment:
    """Apply later records, in order, to a job that began with `begun`, which is consumed.

    `keys` are the keys that the job routes by in addition to the keys of its first rules, None any. `levels_count` are
    its levels. A change without a start applies from the beginning of time, because its arrival time is unknown.
    """
    rulebook = begun.rulebook
    rulebook.key_domains = None if keys is None else tuple(sorted({*begun.key_domains, *keys}))
    rulebook.place(levels_count)
    deployment = _applied(begun, later)
    rulebook.place(levels_needed(rulebook.deployed()))  # all is here now: no more levels than these rules need
    return deployment


def vouched_lists(records: Iterable[ControlRecord | None], trust: Trust | None) -> frozenset[str] | None:
    """Return `NAME/KIND SET` of each list whose entries the signed rules among a job's first records name alike.

    None if changes need no signature: then every list of the first records counts.
    """
    if trust is None:
        return None
    named: dict[str, set[str]] = {}
    for record in records:
        if isinstance(record, UpsertRecord) and record.lists and reason_against(record, trust) is None:
            for name, stored in record.lists.items():
                named.setdefault(name, set()).add(stored)
    return frozenset(f"{name} {stored}" for name, sets in named.items() if len(sets) == 1 for stored in sets)


def is_given(record: ControlRecord, vouched: frozenset[str] | None) -> bool:
    """Return True for a list whose entries are in the job's store: declared by the patterns with which the job begins.

    In a later record it would be an attempt to use unrelated content of the store. `vouched` comes from
    `vouched_lists`.
    """
    if not isinstance(record, ListRecord) or record.stored is None:
        return False
    return vouched is None or f"{record.id}/{record.of} {record.stored}" in vouched


def _applied(deployment: Deployment, records: Iterable[ControlRecord], *, are_first: bool = False) -> Deployment:
    """Apply records before any event of their times has been seen."""
    rulebook = deployment.rulebook
    set_aside: list[SetAside] = list(deployment.set_aside)
    accepted: list[ControlRecord] = list(deployment.taken)
    refused: list[RefusedRecord] = []
    ordered = list(records)
    vouched = vouched_lists(ordered, rulebook.trust) if are_first else None
    for record in ordered:
        outcome = rulebook.apply(record, None, is_given=are_first and is_given(record, vouched))
        if outcome.kind != "refused" or isinstance(record, HeartbeatRecord):
            accepted.append(record)
            continue
        refused.append(RefusedRecord(record, outcome, rulebook.epoch, rulebook.content_hash))
        upsert = record.as_upsert() if isinstance(record, RollbackRecord) else record
        if isinstance(upsert, UpsertRecord):
            aside = SetAside(
                upsert.id, upsert.version, outcome.reason, outcome.diagnostics, upsert.source, upsert.status
            )
            set_aside.append(aside)
        elif isinstance(record, ListRecord):
            set_aside.append(SetAside(f"list {record.id}", record.version, outcome.reason, (), ""))
    return replace(deployment, set_aside=tuple(set_aside), taken=tuple(accepted), refused=tuple(refused))


def schema_of(records: Iterable[UpsertRecord]) -> Schema:
    """Join the event types of all records whose text is sound, in their order.

    A field that clashes with an earlier one is left out; the rule that wants it is then refused by name.
    """
    joined = JoinedTypes()
    last: Checked | None = None
    for record in records:
        checked = checked_text(record.source)
        if checked is last or not checked.ok:
            continue
        last = checked  # rules of one file follow each other, and say the same
        joined.add(checked.schema)
    return joined.schema()
