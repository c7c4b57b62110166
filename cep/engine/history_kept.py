"""The table of a call → what later events may still ask for: single events, and the new ones with their time to live.

Tested by: tests/engine/test_histories.py, tests/engine/test_history_reach.py
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from cep.base.limits import HISTORY_VALUES_MAX, TIME_MS_MAX
from cep.engine.calendar import opens_ms
from cep.engine.history_asked import Asked
from cep.engine.history_rows import HistoryRows, block_of
from cep.engine.history_state import Histories, Segment, segment_of, span_codes
from cep.engine.history_table import HistoryTable
from cep.kernels import histories as kernels
from cep.kernels.layout import Int64, UInt8
from cep.nfa.histories import HistoryPlan


def pinned_after(plan: HistoryPlan, table: HistoryTable, asked: Asked, watermark_ms: int) -> tuple[HistoryRows, int]:
    """The events of the table that alone decide what later events ask for; and how many are dropped by the limit."""
    kept = np.zeros(len(table.time), np.uint8)
    latest_ms = np.maximum(table.last_times(), watermark_ms)
    dropped = 0
    for history in plan.histories:
        if history.is_single:
            windows = asked.windows(history)
            opens = opens_ms(history.expr.window, latest_ms)[table.key]
            own = np.zeros(len(table.time), np.uint8)
            kernels.mark_kept(windows.rows, windows.segment, table.time, opens, 1, history.is_first, own)
            dropped += _limit(own, table.key, is_first=history.is_first) if history.by else 0
            kept |= own
    rows = np.flatnonzero(kept)
    return table.take(rows, np.zeros(len(rows), np.int8)), dropped


def _limit(own: UInt8, key: Int64, *, is_first: bool) -> int:
    """Clear the flags of a key's values beyond the limit: the newest ones, or else the oldest; returns how many."""
    rows = np.flatnonzero(own)
    counts = np.bincount(key[rows])
    if counts.max(initial=0) <= HISTORY_VALUES_MAX:
        return 0
    starts = np.cumsum(counts) - counts
    rank = np.arange(len(rows)) - starts[key[rows]]
    beyond = rank >= HISTORY_VALUES_MAX if is_first else rank < (counts - HISTORY_VALUES_MAX)[key[rows]]
    own[rows[beyond]] = 0
    return int(beyond.sum())


def spans_after(plan: HistoryPlan, table: HistoryTable, asked: Asked) -> Int64:
    """How long after each row windows may hold it, or the schema wants it kept; 0: not at all."""
    found = np.zeros(len(table.time), np.int64)
    for history in plan.histories:
        if not history.is_single:
            np.maximum(found, asked.member(history) * np.int64(history.span_ms), out=found)
    for code, retained_ms in plan.retained_ms.items():
        np.maximum(found, (table.event_type == code) * np.int64(retained_ms), out=found)
    return found


def appended(table: HistoryTable, span_ms: Int64, keys: pa.Array, watermark_ms: int) -> Iterator[Segment]:
    """The new events that are kept."""
    is_wanted = (span_ms > 0) & (np.minimum(table.time + span_ms, TIME_MS_MAX) > watermark_ms)
    rows = np.flatnonzero(is_wanted & (table.new_at >= 0))
    if len(rows):
        codes = span_codes(span_ms[rows])
        yield segment_of(block_of(keys, table.take(rows, codes)), int(span_ms[rows].max()))


def unexpired(plan: HistoryPlan, pinned: HistoryRows, watermark_ms: int) -> HistoryRows:
    """Without the events that no window can hold any more, for keys that have no new ones."""
    over = _pinned_until_ms(plan, pinned) <= watermark_ms
    return pinned.take(np.flatnonzero(~over)) if over.any() else pinned


def _pinned_until_ms(plan: HistoryPlan, pinned: HistoryRows) -> Int64:
    """For each event the time of the first event that can no longer ask for it."""
    spans = np.zeros(plan.types_count, np.int64)
    for history in plan.histories:
        if history.is_single:
            own = slice(None) if history.event_type < 0 else slice(history.event_type, history.event_type + 1)
            spans[own] = np.maximum(spans[own], history.span_ms)
    found: Int64 = np.minimum(pinned.time_ms + spans[pinned.event_type], TIME_MS_MAX)
    return found


def over_ms(plan: HistoryPlan | None, histories: Histories) -> int | None:
    """When the last of what is kept is out of every window; None if nothing is kept, or nobody asks for it."""
    if plan is None or not histories:
        return None
    times = [min(s.until_ms, s.last_ms + plan.span_max_ms) for s in histories.segments]
    times += [int(_pinned_until_ms(plan, histories.pinned).max())] if len(histories.pinned) else []
    return max(times)
