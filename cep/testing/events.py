"""Scripted events → an EventBatch for the engine; an EventBatch → events that a trace can walk.

    test events ──columns──▶ Decoded ──route──▶ EventBatch (the engine's way in) ──▶ TracedEvent, by key

The values of histories and list memberships come from the engine: a history needs all events of a key, and a list has
versions, so a trace does not compute them again.
Tested by: tests/testing/test_harness.py
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.limits import TIME_MS_MAX
from cep.base.schema import Kind, Schema
from cep.columnar.batch import TEXT, EventBatch, arrow_type, data_columns
from cep.columnar.decode import Decoded, KeyDomain, route
from cep.columnar.order import rows_in_order
from cep.engine.keyed_state import empty_state
from cep.engine.table import prepare
from cep.lang.ir import Expr, PatternIR, ScriptedEvent, Slot
from cep.lang.show import show_expr
from cep.lists.store import NO_LISTS, Lists
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.testing.journal import TracedEvent

PastValues = Mapping[str, Mapping[str, Slot]]


def past_values(schema: Schema, pattern: PatternIR, batch: EventBatch, lists: Lists = NO_LISTS) -> PastValues:
    """Compute a pattern's histories (aggregates over past events) and list memberships, by event id and expression."""
    rule = DeployedRule(rule_id="past", version=1, epoch=1, content_hash="past", pattern=pattern)  # to compile it
    program = replace(compile_rules(schema, pattern.key, (rule,)), lists=lists)
    listed = ((number, column.computed) for number, column in enumerate(program.columns) if column.is_listed)
    computed: list[tuple[int, Expr]] = [(number, expr) for number, expr in listed if expr is not None]  # (column, expr)
    computed += [] if program.histories is None else [(h.number, h.expr) for h in program.histories.histories]
    if not computed or len(batch) == 0:
        return {}
    prepared = prepare(program, empty_state(program), batch, TIME_MS_MAX)  # a watermark after all events
    columns: dict[str, list[Slot]] = {}
    for number, expr in computed:
        columns[show_expr(expr)] = prepared.values(number, expr.type).to_pylist()
    ids = batch.event_id.take(pa.array(prepared.batch_rows)).to_pylist()
    return {event_id: {name: values[row] for name, values in columns.items()} for row, event_id in enumerate(ids)}


def batch_of(schema: Schema, events: Sequence[ScriptedEvent], domain: KeyDomain, start_ms: int) -> EventBatch:
    """Build a batch of a test's events. `domain`: the fields of a key. The times of the test count from `start_ms`."""
    rows = [dict(event.fields) for event in events]
    columns = {}
    for name, type_ in data_columns(schema).items():
        values = pa.array([row.get(name) for row in rows], arrow_type(type_))
        columns[name] = pc.add(values, start_ms) if type_.kind is Kind.TIME else values
    decoded = Decoded(
        pa.array([event.event_id for event in events], TEXT),
        np.array([schema.code(event.event_type) for event in events], np.int16),
        np.array([start_ms + event.time_ms for event in events], np.int64),
        columns,
        poison=(),  # no unreadable records
    )
    batch, unkeyed_count = route(decoded, domain, schema.columns())  # gives each event its key, as in a job
    assert unkeyed_count == 0, "the check gives every event of a test its key"
    return batch


def traced_events(
    schema: Schema, pattern: PatternIR, batch: EventBatch, past: PastValues | None = None, lists: Lists = NO_LISTS
) -> dict[str, tuple[TracedEvent, ...]]:
    """Return the events of each key in the engine's order (columnar/order.py), for a trace. An event has its fields and
    `past` values, which are computed from these events and lists by default. `ordinal` counts the pattern's events."""
    past = past_values(schema, pattern, batch, lists) if past is None else past
    names = list(batch.columns)
    columns = [batch.columns[name].to_pylist() for name in names]
    keys, ids = batch.key.to_pylist(), batch.event_id.to_pylist()
    order = rows_in_order(batch).tolist()
    by_key: dict[str, list[TracedEvent]] = {}
    ordinals = defaultdict[str, Iterator[int]](count)  # by key, the numbers 0, 1, …
    for row in order:
        event_type = schema.event_types[int(batch.event_type[row])]
        key_events = by_key.setdefault(keys[row], [])
        ordinal = next(ordinals[keys[row]]) if event_type.name in pattern.event_types else -1
        time_ms = int(batch.time_ms[row])
        fields = {name: column[row] for name, column in zip(names, columns, strict=True)}
        fields[event_type.time_field] = time_ms
        fields |= past.get(ids[row], {})
        key_events.append(TracedEvent(len(key_events), ids[row], event_type.name, time_ms, fields, ordinal))
    return {key: tuple(events) for key, events in by_key.items()}
