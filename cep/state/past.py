"""The histories of a page's keys as bytes: a head, rewritten when the page is touched, and segments that never change.

    head      keys | pinned_key, pinned_type, pinned_time | pinned:NAME …          what alone decides a value
              tally:IDENTITY …                                                     counts and sums of windows, by key
              sub:key:IDENTITY, sub:sums:…, sub:0:… …                            and by sub-key, the fields of it; bands
              segment_first, _last, _span, _most, _number, _size, _digest          the segments, and how far they reach
              segment_panes                                                        panes of what; 0: of events
              span_code, span_count, span_segment                                  what is in them
    segment   keys | key, type, time, span | field:NAME …

A segment is known by the hash of its bytes, so that what was read of it once can be held whatever becomes of the job.
Both are sheets (sheets.py) with a format version; another one is refused by name.
Tested by: tests/state/test_past.py
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from cep.engine.history_rows import Block, HistoryRows
from cep.engine.history_state import Histories, Kept, PageFacts, Segment
from cep.engine.sub_tallies import SubTallies
from cep.engine.tallies import tally_width
from cep.state.sheets import decode_sheet, encode_sheet

PAST_FORMAT = 2
# Heads of format 2 had no tallies of floats, those of 3 no ranks: what was not carried is begun anew from kept events.
HEAD_FORMAT, _OLDER_HEADS = 4, (2, 3)
_HEAD, _SEGMENT = "page of histories", "segment of a history"
_IDENTITIES = ("identities", "carried", "crowded")
_PINNED, _TALLY, _FIELD, _SUB = "pinned:", "tally:", "field:", "sub:"

Load = Callable[[Kept], Block]


@dataclass(frozen=True, slots=True)
class StoredPast:
    """A page of histories where it is kept: the bytes of its head, and by number of its segments if they were read."""

    key_group: int
    domain: tuple[str, ...]
    head: bytes
    segments: Mapping[int, bytes] = field(default_factory=dict)


def encode_head(histories: Histories) -> bytes:
    """The head's bytes; every segment is kept somewhere."""
    pinned, segments = histories.pinned, histories.segments
    kept = [segment.kept for segment in segments]
    assert all(kept), "segments are written before their head"
    spans = [(code, count, at) for at, segment in enumerate(segments) for code, count in segment.spans.items()]
    columns: dict[str, pa.Array] = {
        "keys": histories.keys,
        "pinned_key": pa.array(pinned.key),
        "pinned_type": pa.array(pinned.event_type.astype(np.int16)),
        "pinned_time": pa.array(pinned.time_ms),
        "segment_first": _integers([s.first_ms for s in segments]),
        "segment_last": _integers([s.last_ms for s in segments]),
        "segment_span": _integers([s.span_ms for s in segments]),
        "segment_most": _integers([s.most for s in segments]),
        "segment_number": _integers([k.number for k in kept if k]),
        "segment_size": _integers([k.size for k in kept if k]),
        "segment_digest": pa.array([k.digest for k in kept if k], pa.string()),
        "segment_panes": _integers([s.panes for s in segments]),
        "span_code": _integers([code for code, _, _ in spans]),
        "span_count": _integers([count for _, count, _ in spans]),
        "span_segment": _integers([at for _, _, at in spans]),
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
    """The histories of a head; `load` reads a segment. Raises: as decode_sheet."""
    about, columns = decode_sheet(_HEAD, HEAD_FORMAT, data, older=_OLDER_HEADS)
    lists = {
        name: column.to_pylist() if name == "segment_digest" else _numbers(column).tolist()
        for name, column in columns.items()
        if name.startswith(("segment_", "span_"))
    }
    spans: list[dict[int, int]] = [{} for _ in lists["segment_first"]]
    for code, count, at in zip(lists["span_code"], lists["span_count"], lists["span_segment"], strict=True):
        spans[at][code] = count
    panes = lists.get("segment_panes", [0] * len(spans))  # heads of before there were any have none
    segments = []
    names = ("number", "size", "digest", "first", "last", "span", "most")
    facts_of = zip(spans, panes, *(lists[f"segment_{name}"] for name in names), strict=True)
    for counts, own_panes, number, size, digest, first, last, span, most in facts_of:
        kept = Kept(number, size, digest)
        segments.append(Segment(first, last, span, counts, most, _loader(load, kept), kept, panes=own_panes))
    pinned = HistoryRows(
        _numbers(columns["pinned_key"]),
        _numbers(columns["pinned_type"]).astype(np.int64),
        _numbers(columns["pinned_time"]),
        np.zeros(len(columns["pinned_key"]), np.int8),
        _fields(columns, _PINNED),
    )
    tallies = {name: _numbers(flat).reshape(-1, tally_width(name)) for name, flat in _fields(columns, _TALLY).items()}
    subs = {}
    for name, count in about.get("sub_tallies", {}).items():
        key, sums, *by = (columns[column] for column in _sub_columns(name, count))
        subs[name] = SubTallies(_numbers(key), tuple(by), _numbers(sums).reshape(-1, tally_width(name)))
    # An earlier build kept but the first of them, and carried the tallies that are there.
    identities = {name: frozenset(about.get(name, tallies if name == "carried" else ())) for name in _IDENTITIES}
    facts = PageFacts(about["clock"], **identities, panes=frozenset(about.get("panes", ())))
    return Histories(columns["keys"], pinned, tuple(segments), about["loose"], facts, tallies, subs)


def encode_segment(block: Block) -> bytes:
    """The bytes of a segment's events."""
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
    """The events of a segment. Raises: as decode_sheet."""
    _, columns = decode_sheet(_SEGMENT, PAST_FORMAT, data)
    key, event_type, time_ms, span = (_numbers(columns[name]) for name in ("key", "type", "time", "span"))
    rows = HistoryRows(key, event_type.astype(np.int64), time_ms, span, _fields(columns, _FIELD))
    return Block(columns["keys"], rows)


def kept_as(number: int, data: bytes) -> Kept:
    """How a segment is named that is kept as these bytes."""
    return Kept(number, len(data), hashlib.sha256(data, usedforsecurity=False).hexdigest()[:32])


def stored(histories: Histories, put: Callable[[int, bytes], None], load: Load, held: HeldBlocks) -> Histories:
    """The same, with those segments written that are in memory only; `put(number, bytes)`."""
    number = max((s.kept.number for s in histories.segments if s.kept), default=-1) + 1
    segments = []
    for segment in histories.segments:
        if segment.kept is None:
            data = encode_segment(segment.load())
            kept, number = kept_as(number, data), number + 1
            put(kept.number, data)
            held.put(kept.digest, segment.load())
            segment = replace(segment, kept=kept, load=_loader(load, kept))  # noqa: PLW2901 it is kept now
        segments.append(segment)
    return replace(histories, segments=tuple(segments))


def digests_of(histories: Histories) -> dict[int, str]:
    """The segments that are kept somewhere: by number the hash of their bytes."""
    return {segment.kept.number: segment.kept.digest for segment in histories.segments if segment.kept}


class HeldBlocks:
    """The segments that were read or written last, up to a number of bytes; None: all of them."""

    def __init__(self, bytes_max: int | None) -> None:
        self._bytes_max = bytes_max
        self._blocks: OrderedDict[str, Block] = OrderedDict()
        self._bytes = 0

    def get(self, digest: str) -> Block | None:
        """The segment of this hash, if it is held."""
        if digest not in self._blocks:
            return None
        self._blocks.move_to_end(digest)
        return self._blocks[digest]

    def put(self, digest: str, block: Block) -> None:
        """Hold a segment; others may have to go."""
        if digest in self._blocks:
            return
        self._blocks[digest] = block
        self._bytes += block.nbytes
        while self._bytes_max is not None and self._bytes > self._bytes_max and len(self._blocks) > 1:
            _, oldest = self._blocks.popitem(last=False)
            self._bytes -= oldest.nbytes

    def drop(self, digest: str) -> None:
        """Let go of a segment."""
        block = self._blocks.pop(digest, None)
        self._bytes -= 0 if block is None else block.nbytes


def _sub_columns(name: str, fields_count: int) -> list[str]:
    return [f"{_SUB}{part}:{name}" for part in ("key", "sums", *range(fields_count))]


def _sub_arrays(entries: SubTallies) -> list[pa.Array]:
    return [pa.array(entries.key), pa.array(entries.sums.reshape(-1)), *entries.by]


def _loader(load: Load, kept: Kept) -> Callable[[], Block]:
    return lambda: load(kept)


def _fields(columns: Mapping[str, pa.Array], prefix: str) -> dict[str, pa.Array]:
    return {name.removeprefix(prefix): c for name, c in columns.items() if name.startswith(prefix)}


def _integers(values: list[int]) -> pa.Array:
    return pa.array(np.array(values, np.int64))


def _numbers(column: pa.Array) -> np.ndarray:
    return np.asarray(column)
