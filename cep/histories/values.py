"""A plan, the past and new events → the value of every history at each new event, and the past after them.

1. Choose the past events that the call reads (reach.py).
2. Place them before the new events, key by key, and evaluate conditions over all of them (table.py).
3. Compute each history at each new event (answers.py, with one module per kind in kinds/).
4. Decide which events and numbers to retain, pin and carry from now on (retained.py).

A window ends at the event itself. It excludes an event of the same time that comes later in the order (time, event id).
So a value does not depend on how the events are split into batches.
Tested by: tests/histories/test_values.py, tests/histories/test_store.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from cep.base.limits import TIME_MS_MAX
from cep.columnar.batch import NO_TEXTS
from cep.histories.answers import Answers
from cep.histories.call import Call
from cep.histories.known_sub_keys import compile_sub_key_kernels
from cep.histories.limits import compact_page
from cep.histories.numbers.panes import panes_of_keys, without_strange_panes
from cep.histories.reach import CallKeys, Reached, extended_segments, reach
from cep.histories.retained import appended, expires_ms, pinned_after, spans_after, tallies_after, unexpired
from cep.histories.rows import HistoryRows, concat_rows, sort_rows
from cep.histories.segments import reachable_segments
from cep.histories.store import Histories, PageFacts, Segment, span_codes
from cep.histories.table import HistoryTable, NewEvents, build_table
from cep.histories.tally_value import tally_value
from cep.kernels.layout import Int64, UInt8
from cep.lists.timeline import Lists
from cep.nfa.histories import HistoryPlan

# The interface of this package, together with store.py, rows.py and pages.py. Other packages import no other module.
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

    `slots`: values and null flags by column of the event table; `texts`: the same for text. `histories` is the past of
    all keys from now on. `incomplete` names the values that lack older events or have them folded (answers.py).
    `overflows` counts numbers that exceeded 64 bits, by the identity of the history. `folded` counts values with folded
    events, `cut` values that may lack events of a sub-key, `dropped` events that are not remembered or that made their
    key forget another sub-key.
    """

    slots: Mapping[int, tuple[Int64, UInt8]]
    texts: Mapping[int, pa.Array]
    histories: Histories
    incomplete: pa.Array
    overflows: Mapping[str, int] = field(default_factory=dict)
    folded: int = 0
    dropped: int = 0
    cut: int = 0


@dataclass(frozen=True, slots=True)
class _Looked:
    """The past that a call reads: pinned events, the touched keys bool[K], and the table."""

    reached: Reached
    pinned: HistoryRows
    touched: np.ndarray
    table: HistoryTable
    call: Call


def history_values(
    plan: HistoryPlan, lists: Lists, histories: Histories, call_keys: CallKeys, new: NewEvents, watermark_ms: int
) -> HistoryValues:
    """Compute every history of a program at every new event, and the past for the next call. Inputs are not changed.

    Cost: O(N) for each history, over the new events and the past events that are read (reach.py). Percentiles that read
    whole windows cost O(N log N).
    """
    if not len(new.batch):
        return HistoryValues({}, {}, histories, NO_TEXTS)
    clock_ms = max(watermark_ms, histories.clock_max_ms)
    histories = without_strange_panes(plan, histories)
    looked = _look(plan, lists, histories, call_keys, new, clock_ms)
    answers = Answers(looked.call)
    slots: dict[int, tuple[Int64, UInt8]] = {}
    texts: dict[int, pa.Array] = {}
    for history in plan.histories:
        column = answers.column(history)
        if history.expr.type.is_text:
            texts[history.number] = looked.table.texts.take(pa.array(column.slots, mask=column.nulls.astype(bool)))
        else:
            slots[history.number] = column.slots, column.nulls
    after = Histories()
    if watermark_ms < TIME_MS_MAX:  # otherwise no event follows
        after = _past_after(plan, histories, looked, clock_ms, watermark_ms)
    overflows = answers.overflows + Counter(looked.table.overflows)
    window_counts = answers.folded, answers.dropped, answers.cut
    return HistoryValues(slots, texts, after, answers.incomplete(), overflows, *window_counts)


def _look(
    plan: HistoryPlan, lists: Lists, histories: Histories, call_keys: CallKeys, new: NewEvents, clock_ms: int
) -> _Looked:
    """Read the past events that the call needs, and build the table of past and new events: steps 1 and 2."""
    reached = reach(plan, histories, call_keys, new, clock_ms)
    new = replace(new, keys_count=len(reached.keys))
    touched = np.zeros(new.keys_count, bool)
    touched[new.key] = True
    pinned = histories.pinned.of_keys(call_keys.of_histories[histories.pinned.key])
    pinned_here = pinned.take(np.flatnonzero(touched[pinned.key]))
    past = concat_rows([pinned_here, reached.rows])
    table = build_table(plan, lists, past, len(pinned_here), new, mixed=bool(reached.is_strange.any()))
    panes = panes_of_keys(histories.segments, reached.keys, touched)
    return _Looked(reached, pinned, touched, table, Call(table, reached, panes))


def _past_after(plan: HistoryPlan, before: Histories, looked: _Looked, clock_ms: int, watermark_ms: int) -> Histories:
    """Return the past for the next call: retained events, pinned events, tallies and new panes: step 4."""
    reached, table, call = looked.reached, looked.table, looked.call
    pinned_of_other_keys = unexpired(
        plan, looked.pinned.take(np.flatnonzero(~looked.touched[looked.pinned.key])), watermark_ms
    )
    per_key = len(before) / max(len(before.keys), 1)
    pinned_now = pinned_after(plan, call, watermark_ms, per_key)
    rows = concat_rows([pinned_of_other_keys, pinned_now.rows])
    if reached.is_strange.any():  # some newly pinned events are older than the pinned ones
        rows = rows.take(np.argsort(rows.time_ms, kind="stable"))
    tallied = tallies_after(plan, call, clock_ms, per_key)
    span_ms = spans_after(plan, call)
    extended = _extended(reached, table, span_ms)
    reachable = reachable_segments([extended.get(s, s) for s in before.segments], plan.span_max_ms, watermark_ms)
    panes = call.new_panes(plan.approximate.values(), reached.keys, watermark_ms)
    segments = (*reachable, *appended(table, span_ms, reached.keys, watermark_ms), *panes)
    facts = PageFacts(panes=frozenset(plan.retained_panes))
    if reached.is_carried:
        carried = reached.carried - pinned_now.crowded - tallied.crowded
        facts = PageFacts(clock_ms, plan.identities, carried, plan.carried - carried, facts.panes)
    after = Histories(pa.nulls(0), rows, segments, before.loose, facts, tallied.by_key, tallied.by_sub_key)
    return _with_keys(reached.keys, after)


def _with_keys(keys: pa.Array, after: Histories) -> Histories:
    """Restrict the past to keys that have a pinned event or a tally, and renumber these keys."""
    is_used = np.zeros(len(keys), bool)
    is_used[after.pinned.key] = True
    for tally in after.tallies.values():
        is_used |= tally[:, 0] != 0
    for entries in after.sub_tallies.values():
        is_used[entries.key] = True
    new_number = (np.cumsum(is_used) - 1).astype(np.int32)
    pinned = sort_rows(after.pinned.of_keys(new_number[after.pinned.key]))
    tallies = {name: tally[is_used] for name, tally in after.tallies.items()}
    sub_tallies = {name: entries.of_keys(new_number[entries.key]) for name, entries in after.sub_tallies.items()}
    return replace(after, keys=keys.filter(pa.array(is_used)), pinned=pinned, tallies=tallies, sub_tallies=sub_tallies)


def _extended(reached: Reached, table: HistoryTable, span_ms: Int64) -> dict[Segment, Segment]:
    """Return the segments of strange pages that the present rules retain longer, each with its new span."""
    if not reached.is_strange.any():
        return {}
    by_row = np.zeros(len(reached.rows), np.int64)
    old = table.old_rows
    by_row[table.source[old] - table.pinned_count] = span_ms[old]
    return extended_segments(reached, span_codes(by_row), by_row)
