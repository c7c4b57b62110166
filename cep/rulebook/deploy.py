"""Control records of a job → the event types that they speak of, and the rulebook that is in force.

A job that is given its rules at the start takes its schema and its keys from them. Two rules may describe one event
type differently: fields are joined, and where a field has two types the rule that came first is right and the other one
is set aside. What came later is judged by what the job had then: its event types, its keys, its levels (levels.py).
Tested by: tests/step/test_job.py, tests/rulebook/test_deploy.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cep.base.collection import paused
from cep.base.schema import TIME_FIELD, EventType, Field, Kind, Schema
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

    @property
    def full_reason(self) -> str:
        """The reason and what each diagnostic says, with its next step, as one line."""
        said = (f"{d.code} {d.message}" + (f" ({d.help})" if d.help else "") for d in self.diagnostics)
        return "; ".join([self.reason, *said])


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
    given = list(records)
    counted = (record for record in given if isinstance(record, UpsertRecord))
    if trust is not None:
        counted = (record for record in counted if reason_against(record, trust) is None)
    with paused():
        rulebook = Rulebook(schema_of(counted), None, lists)
        rulebook.accepted.trust = trust
        return replace(_applied(Deployment(rulebook.schema, rulebook, ()), given, are_first=True), refused=())


def deploy_to_job(
    begun: Deployment, later: Iterable[ControlRecord], keys: KeyDomains | None, levels_count: int
) -> Deployment:
    """Apply later records, in their order, to a job that began with `begun`, which is used up.

    `keys` are those that the job routes by beside those of its first rules, None any. `levels_count` are its levels. A
    change without a start holds since ever, because nothing says when it came.
    """
    rulebook = begun.rulebook
    rulebook.key_domains = None if keys is None else tuple(sorted({*begun.key_domains, *keys}))
    rulebook.place(levels_count)
    deployment = _applied(begun, later)
    rulebook.place(levels_needed(rulebook.deployed()))  # all is here now: no more levels than these rules need
    return deployment


def is_given(record: ControlRecord) -> bool:
    """Return True for a list whose entries are in the job's store: declared by the patterns that the job begins with.

    Among later records it is an attempt to use what happens to be there.
    """
    return isinstance(record, ListRecord) and record.stored is not None


def _applied(deployment: Deployment, records: Iterable[ControlRecord], *, are_first: bool = False) -> Deployment:
    """Apply records before any event of their times has been seen."""
    rulebook = deployment.rulebook
    set_aside: list[SetAside] = list(deployment.set_aside)
    taken: list[ControlRecord] = list(deployment.taken)
    refused: list[RefusedRecord] = []
    for record in records:
        outcome = rulebook.apply(record, None, is_given=are_first and is_given(record))
        if outcome.kind != "refused" or isinstance(record, HeartbeatRecord):
            taken.append(record)
            continue
        refused.append(RefusedRecord(record, outcome, rulebook.epoch, rulebook.content_hash))
        upsert = record.as_upsert() if isinstance(record, RollbackRecord) else record
        if isinstance(upsert, UpsertRecord):
            set_aside.append(SetAside(upsert.id, upsert.version, outcome.reason, outcome.diagnostics, upsert.source))
        elif isinstance(record, ListRecord):
            set_aside.append(SetAside(f"list {record.id}", record.version, outcome.reason, (), ""))
    return replace(deployment, set_aside=tuple(set_aside), taken=tuple(taken), refused=tuple(refused))


def schema_of(records: Iterable[UpsertRecord]) -> Schema:
    """Join the event types of all records whose text is sound.

    A field that clashes with an earlier one is left out; the rule that wants it is then refused by name.
    """
    merged: dict[str, dict[str, Field]] = {}
    columns: dict[str, Field] = {}
    retained: dict[str, int] = {}
    ordered: dict[str, str] = {}
    derived: set[str] = set()
    last: Checked | None = None
    for record in records:
        checked = checked_text(record.source)
        if checked is last or not checked.ok:
            continue
        last = checked  # rules of one file follow each other, and say the same
        for event_type in checked.schema.event_types:
            if event_type.retain_ms is not None:
                retained[event_type.name] = max(event_type.retain_ms, retained.get(event_type.name, 0))
            _merge(merged.setdefault(event_type.name, {}), columns, event_type)
            if event_type.order_field:
                ordered.setdefault(event_type.name, event_type.order_field)
            if event_type.derived:
                derived.add(event_type.name)
    whole = {name: fields for name, fields in merged.items() if TIME_FIELD in fields and _has_id(fields)}
    return Schema(
        tuple(
            EventType(
                name, tuple(fields.values()), retained.get(name), name in derived, _order(fields, ordered.get(name))
            )
            for name, fields in whole.items()
        )
    )


def _order(fields: Mapping[str, Field], order_field: str | None) -> str:
    """Return the field that orders events of one time, empty if the event type lacks it."""
    return order_field if order_field is not None and order_field in fields else ""


def _merge(merged: dict[str, Field], columns: dict[str, Field], event_type: EventType) -> None:
    """Add the fields that agree with the column of their name, whatever event type has it; nullability may differ."""
    for field in event_type.fields:
        column = columns.setdefault(field.name, field)
        is_second = field.name not in merged and field.type.kind is Kind.ID and _has_id(merged)  # an event has one id
        if column.type.as_nullable() == field.type.as_nullable() and not is_second:
            merged.setdefault(field.name, field)


def _has_id(fields: dict[str, Field]) -> bool:
    return any(field.type.kind is Kind.ID for field in fields.values())
