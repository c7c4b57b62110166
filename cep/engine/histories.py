"""Kept events + the new ones → the value of every history at each new event, and what is to be kept from now on.

The table of one call holds, key by key, the kept events that windows reach of the keys that have new ones, then those
new ones in their order (time, event id). A window is closed at its later end by the event itself: an event of the
same time that comes later in the order is not in it, so that the value does not depend on how the events are cut into
batches.

    windows      count: how many   sum, avg: differences of running totals (integers), exact sums (floats)
                 min, max, distinct, percentile: two pointers (kernels/histories.py)

Tested by: tests/engine/test_histories.py, tests/engine/test_histories_sql.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import Type
from cep.engine.calendar import unit_starts
from cep.engine.history_rows import HistoryRows, block_of, concat_rows
from cep.engine.history_state import Histories, Segment, segment_of, span_code, without_over
from cep.engine.history_table import HistoryTable, NewEvents, build_table, dense_codes
from cep.kernels import histories as kernels
from cep.kernels.layout import Int32, Int64, UInt8
from cep.lang.ir import HistoryWindow
from cep.nfa.columns import cut_bit
from cep.nfa.histories import HistoryColumn, HistoryPlan

# What one event decides alone needs no count of how many there are.
_NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True)
class Past:
    """What histories give for the new events of one call, in their order.

    `slots`: by column of the event table its values and null flags; `texts`: the same for text. `histories` are what is
    kept now, of all keys. `cut`: the `cut_bit`s of the histories whose values lack older events. `overflows`
    counts sums that became null, `folded` values that lack older events.
    """

    slots: Mapping[int, tuple[Int64, UInt8]]
    texts: Mapping[int, pa.Array]
    histories: Histories
    cut: Int64
    overflows: int
    folded: int


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """The keys of one call, text[K], and the number among them of each key of its histories."""

    keys: pa.Array
    of_histories: Int32


def look_back(plan: HistoryPlan, histories: Histories, known: KnownKeys, new: NewEvents, watermark_ms: int) -> Past:
    """Work out every history of a program at every new event. Inputs are left unchanged.

    Cost: O(N) for each history over the new events and the events of their keys in the segments that its window still
    reaches, and O(N log N) for percentiles.
    """
    is_end = watermark_ms >= TIME_MS_MAX  # nothing comes after the end of the input
    alive = () if is_end else without_over(histories.segments, plan.span_max_ms, watermark_ms)
    if not len(new.batch):
        return Past({}, {}, replace(histories, segments=alive), np.zeros(0, np.int64), 0, 0)
    touched = np.zeros(new.keys_count, bool)
    touched[new.key] = True
    pinned = histories.pinned.of_keys(known.of_histories[histories.pinned.key])
    own = touched[pinned.key]
    asked_pinned = pinned.take(np.flatnonzero(own))
    opened = _opened(plan, histories, int(new.batch.time_ms.min()))
    stored = concat_rows([asked_pinned, *_touched_rows(opened, known.keys, touched)])
    table = build_table(plan, stored, len(asked_pinned), new)
    asked = Asked(table)
    slots: dict[int, tuple[Int64, UInt8]] = {}
    texts: dict[int, pa.Array] = {}
    for history in plan.histories:
        values, nulls, is_text = asked.values(history)
        if is_text:
            texts[history.number] = table.texts.take(pa.array(values, mask=nulls.astype(bool)))
        else:
            slots[history.number] = values, nulls
    after = Histories()
    if not is_end:
        rest = _unexpired(plan, pinned.take(np.flatnonzero(~own)), watermark_ms)
        block = block_of(known.keys, concat_rows([rest, _pinned(plan, table, asked, watermark_ms)]))
        segments = (*alive, *_appended(plan, table, asked, known.keys, watermark_ms))
        after = replace(histories, keys=block.keys, pinned=block.rows, segments=segments)
    return Past(slots, texts, after, asked.cut, table.overflows + asked.overflows, asked.folded)


def _opened(plan: HistoryPlan, histories: Histories, time_ms: int) -> list[Segment]:
    """The segments that the window of an event at that time or later may reach into."""
    first = np.array([time_ms], np.int64)
    reach_ms = min((int(opens_ms(h.expr.window, first)[0]) for h in plan.histories if not h.is_single), default=time_ms)
    return [segment for segment in histories.segments if segment.last_ms > reach_ms]


def _touched_rows(segments: Sequence[Segment], keys: pa.Array, touched: np.ndarray) -> list[HistoryRows]:
    """The events of the segments that belong to the touched ones of these keys."""
    if not segments:
        return []
    blocks = [segment.load() for segment in segments]
    numbers = pc.index_in(pa.concat_arrays([block.keys for block in blocks]), value_set=keys).fill_null(-1)
    known, at = np.asarray(numbers), 0
    is_touched = np.append(touched, False)  # -1: not of this call
    found = []
    for block in blocks:
        key = known[at : at + len(block.keys)][block.rows.key]
        at += len(block.keys)
        rows = np.flatnonzero(is_touched[key])
        found.append(block.rows.of_keys(key).take(rows))
    return found


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

    def __init__(self, table: HistoryTable) -> None:
        self.table = table
        self.overflows = self.folded = 0
        self.cut = np.zeros(len(table.new_rows), np.int64)
        self._members: dict[tuple[int, int, tuple[int, ...], bool], UInt8] = {}
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
        """1 for the rows that count; nulls of the argument do not, except that the last event is the last one."""
        table = self.table
        value = -1 if history.expr.fn == "last" else history.value
        key = (history.member, value, history.by, history.is_single)
        if key not in self._members:
            mask = table.member(history.member)
            # What one event decides looks at pinned events, everything else at those of segments.
            mask &= (table.is_pinned == history.is_single) | (table.new_at >= 0)
            for column in (*history.by, *((value,) if value >= 0 else ())):
                mask &= table.nulls[column] == 0
            self._members[key] = mask
        return self._members[key]

    def windows(self, history: HistoryColumn) -> _Members:
        expr, table = history.expr, self.table
        # Without a window the event under test is left out, but a value is first seen now if it was never before.
        previous = expr.fn != "first_seen" if expr.window is None else expr.window.previous
        limit = _NO_LIMIT if history.events_max == 1 else history.events_max
        value = -1 if expr.fn == "last" else history.value
        window = None if expr.window is None else (expr.window.ms, expr.window.calendar, expr.window.zone)
        key = (history.member, value, history.by, window, previous, limit)  # the limit tells single ones
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

    # ------------------------------------------------------------------------------------------------ functions

    def _ordered(self, history: HistoryColumn, windows: _Members) -> tuple[Int64, UInt8]:
        """Values and null flags in the order of the windows."""
        expr = history.expr
        lows, highs = windows.lows, windows.highs
        counts = highs - lows
        empty = (counts == 0).astype(np.uint8)
        never = np.zeros(len(counts), np.uint8)
        match expr.fn:
            case "count":
                return counts, never
            case "exists":
                return (counts > 0).astype(np.int64), never
            case "first_seen":
                return self._since_first(windows), empty
            case "last":
                return self._last(history, windows)
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
                return self._sum(expr.fn, values, type_, windows, never if expr.fn == "sum" else empty)

    def _last(self, history: HistoryColumn, windows: _Members) -> tuple[Int64, UInt8]:
        some = windows.highs > windows.lows
        rows = np.where(some, windows.rows[windows.highs - 1] if len(windows.rows) else 0, 0)
        nulls = np.where(some, self.table.nulls[history.value, rows], 1).astype(np.uint8)
        return self.table.columns[history.value, rows], nulls

    def _since_first(self, windows: _Members) -> Int64:
        now = self.table.time[self.table.new_rows][windows.at]
        if not len(windows.rows):
            return np.zeros(len(now), np.int64)
        first = windows.rows[np.minimum(windows.lows, len(windows.rows) - 1)]
        since: Int64 = now - self.table.time[first]
        return since

    def _sum(self, fn: str, values: Int64, type_: Type, windows: _Members, nulls: UInt8) -> tuple[Int64, UInt8]:
        counts = windows.highs - windows.lows
        if type_.is_float:
            total = _float_sums(values, windows)
        else:
            whole, fits = _integer_sums(values, windows)
            self.overflows += int((~fits).sum())
            nulls = nulls | ~fits
            if fn == "sum":
                return whole, nulls
            total = whole / float(10**type_.scale)
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


def opens_ms(window: HistoryWindow | None, time_ms: Int64) -> Int64:
    """For each time, that after which events are in the window of an event then."""
    if window is None:
        return np.full(len(time_ms), TIME_MS_MIN, np.int64)
    if window.calendar is not None:
        return unit_starts(window.calendar, window.zone, time_ms) - 1
    assert isinstance(window.ms, int), "parameters are bound before compilation"
    return time_ms - window.ms


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


def _pinned(plan: HistoryPlan, table: HistoryTable, asked: Asked, watermark_ms: int) -> HistoryRows:
    """The events of the table that alone decide what later events ask for."""
    kept = np.zeros(len(table.time), np.uint8)
    latest_ms = np.maximum(table.last_times(), watermark_ms)
    for history in plan.histories:
        if history.is_single:
            windows = asked.windows(history)
            opens = opens_ms(history.expr.window, latest_ms)[table.key]
            kernels.mark_kept(windows.rows, windows.segment, table.time, opens, 1, history.is_first, kept)
    rows = np.flatnonzero(kept)
    return table.take(rows, np.zeros(len(rows), np.int8))


def _appended(
    plan: HistoryPlan, table: HistoryTable, asked: Asked, keys: pa.Array, watermark_ms: int
) -> Iterator[Segment]:
    """The new events that windows of later ones may hold, or that the schema wants kept."""
    span_ms = np.zeros(len(table.time), np.int64)
    for history in plan.histories:
        if not history.is_single:
            np.maximum(span_ms, asked.member(history) * np.int64(history.span_ms), out=span_ms)
    for code, retained_ms in plan.retained_ms.items():
        np.maximum(span_ms, (table.event_type == code) * np.int64(retained_ms), out=span_ms)
    is_wanted = (span_ms > 0) & (np.minimum(table.time + span_ms, TIME_MS_MAX) > watermark_ms)
    rows = np.flatnonzero(is_wanted & (table.new_at >= 0))
    if len(rows):
        different, inverse = np.unique(span_ms[rows], return_inverse=True)
        codes = np.array([span_code(ms) for ms in different.tolist()], np.int8)
        yield segment_of(block_of(keys, table.take(rows, codes[inverse])), int(different[-1]))


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
