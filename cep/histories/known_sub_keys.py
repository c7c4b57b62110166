"""Rows of busy keys → the sub-keys whose past a key still remembers: the ones that came last.

A key may have a million merchants in a window. A key with more events than are retained one by one (numbers/folds.py)
remembers the `HISTORY_VALUES_MAX` values that came last; of values with the same time, the ones with the greater
numbers (sub_keys.py). All events of other values are forgotten: if such a value comes again, it starts from nothing. So
a value's count may be too low but never too high, and the newest events up to the limit are always counted.

The order of events alone decides which values are remembered (known_values.py), so the result is the same in a replay
and for every split into micro-batches. The memory at the time when older events were folded is stored with the panes,
as separate rows:

    PaneRows   key | pane_ms: time of the value's last event | sub | code: how long before it was first remembered
               weight: how long before that time the last forgotten events may have been; -1: none were forgotten

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
    """Rows of a history table that read the past of their value or add to it.

    Shapes: rows int64[M]; member uint8[M], 1 for rows that count; sub int64[M], the number of each row's value.
    """

    rows: Int64
    member: UInt8
    sub: Int64


@dataclass(frozen=True, slots=True)
class KnownSubKeys:
    """The values of a sub-key that each key remembers, such as the merchants of a card, and since when.

    Shapes, by row of the table: begins int64[N], the first row whose value is still remembered, -1 if all earlier rows
    of the value are; lacking_ms int64[N], the time until which earlier events may have been forgotten; forgotten
    uint8[N], 1 for rows before the remembered part of their value. `last` is the memory after all rows, in the row
    format above; `is_lasting` bool[L] marks the values in it that were remembered throughout. `key` are the keys of the
    rows and of the previous memory.
    """

    key: Int64
    begins: Int64
    lacking_ms: Int64
    forgotten: UInt8
    last: PaneRows
    is_lasting: np.ndarray

    def still_of(self, key: Int64, sub: Int64, rows: Int64, time_ms: Int64) -> np.ndarray:
        """Mark the rows of the table whose events still count for the present memory.

        Shapes: key, sub, rows, time_ms int64[M] are the key, the value, the number and the time of each row. Returns:
        bool[M].
        """
        positions = places(self.last.key, self.last.sub, key, sub)
        since = self.last.pane_ms - self.last.code
        is_remembered: np.ndarray = (positions >= 0) & (self.forgotten[rows] == 0)
        is_remembered &= time_ms >= since[np.maximum(positions, 0)] if len(since) else False
        return is_remembered

    def keeps(self, rows: PaneRows) -> np.ndarray:
        """Mark the rows of earlier panes whose values have been remembered throughout. Returns: bool[C]."""
        positions = places(self.last.key, self.last.sub, rows.key, rows.sub)
        return np.append(self.is_lasting, False)[positions]


def has_many(table: HistoryTable, sub_rows: SubKeyRows, segment: Int64, before: PaneRows) -> bool:
    """Return True if a key may have more values than it remembers; segment int64[M] is of each reading row."""
    key_of = np.full(int(segment.max(initial=-1)) + 1, -1, np.int64)
    key_of[segment] = table.key[sub_rows.rows]
    counts = np.bincount(np.concatenate([key_of[key_of >= 0], before.key]))
    return bool(counts.max(initial=0) > HISTORY_VALUES_MAX)


def known_values(table: HistoryTable, sub_rows: SubKeyRows, before: PaneRows) -> KnownSubKeys:
    """Follow from row to row which values each key remembers.

    `before` is the memory at the time when older events were folded.
    """
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
    no_rows, is_forgotten = np.full(len(table.time), -1, np.int64), np.zeros(len(table.time), np.uint8)
    is_forgotten[rows] = forgotten
    begin_rows = no_rows.copy()
    begin_rows[rows] = np.where(begins < 0, -1, rows[np.maximum(begins, 0)]) if len(rows) else no_rows[:0]
    lacking_ms = np.full(len(table.time), NEVER, np.int64)
    lacking_ms[rows] = lacking
    return KnownSubKeys(
        np.unique(key), begin_rows, lacking_ms, is_forgotten, after, is_lasting[remembered].astype(bool)
    )


def panes_after(
    plan: HistoryPlan, memories: Mapping[int, KnownSubKeys], panes: Sequence[Segment], keys: pa.Array, watermark_ms: int
) -> Iterator[Segment]:
    """Update a page's panes after a call: drop panes of forgotten values, and add the new memory of its keys.

    `memories` are the new memories by the number of their panes. Their keys are indexes into `keys`.
    """
    for segment in panes:
        history = plan.retained_panes.get(segment.panes)
        memory = memories.get(history.known_sub_keys) if history is not None else None
        yield from (
            [segment] if memory is None else _without(segment, memory, keys, is_remembered=segment.panes in memories)
        )
    for number, memory in memories.items():
        yield from appended_panes(plan.by_known_sub_keys[number], memory.last, keys, watermark_ms)


def _without(segment: Segment, now: KnownSubKeys, keys: pa.Array, *, is_remembered: bool) -> list[Segment]:
    """Drop the rows of forgotten sub-keys from a segment of panes.

    With `is_remembered` the segment contains a memory itself: its rows are dropped for each key of `now`, because a
    newer memory replaces them.
    """
    block = segment.load()
    key_numbers = TextNumbers(keys).of(block.keys).astype(np.int64)
    is_of_known_key = np.append(np.bincount(now.key, minlength=len(keys)) > 0, False)[key_numbers][block.rows.key]
    is_retained = ~is_of_known_key
    if not is_remembered:
        rows_here = np.flatnonzero(is_of_known_key)
        is_retained[rows_here] = now.keeps(rows_of(block.rows, rows_here, key_numbers))
    if is_retained.all():
        return [segment]
    rows = block.rows.take(np.flatnonzero(is_retained))
    rewritten = segment_of(block_of(block.keys, rows), segment.span_ms, segment.page) if len(rows) else None
    return [] if rewritten is None else [replace(rewritten, panes=segment.panes)]


def of_panes(memory: PaneRows, panes: PaneRows) -> PaneRows:
    """Complete the memory with values that only have panes.

    An earlier build stored no memory, so this is done for keys without one.
    """
    has_memory = np.zeros(int(max(memory.key.max(initial=-1), panes.key.max(initial=-1))) + 1, bool)
    has_memory[memory.key] = True
    rows = panes.take(~has_memory[panes.key])
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
