"""Histories: what is kept of the past of many keys, most of it in segments that are only appended and dropped.

    Histories  ── keys, pinned         the events that alone decide a value (`last`, `exists`, `first_seen`), and those
               │                       of a window that still can (`min`, `max`, `distinct`)
               ├─ tallies              counts and sums of windows as they stand at the page's clock (tallies.py)
               └─ segments             events in the order in which they came; each is loaded when a window needs it;
                                       and panes of long windows (panes.py)

A micro-batch adds one small segment and leaves the others as they are, so what it writes does not depend on how long
windows are. `compacted` joins small segments to larger ones: an event is written anew once for each of three sizes.
A segment whose youngest event is out of every window is dropped without being read.
Tested by: tests/engine/test_history_state.py, tests/engine/test_histories.py
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.columnar.batch import NO_TEXTS
from cep.engine.history_rows import Block, HistoryRows, Int8, block_of, concat_blocks, concat_rows, no_rows
from cep.engine.sub_tallies import SubTallies, concat_sub_tallies
from cep.engine.tallies import tally_width
from cep.kernels.layout import Int64

# So many segments of one size become one of the next: 64, 512, 4 096 events and more.
_JOINED = 8
_FIRST_BITS = 6
_SIZES = 3
_OVER_SHARE = 0.5  # of a segment's events that nobody can ask for any more, past which the others are written anew


@dataclass(frozen=True, slots=True)
class Kept:
    """Where a segment is kept: its number in its page, how many bytes it has there, and their hash."""

    number: int
    size: int
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Events of a span of time. `span_ms`: how long after its youngest event something of it may be asked for;
    `spans` counts its events by `HistoryRows.span`, `most` are those of its busiest key. `kept` None: in memory only.

    `page` is the number of the page that it belongs to in the call that is under way, -1 if that is not decided yet.
    `panes`: its rows are panes of what has this number (panes.py); 0: they are events.
    """

    first_ms: int
    last_ms: int
    span_ms: int
    spans: Mapping[int, int]
    most: int
    load: Callable[[], Block]
    kept: Kept | None = None
    page: int = -1
    panes: int = 0

    def __len__(self) -> int:
        return sum(self.spans.values())

    @property
    def until_ms(self) -> int:
        """The time of the first event that can ask for nothing of it."""
        return min(self.last_ms + self.span_ms, TIME_MS_MAX)

    @property
    def nbytes(self) -> int:
        """Of memory, while it is kept nowhere else."""
        return self.load().nbytes if self.kept is None else 0


@dataclass(frozen=True, slots=True)
class PageFacts:
    """Of a page: the time at which its tallies stand, for which histories its events are kept, and what is `carried`:
    tallies, and sparse histories, of which all events that can still decide are pinned. What is `crowded` would be
    larger than it is worth, so that windows are looked at instead. `panes`: of what it has had panes ever since it
    exists, or since they are asked for.
    """

    clock_ms: int = TIME_MS_MIN
    identities: frozenset[str] = frozenset()
    carried: frozenset[str] = frozenset()
    crowded: frozenset[str] = frozenset()
    panes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Histories:
    """The past of many keys. Shapes: keys text[K]; pinned events by the number of their key.

    `loose`: how far the sum of what segments have of their busiest keys may be above the limit (history_limit.py).
    `tallies` int64[K, W] by identity (tallies.py), `sub_tallies` those by sub-keys. `facts` are of its page; in a call
    with several, `pages` has theirs.
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
        """Whether anything is kept."""
        return len(self.keys) > 0 or len(self.segments) > 0

    def facts_of(self, page: int) -> PageFacts:
        """Of a page of this call."""
        return self.pages.get(page, self.facts)

    @property
    def clock_max_ms(self) -> int:
        """The latest time at which tallies stand."""
        return max((fact.clock_ms for fact in self.pages.values()), default=self.facts.clock_ms)

    def __len__(self) -> int:
        """How many events are kept."""
        return len(self.pinned) + sum(len(segment) for segment in self.segments if not segment.panes)


def span_code(span_ms: int) -> int:
    """The least power of two that is no shorter."""
    return max(span_ms - 1, 0).bit_length()


def span_codes(spans_ms: Int64) -> Int8:
    """The same for many, most of them equal."""
    if (spans_ms == spans_ms[:1]).all():
        return np.full(len(spans_ms), span_code(int(spans_ms[0])) if len(spans_ms) else 0, np.int8)
    different, inverse = np.unique(spans_ms, return_inverse=True)
    return np.array([span_code(ms) for ms in different.tolist()], np.int8)[inverse]


def segment_of(block: Block, span_ms: int, page: int = -1) -> Segment:
    """A segment in memory; the block has at least one event."""
    rows = block.rows
    spans = {code: count for code, count in enumerate(np.bincount(rows.span).tolist()) if count}
    first, last = int(rows.time_ms.min()), int(rows.time_ms.max())
    return Segment(first, last, span_ms, spans, int(np.bincount(rows.key).max()), lambda: block, page=page)


def without_over(segments: Sequence[Segment], span_max_ms: int, watermark_ms: int) -> tuple[Segment, ...]:
    """The segments of which a later event may ask for something, by rules that look back `span_max_ms` at most."""
    return tuple(s for s in segments if min(s.until_ms, s.last_ms + span_max_ms) > watermark_ms)


# -------------------------------------------------------------------------------------------------------- pages


def concat_histories(parts: Sequence[tuple[int, Histories]]) -> Histories:
    """Those of pages by their numbers, -1 for parts of no page. No key is in two parts."""
    if not parts:
        return Histories()
    if len(parts) > 1 and any(page < 0 for page, _ in parts):  # they may stand at different times
        panes = [part.facts.panes for _, part in parts if part]
        facts = PageFacts(panes=frozenset.intersection(*panes) if panes else frozenset())
        parts = [(page, replace(untallied(part), facts=facts)) for page, part in parts]
    offsets = np.cumsum([0, *(len(part.keys) for _, part in parts)])
    pinned = [
        part.pinned.of_keys(part.pinned.key + np.int32(at)) for (_, part), at in zip(parts, offsets[:-1], strict=True)
    ]
    names = dict.fromkeys(name for _, part in parts for name in part.tallies)
    subs: dict[str, list[SubTallies]] = {}
    for (_, part), at in zip(parts, offsets[:-1], strict=True):
        for name, entries in part.sub_tallies.items():
            subs.setdefault(name, []).append(entries.of_keys(entries.key + at))
    return Histories(
        pa.concat_arrays([part.keys for _, part in parts]),
        concat_rows(pinned),
        tuple(replace(segment, page=page) for page, part in parts for segment in part.segments),
        max(part.loose for _, part in parts),
        parts[0][1].facts if len(parts) == 1 else PageFacts(),
        tallies={name: np.concatenate([_tally(part, name) for _, part in parts]) for name in names},
        sub_tallies={name: concat_sub_tallies(own) for name, own in subs.items()},
        pages={page: part.facts for page, part in parts},
    )


def _tally(part: Histories, name: str) -> Int64:
    found = part.tallies.get(name)
    return np.zeros((len(part.keys), tally_width(name)), np.int64) if found is None else found


def untallied(part: Histories) -> Histories:
    """Without tallies: they are begun anew from the kept events."""
    return replace(part, tallies={}, sub_tallies={}, facts=PageFacts(panes=part.facts.panes), pages={})


def keys_of(histories: Histories) -> pa.Array:
    """The keys that have anything, some of them several times. Every segment is read."""
    return pa.concat_arrays([histories.keys, *(segment.load().keys for segment in histories.segments)])


def unplaced(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """The same in memory only, to be divided anew by keys."""
    return tuple(replace(segment, kept=None, page=-1) for segment in segments)


def partition_histories(
    histories: Histories, pages: Sequence[int], page_of: Callable[[pa.Array], Int64]
) -> list[Histories]:
    """What belongs to each of the pages, which are ascending; `page_of` gives the page of each of an array of keys."""
    if not pages:
        return []
    if len(pages) == 1:
        return [replace(histories, segments=tuple(replace(s, page=pages[0]) for s in histories.segments))]
    at_page = {page: at for at, page in enumerate(pages)}
    segments: list[list[Segment]] = [[] for _ in pages]
    for segment in histories.segments:
        if segment.page >= 0:
            segments[at_page[segment.page]].append(segment)
            continue
        block = segment.load()
        for at, own in _cut(block.keys, block.rows, np.searchsorted(pages, page_of(block.keys)), len(pages)):
            segments[at].append(replace(segment_of(own, segment.span_ms, pages[at]), panes=segment.panes))
    found = [Histories(segments=tuple(own), loose=histories.loose, facts=histories.facts) for own in segments]
    if len(histories.keys):
        part = np.searchsorted(pages, page_of(histories.keys))
        order = np.argsort(part, kind="stable")
        bounds = np.searchsorted(part[order], np.arange(len(pages) + 1))
        pinned_part = part[histories.pinned.key]
        for at in np.flatnonzero(np.diff(bounds)).tolist():
            chosen = order[bounds[at] : bounds[at + 1]]
            rows = histories.pinned.take(np.flatnonzero(pinned_part == at))
            key = np.searchsorted(chosen, rows.key).astype(np.int32)
            tallies = {name: tally[chosen] for name, tally in histories.tallies.items()}
            subs = {}
            for name, entries in histories.sub_tallies.items():
                theirs = entries.take(np.flatnonzero(part[entries.key] == at))
                subs[name] = theirs.of_keys(np.searchsorted(chosen, theirs.key))
            found[at] = replace(
                found[at], keys=histories.keys.take(pa.array(chosen)), pinned=rows.of_keys(key), tallies=tallies,
                sub_tallies=subs,
            )  # fmt: skip
    return found


def _cut(keys: pa.Array, rows: HistoryRows, part: Int64, parts_count: int) -> list[tuple[int, Block]]:
    """The events of each part that has any; `part` is that of each key."""
    row_part = part[rows.key]
    order = np.argsort(row_part, kind="stable")
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(row_part, minlength=parts_count))])
    ordered = rows.take(order)
    found = []
    for at in np.flatnonzero(np.diff(bounds)).tolist():
        own = ordered.take(np.arange(bounds[at], bounds[at + 1]))
        used, key = np.unique(own.key, return_inverse=True)
        found.append((at, Block(keys.take(pa.array(used)), own.of_keys(key.astype(np.int32)))))
    return found


# ---------------------------------------------------------------------------------------------------- compaction


def compacted(histories: Histories, columns: Collection[str], watermark_ms: int) -> Histories:
    """The same with fewer segments where many small ones have come together, without what nobody asks for in those
    that are written anew; `columns` are what rules read now. All segments are of one page, and of events.
    """
    segments = list(histories.segments)
    start = _joined_from([len(segment) for segment in segments])
    if start < len(segments):
        joined = _rewritten(segments[start:], columns, watermark_ms)
        segments[start:] = [joined] if joined is not None else []
    for at, segment in enumerate(segments):
        over = sum(count for code, count in segment.spans.items() if segment.last_ms + 2**code <= watermark_ms)
        if over > _OVER_SHARE * len(segment):
            again = _rewritten([segment], columns, watermark_ms)
            segments[at : at + 1] = [again] if again is not None else []
            break  # one a micro-batch: the others have time
    if len(segments) == len(histories.segments) and all(map(lambda a, b: a is b, segments, histories.segments)):
        return histories
    return replace(histories, segments=tuple(segments))


def _joined_from(counts: Sequence[int]) -> int:
    """From where on segments of these sizes are joined; their number if nothing is to be done."""
    found = len(counts)
    for size in range(_SIZES):
        start = len(counts)
        while start and counts[start - 1] >> (_FIRST_BITS + 3 * size) == 0:
            start -= 1
        if len(counts) - start >= _JOINED:
            found = start
    return found


def _rewritten(segments: Sequence[Segment], columns: Collection[str], watermark_ms: int) -> Segment | None:
    """One segment of what may still be asked for; None for nothing."""
    block = concat_blocks([segment.load() for segment in segments])
    rows = block.rows
    alive = rows.time_ms + np.left_shift(np.int64(1), rows.span.astype(np.int64)) > watermark_ms
    read = {name: column for name, column in rows.columns.items() if name in columns}
    rows = replace(rows, columns=read)
    rows = rows if alive.all() else rows.take(np.flatnonzero(alive))
    span_ms = max(segment.span_ms for segment in segments)
    return segment_of(block_of(block.keys, rows), span_ms, segments[0].page) if len(rows) else None
