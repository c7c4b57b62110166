"""One call: the table, its windows, its panes and its sub-keys, combined for the kinds of histories.

    table ──▶ windows ──▶ sub_keys ──▶ woven       each step reads only the steps before it

Tested by: tests/histories/test_values.py, tests/histories/test_folds.py, tests/histories/test_known_sub_keys.py
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar, cast

import numpy as np
import pyarrow as pa

from cep.histories.numbers.folds import Members, folded, members_of
from cep.histories.numbers.panes import (
    NO_PANES,
    PaneRows,
    PaneWindows,
    Woven,
    appended_panes,
    opens_pane,
    woven,
)
from cep.histories.reach import Reached
from cep.histories.store import Segment
from cep.histories.sub_keys import KnownSubKeys, SubKeyRows, has_many, in_segments, known_values, of_panes, sub_numbers
from cep.histories.table import HistoryTable
from cep.histories.windows import Windows
from cep.kernels.layout import Int64, UInt8
from cep.nfa.histories import HistoryColumn

Result = TypeVar("Result")


class Call:
    """Everything that the kinds of histories need from one call."""

    def __init__(
        self, table: HistoryTable, reached: Reached | None = None, panes: Mapping[int, PaneRows] | None = None
    ) -> None:
        self.table = table
        self.windows = Windows(table, reached)
        self._panes = {} if panes is None else panes
        self._memories: dict[int, KnownSubKeys | None] = {}
        self._results: dict[tuple[str, str], object] = {}

    @property
    def new_rows(self) -> Int64:
        return self.table.new_rows

    def once(self, kind: str, name: str, compute: Callable[[], Result]) -> Result:
        """Return a result that several functions need, such as the `woven` of a history, and compute it once."""
        if (kind, name) not in self._results:
            self._results[kind, name] = compute()
        return cast("Result", self._results[kind, name])

    # ----------------------------------------------------------------------------------------------- sub-keys

    def _numbers(self, history: HistoryColumn) -> Int64:
        """Return the number of each row's sub-key."""
        by = history.expr.by
        return self.once("numbers", " ".join(by), lambda: sub_numbers([self.table.fields[name] for name in by]))

    def _sub_key_rows(self, history: HistoryColumn) -> SubKeyRows:
        member = self.windows.member(history)
        rows = self.table.rows_of_sub_keys(history.by, member)
        return SubKeyRows(rows, member[rows], self._numbers(history)[rows])

    def memory_of(self, history: HistoryColumn, *, always: bool = False) -> KnownSubKeys | None:
        """Return the remembered sub-keys; None if all are remembered, unless `always` is set."""
        if not history.by:
            return None
        if history.known_sub_keys not in self._memories:
            sub_rows, segment = self._sub_key_rows(history), self.windows.windows_of(history).segment
            before = self._panes.get(history.known_sub_keys, NO_PANES)
            before = of_panes(before, self._panes.get(history.panes, NO_PANES))
            is_asked = always or has_many(self.table, sub_rows, segment[sub_rows.rows], before)
            self._memories[history.known_sub_keys] = known_values(self.table, sub_rows, before) if is_asked else None
        return self._memories[history.known_sub_keys]

    def _first_remembered(self, memory: KnownSubKeys, windows: Members) -> Int64:
        """For each window, return the first member after its sub-key was last forgotten; -1 if it never was."""
        member = np.full(len(self.table.time), len(windows.rows), np.int64)
        member[windows.rows] = np.arange(len(windows.rows))
        begins = memory.begins[self.new_rows[windows.events]]
        first: Int64 = np.where(begins < 0, -1, member[begins])
        return first

    def still_counting(self, history: HistoryColumn) -> UInt8:
        """Return 1 for each row that still counts for later events. Rows of forgotten sub-keys do not."""
        memory, member = self.memory_of(history, always=True), self.windows.member(history)
        if memory is not None:
            rows, table = np.flatnonzero(member), self.table
            member = np.zeros_like(member)
            member[rows] = memory.still_of(table.key[rows], self._numbers(history)[rows], rows, table.time[rows])
        return member

    # -------------------------------------------------------------------------------------------------- panes

    def woven(self, history: HistoryColumn) -> Woven:
        """Place the members that are in no pane yet after the history's panes, and find the windows in both."""
        return self.once("woven", history.identity, lambda: self._weave(history))

    def _weave(self, history: HistoryColumn) -> Woven:
        table, windows = self.table, self.windows.windows_of(history)
        rows, segment = windows.rows, windows.segment
        members = members_of(history, segment[rows], table.time[rows], self.windows.values(history, rows), table.texts)
        new_event_rows = table.new_rows[windows.events]
        stored_panes = self._panes.get(history.panes, NO_PANES)
        memory = self.memory_of(history)
        if history.by:
            sub_rows = self._sub_key_rows(history)
            stored_panes = in_segments(stored_panes, table.key[sub_rows.rows], sub_rows.sub, segment[sub_rows.rows])
        pane_windows = PaneWindows(
            segment[new_event_rows], opens_pane(history, table.time[new_event_rows]), windows.highs
        )
        if memory is not None:  # forgotten events come before all panes and windows
            before_ms = np.concatenate([stored_panes.pane_ms, members.pane_ms, pane_windows.opens]).min() - 1
            members = replace(members, pane_ms=np.where(memory.forgotten[rows], before_ms, members.pane_ms))
        woven_rows = woven(stored_panes, members, table.new_at[rows] >= 0, pane_windows)
        if memory is None:
            return woven_rows
        places = np.append(woven_rows.members, len(woven_rows.rows))
        first = self._first_remembered(memory, windows)
        return replace(
            woven_rows, lows=begin_at(woven_rows.lows, np.where(first < 0, 0, places[first]), woven_rows.highs)
        )

    def rounded_windows(self, history: HistoryColumn) -> Members:
        """Return a history's windows from the start of a pane on, after events that their key has forgotten."""
        windows, memory = self.windows.windows_of(history, rounded=True), self.memory_of(history)
        if memory is None:
            return windows
        forgotten = np.flatnonzero(memory.forgotten[windows.rows])
        after_forgotten = np.zeros(int(windows.segment.max(initial=-1)) + 1, np.int64)
        after_forgotten[windows.segment[windows.rows[forgotten]]] = forgotten + 1  # keep the last event of a sub-key
        first_remembered = self._first_remembered(memory, windows)
        segment = windows.segment[self.table.new_rows[windows.events]]
        first_allowed = np.where(first_remembered < 0, after_forgotten[segment], first_remembered)
        return replace(windows, lows=begin_at(windows.lows, first_allowed, windows.highs))

    def fold(self, history: HistoryColumn, rows: Int64) -> PaneRows:
        """Fold these rows of the table into panes of a history."""
        table, values = self.table, self.windows.values(history, rows)
        members = members_of(history, table.key[rows], table.time[rows], values, table.texts)
        if history.by:
            members = replace(members, sub=self._numbers(history)[rows])
        return folded(history, members, values)

    def new_panes(self, histories: Iterable[HistoryColumn], keys: pa.Array, watermark_ms: int) -> Iterator[Segment]:
        """Return segments of the new rows in the panes of these histories; `keys` are the call's keys."""
        for history in histories:
            both = self.woven(history)
            yield from appended_panes(history, both.rows.take(both.members), keys, watermark_ms)


def begin_at(lows: Int64, least: Int64, highs: Int64) -> Int64:
    """Move the start of each window forward to `least` where it is earlier."""
    moved: Int64 = np.maximum(lows, np.minimum(least, highs))
    return moved
