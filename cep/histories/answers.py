"""A call → the value of each history at each new event, and which values are incomplete.

A value is *folded* if its window has more events than are retained one by one (numbers/folds.py). It may be *cut* if a
key has more sub-keys than it remembers (remembered.py, known_sub_keys.py) and the requested one was forgotten at some
time within its window. Each event gets a text that names its incomplete values (columns.INCOMPLETE).
Tested by: tests/histories/test_values.py, tests/histories/test_store.py, tests/histories/test_folds.py,
tests/histories/test_known_sub_keys.py, tests/histories/test_remembered.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from cep.columnar.batch import TEXT
from cep.histories.call import Call
from cep.histories.kinds.choose import kind_of
from cep.histories.kinds.kind import Column
from cep.histories.numbers.panes import opens_pane
from cep.histories.numbers.whole_window import Members
from cep.histories.remembered import remembered
from cep.kernels.layout import UInt8
from cep.nfa.histories import CUT, HistoryColumn


class Answers:
    """The values of a call's histories.

    The object also counts folded, cut and dropped windows, and by history the sums that exceeded 64 bits.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self.overflows: Counter[str] = Counter()
        self.folded = self.cut = self.dropped = 0
        self._incomplete: dict[str, UInt8] = {}
        self._averages: dict[str, Column] = {}

    def column(self, history: HistoryColumn) -> Column:
        """Return the value of a history at each new event, in event order.

        Text values are indexes into `table.texts`. A history with `average` set takes its value from the average of the
        same events: `avg` is the average itself, its twin is the rounding error of the average. Both share one
        computation.
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
        """Compute a history at each new event, and count the windows that are folded, cut or dropped.

        The kinds compute values in window order; the result is in event order.
        """
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
        event_slots, event_nulls = np.empty(len(answer.slots), np.int64), np.empty(len(answer.slots), np.uint8)
        event_slots[windows.events], event_nulls[windows.events] = answer.slots, answer.nulls
        event_rests = None
        if answer.rests is not None:
            event_rests = np.empty(len(answer.slots), np.int64)
            event_rests[windows.events] = answer.rests
        return Column(event_slots, event_nulls, rests=event_rests)

    def incomplete(self) -> pa.Array:
        """text[Q]: the histories whose value at a new event is incomplete or has folded events (columns.INCOMPLETE)."""
        return _incomplete_texts(self._incomplete, len(self._call.new_rows))

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
        sub_keys = call.sub_keys.memory_of(history) if windows.folded.any() else None
        if sub_keys is None:
            return np.zeros(len(windows.events), np.uint8)
        new = call.new_rows[windows.events]
        may_lack = sub_keys.lacking_ms[new] >= opens_pane(history, call.table.time[new])
        return windows.folded * may_lack.astype(np.uint8)

    def _note(self, name: str, windows: Members, flags: UInt8) -> None:
        if flags.any():
            self._incomplete[name] = np.empty(len(flags), np.uint8)
            self._incomplete[name][windows.events] = flags


def _incomplete_texts(flags: Mapping[str, UInt8], count: int) -> pa.Array:
    """Write for each event the identities of its incomplete histories, text[Q], null for complete ones.

    `flags` are uint8[Q] by identity, 1 where the value is incomplete.
    """
    if not flags:
        return pa.nulls(count, TEXT)
    names = sorted(flags)
    rows = np.stack([flags[name] for name in names], axis=1)
    distinct_rows, row_of_event = np.unique(rows, axis=0, return_inverse=True)
    texts = [" ".join(name for name, has in zip(names, row, strict=True) if has) for row in distinct_rows.tolist()]
    return pa.array([text or None for text in texts], TEXT).take(pa.array(row_of_event.reshape(-1)))
