"""Kept events + the new ones → the value of every history at each new event, and what is to be kept from now on.

The table of one call holds, key by key, the kept events that windows reach of the keys that have new ones, then those
new ones in their order (time, event id). A window is closed at its later end by the event itself: an event of the
same time that comes later in the order is not in it, so that the value does not depend on how the events are cut into
batches.

    windows      count, sum, avg: tallies that are carried (tallies.py); of floats and by sub-keys sums of the window
                 min, max, distinct, percentile: two pointers (kernels/histories.py)

Tested by: tests/engine/test_histories.py, tests/engine/test_histories_sql.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from cep.base.limits import HISTORY_VALUES_MAX, TIME_MS_MAX
from cep.base.schema import Type
from cep.engine.calendar import opens_ms
from cep.engine.history_reach import Reached, kept_for, reach
from cep.engine.history_rows import HistoryRows, block_of, concat_rows, sort_rows
from cep.engine.history_state import TALLY_WIDTH, Histories, PageFacts, Segment, segment_of, span_codes, without_over
from cep.engine.history_table import HistoryTable, NewEvents, build_table, dense_codes
from cep.engine.tallies import Moves, at_clock, at_events, whole_sums
from cep.kernels import histories as kernels
from cep.kernels.layout import Int32, Int64, UInt8
from cep.lists.timeline import Lists
from cep.nfa.columns import cut_bit
from cep.nfa.histories import HistoryColumn, HistoryPlan

# What one event decides alone needs no count of how many there are.
_NO_LIMIT = 2**62
_NO_TALLIES: Mapping[str, Int64] = {}
_OF_ONE_EVENT = ("first", "last")


@dataclass(frozen=True, slots=True)
class Past:
    """What histories give for the new events of one call, in their order.

    `slots`: by column of the event table its values and null flags; `texts`: the same for text. `histories` are what is
    kept now, of all keys. `cut`: the `cut_bit`s of the histories whose values lack older events. `overflows`
    counts sums that became null, `folded` values that lack older events, `dropped` single events beyond their limit.
    """

    slots: Mapping[int, tuple[Int64, UInt8]]
    texts: Mapping[int, pa.Array]
    histories: Histories
    cut: Int64
    overflows: int = 0
    folded: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """The keys of one call, text[K], and the number among them of each key of its histories."""

    keys: pa.Array
    of_histories: Int32


def look_back(
    plan: HistoryPlan, lists: Lists, histories: Histories, known: KnownKeys, new: NewEvents, watermark_ms: int
) -> Past:
    """Work out every history of a program at every new event. Inputs are left unchanged.

    Cost: O(N) for each history over the new events and the past ones that are looked at (history_reach.py), and
    O(N log N) for percentiles.
    """
    if not len(new.batch):
        return Past({}, {}, histories, np.zeros(0, np.int64))
    clock_ms = max(watermark_ms, histories.clock_max_ms)
    reached = reach(plan, histories, known.keys, new, clock_ms)
    new = replace(new, keys_count=len(reached.keys))
    touched = np.zeros(new.keys_count, bool)
    touched[new.key] = True
    pinned = histories.pinned.of_keys(known.of_histories[histories.pinned.key])
    own = touched[pinned.key]
    asked_pinned = pinned.take(np.flatnonzero(own))
    stored = concat_rows([asked_pinned, reached.rows])
    table = build_table(plan, lists, stored, len(asked_pinned), new, mixed=bool(reached.is_strange.any()))
    asked = Asked(table, reached, {name: _of_call(t, known, new.keys_count) for name, t in histories.tallies.items()})
    slots: dict[int, tuple[Int64, UInt8]] = {}
    texts: dict[int, pa.Array] = {}
    for history in plan.histories:
        values, nulls, is_text = asked.values(history)
        if is_text:
            texts[history.number] = table.texts.take(pa.array(values, mask=nulls.astype(bool)))
        else:
            slots[history.number] = values, nulls
    after, dropped = Histories(), 0
    if watermark_ms < TIME_MS_MAX:  # else nothing comes any more
        rest = _unexpired(plan, pinned.take(np.flatnonzero(~own)), watermark_ms)
        pins, dropped = _pinned(plan, table, asked, watermark_ms)
        rows = concat_rows([rest, pins])
        if reached.is_strange.any():  # some of what is pinned now is older than what was
            rows = rows.take(np.argsort(rows.time_ms, kind="stable"))
        tallies = {h.tally: asked.tally_after(h, clock_ms) for h in plan.histories if h.tally and reached.is_tallied}
        span_ms = _span_ms(plan, table, asked)
        longer = _kept_longer(reached, table, span_ms)
        old = without_over([longer.get(s, s) for s in histories.segments], plan.span_max_ms, watermark_ms)
        segments = (*old, *_appended(table, span_ms, reached.keys, watermark_ms))
        facts = PageFacts(clock_ms, plan.identities, frozenset(tallies)) if reached.is_tallied else PageFacts()
        after = _with_keys(reached.keys, Histories(pa.nulls(0), rows, segments, histories.loose, facts, tallies))
    return Past(slots, texts, after, asked.cut, table.overflows + asked.overflows, asked.folded, dropped)


def _of_call(tally: Int64, known: KnownKeys, keys_count: int) -> Int64:
    """A tally by the numbers that keys have in a call."""
    found = np.zeros((keys_count, TALLY_WIDTH), np.int64)
    found[known.of_histories] = tally
    return found


def _with_keys(keys: pa.Array, found: Histories) -> Histories:
    """With those of the call's keys that have something."""
    used = np.zeros(len(keys), bool)
    used[found.pinned.key] = True
    for tally in found.tallies.values():
        used |= tally[:, 0] != 0
    number = (np.cumsum(used) - 1).astype(np.int32)
    pinned = sort_rows(found.pinned.of_keys(number[found.pinned.key]))
    tallies = {name: tally[used] for name, tally in found.tallies.items()}
    return replace(found, keys=keys.filter(pa.array(used)), pinned=pinned, tallies=tallies)


def _kept_longer(reached: Reached, table: HistoryTable, span_ms: Int64) -> dict[Segment, Segment]:
    """Segments of strange pages that are kept longer now."""
    if not reached.is_strange.any():
        return {}
    by_row = np.zeros(len(reached.rows), np.int64)
    own = table.old_rows
    by_row[table.source[own] - table.pinned_count] = span_ms[own]
    return kept_for(reached, span_codes(by_row), by_row)


# ------------------------------------------------------------------------------------------------------- asked


@dataclass(frozen=True, slots=True)
class _Members:
    """The rows that count for some histories, by (sub-)key, and the window of each new event (kernels/histories.py)."""

    rows: Int64
    segment: Int64
    lows: Int64
    highs: Int64
    at: Int64
    folded: UInt8


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
        self._windows: dict[object, _Members] = {}

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
        key = (history.member, value, history.by, history.identity if history.is_single else "")
        if key not in self._members:
            mask = table.member(history.member)
            mask &= self._is_looked_at(history)
            for column in (*history.by, *((value,) if value >= 0 else ())):
                mask &= table.nulls[column] == 0
            self._members[key] = mask
        return self._members[key]

    def _is_looked_at(self, history: HistoryColumn) -> np.ndarray:
        """What one event decides looks at pinned events, everything else at those of segments.

        Of pages that did not know such a history it looks at both: there is no pinned event for it yet.
        """
        table, reached = self.table, self._reached
        found: np.ndarray = (table.is_pinned == history.is_single) | (table.new_at >= 0)
        if history.is_single and reached is not None and reached.is_strange.any():
            old = table.old_rows
            page = reached.page[table.source[old] - table.pinned_count]
            found[old] = np.array([history.identity not in fact.identities for fact in reached.facts])[page]
        return found

    def windows(self, history: HistoryColumn) -> _Members:
        expr, table = history.expr, self.table
        # Without a window the event under test is left out, but a value is first seen now if it was never before.
        previous = expr.fn != "first_seen" if expr.window is None else expr.window.previous
        limit = _NO_LIMIT if history.is_single or self._is_tallied(history) else history.events_max
        value = -1 if expr.fn in _OF_ONE_EVENT else history.value
        window = None if expr.window is None else (expr.window.ms, expr.window.calendar, expr.window.zone)
        key = (
            history.member,
            value,
            history.by,
            window,
            previous,
            limit,
            history.identity if history.is_single else "",
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
            self._windows[key] = _Members(members[:found], segment, lows, highs, at, folded)
        return self._windows[key]

    # -------------------------------------------------------------------------------------------------- tallies

    def _is_tallied(self, history: HistoryColumn) -> bool:
        return bool(history.tally) and self._reached is not None and self._reached.is_tallied

    def tally_after(self, history: HistoryColumn, clock_ms: int) -> Int64:
        """The history's tally after the call."""
        return at_clock(self._carried(history), self._moves(history, clock_ms))

    def _tallied(self, history: HistoryColumn, windows: _Members) -> Int64:
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

    def _ordered(self, history: HistoryColumn, windows: _Members) -> tuple[Int64, UInt8]:
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
                return _extreme(values, type_, windows, is_least=expr.fn == "min"), empty
            case "median" | "percentile":
                return self._percentile(history, values, type_, windows), empty
            case "stddev":
                return _stddev(values, type_, windows), empty
            case _:
                nulls = never if expr.fn == "sum" else empty
                if type_.is_float:
                    return self._sum(expr.fn, _float_sums(values, windows), counts, nulls)
                sums = whole_sums(found) if found is not None else _integer_sums(values, windows)
                return self._whole_sum(expr.fn, sums, type_, counts, nulls)

    def _of_one_event(self, history: HistoryColumn, windows: _Members) -> tuple[Int64, UInt8]:
        """The field of the first or the last event of each window."""
        some = windows.highs > windows.lows
        at = windows.lows if history.expr.fn == "first" else windows.highs - 1
        rows = windows.rows[np.where(some, at, 0)] if len(windows.rows) else np.zeros(len(some), np.int64)
        nulls = np.where(some, self.table.nulls[history.value, rows], 1).astype(np.uint8)
        return self.table.columns[history.value, rows], nulls

    def _since_first(self, windows: _Members) -> Int64:
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

    def _percentile(self, history: HistoryColumn, values: Int64, type_: Type, windows: _Members) -> Int64:
        percent = 50 if history.expr.percent is None else getattr(history.expr.percent, "value", None)
        assert isinstance(percent, int), "parameters are bound before compilation"
        different, codes = np.unique(sortable(values, type_), return_inverse=True)
        out = np.empty(len(windows.lows), np.int64)
        kernels.find_rank(codes, len(different), percent, windows.lows, windows.highs, out)
        chosen = different[np.maximum(out, 0)] if len(different) else np.zeros(len(out), np.int64)
        return _as_floats(sortable(chosen, type_), type_).view(np.int64)


def sortable(values: Int64, type_: Type) -> Int64:
    """Integers in the order of the values, whose slots these are; applied twice it is the slots again."""
    if not type_.is_float:
        return values
    flipped: Int64 = values ^ ((values >> 63) & np.int64(0x7FFFFFFFFFFFFFFF))
    return flipped


def _extreme(values: Int64, type_: Type, windows: _Members, *, is_least: bool) -> Int64:
    ordered = sortable(values, type_)
    out = np.empty(len(windows.lows), np.int64)
    kernels.least(ordered if is_least else ~ordered, windows.lows, windows.highs, out)
    return values[np.maximum(out, 0)] if len(values) else np.zeros(len(out), np.int64)


def _integer_sums(values: Int64, windows: _Members) -> tuple[Int64, np.ndarray]:
    """Exact sums and whether they fit 64 bits. The halves of a value are added apart, so nothing wraps on the way."""
    upper = np.concatenate([np.zeros(1, np.int64), np.cumsum(values >> 32)])
    lower = np.concatenate([np.zeros(1, np.int64), np.cumsum(values & 0xFFFFFFFF)])
    low = lower[windows.highs] - lower[windows.lows]
    high = upper[windows.highs] - upper[windows.lows] + (low >> 32)
    fits = (high >= -(2**31)) & (high < 2**31)
    return (np.where(fits, high, 0) << 32) | (low & 0xFFFFFFFF), fits


def _as_floats(values: Int64, type_: Type) -> np.ndarray:
    return values.view(np.float64) if type_.is_float else values / float(10**type_.scale)


def _float_sums(values: Int64, windows: _Members) -> np.ndarray:
    floats = values.view(np.float64)
    finite = np.isfinite(floats)
    out = np.empty(len(windows.lows), np.float64)
    kernels.sum_floats(np.where(finite, values, 0), windows.lows, windows.highs, out)
    if not finite.all():
        for special in (np.inf, -np.inf, np.nan):
            has = np.isnan(floats) if special != special else floats == special  # noqa: PLR0124 nan alone differs
            out = np.where(_any_in(has, windows), out + special, out)
    return out


def _any_in(flags: np.ndarray, windows: _Members) -> np.ndarray:
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(flags)])
    found: np.ndarray = running[windows.highs] > running[windows.lows]
    return found


def _stddev(values: Int64, type_: Type, windows: _Members) -> Int64:
    floats = np.ascontiguousarray(_as_floats(values, type_))
    finite = np.isfinite(floats)
    out = np.empty(len(windows.lows), np.float64)
    kernels.spread_floats(np.where(finite, floats, 0.0).view(np.int64), windows.lows, windows.highs, out)
    return np.where(_any_in(~finite, windows), np.nan, out).view(np.int64)


# -------------------------------------------------------------------------------------------------------- kept


def _pinned(plan: HistoryPlan, table: HistoryTable, asked: Asked, watermark_ms: int) -> tuple[HistoryRows, int]:
    """The events of the table that alone decide what later events ask for; and how many are dropped by the limit."""
    kept = np.zeros(len(table.time), np.uint8)
    latest_ms = np.maximum(table.last_times(), watermark_ms)
    dropped = 0
    for history in plan.histories:
        if history.is_single:
            windows = asked.windows(history)
            opens = opens_ms(history.expr.window, latest_ms)[table.key]
            own = np.zeros(len(table.time), np.uint8)
            kernels.mark_kept(windows.rows, windows.segment, table.time, opens, 1, history.is_first, own)
            dropped += _limit(own, table.key, is_first=history.is_first) if history.by else 0
            kept |= own
    rows = np.flatnonzero(kept)
    return table.take(rows, np.zeros(len(rows), np.int8)), dropped


def _limit(own: UInt8, key: Int64, *, is_first: bool) -> int:
    """Clear the flags of a key's values beyond the limit: the newest ones, or else the oldest; returns how many."""
    rows = np.flatnonzero(own)
    counts = np.bincount(key[rows])
    if counts.max(initial=0) <= HISTORY_VALUES_MAX:
        return 0
    starts = np.cumsum(counts) - counts
    rank = np.arange(len(rows)) - starts[key[rows]]
    beyond = rank >= HISTORY_VALUES_MAX if is_first else rank < (counts - HISTORY_VALUES_MAX)[key[rows]]
    own[rows[beyond]] = 0
    return int(beyond.sum())


def _span_ms(plan: HistoryPlan, table: HistoryTable, asked: Asked) -> Int64:
    """How long after each row windows may hold it, or the schema wants it kept; 0: not at all."""
    found = np.zeros(len(table.time), np.int64)
    for history in plan.histories:
        if not history.is_single:
            np.maximum(found, asked.member(history) * np.int64(history.span_ms), out=found)
    for code, retained_ms in plan.retained_ms.items():
        np.maximum(found, (table.event_type == code) * np.int64(retained_ms), out=found)
    return found


def _appended(table: HistoryTable, span_ms: Int64, keys: pa.Array, watermark_ms: int) -> Iterator[Segment]:
    """The new events that are kept."""
    is_wanted = (span_ms > 0) & (np.minimum(table.time + span_ms, TIME_MS_MAX) > watermark_ms)
    rows = np.flatnonzero(is_wanted & (table.new_at >= 0))
    if len(rows):
        codes = span_codes(span_ms[rows])
        yield segment_of(block_of(keys, table.take(rows, codes)), int(span_ms[rows].max()))


def _unexpired(plan: HistoryPlan, pinned: HistoryRows, watermark_ms: int) -> HistoryRows:
    """Without the events that no window can hold any more, for keys that have no new ones."""
    over = _pinned_until_ms(plan, pinned) <= watermark_ms
    return pinned.take(np.flatnonzero(~over)) if over.any() else pinned


def _pinned_until_ms(plan: HistoryPlan, pinned: HistoryRows) -> Int64:
    """For each event the time of the first event that can no longer ask for it."""
    spans = np.zeros(plan.types_count, np.int64)
    for history in plan.histories:
        if history.is_single:
            own = slice(None) if history.event_type < 0 else slice(history.event_type, history.event_type + 1)
            spans[own] = np.maximum(spans[own], history.span_ms)
    found: Int64 = np.minimum(pinned.time_ms + spans[pinned.event_type], TIME_MS_MAX)
    return found


def over_ms(plan: HistoryPlan | None, histories: Histories) -> int | None:
    """When the last of what is kept is out of every window; None if nothing is kept, or nobody asks for it."""
    if plan is None or not histories:
        return None
    times = [min(s.until_ms, s.last_ms + plan.span_max_ms) for s in histories.segments]
    times += [int(_pinned_until_ms(plan, histories.pinned).max())] if len(histories.pinned) else []
    return max(times)
