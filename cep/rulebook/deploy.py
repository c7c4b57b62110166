"""Control records of a job → the event types that they speak of, and the rulebook that is in force.

A job that is given its rules at the start takes its schema and its keys from them. Two rules may describe one event
type differently: fields are joined, and where a field has two types the rule that came first is right and the other one
is set aside.
Tested by: tests/runners/test_job.py
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cep.base.schema import EventType, Field, Kind, Schema
from cep.lang.diagnostics import Diagnostic
from cep.lang.load import load_text
from cep.lists.store import ListStore
from cep.model.rule import ControlRecord, ListRecord, UpsertRecord
from cep.rulebook.rulebook import Rulebook


@dataclass(frozen=True, slots=True)
class SetAside:
    """A rule that is not in force, and why. Diagnostics speak of `source` by the name `rule_id`."""

    rule_id: str
    version: int
    reason: str
    diagnostics: tuple[Diagnostic, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a job can run: its event types, its rules, and the records that were refused."""

    schema: Schema
    rulebook: Rulebook
    set_aside: tuple[SetAside, ...]

    @property
    def key_domains(self) -> tuple[tuple[str, ...], ...]:
        """The keys of the rules in force, which are those to route events by."""
        return tuple(self.rulebook.domains())


def deploy(records: Iterable[ControlRecord], lists: ListStore | None = None) -> Deployment:
    """Apply records in their order, before any event has been seen: each version gets the interval it asks for.

    `lists` has the entries that list records name (files.read_lists).
    """
    given = list(records)
    schema = schema_of(record for record in given if isinstance(record, UpsertRecord))
    rulebook = Rulebook(schema, None, lists)
    set_aside: list[SetAside] = []
    for record in given:
        outcome = rulebook.apply(record, None)
        if outcome.kind == "refused" and isinstance(record, UpsertRecord):
            set_aside.append(SetAside(record.id, record.version, outcome.reason, outcome.diagnostics, record.source))
        elif outcome.kind == "refused" and isinstance(record, ListRecord):
            set_aside.append(SetAside(f"list {record.id}", record.version, outcome.reason, (), ""))
    return Deployment(schema, rulebook, tuple(set_aside))


def schema_of(records: Iterable[UpsertRecord]) -> Schema:
    """The event types of all records whose text is sound, joined.

    A field that clashes with an earlier one is left out; the rule that wants it is then refused by name.
    """
    merged: dict[str, dict[str, Field]] = {}
    columns: dict[str, Field] = {}
    retained: dict[str, int] = {}
    derived: set[str] = set()
    for record in records:
        checked = load_text(record.source, record.id)
        if not checked.ok:
            continue
        for event_type in checked.schema.event_types:
            if event_type.retain_ms is not None:
                retained[event_type.name] = max(event_type.retain_ms, retained.get(event_type.name, 0))
            _merge(merged.setdefault(event_type.name, {}), columns, event_type)
            if event_type.derived:
                derived.add(event_type.name)
    whole = {name: fields for name, fields in merged.items() if _kinds(fields) == {Kind.ID, Kind.TIME}}
    return Schema(
        tuple(
            EventType(name, tuple(fields.values()), retained.get(name), derived=name in derived)
            for name, fields in whole.items()
        )
    )


def _merge(known: dict[str, Field], columns: dict[str, Field], event_type: EventType) -> None:
    """Add the fields that agree with the column of their name, whatever event type has it; nullability may differ."""
    for field in event_type.fields:
        column = columns.setdefault(field.name, field)
        is_second = field.name not in known and field.type.kind in _kinds(known)  # an event has one id and one time
        if column.type.as_nullable() == field.type.as_nullable() and not is_second:
            known.setdefault(field.name, field)


def _kinds(fields: dict[str, Field]) -> set[Kind]:
    """Which of the two fields that every event type has are among these."""
    return {field.type.kind for field in fields.values()} & {Kind.ID, Kind.TIME}
