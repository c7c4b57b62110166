"""The forms in which pages and histories are stored, as bytes.

A page has the runs of some keys of one key group:

    runs, run_rule, run_key | nodes | keys | event_key, event_id, event_type, event_time | field:NAME …
    about: page format, width of a run, fingerprint and layout of the program that wrote it

Histories are kept apart. They have a head, rewritten when the page is touched, and segments that never change:

    head      keys | pinned_key, pinned_type, pinned_time | pinned:NAME …          events that alone decide a value
              tally:IDENTITY …                                                     counts and sums of windows, by key
              sub:key:IDENTITY, sub:sums:…, sub:0:… …                            and by sub-key, the fields of it; bands
              segment_first, _last, _span, _most, _number, _size, _digest          the segments and their periods
              segment_panes                                                        number of the panes; 0: events
              span_code, span_count, span_segment                                  their content
    segment   keys | key, type, time, span | field:NAME …

A segment is named by the hash of its bytes, so a segment that was read once can stay in memory. All are sheets, with
named columns of different lengths. A sheet of another format is refused by name:

    one record batch of one row (columnar/batch.py); every column is a list, so lengths may differ
    metadata: KIND → JSON with the format, and further values of the writer

A job's state moves to another job as whole keyed states, each one block that can be read without a store:

    page | head | segments, each with its number        the three parts in the forms above

Tested by: tests/state/test_pages.py.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from cep.base.errors import StateFormatError
from cep.columnar.batch import decode_table, encode_table
from cep.engine.keyed_state import KeyedState, Layout, RetainedEvents
from cep.histories import store
from cep.histories.pages import detach_segments
from cep.kernels.layout import NODE_WIDTH

_BOUNDS = struct.Struct("<qq")


def encode_sheet(
    kind: str, about: Mapping[str, Any], columns: Mapping[str, pa.Array], *, compressed: bool = False
) -> bytes:
    """Return the columns as bytes; `about` has the `format`."""
    arrays = [_row(column) for column in columns.values()]
    fields = [pa.field(name, array.type) for name, array in zip(columns, arrays, strict=True)]
    schema = pa.schema(fields, metadata={kind: json.dumps(about)})
    return encode_table(pa.RecordBatch.from_arrays(arrays, schema=schema), compressed=compressed)


def _row(column: pa.Array) -> pa.Array:
    """Return the column as the one row of a list column, from buffers: Arrow is slow to take Python's lists."""
    bounds = pa.py_buffer(_BOUNDS.pack(0, len(column)))
    return pa.LargeListArray.from_buffers(pa.large_list(column.type), 1, [None, bounds], children=[column])


def decode_sheet(kind: str, formats: Sequence[int], data: bytes) -> tuple[dict[str, Any], dict[str, pa.Array]]:
    """Decode a sheet (named columns as bytes, from `encode_sheet`). Return its description, and its arrays by name.

    `formats` are the versions that are accepted. Arrays point into `data` if it is not compressed. Raises:
    StateFormatError for another version, StateCorruptError."""
    table = decode_table(data)  # one row; each column has all its values as one list
    about = json.loads((table.schema.metadata or {}).get(kind.encode(), b"{}"))
    if about.get("format") not in formats:
        raise StateFormatError(
            f"a {kind} has format {about.get('format')}, this build reads {formats[0]}; "
            "start from an empty checkpoint directory, or with the build that wrote it"
        )
    return about, {name: table.column(number).values for number, name in enumerate(table.schema.names)}


PAST_FORMAT = 2
HEAD_FORMAT = 4
_HEAD, _SEGMENT = "page of histories", "segment of a history"
_FACT_NAMES = ("identities", "carried", "crowded", "panes")
_PINNED, _TALLY, _FIELD, _SUB = "pinned:", "tally:", "field:", "sub:"

V = TypeVar("V")
Load = Callable[[store.StoredSegment], store.Block]


@dataclass(frozen=True, slots=True)
class StoredPast:
    """A page of histories in a store: the bytes of its head and, if they were read, of its segments by number."""

    key_group: int
    domain: tuple[str, ...]
    head: bytes
    segments: Mapping[int, bytes] = field(default_factory=dict)


def encode_head(histories: store.Histories) -> bytes:
    """Encode the head of a page (the past of a few keys). It has pinned events, each of which can be a result by itself
    (such as a maximum), and tallies (running counts and sums), also by a second key. It refers to segments: stored
    blocks of past events, or of panes (aggregates of time slices). Windows need an event for 2^(span code) ms."""
    pinned, segments = histories.pinned, histories.segments
    stored_segments = [segment.stored for segment in segments]
    assert all(stored_segments), "segments are written before their head"
    span_rows = [  # how many events of a segment have a span code
        (code, count, number)
        for number, segment in enumerate(segments)
        for code, count in segment.counts_by_span.items()
    ]
    columns: dict[str, pa.Array] = {
        "keys": histories.keys,
        "pinned_key": pa.array(pinned.key),
        "pinned_type": pa.array(pinned.event_type.astype(np.int16)),
        "pinned_time": pa.array(pinned.time_ms),
        "segment_first": _integers([s.first_ms for s in segments]),
        "segment_last": _integers([s.last_ms for s in segments]),
        "segment_span": _integers([s.span_ms for s in segments]),
        "segment_most": _integers([s.busiest_key_events for s in segments]),
        "segment_number": _integers([stored.number for stored in stored_segments if stored]),
        "segment_size": _integers([stored.size for stored in stored_segments if stored]),
        "segment_digest": pa.array([stored.digest for stored in stored_segments if stored], pa.string()),
        "segment_panes": _integers([s.panes_number for s in segments]),
        "span_code": _integers([code for code, _, _ in span_rows]),
        "span_count": _integers([count for _, count, _ in span_rows]),
        "span_segment": _integers([number for _, _, number in span_rows]),
    }
    columns |= {_PINNED + name: column for name, column in pinned.columns.items()}
    columns |= {_TALLY + name: pa.array(tally.reshape(-1)) for name, tally in histories.tallies.items()}
    for name, entries in histories.sub_tallies.items():
        arrays = pa.array(entries.key), pa.array(entries.sums.reshape(-1)), *entries.by
        columns |= dict(zip(_sub_columns(name, len(entries.by)), arrays, strict=True))
    facts = histories.facts  # which histories and panes the page has in full
    about: dict[str, object] = {"clock": facts.clock_ms, "loose": histories.excess_allowed}  # loose: a tolerated excess
    about |= {name: sorted(getattr(facts, name)) for name in _FACT_NAMES}
    about["sub_tallies"] = {name: len(entries.by) for name, entries in histories.sub_tallies.items()}
    return encode_sheet(_HEAD, {"format": HEAD_FORMAT, **about}, columns)


def decode_head(data: bytes, load: Load) -> store.Histories:
    """Decode the head of a page (the past of a few keys). It has pinned events, each of which can be a result by itself
    (such as a maximum); tallies (running counts and sums); sub-tallies, by a second key; and its segments: stored
    blocks of past events, or of panes (aggregates). `load` reads a segment later. Raises: as decode_sheet."""
    about, columns = decode_sheet(_HEAD, (HEAD_FORMAT,), data)  # the head's description, and its columns
    lists = {
        name: column.to_pylist() if name == "segment_digest" else np.asarray(column).tolist()
        for name, column in columns.items()
        if name.startswith(("segment_", "span_"))
    }
    spans_by_segment: list[dict[int, int]] = [{} for _ in lists["segment_first"]]
    for code, count, segment_index in zip(lists["span_code"], lists["span_count"], lists["span_segment"], strict=True):
        spans_by_segment[segment_index][code] = count  # this many events are needed by windows for 2^code ms
    segments = []
    segment_columns = ("panes", "number", "size", "digest", "first", "last", "span", "most")
    segment_rows = zip(spans_by_segment, *(lists[f"segment_{name}"] for name in segment_columns), strict=True)
    for counts, panes, number, size, digest, first, last, span, busiest in segment_rows:  # busiest: a key's most events
        stored = store.StoredSegment(number, size, digest)
        segments.append(
            store.Segment(first, last, span, counts, busiest, partial(load, stored), stored, panes_number=panes)
        )
    # The zeros stand for span codes, which pinned events do not have.
    pinned = store.HistoryRows(
        np.asarray(columns["pinned_key"]), np.asarray(columns["pinned_type"]).astype(np.int64),
        np.asarray(columns["pinned_time"]), np.zeros(len(columns["pinned_key"]), np.int8), _fields(columns, _PINNED),
    )  # fmt: skip
    tallies = {
        name: np.asarray(flat).reshape(-1, store.tally_width(name)) for name, flat in _fields(columns, _TALLY).items()
    }
    subs = {}
    for name, count in about["sub_tallies"].items():
        key, sums, *by = (columns[column] for column in _sub_columns(name, count))  # by: the fields of the second key
        subs[name] = store.SubTallies(np.asarray(key), tuple(by), np.asarray(sums).reshape(-1, store.tally_width(name)))
    identities = {name: frozenset(about[name]) for name in _FACT_NAMES}  # which histories the page has in full
    facts, excess_allowed = store.PageFacts(about["clock"], **identities), about["loose"]
    return store.Histories(columns["keys"], pinned, tuple(segments), excess_allowed, facts, tallies, subs)


def encode_segment(block: store.Block) -> bytes:
    """Encode the block of past events of a segment; 2^span ms after an event, no window includes it any more."""
    rows = block.rows
    columns: dict[str, pa.Array] = {
        "keys": block.keys, "key": pa.array(rows.key), "type": pa.array(rows.event_type.astype(np.int16)),
        "time": pa.array(rows.time_ms), "span": pa.array(rows.span),
    }  # fmt: skip
    columns |= {_FIELD + name: column for name, column in rows.columns.items()}
    return encode_sheet(_SEGMENT, {"format": PAST_FORMAT}, columns)


def decode_segment(data: bytes) -> store.Block:
    """Return the events of a segment. Raises: as decode_sheet."""
    _, columns = decode_sheet(_SEGMENT, (PAST_FORMAT,), data)
    key, event_type, time_ms, span = (np.asarray(columns[name]) for name in ("key", "type", "time", "span"))
    rows = store.HistoryRows(key, event_type.astype(np.int64), time_ms, span, _fields(columns, _FIELD))
    return store.Block(columns["keys"], rows)


def store_segments(
    histories: store.Histories, put: Callable[[int, bytes], None], load: Load, cache: SegmentCache[store.Block]
) -> store.Histories:
    """Write the segments (blocks of past events) that are only in memory, with `put(number, bytes)`. Return the same
    histories, in which each segment is now stored."""
    number = max((s.stored.number for s in histories.segments if s.stored), default=-1) + 1
    segments = []
    for segment in histories.segments:
        if segment.stored is None:
            data = encode_segment(segment.load())
            digest = hashlib.sha256(data, usedforsecurity=False).hexdigest()[:32]
            stored, number = store.StoredSegment(number, len(data), digest), number + 1
            put(stored.number, data)
            cache.put(stored.digest, segment.load())
            segment = replace(segment, stored=stored, load=partial(load, stored))  # noqa: PLW2901 it is stored now
        segments.append(segment)
    return replace(histories, segments=tuple(segments))


def digests_of(histories: store.Histories) -> dict[int, str]:
    """Map the number of each stored segment to the hash of its bytes."""
    return {segment.stored.number: segment.stored.digest for segment in histories.segments if segment.stored}


class SegmentCache(Generic[V]):
    """The values that were read or written last, by the hash of their bytes, up to a number of bytes; None: all."""

    def __init__(self, bytes_max: int | None, size: Callable[[V], int] = attrgetter("nbytes")) -> None:
        self._bytes_max = bytes_max
        self._size = size
        self._values: OrderedDict[str, V] = OrderedDict()
        self.nbytes = 0

    def get(self, digest: str) -> V | None:
        if digest not in self._values:
            return None
        self._values.move_to_end(digest)
        return self._values[digest]

    def put(self, digest: str, value: V) -> None:
        """Add a value, and remove the oldest ones if there is no room."""
        if digest in self._values:
            return
        self._values[digest] = value
        self.nbytes += self._size(value)
        while self._bytes_max is not None and self.nbytes > self._bytes_max and len(self._values) > 1:
            _, oldest = self._values.popitem(last=False)
            self.nbytes -= self._size(oldest)

    def drop(self, digest: str) -> None:
        value = self._values.pop(digest, None)
        self.nbytes -= 0 if value is None else self._size(value)


def _sub_columns(name: str, fields_count: int) -> list[str]:
    return [f"{_SUB}{part}:{name}" for part in ("key", "sums", *range(fields_count))]


def _fields(columns: Mapping[str, pa.Array], prefix: str) -> dict[str, pa.Array]:
    return {name.removeprefix(prefix): c for name, c in columns.items() if name.startswith(prefix)}


def _integers(values: list[int]) -> pa.Array:
    return pa.array(np.array(values, np.int64))


PAGE_FORMAT = 4
EARLIER_PAGE_FORMAT = 3  # of 0.2.0: averages and spreads have other registers
REGISTERS_FORMAT = 2  # 1, which 0.2.0 did not write down, had rounded averages
_PAGE = "page"


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
    """Invert `layout_of`."""
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
    """Decode a page (runs of some keys, with events) to a KeyedState without histories. Raises: as `decode_sheet`."""
    about, columns = decode_sheet(_PAGE, (PAGE_FORMAT, EARLIER_PAGE_FORMAT), data)  # a description, and arrays by name

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
            numbers("event_key"), columns["event_id"], numbers("event_type"), numbers("event_time"),
            _fields(columns, _FIELD),
        ),
    )  # fmt: skip


WHOLE_FORMAT = 1
_KIND = "keyed state"


def encode_whole(keyed_state: KeyedState) -> bytes:
    """Encode a keyed state as one value, with its histories and segments (past events), which a store keeps apart."""
    written: dict[int, bytes] = {}
    histories = replace(keyed_state.histories, segments=detach_segments(keyed_state.histories.segments))

    def refuse_to_load(stored: store.StoredSegment) -> store.Block:
        raise AssertionError(f"{stored} is in memory")  # as `detach_segments` has loaded all

    head = encode_head(store_segments(histories, written.__setitem__, refuse_to_load, SegmentCache(0)))
    columns = {
        "page": pa.array([encode_page(keyed_state)], pa.large_binary()),
        "head": pa.array([head], pa.large_binary()),
        "number": pa.array(list(written), pa.int64()),
        "segment": pa.array(list(written.values()), pa.large_binary()),
    }
    return encode_sheet(_KIND, {"format": WHOLE_FORMAT}, columns)


def decode_whole(data: bytes) -> KeyedState:
    """Invert `encode_whole`. Raises: as `decode_sheet`."""
    _, columns = decode_sheet(_KIND, (WHOLE_FORMAT,), data)
    segments = dict(zip(columns["number"].to_pylist(), columns["segment"], strict=True))

    def load(stored: store.StoredSegment) -> store.Block:
        return decode_segment(segments[stored.number].as_py())

    histories = decode_head(columns["head"][0].as_py(), load)
    return replace(decode_page(columns["page"][0].as_py()), histories=histories)
