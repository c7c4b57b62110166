"""Declared keyed state: a name, what kind of thing it is, the fields of its values, how long they live.

    value        one row                       reducing      one row, combined with each that is added
    list         rows in their order           aggregating   an accumulator row, from which a result is made
    map          text → row

A row is a mapping from field name to value; fields have the types of events (base/schema.py).
Tested by: tests/state/test_registry.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cep.base.schema import EventType, Field, Schema

Row = Mapping[str, Any]


class StateKind(StrEnum):
    """What is kept under one key."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    REDUCING = "reducing"
    AGGREGATING = "aggregating"


class TtlTime(StrEnum):
    """The clock by which a value ages: the event time that the job has come to, or this machine's."""

    EVENT = "event"
    PROCESSING = "processing"


class Cleanup(StrEnum):
    """How expired values leave the disk.

    At a checkpoint, by a walk over the store that the runner asks for; a few with every sixteenth access; or whole time
    buckets at once, as ranges, whose bytes the store drops when it next compacts them.
    """

    CHECKPOINT = "checkpoint"
    ACCESS = "access"
    COMPACTION = "compaction"


@dataclass(frozen=True, slots=True)
class Ttl:
    """How long a value lives after it was written, and with `refresh_on_read` after it was last read.

    Units: milliseconds. An expired value is not returned, unless `return_expired`: then until it has been cleaned up.
    Entries of a map and elements of a list age one by one.
    """

    duration_ms: int
    time: TtlTime
    refresh_on_read: bool = False
    return_expired: bool = False
    cleanup: Cleanup = Cleanup.CHECKPOINT


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A declared state. `fields` are those of a row (of the accumulator, for `aggregating`)."""

    name: str
    kind: StateKind
    fields: tuple[Field, ...]
    ttl: Ttl | None = None

    @property
    def is_bucketed(self) -> bool:
        """Whether its values lie by time first."""
        return self.ttl is not None and self.ttl.cleanup is Cleanup.COMPACTION

    def __str__(self) -> str:
        return described(self.name, self.kind, self.fields)


def described(name: str, kind: StateKind, fields: tuple[Field, ...]) -> str:
    """One line for an error message: `visits: map { last time, count int? }`."""
    return f"{name}: {kind.value} {{ {', '.join(f'{f.name} {f.type}' for f in fields)} }}"


def fields_to_json(fields: tuple[Field, ...]) -> Any:
    """Fields in the form that schemas have."""
    return Schema((EventType("", fields),)).to_json()[0]["fields"]


def fields_from_json(data: Any) -> tuple[Field, ...]:
    """The fields in that form."""
    return Schema.from_json([{"name": "", "fields": data}]).event_types[0].fields
