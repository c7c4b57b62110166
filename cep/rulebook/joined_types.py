"""Event types that the texts of several rules declare → the event types of a job.

    rule 1:  payment { tx_id id  event_time time  card string  amount int }
    rule 2:  payment { tx_id id  event_time time  card pan     country string }
    job:     payment { tx_id id  event_time time  card pan     amount int?  country string? }

A field is required if every text that declares the event type requires it. So a rule that declares another field does
not affect other rules: in an event without the field, the rule itself reads null. If a text declares a field `pan` or
`sensitive`, the job protects the field, even if other texts do not. Otherwise the first text decides the type of a
field, the id of an event type and the order of its events.
Tested by: tests/rulebook/test_joined_types.py
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from cep.base.schema import TIME_FIELD, EventType, Field, Kind, Schema, Type


@dataclass
class _JoinedType:
    """An event type so far. `texts_count` counts its declarations; `required` counts the declarations that require each
    field.
    """

    order_field: str
    texts_count: int = 0
    names: dict[str, None] = field(default_factory=dict)
    required: Counter[str] = field(default_factory=Counter)
    id_field: str | None = None
    retain_ms: int | None = None
    derived: bool = False

    def is_always_there(self, name: str) -> bool:
        """Return True if every event of the type has the field."""
        return name in (TIME_FIELD, self.id_field) or self.required[name] == self.texts_count


class JoinedTypes:
    """The event types of a job, joined from one text after the other, the oldest first."""

    def __init__(self) -> None:
        self._types: dict[str, _JoinedType] = {}
        self._columns: dict[str, Type] = {}  # by the name of a field, not nullable; one for all event types

    def add(self, schema: Schema) -> None:
        """Join the event types of a text."""
        for event_type in schema.event_types:
            joined = self._types.setdefault(event_type.name, _JoinedType(event_type.order_field))
            joined.texts_count += 1
            joined.derived |= event_type.derived
            if event_type.retain_ms is not None:
                joined.retain_ms = max(event_type.retain_ms, joined.retain_ms or 0)
            for declared in event_type.fields:
                self._add_field(joined, declared)

    def _add_field(self, joined: _JoinedType, declared: Field) -> None:
        name, type_ = declared.name, declared.type.as_nullable(False)
        column = self._columns.setdefault(name, type_)
        if type_.protected and not column.protected and _may_be_protected(name, column):
            column = self._columns[name] = type_
        joined.required[name] += not declared.type.nullable
        is_covered = bool(column.protected) and _may_be_protected(name, type_)
        if type_ != column and not is_covered:
            return
        if type_.kind is Kind.ID:
            if joined.id_field not in (None, name):  # an event has one id
                return
            joined.id_field = name
        joined.names.setdefault(name)

    def schema(self) -> Schema:
        """Return the event types that have an id and a time."""
        whole = {
            name: joined
            for name, joined in self._types.items()
            if joined.id_field is not None and TIME_FIELD in joined.names
        }
        # A pattern that reads a null may emit it into an event that it produces.
        may_emit_null = any(
            0 < joined.required[name] < joined.texts_count
            for joined in whole.values()
            for name in joined.names
            if not joined.is_always_there(name)
        )
        return Schema(tuple(self._event_type(name, joined, may_emit_null) for name, joined in whole.items()))

    def _event_type(self, name: str, joined: _JoinedType, may_emit_null: bool) -> EventType:
        fields = []
        for field_name in joined.names:
            is_identity = field_name in (TIME_FIELD, joined.id_field)
            is_nullable = not joined.is_always_there(field_name) or (joined.derived and may_emit_null)
            fields.append(Field(field_name, self._columns[field_name].as_nullable(is_nullable and not is_identity)))
        order_field = joined.order_field if joined.order_field in joined.names else ""
        return EventType(name, tuple(fields), joined.retain_ms, joined.derived, order_field)


def _may_be_protected(name: str, type_: Type) -> bool:
    """Return False for the fields by which an event is identified: their types never change."""
    return type_.kind is not Kind.ID and name != TIME_FIELD
