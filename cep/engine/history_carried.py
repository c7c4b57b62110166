"""Carried: the rows of a history table → the window of each history at each new event, and what is carried of it.

Tested by: tests/engine/test_histories.py, tests/engine/test_history_reach.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cep.base.schema import Type
from cep.engine.calendar import opens_ms
from cep.engine.float_tallies import float_tallies_of
from cep.engine.history_reach import Reached
from cep.engine.history_state import PageFacts
from cep.engine.history_table import HistoryTable
from cep.engine.history_values import Members, of_rank, sortable
from cep.engine.panes import opens_pane
from cep.engine.ranks import Bands, after, bands_of, ranked
from cep.engine.sub_tallies import SubTallies, Tallied, entries_after, no_entries, segments_of
from cep.engine.tallies import Moves, at_clock, at_events, tally_width
from cep.kernels import histories as kernels
from cep.kernels.layout import Int64, UInt8
from cep.nfa.histories import HistoryColumn

# What one event decides alone needs no count of how many there are.
_NO_LIMIT = 2**62
_OF_ONE_EVENT = ("first", "last")


class Carried:
    """The windows of a table's histories; what several of them need is worked out once."""

    def __init__(self, table: HistoryTable, reached: Reached | None) -> None:
        self.table = table
        self._reached = reached
        self._before = Tallied() if reached is None else reached.before
        self._subs: dict[str, tuple[SubTallies, Int64]] = {}
        self._by_segment: dict[str, Int64] = {}
        self._apart: dict[str, Int64] = {}
        self._members: dict[object, UInt8] = {}
        self._windows: dict[object, Members] = {}

    def member(self, history: HistoryColumn) -> UInt8:
        """1 for the rows that count; nulls of the argument do not, except that the last event is the last one,
        and the first the first."""
        table = self.table
        value = -1 if history.expr.fn in _OF_ONE_EVENT else history.value
        pinned = history.identity if self._is_pinned(history) else ""
        key = (history.member, value, history.by, pinned, history.panes)
        if key not in self._members:
            mask = table.member(history.member)
            mask &= self._is_looked_at(history)
            for column in (*history.by, *((value,) if value >= 0 else ())):
                mask &= table.nulls[column] == 0
            self._members[key] = mask
        return self._members[key]

    def _is_looked_at(self, history: HistoryColumn) -> np.ndarray:
        """What few events decide looks at pinned events, everything else at those of segments.

        Of pages that did not know such a history it looks at both: there is no pinned event for it yet. What is kept in
        panes looks at events that are in none yet.
        """
        is_new = self.table.new_at >= 0
        if history.is_approximate:
            return self._and_of_strangers(is_new, lambda fact: history.panes in fact.panes)
        is_pinned = self._is_pinned(history)
        found: np.ndarray = (self.table.is_pinned == is_pinned) | is_new
        if not is_pinned:
            return found
        return self._and_of_strangers(
            found, lambda fact: history.identity in (fact.identities if history.is_single else fact.carried)
        )

    def _is_pinned(self, history: HistoryColumn) -> bool:
        return history.is_single or (history.is_sparse and self.is_carried(history))

    def _and_of_strangers(self, found: np.ndarray, knows: Callable[[PageFacts], bool]) -> np.ndarray:
        """The same, with the old events of the pages that do not know a history, and without those of the others."""
        table, reached = self.table, self._reached
        if reached is not None and reached.is_strange.any():
            old = table.old_rows
            page = reached.page[table.source[old] - table.pinned_count]
            found[old] = np.array([not knows(fact) for fact in reached.facts])[page]
        return found

    def windows(self, history: HistoryColumn, *, by_key: bool = False, rounded: bool = False) -> Members:
        """The window of each new event; of members of all sub-keys (`by_key`), or with its far edge at a pane."""
        expr, table, by = history.expr, self.table, () if by_key else history.by
        # Without a window the event under test is left out, but a value is first seen now if it was never before.
        previous = expr.fn != "first_seen" if expr.window is None else expr.window.previous
        is_pinned = self._is_pinned(history)
        is_unlimited = is_pinned or history.is_approximate or self._is_tallied(history)
        is_unlimited |= self.is_counted(history) or self.is_ranked(history)
        limit = _NO_LIMIT if is_unlimited or rounded or by else history.events_max
        value = -1 if expr.fn in _OF_ONE_EVENT else history.value
        window = None if expr.window is None else (expr.window.ms, expr.window.calendar, expr.window.zone)
        key = (
            history.member,
            value,
            history.by,
            by,
            window,
            previous,
            limit,
            history.identity if is_pinned else "",
            history.panes,
            rounded,
        )
        if key not in self._windows:
            segment, order = table.segments(by)
            count = len(table.new_rows)
            members = np.empty(len(order), np.int64)
            lows, highs, at = (np.empty(count, np.int64) for _ in range(3))
            folded = np.zeros(count, np.uint8)
            times = table.time[table.new_rows]
            is_rounded = history.is_approximate or rounded
            opens = opens_pane(history, times) - 1 if is_rounded else opens_ms(expr.window, times)
            found = kernels.find_windows(
                order, segment, self.member(history), table.new_at, table.time, opens, previous, limit,
                members, lows, highs, at, folded,
            )  # fmt: skip
            if by and not is_unlimited:
                folded = self._folded_by_key(history)[at]
            self._windows[key] = Members(members[:found], segment, lows, highs, at, folded)
        return self._windows[key]

    def _folded_by_key(self, history: HistoryColumn) -> UInt8:
        """By new event 1 where its key has more members in the window than the limit, whatever their sub-key."""
        table = self.table
        found = np.zeros(len(table.new_rows), np.uint8)
        if np.bincount(table.key).max() > history.events_max:
            whole = self.windows(history, by_key=True)
            found[whole.at] = whole.folded
            for column in history.by:
                found &= table.nulls[column][table.new_rows] == 0  # it has no past
        return found

    # -------------------------------------------------------------------------------------------------- tallies

    def is_carried(self, history: HistoryColumn) -> bool:
        """Whether what decides it is carried, so that its window is not looked at."""
        return self._reached is not None and history.carried in self._reached.carried

    def _is_tallied(self, history: HistoryColumn) -> bool:
        return bool(history.tally) and self.is_carried(history)

    def tally_after(self, history: HistoryColumn, clock_ms: int) -> tuple[Int64, bool]:
        """The history's tally after the call, by segment; and whether it can be carried so."""
        tally, moves = self._tally(history), self._moves(history, clock_ms)
        return float_tallies_of(tally, moves) if history.has_float_tally else (at_clock(tally, moves), True)

    def sub_tally_after(self, history: HistoryColumn, clock_ms: int) -> tuple[SubTallies, bool]:
        """The same by sub-keys."""
        (sums, fits), (before, segments) = self.tally_after(history, clock_ms), self._entries(history)
        return entries_after(before, segments, sums, self.table, history.by, history.expr.by), fits

    def _tallied(self, history: HistoryColumn, windows: Members) -> Int64:
        """What is in the window of each new event, in the order of the windows."""
        segment = windows.segment[self.table.new_rows][windows.at]
        return at_events(self._tally(history), self._moves(history, None), segment, windows.lows, windows.highs)

    def _tally(self, history: HistoryColumn) -> Int64:
        """By segment what is carried from the call before."""
        if not history.by:
            found = self._before.by_key.get(history.tally)
            return np.zeros((self.table.keys_count, tally_width(history.tally)), np.int64) if found is None else found
        if history.tally not in self._by_segment:
            segment, _ = self.table.segments(history.by)
            found = np.zeros((int(segment.max(initial=-1)) + 1, tally_width(history.tally)), np.int64)
            entries, segments = self._entries(history)
            there = np.flatnonzero(segments >= 0)
            found[segments[there]] = entries.sums[there]
            self._by_segment[history.tally] = found
        return self._by_segment[history.tally]

    def is_counted(self, history: HistoryColumn) -> bool:
        """Whether it is carried how many different values a key has: of the table's rows count those of values that
        are new or leave, and maybe more."""
        return self._reached is not None and history.counted in self._reached.begun

    def different_after(self, history: HistoryColumn, clock_ms: int) -> Int64:
        """int64[K, 1]: how many different values the window of each key has after the call."""
        assert history.expr.window is not None, "they have a window"
        rows = self.windows(history).rows
        stays = self.table.time[rows] > opens_ms(history.expr.window, np.array([clock_ms]))[0]
        found = self._others(history) + self._different(history, rows[stays])
        return np.where(self._is_count_known(history), found, 0).reshape(-1, 1)

    def _is_count_known(self, history: HistoryColumn) -> np.ndarray:
        """bool[K]: the keys of which it was carried, or is begun now. Of others not all values are in the table."""
        assert self._reached is not None, "it is counted"
        begun, tally = self._reached.begun[history.counted], self._before.by_key.get(history.counted)
        return begun if tally is None else begun | (tally[:, 0] != 0)

    def _others(self, history: HistoryColumn) -> Int64:
        """int64[K]: how many values of each key are in the window and not in the table; none of them leaves it now."""
        if history.counted not in self._apart:
            self._apart[history.counted] = self._counted_apart(history)
        return self._apart[history.counted]

    def _counted_apart(self, history: HistoryColumn) -> Int64:
        table, reached, window = self.table, self._reached, history.expr.window
        tally = self._before.by_key.get(history.counted)
        if tally is None:
            return np.zeros(table.keys_count, np.int64)
        assert reached is not None, "it is counted"
        assert window is not None, "they have a window"
        rows = self.windows(history).rows
        rows = rows[(table.new_at[rows] < 0) & ~reached.begun[history.counted][table.key[rows]]]
        page = reached.page[table.source[rows] - table.pinned_count]
        is_inside = table.time[rows] > reached.left(window)[page]
        return tally[:, 0] - self._different(history, rows[is_inside])

    def _different(self, history: HistoryColumn, rows: Int64) -> Int64:
        """int64[K]: how many different values these rows have by key."""
        pairs, _ = self.table.segments((history.value,))
        key_of = np.full(int(pairs.max(initial=-1)) + 1, -1, np.int64)
        key_of[pairs[rows]] = self.table.key[rows]
        return np.bincount(key_of[key_of >= 0], minlength=self.table.keys_count)

    def is_ranked(self, history: HistoryColumn) -> bool:
        """Whether the values around its rank are carried."""
        return self._reached is not None and history.ranked in self._reached.begun

    def bands_after(self, history: HistoryColumn, clock_ms: int) -> Bands:
        """The values around its rank after the call."""
        assert history.expr.argument is not None, "they have a field"
        bands, _ = self._bands(history)
        moves = self._moves(history, clock_ms)
        return after(bands, replace(moves, values=sortable(moves.values, history.expr.argument.type)), history.percent)

    def _bands(self, history: HistoryColumn) -> tuple[Bands, np.ndarray]:
        """What is carried from the call before, and bool[K] for which keys it is begun anew."""
        assert self._reached is not None, "ranks are carried"
        begun = self._reached.begun[history.ranked]
        held, entries = self._before.by_key.get(history.ranked), self._before.by_sub_key.get(history.band)
        return bands_of(held, entries, self.table.keys_count).without(begun), begun

    def _ranked(self, history: HistoryColumn, windows: Members, type_: Type) -> tuple[Int64, Int64]:
        """How many events each window has, and the value of its rank in the order of `sortable`."""
        bands, begun = self._bands(history)
        key = self.table.key[self.table.new_rows][windows.at]
        moves = self._moves(history, None)
        ordered = sortable(moves.values, type_)
        counts, chosen = np.empty(len(key), np.int64), np.empty(len(key), np.int64)
        whole, known = np.flatnonzero(begun[key]), np.flatnonzero(~begun[key])
        lows, highs = windows.lows[whole], windows.highs[whole]
        counts[whole], chosen[whole] = highs - lows, of_rank(ordered, history.percent, lows, highs)
        asked = key[known], windows.lows[known], windows.highs[known]
        counts[known], chosen[known] = ranked(bands, replace(moves, values=ordered), history.percent, asked)
        return counts, chosen

    def _entries(self, history: HistoryColumn) -> tuple[SubTallies, Int64]:
        """The entries carried from the call before, and the segment of each."""
        if history.tally not in self._subs:
            entries = self._before.by_sub_key.get(history.tally)
            if entries is None:
                entries = no_entries(self.table, history.expr.by, tally_width(history.tally))
            self._subs[history.tally] = entries, segments_of(entries, self.table, history.by)
        return self._subs[history.tally]

    def _moves(self, history: HistoryColumn, clock_ms: int | None) -> Moves:
        table, reached, windows = self.table, self._reached, self.windows(history)
        assert reached is not None, "tallies are carried"
        window, rows = history.expr.window, windows.rows
        assert window is not None, "tallies are of windows"
        enters = table.new_at[rows] >= 0
        leaves = enters.copy()
        old = np.flatnonzero(~enters)
        if len(old):
            page = reached.page[table.source[rows[old]] - table.pinned_count]
            begins = np.array([history.tally not in fact.carried for fact in reached.facts])[page]
            if history.ranked:
                begins = reached.begun[history.ranked][table.key[rows[old]]]
            enters[old] = begins
            leaves[old] = begins | (table.time[rows[old]] > reached.left(window)[page])
        gone = np.zeros(len(rows), np.int64)
        if clock_ms is not None:
            gone = (leaves & (table.time[rows] <= opens_ms(window, np.array([clock_ms]))[0])).astype(np.int64)
        moved = (enters.astype(np.int64), leaves.astype(np.int64), gone)
        return Moves(windows.segment[rows], self._values(history, rows), *moved)

    def _values(self, history: HistoryColumn, rows: Int64) -> Int64:
        """Those of the history's field, 0 where events are counted."""
        return self.table.columns[history.value, rows] if history.value >= 0 else np.zeros(len(rows), np.int64)
