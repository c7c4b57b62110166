"""The histories of a page's keys as bytes: a head, rewritten when the page is touched, and segments that never change.

    head      keys | pinned_key, pinned_type, pinned_time | pinned:NAME …          events that alone decide a value
              tally:IDENTITY …                                                     counts and sums of windows, by key
              sub:key:IDENTITY, sub:sums:…, sub:0:… …                            and by sub-key, the fields of it; bands
              segment_first, _last, _span, _most, _number, _size, _digest          the segments and their periods
              segment_panes                                                        number of the panes; 0: events
              span_code, span_count, span_segment                                  their content
    segment   keys | key, type, time, span | field:NAME …

A segment is named by the hash of its bytes, so a segment that was read once can stay in memory. Both are sheets
(sheets.py) with a format version; another format is refused by name.
Tested by: tests/state/test_pages.py
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from cep.histories.rows import Block, HistoryRows
from cep.histories.store import Histories, PageFacts, Segment, StoredSegment, SubTallies, tally_width
from cep.state.sheets import decode_sheet, encode_sheet

PAST_FORMAT = 2
HEAD_FORMAT = 4
_HEAD, _SEGMENT = "page of histories", "segment of a history"
_IDENTITIES = ("identities", "carried", "crowded")
_PINNED, _TALLY, _FIELD, _SUB = "pinned:", "tally:", "field:", "sub:"

Load = Callable[[StoredSegment], Block]


@dataclass(frozen=True, slots=True)
class StoredPast:
    """A page of histories in a store: the bytes of its head and, if they were read, of its segments by number."""

    key_group: int
    domain: tuple[str, ...]
    head: bytes
    segments: Mapping[int, bytes] = field(default_factory=dict)


def encode_head(histories: Histories) -> bytes:
    """Encode the head of a page of histories: pinned events, tallies, and references to its stored segments."""
    pinned, segments = histories.pinned, histories.segments
    places = [segment.stored for segment in segments]
    assert all(places), "segments are written before their head"
    spans = [(code, count, number) for number, segment in enumerate(segments) for code, count in segment.spans.items()]
    columns: dict[str, pa.Array] = {
        "keys": histories.keys,
        "pinned_key": pa.array(pinned.key),
        "pinned_type": pa.array(pinned.event_type.astype(np.int16)),
        "pinned_time": pa.array(pinned.time_ms),
        "segment_first": _integers([s.first_ms for s in segments]),
        "segment_last": _integers([s.last_ms for s in segments]),
        "segment_span": _integers([s.span_ms for s in segments]),
        "segment_most": _integers([s.most for s in segments]),
        "segment_number": _integers([place.number for place in places if place]),
        "segment_size": _integers([place.size for place in places if place]),
        "segment_digest": pa.array([place.digest for place in places if place], pa.string()),
        "segment_panes": _integers([s.panes for s in segments]),
        "span_code": _integers([code for code, _, _ in spans]),
        "span_count": _integers([count for _, count, _ in spans]),
        "span_segment": _integers([number for _, _, number in spans]),
    }
    columns |= {_PINNED + name: column for name, column in pinned.columns.items()}
    columns |= {_TALLY + name: pa.array(tally.reshape(-1)) for name, tally in histories.tallies.items()}
    for name, entries in histories.sub_tallies.items():
        columns |= dict(zip(_sub_columns(name, len(entries.by)), _sub_arrays(entries), strict=True))
    facts = histories.facts
    about: dict[str, object] = {"clock": facts.clock_ms, "loose": histories.loose}
    about |= {name: sorted(getattr(facts, name)) for name in _IDENTITIES}
    about["panes"] = sorted(facts.panes)
    about["sub_tallies"] = {name: len(entries.by) for name, entries in histories.sub_tallies.items()}
    return encode_sheet(_HEAD, {"format": HEAD_FORMAT, **about}, columns)


def decode_head(data: bytes, load: Load) -> Histories:
    """Decode a head to histories; `load` reads a segment when it is needed. Raises: as decode_sheet."""
    about, columns = decode_sheet(_HEAD, (HEAD_FORMAT,), data)
    lists = {
        name: column.to_pylist() if name == "segment_digest" else _numbers(column).tolist()
        for name, column in columns.items()
        if name.startswith(("segment_", "span_"))
    }
    spans: list[dict[int, int]] = [{} for _ in lists["segment_first"]]
    for code, count, segment_index in zip(lists["span_code"], lists["span_count"], lists["span_segment"], strict=True):
        spans[segment_index][code] = count
    segments = []
    names = ("panes", "number", "size", "digest", "first", "last", "span", "most")
    facts_of = zip(spans, *(lists[f"segment_{name}"] for name in names), strict=True)
    for counts, panes, number, size, digest, first, last, span, most in facts_of:
        stored = StoredSegment(number, size, digest)
        segments.append(Segment(first, last, span, counts, most, _loader(load, stored), stored, panes=panes))
    pinned = HistoryRows(
        _numbers(columns["pinned_key"]),
        _numbers(columns["pinned_type"]).astype(np.int64),
        _numbers(columns["pinned_time"]),
        np.zeros(len(columns["pinned_key"]), np.int8),
        _fields(columns, _PINNED),
    )
    tallies = {name: _numbers(flat).reshape(-1, tally_width(name)) for name, flat in _fields(columns, _TALLY).items()}
    subs = {}
    for name, count in about["sub_tallies"].items():
        key, sums, *by = (columns[column] for column in _sub_columns(name, count))
        subs[name] = SubTallies(_numbers(key), tuple(by), _numbers(sums).reshape(-1, tally_width(name)))
    identities = {name: frozenset(about[name]) for name in _IDENTITIES}
    facts = PageFacts(about["clock"], **identities, panes=frozenset(about["panes"]))
    return Histories(columns["keys"], pinned, tuple(segments), about["loose"], facts, tallies, subs)


def encode_segment(block: Block) -> bytes:
    """Encode the events of a segment as bytes."""
    rows = block.rows
    columns: dict[str, pa.Array] = {
        "keys": block.keys,
        "key": pa.array(rows.key),
        "type": pa.array(rows.event_type.astype(np.int16)),
        "time": pa.array(rows.time_ms),
        "span": pa.array(rows.span),
    }
    columns |= {_FIELD + name: column for name, column in rows.columns.items()}
    return encode_sheet(_SEGMENT, {"format": PAST_FORMAT}, columns)


def decode_segment(data: bytes) -> Block:
    """Return the events of a segment. Raises: as decode_sheet."""
    _, columns = decode_sheet(_SEGMENT, (PAST_FORMAT,), data)
    key, event_type, time_ms, span = (_numbers(columns[name]) for name in ("key", "type", "time", "span"))
    rows = HistoryRows(key, event_type.astype(np.int64), time_ms, span, _fields(columns, _FIELD))
    return Block(columns["keys"], rows)


def stored_as(number: int, data: bytes) -> StoredSegment:
    """Return the name of a segment with these bytes."""
    return StoredSegment(number, len(data), hashlib.sha256(data, usedforsecurity=False).hexdigest()[:32])


def store_segments(
    histories: Histories, put: Callable[[int, bytes], None], load: Load, cache: SegmentCache
) -> Histories:
    """Write the segments that are only in memory with `put(number, bytes)`. Return the same histories, all stored."""
    number = max((s.stored.number for s in histories.segments if s.stored), default=-1) + 1
    segments = []
    for segment in histories.segments:
        if segment.stored is None:
            data = encode_segment(segment.load())
            stored, number = stored_as(number, data), number + 1
            put(stored.number, data)
            cache.put(stored.digest, segment.load())
            segment = replace(segment, stored=stored, load=_loader(load, stored))  # noqa: PLW2901 it is stored now
        segments.append(segment)
    return replace(histories, segments=tuple(segments))


def digests_of(histories: Histories) -> dict[int, str]:
    """Map the number of each stored segment to the hash of its bytes."""
    return {segment.stored.number: segment.stored.digest for segment in histories.segments if segment.stored}


class SegmentCache:
    """The segments that were read or written last, up to a number of bytes; None: all segments."""

    def __init__(self, bytes_max: int | None) -> None:
        self._bytes_max = bytes_max
        self._blocks: OrderedDict[str, Block] = OrderedDict()
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        """The bytes of the segments in memory."""
        return self._bytes

    def get(self, digest: str) -> Block | None:
        """Return the segment of this hash, if it is here."""
        if digest not in self._blocks:
            return None
        self._blocks.move_to_end(digest)
        return self._blocks[digest]

    def put(self, digest: str, block: Block) -> None:
        """Add a segment, and remove the oldest ones if there is no room."""
        if digest in self._blocks:
            return
        self._blocks[digest] = block
        self._bytes += block.nbytes
        while self._bytes_max is not None and self._bytes > self._bytes_max and len(self._blocks) > 1:
            _, oldest = self._blocks.popitem(last=False)
            self._bytes -= oldest.nbytes

    def drop(self, digest: str) -> None:
        """Remove a segment."""
        block = self._blocks.pop(digest, None)
        self._bytes -= 0 if block is None else block.nbytes


def _sub_columns(name: str, fields_count: int) -> list[str]:
    return [f"{_SUB}{part}:{name}" for part in ("key", "sums", *range(fields_count))]


def _sub_arrays(entries: SubTallies) -> list[pa.Array]:
    return [pa.array(entries.key), pa.array(entries.sums.reshape(-1)), *entries.by]


def _loader(load: Load, stored: StoredSegment) -> Callable[[], Block]:
    return lambda: load(stored)


def _fields(columns: Mapping[str, pa.Array], prefix: str) -> dict[str, pa.Array]:
    return {name.removeprefix(prefix): c for name, c in columns.items() if name.startswith(prefix)}


def _integers(values: list[int]) -> pa.Array:
    return pa.array(np.array(values, np.int64))


def _numbers(column: pa.Array) -> np.ndarray:
    return np.asarray(column)
