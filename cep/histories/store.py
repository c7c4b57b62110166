"""The past of many keys as a value: a small head, and segments that are only appended and dropped.

A micro-batch adds one small segment, so the bytes that it writes do not depend on the length of windows. A segment is
dropped without reading it when its youngest event has left every window. Small segments are joined, and each event is
rewritten at most once for each of three sizes.

The past is a separate part of the keyed state: it outlives the last run of a key, and rules without histories never
read it.
Tested by: tests/histories/test_store.py, tests/histories/test_values.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.columnar.batch import NO_TEXTS, read_only
from cep.columnar.texts import numbered
from cep.functions.columns import HashedTexts, hashed_texts
from cep.kernels.arrange import group_rows
from cep.kernels.histories.float_sums import SQUARES_AT, SQUARES_END
from cep.kernels.histories.records import BlockRows, ValueBytes
from cep.kernels.layout import Int32, Int64
from cep.nfa.histories import BAND, DIFFERENT, FLOAT_SQUARES, FLOATS, RANKS, SQUARES

Int8 = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class HistoryRows:
    """Past events that windows may still need, sorted by key; the events of a key are in event order.

    Shapes: key int32[H], ascending indexes into a list of keys that the caller holds; event_type, time_ms int64[H];
    span int8[H]: after 2^span ms no window includes the event; columns are Arrow arrays of length H.
    """

    key: Int32
    event_type: Int64
    time_ms: Int64
    span: Int8
    columns: Mapping[str, pa.Array]

    def __len__(self) -> int:
        return len(self.time_ms)

    def take(self, rows: Int64) -> HistoryRows:
        indices = pa.array(rows)
        columns = {name: column.take(indices) for name, column in self.columns.items()}
        return HistoryRows(self.key[rows], self.event_type[rows], self.time_ms[rows], self.span[rows], columns)

    def of_keys(self, key: Int32) -> HistoryRows:
        return HistoryRows(key, self.event_type, self.time_ms, self.span, self.columns)

    @property
    def nbytes(self) -> int:
        return 21 * len(self) + sum(int(column.nbytes) for column in self.columns.values())  # 21 = 4 + 8 + 8 + 1


@dataclass(frozen=True)
class Block:
    """Past events with their keys text[K], each of which has an event. It never changes, except for two caches.

    `codes`: by field names, a hash of each event's key and field values; `values`: by field name, its values as bytes.
    """

    keys: pa.Array
    rows: HistoryRows
    codes: dict[tuple[str, ...], NDArray[np.uint32]] = field(default_factory=dict, compare=False, repr=False)
    values: dict[str, ValueBytes] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def hashed_keys(self) -> HashedTexts:
        return hashed_texts(self.keys)

    @cached_property
    def read_only_rows(self) -> BlockRows:
        rows = self.rows
        return BlockRows(read_only(rows.key), read_only(rows.time_ms), read_only(rows.event_type))

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes) + self.rows.nbytes


def no_rows() -> HistoryRows:
    """Return empty history rows."""
    nothing = np.empty(0, np.int64)
    return HistoryRows(nothing.astype(np.int32), nothing, nothing, nothing.astype(np.int8), {})


def concat_rows(parts: Sequence[HistoryRows]) -> HistoryRows:
    """Join all events, part after part. A column that a part lacks is null there."""
    parts = [part for part in parts if len(part)]
    if len(parts) <= 1:
        return parts[0] if parts else no_rows()
    types = {name: column.type for part in parts for name, column in part.columns.items()}
    return HistoryRows(
        np.concatenate([part.key for part in parts]),
        np.concatenate([part.event_type for part in parts]),
        np.concatenate([part.time_ms for part in parts]),
        np.concatenate([part.span for part in parts]),
        {
            name: pa.concat_arrays([part.columns.get(name, pa.nulls(len(part), type_)) for part in parts])
            for name, type_ in types.items()
        },
    )


def sort_rows(rows: HistoryRows) -> HistoryRows:
    """Sort the events by key; the events of a key keep their order."""
    if np.all(rows.key[1:] >= rows.key[:-1]):
        return rows
    key, order = rows.key.astype(np.int64), np.empty(len(rows), np.int64)
    group_rows(key, np.zeros(int(key.max()) + 2, np.int64), order)
    return rows.take(order)


def block_of(keys: pa.Array, rows: HistoryRows) -> Block:
    """Return a block of the events with the keys that they use. The row's key is an index into `keys`."""
    used = np.zeros(len(keys), bool)
    used[rows.key] = True
    if used.all():
        return Block(keys, sort_rows(rows))
    number = (np.cumsum(used) - 1).astype(np.int32)
    return Block(keys.filter(pa.array(used)), sort_rows(rows.of_keys(number[rows.key])))


def concat_blocks(blocks: Sequence[Block]) -> Block:
    """Join all events. A key of several blocks appears once, with its events in block order."""
    if len(blocks) == 1:
        return blocks[0]
    keys, codes = numbered(pa.concat_arrays([block.keys for block in blocks] or [NO_TEXTS]))
    offset = 0
    parts = []
    for block in blocks:
        parts.append(block.rows.of_keys(codes[offset : offset + len(block.keys)][block.rows.key]))
        offset += len(block.keys)
    return Block(keys, sort_rows(concat_rows(parts)))


_COUNT_WIDTH, _RANK_WIDTH, _SUM_WIDTH, _SQUARE_WORDS = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """The place of a stored segment: its number in its page, its size in bytes, and the hash of these bytes."""

    number: int
    size: int
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A stored block of past events of some keys and one period. It is loaded only when a window needs its events.

    A window may need it until `span_ms` after its youngest event. `counts_by_span`: how many events have each code;
    windows need an event until 2^code ms after its time. `busiest_key_events`: how many events its busiest key has.
    `stored`: its position in the store, None while it is only in memory. `page`: the number of its page (stored group
    of keys) in this batch, -1 without one. `panes_number`: 0 for events; if its rows are panes (partial aggregates of
    time slices), the number of these panes, which some histories share.
    """

    first_ms: int
    last_ms: int
    span_ms: int
    counts_by_span: Mapping[int, int]
    busiest_key_events: int
    load: Callable[[], Block]
    stored: StoredSegment | None = None
    page: int = -1
    panes_number: int = 0

    def __len__(self) -> int:
        return sum(self.counts_by_span.values())

    @property
    def until_ms(self) -> int:
        """The time of the first event whose windows cannot reach the segment."""
        return min(self.last_ms + self.span_ms, TIME_MS_MAX)

    @property
    def nbytes(self) -> int:
        return self.load().nbytes if self.stored is None else 0


@dataclass(frozen=True, slots=True)
class PageFacts:
    """Facts about a page (the stored past of a group of keys). They decide which of its events a history must read.

    `clock_ms`: the time of its tallies (running counts and sums). `identities`: the histories for which its events were
    stored. `carried`: the histories whose windows are not read, because the page has their tallies, or the few events
    that decide the value. `crowded`: the histories whose windows are read, because too much would be carried.
    `panes`: the numbers of its panes (partial aggregates of time slices) that lack no events.
    """

    clock_ms: int = TIME_MS_MIN
    identities: frozenset[str] = frozenset()
    carried: frozenset[str] = frozenset()
    crowded: frozenset[str] = frozenset()
    panes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SubTallies:
    """The tallies (running counts and sums of a window) of one history, by key and sub-key (such as a card's merchant).

    It has E entries, one for each key and sub-key with events in the window. Shapes: key int32[E], an index into a list
    of keys that the caller holds; `by` has an Arrow array of length E, without nulls, for each field of the sub-key;
    sums int64[E, W], the W numbers of each tally: a count, and parts of sums.
    """

    key: Int32
    by: tuple[pa.Array, ...]
    sums: Int64

    def __len__(self) -> int:
        return len(self.key)

    @property
    def nbytes(self) -> int:
        return int(self.key.nbytes + self.sums.nbytes) + sum(int(values.nbytes) for values in self.by)

    def take(self, rows: Int64) -> SubTallies:
        indices = pa.array(rows)
        return SubTallies(self.key[rows], tuple(values.take(indices) for values in self.by), self.sums[rows])

    def of_keys(self, key: Int64 | Int32) -> SubTallies:
        return SubTallies(key.astype(np.int32), self.by, self.sums)


@dataclass(frozen=True, slots=True)
class Histories:
    """The past of many keys, text[K], as far as rules need it: one page (a stored group of keys), or several joined.

    `pinned`: events that are stored one by one, because each can decide a value; `segments`: blocks of the other past
    events, or of panes (partial aggregates of time slices). `tallies`: running counts and sums of windows, int64[K, W]
    by the identity (hash) of the history; `sub_tallies`: the same by sub-key. `excess_allowed`: keys with too many
    events are searched for when an estimate of a key's events exceeds the limit by more than this. `facts`: about its
    page; `pages`: the facts of each page, if several are joined.
    """

    keys: pa.Array = field(default_factory=lambda: NO_TEXTS)
    pinned: HistoryRows = field(default_factory=no_rows)
    segments: tuple[Segment, ...] = ()
    excess_allowed: int = 0
    facts: PageFacts = field(default_factory=PageFacts)
    tallies: Mapping[str, Int64] = field(default_factory=dict)
    sub_tallies: Mapping[str, SubTallies] = field(default_factory=dict)
    pages: Mapping[int, PageFacts] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return len(self.keys) > 0 or len(self.segments) > 0

    def facts_of(self, page: int) -> PageFacts:
        return self.pages.get(page, self.facts)

    @property
    def clock_max_ms(self) -> int:
        return max((facts.clock_ms for facts in self.pages.values()), default=self.facts.clock_ms)

    def __len__(self) -> int:
        """Count the retained events."""
        return len(self.pinned) + sum(len(segment) for segment in self.segments if not segment.panes_number)


@cache
def no_histories() -> Histories:
    """Return the empty past, always the same object, because histories are never changed in place."""
    return Histories()


def concat_sub_tallies(parts: Sequence[SubTallies]) -> SubTallies:
    """Join the entries of one or more parts."""
    if len(parts) == 1:
        return parts[0]
    by = zip(*(part.by for part in parts), strict=True)
    return SubTallies(
        np.concatenate([part.key for part in parts]),
        tuple(pa.concat_arrays(values) for values in by),
        np.concatenate([part.sums for part in parts]),
    )


def span_code(span_ms: int) -> int:
    """Return the exponent of the least power of two that is at least `span_ms`."""
    return max(span_ms - 1, 0).bit_length()


def span_codes(spans_ms: Int64) -> Int8:
    """Return the `span_code` of each span. Fast if most spans are equal."""
    if (spans_ms == spans_ms[:1]).all():
        return np.full(len(spans_ms), span_code(int(spans_ms[0])) if len(spans_ms) else 0, np.int8)
    different, inverse = np.unique(spans_ms, return_inverse=True)
    return np.array([span_code(ms) for ms in different.tolist()], np.int8)[inverse]


def segment_of(block: Block, span_ms: int, page: int = -1, panes_number: int = 0) -> Segment:
    """Make a segment in memory from a block with at least one event."""
    rows = block.rows
    counts_by_span = {code: count for code, count in enumerate(np.bincount(rows.span).tolist()) if count}
    first, last = int(rows.time_ms.min()), int(rows.time_ms.max())
    busiest_key_events = int(np.bincount(rows.key).max())
    return Segment(
        first, last, span_ms, counts_by_span, busiest_key_events, lambda: block, page=page, panes_number=panes_number
    )


def tally_width(name: str) -> int:
    """Return the number of integers in a tally, from the ending of its name."""
    if name.endswith((DIFFERENT, BAND)):
        return _COUNT_WIDTH
    if name.endswith(RANKS):
        return _RANK_WIDTH
    if name.endswith((FLOATS, FLOAT_SQUARES)):
        return SQUARES_AT if name.endswith(FLOATS) else SQUARES_END
    return _SUM_WIDTH + _SQUARE_WORDS * name.endswith(SQUARES)


# This many segments of one size are joined into one of the next size: 64, 512, 4 096 events or more.
_JOINED = 8
_FIRST_BITS = 6
_SIZES = 3
# Rewrite a segment when more than this share of its events is unreachable.
_EXPIRED_SHARE = 0.5


def reachable_segments(segments: Sequence[Segment], span_max_ms: int, watermark_ms: int) -> tuple[Segment, ...]:
    """Return the segments that a later event may read, given rules that look back at most `span_max_ms`."""
    return tuple(s for s in segments if min(s.until_ms, s.last_ms + span_max_ms) > watermark_ms)


def join_segments(histories: Histories, columns: Collection[str], watermark_ms: int) -> Histories:
    """Join small segments (blocks of events), and rewrite one with many expired events, with only these columns."""
    segments = list(histories.segments)
    start = _joined_from([len(segment) for segment in segments])
    if start < len(segments):
        joined = _rewrite(segments[start:], columns, watermark_ms)
        segments[start:] = [joined] if joined is not None else []
    for index, segment in enumerate(segments):
        past_ms = watermark_ms - segment.last_ms  # windows need an event until 2**exponent ms after its time
        expired = sum(count for exponent, count in segment.counts_by_span.items() if 2**exponent <= past_ms)
        if expired > _EXPIRED_SHARE * len(segment):
            rewritten = _rewrite([segment], columns, watermark_ms)
            segments[index : index + 1] = [rewritten] if rewritten is not None else []
            break  # rewrite one per micro-batch; the others can wait
    if len(segments) == len(histories.segments) and all(map(lambda a, b: a is b, segments, histories.segments)):
        return histories
    return replace(histories, segments=tuple(segments))


def _joined_from(counts: Sequence[int]) -> int:
    """Return the index of the first segment to join, given the sizes; the number of segments if none is joined."""
    joined_from = len(counts)
    for size in range(_SIZES):
        start = len(counts)
        while start and counts[start - 1] >> (_FIRST_BITS + 3 * size) == 0:
            start -= 1
        if len(counts) - start >= _JOINED:
            joined_from = start
    return joined_from


def _rewrite(segments: Sequence[Segment], columns: Collection[str], watermark_ms: int) -> Segment | None:
    """Make one segment of the events that windows may still include; None if there are none."""
    block = concat_blocks([segment.load() for segment in segments])
    rows = block.rows
    alive = rows.time_ms + np.left_shift(np.int64(1), rows.span.astype(np.int64)) > watermark_ms
    rows = replace(rows, columns={name: column for name, column in rows.columns.items() if name in columns})
    rows = rows if alive.all() else rows.take(np.flatnonzero(alive))
    span_ms = max(segment.span_ms for segment in segments)
    return segment_of(block_of(block.keys, rows), span_ms, segments[0].page) if len(rows) else None
