"""Histories of the pages of one call → the past events that it has to look at.

A count, a sum or a spread is carried from call to call as a *tally*: what is in its window at the page's clock. So of
old events only those are looked at that leave the window until the last new event; windows over minutes and over months
cost the same. Of `min`, `max` and `distinct` the events that can still decide are pinned, as those are that alone
decide. The other functions look at their whole windows, of the keys that have new events.

    ── clock ─────────────────────────────────────────▶ time
    │← leaves →│           carried in the tally        │← new events →│
    opens(clock) opens(now)

A *strange* page was written for other rules: all its events are looked at once, to begin its tallies with, and are kept
from then on as long as the rules of now ask for them.
Tested by: tests/engine/test_histories.py, tests/engine/test_history_reach.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.engine.calendar import opens_ms
from cep.engine.history_rows import Block, HistoryRows, Int8, concat_rows
from cep.engine.history_state import Histories, PageFacts, Segment, segment_of
from cep.engine.history_table import NewEvents
from cep.kernels.layout import Int32, Int64
from cep.lang.ir import HistoryWindow
from cep.nfa.histories import HistoryPlan


@dataclass(frozen=True, slots=True)
class Reached:
    """What a call looks at. `keys` are those of the call, and behind them others of strange pages.

    Shapes: page int32[H], the place in `facts` of each row's page; segment, row int64[H], where in which of `segments`
    it is. `is_carried`: whether anything is carried: not while a key may have more events than a history counts.
    `carried` is what is: of its windows only what leaves them is looked at, and in strange pages all events.
    """

    keys: pa.Array
    rows: HistoryRows
    page: Int32
    segment: Int64
    row: Int64
    segments: tuple[Segment, ...]
    facts: tuple[PageFacts, ...]
    is_strange: np.ndarray
    is_carried: bool
    carried: frozenset[str]

    def left(self, window: HistoryWindow) -> Int64:
        """For each page the time up to which events have left a window at its clock."""
        return opens_ms(window, np.array([fact.clock_ms for fact in self.facts], np.int64))


def reach(plan: HistoryPlan, histories: Histories, keys: pa.Array, new: NewEvents, clock_ms: int) -> Reached:
    """What is looked at of the past in a call after which the clock stands at `clock_ms`."""
    segments = [segment for segment in histories.segments if not segment.panes]
    pages = sorted({segment.page for segment in segments})
    facts = tuple(histories.facts_of(page) for page in pages)
    most = dict.fromkeys(pages, int(np.bincount(new.key).max()))
    for segment in segments:
        most[segment.page] += segment.most
    is_carried = max(most.values(), default=int(np.bincount(new.key).max())) <= plan.events_max
    crowded = frozenset[str]().union(*(fact.crowded for fact in facts))
    carried = plan.carried - crowded if is_carried else frozenset()
    is_known = [plan.identities <= fact.identities and carried <= fact.carried for fact in facts]
    has_panes = [plan.approximate.keys() <= fact.panes for fact in facts]
    is_strange = ~np.array(has_panes, bool) | (is_carried & ~np.array(is_known, bool))
    first_ms, last_ms = int(new.batch.time_ms.min()), max(int(new.batch.time_ms.max()), clock_ms)
    ends = np.array([first_ms, last_ms], np.int64)
    whole = [h for h in plan.histories if not (h.is_single or h.is_approximate or h.carried in carried)]
    back_ms = min((int(opens_ms(h.expr.window, ends)[0]) - (h.kept_ms - h.span_ms) for h in whole), default=first_ms)
    edges = list(_edges(plan, carried, facts, ends))
    opened: list[tuple[Segment, int]] = []
    for segment in segments:
        page = pages.index(segment.page)
        leaving = any(segment.first_ms <= high and segment.last_ms > lows[page] for lows, high in edges)
        if is_strange[page] or leaving or segment.last_ms > back_ms:
            opened.append((segment, page))
    blocks = [segment.load() for segment, _ in opened]
    keys, numbers = _numbered(keys, blocks, [is_strange[page] for _, page in opened])
    touched = np.zeros(len(keys) + 1, bool)  # the last one: not of this call
    touched[new.key] = True
    parts: list[HistoryRows] = []
    places: list[tuple[int, int, Int64]] = []
    for at, ((_, page), block, number) in enumerate(zip(opened, blocks, numbers, strict=True)):
        key = number[block.rows.key]
        time = block.rows.time_ms
        wanted = touched[key] & (time > back_ms)
        for lows, high in edges:
            wanted |= (time > lows[page]) & (time <= high)
        rows = np.flatnonzero((wanted | is_strange[page]) & (key >= 0))
        own_rows = block.rows.of_keys(key)
        parts.append(own_rows if len(rows) == len(block) else own_rows.take(rows))
        places.append((page, at, rows))
    counts = [len(rows) for _, _, rows in places]
    return Reached(
        keys,
        concat_rows(parts),
        np.repeat(np.array([page for page, _, _ in places], np.int32), counts),
        np.repeat(np.array([at for _, at, _ in places], np.int64), counts),
        np.concatenate([np.empty(0, np.int64), *(rows for _, _, rows in places)]),
        tuple(segment for segment, _ in opened),
        facts,
        is_strange,
        is_carried,
        carried,
    )


def _edges(
    plan: HistoryPlan, carried: frozenset[str], facts: tuple[PageFacts, ...], ends: Int64
) -> Iterator[tuple[Int64, int]]:
    """For each window of a tally that is carried: by page the time up to which events have left it, and that up to
    which they leave now."""
    clocks = np.array([fact.clock_ms for fact in facts], np.int64)
    for window in plan.tally_windows(carried):
        yield opens_ms(window, clocks), int(opens_ms(window, ends)[1])


def _numbered(keys: pa.Array, blocks: list[Block], strange: list[bool]) -> tuple[pa.Array, list[Int32]]:
    """The keys with those behind them that only strange pages have; by block the number of each of its keys, or -1."""
    if not blocks:
        return keys, []
    own = pa.concat_arrays([block.keys for block in blocks])
    numbers = np.array(pc.index_in(own, value_set=keys).fill_null(-1))
    is_new = (numbers < 0) & np.repeat(np.array(strange), [len(block.keys) for block in blocks])
    if is_new.any():
        more = own.filter(pa.array(is_new)).dictionary_encode()
        numbers[is_new] = np.asarray(more.indices) + len(keys)
        keys = pa.concat_arrays([keys, more.dictionary])
    bounds = np.cumsum([len(block.keys) for block in blocks])[:-1]
    return keys, [part.astype(np.int32) for part in np.split(numbers, bounds)]


def kept_for(reached: Reached, span: Int8, span_ms: Int64) -> dict[Segment, Segment]:
    """For the segments of strange pages that rules of now want kept longer, the same with that.

    Shapes: span int8[H] and span_ms int64[H], of the rows: how long after each of them somebody may ask for it.
    """
    found: dict[Segment, Segment] = {}
    for at, segment in enumerate(reached.segments):
        own = np.flatnonzero(reached.segment == at)
        if not len(own) or not reached.is_strange[reached.page[own[0]]]:
            continue
        block = segment.load()
        codes = block.rows.span.copy()
        codes[reached.row[own]] = np.maximum(codes[reached.row[own]], span[own])
        longest_ms = max(segment.span_ms, int(span_ms[own].max()))
        if longest_ms > segment.span_ms or (codes != block.rows.span).any():
            rows = replace(block.rows, span=codes)
            found[segment] = segment_of(Block(block.keys, rows), longest_ms, segment.page)
    return found
