"""Limit a page: join its segments, and drop the events of each key that its histories do not use.

A history's value is computed from the newest `events_max` events of its key, and from panes of the events before them
(folds.py). Finding these events takes all events of a key. So the search runs only if the segments show that some key
may exceed the limit by a quarter.
Tested by: tests/histories/test_values.py, tests/histories/test_store.py, tests/histories/test_folds.py
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from cep.columnar.batch import NO_TEXTS, EventBatch, arrow_type
from cep.functions.text_numbers import TextNumbers
from cep.histories.call import Call
from cep.histories.known_sub_keys import panes_after
from cep.histories.numbers.panes import appended_panes, joined_panes, pane_of, panes_of_keys
from cep.histories.rows import Block, block_of, concat_blocks
from cep.histories.segments import join_segments
from cep.histories.store import Histories, Segment, segment_of
from cep.histories.table import HistoryTable, NewEvents, build_table
from cep.kernels.histories import windows as kernels
from cep.kernels.layout import Int64, UInt8
from cep.lists.timeline import NO_LISTS
from cep.nfa.histories import HistoryColumn, HistoryPlan


def compact_page(plan: HistoryPlan, histories: Histories, watermark_ms: int) -> Histories:
    """Compact the past of a page after a micro-batch has added to it: join small segments, and fold excess events."""
    events = tuple(segment for segment in histories.segments if not segment.panes)
    panes = tuple(segment for segment in histories.segments if segment.panes)
    joined = join_segments(replace(histories, segments=events), plan.stored_names, watermark_ms)
    events_estimate = sum(segment.most for segment in joined.segments)
    if events_estimate > plan.events_max + 1 + max(joined.loose, plan.events_max // 4):
        events, panes = _limited(plan, joined.segments, panes, watermark_ms)
        excess = sum(segment.most for segment in events) - plan.events_max - 1
        # If the estimate stays above the limit, wait for another quarter of the limit before the next search.
        joined = replace(joined, segments=events, loose=excess + plan.events_max // 4 if excess > 0 else 0)
    return replace(joined, segments=(*joined.segments, *joined_panes(plan, panes, watermark_ms)))


def _limited(
    plan: HistoryPlan, segments: tuple[Segment, ...], panes: tuple[Segment, ...], watermark_ms: int
) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Drop events beyond the limit that no history uses.

    Return the remaining segments, and the panes with the dropped events.
    """
    blocks = [segment.load() for segment in segments]
    all_events = concat_blocks(blocks)
    is_busy_key = np.bincount(all_events.rows.key, minlength=len(all_events.keys)) > plan.events_max + 1
    if not is_busy_key.any():
        return segments, panes
    limited: list[Segment] = []
    is_used, panes = _used(plan, all_events, is_busy_key, panes, watermark_ms)
    numbers = np.concatenate([np.full(len(block), segment_index) for segment_index, block in enumerate(blocks)])
    # `whole` has the events key by key; the events of a key are in the order of the segments.
    texts = TextNumbers(all_events.keys)
    keys = np.concatenate([texts.of(b.keys)[b.rows.key] for b in blocks])
    order = np.argsort(keys, kind="stable")
    is_needed = np.empty(len(order), bool)
    is_needed[order] = is_used
    for segment_index, (segment, block) in enumerate(zip(segments, blocks, strict=True)):
        used_here = is_needed[numbers == segment_index]
        if used_here.all():
            limited.append(segment)
        elif used_here.any():
            rows = block.rows.take(np.flatnonzero(used_here))
            limited.append(segment_of(block_of(block.keys, rows), segment.span_ms, segment.page))
    return tuple(limited), tuple(replace(segment, page=segments[0].page) for segment in panes)


def _used(
    plan: HistoryPlan, whole: Block, busy: np.ndarray, panes: tuple[Segment, ...], watermark_ms: int
) -> tuple[np.ndarray, tuple[Segment, ...]]:
    """Find the events that histories still use, and fold all others into panes.

    Shapes: busy bool[K] marks the keys with too many events. The result bool[H] marks the used events of `whole`; a key
    that is not busy uses all its events.
    """
    busy_rows = np.flatnonzero(busy[whole.rows.key])
    table = _table(plan, Block(whole.keys, whole.rows.take(busy_rows)))
    marked = np.zeros(len(table.time), np.uint8)
    call, far_back = Call(table, panes=panes_of_keys(panes, whole.keys, busy)), np.full(len(marked), -(2**62), np.int64)
    foldable = [history for history in plan.histories if history.is_foldable]
    still_counting = {history.identity: call.sub_keys.still_counting(history) for history in foldable}
    for history in foldable:
        members = np.flatnonzero(call.windows.member(history))
        _mark(members, table.key, table, far_back, history.events_max, marked)
        if history.is_first_of_window:
            marked[_firsts(history, table, still_counting[history.identity])] = 1
    for code in plan.retained_ms:
        _mark(np.flatnonzero(table.event_type == code), table.key, table, far_back, plan.events_max, marked)
    used = np.ones(len(whole), bool)
    used[busy_rows] = marked.astype(bool)
    memories = {h.known_sub_keys: k for h in foldable if (k := call.sub_keys.memory_of(h, always=True)) is not None}
    new_panes = [*panes_after(plan, memories, panes, whole.keys, watermark_ms)]
    for history in plan.panes.values():
        if history.is_foldable:
            rows = np.flatnonzero((still_counting[history.identity] != 0) & (marked == 0))
            new_panes += appended_panes(history, call.fold(history, rows), whole.keys, watermark_ms)
    return used, tuple(new_panes)


def _mark(members: Int64, segment: Int64, table: HistoryTable, always: Int64, events_max: int, marked: UInt8) -> None:
    # One more than the limit: it shows whether older events are left out.
    kernels.mark_retained(members, segment, table.time, always, events_max + 1, False, marked)


def _firsts(history: HistoryColumn, table: HistoryTable, member: UInt8) -> Int64:
    """Return the first member of each pane."""
    segment, order = table.segments(history.by)
    rows = order[member[order] != 0]
    pane_ms = pane_of(history, table.time[rows])
    is_first = np.ones(len(rows), bool)
    is_first[1:] = (segment[rows[1:]] != segment[rows[:-1]]) | (pane_ms[1:] != pane_ms[:-1])
    firsts: Int64 = rows[is_first]
    return firsts


def _table(plan: HistoryPlan, block: Block) -> HistoryTable:
    """Return the table of these events, none of them new."""
    text, nothing = NO_TEXTS, np.empty(0, np.int64)
    columns = {column.name: pa.array([], arrow_type(column.type)) for column in plan.stored_columns}
    empty = EventBatch(text, text, nothing.astype(np.int16), nothing, columns)
    new = NewEvents(empty, nothing, nothing.astype(np.int32), len(block.keys))
    return build_table(plan, NO_LISTS, block.rows, 0, new)  # the results of lists are stored with the events
