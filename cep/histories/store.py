"""The past of many keys as a value: a small head, and segments that are only appended and dropped.

    Histories  ── keys, pinned         the events that alone decide a value (`last`, `exists`, `first_seen`), and the
               │                       events of a window that may still decide (`min`, `max`, `distinct`)
               ├─ tallies              counts and sums of windows at the page's clock (numbers/tally.py)
               └─ segments             events in order of arrival, loaded when a window needs them;
                                       and panes of long windows (numbers/panes.py)

A micro-batch adds one small segment and leaves the others unchanged, so the bytes that it writes do not depend on the
length of windows. A segment is dropped without reading it when its youngest event has left every window.
Tested by: tests/histories/test_store.py, tests/histories/test_values.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pyarrow as pa

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.columnar.batch import NO_TEXTS
from cep.histories.rows import Block, HistoryRows, Int8, no_rows
from cep.kernels.histories.float_sums import SQUARES_AT, SQUARES_END
from cep.kernels.layout import Int32, Int64
from cep.nfa.histories import BAND, DIFFERENT, FLOAT_SQUARES, FLOATS, RANKS, SQUARES

_COUNT_WIDTH, _RANK_WIDTH, _SUM_WIDTH, _SQUARE_WORDS = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """The place of a stored segment: its number in its page, its size in bytes, and the hash of these bytes."""

    number: int
    size: int
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A block of past events of one period, or of panes. It is loaded from the store only when a window reaches it.

    `span_ms`: how long after its youngest event a window may reach it. `spans` counts its events by `HistoryRows.span`;
    `most` is the event count of its busiest key. `stored` is None while it is only in memory. `page` is the number of
    its page in the current call, -1 if it has none yet. `panes` is the number of the panes that its rows belong to
    (numbers/panes.py), 0 for events.
    """

    first_ms: int
    last_ms: int
    span_ms: int
    spans: Mapping[int, int]
    most: int
    load: Callable[[], Block]
    stored: StoredSegment | None = None
    page: int = -1
    panes: int = 0

    def __len__(self) -> int:
        return sum(self.spans.values())

    @property
    def until_ms(self) -> int:
        """The time of the first event whose windows cannot reach the segment."""
        return min(self.last_ms + self.span_ms, TIME_MS_MAX)

    @property
    def nbytes(self) -> int:
        """The memory of a segment that is not stored yet, in bytes; 0 for a stored one."""
        return self.load().nbytes if self.stored is None else 0


@dataclass(frozen=True, slots=True)
class PageFacts:
    """Facts about a page: which histories its head and segments can serve.

    `clock_ms`: the time of its tallies. `identities`: the histories whose events it retains. `carried`: the histories
    whose tallies, or whose deciding events, it has. `crowded`: the histories whose tallies or deciding events would be
    too many, so that windows are read instead. `panes`: the panes that are complete since the page was created, or
    since a rule asked for them.
    """

    clock_ms: int = TIME_MS_MIN
    identities: frozenset[str] = frozenset()
    carried: frozenset[str] = frozenset()
    crowded: frozenset[str] = frozenset()
    panes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SubTallies:
    """The tallies of one history by sub-key: E entries, one for each value with events in its window.

    Shapes: key int32[E], an index into a list of keys that the caller holds; `by` has an Arrow array of length E,
    without nulls, for each field of the sub-key; sums int64[E, W] (numbers/tally.py).
    """

    key: Int32
    by: tuple[pa.Array, ...]
    sums: Int64

    def __len__(self) -> int:
        return len(self.key)

    @property
    def nbytes(self) -> int:
        """The approximate memory of the entries, in bytes."""
        return int(self.key.nbytes + self.sums.nbytes) + sum(int(values.nbytes) for values in self.by)

    def take(self, rows: Int64) -> SubTallies:
        """Return the entries at these positions."""
        indices = pa.array(rows)
        return SubTallies(self.key[rows], tuple(values.take(indices) for values in self.by), self.sums[rows])

    def of_keys(self, key: Int64 | Int32) -> SubTallies:
        """Return the same entries with new key numbers."""
        return SubTallies(key.astype(np.int32), self.by, self.sums)


@dataclass(frozen=True, slots=True)
class Histories:
    """The past of many keys. Shapes: keys text[K]; `pinned` are events by key number.

    `loose`: how far the events of the busiest keys, summed over segments, may exceed the limit (limits.py). `tallies`
    are int64[K, W] by identity (numbers/tally.py), `sub_tallies` are tallies by sub-key. `facts` describe its page; in
    a call with several pages, `pages` has the facts of each.
    """

    keys: pa.Array = field(default_factory=lambda: NO_TEXTS)
    pinned: HistoryRows = field(default_factory=no_rows)
    segments: tuple[Segment, ...] = ()
    loose: int = 0
    facts: PageFacts = field(default_factory=PageFacts)
    tallies: Mapping[str, Int64] = field(default_factory=dict)
    sub_tallies: Mapping[str, SubTallies] = field(default_factory=dict)
    pages: Mapping[int, PageFacts] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return True if any key has a past."""
        return len(self.keys) > 0 or len(self.segments) > 0

    def facts_of(self, page: int) -> PageFacts:
        """Return the facts of a page of this call."""
        return self.pages.get(page, self.facts)

    @property
    def clock_max_ms(self) -> int:
        """The latest time of any tally."""
        return max((facts.clock_ms for facts in self.pages.values()), default=self.facts.clock_ms)

    def __len__(self) -> int:
        """Count the retained events."""
        return len(self.pinned) + sum(len(segment) for segment in self.segments if not segment.panes)


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


def segment_of(block: Block, span_ms: int, page: int = -1) -> Segment:
    """Make a segment in memory from a block with at least one event."""
    rows = block.rows
    spans = {code: count for code, count in enumerate(np.bincount(rows.span).tolist()) if count}
    first, last = int(rows.time_ms.min()), int(rows.time_ms.max())
    return Segment(first, last, span_ms, spans, int(np.bincount(rows.key).max()), lambda: block, page=page)


def tally_width(name: str) -> int:
    """Return the number of integers in a tally, from the ending of its name."""
    if name.endswith((DIFFERENT, BAND)):
        return _COUNT_WIDTH
    if name.endswith(RANKS):
        return _RANK_WIDTH
    if name.endswith((FLOATS, FLOAT_SQUARES)):
        return SQUARES_AT if name.endswith(FLOATS) else SQUARES_END
    return _SUM_WIDTH + _SQUARE_WORDS * name.endswith(SQUARES)
