"""The fields of a sub-key ↔ one number for each row, which distinguishes the panes of different sub-keys.

    merchant_id, channel  ──▶  64 bits of a hash        of one numeric field: distinct for distinct values

A key may have a million merchants in a window. A key with more events than are retained one by one (numbers/folds.py)
remembers the `HISTORY_VALUES_MAX` values that came last; of values with the same time, the ones with the greater
numbers. All events of other values are forgotten: if such a value comes again, it starts from nothing. So a value's
count may be too low but never too high, and the newest events up to the limit are always counted. The memory at the
time when older events were folded is stored with the panes (`SubKeyMemory`).

For functions whose value one event decides, a key also remembers `HISTORY_VALUES_MAX` values: `last` and `exists` the
values that came last, in the order (time, id) of events, `first` and `first_seen` the values that came first. A
forgotten value has no past: `last` is null, and `first_seen` begins with the event under test. After each batch, the
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
from cep.functions.calendar import window_starts_ms
from cep.functions.columns import TextNumbers
from cep.histories.numbers import panes as window_panes
from cep.histories.numbers.folds import EventWindows
from cep.histories.store import Segment, block_of, segment_of
from cep.histories.table import HistoryTable, grouped
from cep.kernels import layout as y
from cep.kernels.histories import records
from cep.kernels.histories.known_values import follow_values
from cep.kernels.layout import Int64, UInt8
from cep.nfa.histories import HistoryColumn, HistoryPlan


def sub_key_numbers(fields: Sequence[pa.Array]) -> Int64:
    """int64[N]: the number of each row's values in these fields, one or more of length N; undefined for null."""
    numbers = _numbers(fields[0])
    for values in fields[1:]:
        others = _numbers(values)
        # Fields of one type may have each other's values: (FR, DE) and (DE, FR) are two sub-keys.
        is_greater = (numbers > others) & (values.type == fields[0].type)
        numbers = window_panes.mixed((numbers + others + is_greater).view(np.int64))
    return numbers.view(np.int64)


def number_by_segment(rows: window_panes.PaneRows, key: Int64, sub: Int64, segment: Int64) -> window_panes.PaneRows:
    """Return the rows whose sub-keys the table has, with the table's segment as key.

    Shapes: key, sub, segment int64[N] of the table's rows.
    """
    positions = positions_of_pairs(key, sub, rows.key, rows.sub)
    has_segment = positions >= 0
    return replace(rows, key=segment[positions] if len(segment) else positions).take(has_segment)


def positions_of_pairs(key: Int64, sub: Int64, wanted_key: Int64, wanted_sub: Int64) -> Int64:
    """int64[M]: the index, among N rows, of a row with each wanted key and sub-key number; -1 if there is none."""
    codes, firsts = grouped(np.concatenate([key, wanted_key]), np.concatenate([sub, wanted_sub]))
    row_of_pair = np.full(len(firsts), -1, np.int64)
    row_of_pair[codes[: len(key)]] = np.arange(len(key))
    positions: Int64 = row_of_pair[codes[len(key) :]]
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
class SubKeyMemory:
    """The sub-keys (such as the merchants of a card) that each key remembers: the latest `HISTORY_VALUES_MAX` of them.

    A key with more of them forgets the ones whose last event is oldest. `memory_rows` has one row for each sub-key that
    is remembered after the table. It is stored like panes (aggregates of time slices): `pane_ms` is the time of the
    sub-key's last event, `code` how long before this its first remembered event was, `weight` how long before that its
    last forgotten event was (-1: none).
    """

    key: Int64  # the keys of the table's rows and of the previous memory
    first_row: Int64  # by row of the table: the row since which its sub-key is remembered; -1: since before all rows
    forgotten_until_ms: Int64  # by row: the time until which events of its sub-key may have been forgotten, or NEVER
    is_forgotten: UInt8  # by row: 1 if it is older than the remembered events of its sub-key
    memory_rows: window_panes.PaneRows
    is_remembered_throughout: np.ndarray  # by memory row: True if remembered before all rows and ever since

    def is_counted_row(self, key: Int64, sub: Int64, rows: Int64, time_ms: Int64) -> np.ndarray:
        """bool[M]: the rows that are remembered in the end, given the key, sub-key, row and time of each, int64[M]."""
        positions = positions_of_pairs(self.memory_rows.key, self.memory_rows.sub, key, sub)  # -1: forgotten
        since = self.memory_rows.pane_ms - self.memory_rows.code  # the time of the first remembered event
        is_remembered: np.ndarray = (positions >= 0) & (self.is_forgotten[rows] == 0)
        is_remembered &= time_ms >= since[np.maximum(positions, 0)] if len(since) else False
        return is_remembered

    def is_remembered_pane(self, rows: window_panes.PaneRows) -> np.ndarray:
        """bool[C]: the rows of earlier panes whose sub-keys have been remembered throughout."""
        positions = positions_of_pairs(self.memory_rows.key, self.memory_rows.sub, rows.key, rows.sub)
        return np.append(self.is_remembered_throughout, False)[positions]  # -1, not remembered, reads the last entry


def may_exceed_limit(table: HistoryTable, sub_rows: SubKeyRows, segment: Int64, before: window_panes.PaneRows) -> bool:
    """Return True if a key may have more values than it remembers; segment int64[M] is of each reading row."""
    key_of_pair = np.full(int(segment.max(initial=-1)) + 1, -1, np.int64)
    key_of_pair[segment] = table.key[sub_rows.rows]
    counts = np.bincount(np.concatenate([key_of_pair[key_of_pair >= 0], before.key]))
    return bool(counts.max(initial=0) > HISTORY_VALUES_MAX)


def follow_sub_keys(table: HistoryTable, sub_rows: SubKeyRows, before: window_panes.PaneRows) -> SubKeyMemory:
    """Follow from row to row which sub-keys (such as the merchants of a card) each key remembers.

    A key remembers the `HISTORY_VALUES_MAX` sub-keys that came last; events of forgotten ones no longer count. `before`
    is the memory that the previous batch left (`SubKeyMemory.memory_rows`): each row counts like an event of a sub-key.
    """
    rows, before_count = sub_rows.rows, len(before)
    # First the sub-keys of the previous memory, each at the time of its last event, then the rows of the table.
    time_ms = np.concatenate([before.pane_ms, table.time[rows]])
    key, sub = np.concatenate([before.key, table.key[rows]]), np.concatenate([before.sub, sub_rows.sub])
    order = np.lexsort((sub, time_ms, key))
    position = np.empty(len(order), np.int64)  # the place of each in the order of keys and times
    position[order] = np.arange(len(order))
    pair, row_of_pair = grouped(key, sub)  # a pair is a key and one of its sub-keys; row_of_pair: a row that has it
    starts, ends = (np.searchsorted(key[order], key[row_of_pair], side) for side in ("left", "right"))  # of its key
    memory = _decode_memory(before, pair[:before_count], position[:before_count], len(row_of_pair))  # before all rows
    pair_rows = records.ValueRows(pair[before_count:], position[before_count:], time_ms[before_count:], sub_rows.member)
    by_row = _update_memory(pair_rows, records.KeyOrder(time_ms[order], starts, ends), memory)  # changes `memory`
    remembered = np.flatnonzero(memory.is_remembered)
    row, last_ms = row_of_pair[remembered], time_ms[order][memory.last[remembered]]  # last: a place in the order
    after = window_panes.PaneRows(key[row], last_ms, *_encode_times(memory, remembered, last_ms), sub[row])
    first_row, is_forgotten = np.full(len(table.time), -1, np.int64), np.zeros(len(table.time), np.uint8)
    is_forgotten[rows] = by_row.is_forgotten
    first_row[rows] = np.append(rows, -1)[by_row.first_rows]  # index into `rows` → row of the table; -1 stays -1
    forgotten_until_ms = np.full(len(table.time), NEVER, np.int64)
    forgotten_until_ms[rows] = by_row.forgotten_until
    is_remembered_throughout = memory.is_lasting[remembered].astype(bool)
    return SubKeyMemory(np.unique(key), first_row, forgotten_until_ms, is_forgotten, after, is_remembered_throughout)


def _empty_memory(pairs_count: int) -> records.Memory:
    last, since, forgotten_until = (np.full(pairs_count, number, np.int64) for number in (-1, 0, NEVER))
    return records.Memory(last, since, forgotten_until, *(np.zeros(pairs_count, np.uint8) for _ in range(2)))


def _decode_memory(rows: window_panes.PaneRows, pairs: Int64, positions: Int64, pairs_count: int) -> records.Memory:
    """Read the stored form of a memory (`SubKeyMemory.memory_rows`), given each row's pair and its last position."""
    memory, since_ms = _empty_memory(pairs_count), rows.pane_ms - rows.code
    memory.last[pairs], memory.since[pairs], memory.is_lasting[pairs] = positions, since_ms, 1
    memory.forgotten_until[pairs] = np.where(rows.weight < 0, NEVER, since_ms - rows.weight)
    return memory


def _encode_times(memory: records.Memory, pairs: Int64, last_ms: Int64) -> tuple[Int64, Int64]:
    """Return the code and the weight of these pairs in the stored form of a memory (`SubKeyMemory.memory_rows`)."""
    since_ms, forgotten_until = memory.since[pairs], memory.forgotten_until[pairs]
    return last_ms - since_ms, np.where(forgotten_until == NEVER, -1, np.maximum(since_ms - forgotten_until, 0))


def _update_memory(rows: records.ValueRows, order: records.KeyOrder, memory: records.Memory) -> records.RowAnswers:
    """Update the memory in place, row by row. Return for each row since which row, if ever, its sub-key is remembered,
    and until when events of it may have been forgotten."""
    count = len(rows.value)
    by_row = records.RowAnswers(np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.uint8))
    follow_values(rows, order, HISTORY_VALUES_MAX, NEVER, memory, by_row)
    return by_row


def update_panes(
    plan: HistoryPlan, memories: Mapping[int, SubKeyMemory], panes: Sequence[Segment], keys: pa.Array, watermark_ms: int
) -> Iterator[Segment]:
    """Update the stored panes (partial aggregates of time slices) of busy keys, which forget their oldest sub-keys.

    Drop the panes of forgotten sub-keys, and store the new memories: the sub-keys that each key remembers. `memories`
    is by the number `known_sub_keys`. Histories that count the same events by the same sub-key share a number.
    """
    for segment in panes:
        history = plan.retained_panes.get(segment.panes_number)
        memory = memories.get(history.known_sub_keys) if history is not None else None
        is_memory = segment.panes_number in memories  # the segment is an old memory, not aggregates
        yield from [segment] if memory is None else _without_forgotten(segment, memory, keys, is_memory=is_memory)
    for number, memory in memories.items():
        yield from window_panes.appended_panes(plan.by_known_sub_keys[number], memory.memory_rows, keys, watermark_ms)


def _without_forgotten(segment: Segment, memory: SubKeyMemory, keys: pa.Array, *, is_memory: bool) -> list[Segment]:
    """Drop the rows of forgotten sub-keys from a segment of panes (partial aggregates of time slices).

    `memory` has the sub-keys (such as a card's merchants) that some busy keys remember, up to a limit; other keys keep
    all rows. A segment may itself be a stored memory (`is_memory`): the new memory replaces its rows of these keys.
    """
    block = segment.load()
    key_numbers = TextNumbers(keys).of(block.keys).astype(np.int64)
    has_memory = np.append(np.bincount(memory.key, minlength=len(keys)) > 0, False)  # False for unknown keys, -1
    is_of_memory_key = has_memory[key_numbers][block.rows.key]
    is_retained = ~is_of_memory_key
    if not is_memory:
        rows_here = np.flatnonzero(is_of_memory_key)
        is_retained[rows_here] = memory.is_remembered_pane(window_panes.rows_of(block.rows, rows_here, key_numbers))
    if is_retained.all():
        return [segment]
    rows = block.rows.take(np.flatnonzero(is_retained))
    if not len(rows):
        return []
    return [segment_of(block_of(block.keys, rows), segment.span_ms, segment.page, segment.panes_number)]


def with_keys_of_panes(memory: window_panes.PaneRows, panes: window_panes.PaneRows) -> window_panes.PaneRows:
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
    """Run `follow_sub_keys` once on a few events, so that its kernels are compiled before a busy key needs them."""
    rows_count = 4
    columns = np.zeros((y.COLUMNS_FIXED, rows_count), np.int64)
    flags, numbers = np.zeros(columns.shape, np.uint8), np.arange(rows_count)
    table = HistoryTable(1, columns, flags, NO_TEXTS, flags[:0], numbers, flags[0], numbers, 0, fields={}, overflows={})
    follow_sub_keys(table, SubKeyRows(numbers, flags[0] + 1, numbers), window_panes.NO_PANES)


@dataclass(frozen=True, slots=True)
class RememberedWindows:
    """Windows of remembered sub-keys. `cut` uint8[Q] is 1 where the window may lack forgotten events.

    `dropped` uint8[Q] is 1 where the event made its key forget a sub-key, or is not remembered itself.
    """

    windows: EventWindows
    cut: UInt8
    dropped: UInt8


@dataclass(frozen=True, slots=True)
class _FullKeyRows:
    """Rows of keys that remember as many sub-keys as they may, sorted by key and event order.

    Shapes: rows, key int64[M]; member uint8[M], 1 for events that the history counts, 0 for new events that only read
    the history; pair int64[M], the number of the row's key and sub-key (value of `by`), below `pairs_count`.
    """

    rows: Int64
    key: Int64
    member: UInt8
    pair: Int64
    pairs_count: int


def limit_to_remembered(
    history: HistoryColumn, table: HistoryTable, windows: EventWindows, member: UInt8
) -> RememberedWindows:
    """Empty the windows of sub-keys (values of `by`) that their key has forgotten, and flag the incomplete windows.

    A key remembers the `HISTORY_VALUES_MAX` sub-keys that came last, for `first` and `first_seen` the ones that came
    first. A window is *cut* if it may lack forgotten events. It is *dropped* if its event made the key forget a sub-key
    or is not remembered itself. `member` uint8[N] is 1 for rows that the history counts.
    Cost: O(members) if no key has reached its limit of values, otherwise O(rows · log rows) for the rows of such keys.
    """
    no_flags = np.zeros(len(windows.events), np.uint8)
    is_full = _find_full_keys(table, windows)  # by key: it has at least as many sub-keys as it may remember
    if not is_full.any():
        return RememberedWindows(windows, no_flags, no_flags)
    full_rows = _rows_of_full_keys(history, table, windows, member, is_full)
    is_forgotten, until_ms = (
        _find_beyond_first(full_rows) if history.is_first else _find_beyond_last(full_rows, table.time[full_rows.rows])
    )
    # For each row, the time until which events of its sub-key may be missing. NEVER: the sub-key is remembered.
    forgotten_until_ms = np.full(len(table.time), NEVER, np.int64)
    forgotten_until_ms[full_rows.rows[is_forgotten]] = until_ms[is_forgotten]
    is_forgotten_row = np.zeros(len(table.time), bool)
    is_forgotten_row[full_rows.rows] = is_forgotten
    new_event_rows = table.new_rows[windows.events]
    last_members = np.maximum(windows.highs - 1, 0)  # 0 for an empty window, which the next line rules out
    includes_event = (windows.highs > windows.lows) & (windows.rows[last_members] == new_event_rows)
    # The window of a forgotten sub-key has no event, except the new event itself if windows include it.
    lows = np.where(is_forgotten_row[new_event_rows], windows.highs - includes_event, windows.lows)
    starts_ms = window_starts_ms(history.expr.window, table.time[new_event_rows])
    may_lack = forgotten_until_ms[new_event_rows] > starts_ms
    # `last` and `exists` read the newest event of a window. If that is the event itself, it is never missing.
    cut = may_lack & (history.is_first | ~includes_event)
    dropped = may_lack & (member[new_event_rows] != 0)
    return RememberedWindows(replace(windows, lows=lows), cut.astype(np.uint8), dropped.astype(np.uint8))


def _find_full_keys(table: HistoryTable, windows: EventWindows) -> np.ndarray:
    """bool[K]: the keys with at least as many sub-keys (values that a history groups by) as a key remembers."""
    is_full = np.zeros(table.keys_count, bool)
    if len(windows.rows) < HISTORY_VALUES_MAX:
        return is_full
    key = table.key[windows.rows]
    if np.bincount(key).max() < HISTORY_VALUES_MAX:
        return is_full
    key_of_segment = np.full(int(windows.segment.max()) + 1, -1, np.int64)  # a segment is one sub-key of a key
    key_of_segment[windows.segment[windows.rows]] = key
    is_full[:] = np.bincount(key_of_segment[key_of_segment >= 0], minlength=table.keys_count) >= HISTORY_VALUES_MAX
    return is_full


def _rows_of_full_keys(
    history: HistoryColumn, table: HistoryTable, windows: EventWindows, member: UInt8, is_full: np.ndarray
) -> _FullKeyRows:
    rows = table.rows_of_sub_keys(history.by, member)
    rows = rows[is_full[table.key[rows]]]
    pair, firsts = grouped(windows.segment[rows], windows.segment[rows])  # a segment is one sub-key of a key
    return _FullKeyRows(rows, table.key[rows], member[rows], pair, len(firsts))


def _find_beyond_last(full_rows: _FullKeyRows, time_ms: Int64) -> tuple[np.ndarray, Int64]:
    """Return the rows bool[M] whose sub-key (value of `by`) their key does not remember: it is new or forgotten.

    A key remembers the `HISTORY_VALUES_MAX` sub-keys that came last; a pair is a key and one of its sub-keys. The
    second result int64[M] is the time until which events of the pair may have been forgotten; NEVER if none were.
    """
    position = np.arange(len(full_rows.rows))
    key_of_pair = np.empty(full_rows.pairs_count, np.int64)
    key_of_pair[full_rows.pair] = full_rows.key
    starts, ends = (np.searchsorted(full_rows.key, key_of_pair, side) for side in ("left", "right"))
    rows = records.ValueRows(full_rows.pair, position, time_ms, full_rows.member)
    by_row = _update_memory(rows, records.KeyOrder(time_ms, starts, ends), _empty_memory(full_rows.pairs_count))
    # `first_rows`: the row since which the sub-key is remembered; the row itself if the key did not remember it before.
    return by_row.first_rows == position, by_row.forgotten_until


def _find_beyond_first(full_rows: _FullKeyRows) -> tuple[np.ndarray, Int64]:
    """Return the rows bool[M] whose sub-key is not remembered, because their key already remembered as many as it may.

    A key remembers only its first `HISTORY_VALUES_MAX` sub-keys (values of `by`), and never forgets these. The second
    result int64[M] is the time until which events of a row's sub-key are forgotten: always TIME_MS_MAX. A member is a
    row that the history counts, a pair is a key and one of its sub-keys.
    """
    count = len(full_rows.rows)
    members = np.flatnonzero(full_rows.member)
    first_row = np.full(full_rows.pairs_count, count, np.int64)
    first_row[full_rows.pair[members[::-1]]] = members[::-1]  # reversed: a pair's first row is written last
    firsts = np.sort(first_row[first_row < count])  # count: a pair without members
    key = full_rows.key[firsts]
    rank = np.arange(len(firsts)) - np.searchsorted(key, key)  # of each pair among the pairs of its key
    is_remembered = np.zeros(count + 1, bool)  # the last entry is for pairs without members
    is_remembered[firsts[rank < HISTORY_VALUES_MAX]] = True
    fills_memory = firsts[rank == HISTORY_VALUES_MAX - 1]  # for each key, the row that fills its memory
    full_at = np.full(int(full_rows.key.max(initial=-1)) + 1, count, np.int64)
    full_at[full_rows.key[fills_memory]] = fills_memory
    is_memory_full = np.arange(count) > full_at[full_rows.key]
    return ~is_remembered[first_row][full_rows.pair] & is_memory_full, np.full(count, TIME_MS_MAX, np.int64)
