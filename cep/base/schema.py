"""The types that events, parameters and expressions have, and the event types of a job.

Every value is one 64-bit slot in the kernels: an int64 (int, scaled decimal, bool, enum code, time and duration in
milliseconds, dictionary code of a string) or the bits of a float64.

`valueclass` makes dataclasses that count as frozen and are created as fast as mutable ones: a frozen dataclass sets
each field past its guard, and a syntax tree has a hundred thousand of them. So these classes are mutable, with the hash
of frozen ones, and only mypy enforces the guard. With the guard, 400 patterns take 1.15 times as long to load.
Tested by: tests/base/test_schema.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cep.base.secrets import PAN, SENSITIVE
from cep.base.text import of_type, texts

__all__ = ["field_values", "valueclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass as valueclass
else:

    def valueclass(*, frozen: bool, slots: bool) -> Any:
        """Make a class a dataclass that is equal, hashed and shown like a frozen one."""
        return dataclass(unsafe_hash=frozen, slots=slots)


def field_values(value: Any) -> tuple[Any, ...]:
    """Return the values of a dataclass, to rebuild a class that caches its hash in a process with other hashes."""
    return tuple(getattr(value, f.name) for f in fields(value))


class Kind(StrEnum):
    """The kinds of value a rule author can name."""

    ID = "id"
    STRING = "string"
    INT = "int"
    DECIMAL = "decimal"
    FLOAT = "float"
    BOOL = "bool"
    ENUM = "enum"
    TIME = "time"
    DURATION = "duration"
    LIST = "list"  # only for a parameter: the name of a list. The one symbol of its Type is the type of its entries.
    NULL = "null"  # the type of the literal `null` alone

    __hash__ = str.__hash__  # for speed: hashes of expressions need it often, and an enum's own hash is Python code


TIME_FIELD = "event_time"  # the field that holds the time of an event; its other times are values like any
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TEXT_KINDS = (Kind.ID, Kind.STRING)
NO_KEY_KINDS = (Kind.FLOAT, Kind.TIME, Kind.DURATION)
NUMBER_KINDS = (Kind.INT, Kind.DECIMAL, Kind.FLOAT)


@valueclass(frozen=True, slots=True)
class Type:
    """A value type. `scale`: the digits after the point of a DECIMAL. `symbols`: the names of an ENUM in the order of
    their codes, or the kind of the entries of a LIST. `protected`: `pan` (the number of a payment card) or `sensitive`
    for a text that is replaced by a token while it is decoded (base/secrets.py)."""

    kind: Kind
    nullable: bool = False
    scale: int = 0
    symbols: tuple[str, ...] = ()
    protected: str = ""

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    @property
    def is_text(self) -> bool:
        return self.kind in TEXT_KINDS

    @property
    def is_number(self) -> bool:
        return self.kind in NUMBER_KINDS

    def as_nullable(self, nullable: bool = True) -> Type:
        return self if self.nullable == nullable else replace(self, nullable=nullable)

    def __str__(self) -> str:
        if self.kind is Kind.DECIMAL:
            text = f"decimal({self.scale})"
        elif self.kind is Kind.ENUM:
            text = f"enum({', '.join(map(shown_symbol, self.symbols))})"
        elif self.kind is Kind.LIST:
            text = f"list of {self.symbols[0]}"
        else:
            text = self.protected if self.protected == PAN else self.kind.value
        text = text + "?" if self.nullable else text
        return f"{text} {SENSITIVE}" if self.protected == SENSITIVE else text


def is_word(symbol: str) -> bool:
    """Return True if a symbol of an enum can be written without quotes."""
    return _WORD.fullmatch(symbol) is not None


def shown_symbol(symbol: str) -> str:
    """Return a symbol as a pattern has it: `declined`, `"3DS"`."""
    escaped = symbol.replace("\\", "\\\\").replace('"', '\\"')
    return symbol if is_word(symbol) else f'"{escaped}"'


def list_type(kind: str) -> Type:
    """Return the type of a list of string, int, decimal(n), prefix or cidr."""
    return Type(Kind.LIST, symbols=(kind,))


def list_kind(type_: Type) -> str:
    """Return the kind of a list's entries."""
    assert type_.kind is Kind.LIST
    return type_.symbols[0]


@valueclass(frozen=True, slots=True)
class Field:
    """One field of an event type."""

    name: str
    type: Type


@dataclass(frozen=True)  # without slots: it remembers its fields by name
class EventType:
    """An event type. Its one field of kind ID and the field `event_time` identify an event; other times are values.

    `retain_ms`: past events are kept at least this long; None: as long as a rule needs them. `derived`: a pattern
    produces the events. `order_field`: the field that orders events of the same time; if it is equal, arrival decides.
    """

    name: str
    fields: tuple[Field, ...]
    retain_ms: int | None = None
    derived: bool = False
    order_field: str = ""

    @property
    def id_field(self) -> str:
        return next(f.name for f in self.fields if f.type.kind is Kind.ID)

    @property
    def time_field(self) -> str:
        return TIME_FIELD

    @property
    def times(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.fields if f.type.kind is Kind.TIME)

    @cached_property
    def types(self) -> Mapping[str, Type]:
        return {f.name: f.type for f in self.fields}

    @cached_property
    def _by_name(self) -> Mapping[str, Field]:
        return {f.name: f for f in reversed(self.fields)}  # reversed: of two with one name, the first counts

    def field(self, name: str) -> Field | None:
        return self._by_name.get(name)

    def __reduce__(self) -> tuple[type[EventType], tuple[Any, ...]]:
        return EventType, field_values(self)


# A derived event's statements about the completeness of the past, as in an alert, and its source events
# (engine/alerts.py): columns that no pattern can name.
DERIVED_COMPLETE_FROM, DERIVED_FLAGS, DERIVED_ORIGINS = "history from", "history told", "made of"
FLAG_CUT, FLAG_FOLDED = 1, 2  # together in DERIVED_FLAGS
DERIVED_COLUMNS = {
    DERIVED_COMPLETE_FROM: Type(Kind.TIME, nullable=True),
    DERIVED_FLAGS: Type(Kind.INT, nullable=True),
    DERIVED_ORIGINS: Type(Kind.STRING, nullable=True),
}


@dataclass(frozen=True)
class ColumnUse:
    """A column of a job and its use. A tuple has one value for each event type, in the order of the types' codes."""

    name: str
    type: Type
    has_field: tuple[bool, ...]
    is_required: tuple[bool, ...]
    is_id: tuple[bool, ...]
    is_time: bool  # one value, because the time of an event has the same field in all types
    is_order: tuple[bool, ...]

    @cached_property
    def is_everywhere(self) -> bool:
        return all(self.has_field)

    @cached_property
    def is_always_id(self) -> bool:
        return all(self.is_id)

    @cached_property
    def may_be_id(self) -> bool:
        return any(self.is_id)


@dataclass(frozen=True)
class Schema:
    """The event types of a job, in declaration order. The index of a type is its code in an EventBatch.

    A field name has one kind (and scale, and symbols) in all event types, so that a job has one column for it;
    nullability may differ. The check of pattern files and the rulebook refuse a clash.
    """

    event_types: tuple[EventType, ...]

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Schema], tuple[Any, ...]]:
        return Schema, field_values(self)

    @cached_property
    def _hash(self) -> int:
        return hash(self.event_types)

    def event_type(self, name: str) -> EventType | None:
        return next((e for e in self.event_types if e.name == name), None)

    def code(self, event_type: str) -> int:
        return next(i for i, e in enumerate(self.event_types) if e.name == event_type)

    def columns(self) -> dict[str, Type]:
        """Return each field name with its type, nullable if an event may lack it, and the columns of derived events."""
        return dict(self._columns)

    @cached_property
    def source_codes(self) -> tuple[int, ...]:
        """The codes of the event types that come from sources; patterns produce the others."""
        return tuple(code for code, event_type in enumerate(self.event_types) if not event_type.derived)

    @cached_property
    def _columns(self) -> dict[str, Type]:
        columns = dict(DERIVED_COLUMNS) if any(e.derived for e in self.event_types) else {}
        for event_type in self.event_types:
            for field in event_type.fields:
                earlier = columns.get(field.name)
                absent = any(e.field(field.name) is None for e in self.event_types)
                nullable = field.type.nullable or absent or (earlier is not None and earlier.nullable)
                columns[field.name] = field.type.as_nullable(nullable)
        return columns

    @cached_property
    def time_fields(self) -> frozenset[str]:
        return frozenset(e.time_field for e in self.event_types)

    @cached_property
    def never_null(self) -> frozenset[str]:
        """The fields that are never null where they exist: ids and times. Unreadable values of others are null."""
        fields = [(f.name, f.name in (e.id_field, e.time_field)) for e in self.event_types for f in e.fields]
        return frozenset(name for name, _ in fields) - {name for name, is_needed in fields if not is_needed}

    @cached_property
    def protected(self) -> tuple[tuple[str, Type], ...]:
        """The fields whose values are replaced by tokens, each with its type, not nullable."""
        return tuple((name, type_.as_nullable(False)) for name, type_ in self._columns.items() if type_.protected)

    @cached_property
    def column_uses(self) -> tuple[ColumnUse, ...]:
        """How each event type uses each column. `is_time` is one value: the time has the same field in all types."""
        uses = []
        for name, type_ in self._columns.items():
            fields = [e.field(name) for e in self.event_types]
            uses.append(
                ColumnUse(
                    name,
                    type_,
                    has_field=tuple(f is not None for f in fields),
                    is_required=tuple(f is not None and not f.type.nullable for f in fields),
                    is_id=tuple(e.id_field == name for e in self.event_types),
                    is_time=any(e.time_field == name for e in self.event_types),
                    is_order=tuple(e.order_field == name for e in self.event_types),
                )
            )
        return tuple(uses)

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "name": event_type.name,
                "retain_ms": event_type.retain_ms,
                "derived": event_type.derived,
                **({"order_field": event_type.order_field} if event_type.order_field else {}),
                "fields": [
                    {
                        "name": field.name,
                        "kind": field.type.kind.value,
                        "nullable": field.type.nullable,
                        "scale": field.type.scale,
                        "symbols": list(field.type.symbols),
                        **({"protected": field.type.protected} if field.type.protected else {}),
                    }
                    for field in event_type.fields
                ],
            }
            for event_type in self.event_types
        ]

    @staticmethod
    def from_json(data: list[Mapping[str, Any]]) -> Schema:
        return Schema(tuple(map(_event_type_from_json, data)))


def _event_type_from_json(data: Mapping[str, Any]) -> EventType:
    fields = tuple(Field(of_type("a field", f["name"], str), _type_from_json(f)) for f in data["fields"])
    retain_ms = of_type("retain_ms", data.get("retain_ms"), int | None)
    order_field = of_type("order_field", data.get("order_field", ""), str)
    name, derived = of_type("an event type", data["name"], str), data.get("derived", False)
    return EventType(name, fields, retain_ms, derived, order_field)


def _type_from_json(data: Mapping[str, Any]) -> Type:
    nullable, scale = of_type("nullable", data["nullable"], bool), of_type("scale", data["scale"], int)
    protected = of_type("protected", data.get("protected", ""), str)
    return Type(Kind(data["kind"]), nullable, scale, texts("symbols", data["symbols"]), protected)


def misreadings(stored: Schema, schema: Schema) -> list[str]:
    """Return why keyed state that was written with one schema would be misread with another; [] if it would not.

    Fields may be added and dropped, and may become nullable, enums may gain symbols at their end, event types may be
    added after the others: columns go by name and have nulls, and codes keep their meaning. A decimal of another scale
    is refused: runs hold sums in units of the old one.
    """
    problems = []
    for code, before in enumerate(stored.event_types):
        after = schema.event_types[code] if code < len(schema.event_types) else None
        if after is None or after.name != before.name:
            problems.append(f"event type `{before.name}` is not in its place; new ones go after the old ones")
            continue
        for field in before.fields:
            now = after.field(field.name)
            if now is not None and not is_wider(now.type, field.type):
                problems.append(f"`{before.name}.{field.name}` was {field.type} and is {now.type}")
    return problems


def is_wider(type_: Type, other: Type) -> bool:
    """Return True if a value of the other type is the same slot in this one, which may have nulls and more symbols."""
    if type_ == other:
        return True
    nullable = type_.nullable or other.nullable
    return replace(type_, symbols=type_.symbols[: len(other.symbols)]) == other.as_nullable(nullable)
