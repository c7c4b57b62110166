"""The table of a call → what later events may ask for: those that decide alone, and new ones with their span.

Tested by: tests/engine/test_histories.py, tests/engine/test_history_reach.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cep.base.limits import HISTORY_VALUES_MAX, TIME_MS_MAX
from cep.engine.calendar import opens_ms
from cep.engine.history_asked import Asked
from cep.engine.history_rows import HistoryRows, block_of
from cep.engine.history_state import Histories, Segment, segment_of, span_codes
from cep.engine.history_table import HistoryTable
from cep.engine.history_values import sortable
from cep.engine.sub_tallies import Tallied
from cep.kernels import histories as kernels
from cep.kernels.layout import Int64, UInt8
from cep.nfa.histories import HistoryColumn, HistoryPlan

# What is carried is written anew with every micro-batch that its page is reached by. Where a key has more for one
# history than both of these, on average, looking at its windows costs less.
_CARRIED_MIN = 16
_CARRIED_SHARE = 0.25  # of the events that are kept of a key


@dataclass(frozen=True, slots=True)
class Pinned:
    """The events that are pinned after a call; and the sparse histories of which none are, because they would be too
    many (`crowded`)."""

    rows: HistoryRows
    crowded: frozenset[str]


def pinned_after(plan: HistoryPlan, table: HistoryTable, asked: Asked, watermark_ms: int, per_key: float) -> Pinned:
    """The events of the table of which few decide what later events ask for; a key has `per_key` events on average."""
    kept = np.zeros(len(table.time), np.uint8)
    latest_ms = np.maximum(table.last_times(), watermark_ms)
    keys_count = int((np.bincount(table.key) > 0).sum())
    most = _most(keys_count, per_key)
    crowded = set()
    for history in plan.histories:
        if not (history.is_single or (history.is_sparse and asked.is_carried(history))):
            continue
        own = _deciding(history, table, asked, opens_ms(history.expr.window, latest_ms)[table.key])
        if history.is_sparse and own.sum() > most:
            crowded.add(history.identity)
            continue
        if history.is_single and history.by:
            _limit(own, table.key, is_first=history.is_first)
        kept |= own
    rows = np.flatnonzero(kept)
    return Pinned(table.take(rows, np.zeros(len(rows), np.int8)), frozenset(crowded))


def tallies_after(plan: HistoryPlan, asked: Asked, clock_ms: int, per_key: float) -> Tallied:
    """What is carried in tallies to the next call; a key has `per_key` events on average."""
    by_key, by_sub_key, crowded = {}, {}, set()
    for name, history in {h.tally: h for h in plan.histories if h.tally and asked.is_carried(h)}.items():
        if not history.by:
            tally, fits = asked.tally_after(history, clock_ms)
            if fits:
                by_key[name] = tally
            else:
                crowded.add(name)
            continue
        entries, fits = asked.sub_tally_after(history, clock_ms)
        if not fits or len(entries) > _most(int((np.bincount(entries.key) > 0).sum()), per_key):
            crowded.add(name)
        else:
            by_sub_key[name] = entries
    for history in plan.histories:
        if asked.is_counted(history):
            by_key[history.counted] = asked.different_after(history, clock_ms)
        if asked.is_ranked(history):
            bands = asked.bands_after(history, clock_ms)
            by_key[history.ranked], by_sub_key[history.band] = bands.held, bands.entries()
    return Tallied(by_key, by_sub_key, frozenset(crowded))


def _most(keys_count: int, per_key: float) -> float:
    """How many events or entries are carried at most for one history of so many keys."""
    return keys_count * max(_CARRIED_MIN, _CARRIED_SHARE * per_key)


def _deciding(history: HistoryColumn, table: HistoryTable, asked: Asked, opens: Int64) -> UInt8:
    """1 for the rows that can decide the value at a later event, whose window reaches back to opens at most."""
    windows, fn = asked.windows(history), history.expr.fn
    own = np.zeros(len(table.time), np.uint8)
    if fn in ("min", "max"):
        assert history.expr.argument is not None, "they have a field"
        values = sortable(table.columns[history.value, windows.rows], history.expr.argument.type)
        kernels.mark_least(windows.rows, windows.segment, table.time, opens, values if fn == "min" else ~values, own)
        return own
    rows, segment = windows.rows, windows.segment
    if fn == "distinct":
        segment, order = table.segments((*history.by, history.value))
        rows = order[asked.member(history)[order] != 0]
    kernels.mark_kept(rows, segment, table.time, opens, 1, history.is_first, own)
    return own


def _limit(own: UInt8, key: Int64, *, is_first: bool) -> None:
    """Clear the flags of a key's values beyond the limit, those that it does not know (remembered.py): the newest ones,
    or else the oldest."""
    rows = np.flatnonzero(own)
    counts = np.bincount(key[rows])
    if counts.max(initial=0) <= HISTORY_VALUES_MAX:
        return
    starts = np.cumsum(counts) - counts
    rank = np.arange(len(rows)) - starts[key[rows]]
    beyond = rank >= HISTORY_VALUES_MAX if is_first else rank < (counts - HISTORY_VALUES_MAX)[key[rows]]
    own[rows[beyond]] = 0


def spans_after(plan: HistoryPlan, table: HistoryTable, asked: Asked) -> Int64:
    """How long after each row windows may hold it, or the schema wants it kept; 0: not at all."""
    found = np.zeros(len(table.time), np.int64)
    for history in plan.histories:
        if not history.is_single and not history.is_approximate:
            np.maximum(found, asked.member(history) * np.int64(history.kept_ms), out=found)
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
        if history.is_single or history.is_sparse:
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
