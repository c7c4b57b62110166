"""Asked: the rows of a history table → the value of each history at each new event.

    windows      count, sum, avg: tallies that are carried (tallies.py); of floats and by sub-keys sums of the window
                 min, max, distinct, percentile: two pointers (kernels/histories.py)

Tested by: tests/engine/test_histories.py, tests/engine/test_histories_sql.py
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cep.base.schema import Type
from cep.engine.calendar import opens_ms
from cep.engine.history_reach import Reached
from cep.engine.history_state import TALLY_WIDTH
from cep.engine.history_table import HistoryTable, dense_codes
from cep.engine.history_values import Members, as_floats, extreme, float_sums, integer_sums, sortable, stddev
from cep.engine.tallies import Moves, at_clock, at_events, whole_sums
from cep.kernels import histories as kernels
from cep.kernels.layout import Int64, UInt8
from cep.nfa.columns import cut_bit
from cep.nfa.histories import HistoryColumn

# What one event decides alone needs no count of how many there are.
_NO_LIMIT = 2**62
_NO_TALLIES: Mapping[str, Int64] = {}
_OF_ONE_EVENT = ("first", "last")


class Asked:
    """Answers the histories of a table; what several of them need is worked out once."""

    def __init__(
        self, table: HistoryTable, reached: Reached | None = None, tallies: Mapping[str, Int64] = _NO_TALLIES
    ) -> None:
        self.table = table
        self._reached = reached
        self._tallies = tallies
        self.overflows = self.folded = 0
        self.cut = np.zeros(len(table.new_rows), np.int64)
        self._members: dict[tuple[int, int, tuple[int, ...], str], UInt8] = {}
        self._windows: dict[object, Members] = {}

    def values(self, history: HistoryColumn) -> tuple[Int64, UInt8, bool]:
        """(slots, null flags, whether they are numbers of texts) at the new events, in their order."""
        windows = self.windows(history)
        found, nulls = self._ordered(history, windows)
        values, flags = np.empty(len(found), np.int64), np.empty(len(found), np.uint8)
        values[windows.at], flags[windows.at] = found, nulls
        if windows.folded.any():
            self.folded += int(windows.folded.sum())
            self.cut[windows.at] |= windows.folded * np.int64(cut_bit(history.expr))
        return values, flags, history.expr.type.is_text

    def member(self, history: HistoryColumn) -> UInt8:
        """1 for the rows that count; nulls of the argument do not, except that the last event is the last one,
        and the first the first."""
        table = self.table
        value = -1 if history.expr.fn in _OF_ONE_EVENT else history.value
        key = (history.member, value, history.by, history.identity if self._is_pinned(history) else "")
        if key not in self._members:
            mask = table.member(history.member)
            mask &= self._is_looked_at(history)
            for column in (*history.by, *((value,) if value >= 0 else ())):
                mask &= table.nulls[column] == 0
            self._members[key] = mask
        return self._members[key]

    def _is_looked_at(self, history: HistoryColumn) -> np.ndarray:
        """What few events decide looks at pinned events, everything else at those of segments.

        Of pages that did not know such a history it looks at both: there is no pinned event for it yet.
        """
        table, reached = self.table, self._reached
        is_pinned = self._is_pinned(history)
        found: np.ndarray = (table.is_pinned == is_pinned) | (table.new_at >= 0)
        if is_pinned and reached is not None and reached.is_strange.any():
            old = table.old_rows
            page = reached.page[table.source[old] - table.pinned_count]
            known = [fact.identities if history.is_single else fact.sparse for fact in reached.facts]
            found[old] = np.array([history.identity not in names for names in known])[page]
        return found

    def is_sparse(self, history: HistoryColumn) -> bool:
        """Whether the events that can still decide it are pinned."""
        return self._reached is not None and history.identity in self._reached.sparse

    def _is_pinned(self, history: HistoryColumn) -> bool:
        return history.is_single or self.is_sparse(history)

    def windows(self, history: HistoryColumn) -> Members:
        expr, table = history.expr, self.table
        # Without a window the event under test is left out, but a value is first seen now if it was never before.
        previous = expr.fn != "first_seen" if expr.window is None else expr.window.previous
        is_pinned = self._is_pinned(history)
        limit = _NO_LIMIT if is_pinned or self._is_tallied(history) else history.events_max
        value = -1 if expr.fn in _OF_ONE_EVENT else history.value
        window = None if expr.window is None else (expr.window.ms, expr.window.calendar, expr.window.zone)
        key = (
            history.member,
            value,
            history.by,
            window,
            previous,
            limit,
            history.identity if is_pinned else "",
        )
        if key not in self._windows:
            segment, order = table.segments(history.by)
            count = len(table.new_rows)
            members = np.empty(len(order), np.int64)
            lows, highs, at = (np.empty(count, np.int64) for _ in range(3))
            folded = np.zeros(count, np.uint8)
            opens = opens_ms(expr.window, table.time[table.new_rows])
            found = kernels.find_windows(
                order, segment, self.member(history), table.new_at, table.time, opens, previous, limit,
                members, lows, highs, at, folded,
            )  # fmt: skip
            self._windows[key] = Members(members[:found], segment, lows, highs, at, folded)
        return self._windows[key]

    # -------------------------------------------------------------------------------------------------- tallies

    def _is_tallied(self, history: HistoryColumn) -> bool:
        return bool(history.tally) and self._reached is not None and self._reached.is_tallied

    def tally_after(self, history: HistoryColumn, clock_ms: int) -> Int64:
        """The history's tally after the call."""
        return at_clock(self._carried(history), self._moves(history, clock_ms))

    def _tallied(self, history: HistoryColumn, windows: Members) -> Int64:
        """Count and sum in the window of each new event, in the order of the windows."""
        key = self.table.key[self.table.new_rows][windows.at]
        return at_events(self._carried(history), self._moves(history, None), key, windows.lows, windows.highs)

    def _carried(self, history: HistoryColumn) -> Int64:
        found = self._tallies.get(history.tally)
        return np.zeros((self.table.keys_count, TALLY_WIDTH), np.int64) if found is None else found

    def _moves(self, history: HistoryColumn, clock_ms: int | None) -> Moves:
        table, reached, rows = self.table, self._reached, self.windows(history).rows
        assert reached is not None, "tallies are carried"
        window = history.expr.window
        assert window is not None, "tallies are of windows"
        enters = table.new_at[rows] >= 0
        leaves = enters.copy()
        old = np.flatnonzero(~enters)
        if len(old):
            page = reached.page[table.source[rows[old]] - table.pinned_count]
            begins = np.array([history.tally not in fact.tallies for fact in reached.facts])[page]
            enters[old] = begins
            leaves[old] = begins | (table.time[rows[old]] > reached.left(window)[page])
        gone = np.zeros(len(rows), np.int64)
        if clock_ms is not None:
            gone = (leaves & (table.time[rows] <= opens_ms(window, np.array([clock_ms]))[0])).astype(np.int64)
        values = table.columns[history.value, rows] if history.value >= 0 else np.zeros(len(rows), np.int64)
        return Moves(table.key[rows], values, enters.astype(np.int64), leaves.astype(np.int64), gone)

    # ------------------------------------------------------------------------------------------------ functions

    def _ordered(self, history: HistoryColumn, windows: Members) -> tuple[Int64, UInt8]:
        """Values and null flags in the order of the windows."""
        expr = history.expr
        lows, highs = windows.lows, windows.highs
        found = self._tallied(history, windows) if self._is_tallied(history) else None
        counts = highs - lows if found is None else found[:, 0]
        empty = (counts == 0).astype(np.uint8)
        never = np.zeros(len(counts), np.uint8)
        match expr.fn:
            case "count":
                return counts, never
            case "exists":
                return (counts > 0).astype(np.int64), never
            case "first_seen":
                return self._since_first(windows), empty
            case "first" | "last":
                return self._of_one_event(history, windows)
        values = self.table.columns[history.value, windows.rows]
        assert expr.argument is not None, "the others have a field"
        type_ = expr.argument.type
        match expr.fn:
            case "distinct":
                out = np.empty(len(counts), np.int64)
                codes, codes_count = dense_codes(values)
                kernels.count_distinct(codes, codes_count, lows, highs, out)
                return out, never
            case "min" | "max":
                return extreme(values, type_, windows, is_least=expr.fn == "min"), empty
            case "median" | "percentile":
                return self._percentile(history, values, type_, windows), empty
            case "stddev":
                return stddev(values, type_, windows), empty
            case _:
                nulls = never if expr.fn == "sum" else empty
                if type_.is_float:
                    return self._sum(expr.fn, float_sums(values, windows), counts, nulls)
                sums = whole_sums(found) if found is not None else integer_sums(values, windows)
                return self._whole_sum(expr.fn, sums, type_, counts, nulls)

    def _of_one_event(self, history: HistoryColumn, windows: Members) -> tuple[Int64, UInt8]:
        """The field of the first or the last event of each window."""
        some = windows.highs > windows.lows
        at = windows.lows if history.expr.fn == "first" else windows.highs - 1
        rows = windows.rows[np.where(some, at, 0)] if len(windows.rows) else np.zeros(len(some), np.int64)
        nulls = np.where(some, self.table.nulls[history.value, rows], 1).astype(np.uint8)
        return self.table.columns[history.value, rows], nulls

    def _since_first(self, windows: Members) -> Int64:
        now = self.table.time[self.table.new_rows][windows.at]
        if not len(windows.rows):
            return np.zeros(len(now), np.int64)
        first = windows.rows[np.minimum(windows.lows, len(windows.rows) - 1)]
        since: Int64 = now - self.table.time[first]
        return since

    def _whole_sum(
        self, fn: str, sums: tuple[Int64, np.ndarray], type_: Type, counts: Int64, nulls: UInt8
    ) -> tuple[Int64, UInt8]:
        whole, fits = sums
        self.overflows += int((~fits).sum())
        nulls = nulls | ~fits
        return (whole, nulls) if fn == "sum" else self._sum(fn, whole / float(10**type_.scale), counts, nulls)

    def _sum(self, fn: str, total: np.ndarray, counts: Int64, nulls: UInt8) -> tuple[Int64, UInt8]:
        with np.errstate(invalid="ignore", divide="ignore"):
            return (total if fn == "sum" else total / counts).view(np.int64), nulls

    def _percentile(self, history: HistoryColumn, values: Int64, type_: Type, windows: Members) -> Int64:
        percent = 50 if history.expr.percent is None else getattr(history.expr.percent, "value", None)
        assert isinstance(percent, int), "parameters are bound before compilation"
        different, codes = np.unique(sortable(values, type_), return_inverse=True)
        out = np.empty(len(windows.lows), np.int64)
        kernels.find_rank(codes, len(different), percent, windows.lows, windows.highs, out)
        chosen = different[np.maximum(out, 0)] if len(different) else np.zeros(len(out), np.int64)
        return as_floats(sortable(chosen, type_), type_).view(np.int64)
