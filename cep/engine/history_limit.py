"""Histories of one page → the same, tended: small segments joined, and no more events of a key than its histories use.

A history's value is worked out from the newest `events_max` of its key, and from panes of those before them (folds.py).
Which events those are takes all of a key's to tell, so it is looked at only when the segments say that some key may
have a quarter more than that.
Tested by: tests/engine/test_histories.py, tests/engine/test_history_state.py, tests/engine/test_folds.py
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from cep.columnar.batch import NO_TEXTS, EventBatch, arrow_type
from cep.engine.history_asked import Asked
from cep.engine.history_rows import Block, block_of, concat_blocks
from cep.engine.history_state import Histories, Segment, compacted, segment_of
from cep.engine.history_table import HistoryTable, NewEvents, build_table
from cep.engine.known_values import panes_after
from cep.engine.panes import appended_panes, joined_panes, pane_of, panes_of_keys
from cep.kernels import histories as kernels
from cep.kernels.layout import Int64, UInt8
from cep.lists.timeline import NO_LISTS
from cep.nfa.histories import HistoryColumn, HistoryPlan


def tended(plan: HistoryPlan, histories: Histories, watermark_ms: int) -> Histories:
    """What is to be kept of one page after a micro-batch that has reached it."""
    events = tuple(segment for segment in histories.segments if not segment.panes)
    panes = tuple(segment for segment in histories.segments if segment.panes)
    found = compacted(replace(histories, segments=events), plan.kept_names, watermark_ms)
    most = sum(segment.most for segment in found.segments)
    if most > plan.events_max + 1 + max(found.loose, plan.events_max // 4):
        events, panes = _limited(plan, found.segments, panes, watermark_ms)
        rest = sum(segment.most for segment in events) - plan.events_max - 1
        # Where the bound stays above, another quarter has to come before the next look.
        found = replace(found, segments=events, loose=rest + plan.events_max // 4 if rest > 0 else 0)
    return replace(found, segments=(*found.segments, *joined_panes(plan, panes, watermark_ms)))


def _limited(
    plan: HistoryPlan, segments: tuple[Segment, ...], panes: tuple[Segment, ...], watermark_ms: int
) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Without the events of busy keys that no history uses any more; and panes with what they are folded into."""
    blocks = [segment.load() for segment in segments]
    whole = concat_blocks(blocks)
    busy = np.bincount(whole.rows.key, minlength=len(whole.keys)) > plan.events_max + 1
    if not busy.any():
        return segments, panes
    found: list[Segment] = []
    kept, panes = _used(plan, whole, busy, panes, watermark_ms)
    numbers = np.concatenate([np.full(len(block), at) for at, block in enumerate(blocks)])
    # The whole has the events key by key, those of a key in the order of the segments.
    keys = np.concatenate([np.asarray(pa.compute.index_in(b.keys, value_set=whole.keys))[b.rows.key] for b in blocks])
    order = np.argsort(keys, kind="stable")
    is_kept = np.empty(len(order), bool)
    is_kept[order] = kept
    for at, (segment, block) in enumerate(zip(segments, blocks, strict=True)):
        own = is_kept[numbers == at]
        if own.all():
            found.append(segment)
        elif own.any():
            rows = block.rows.take(np.flatnonzero(own))
            found.append(segment_of(block_of(block.keys, rows), segment.span_ms, segment.page))
    return tuple(found), tuple(replace(segment, page=segments[0].page) for segment in panes)


def _used(
    plan: HistoryPlan, whole: Block, busy: np.ndarray, panes: tuple[Segment, ...], watermark_ms: int
) -> tuple[np.ndarray, tuple[Segment, ...]]:
    """Which events of the block are used, bool[H]: all of keys that are not busy. And panes with those that are not."""
    looked_at = np.flatnonzero(busy[whole.rows.key])
    table = _table(plan, Block(whole.keys, whole.rows.take(looked_at)))
    marked = np.zeros(len(table.time), np.uint8)
    asked, always = Asked(table, panes=panes_of_keys(panes, whole.keys, busy)), np.full(len(marked), -(2**62), np.int64)
    foldable = [history for history in plan.histories if history.is_foldable]
    still = {history.identity: asked.still_counting(history) for history in foldable}
    for history in foldable:
        members = np.flatnonzero(asked.member(history))
        _mark(members, table.key, table, always, history.events_max, marked)
        if history.is_first_of_window:
            marked[_firsts(history, table, still[history.identity])] = 1
    for code in plan.retained_ms:
        _mark(np.flatnonzero(table.event_type == code), table.key, table, always, plan.events_max, marked)
    used = np.ones(len(whole), bool)
    used[looked_at] = marked.astype(bool)
    known = {h.known: k for h in foldable if (k := asked.known(h, always=True)) is not None}
    fresh = [*panes_after(plan, known, panes, whole.keys, watermark_ms)]
    for history in plan.panes.values():
        if history.is_foldable:
            rows = np.flatnonzero((still[history.identity] != 0) & (marked == 0))
            fresh += appended_panes(history, asked.fold(history, rows), whole.keys, watermark_ms)
    return used, tuple(fresh)


def _mark(members: Int64, segment: Int64, table: HistoryTable, always: Int64, events_max: int, marked: UInt8) -> None:
    # One more than is asked for: it tells whether older events are left out.
    kernels.mark_kept(members, segment, table.time, always, events_max + 1, False, marked)


def _firsts(history: HistoryColumn, table: HistoryTable, member: UInt8) -> Int64:
    """The first member of each pane."""
    segment, order = table.segments(history.by)
    rows = order[member[order] != 0]
    pane_ms = pane_of(history, table.time[rows])
    is_first = np.ones(len(rows), bool)
    is_first[1:] = (segment[rows[1:]] != segment[rows[:-1]]) | (pane_ms[1:] != pane_ms[:-1])
    found: Int64 = rows[is_first]
    return found


def _table(plan: HistoryPlan, block: Block) -> HistoryTable:
    """The table of these events, none of them new."""
    text, nothing = NO_TEXTS, np.empty(0, np.int64)
    columns = {column.name: pa.array([], arrow_type(column.type)) for column in plan.kept}
    empty = EventBatch(text, text, nothing.astype(np.int16), nothing, columns)
    new = NewEvents(empty, nothing, nothing.astype(np.int32), len(block.keys))
    return build_table(plan, NO_LISTS, block.rows, 0, new)  # what lists said is kept with them
