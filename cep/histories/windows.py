"""The rows of a history table → the window of each history at each new event, and the events that enter and leave it.

Tested by: tests/histories/test_values.py, tests/histories/test_reach.py
"""

from collections.abc import Callable

import numpy as np

from cep.functions.calendar import window_starts_ms
from cep.histories.numbers.folds import EventWindows
from cep.histories.numbers.panes import first_pane_of_window
from cep.histories.numbers.tally import NO_TALLIES
from cep.histories.reach import ReadPast, window_starts_at_clocks
from cep.histories.store import PageFacts
from cep.histories.table import HistoryTable
from cep.kernels.histories import records
from cep.kernels.histories.windows import find_windows
from cep.kernels.layout import Int32, Int64, UInt8
from cep.nfa.histories import HistoryColumn

# A window may have any number of events if its value does not need them one by one.
_NO_LIMIT = 2**62
_RETURN_ONE_EVENT = ("first", "last")  # so an event whose argument is null counts too


class Windows:
    """The windows of a table's histories. `tallies_before`: tallies (running counts and sums) of the previous batch."""

    def __init__(self, table: HistoryTable, read_past: ReadPast | None) -> None:
        self.tallies_before = NO_TALLIES if read_past is None else read_past.tallies_before
        self._table = table
        self._read_past = read_past
        self._members: dict[object, UInt8] = {}
        self._windows: dict[object, EventWindows] = {}

    def has_carried_value(self, history: HistoryColumn) -> bool:
        """Return True if the history's deciding values are carried, so that its whole window need not be read."""
        return self._read_past is not None and history.carried in self._read_past.carried

    def has_carried_tally(self, history: HistoryColumn) -> bool:
        return bool(history.tally) and self.has_carried_value(history)

    def has_pinned_events(self, history: HistoryColumn) -> bool:
        return history.is_single or (history.is_sparse and self.has_carried_value(history))

    def has_carried_count(self, history: HistoryColumn) -> bool:
        """Return True if the number of a key's distinct values is carried: the table may lack rows of the window."""
        return self._read_past is not None and history.counted in self._read_past.restarted

    def has_carried_rank(self, history: HistoryColumn) -> bool:
        return self._read_past is not None and history.ranked in self._read_past.restarted

    def restarted_keys(self, name: str) -> np.ndarray:
        """bool[K]: the keys without a usable count or rank of this name, whose whole window is read in this batch."""
        assert self._read_past is not None, "something is carried"
        return self._read_past.restarted[name]

    def member_mask(self, history: HistoryColumn) -> UInt8:
        """Return uint8[N], 1 for the rows of the table that a history reads and counts, inside its window or not.

        They fulfil its `where` (`history.member`), and the sub-key (`by`) and the argument are not null. For `first`
        and `last` a null argument counts too, because they return the value of one event, null or not. If pinned events
        or panes stand for old events, the history does not read these rows (`_rows_to_read`).
        """
        argument = -1 if history.expr.fn in _RETURN_ONE_EVENT else history.value  # its column; -1: may be null
        pinned_for = history.identity if self.has_pinned_events(history) else ""
        cache_key = (history.member, argument, history.by, pinned_for, history.panes)  # histories may share a mask
        if cache_key not in self._members:
            mask = self._table.member_mask(history.member)
            mask &= self._rows_to_read(history)
            mask &= self._table.has_all((*history.by, argument) if argument >= 0 else history.by)
            self._members[cache_key] = mask
        return self._members[cache_key]

    def _rows_to_read(self, history: HistoryColumn) -> np.ndarray:
        """Mark the rows that a history reads, bool[N]: the new events, and the old events that its value needs.

        An approximate history reads panes (aggregates of time slices) instead of old events. If few events can decide
        the value, they are pinned (stored one by one), and only these are read. A page that was written for other rules
        (an outdated page) may lack the panes or pinned events. Then all events of this page are read.
        """
        is_new = self._table.new_at >= 0
        if history.is_approximate:  # old events are only read from pages without its panes
            return self._with_outdated_pages(is_new, lambda page_facts: history.panes in page_facts.panes)
        has_pinned_events = self.has_pinned_events(history)
        is_read: np.ndarray = (self._table.is_pinned == has_pinned_events) | is_new  # old: all pinned, or all others
        if not has_pinned_events:
            return is_read
        return self._with_outdated_pages(  # the function returns True for a page that has the pinned events
            is_read,  # single: one event decides, and a page of rules with the history always has this event
            lambda page_facts: history.identity in (page_facts.identities if history.is_single else page_facts.carried),
        )

    def _with_outdated_pages(self, is_read: np.ndarray, knows: Callable[[PageFacts], bool]) -> np.ndarray:
        """Mark the old events of pages written without the history, and unmark the old events of other pages."""
        read_past = self._read_past
        if read_past is not None and read_past.is_outdated.any():
            old = self._table.old_rows
            lacks_history = np.array([not knows(page_facts) for page_facts in read_past.page_facts])
            is_read[old] = lacks_history[self._page_index(old)]
        return is_read

    def _page_index(self, rows: Int64) -> Int32:
        """Return the index in `read_past.page_facts` of each old row's page."""
        assert self._read_past is not None, "pages are read"
        return self._read_past.past.page[self._table.source[rows] - self._table.pinned_count]

    def windows_of(self, history: HistoryColumn, *, by_key: bool = False, rounded: bool = False) -> EventWindows:
        """Return each new event's window: the rows that a history (aggregate over a key's past events) counts there.

        A window has rows of the event's sub-key (fields in `by`), or with `by_key` of the whole key. With `rounded`, it
        begins at a pane (time slice). Windows without `by` have at most `events_max` rows, unless pinned events
        (stored one by one) or a tally (running count or sum) decide. Histories with equal settings share the result.
        """
        expr, by = history.expr, () if by_key else history.by
        # A function without a window leaves out the event itself, except `first_seen`: a new value is first seen now.
        is_previous = expr.fn != "first_seen" if expr.window is None else expr.window.previous
        limit = _NO_LIMIT if self._is_unlimited(history) or rounded or by else history.events_max
        argument = -1 if expr.fn in _RETURN_ONE_EVENT else history.value  # its column; -1: may be null
        window = None if expr.window is None else (expr.window.ms, expr.window.calendar, expr.window.zone)
        pinned_for = history.identity if self.has_pinned_events(history) else ""
        members = history.member, argument, history.by, pinned_for, history.panes  # as in `member_mask`
        cache_key = (*members, by, window, is_previous, limit, rounded)
        if cache_key not in self._windows:
            self._windows[cache_key] = self._search_windows(history, by, limit, previous=is_previous, rounded=rounded)
        return self._windows[cache_key]

    def _is_unlimited(self, history: HistoryColumn) -> bool:
        return (
            self.has_pinned_events(history)
            or history.is_approximate
            or self.has_carried_tally(history)
            or self.has_carried_count(history)
            or self.has_carried_rank(history)
        )

    def _search_windows(
        self, history: HistoryColumn, by: tuple[int, ...], limit: int, *, previous: bool, rounded: bool
    ) -> EventWindows:
        """Find the window of each new event among the rows of its key and sub-key (the columns in `by`), in one pass.

        `previous` leaves out the event itself. A window with more than `limit` rows is folded: panes (partial
        aggregates of time slices) stand for its older events. With `rounded`, a window begins at the start of a pane,
        because a pane cannot be divided.
        """
        table = self._table
        segment, order = table.segments(by)
        new_rows = table.new_rows
        member_rows = np.empty(len(order), np.int64)
        lows, highs, new_events = (np.empty(len(new_rows), np.int64) for _ in range(3))
        folded = np.zeros(len(new_rows), np.uint8)
        times = table.time[new_rows]
        begins_at_pane = history.is_approximate or rounded
        starts_ms = (  # a window has only events after this time
            first_pane_of_window(history, times) - 1 if begins_at_pane else window_starts_ms(history.expr.window, times)
        )
        rows = records.TableRows(order, segment, self.member_mask(history), table.new_at, table.time)
        out = records.Windows(lows, highs, new_events, folded)
        members_count = find_windows(rows, starts_ms, previous, limit, member_rows, out)  # fills the arrays
        if by and not self._is_unlimited(history):  # the limit is on the rows of the key, over all its sub-keys
            folded = self._folded_by_key(history)[new_events]
        return EventWindows(member_rows[:members_count], segment, lows, highs, new_events, folded)

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
        """Return how each row of the windows changes the tally (running count or sum) that the previous batch left.

        A row *enters* if the tally does not have it yet. It *leaves* if it must be subtracted from each window that
        begins after it, that is, unless it had left before this batch. It is *gone* if it is outside of the window at
        `clock_ms`, the end of the batch. A restarted key lacks a usable tally, so its whole window was read.
        """
        windows, read_past = self.windows_of(history), self._read_past
        assert read_past is not None, "tallies are carried"
        window, rows = history.expr.window, windows.rows
        assert window is not None, "tallies are of windows"
        times = self._table.time[rows]
        enters = self._table.new_at[rows] >= 0
        leaves = enters.copy()  # a row that enters leaves later, with the first window that begins after it
        old = np.flatnonzero(~enters)
        if len(old):
            page = self._page_index(rows[old])  # an index into page_facts
            # An old row enters again if its page (stored group of keys), or for ranks its key, lacks a usable tally.
            has_no_tally = np.array([history.tally not in facts.carried for facts in read_past.page_facts])[page]
            if history.ranked:
                has_no_tally = read_past.restarted[history.ranked][self._table.key[rows[old]]]
            enters[old] = has_no_tally
            was_inside = times[old] > window_starts_at_clocks(window, read_past.page_facts)[page]
            leaves[old] = has_no_tally | was_inside  # it was in the window when the previous batch ended
        gone = np.zeros(len(rows), np.int64)  # without a clock, no row is gone
        if clock_ms is not None:
            gone = (leaves & (times <= window_starts_ms(window, np.array([clock_ms]))[0])).astype(np.int64)
        flags = (enters.astype(np.int64), leaves.astype(np.int64), gone)
        return records.Moves(windows.segment[rows], self.values(history, rows), *flags)

    def values(self, history: HistoryColumn, rows: Int64) -> Int64:
        """Return the history's field of these rows, 0 where events are counted."""
        return self._table.columns[history.value, rows] if history.value >= 0 else np.zeros(len(rows), np.int64)

    def is_still_inside(self, history: HistoryColumn, rows: Int64) -> np.ndarray:
        """bool[M]: the old rows that have not left the window at the clock of their page."""
        assert self._read_past is not None, "it is carried"
        assert history.expr.window is not None, "it has a window"
        left_ms = window_starts_at_clocks(history.expr.window, self._read_past.page_facts)[self._page_index(rows)]
        inside: np.ndarray = self._table.time[rows] > left_ms
        return inside
