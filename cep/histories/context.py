"""One batch: the table, its windows, its panes and its sub-keys, combined for the kinds of histories.

    table ──▶ windows ──▶ sub_keys ──▶ panes_and_events       each step reads only the steps before it

Tested by: tests/histories/test_values.py, tests/histories/test_folds.py, tests/histories/test_known_sub_keys.py
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar, cast

import numpy as np
import pyarrow as pa

from cep.histories import sub_keys
from cep.histories.numbers import panes as window_panes
from cep.histories.numbers.folds import EventWindows, fold_into_panes, rows_of_events
from cep.histories.numbers.panes import NO_PANES, PaneRows, PanesAndEvents
from cep.histories.reach import ReadPast
from cep.histories.store import Segment
from cep.histories.sub_keys import SubKeyMemory, SubKeyRows
from cep.histories.table import HistoryTable
from cep.histories.windows import Windows
from cep.kernels.layout import Int64, UInt8
from cep.nfa.histories import HistoryColumn

Result = TypeVar("Result")


class Context:
    """Everything that the kinds of histories need from one batch of new events."""

    def __init__(
        self, table: HistoryTable, read_past: ReadPast | None = None, panes: Mapping[int, PaneRows] | None = None
    ) -> None:
        self.table = table
        self.windows = Windows(table, read_past)
        self._panes = {} if panes is None else panes
        self._remembered: dict[int, SubKeyMemory | None] = {}
        self._results: dict[tuple[str, str], object] = {}

    @property
    def new_rows(self) -> Int64:
        return self.table.new_rows

    def once(self, kind: str, name: str, compute: Callable[[], Result]) -> Result:
        """Return a result that several functions need, such as `panes_and_events` of a history; compute it once."""
        if (kind, name) not in self._results:
            self._results[kind, name] = compute()
        return cast("Result", self._results[kind, name])

    def _sub_key_numbers(self, history: HistoryColumn) -> Int64:
        fields = [self.table.fields[name] for name in history.expr.by]
        return self.once("numbers", " ".join(history.expr.by), lambda: sub_keys.sub_key_numbers(fields))

    def _sub_key_rows(self, history: HistoryColumn) -> SubKeyRows:
        member = self.windows.member_mask(history)
        rows = self.table.rows_of_sub_keys(history.by, member)
        return SubKeyRows(rows, member[rows], self._sub_key_numbers(history)[rows])

    def sub_key_memory(self, history: HistoryColumn, *, always: bool = False) -> SubKeyMemory | None:
        """Return the sub-keys (such as a card's merchants) that each key remembers; a key with too many forgets some.

        Unless `always`, the result is None if no key has too many. Histories with the same events and sub-key share a
        memory and its number, `known_sub_keys`. The previous batch stored its memory as panes with this number.
        """
        if not history.by:
            return None
        if history.known_sub_keys not in self._remembered:
            sub_rows, segment = self._sub_key_rows(history), self.windows.windows_of(history).segment
            before = self._panes.get(history.known_sub_keys, NO_PANES)
            before = sub_keys.with_keys_of_panes(before, self._panes.get(history.panes, NO_PANES))
            is_needed = always or sub_keys.may_exceed_limit(self.table, sub_rows, segment[sub_rows.rows], before)
            memory = sub_keys.follow_sub_keys(self.table, sub_rows, before) if is_needed else None
            self._remembered[history.known_sub_keys] = memory
        return self._remembered[history.known_sub_keys]

    def _first_remembered_member(self, memory: SubKeyMemory, windows: EventWindows) -> Int64:
        """For each window, return the first member since which its sub-key is remembered; -1: since before all rows."""
        member = np.full(len(self.table.time), len(windows.rows), np.int64)
        member[windows.rows] = np.arange(len(windows.rows))
        first_row = memory.first_row[self.new_rows[windows.events]]
        first: Int64 = np.where(first_row < 0, -1, member[first_row])
        return first

    def rows_still_counting(self, history: HistoryColumn) -> UInt8:
        """Return 1 for each row that still counts for later events. Rows of forgotten sub-keys do not."""
        memory, member = self.sub_key_memory(history, always=True), self.windows.member_mask(history)
        if memory is not None:
            rows, table = np.flatnonzero(member), self.table
            member = np.zeros_like(member)
            sub = self._sub_key_numbers(history)[rows]
            member[rows] = memory.is_counted_row(table.key[rows], sub, rows, table.time[rows])
        return member

    def panes_and_events(self, history: HistoryColumn) -> PanesAndEvents:
        """Return the history's stored panes and the events that are in no pane yet, as one sequence with windows."""
        return self.once("panes and events", history.identity, lambda: self._merge_panes_and_events(history))

    def _merge_panes_and_events(self, history: HistoryColumn) -> PanesAndEvents:
        """Merge stored panes (partial aggregates of time slices) and single events of a history, by segment and time.

        Each window is then a range of rows. A segment is a key, or one sub-key of a key. A busy key remembers only its
        latest sub-keys. The events of forgotten sub-keys come before all other rows, and windows begin after them.
        """
        table, windows = self.table, self.windows.windows_of(history)
        rows, segment = windows.rows, windows.segment
        values = self.windows.values(history, rows)
        events = rows_of_events(history, segment[rows], table.time[rows], values, table.texts)
        new_event_rows = table.new_rows[windows.events]
        panes = self._panes.get(history.panes, NO_PANES)
        memory = self.sub_key_memory(history)  # None: nothing is forgotten
        if history.by:
            sub_rows = self._sub_key_rows(history)
            panes = sub_keys.number_by_segment(panes, table.key[sub_rows.rows], sub_rows.sub, segment[sub_rows.rows])
        first_pane_ms = window_panes.first_pane_of_window(history, table.time[new_event_rows])
        if memory is not None:  # give forgotten events a time before all panes and windows, so that they come first
            before_ms = np.concatenate([panes.pane_ms, events.pane_ms, first_pane_ms]).min() - 1
            events = replace(events, pane_ms=np.where(memory.is_forgotten[rows], before_ms, events.pane_ms))
        pane_windows = window_panes.PaneWindows(segment[new_event_rows], first_pane_ms, windows.highs)
        is_new = table.new_at[rows] >= 0  # -1: a stored event
        merged = window_panes.merge_panes_and_events(panes, events, is_new, pane_windows)
        if memory is None:
            return merged
        merged_row = np.append(merged.event_positions, len(merged.rows))  # by event; the last entry is of no event
        first_remembered = self._first_remembered_member(memory, windows)  # -1: remembered since before the table
        first_allowed = np.where(first_remembered < 0, 0, merged_row[first_remembered])
        return replace(merged, lows=start_windows_at(merged.lows, first_allowed, merged.highs))

    def rounded_windows(self, history: HistoryColumn) -> EventWindows:
        """Return windows that begin with a whole pane (time slice), and after the forgotten events of their sub-key.

        A busy key remembers only its latest sub-keys; a segment is one sub-key of a key. Windows are ranges of members
        (rows that count), from `lows` to before `highs`.
        """
        windows, memory = self.windows.windows_of(history, rounded=True), self.sub_key_memory(history)
        if memory is None:  # nothing is forgotten
            return windows
        forgotten = np.flatnonzero(memory.is_forgotten[windows.rows])
        after_forgotten = np.zeros(int(windows.segment.max(initial=-1)) + 1, np.int64)
        after_forgotten[windows.segment[windows.rows[forgotten]]] = forgotten + 1  # the last one of a segment wins
        first_remembered = self._first_remembered_member(memory, windows)
        segment = windows.segment[self.table.new_rows[windows.events]]
        # A sub-key with -1 is remembered since before all rows: its window begins after its last forgotten row.
        first_allowed = np.where(first_remembered < 0, after_forgotten[segment], first_remembered)
        return replace(windows, lows=start_windows_at(windows.lows, first_allowed, windows.highs))

    def fold(self, history: HistoryColumn, rows: Int64) -> PaneRows:
        """Fold these rows of the table into panes of a history: partial aggregates of time slices."""
        table, values = self.table, self.windows.values(history, rows)
        members = rows_of_events(history, table.key[rows], table.time[rows], values, table.texts)
        if history.by:
            members = replace(members, sub=self._sub_key_numbers(history)[rows])
        return fold_into_panes(history, members, values)

    def new_panes(self, histories: Iterable[HistoryColumn], keys: pa.Array, watermark_ms: int) -> Iterator[Segment]:
        """Return segments of the new rows in the panes of these histories; `keys` are the batch's keys."""
        for history in histories:
            merged = self.panes_and_events(history)
            event_rows = merged.rows.take(merged.event_positions)
            yield from window_panes.appended_panes(history, event_rows, keys, watermark_ms)


def start_windows_at(lows: Int64, first_allowed: Int64, highs: Int64) -> Int64:
    """Move the start of each window forward to `first_allowed`, but not beyond its end."""
    moved: Int64 = np.maximum(lows, np.minimum(first_allowed, highs))
    return moved
