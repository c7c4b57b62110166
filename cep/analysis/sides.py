"""Events that name a key in several fields → one event for each of these fields, as patterns with `produce` make them.

    transfer payer=a payee=b ─┬─▶ transfer_payer party=a …     mined by party: what an account receives and sends
                              └─▶ transfer_payee party=b …

So a sequence may go over both sides of an account, like money that comes in and leaves at once. The mined events are
made here over columns; the patterns of the text make equal ones in every runner.
Tested by: tests/analysis/test_suggest.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from cep.analysis.history import Events
from cep.analysis.marks import Marks
from cep.analysis.suggested_text import declarations
from cep.base.errors import UsageError
from cep.base.schema import TIME_FIELD, EventType, Field, Kind, Schema, Type
from cep.columnar.batch import TEXT
from cep.model.rule import UpsertRecord

JOIN = "+"  # between the fields of a key, as in payer+payee
_PARTY = "party"
_ID = "side_id"


@dataclass(frozen=True, slots=True)
class Sides:
    """The events of all sides with their key, their marks, the text that makes them, and its patterns."""

    events: Events
    marks: Marks
    key: str
    text: str
    producers: tuple[str, ...]


def sides_of(events: Events, marks: Marks, fields: Sequence[str]) -> Sides:
    """Split each event into one event per field of the key, so that a transfer counts for its payer and for its payee.

    Raises: UsageError for fields of different types.
    """
    types = events.schema.columns()
    key_type = types[fields[0]].as_nullable(False)
    if any(types[name].as_nullable(False) != key_type for name in fields):
        raise UsageError(f"--key {JOIN.join(fields)}: the fields have different types, so no value is in both")
    used_names = set(types)
    key, id_ = (f"{name}_" if name in used_names else name for name in (_PARTY, _ID))
    side_types: list[EventType] = []
    rows, codes, parts, texts, producers = [], [], list[pa.Array](), list[str](), list[str]()
    for code, event_type in enumerate(events.schema.event_types):
        for name in fields:
            if event_type.derived or name not in event_type.types:
                continue
            values = [field for field in event_type.fields if field.name in events.columns]
            side_fields = (Field(id_, Type(Kind.ID)), Field(TIME_FIELD, Type(Kind.TIME)), Field(key, key_type), *values)
            side = EventType(f"{event_type.name}_{name}", side_fields)
            side_rows = np.flatnonzero((events.event_type == code) & np.asarray(events.columns[name].is_valid()))
            rows.append(side_rows)
            codes.append(np.full(len(side_rows), len(side_types), np.int16))
            parts.append(events.columns[name].take(pa.array(side_rows)))
            producers.append(f"side_{event_type.name}_{name}")
            texts.append(_producer(producers[-1], event_type, side, (key, name)))
            side_types.append(side)
    row, schema = np.concatenate(rows), Schema(tuple(side_types))
    columns = {name: column.take(pa.array(row)) for name, column in events.columns.items()}
    ids = events.event_id.take(pa.array(row)).cast(TEXT)
    mined = Events(schema, ids, np.concatenate(codes), events.time_ms[row], {**columns, key: pa.concat_arrays(parts)})
    marked = replace(marks, fraud=marks.fraud[row], is_mature=marks.is_mature[row])
    return Sides(mined, marked, key, "\n\n".join([declarations(schema), *texts]), tuple(producers))


def _producer(name: str, event_type: EventType, side: EventType, key_and_field: tuple[str, str]) -> str:
    """Write the pattern that produces the events of one side."""
    key, field = key_and_field
    values = [f"{each.name} = t.{each.name}" for each in side.fields[3:]]
    emitted = (",\n" + " " * 11).join([f"{key} = t.{field}", *values])
    return "\n".join([
        f"## Makes an event of each {event_type.name} for its {field}.",
        f"pattern {name}",
        f"  by {field}",
        "{",
        "  seq      t",
        f"  where    t: {event_type.name}",
        f"  emit     {emitted}",
        f"  produce  {side.name}",
        "}",
    ])  # fmt: skip


def live_rules(source: str, names: Sequence[str]) -> list[UpsertRecord]:
    """Return a live rule for each of these patterns of the text."""
    return [
        UpsertRecord(
            id=name, version=1, pattern=name, status="live", severity="low", owner="suggest", message="{key}",
            source=source,
        )
        for name in names
    ]  # fmt: skip
