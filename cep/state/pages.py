"""A page: the KeyedState of a share of the keys of one key group, as bytes.

    one record batch of one row (columnar/codec.py); every column is a list, so lengths may differ

    runs, run_rule, run_key | nodes | keys | event_key, event_id, event_type, event_time | field:NAME …
    past_key, past_type, past_time | past:NAME …        events kept for histories
    metadata: page format, width of a run, fingerprint and layout of the program that wrote it

Bytes of another format are refused by name. A page written for other rules is carried over by `engine.fit`.
Tested by: tests/state/test_pages.py
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cep.base.errors import StateFormatError
from cep.columnar.codec import decode_table, encode_table
from cep.engine.history_rows import HistoryRows
from cep.engine.keyed_state import KeyedState, Layout, RetainedEvents
from cep.kernels.layout import NODE_WIDTH

PAGE_FORMAT = 2
_FIELD = "field:"
_PAST = "past:"


@dataclass(frozen=True, slots=True)
class StoredPage:
    """A page where it is kept: the key group and the key fields that it belongs to, and its bytes."""

    key_group: int
    domain: tuple[str, ...]
    content: bytes


def encode_page(keyed_state: KeyedState) -> bytes:
    """The page's bytes."""
    events = keyed_state.events
    columns: dict[str, pa.Array] = {
        "runs": pa.array(keyed_state.runs.reshape(-1)),
        "run_rule": pa.array(keyed_state.run_rule),
        "run_key": pa.array(keyed_state.run_key),
        "nodes": pa.array(keyed_state.nodes.reshape(-1)),
        "keys": keyed_state.keys,
        "event_key": pa.array(events.key),
        "event_id": events.event_id,
        "event_type": pa.array(events.event_type),
        "event_time": pa.array(events.time_ms),
    }
    columns |= {_FIELD + name: column for name, column in events.columns.items()}
    columns |= _history_columns(keyed_state.histories)
    arrays = [pa.LargeListArray.from_arrays(pa.array([0, len(c)], pa.int64()), c) for c in columns.values()]
    meta = {
        "format": PAGE_FORMAT,
        "width": keyed_state.runs.shape[1],
        "fingerprint": keyed_state.layout.fingerprint,
        "rules": keyed_state.layout.rules,
    }
    schema = pa.schema(
        [pa.field(n, a.type) for n, a in zip(columns, arrays, strict=True)], metadata={"page": json.dumps(meta)}
    )
    return encode_table(pa.RecordBatch.from_arrays(arrays, schema=schema))


def decode_page(data: bytes) -> KeyedState:
    """The KeyedState in a page's bytes.

    Raises: StateFormatError for another page or block format, StateCorruptError for bytes that fail their checksum.
    """
    table = decode_table(data)
    meta = json.loads((table.schema.metadata or {}).get(b"page", b"{}"))
    if meta.get("format") != PAGE_FORMAT:
        raise StateFormatError(
            f"a page has format {meta.get('format')}, this build reads {PAGE_FORMAT}; "
            "start from an empty checkpoint directory, or with the build that wrote it"
        )
    columns = {name: table.column(at).values for at, name in enumerate(table.schema.names)}

    def numbers(name: str) -> np.ndarray:
        return np.array(columns[name])  # a copy: kernels write into runs and nodes

    rules = tuple(((i[0], i[1], i[2]), first, count) for i, first, count in meta["rules"])
    return KeyedState(
        Layout(meta["fingerprint"], rules),
        columns["keys"],
        numbers("runs").reshape(-1, meta["width"]),
        numbers("run_rule"),
        numbers("run_key"),
        numbers("nodes").reshape(-1, NODE_WIDTH),
        RetainedEvents(
            numbers("event_key"),
            columns["event_id"],
            numbers("event_type"),
            numbers("event_time"),
            {n.removeprefix(_FIELD): c for n, c in columns.items() if n.startswith(_FIELD)},
        ),
        HistoryRows(
            numbers("past_key"),
            numbers("past_type"),
            numbers("past_time"),
            {n.removeprefix(_PAST): c for n, c in columns.items() if n.startswith(_PAST)},
        ),
    )


def _history_columns(past: HistoryRows) -> dict[str, pa.Array]:
    fixed = {"past_key": past.key, "past_type": past.event_type, "past_time": past.time_ms}
    columns = {name: pa.array(values) for name, values in fixed.items()}
    return columns | {_PAST + name: column for name, column in past.columns.items()}
