"""A page, the runs of some keys of one key group ↔ bytes (sheets.py). Histories are kept apart (past.py).

    runs, run_rule, run_key | nodes | keys | event_key, event_id, event_type, event_time | field:NAME …
    about: page format, width of a run, fingerprint and layout of the program that wrote it

Bytes of another format are refused by name. A page written for other rules is carried over by `engine.migrate`.
Tested by: tests/state/test_pages.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cep.engine.keyed_state import KeyedState, Layout, RetainedEvents
from cep.kernels.layout import NODE_WIDTH
from cep.state.sheets import decode_sheet, encode_sheet

PAGE_FORMAT = 4
EARLIER_PAGE_FORMAT = 3  # of 0.2.0: averages and spreads have other registers
REGISTERS_FORMAT = 2  # 1, which 0.2.0 did not write down, had rounded averages
_PAGE = "page"
_FIELD = "field:"


@dataclass(frozen=True, slots=True)
class StoredPage:
    """A page in a store: its key group, its key fields and its bytes."""

    key_group: int
    domain: tuple[str, ...]
    content: bytes


def layout_of(about: Mapping[str, Any]) -> Layout:
    """Return the layout that `fingerprint`, `rules` and `registers` of a page's or a shape's JSON describe."""
    rules = tuple(((i[0], i[1], i[2]), first, count) for i, first, count in about["rules"])
    return Layout(about["fingerprint"], rules, is_earlier=about.get("registers", 1) < REGISTERS_FORMAT)


def layout_json(layout: Layout) -> dict[str, Any]:
    """Return the JSON that `layout_of` reads."""
    assert not layout.is_earlier, "only runs of this build are stored"
    return {"fingerprint": layout.fingerprint, "rules": layout.rules, "registers": REGISTERS_FORMAT}


def encode_page(keyed_state: KeyedState, *, compressed: bool = False) -> bytes:
    """Encode the runs and their events as bytes, without the histories."""
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
    about = {
        "format": PAGE_FORMAT,
        "width": keyed_state.runs.shape[1],
        **layout_json(keyed_state.layout),
    }
    return encode_sheet(_PAGE, about, columns, compressed=compressed)


def decode_page(data: bytes) -> KeyedState:
    """Decode the bytes of `encode_page` to a KeyedState without histories.

    Raises: StateFormatError for another page or block format, StateCorruptError for bytes that fail their checksum.
    """
    about, columns = decode_sheet(_PAGE, (PAGE_FORMAT, EARLIER_PAGE_FORMAT), data)

    def numbers(name: str) -> np.ndarray:
        return np.array(columns[name])  # a copy: kernels write into runs and nodes

    return KeyedState(
        layout_of(about),
        columns["keys"],
        numbers("runs").reshape(-1, about["width"]),
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
    )
