"""Rows of busy keys → the sub-keys of which a key still knows the past: those that have come last.

A key may have a million merchants in a window. A key with more events than are retained one by one (numbers/folds.py)
knows the `HISTORY_VALUES_MAX` values that have come last. Of those of the same time it knows the ones with the greater
numbers (sub_keys.py). All events of other values are forgotten: when one comes again, it begins anew. So a value counts
too little, never too much, and what came among the newest events of the limit is always there.

Which values these are follows from the order of events alone (known_values.py), so it is the same in a replay and
however events were cut into micro-batches. What was known when older events were folded is kept with the panes, as
rows of their own:

    PaneRows   key | pane_ms: time of the value's last event | sub | code: how long before that it became known
               weight: how long before that the last events may have been that are forgotten; -1: none are

Tested by: tests/histories/test_known_sub_keys.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from cep.base.limits import HISTORY_VALUES_MAX, TIME_MS_MIN
from cep.columnar.batch import NO_TEXTS
from cep.functions.text_numbers import TextNumbers
from cep.histories.numbers.panes import NO_PANES, PaneRows, appended_panes, concat_panes, rows_of
from cep.histories.rows import block_of
from cep.histories.store import Segment, segment_of
from cep.histories.sub_keys import places
from cep.histories.table import HistoryTable, grouped
from cep.kernels import layout as y
from cep.kernels.histories import records
from cep.kernels.histories.known_values import follow_values
from cep.kernels.layout import Int64, UInt8
from cep.nfa.histories import HistoryPlan

NEVER = TIME_MS_MIN


@dataclass(frozen=True, slots=True)
class SubKeyRows:
    """Rows of a history table that ask for the past of their value or count for it. Shapes: rows int64[M]; member
    uint8[M], 1 for those that count; sub int64[M], the number of each row's value."""

    rows: Int64
    member: UInt8
    sub: Int64


@dataclass(frozen=True, slots=True)
class KnownSubKeys:
    """The memory of the values of some rows, by row of the table.

    Shapes: begins int64[N], the row from which on the value is known, -1: all of it is; lacking_ms int64[N], up to what
    time earlier events may have been forgotten; forgotten uint8[N], 1 for rows of before what is known of their value.
    `last` are rows as above, of what is known behind all rows; `is_lasting` bool[L]: which were known all along;
    `key` are the keys of the rows and of what was known before.
    """

    key: Int64
    begins: Int64
    lacking_ms: Int64
    forgotten: UInt8
    last: PaneRows
    is_lasting: np.ndarray

    def still_of(self, key: Int64, sub: Int64, rows: Int64, time_ms: Int64) -> np.ndarray:
        """bool[M]: which rows of the table, of these keys, values and times, count for what is known behind all."""
        at = places(self.last.key, self.last.sub, key, sub)
        since = self.last.pane_ms - self.last.code
        is_remembered: np.ndarray = (at >= 0) & (self.forgotten[rows] == 0)
        is_remembered &= time_ms >= since[np.maximum(at, 0)] if len(since) else False
        return is_remembered

    def keeps(self, rows: PaneRows) -> np.ndarray:
        """bool[C]: which rows of panes of before the rows are of values that have been known all the time."""
        at = places(self.last.key, self.last.sub, rows.key, rows.sub)
        return np.append(self.is_lasting, False)[at]


def has_many(table: HistoryTable, sub_rows: SubKeyRows, segment: Int64, before: PaneRows) -> bool:
    """Return True if a key may have more values than it can know; segment int64[M] is that of each asking row."""
    key_of = np.full(int(segment.max(initial=-1)) + 1, -1, np.int64)
    key_of[segment] = table.key[sub_rows.rows]
    counts = np.bincount(np.concatenate([key_of[key_of >= 0], before.key]))
    return bool(counts.max(initial=0) > HISTORY_VALUES_MAX)


def known_values(table: HistoryTable, sub_rows: SubKeyRows, before: PaneRows) -> KnownSubKeys:
    """Follow what keys know of values; `before` is what was known when older events were folded."""
    rows, before_count = sub_rows.rows, len(before)
    time_ms = np.concatenate([before.pane_ms, table.time[rows]])
    key, sub = np.concatenate([before.key, table.key[rows]]), np.concatenate([before.sub, sub_rows.sub])
    order = np.lexsort((sub, time_ms, key))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    value, row_of = grouped(key, sub)
    count = len(row_of)
    starts, ends = (np.searchsorted(key[order], key[row_of], side) for side in ("left", "right"))
    old = value[:before_count]
    last, since, lacks = (np.full(count, number, np.int64) for number in (-1, 0, NEVER))
    is_lasting, is_remembered = np.zeros(count, np.uint8), np.zeros(count, np.uint8)
    last[old], since[old], is_lasting[old] = place[:before_count], before.pane_ms - before.code, 1
    lacks[old] = np.where(before.weight < 0, NEVER, since[old] - before.weight)
    begins, lacking = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    forgotten = np.empty(len(rows), np.uint8)
    follow_values(
        records.ValueRows(value[before_count:], place[before_count:], time_ms[before_count:], sub_rows.member),
        records.Places(time_ms[order], starts, ends),
        HISTORY_VALUES_MAX,
        NEVER,
        records.Memory(last, since, lacks, is_lasting, is_remembered),
        records.RowAnswers(begins, lacking, forgotten),
    )
    remembered = np.flatnonzero(is_remembered)
    last_ms, since, lacks = time_ms[order][last[remembered]], since[remembered], lacks[remembered]
    weight = np.where(lacks == NEVER, -1, np.maximum(since - lacks, 0))
    after = PaneRows(key[row_of[remembered]], last_ms, last_ms - since, weight, sub[row_of[remembered]])
    nothing, of_all = np.full(len(table.time), -1, np.int64), np.zeros(len(table.time), np.uint8)
    of_all[rows] = forgotten
    by_row = nothing.copy()
    by_row[rows] = np.where(begins < 0, -1, rows[np.maximum(begins, 0)]) if len(rows) else nothing[:0]
    lacking_ms = np.full(len(table.time), NEVER, np.int64)
    lacking_ms[rows] = lacking
    return KnownSubKeys(np.unique(key), by_row, lacking_ms, of_all, after, is_lasting[remembered].astype(bool))


def panes_after(
    plan: HistoryPlan, memories: Mapping[int, KnownSubKeys], panes: Sequence[Segment], keys: pa.Array, watermark_ms: int
) -> Iterator[Segment]:
    """Drop the panes of forgotten values from those of a page, and add what some of its keys know of values now.

    `known` is by what it is of; its keys are numbers of `keys`.
    """
    for segment in panes:
        history = plan.retained_panes.get(segment.panes)
        now = memories.get(history.known_sub_keys) if history is not None else None
        yield from [segment] if now is None else _without(segment, now, keys, is_remembered=segment.panes in memories)
    for of, now in memories.items():
        yield from appended_panes(plan.by_known_sub_keys[of], now.last, keys, watermark_ms)


def _without(segment: Segment, now: KnownSubKeys, keys: pa.Array, *, is_remembered: bool) -> list[Segment]:
    """Return the segment without what is forgotten of the keys of `now`; of what was known before without those
    keys."""
    block = segment.load()
    number = TextNumbers(keys).of(block.keys).astype(np.int64)
    has_memory = np.append(np.bincount(now.key, minlength=len(keys)) > 0, False)[number][block.rows.key]
    stays = ~has_memory
    if not is_remembered:
        rows_here = np.flatnonzero(has_memory)
        stays[rows_here] = now.keeps(rows_of(block.rows, rows_here, number))
    if stays.all():
        return [segment]
    rows = block.rows.take(np.flatnonzero(stays))
    again = segment_of(block_of(block.keys, rows), segment.span_ms, segment.page) if len(rows) else None
    return [] if again is None else [replace(again, panes=segment.panes)]


def of_panes(memory: PaneRows, panes: PaneRows) -> PaneRows:
    """Add the values that have panes, for keys of which nothing is known: an earlier build wrote only panes."""
    has = np.zeros(int(max(memory.key.max(initial=-1), panes.key.max(initial=-1))) + 1, bool)
    has[memory.key] = True
    rows = panes.take(~has[panes.key])
    if not len(rows):
        return memory
    rows = rows.take(np.lexsort((rows.pane_ms, rows.sub, rows.key)))
    is_last = np.ones(len(rows), bool)
    is_last[:-1] = (rows.key[1:] != rows.key[:-1]) | (rows.sub[1:] != rows.sub[:-1])
    rows = rows.take(is_last)
    return concat_panes([memory, replace(rows, code=rows.pane_ms - NEVER, weight=np.full(len(rows), -1))])


def compile_sub_key_kernels() -> None:
    """Run `known_values` once on a few events, so that its kernels are compiled before a busy key needs them."""
    rows_count = 4
    columns = np.zeros((y.COLUMNS_FIXED, rows_count), np.int64)
    flags, numbers = np.zeros(columns.shape, np.uint8), np.arange(rows_count)
    table = HistoryTable(1, columns, flags, NO_TEXTS, flags[:0], numbers, flags[0], numbers, 0, fields={}, overflows={})
    known_values(table, SubKeyRows(numbers, flags[0] + 1, numbers), NO_PANES)
