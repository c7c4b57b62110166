"""A plan, the past and new events → the value of every history at each new event, and the past after them.

1. Choose the past events that the batch reads (reach.py).
2. Place them before the new events, key by key, and evaluate conditions over all of them (table.py).
3. Compute each history at each new event (one module per kind in kinds/).
4. Decide which events and numbers to retain, pin and carry from now on (retained.py).

A window ends at the event itself. It excludes an event of the same time that comes later in the order (time, event id).
So a value does not depend on how the events are split into batches.
Tested by: tests/histories/test_values.py, tests/histories/test_store.py, tests/histories/test_folds.py,
tests/histories/test_known_sub_keys.py, tests/histories/test_remembered.py, tests/report/test_report.py.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from cep.base.limits import TIME_MS_MAX
from cep.columnar.batch import NO_TEXTS, TEXT, EventBatch, arrow_type
from cep.functions.columns import TextNumbers
from cep.histories import store
from cep.histories.context import Context
from cep.histories.kinds.choose import kind_of
from cep.histories.kinds.kind import Column
from cep.histories.numbers import panes as window_panes
from cep.histories.numbers.folds import EventWindows
from cep.histories.numbers.tally import averages, deviations, float_values, quotients, whole_sums
from cep.histories.reach import BatchKeys, ReadPast, extended_segments, read_past_events
from cep.histories.retained import appended, carry_all_tallies, choose_pinned, expires_ms, retention_of_rows, unexpired
from cep.histories.sub_keys import compile_sub_key_kernels, limit_to_remembered, update_panes
from cep.histories.table import HistoryTable, NewEvents, build_table
from cep.kernels.histories import windows as kernels
from cep.kernels.layout import Int64, UInt8
from cep.lists.store import NO_LISTS, Lists
from cep.nfa.histories import CUT, HistoryColumn, HistoryPlan


class HistoryResults:
    """The values of a batch's histories, and counts of folded, cut and dropped windows and of sums beyond 64 bits."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.overflows: Counter[str] = Counter()
        self.folded = self.cut = self.dropped = 0
        self._incomplete: dict[str, UInt8] = {}
        self._averages: dict[str, Column] = {}

    def column(self, history: HistoryColumn) -> Column:
        """Return the value of a history (aggregate over a key's past events) at each new event, in event order.

        Texts are indexes into `table.texts`. An exact average needs two histories: the nearest float, and its rounding
        error. Both are computed together, under the name in `history.average`. It is "" for other functions.
        """
        if not history.average:
            return self._compute(history)
        if history.average not in self._averages:
            average = replace(history, expr=replace(history.expr, fn="avg"), identity=history.average)
            self._averages[history.average] = self._compute(average)
        average_column = self._averages[history.average]
        if history.expr.fn == "avg":
            return average_column
        assert average_column.rounding_errors is not None, "averages have rounding errors"
        return Column(average_column.rounding_errors, average_column.nulls)

    def _compute(self, history: HistoryColumn) -> Column:
        """Compute a history (aggregate over a key's past events) at each new event, and count the incomplete windows.

        A window is *folded* if panes (partial aggregates of time slices) stand for its older events. A key remembers a
        limited number of sub-keys (values of `by`). A window is *cut* if it may lack forgotten events. It is *dropped*
        if its event made the key forget a sub-key, or if the event is not remembered itself.
        """
        context = self._context
        windows = context.windows.windows_of(history)
        if history.is_single and history.by:  # single: one event decides the value
            limited = limit_to_remembered(history, context.table, windows, context.windows.member_mask(history))
            windows, is_cut = limited.windows, limited.cut
            self.dropped += int(limited.dropped.sum())
        else:
            is_cut = self._find_cut(history, windows)
        values = kind_of(history).values(context, history, windows)
        self.overflows[history.identity] += values.overflows
        if windows.folded.any():
            values = self._with_folded(history, windows, values)
            self.folded += int(windows.folded.sum())
        self.cut += int(is_cut.sum())
        self._note_incomplete(history.identity, windows, windows.folded)
        self._note_incomplete(history.identity + CUT, windows, is_cut)
        position_of = np.empty(len(windows.events), np.int64)  # by event: the place of its window
        position_of[windows.events] = np.arange(len(position_of))
        rounding_errors = None if values.rounding_errors is None else values.rounding_errors[position_of]
        return Column(values.slots[position_of], values.nulls[position_of], rounding_errors=rounding_errors)

    def incomplete(self) -> pa.Array:
        """text[Q]: the histories whose value is incomplete or has folded events (columns.INCOMPLETE); null for none."""
        if not self._incomplete:
            return pa.nulls(len(self._context.new_rows), TEXT)
        names = sorted(self._incomplete)
        rows = np.stack([self._incomplete[name] for name in names], axis=1)
        distinct_rows, row_of_event = np.unique(rows, axis=0, return_inverse=True)
        texts = [" ".join(name for name, has in zip(names, row, strict=True) if has) for row in distinct_rows.tolist()]
        return pa.array([text or None for text in texts], TEXT).take(pa.array(row_of_event.reshape(-1)))

    def _with_folded(self, history: HistoryColumn, windows: EventWindows, values: Column) -> Column:
        """Replace the values of windows with more events than the limit: panes stand for their older events."""
        is_folded = windows.folded.astype(bool)
        folded = kind_of(history).values_with_panes(self._context, history, windows)
        self.overflows[history.identity] += folded.overflows
        slots, nulls = np.where(is_folded, folded.slots, values.slots), np.where(is_folded, folded.nulls, values.nulls)
        if folded.rounding_errors is None or values.rounding_errors is None:
            return Column(slots, nulls)
        errors = np.where(is_folded, folded.rounding_errors, values.rounding_errors)
        return Column(slots, nulls, rounding_errors=errors)

    def _find_cut(self, history: HistoryColumn, windows: EventWindows) -> UInt8:
        """Return 1 for each window, in window order, in which events of the sub-key may have been forgotten."""
        context = self._context
        memory = context.sub_key_memory(history) if windows.folded.any() else None
        if memory is None:
            return np.zeros(len(windows.events), np.uint8)
        new = context.new_rows[windows.events]
        starts_ms = window_panes.first_pane_of_window(history, context.table.time[new])
        may_lack = memory.forgotten_until_ms[new] >= starts_ms
        return windows.folded * may_lack.astype(np.uint8)

    def _note_incomplete(self, name: str, windows: EventWindows, flags: UInt8) -> None:
        if flags.any():
            self._incomplete[name] = np.empty(len(flags), np.uint8)
            self._incomplete[name][windows.events] = flags


def tally_value(history: HistoryColumn, tally: Int64) -> int | float:
    """Compute the value of a history (such as a sum over 30 days) from its tally, one row int64[1, W]: count, sums."""
    count = int(tally[0, 0])
    if history.expr.fn == "count" or history.expr.argument is None:
        return count
    if history.has_float_tally:
        is_average = history.expr.fn == "avg" and count > 0
        values, rounding_errors = float_values(tally)  # the exact value is the sum of both
        if is_average:
            values, _ = quotients((values, rounding_errors), tally[:, 0].astype(np.float64))
        return float(values[0])
    scale: int = 10**history.expr.argument.type.scale  # a tally of decimals has whole numbers of units
    if history.expr.fn == "stddev":
        return float(deviations(tally)[0]) / scale
    if history.expr.fn == "sum":
        return int(whole_sums(tally)[0][0]) / scale
    return float(averages(tally, tally[:, 0], history.expr.argument.type.scale)[0][0]) if count else 0  # not the error


def compact_page(plan: HistoryPlan, histories: store.Histories, watermark_ms: int) -> store.Histories:
    """Compact the stored past of some keys: join small segments (blocks of events), and fold excess events of a key.

    They are folded into panes (partial aggregates of time slices). The search for them reads all events, so it runs
    only if an estimate exceeds the limit by a quarter, and by more than `excess_allowed`, which the last search has
    set. The estimate adds up the events that the busiest key of each segment has.
    """
    events = tuple(segment for segment in histories.segments if not segment.panes_number)
    panes = tuple(segment for segment in histories.segments if segment.panes_number)
    joined = store.join_segments(replace(histories, segments=events), plan.stored_names, watermark_ms)
    events_estimate = sum(segment.busiest_key_events for segment in joined.segments)
    if events_estimate > plan.events_max + 1 + max(joined.excess_allowed, plan.events_max // 4):
        events, panes = _fold_excess(plan, joined.segments, panes, watermark_ms)
        excess = sum(segment.busiest_key_events for segment in events) - plan.events_max - 1
        # If the estimate stays above the limit, wait for another quarter of the limit before the next search.
        joined = replace(joined, segments=events, excess_allowed=excess + plan.events_max // 4 if excess > 0 else 0)
    return replace(joined, segments=(*joined.segments, *window_panes.joined_panes(plan, panes, watermark_ms)))


def _fold_excess(
    plan: HistoryPlan, segments: tuple[store.Segment, ...], panes: tuple[store.Segment, ...], watermark_ms: int
) -> tuple[tuple[store.Segment, ...], tuple[store.Segment, ...]]:
    """Fold excess events, which no history needs one by one, into panes (partial aggregates of time slices).

    Return the segments (stored blocks of events) without the folded events, and the segments of panes with them.
    """
    blocks = [segment.load() for segment in segments]
    all_events = store.concat_blocks(blocks)
    # + 1: a key that has reached the limit keeps one event more, which shows that older ones are left out.
    is_busy_key = np.bincount(all_events.rows.key, minlength=len(all_events.keys)) > plan.events_max + 1
    if not is_busy_key.any():
        return segments, panes
    remaining: list[store.Segment] = []
    is_needed_in_key_order, panes = _fold_unused(plan, all_events, is_busy_key, panes, watermark_ms)
    segment_of_row = np.concatenate([np.full(len(block), segment_index) for segment_index, block in enumerate(blocks)])
    # `all_events` has the events key by key. The same sort by key gives each segment's events their places in it.
    texts = TextNumbers(all_events.keys)
    keys = np.concatenate([texts.of(b.keys)[b.rows.key] for b in blocks])
    order = np.argsort(keys, kind="stable")
    is_needed = np.empty(len(order), bool)
    is_needed[order] = is_needed_in_key_order
    for segment_index, (segment, block) in enumerate(zip(segments, blocks, strict=True)):
        is_needed_here = is_needed[segment_of_row == segment_index]
        if is_needed_here.all():
            remaining.append(segment)
        elif is_needed_here.any():
            rows = block.rows.take(np.flatnonzero(is_needed_here))
            remaining.append(store.segment_of(store.block_of(block.keys, rows), segment.span_ms, segment.page))
    return tuple(remaining), tuple(replace(segment, page=segments[0].page) for segment in panes)  # all of one page


def _fold_unused(
    plan: HistoryPlan, all_events: store.Block, is_busy: np.ndarray, panes: tuple[store.Segment, ...], watermark_ms: int
) -> tuple[np.ndarray, tuple[store.Segment, ...]]:
    """Find the events that histories (aggregates over past events) need one by one. Fold the others into panes.

    A pane is the partial aggregate of one time slice. Each history needs its newest `events_max` events; the function
    `first` also needs the first event of each pane. is_busy bool[K] marks the keys with too many events; the other keys
    need all their events.
    """
    busy_rows = np.flatnonzero(is_busy[all_events.rows.key])
    table = _table_of_past(plan, store.Block(all_events.keys, all_events.rows.take(busy_rows)))
    marked = np.zeros(len(table.time), np.uint8)  # 1 for the rows that are needed one by one
    context = Context(table, panes=window_panes.load_panes(panes, all_events.keys, is_busy))
    no_start = np.full(len(marked), -(2**62), np.int64)  # windows that begin before all events
    foldable = [history for history in plan.histories if history.is_foldable]
    # A busy key remembers a limited number of sub-keys (values of `by`). Rows of forgotten ones do not count any more.
    rows_still_counting = {history.identity: context.rows_still_counting(history) for history in foldable}
    for history in foldable:
        members = np.flatnonzero(context.windows.member_mask(history))
        _mark_newest(members, table.key, table, no_start, history.events_max, marked)
        if history.is_first_of_window:
            marked[_first_of_each_pane(history, table, rows_still_counting[history.identity])] = 1
    for code in plan.retained_ms:  # event types that the schema retains
        _mark_newest(np.flatnonzero(table.event_type == code), table.key, table, no_start, plan.events_max, marked)
    is_needed = np.ones(len(all_events), bool)
    is_needed[busy_rows] = marked.astype(bool)
    # The sub-keys that each key remembers, by a number. Histories with the same events and sub-key share a number.
    memories = {h.known_sub_keys: m for h in foldable if (m := context.sub_key_memory(h, always=True)) is not None}
    new_panes = [*update_panes(plan, memories, panes, all_events.keys, watermark_ms)]
    for history in plan.panes.values():
        if history.is_foldable:
            rows = np.flatnonzero((rows_still_counting[history.identity] != 0) & (marked == 0))
            folded = context.fold(history, rows)
            new_panes += window_panes.appended_panes(history, folded, all_events.keys, watermark_ms)
    return is_needed, tuple(new_panes)


def _mark_newest(
    rows: Int64, segment: Int64, table: HistoryTable, starts: Int64, events_max: int, marked: UInt8
) -> None:
    """Mark the newest events of each segment; one more than the limit, which shows that older events are left out."""
    kernels.mark_retained(rows, segment, table.time, starts, events_max + 1, False, marked)


def _first_of_each_pane(history: HistoryColumn, table: HistoryTable, member: UInt8) -> Int64:
    segment, order = table.segments(history.by)
    rows = order[member[order] != 0]
    firsts: Int64 = rows[window_panes.differs(segment[rows], window_panes.pane_of(history, table.time[rows]))]
    return firsts


def _table_of_past(plan: HistoryPlan, block: store.Block) -> HistoryTable:
    """Return the table of these events, none of them new."""
    text, nothing = NO_TEXTS, np.empty(0, np.int64)
    columns = {column.name: pa.array([], arrow_type(column.type)) for column in plan.stored_columns}
    empty = EventBatch(text, text, nothing.astype(np.int16), nothing, columns)
    new = NewEvents(empty, nothing, nothing.astype(np.int32), len(block.keys))
    return build_table(plan, NO_LISTS, block.rows, 0, new)  # the results of lists are stored with the events


# The interface of this package, together with store.py and pages.py. Other packages import no other module.
__all__ = [
    "BatchKeys", "HistoryValues", "NewEvents", "compact_page", "compile_sub_key_kernels", "expires_ms",
    "history_values", "tally_value",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class HistoryValues:
    """The values of all histories at the new events of a batch, in event order, and the past for the next batch.

    A history is an aggregate over a key's past events. `slots`: its values and null flags, by its column of the event
    table; `texts`: the same for text. `incomplete`: by event, the names of incomplete values. `overflows`: how many
    numbers exceeded 64 bits, by the identity (hash) of the history. A key remembers a limited number
    of events and of sub-keys (values of `by`); the last three fields count the effects of these limits.
    """

    slots: Mapping[int, tuple[Int64, UInt8]]
    texts: Mapping[int, pa.Array]
    histories: store.Histories
    incomplete: pa.Array
    overflows: Mapping[str, int] = field(default_factory=dict)
    folded: int = 0  # values with aggregates in place of their oldest events, because their key has too many events.
    dropped: int = 0  # events that made their key forget a sub-key, or that are not remembered themselves
    cut: int = 0  # values that may lack events, because their key has forgotten sub-keys


def history_values(
    plan: HistoryPlan, lists: Lists, histories: store.Histories, keys: BatchKeys, new: NewEvents, watermark_ms: int
) -> HistoryValues:
    """Compute each history (aggregate over a key's past events) at every new event, and the past for the next batch.

    Cost: O(N) for each history, where N counts the new events and the past events that are read (`read_past_events`).
    Percentiles that read whole windows cost O(N log N). Inputs are not changed.
    """
    if not len(new.batch):
        return HistoryValues({}, {}, histories, NO_TEXTS)
    histories = window_panes.without_outdated_panes(plan, histories)
    read_past = read_past_events(plan, histories, keys, new, max(watermark_ms, histories.clock_max_ms))
    new = replace(new, keys_count=len(read_past.keys))
    has_new_events = np.zeros(new.keys_count, bool)
    has_new_events[new.key] = True
    # Pinned events are stored one by one, because each can decide a value; `is_here`: their key has new events.
    pinned = histories.pinned.of_keys(keys.of_histories[histories.pinned.key])
    is_here = has_new_events[pinned.key]
    pinned_here = pinned.take(np.flatnonzero(is_here))
    past = store.concat_rows([pinned_here, read_past.past.rows])
    # An outdated page (written for other rules) is read whole. Then the pinned events and its rows must be sorted.
    table = build_table(plan, lists, past, len(pinned_here), new, mixed=bool(read_past.is_outdated.any()))
    context = Context(table, read_past, window_panes.load_panes(histories.segments, read_past.keys, has_new_events))
    results = HistoryResults(context)
    slots: dict[int, tuple[Int64, UInt8]] = {}
    texts: dict[int, pa.Array] = {}
    for history in plan.histories:
        column = results.column(history)
        if history.expr.type.is_text:
            texts[history.number] = table.texts.take(pa.array(column.slots, mask=column.nulls.astype(bool)))
        else:
            slots[history.number] = column.slots, column.nulls
    after = store.Histories()
    if watermark_ms < TIME_MS_MAX:  # otherwise no event follows
        pinned_elsewhere = unexpired(plan, pinned.take(np.flatnonzero(~is_here)), watermark_ms)
        after = _past_for_next_batch(plan, histories, read_past, pinned_elsewhere, context, watermark_ms)
    overflows = results.overflows + Counter(table.overflows)
    window_counts = results.folded, results.dropped, results.cut  # windows whose value is incomplete
    return HistoryValues(slots, texts, after, results.incomplete(), overflows, *window_counts)


def _past_for_next_batch(
    plan: HistoryPlan, before: store.Histories, read_past: ReadPast, pinned_elsewhere: store.HistoryRows,
    context: Context, watermark_ms: int,
) -> store.Histories:  # fmt: skip
    """Return the past that the next batch needs; `pinned_elsewhere` are the pinned events of keys without new events.

    It has pinned events (stored one by one, because each can decide a value), tallies (running counts and sums),
    segments (blocks of events), panes (partial aggregates of time slices), and facts: which histories are carried, so
    that the next batch need not read their windows, and which are crowded (have too much to carry).
    """
    clock_ms = max(watermark_ms, before.clock_max_ms)
    events_per_key = len(before) / max(len(before.keys), 1)
    pinned_now = choose_pinned(plan, context, watermark_ms, events_per_key)
    rows = store.concat_rows([pinned_elsewhere, pinned_now.rows])
    if read_past.is_outdated.any():  # all events of the page were read: newly pinned ones may be older than others
        rows = rows.take(np.argsort(rows.time_ms, kind="stable"))
    tallied = carry_all_tallies(plan, context, clock_ms, events_per_key)
    table, span_ms = context.table, retention_of_rows(plan, context)
    extended = extended_segments(read_past, table, span_ms)  # copies that stay for longer, by segment
    reachable = store.reachable_segments([extended.get(s, s) for s in before.segments], plan.span_max_ms, watermark_ms)
    panes = context.new_panes(plan.approximate.values(), read_past.keys, watermark_ms)
    segments = (*reachable, *appended(table, span_ms, read_past.keys, watermark_ms), *panes)
    facts = store.PageFacts(panes=frozenset(plan.retained_panes))  # if nothing is carried
    if read_past.is_carried:
        carried = read_past.carried - pinned_now.crowded - tallied.crowded
        crowded = plan.carried - carried
        facts = store.PageFacts(clock_ms, plan.identities, carried, crowded, facts.panes)
    tallies = tallied.by_key, tallied.by_sub_key
    after = store.Histories(pa.nulls(0), rows, segments, before.excess_allowed, facts, *tallies)  # keys: next line
    return _drop_unused_keys(read_past.keys, after)


def _drop_unused_keys(keys: pa.Array, after: store.Histories) -> store.Histories:
    """Restrict the list of keys to those with a pinned event (which can decide a value) or a tally (running count or
    sum), by key or by sub-key, and renumber them."""
    is_used = np.zeros(len(keys), bool)
    is_used[after.pinned.key] = True
    for tally in after.tallies.values():
        is_used |= tally[:, 0] != 0  # column 0: the event count
    for entries in after.sub_tallies.values():
        is_used[entries.key] = True
    new_number = (np.cumsum(is_used) - 1).astype(np.int32)
    pinned = store.sort_rows(after.pinned.of_keys(new_number[after.pinned.key]))
    tallies = {name: tally[is_used] for name, tally in after.tallies.items()}
    sub_tallies = {name: entries.of_keys(new_number[entries.key]) for name, entries in after.sub_tallies.items()}
    return replace(after, keys=keys.filter(pa.array(is_used)), pinned=pinned, tallies=tallies, sub_tallies=sub_tallies)
