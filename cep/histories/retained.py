"""The table of a call → the events that later events may need: pinned events, and new events with their spans.

Tested by: tests/histories/test_values.py, tests/histories/test_reach.py
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cep.base.limits import HISTORY_VALUES_MAX, TIME_MS_MAX
from cep.functions.calendar import window_starts_ms
from cep.histories.context import Context
from cep.histories.kinds.choose import kind_of
from cep.histories.numbers.tally import Tallies
from cep.histories.store import Histories, HistoryRows, Segment, SubTallies, block_of, segment_of, span_codes
from cep.histories.table import HistoryTable
from cep.kernels.layout import Int32, Int64, UInt8
from cep.nfa.histories import HistoryPlan

# Carried values are rewritten in every micro-batch that reaches their page. If a key has on average more of them for
# one history than both limits allow, reading its windows is cheaper.
_CARRIED_MIN = 16
_CARRIED_SHARE = 0.25  # share of the retained events of a key


@dataclass(frozen=True, slots=True)
class Pinned:
    """The events that are pinned after a call. `crowded` are the sparse histories that would pin too many."""

    rows: HistoryRows
    crowded: frozenset[str]


def choose_pinned(plan: HistoryPlan, context: Context, watermark_ms: int, events_per_key: float) -> Pinned:
    """Pin the events that stay stored one by one, because they can decide the value of a history after `watermark_ms`.

    Few events decide a `min`, `max` or `distinct` (a sparse history), one decides a `last` or `exists` (a single one).
    A sparse history that would pin too many, given `events_per_key`, is crowded: its windows are read instead. With
    sub-keys (values of `by`), a single history pins one event for each, up to a limit of sub-keys.
    """
    table = context.table
    is_pinned = np.zeros(len(table.time), np.uint8)
    latest_ms = np.maximum(table.last_times(), watermark_ms)
    events_max = _carried_max(table.key, events_per_key)
    crowded_histories = set()
    for history in plan.histories:
        if not context.windows.has_pinned_events(history):
            continue
        starts_ms = window_starts_ms(history.expr.window, latest_ms)[table.key]
        can_decide = kind_of(history).pin_events(context, history, starts_ms)
        assert can_decide is not None, "its kind pins events"
        if history.is_sparse and can_decide.sum() > events_max:
            crowded_histories.add(history.identity)
            continue
        if history.is_single and history.by:
            _unpin_beyond_limit(can_decide, table.key, is_first=history.is_first)
        is_pinned |= can_decide
    rows = np.flatnonzero(is_pinned)
    return Pinned(table.take(rows, np.zeros(len(rows), np.int8)), frozenset(crowded_histories))  # 0: no span


def carry_all_tallies(plan: HistoryPlan, context: Context, clock_ms: int, events_per_key: float) -> Tallies:
    """Return the tallies (running counts and sums) at `clock_ms`, with which the next batch goes on.

    A *crowded* tally is left out: it has too many entries, one for each sub-key (value of `by`) or value near a rank.
    Then it costs less to read the windows, with about `events_per_key` events, than to store the entries each time.
    """
    tallied = {history.tally: history for history in plan.histories if context.windows.has_carried_tally(history)}
    counts_and_ranks = {  # they belong to one history each, whereas several histories share a tally
        h.identity: h
        for h in plan.histories
        if context.windows.has_carried_count(h) or context.windows.has_carried_rank(h)
    }
    by_key: dict[str, Int64] = {}
    by_sub_key: dict[str, SubTallies] = {}
    crowded = set()
    for name, history in [*tallied.items(), *counts_and_ranks.items()]:
        carried = kind_of(history).carry_tallies(context, history, clock_ms)
        entries = carried.by_sub_key.get(name)
        if carried.crowded or (entries is not None and len(entries) > _carried_max(entries.key, events_per_key)):
            crowded.add(name)
        else:
            by_key.update(carried.by_key)
            by_sub_key.update(carried.by_sub_key)
    return Tallies(by_key, by_sub_key, frozenset(crowded))


def _carried_max(key: Int64 | Int32, events_per_key: float) -> float:
    """Return the maximum number of events or entries to carry for one history of these keys."""
    return np.count_nonzero(np.bincount(key)) * max(_CARRIED_MIN, _CARRIED_SHARE * events_per_key)


def _unpin_beyond_limit(can_decide: UInt8, key: Int64, *, is_first: bool) -> None:
    """Clear the flags of a key's oldest sub-keys, with `is_first` its newest, if it has too many (sub_keys.py)."""
    rows = np.flatnonzero(can_decide)
    counts = np.bincount(key[rows])
    if counts.max(initial=0) <= HISTORY_VALUES_MAX:
        return
    starts = np.cumsum(counts) - counts
    rank = np.arange(len(rows)) - starts[key[rows]]
    beyond = rank >= HISTORY_VALUES_MAX if is_first else rank < (counts - HISTORY_VALUES_MAX)[key[rows]]
    can_decide[rows[beyond]] = 0


def retention_of_rows(plan: HistoryPlan, context: Context) -> Int64:
    """Return how long after each row a window may include it or the schema retains it; 0 means not at all."""
    table = context.table
    spans_ms = np.zeros(len(table.time), np.int64)
    for history in plan.histories:
        if not history.is_single and not history.is_approximate:
            np.maximum(spans_ms, context.windows.member_mask(history) * np.int64(history.retention_ms), out=spans_ms)
    for code, retained_ms in plan.retained_ms.items():
        np.maximum(spans_ms, (table.event_type == code) * np.int64(retained_ms), out=spans_ms)
    return spans_ms


def appended(table: HistoryTable, span_ms: Int64, keys: pa.Array, watermark_ms: int) -> Iterator[Segment]:
    """Yield a segment of the new events that must be retained."""
    is_wanted = (span_ms > 0) & (np.minimum(table.time + span_ms, TIME_MS_MAX) > watermark_ms)
    rows = np.flatnonzero(is_wanted & (table.new_at >= 0))
    if len(rows):
        codes = span_codes(span_ms[rows])
        yield segment_of(block_of(keys, table.take(rows, codes)), int(span_ms[rows].max()))


def unexpired(plan: HistoryPlan, pinned: HistoryRows, watermark_ms: int) -> HistoryRows:
    """Drop pinned events that have left every window, for keys without new events."""
    over = _pinned_until_ms(plan, pinned) <= watermark_ms
    return pinned.take(np.flatnonzero(~over)) if over.any() else pinned


def _pinned_until_ms(plan: HistoryPlan, pinned: HistoryRows) -> Int64:
    """For each event, return the time of the first event that can no longer read it."""
    spans = np.zeros(plan.types_count, np.int64)
    for history in plan.histories:
        if history.is_single or history.is_sparse:
            types = slice(None) if history.event_type < 0 else slice(history.event_type, history.event_type + 1)
            spans[types] = np.maximum(spans[types], history.span_ms)
    until_ms: Int64 = np.minimum(pinned.time_ms + spans[pinned.event_type], TIME_MS_MAX)
    return until_ms


def expires_ms(plan: HistoryPlan | None, histories: Histories) -> int | None:
    """Return when the last retained event leaves every window; None if no event is retained or no rule reads them."""
    if plan is None or not histories:
        return None
    times = [min(s.until_ms, s.last_ms + plan.span_max_ms) for s in histories.segments]
    times += [int(_pinned_until_ms(plan, histories.pinned).max())] if len(histories.pinned) else []
    return max(times)
