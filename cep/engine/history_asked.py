"""Asked: the rows of a history table → the value of each history at each new event.

    count, sum, avg, stddev     tallies that are carried (tallies.py, float_tallies.py, sub_tallies.py)
    min, max, distinct          two pointers over what is pinned (kernels/histories.py)
    distinct of many values     two pointers over those values that are new or leave; how many others there are is known
    median, percentile          values around the rank that are carried (ranks.py)
    approx_distinct, …          panes (panes.py)

Tested by: tests/engine/test_histories.py, tests/engine/test_histories_sql.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from cep.base.schema import Type
from cep.engine.float_tallies import float_windows
from cep.engine.folds import counts_in, extreme_in, float_spreads_in, float_sums_in, folded, members_of, tallies_in
from cep.engine.history_carried import Carried
from cep.engine.history_reach import Reached
from cep.engine.history_state import Segment
from cep.engine.history_table import HistoryTable
from cep.engine.history_told import told_texts
from cep.engine.history_values import Members, as_floats, extreme, float_spreads, float_sums, of_rank, sortable
from cep.engine.known_values import Asking, Known, has_many, known_values, of_panes
from cep.engine.panes import NO_PANES, PaneRows, PaneWindows, Woven, appended_panes, opens_pane, values_of, woven
from cep.engine.remembered import remembered
from cep.engine.sub_keys import in_segments, sub_numbers
from cep.engine.tallies import of_windows, spreads, tally_width, whole_sums
from cep.kernels import histories as kernels
from cep.kernels.layout import Int64, UInt8
from cep.nfa.histories import CUT, HistoryColumn


class Asked(Carried):
    """Answers the histories of a table."""

    def __init__(
        self,
        table: HistoryTable,
        reached: Reached | None = None,
        panes: Mapping[int, PaneRows] | None = None,
    ) -> None:
        super().__init__(table, reached)
        self._panes = {} if panes is None else panes
        self._weaves: dict[str, Woven] = {}
        self._known: dict[int, Known | None] = {}
        self._numbers: dict[tuple[str, ...], Int64] = {}
        self.overflows = self.folded = self.cut = self.dropped = 0
        self._told: dict[str, UInt8] = {}

    def values(self, history: HistoryColumn) -> tuple[Int64, UInt8, bool]:
        """(slots, null flags, whether they are numbers of texts) at the new events, in their order."""
        windows = self.windows(history)
        if history.is_single and history.by:
            known = remembered(history, self.table, windows, self.member(history))
            windows, cut = known.windows, known.cut
            self.dropped += int(known.dropped.sum())
        else:
            cut = self._cut(history, windows)
        found, nulls = self._ordered(history, windows)
        if windows.folded.any():
            found, nulls = self._with_folded(history, windows, found, nulls)
            self.folded += int(windows.folded.sum())
        values, flags = np.empty(len(found), np.int64), np.empty(len(found), np.uint8)
        values[windows.at], flags[windows.at] = found, nulls
        self._tell(history.identity, windows, windows.folded)
        self.cut += int(cut.sum())
        self._tell(history.identity + CUT, windows, cut)
        return values, flags, history.expr.type.is_text

    def _tell(self, name: str, windows: Members, flags: UInt8) -> None:
        if flags.any():
            self._told[name] = np.empty(len(flags), np.uint8)
            self._told[name][windows.at] = flags

    def _cut(self, history: HistoryColumn, windows: Members) -> UInt8:
        """In the order of the windows 1 where events of the sub-key may be forgotten."""
        known = self.known(history) if windows.folded.any() else None
        if known is None:
            return np.zeros(len(windows.at), np.uint8)
        new = self.table.new_rows[windows.at]
        may_lack = known.lacking_ms[new] >= opens_pane(history, self.table.time[new])
        return windows.folded * may_lack.astype(np.uint8)

    def told(self) -> pa.Array:
        """text[Q]: which values at each new event lack older events or have them folded (columns.TOLD)."""
        return told_texts(self._told, len(self.table.new_rows))

    # ---------------------------------------------------------------------------------------------------- panes

    def _woven(self, history: HistoryColumn) -> Woven:
        """The panes of a history, the members that are in none yet, and windows in their order."""
        if history.identity not in self._weaves:
            self._weaves[history.identity] = self._weave(history)
        return self._weaves[history.identity]

    def _weave(self, history: HistoryColumn) -> Woven:
        table, windows = self.table, self.windows(history)
        rows, segment = windows.rows, windows.segment
        members = members_of(history, segment[rows], table.time[rows], self._values(history, rows), table.texts)
        new = table.new_rows[windows.at]
        old = self._panes.get(history.panes, NO_PANES)
        known = self.known(history)
        if history.by:
            asking = self._asking(history)
            old = in_segments(old, table.key[asking.rows], asking.sub, segment[asking.rows])
        asked = PaneWindows(segment[new], opens_pane(history, table.time[new]), windows.highs)
        if known is not None:  # what is forgotten is laid before all panes and windows
            before_ms = np.concatenate([old.pane_ms, members.pane_ms, asked.opens]).min() - 1
            members = replace(members, pane_ms=np.where(known.forgotten[rows], before_ms, members.pane_ms))
        found = woven(old, members, table.new_at[rows] >= 0, asked)
        if known is None:
            return found
        places = np.append(found.members, len(found.rows))
        at = self._first_known(known, windows)
        return replace(found, lows=_no_earlier(found.lows, np.where(at < 0, 0, places[at]), found.highs))

    def _first_known(self, known: Known, windows: Members) -> Int64:
        """By window the first of the members of its value since it was unknown the last time; -1: it never was."""
        member = np.full(len(self.table.time), len(windows.rows), np.int64)
        member[windows.rows] = np.arange(len(windows.rows))
        begins = known.begins[self.table.new_rows[windows.at]]
        found: Int64 = np.where(begins < 0, -1, member[begins])
        return found

    def known(self, history: HistoryColumn, *, always: bool = False) -> Known | None:
        """What is known of the values of its sub-key; None if it is all, unless it is asked for in any case."""
        if not history.by:
            return None
        if history.known not in self._known:
            asking, segment = self._asking(history), self.windows(history).segment
            before = self._panes.get(history.known, NO_PANES)
            before = of_panes(before, self._panes.get(history.panes, NO_PANES))
            is_asked = always or has_many(self.table, asking, segment[asking.rows], before)
            self._known[history.known] = known_values(self.table, asking, before) if is_asked else None
        return self._known[history.known]

    def _asking(self, history: HistoryColumn) -> Asking:
        """The rows that ask for the past of its sub-key, or count for it."""
        table, member = self.table, self.member(history)
        asks = (member != 0) | (table.new_at >= 0)
        for column in history.by:
            asks &= table.nulls[column] == 0
        rows = np.flatnonzero(asks)
        return Asking(rows, member[rows], self._subs_of(history)[rows])

    def _subs_of(self, history: HistoryColumn) -> Int64:
        """The number of each row's sub-key."""
        if history.expr.by not in self._numbers:
            self._numbers[history.expr.by] = sub_numbers([self.table.fields[name] for name in history.expr.by])
        return self._numbers[history.expr.by]

    def _with_folded(
        self, history: HistoryColumn, windows: Members, values: Int64, nulls: UInt8
    ) -> tuple[Int64, UInt8]:
        """The values and null flags, those of windows with more events than the limit with the older ones folded."""
        is_folded, never = windows.folded.astype(bool), np.zeros(len(values), np.uint8)
        if history.is_first_of_window:
            wide, flags = self._of_one_event(history, self._without_forgotten(history))
            return np.where(is_folded, wide, values), np.where(is_folded, flags, nulls)
        found = self._woven(history)
        if history.is_extreme:
            wide, flags = extreme_in(history, found), (found.lows == found.highs).astype(np.uint8)
        elif history.is_float_spread:
            wide, counts = float_spreads_in(found)
            flags = (counts == 0).astype(np.uint8)
        elif history.is_float_sum:
            total, counts = float_sums_in(found, windows)
            flags = never if history.expr.fn == "sum" else (counts == 0).astype(np.uint8)
            wide, flags = self._sum(history.expr.fn, total, counts, flags)
        elif history.expr.fn == "count":
            wide, flags = counts_in(found), never
        elif history.tally:
            sums = tallies_in(history, found, self._values(history, windows.rows))
            sums[windows.folded == 0] = 0  # their overflows are counted already
            wide, flags = self._of_tallies(history, sums, sums[:, 0])
        else:
            wide, flags = values_of(history, found)
        return np.where(is_folded, wide, values), np.where(is_folded, flags, nulls)

    def _without_forgotten(self, history: HistoryColumn) -> Members:
        """The windows of a `first`, with their far edge at a pane."""
        windows, known = self.windows(history, rounded=True), self.known(history)
        if known is None:
            return windows
        forgotten = np.flatnonzero(known.forgotten[windows.rows])
        behind = np.zeros(int(windows.segment.max(initial=-1)) + 1, np.int64)
        behind[windows.segment[windows.rows[forgotten]]] = forgotten + 1  # of those of a value the last one stays
        at, segment = self._first_known(known, windows), windows.segment[self.table.new_rows[windows.at]]
        least = np.where(at < 0, behind[segment], at)
        return replace(windows, lows=_no_earlier(windows.lows, least, windows.highs))

    def still_counting(self, history: HistoryColumn) -> UInt8:
        """1 for the rows that count for what comes behind all of them: not those of values that are forgotten."""
        known, member = self.known(history, always=True), self.member(history)
        if known is not None:
            rows = np.flatnonzero(member)
            sub, table = self._subs_of(history)[rows], self.table
            member = np.zeros_like(member)
            member[rows] = known.still_of(table.key[rows], sub, rows, table.time[rows])
        return member

    def fold(self, history: HistoryColumn, rows: Int64) -> PaneRows:
        """These rows of the table as panes of a history."""
        table, values = self.table, self._values(history, rows)
        found = members_of(history, table.key[rows], table.time[rows], values, table.texts)
        if history.by:
            found = replace(found, sub=self._subs_of(history)[rows])
        return folded(history, found, values)

    def panes_after(self, histories: Iterable[HistoryColumn], keys: pa.Array, watermark_ms: int) -> Iterator[Segment]:
        """What has come into the panes of these histories in the call; `keys` are the call's."""
        for history in histories:
            found = self._woven(history)
            yield from appended_panes(history, found.rows.take(found.members), keys, watermark_ms)

    # ------------------------------------------------------------------------------------------------ functions

    def _ordered(self, history: HistoryColumn, windows: Members) -> tuple[Int64, UInt8]:
        """Values and null flags in the order of the windows."""
        expr = history.expr
        if history.is_approximate:
            return values_of(history, self._woven(history))
        if history.has_float_tally and self._is_tallied(history):
            return self._of_float_tally(history, windows)
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
                # In the window of one key the pairs of key and value differ where the values do.
                pairs, _ = self.table.segments((*history.by, history.value))
                codes = pairs[windows.rows]
                kernels.count_distinct(codes, int(codes.max(initial=-1)) + 1, lows, highs, out)
                if self.is_counted(history):
                    out += self._others(history)[self.table.key[self.table.new_rows][windows.at]]
                return out, never
            case "min" | "max":
                return extreme(values, type_, windows, is_least=expr.fn == "min"), empty
            case "median" | "percentile" if self.is_ranked(history):
                counts, chosen = self._ranked(history, windows, type_)
                return as_floats(sortable(chosen, type_), type_).view(np.int64), (counts == 0).astype(np.uint8)
            case "median" | "percentile":
                chosen = of_rank(sortable(values, type_), history.percent, lows, highs)
                return as_floats(sortable(chosen, type_), type_).view(np.int64), empty
            case "stddev" if type_.is_float:
                return float_spreads(values, windows), empty
            case "sum" | "avg" if type_.is_float:
                return self._sum(expr.fn, float_sums(values, windows), counts, never if expr.fn == "sum" else empty)
            case _:
                sums = of_windows(values, lows, highs, tally_width(history.tally)) if found is None else found
                return self._of_tallies(history, sums, counts)

    def _of_float_tally(self, history: HistoryColumn, windows: Members) -> tuple[Int64, UInt8]:
        """Slots and null flags from sums of floats that are carried, in the order of the windows."""
        fn, segment = history.expr.fn, windows.segment[self.table.new_rows][windows.at]
        moves = self._moves(history, None)
        counts, found = float_windows(self._tally(history), moves, segment, windows.lows, windows.highs)
        empty, never = (counts == 0).astype(np.uint8), np.zeros(len(counts), np.uint8)
        match fn:
            case "count":
                return counts, never
            case "stddev":
                return found.view(np.int64), empty
            case _:
                return self._sum(fn, found, counts, never if fn == "sum" else empty)

    def _of_tallies(self, history: HistoryColumn, sums: Int64, counts: Int64) -> tuple[Int64, UInt8]:
        """Slots and null flags from the tally of each window."""
        fn, argument = history.expr.fn, history.expr.argument
        empty, never = (counts == 0).astype(np.uint8), np.zeros(len(counts), np.uint8)
        if fn == "count" or argument is None:
            return counts, never
        if fn == "stddev":
            return (spreads(sums) / float(10**argument.type.scale)).view(np.int64), empty
        return self._whole_sum(fn, whole_sums(sums), argument.type, counts, never if fn == "sum" else empty)

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


def _no_earlier(lows: Int64, least: Int64, highs: Int64) -> Int64:
    """Where windows begin that begin at `least` or later."""
    found: Int64 = np.maximum(lows, np.minimum(least, highs))
    return found
