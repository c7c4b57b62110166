"""The rules of this repository find all planted frauds of the demo and no other match, by the brute-force oracle."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from cep.base.schema import EventType, Kind
from cep.demo.stream import StreamSize, build
from cep.lang.check.bind import bind
from cep.lang.load import load_text
from cep.rulebook.files import read_rules
from tests.oracle.matcher import Event, find_matches

ROOT = Path(__file__).parents[2]
SIZE = StreamSize(cards_count=150, payments_per_card=12)


def slot(value: Any, event_type: EventType, name: str) -> Any:
    """Return the slot content of a value, as in the table."""
    field = event_type.field(name)
    assert field is not None
    if value is None:
        return None
    if field.type.kind is Kind.DECIMAL:
        return int(value.scaleb(field.type.scale))
    if field.type.kind is Kind.ENUM:
        return field.type.symbols.index(value)
    return value


def events_by(key: str, payments: pa.Table, event_type: EventType) -> dict[str, list[Event]]:
    milliseconds = payments.set_column(1, "event_time", payments["event_time"].cast(pa.int64()))
    events = defaultdict(list)
    for order, row in enumerate(milliseconds.to_pylist()):
        fields = {name: slot(value, event_type, name) for name, value in row.items()}
        events[row[key]].append(Event(row["tx_id"], event_type.name, row["event_time"], order, fields))
    return events


def test_the_rules_find_what_is_planted_and_nothing_else() -> None:
    stream = build(11, SIZE)
    records, problems = read_rules(ROOT / "rules")
    assert problems == []
    alerts = set()
    for record in records:
        checked = load_text(record.source, record.id)
        (event_type,) = checked.schema.event_types
        pattern, _ = bind(checked.patterns[record.pattern], record.params)
        assert pattern is not None
        (key,) = pattern.key
        for value, events in events_by(key, stream.payments, event_type).items():
            for match in find_matches(pattern, events).matches:
                alerts.add((record.id, value, tuple(tx_id for _, tx_id in match.bindings)))
    assert alerts == {(case.rule_id, case.key, case.tx_ids) for case in stream.planted if case.fires}
