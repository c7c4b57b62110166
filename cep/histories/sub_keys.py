"""The fields of a sub-key ↔ one number for each row, which distinguishes the panes of different sub-keys.

    merchant_id, channel  ──▶  64 bits of a hash        of one numeric field: distinct for distinct values

A key may have a million merchants in a window. A key with more events than are retained one by one (numbers/folds.py)
remembers the `HISTORY_VALUES_MAX` values that came last; of values with the same time, the ones with the greater
numbers. All events of other values are forgotten: if such a value comes again, it starts from nothing. So a value's
count may be too low but never too high, and the newest events up to the limit are always counted. The memory at the
time when older events were folded is stored with the panes:

    PaneRows   key | pane_ms: time of the value's last event | sub | code: how long before it was first remembered
               weight: how long before that time the last forgotten events may have been; -1: none were forgotten

For functions whose value one event decides, a key also remembers `HISTORY_VALUES_MAX` values: `last` and `exists` the
values that came last, in the order (time, id) of events, `first` and `first_seen` the values that came first. A
forgotten value has no past: `last` is null, and `first_seen` begins with the event under test. After each call, the
deciding events of all remembered values are pinned (retained.py).

The order of events alone decides which values are remembered, so a replay and every split into micro-batches agree.
Tested by: tests/histories/test_folds.py, tests/histories/test_known_sub_keys.py, tests/histories/test_remembered.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from cep.base.limits import HISTORY_VALUES_MAX, TIME_MS_MAX, TIME_MS_MIN
from cep.columnar.batch import NO_TEXTS, slot_values
from cep.columnar.texts import encoded
from cep.functions.calendar import opens_ms
from cep.functions.columns import TextNumbers
from cep.histories.numbers import panes as window_panes
from cep.histories.numbers.folds import Members
from cep.histories.store import Segment, block_of, segment_of
from cep.histories.table import HistoryTable, grouped
from cep.kernels import layout as y
from cep.kernels.histories import records
from cep.kernels.histories.known_values import follow_values
from cep.kernels.layout import Int64, UInt8
from cep.nfa.histories import HistoryColumn, HistoryPlan


def sub_numbers(fields: Sequence[pa.Array]) -> Int64:
    """int64[N]: the number of each row's values in these fields, one or more of length N; undefined for null."""
    numbers = _numbers(fields[0])
    for values in fields[1:]:
        numbers = window_panes.mixed((numbers + _numbers(values)).view(np.int64))
    return numbers.view(np.int64)


def in_segments(rows: window_panes.PaneRows, key: Int64, sub: Int64, segment: Int64) -> window_panes.PaneRows:
    """Return the rows whose sub-keys the table has, with the table's segment as key.

    Shapes: key, sub, segment int64[N] of the table's rows.
    """
    positions = places(key, sub, rows.key, rows.sub)
    has_segment = positions >= 0
    return replace(rows, key=segment[positions] if len(segment) else positions).take(has_segment)


def places(key: Int64, sub: Int64, wanted_key: Int64, wanted_sub: Int64) -> Int64:
    """int64[M]: the index, among N rows, of a row with each wanted key and sub-key number; -1 if there is none."""
    codes, firsts = grouped(np.concatenate([key, wanted_key]), np.concatenate([sub, wanted_sub]))
    place_of = np.full(len(firsts), -1, np.int64)
    place_of[codes[: len(key)]] = np.arange(len(key))
    positions: Int64 = place_of[codes[len(key) :]]
    return positions


def _numbers(values: pa.Array) -> window_panes.UInt64:
    if pa.types.is_large_string(values.type):
        texts = encoded(values)
        hashes = window_panes.text_hashes(texts.dictionary)
        codes = np.asarray(texts.indices.fill_null(0))
        return hashes[codes] if len(hashes) else np.zeros(len(values), np.uint64)
    return window_panes.mixed(np.ascontiguousarray(slot_values(values)))


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
    last: window_panes.PaneRows
    is_lasting: np.ndarray

    def still_of(self, key: Int64, sub: Int64, rows: Int64, time_ms: Int64) -> np.ndarray:
        """bool[M]: the rows, with these keys, values, numbers and times int64[M], that count for the present memory."""
        positions = places(self.last.key, self.last.sub, key, sub)
        since = self.last.pane_ms - self.last.code
        is_remembered: np.ndarray = (positions >= 0) & (self.forgotten[rows] == 0)
        is_remembered &= time_ms >= since[np.maximum(positions, 0)] if len(since) else False
        return is_remembered

    def keeps(self, rows: window_panes.PaneRows) -> np.ndarray:
        """bool[C]: the rows of earlier panes whose values have been remembered throughout."""
        positions = places(self.last.key, self.last.sub, rows.key, rows.sub)
        return np.append(self.is_lasting, False)[positions]


def has_many(table: HistoryTable, sub_rows: SubKeyRows, segment: Int64, before: window_panes.PaneRows) -> bool:
    """Return True if a key may have more values than it remembers; segment int64[M] is of each reading row."""
    key_of = np.full(int(segment.max(initial=-1)) + 1, -1, np.int64)
    key_of[segment] = table.key[sub_rows.rows]
    counts = np.bincount(np.concatenate([key_of[key_of >= 0], before.key]))
    return bool(counts.max(initial=0) > HISTORY_VALUES_MAX)


def known_values(table: HistoryTable, sub_rows: SubKeyRows, before: window_panes.PaneRows) -> KnownSubKeys:
    """Follow from row to row which values each key remembers. `before` is the memory when older events were folded."""
    rows, before_count = sub_rows.rows, len(before)
    time_ms = np.concatenate([before.pane_ms, table.time[rows]])
    key, sub = np.concatenate([before.key, table.key[rows]]), np.concatenate([before.sub, sub_rows.sub])
    order = np.lexsort((sub, time_ms, key))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    value, row_of = grouped(key, sub)
    starts, ends = (np.searchsorted(key[order], key[row_of], side) for side in ("left", "right"))
    old = value[:before_count]
    memory = _no_memory(len(row_of))
    memory.last[old], memory.since[old] = place[:before_count], before.pane_ms - before.code
    memory.is_lasting[old] = 1
    memory.forgotten_until[old] = np.where(before.weight < 0, NEVER, memory.since[old] - before.weight)
    value_rows = records.ValueRows(value[before_count:], place[before_count:], time_ms[before_count:], sub_rows.member)
    answers = _followed(value_rows, records.KeyOrder(time_ms[order], starts, ends), memory)
    remembered = np.flatnonzero(memory.is_remembered)
    last_ms, since = time_ms[order][memory.last[remembered]], memory.since[remembered]
    lacks = memory.forgotten_until[remembered]
    weight = np.where(lacks == NEVER, -1, np.maximum(since - lacks, 0))
    after = window_panes.PaneRows(key[row_of[remembered]], last_ms, last_ms - since, weight, sub[row_of[remembered]])
    begin_rows, is_forgotten = np.full(len(table.time), -1, np.int64), np.zeros(len(table.time), np.uint8)
    is_forgotten[rows] = answers.is_forgotten
    begin_rows[rows] = np.append(rows, -1)[answers.first_rows]
    lacking_ms = np.full(len(table.time), NEVER, np.int64)
    lacking_ms[rows] = answers.forgotten_until
    is_lasting = memory.is_lasting[remembered].astype(bool)
    return KnownSubKeys(np.unique(key), begin_rows, lacking_ms, is_forgotten, after, is_lasting)


def _no_memory(values_count: int) -> records.Memory:
    last, since, lacks = (np.full(values_count, number, np.int64) for number in (-1, 0, NEVER))
    return records.Memory(last, since, lacks, np.zeros(values_count, np.uint8), np.zeros(values_count, np.uint8))


def _followed(rows: records.ValueRows, places: records.KeyOrder, memory: records.Memory) -> records.RowAnswers:
    """Follow the memory from row to row, in place. Return the results by row."""
    count = len(rows.value)
    answers = records.RowAnswers(np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.uint8))
    follow_values(rows, places, HISTORY_VALUES_MAX, NEVER, memory, answers)
    return answers


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
            [segment]
            if memory is None
            else _without_forgotten(segment, memory, keys, is_remembered=segment.panes in memories)
        )
    for number, memory in memories.items():
        yield from window_panes.appended_panes(plan.by_known_sub_keys[number], memory.last, keys, watermark_ms)


def _without_forgotten(segment: Segment, memory: KnownSubKeys, keys: pa.Array, *, is_remembered: bool) -> list[Segment]:
    """Drop the rows of sub-keys that their key no longer remembers from a segment of panes.

    `memory` has the sub-keys that keys with new events remember. A segment that is itself an earlier memory
    (`is_remembered`) loses all rows of these keys, because the new memory replaces them.
    """
    block = segment.load()
    key_numbers = TextNumbers(keys).of(block.keys).astype(np.int64)
    is_of_known_key = np.append(np.bincount(memory.key, minlength=len(keys)) > 0, False)[key_numbers][block.rows.key]
    is_retained = ~is_of_known_key
    if not is_remembered:
        rows_here = np.flatnonzero(is_of_known_key)
        is_retained[rows_here] = memory.keeps(window_panes.rows_of(block.rows, rows_here, key_numbers))
    if is_retained.all():
        return [segment]
    rows = block.rows.take(np.flatnonzero(is_retained))
    if not len(rows):
        return []
    return [segment_of(block_of(block.keys, rows), segment.span_ms, segment.page, segment.panes)]


def of_panes(memory: window_panes.PaneRows, panes: window_panes.PaneRows) -> window_panes.PaneRows:
    """Complete the memory with the panes of keys without a memory, because an earlier build stored none."""
    has_memory = np.zeros(int(max(memory.key.max(initial=-1), panes.key.max(initial=-1))) + 1, bool)
    has_memory[memory.key] = True
    rows = panes.take(~has_memory[panes.key])
    if not len(rows):
        return memory
    rows = rows.take(np.lexsort((rows.pane_ms, rows.sub, rows.key)))
    rows = rows.take(np.append(window_panes.differs(rows.key, rows.sub)[1:], True))
    return window_panes.concat_panes([memory, replace(rows, code=rows.pane_ms - NEVER, weight=np.full(len(rows), -1))])


def compile_sub_key_kernels() -> None:
    """Run `known_values` once on a few events, so that its kernels are compiled before a busy key needs them."""
    rows_count = 4
    columns = np.zeros((y.COLUMNS_FIXED, rows_count), np.int64)
    flags, numbers = np.zeros(columns.shape, np.uint8), np.arange(rows_count)
    table = HistoryTable(1, columns, flags, NO_TEXTS, flags[:0], numbers, flags[0], numbers, 0, fields={}, overflows={})
    known_values(table, SubKeyRows(numbers, flags[0] + 1, numbers), window_panes.NO_PANES)


@dataclass(frozen=True, slots=True)
class Remembered:
    """Windows of remembered values. `cut` uint8[Q] is 1 where the window may lack forgotten events.

    `dropped` uint8[Q] is 1 where the event made its key forget a value.
    """

    windows: Members
    cut: UInt8
    dropped: UInt8


@dataclass(frozen=True, slots=True)
class _ValueRows:
    """Rows that read or add to a value of a sub-key, sorted by key and event order. Only keys at their limit of values.

    Shapes: rows, key int64[M]; member uint8[M], 1 for rows that count; value int64[M], below `values_count`.
    """

    rows: Int64
    key: Int64
    member: UInt8
    value: Int64
    values_count: int


def remembered(history: HistoryColumn, table: HistoryTable, windows: Members, member: UInt8) -> Remembered:
    """Shorten the windows of a history by sub-key so that they contain only values that the key still remembers.

    `member` uint8[N] is 1 for rows that count.
    Cost: O(members) if no key has reached its limit of values, otherwise O(rows · log rows) for the rows of such keys.
    """
    no_windows = np.zeros(len(windows.events), np.uint8)
    is_full = _full_keys(table, windows)
    if not is_full.any():
        return Remembered(windows, no_windows, no_windows)
    value_rows = _rows_of_values(history, table, windows, member, is_full)
    is_unknown, lacking_ms = (
        _not_first(value_rows) if history.is_first else _not_last(value_rows, table.time[value_rows.rows])
    )
    lacking_ms_by_row = np.full(len(table.time), NEVER, np.int64)  # NEVER: the value is remembered
    lacking_ms_by_row[value_rows.rows[is_unknown]] = lacking_ms[is_unknown]
    is_unknown_row = np.zeros(len(table.time), bool)
    is_unknown_row[value_rows.rows] = is_unknown
    new_event_rows = table.new_rows[windows.events]
    last_members = np.maximum(windows.highs - 1, 0)
    has_itself = (windows.highs > windows.lows) & (windows.rows[last_members] == new_event_rows)
    lows = np.where(is_unknown_row[new_event_rows], windows.highs - has_itself, windows.lows)
    may_lack = lacking_ms_by_row[new_event_rows] > opens_ms(history.expr.window, table.time[new_event_rows])
    # The last event of a window that includes the event itself is never missing.
    cut = may_lack & (history.is_first | ~has_itself)
    dropped = may_lack & (member[new_event_rows] != 0)
    return Remembered(replace(windows, lows=lows), cut.astype(np.uint8), dropped.astype(np.uint8))


def _full_keys(table: HistoryTable, windows: Members) -> np.ndarray:
    """bool[K]: the keys that have reached their limit of remembered values."""
    is_full = np.zeros(table.keys_count, bool)
    if len(windows.rows) < HISTORY_VALUES_MAX:
        return is_full
    key = table.key[windows.rows]
    if np.bincount(key).max() < HISTORY_VALUES_MAX:
        return is_full
    key_of_segment = np.full(int(windows.segment.max()) + 1, -1, np.int64)
    key_of_segment[windows.segment[windows.rows]] = key
    is_full[:] = np.bincount(key_of_segment[key_of_segment >= 0], minlength=table.keys_count) >= HISTORY_VALUES_MAX
    return is_full


def _rows_of_values(
    history: HistoryColumn, table: HistoryTable, windows: Members, member: UInt8, is_full: np.ndarray
) -> _ValueRows:
    rows = table.rows_of_sub_keys(history.by, member)
    rows = rows[is_full[table.key[rows]]]
    value, firsts = grouped(windows.segment[rows], windows.segment[rows])
    return _ValueRows(rows, table.key[rows], member[rows], value, len(firsts))


def _not_last(value_rows: _ValueRows, time_ms: Int64) -> tuple[np.ndarray, Int64]:
    """bool[M]: the rows whose value is not among the last values of its key, so that the key has forgotten it.

    int64[M]: the time of the last event of the value that is forgotten next, NEVER if no value is.
    """
    place = np.arange(len(value_rows.rows))
    key_of = np.empty(value_rows.values_count, np.int64)
    key_of[value_rows.value] = value_rows.key
    starts, ends = (np.searchsorted(value_rows.key, key_of, side) for side in ("left", "right"))
    rows = records.ValueRows(value_rows.value, place, time_ms, value_rows.member)
    answers = _followed(rows, records.KeyOrder(time_ms, starts, ends), _no_memory(value_rows.values_count))
    return answers.first_rows == place, answers.forgotten_until


def _not_first(value_rows: _ValueRows) -> tuple[np.ndarray, Int64]:
    """bool[M]: the rows whose value is not among the first of its full key. int64[M]: TIME_MS_MAX, without a window."""
    count = len(value_rows.rows)
    members = np.flatnonzero(value_rows.member)
    first_row = np.full(value_rows.values_count, count, np.int64)
    first_row[value_rows.value[members[::-1]]] = members[::-1]  # the first row of each value wins
    firsts = np.sort(first_row[first_row < count])
    key = value_rows.key[firsts]
    rank = np.arange(len(firsts)) - np.searchsorted(key, key)
    is_remembered = np.zeros(count + 1, bool)
    is_remembered[firsts[rank < HISTORY_VALUES_MAX]] = True
    is_full = firsts[rank == HISTORY_VALUES_MAX - 1]  # for each key, the row that fills its memory
    full_at = np.full(int(value_rows.key.max(initial=-1)) + 1, count, np.int64)
    full_at[value_rows.key[is_full]] = is_full
    is_unknown: np.ndarray = ~is_remembered[first_row][value_rows.value] & (np.arange(count) > full_at[value_rows.key])
    return is_unknown, np.full(count, TIME_MS_MAX, np.int64)
