"""A whole KeyedState, runs and histories, as one block that can be read without a store.

    page | head | segments, each with its number        sheets.py; the parts are from pages.py and past.py

A job's state moves to another job in this form. A running job stores the parts separately.
Tested by: tests/state/test_pages.py
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from cep.engine.keyed_state import KeyedState
from cep.histories.pages import detach_segments
from cep.histories.rows import Block
from cep.histories.store import StoredSegment
from cep.state.pages import decode_page, encode_page
from cep.state.past import SegmentCache, decode_head, decode_segment, encode_head, store_segments
from cep.state.sheets import decode_sheet, encode_sheet

WHOLE_FORMAT = 1
_KIND = "keyed state"


def encode_whole(keyed_state: KeyedState) -> bytes:
    """Encode a keyed state with its histories as one value. Every segment is read."""
    written: dict[int, bytes] = {}
    histories = replace(keyed_state.histories, segments=detach_segments(keyed_state.histories.segments))

    def no_load(stored: StoredSegment) -> Block:
        raise AssertionError(f"{stored} is in memory")

    head = encode_head(store_segments(histories, written.__setitem__, no_load, SegmentCache(0)))
    columns = {
        "page": pa.array([encode_page(keyed_state)], pa.large_binary()),
        "head": pa.array([head], pa.large_binary()),
        "number": pa.array(list(written), pa.int64()),
        "segment": pa.array(list(written.values()), pa.large_binary()),
    }
    return encode_sheet(_KIND, {"format": WHOLE_FORMAT}, columns)


def decode_whole(data: bytes) -> KeyedState:
    """Invert `encode_whole`. Raises: as decode_sheet, decode_page, decode_head."""
    _, columns = decode_sheet(_KIND, (WHOLE_FORMAT,), data)
    segments = dict(zip(columns["number"].to_pylist(), columns["segment"], strict=True))

    def load(stored: StoredSegment) -> Block:
        return decode_segment(segments[stored.number].as_py())

    histories = decode_head(columns["head"][0].as_py(), load)
    return replace(decode_page(columns["page"][0].as_py()), histories=histories)
