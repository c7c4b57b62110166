"""Kept events + the new ones → the value of every history at each new event, and what is to be kept from now on.

The table of one call holds, key by key, the kept events that windows reach of the keys that have new ones, then those
new ones in their order (time, event id). A window is closed at its later end by the event itself: an event of the
same time that comes later in the order is not in it, so that the value does not depend on how the events are cut into
batches.

Values are worked out in history_asked.py; what is kept is decided in history_kept.py.
Tested by: tests/engine/test_histories.py, tests/engine/test_histories_sql.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from cep.base.limits import TIME_MS_MAX
from cep.columnar.batch import NO_TEXTS
from cep.engine.history_asked import Asked
from cep.engine.history_kept import appended, pinned_after, spans_after, tallies_after, unexpired
from cep.engine.history_reach import KnownKeys, Reached, kept_for, reach
from cep.engine.history_rows import concat_rows, sort_rows
from cep.engine.history_state import Histories, PageFacts, Segment, span_codes, without_over
from cep.engine.history_table import HistoryTable, NewEvents, build_table
from cep.engine.panes import panes_of_keys, without_strange_panes
from cep.kernels.layout import Int64, UInt8
from cep.lists.timeline import Lists
from cep.nfa.histories import HistoryPlan


@dataclass(frozen=True, slots=True)
class Past:
    """What histories give for the new events of one call, in their order.

    `slots`: by column of the event table its values and null flags; `texts`: the same for text. `histories` are what is
    kept now, of all keys. `told` says which of their values lack older events or have them folded (columns.TOLD).
    `overflows` counts sums that became null, `folded` values with older events folded, `cut` those that may lack
    events of a sub-key, `dropped` the events for which a value of one is forgotten, or that are not remembered.
    """

    slots: Mapping[int, tuple[Int64, UInt8]]
    texts: Mapping[int, pa.Array]
    histories: Histories
    told: pa.Array
    overflows: int = 0
    folded: int = 0
    dropped: int = 0
    cut: int = 0


def look_back(
    plan: HistoryPlan, lists: Lists, histories: Histories, known: KnownKeys, new: NewEvents, watermark_ms: int
) -> Past:
    """Work out every history of a program at every new event. Inputs are left unchanged.

    Cost: O(N) for each history over the new events and the past ones that are looked at (history_reach.py), and
    O(N log N) for percentiles.
    """
    if not len(new.batch):
        return Past({}, {}, histories, NO_TEXTS)
    clock_ms = max(watermark_ms, histories.clock_max_ms)
    histories = without_strange_panes(plan, histories)
    reached = reach(plan, histories, known, new, clock_ms)
    new = replace(new, keys_count=len(reached.keys))
    touched = np.zeros(new.keys_count, bool)
    touched[new.key] = True
    pinned = histories.pinned.of_keys(known.of_histories[histories.pinned.key])
    own = touched[pinned.key]
    asked_pinned = pinned.take(np.flatnonzero(own))
    stored = concat_rows([asked_pinned, reached.rows])
    table = build_table(plan, lists, stored, len(asked_pinned), new, mixed=bool(reached.is_strange.any()))
    panes = panes_of_keys(histories.segments, reached.keys, touched)
    asked = Asked(table, reached, panes)
    slots: dict[int, tuple[Int64, UInt8]] = {}
    texts: dict[int, pa.Array] = {}
    for history in plan.histories:
        values, nulls, is_text = asked.values(history)
        if is_text:
            texts[history.number] = table.texts.take(pa.array(values, mask=nulls.astype(bool)))
        else:
            slots[history.number] = values, nulls
    after = Histories()
    if watermark_ms < TIME_MS_MAX:  # else nothing comes any more
        rest = unexpired(plan, pinned.take(np.flatnonzero(~own)), watermark_ms)
        per_key = len(histories) / max(len(histories.keys), 1)
        pinned_now = pinned_after(plan, table, asked, watermark_ms, per_key)
        rows = concat_rows([rest, pinned_now.rows])
        if reached.is_strange.any():  # some of what is pinned now is older than what was
            rows = rows.take(np.argsort(rows.time_ms, kind="stable"))
        tallied = tallies_after(plan, asked, clock_ms, per_key)
        span_ms = spans_after(plan, table, asked)
        longer = _kept_longer(reached, table, span_ms)
        old = without_over([longer.get(s, s) for s in histories.segments], plan.span_max_ms, watermark_ms)
        in_panes = asked.panes_after(plan.approximate.values(), reached.keys, watermark_ms)
        segments = (*old, *appended(table, span_ms, reached.keys, watermark_ms), *in_panes)
        facts = PageFacts(panes=frozenset(plan.kept_panes))
        if reached.is_carried:
            carried = reached.carried - pinned_now.crowded - tallied.crowded
            facts = PageFacts(clock_ms, plan.identities, carried, plan.carried - carried, facts.panes)
        found = Histories(pa.nulls(0), rows, segments, histories.loose, facts, tallied.by_key, tallied.by_sub_key)
        after = _with_keys(reached.keys, found)
    overflows = table.overflows + asked.overflows
    return Past(slots, texts, after, asked.told(), overflows, asked.folded, asked.dropped, asked.cut)


def _with_keys(keys: pa.Array, found: Histories) -> Histories:
    """With those of the call's keys that have something."""
    used = np.zeros(len(keys), bool)
    used[found.pinned.key] = True
    for tally in found.tallies.values():
        used |= tally[:, 0] != 0
    for entries in found.sub_tallies.values():
        used[entries.key] = True
    number = (np.cumsum(used) - 1).astype(np.int32)
    pinned = sort_rows(found.pinned.of_keys(number[found.pinned.key]))
    tallies = {name: tally[used] for name, tally in found.tallies.items()}
    subs = {name: entries.of_keys(number[entries.key]) for name, entries in found.sub_tallies.items()}
    return replace(found, keys=keys.filter(pa.array(used)), pinned=pinned, tallies=tallies, sub_tallies=subs)


def _kept_longer(reached: Reached, table: HistoryTable, span_ms: Int64) -> dict[Segment, Segment]:
    """Segments of strange pages that are kept longer now."""
    if not reached.is_strange.any():
        return {}
    by_row = np.zeros(len(reached.rows), np.int64)
    own = table.old_rows
    by_row[table.source[own] - table.pinned_count] = span_ms[own]
    return kept_for(reached, span_codes(by_row), by_row)
