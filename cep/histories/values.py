"""A plan, the past and new events → the value of every history at each new event, and the past after them.

1. Choose the past events that the call reads (reach.py).
2. Place them before the new events, key by key, and evaluate conditions over all of them (table.py).
3. Compute each history at each new event (one module per kind in kinds/).
4. Decide which events and numbers to retain, pin and carry from now on (retained.py).

A window ends at the event itself. It excludes an event of the same time that comes later in the order (time, event id).
So a value does not depend on how the events are split into batches.

A value is *folded* if its window has more events than are retained one by one (numbers/folds.py). It may be *cut* if a
key has more sub-keys than it remembers (sub_keys.py) and the requested one was forgotten at some time within its
window. Each event gets a text that names its incomplete values (columns.INCOMPLETE).

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
from cep.histories.call import Call
from cep.histories.kinds.choose import kind_of
from cep.histories.kinds.kind import Column
from cep.histories.numbers import panes as window_panes
from cep.histories.numbers.folds import Members
from cep.histories.numbers.tally import averages, float_values, quotients, spreads, whole_sums
from cep.histories.reach import CallKeys, Reached, extended_segments, reach
from cep.histories.retained import appended, expires_ms, pinned_after, spans_after, tallies_after, unexpired
from cep.histories.sub_keys import compile_sub_key_kernels, panes_after, remembered
from cep.histories.table import HistoryTable, NewEvents, build_table
from cep.kernels.histories import windows as kernels
from cep.kernels.layout import Int64, UInt8
from cep.lists.store import NO_LISTS, Lists
from cep.nfa.histories import CUT, HistoryColumn, HistoryPlan


class Answers:
    """The values of a call's histories, and counts of folded, cut and dropped windows and of sums beyond 64 bits."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.overflows: Counter[str] = Counter()
        self.folded = self.cut = self.dropped = 0
        self._incomplete: dict[str, UInt8] = {}
        self._averages: dict[str, Column] = {}

    def column(self, history: HistoryColumn) -> Column:
        """Return the value of a history at each new event, in event order. Texts are indexes into `table.texts`.

        A history with `average` set shares the computation of the average: `avg` is the average, its twin the rounding
        error.
        """
        if not history.average:
            return self._column(history)
        if history.average not in self._averages:
            average = replace(history, expr=replace(history.expr, fn="avg"), identity=history.average)
            self._averages[history.average] = self._column(average)
        average_column = self._averages[history.average]
        if history.expr.fn == "avg":
            return average_column
        assert average_column.rests is not None, "averages have rests"
        return Column(average_column.rests, average_column.nulls)

    def _column(self, history: HistoryColumn) -> Column:
        """Compute a history at each new event, and count the windows that are folded, cut or dropped."""
        call = self._call
        windows = call.windows.windows_of(history)
        if history.is_single and history.by:
            memory = remembered(history, call.table, windows, call.windows.member(history))
            windows, is_cut = memory.windows, memory.cut
            self.dropped += int(memory.dropped.sum())
        else:
            is_cut = self._cut(history, windows)
        answer = kind_of(history).values(call, history, windows)
        self.overflows[history.identity] += answer.overflows
        if windows.folded.any():
            answer = self._with_folded(history, windows, answer)
            self.folded += int(windows.folded.sum())
        self.cut += int(is_cut.sum())
        self._note(history.identity, windows, windows.folded)
        self._note(history.identity + CUT, windows, is_cut)
        place = np.empty(len(windows.events), np.int64)
        place[windows.events] = np.arange(len(place))
        rests = None if answer.rests is None else answer.rests[place]
        return Column(answer.slots[place], answer.nulls[place], rests=rests)

    def incomplete(self) -> pa.Array:
        """text[Q]: the histories whose value is incomplete or has folded events (columns.INCOMPLETE); null for none."""
        if not self._incomplete:
            return pa.nulls(len(self._call.new_rows), TEXT)
        names = sorted(self._incomplete)
        rows = np.stack([self._incomplete[name] for name in names], axis=1)
        distinct_rows, row_of_event = np.unique(rows, axis=0, return_inverse=True)
        texts = [" ".join(name for name, has in zip(names, row, strict=True) if has) for row in distinct_rows.tolist()]
        return pa.array([text or None for text in texts], TEXT).take(pa.array(row_of_event.reshape(-1)))

    def _with_folded(self, history: HistoryColumn, windows: Members, answer: Column) -> Column:
        """Replace the values of windows with more events than the limit: panes stand for their older events."""
        is_folded = windows.folded.astype(bool)
        wide = kind_of(history).folded_values(self._call, history, windows)
        self.overflows[history.identity] += wide.overflows
        slots, nulls = np.where(is_folded, wide.slots, answer.slots), np.where(is_folded, wide.nulls, answer.nulls)
        if wide.rests is None or answer.rests is None:
            return Column(slots, nulls)
        return Column(slots, nulls, rests=np.where(is_folded, wide.rests, answer.rests))

    def _cut(self, history: HistoryColumn, windows: Members) -> UInt8:
        """Return 1 for each window, in window order, in which events of the sub-key may have been forgotten."""
        call = self._call
        sub_keys = call.memory_of(history) if windows.folded.any() else None
        if sub_keys is None:
            return np.zeros(len(windows.events), np.uint8)
        new = call.new_rows[windows.events]
        may_lack = sub_keys.lacking_ms[new] >= window_panes.opens_pane(history, call.table.time[new])
        return windows.folded * may_lack.astype(np.uint8)

    def _note(self, name: str, windows: Members, flags: UInt8) -> None:
        if flags.any():
            self._incomplete[name] = np.empty(len(flags), np.uint8)
            self._incomplete[name][windows.events] = flags


def tally_value(history: HistoryColumn, tally: Int64) -> int | float:
    """Compute the value of a history from one tally, int64[1, W]."""
    count = int(tally[0, 0])
    if history.expr.fn == "count" or history.expr.argument is None:
        return count
    if history.has_float_tally:
        is_average = history.expr.fn == "avg" and count > 0
        values, rests = float_values(tally)
        if is_average:
            values, _ = quotients((values, rests), tally[:, 0].astype(np.float64))
        return float(values[0])
    scale: int = 10**history.expr.argument.type.scale
    if history.expr.fn == "stddev":
        return float(spreads(tally)[0]) / scale
    if history.expr.fn == "sum":
        return int(whole_sums(tally)[0][0]) / scale
    return float(averages(tally, tally[:, 0], history.expr.argument.type.scale)[0][0]) if count else 0


def compact_page(plan: HistoryPlan, histories: store.Histories, watermark_ms: int) -> store.Histories:
    """Compact the past of a page after a micro-batch has added to it: join small segments, and fold excess events.

    The search for excess events takes all events of a key, so it runs only if the segments show that some key may
    exceed the limit by a quarter.
    """
    events = tuple(segment for segment in histories.segments if not segment.panes)
    panes = tuple(segment for segment in histories.segments if segment.panes)
    joined = store.join_segments(replace(histories, segments=events), plan.stored_names, watermark_ms)
    events_estimate = sum(segment.most for segment in joined.segments)
    if events_estimate > plan.events_max + 1 + max(joined.loose, plan.events_max // 4):
        events, panes = _limited(plan, joined.segments, panes, watermark_ms)
        excess = sum(segment.most for segment in events) - plan.events_max - 1
        # If the estimate stays above the limit, wait for another quarter of the limit before the next search.
        joined = replace(joined, segments=events, loose=excess + plan.events_max // 4 if excess > 0 else 0)
    return replace(joined, segments=(*joined.segments, *window_panes.joined_panes(plan, panes, watermark_ms)))


def _limited(
    plan: HistoryPlan, segments: tuple[store.Segment, ...], panes: tuple[store.Segment, ...], watermark_ms: int
) -> tuple[tuple[store.Segment, ...], tuple[store.Segment, ...]]:
    """Drop unused events beyond the limit. Return the remaining segments, and the panes with the dropped events."""
    blocks = [segment.load() for segment in segments]
    all_events = store.concat_blocks(blocks)
    is_busy_key = np.bincount(all_events.rows.key, minlength=len(all_events.keys)) > plan.events_max + 1
    if not is_busy_key.any():
        return segments, panes
    limited: list[store.Segment] = []
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
            limited.append(store.segment_of(store.block_of(block.keys, rows), segment.span_ms, segment.page))
    return tuple(limited), tuple(replace(segment, page=segments[0].page) for segment in panes)


def _used(
    plan: HistoryPlan, whole: store.Block, busy: np.ndarray, panes: tuple[store.Segment, ...], watermark_ms: int
) -> tuple[np.ndarray, tuple[store.Segment, ...]]:
    """Find the events that histories still use, and fold all others into panes.

    Shapes: busy bool[K] marks the keys with too many events. The result bool[H] marks the used events of `whole`; a key
    that is not busy uses all its events.
    """
    busy_rows = np.flatnonzero(busy[whole.rows.key])
    table = _table(plan, store.Block(whole.keys, whole.rows.take(busy_rows)))
    marked = np.zeros(len(table.time), np.uint8)
    call = Call(table, panes=window_panes.panes_of_keys(panes, whole.keys, busy))
    far_back = np.full(len(marked), -(2**62), np.int64)
    foldable = [history for history in plan.histories if history.is_foldable]
    still_counting = {history.identity: call.still_counting(history) for history in foldable}
    for history in foldable:
        members = np.flatnonzero(call.windows.member(history))
        _mark(members, table.key, table, far_back, history.events_max, marked)
        if history.is_first_of_window:
            marked[_firsts(history, table, still_counting[history.identity])] = 1
    for code in plan.retained_ms:
        _mark(np.flatnonzero(table.event_type == code), table.key, table, far_back, plan.events_max, marked)
    used = np.ones(len(whole), bool)
    used[busy_rows] = marked.astype(bool)
    memories = {h.known_sub_keys: k for h in foldable if (k := call.memory_of(h, always=True)) is not None}
    new_panes = [*panes_after(plan, memories, panes, whole.keys, watermark_ms)]
    for history in plan.panes.values():
        if history.is_foldable:
            rows = np.flatnonzero((still_counting[history.identity] != 0) & (marked == 0))
            new_panes += window_panes.appended_panes(history, call.fold(history, rows), whole.keys, watermark_ms)
    return used, tuple(new_panes)


def _mark(members: Int64, segment: Int64, table: HistoryTable, always: Int64, events_max: int, marked: UInt8) -> None:
    # One more than the limit: it shows whether older events are left out.
    kernels.mark_retained(members, segment, table.time, always, events_max + 1, False, marked)


def _firsts(history: HistoryColumn, table: HistoryTable, member: UInt8) -> Int64:
    """Return the first member of each pane."""
    segment, order = table.segments(history.by)
    rows = order[member[order] != 0]
    firsts: Int64 = rows[window_panes.differs(segment[rows], window_panes.pane_of(history, table.time[rows]))]
    return firsts


def _table(plan: HistoryPlan, block: store.Block) -> HistoryTable:
    """Return the table of these events, none of them new."""
    text, nothing = NO_TEXTS, np.empty(0, np.int64)
    columns = {column.name: pa.array([], arrow_type(column.type)) for column in plan.stored_columns}
    empty = EventBatch(text, text, nothing.astype(np.int16), nothing, columns)
    new = NewEvents(empty, nothing, nothing.astype(np.int32), len(block.keys))
    return build_table(plan, NO_LISTS, block.rows, 0, new)  # the results of lists are stored with the events


# The interface of this package, together with store.py and pages.py. Other packages import no other module.
__all__ = [
    "CallKeys",
    "HistoryValues",
    "NewEvents",
    "compact_page",
    "compile_sub_key_kernels",
    "expires_ms",
    "history_values",
    "tally_value",
]


@dataclass(frozen=True, slots=True)
class HistoryValues:
    """The result of a call: the values of all histories at its new events, in event order, and the key's next past.

    `slots`: values and null flags by column of the event table; `texts`: the same for text. `incomplete` names the
    values that lack older events or have them folded. `overflows` counts numbers that exceeded 64 bits, by the identity
    of the history; `folded` values with folded events; `cut` values that may lack events of a sub-key; `dropped` events
    that are not remembered or that made their key forget another sub-key.
    """

    slots: Mapping[int, tuple[Int64, UInt8]]
    texts: Mapping[int, pa.Array]
    histories: store.Histories
    incomplete: pa.Array
    overflows: Mapping[str, int] = field(default_factory=dict)
    folded: int = 0
    dropped: int = 0
    cut: int = 0


def history_values(
    plan: HistoryPlan, lists: Lists, histories: store.Histories, call_keys: CallKeys, new: NewEvents, watermark_ms: int
) -> HistoryValues:
    """Compute every history of a program at every new event, and the past for the next call. Inputs are not changed.

    Cost: O(N) for each history, over the new events and the past events that are read (reach.py). Percentiles that read
    whole windows cost O(N log N).
    """
    if not len(new.batch):
        return HistoryValues({}, {}, histories, NO_TEXTS)
    histories = window_panes.without_strange_panes(plan, histories)
    reached = reach(plan, histories, call_keys, new, max(watermark_ms, histories.clock_max_ms))
    new = replace(new, keys_count=len(reached.keys))
    touched = np.zeros(new.keys_count, bool)
    touched[new.key] = True
    pinned = histories.pinned.of_keys(call_keys.of_histories[histories.pinned.key])
    is_touched = touched[pinned.key]
    pinned_here = pinned.take(np.flatnonzero(is_touched))
    past = store.concat_rows([pinned_here, reached.past.rows])
    table = build_table(plan, lists, past, len(pinned_here), new, mixed=bool(reached.is_strange.any()))
    call = Call(table, reached, window_panes.panes_of_keys(histories.segments, reached.keys, touched))
    answers = Answers(call)
    slots: dict[int, tuple[Int64, UInt8]] = {}
    texts: dict[int, pa.Array] = {}
    for history in plan.histories:
        column = answers.column(history)
        if history.expr.type.is_text:
            texts[history.number] = table.texts.take(pa.array(column.slots, mask=column.nulls.astype(bool)))
        else:
            slots[history.number] = column.slots, column.nulls
    after = store.Histories()
    if watermark_ms < TIME_MS_MAX:  # otherwise no event follows
        others = unexpired(plan, pinned.take(np.flatnonzero(~is_touched)), watermark_ms)
        after = _past_after(plan, histories, reached, others, call, watermark_ms)
    overflows = answers.overflows + Counter(table.overflows)
    window_counts = answers.folded, answers.dropped, answers.cut
    return HistoryValues(slots, texts, after, answers.incomplete(), overflows, *window_counts)


def _past_after(
    plan: HistoryPlan,
    before: store.Histories,
    reached: Reached,
    others: store.HistoryRows,
    call: Call,
    watermark_ms: int,
) -> store.Histories:
    """Return the past for the next call: retained events, pinned events (of `others` too), tallies, panes: step 4."""
    clock_ms = max(watermark_ms, before.clock_max_ms)
    per_key = len(before) / max(len(before.keys), 1)
    pinned_now = pinned_after(plan, call, watermark_ms, per_key)
    rows = store.concat_rows([others, pinned_now.rows])
    if reached.is_strange.any():  # some newly pinned events are older than the pinned ones
        rows = rows.take(np.argsort(rows.time_ms, kind="stable"))
    tallied = tallies_after(plan, call, clock_ms, per_key)
    table, span_ms = call.table, spans_after(plan, call)
    extended: dict[store.Segment, store.Segment] = {}
    if reached.is_strange.any():
        span_of_row, old_rows = np.zeros(len(reached.past.rows), np.int64), table.old_rows
        span_of_row[table.source[old_rows] - table.pinned_count] = span_ms[old_rows]
        extended = extended_segments(reached, span_of_row)
    reachable = store.reachable_segments([extended.get(s, s) for s in before.segments], plan.span_max_ms, watermark_ms)
    panes = call.new_panes(plan.approximate.values(), reached.keys, watermark_ms)
    segments = (*reachable, *appended(table, span_ms, reached.keys, watermark_ms), *panes)
    facts = store.PageFacts(panes=frozenset(plan.retained_panes))
    if reached.is_carried:
        carried = reached.carried - pinned_now.crowded - tallied.crowded
        facts = store.PageFacts(clock_ms, plan.identities, carried, plan.carried - carried, facts.panes)
    after = store.Histories(pa.nulls(0), rows, segments, before.loose, facts, tallied.by_key, tallied.by_sub_key)
    return _with_keys(reached.keys, after)


def _with_keys(keys: pa.Array, after: store.Histories) -> store.Histories:
    """Restrict the past to keys that have a pinned event or a tally, and renumber these keys."""
    is_used = np.zeros(len(keys), bool)
    is_used[after.pinned.key] = True
    for tally in after.tallies.values():
        is_used |= tally[:, 0] != 0
    for entries in after.sub_tallies.values():
        is_used[entries.key] = True
    new_number = (np.cumsum(is_used) - 1).astype(np.int32)
    pinned = store.sort_rows(after.pinned.of_keys(new_number[after.pinned.key]))
    tallies = {name: tally[is_used] for name, tally in after.tallies.items()}
    sub_tallies = {name: entries.of_keys(new_number[entries.key]) for name, entries in after.sub_tallies.items()}
    return replace(after, keys=keys.filter(pa.array(is_used)), pinned=pinned, tallies=tallies, sub_tallies=sub_tallies)
