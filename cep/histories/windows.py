"""The rows of a history table → the window of each history at each new event, and the events that enter and leave it.

Windows that several histories share are computed once.
Tested by: tests/histories/test_values.py, tests/histories/test_reach.py
"""

from collections.abc import Callable

import numpy as np

from cep.functions.calendar import opens_ms
from cep.histories.numbers.folds import Members
from cep.histories.numbers.panes import opens_pane
from cep.histories.numbers.tally import NOTHING_TALLIED
from cep.histories.reach import Reached, left_until
from cep.histories.store import PageFacts
from cep.histories.table import HistoryTable
from cep.kernels.histories import records
from cep.kernels.histories.windows import find_windows
from cep.kernels.layout import Int32, Int64, UInt8
from cep.nfa.histories import HistoryColumn

# One event decides the value, so no window is too large.
_NO_LIMIT = 2**62
_OF_ONE_EVENT = ("first", "last")


class Windows:
    """The windows of a table's histories. `before` are the values carried from the call before."""

    def __init__(self, table: HistoryTable, reached: Reached | None) -> None:
        self.before = NOTHING_TALLIED if reached is None else reached.before
        self._table = table
        self._reached = reached
        self._members: dict[object, UInt8] = {}
        self._windows: dict[object, Members] = {}

    def is_carried(self, history: HistoryColumn) -> bool:
        """Return True if the history's deciding values are carried, so that its whole window need not be read."""
        return self._reached is not None and history.carried in self._reached.carried

    def is_tallied(self, history: HistoryColumn) -> bool:
        return bool(history.tally) and self.is_carried(history)

    def is_pinned(self, history: HistoryColumn) -> bool:
        """Return True if the events that decide the history are pinned."""
        return history.is_single or (history.is_sparse and self.is_carried(history))

    def is_counted(self, history: HistoryColumn) -> bool:
        """Return True if the number of a key's distinct values is carried, so that the table may lack rows of the
        window.
        """
        return self._reached is not None and history.counted in self._reached.begun

    def is_ranked(self, history: HistoryColumn) -> bool:
        """Return True if the values around the history's rank are carried."""
        return self._reached is not None and history.ranked in self._reached.begun

    def begun(self, name: str) -> np.ndarray:
        """bool[K]: the keys whose count or rank of this name starts again in this call."""
        assert self._reached is not None, "something is carried"
        return self._reached.begun[name]

    def member(self, history: HistoryColumn) -> UInt8:
        """Mark the rows that count for a history, uint8[N] of 0 and 1. A row with a null argument does not.

        For `first` and `last` it does: they return the value of the event, null or not.
        """
        value = -1 if history.expr.fn in _OF_ONE_EVENT else history.value
        pinned = history.identity if self.is_pinned(history) else ""
        key = (history.member, value, history.by, pinned, history.panes)
        if key not in self._members:
            mask = self._table.member(history.member)
            mask &= self._is_looked_at(history)
            mask &= self._table.has_all((*history.by, value) if value >= 0 else history.by)
            self._members[key] = mask
        return self._members[key]

    def _is_looked_at(self, history: HistoryColumn) -> np.ndarray:
        """Mark the rows that a history reads, bool[N]: new events, and either pinned events or the events of segments.

        A strange page has no pinned event for the history yet, so all its rows are read. A history in panes reads the
        events that are in no pane yet.
        """
        is_new = self._table.new_at >= 0
        if history.is_approximate:
            return self._with_strange_pages(is_new, lambda facts: history.panes in facts.panes)
        is_pinned = self.is_pinned(history)
        looked_at: np.ndarray = (self._table.is_pinned == is_pinned) | is_new
        if not is_pinned:
            return looked_at
        return self._with_strange_pages(
            looked_at, lambda facts: history.identity in (facts.identities if history.is_single else facts.carried)
        )

    def _with_strange_pages(self, looked_at: np.ndarray, knows: Callable[[PageFacts], bool]) -> np.ndarray:
        """Set the old events of pages that do not know the history, and clear the old events of other pages."""
        reached = self._reached
        if reached is not None and reached.is_strange.any():
            old = self._table.old_rows
            looked_at[old] = np.array([not knows(facts) for facts in reached.facts])[self._page(old)]
        return looked_at

    def _page(self, rows: Int64) -> Int32:
        """Return the index in `reached.facts` of each old row's page."""
        assert self._reached is not None, "pages are reached"
        return self._reached.past.page[self._table.source[rows] - self._table.pinned_count]

    def windows_of(self, history: HistoryColumn, *, by_key: bool = False, rounded: bool = False) -> Members:
        """Return the window of a history at each new event; histories with equal windows share one result.

        With `by_key` the window has members of all sub-keys. With `rounded` its far edge is at the start of a pane.
        """
        expr, by = history.expr, () if by_key else history.by
        # A function without a window leaves out the event under test. `first_seen` includes it: a new value is first
        # seen now.
        previous = expr.fn != "first_seen" if expr.window is None else expr.window.previous
        limit = _NO_LIMIT if self._is_unlimited(history) or rounded or by else history.events_max
        value = -1 if expr.fn in _OF_ONE_EVENT else history.value
        window = None if expr.window is None else (expr.window.ms, expr.window.calendar, expr.window.zone)
        pinned = history.identity if self.is_pinned(history) else ""
        key = (history.member, value, history.by, by, window, previous, limit, pinned, history.panes, rounded)
        if key not in self._windows:
            self._windows[key] = self._find(history, by, limit, previous=previous, rounded=rounded)
        return self._windows[key]

    def _is_unlimited(self, history: HistoryColumn) -> bool:
        return (
            self.is_pinned(history)
            or history.is_approximate
            or self.is_tallied(history)
            or self.is_counted(history)
            or self.is_ranked(history)
        )

    def _find(
        self, history: HistoryColumn, by: tuple[int, ...], limit: int, *, previous: bool, rounded: bool
    ) -> Members:
        """Search the window of each new event among the rows of its segment, in one pass."""
        table = self._table
        segment, order = table.segments(by)
        new = table.new_rows
        members = np.empty(len(order), np.int64)
        lows, highs, history_rows = (np.empty(len(new), np.int64) for _ in range(3))
        folded = np.zeros(len(new), np.uint8)
        times = table.time[new]
        is_rounded = history.is_approximate or rounded
        opens = opens_pane(history, times) - 1 if is_rounded else opens_ms(history.expr.window, times)
        rows = records.TableRows(order, segment, self.member(history), table.new_at, table.time)
        out = records.Windows(lows, highs, history_rows, folded)
        members_count = find_windows(rows, opens, previous, limit, members, out)
        if by and not self._is_unlimited(history):
            folded = self._folded_by_key(history)[history_rows]
        return Members(members[:members_count], segment, lows, highs, history_rows, folded)

    def _folded_by_key(self, history: HistoryColumn) -> UInt8:
        """Return 1 for new events whose key has more members in the window than the limit, over all sub-keys."""
        table = self._table
        folded = np.zeros(len(table.new_rows), np.uint8)
        if np.bincount(table.key).max() > history.events_max:
            whole = self.windows_of(history, by_key=True)
            folded[whole.events] = whole.folded
            folded &= table.has_all(history.by)[table.new_rows]  # a null sub-key has no past
        return folded

    def moves(self, history: HistoryColumn, clock_ms: int | None) -> records.Moves:
        """Return how each member moves a carried tally: whether it enters, leaves, and is gone when the call ends."""
        windows, reached = self.windows_of(history), self._reached
        assert reached is not None, "tallies are carried"
        window, rows = history.expr.window, windows.rows
        assert window is not None, "tallies are of windows"
        times = self._table.time[rows]
        enters = self._table.new_at[rows] >= 0
        leaves = enters.copy()
        old = np.flatnonzero(~enters)
        if len(old):
            page = self._page(rows[old])
            begins = np.array([history.tally not in facts.carried for facts in reached.facts])[page]
            if history.ranked:
                begins = reached.begun[history.ranked][self._table.key[rows[old]]]
            enters[old] = begins
            leaves[old] = begins | (times[old] > left_until(window, reached.facts)[page])
        gone = np.zeros(len(rows), np.int64)
        if clock_ms is not None:
            gone = (leaves & (times <= opens_ms(window, np.array([clock_ms]))[0])).astype(np.int64)
        moved = (enters.astype(np.int64), leaves.astype(np.int64), gone)
        return records.Moves(windows.segment[rows], self.values(history, rows), *moved)

    def values(self, history: HistoryColumn, rows: Int64) -> Int64:
        """Return the history's field of these rows, 0 where events are counted."""
        return self._table.columns[history.value, rows] if history.value >= 0 else np.zeros(len(rows), np.int64)

    def is_still_inside(self, history: HistoryColumn, rows: Int64) -> np.ndarray:
        """bool[M]: the old rows that have not left the window at the clock of their page."""
        assert self._reached is not None, "it is carried"
        assert history.expr.window is not None, "it has a window"
        left_ms = left_until(history.expr.window, self._reached.facts)[self._page(rows)]
        inside: np.ndarray = self._table.time[rows] > left_ms
        return inside
