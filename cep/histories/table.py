"""Retained events + new events → the history table of one call: rows key by key, old before new, with conditions.

Tested by: tests/histories/test_values.py
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.limits import TIME_MS_MIN
from cep.columnar.batch import TEXT, EventBatch, arrow_type, from_slots, read_only, slots
from cep.columnar.texts import encoded, table_key
from cep.functions.columns import TextNumbers, fill_computed
from cep.histories.store import HistoryRows, Int8
from cep.kernels import layout as y
from cep.kernels.arrange import group_rows
from cep.kernels.expressions.evaluate import BLOCK, evaluate_blocks
from cep.kernels.groups import group_pairs
from cep.kernels.layout import Int32, Int64, UInt8
from cep.kernels.records import Events
from cep.lists.store import Lists
from cep.nfa.columns import Column
from cep.nfa.histories import HistoryPlan


@dataclass(frozen=True, slots=True)
class NewEvents:
    """The new events: `rows` int64[Q] sorts the batch by (key, time, id).

    key int32[N], by event of the batch, is below `keys_count`; it numbers the same keys as in the stored rows.
    """

    batch: EventBatch
    rows: Int64
    key: Int32
    keys_count: int


@dataclass(slots=True)
class HistoryTable:
    """The rows of a call. An event may have two, a pinned row and a row of a segment; a history reads one (`member`).

    Shapes: columns int64[C, N] and nulls uint8[C, N]; new_at int64[N], the index among the new events, -1: a stored
    row; is_pinned uint8[N]; source int64[N], the index of the stored row, of which the first `pinned_count` are pinned;
    bitmaps uint8[P, N]; fields are the stored columns, as they arrived. `overflows` of 64 bits are counted by history.
    """

    keys_count: int
    columns: Int64
    nulls: UInt8
    texts: pa.Array
    bitmaps: UInt8
    new_at: Int64
    is_pinned: UInt8
    source: Int64
    pinned_count: int
    fields: dict[str, pa.Array]
    overflows: Mapping[str, int]
    _segments: dict[tuple[int, ...], tuple[Int64, Int64]] = field(default_factory=dict)

    @property
    def time(self) -> Int64:
        times: Int64 = self.columns[y.COLUMN_TIME]
        return times

    @property
    def key(self) -> Int64:
        keys: Int64 = self.columns[y.COLUMN_KEY]
        return keys

    @property
    def event_type(self) -> Int64:
        types: Int64 = self.columns[y.COLUMN_TYPE]
        return types

    @property
    def old_rows(self) -> Int64:
        """The rows of segments."""
        return np.flatnonzero((self.is_pinned == 0) & (self.new_at < 0))

    @property
    def new_rows(self) -> Int64:
        return np.flatnonzero(self.new_at >= 0)

    def member_mask(self, number: int) -> UInt8:
        """Return 1 for each row where a predicate holds. Predicate -1 always holds."""
        return np.ones(self.columns.shape[1], np.uint8) if number < 0 else self.bitmaps[number].copy()

    def has_all(self, by: Sequence[int]) -> np.ndarray:
        """bool[N]: the rows with a value in each of these columns."""
        has_values = np.ones(len(self.time), bool)
        for column in by:
            has_values &= self.nulls[column] == 0
        return has_values

    def rows_of_sub_keys(self, by: Sequence[int], member: UInt8) -> Int64:
        """Return the rows that read the past of their sub-key, or add to it as a member (uint8[N])."""
        return np.flatnonzero(((member != 0) | (self.new_at >= 0)) & self.has_all(by))

    def segments(self, by: tuple[int, ...]) -> tuple[Int64, Int64]:
        """Group the rows by key and these columns. Return each row's segment (group number), and the rows by segment.

        Rows with a null in one of the columns have segments of their own, which callers ignore.
        """
        if by not in self._segments:
            segment, count = self.key, self.keys_count
            for column in by:
                # Doubled, so that rows with a null get another number than rows with the same key and a value.
                segment, firsts = grouped(2 * segment + self.nulls[column], self.columns[column])
                count = len(firsts)
            order = np.arange(len(segment))
            if by:
                group_rows(segment, np.zeros(count + 1, np.int64), order)  # fills `order`
            self._segments[by] = segment, order
        return self._segments[by]

    def last_times(self) -> Int64:
        """Return the time of the latest row of each key; TIME_MS_MIN for keys without rows."""
        last_ms = np.full(self.keys_count, TIME_MS_MIN, np.int64)
        last_ms[self.key] = self.time  # the last of several rows with the same key wins
        return last_ms

    def take(self, rows: Int64, span: Int8) -> HistoryRows:
        indices = pa.array(rows)
        columns = {name: column.take(indices) for name, column in self.fields.items()}
        return HistoryRows(self.key[rows].astype(np.int32), self.event_type[rows], self.time[rows], span, columns)


def grouped(first: Int64, second: Int64) -> tuple[Int64, Int64]:
    """Return numbers from 0 for pairs of values, in order of first appearance, and the first row of each pair."""
    codes, firsts = np.empty(len(first), np.int64), np.empty(len(first), np.int64)
    pairs = read_only(first), read_only(second)
    count = group_pairs(*pairs, table_key(), empty_places(len(first)), firsts, codes)
    return codes, firsts[:count]


def empty_places(count: int) -> Int32:
    """Return an empty hash table for `count` distinct entries; half of its places stay empty."""
    return np.full(2 << max(count - 1, 1).bit_length(), -1, np.int32)


def build_table(
    plan: HistoryPlan, lists: Lists, stored: HistoryRows, pinned_count: int, new: NewEvents, *, mixed: bool = False
) -> HistoryTable:
    """Build the table that histories (aggregates of past events) read: for each key its stored events, then new ones.

    The first `pinned_count` stored rows are pinned events (stored one by one, because each can decide a value). The
    stored rows of a key are in order of time, unless pinned and other events are `mixed`: then they are sorted.
    """
    stored_count, count = len(stored), len(stored) + len(new.rows)
    key = np.concatenate([stored.key, new.key[new.rows]]).astype(np.int64)  # new.rows: by key, time and id
    source = np.arange(count)  # by row of the table, its index among stored and new events
    if stored_count:
        if mixed:
            source[:stored_count] = np.argsort(stored.time_ms, kind="stable")
        by_key = np.empty(count, np.int64)  # the next line fills it: a stable sort by key
        group_rows(key[source], np.zeros(new.keys_count + 1, np.int64), by_key)
        source = source[by_key]
    columns = np.zeros((len(plan.columns), count), np.int64)
    nulls = np.zeros(columns.shape, np.uint8)
    columns[y.COLUMN_KEY] = key[source]
    columns[y.COLUMN_TIME] = np.concatenate([stored.time_ms, new.batch.time_ms[new.rows]])[source]
    columns[y.COLUMN_TYPE] = np.concatenate([stored.event_type, new.batch.event_type[new.rows]])[source]
    fields = {c.name: _field(c, stored, new, source) for c in plan.stored_columns if c.is_field}
    texts = _fill_fields(plan, fields, columns, nulls)
    texts = fill_computed(plan.columns, lists, texts, 0, columns, nulls)
    for number, column in enumerate(plan.columns):
        if column.is_listed:  # the result of a list stays as it was when the event was new
            fields[column.name] = _write_list_result(column, stored, source, columns[number], nulls[number])
    bitmaps, overflows = _evaluate(plan, texts, columns, nulls)  # on which rows each condition of a history is true
    new_at = source - stored_count
    new_at[new_at < 0] = -1  # stored rows
    is_pinned = (source < pinned_count).astype(np.uint8)
    return HistoryTable(
        new.keys_count, columns, nulls, texts, bitmaps, new_at, is_pinned, source, pinned_count, fields, overflows
    )


def _field(column: Column, stored: HistoryRows, new: NewEvents, source: Int64) -> pa.Array:
    """Return a field of all rows. A field that was not stored before is null in the stored rows."""
    fresh = new.batch.columns[column.name].take(pa.array(new.rows))
    if not len(stored):
        return fresh
    stored_values = stored.columns.get(column.name)
    before = pa.nulls(len(stored), arrow_type(column.type)) if stored_values is None else stored_values
    return pa.concat_arrays([before, fresh]).take(pa.array(source))


def _write_list_result(column: Column, stored: HistoryRows, source: Int64, values: Int64, nulls: UInt8) -> pa.Array:
    """Write the result of a list, as it was when each row was new; null where the list was not asked then."""
    is_stored = source < len(stored)
    stored_values = stored.columns.get(column.name)
    before = pa.nulls(len(stored), arrow_type(column.type)) if stored_values is None else stored_values
    values[is_stored], nulls[is_stored] = slots(before.take(pa.array(source[is_stored])))
    return from_slots(values, nulls, column.type)


def _fill_fields(plan: HistoryPlan, fields: dict[str, pa.Array], columns: Int64, nulls: UInt8) -> pa.Array:
    """Write the fields that histories read into `columns` and `nulls`, in place. Return the texts that codes index.

    A text column has codes. Equal texts of all columns, and of the plan's constants, get equal codes.
    """
    constant_texts = pa.array([text for _, text in plan.text_constants], TEXT)
    # The first columns, such as key and time, are already filled.
    numbers = [n for n, c in enumerate(plan.columns) if n >= y.COLUMNS_FIXED and c.is_field]
    text_columns = [n for n in numbers if plan.columns[n].type.is_text]
    for number in numbers:
        if number not in text_columns:
            columns[number], nulls[number] = slots(fields[plan.columns[number].name])
    if not text_columns:
        return constant_texts
    encoded_texts = encoded(pa.concat_arrays([*(fields[plan.columns[n].name] for n in text_columns), constant_texts]))
    missing = np.asarray(pc.is_null(encoded_texts.indices)).astype(np.uint8)
    codes = np.asarray(encoded_texts.indices.fill_null(0)).astype(np.int64)
    count = columns.shape[1]
    for field_index, number in enumerate(text_columns):
        columns[number] = codes[field_index * count : (field_index + 1) * count]
        nulls[number] = missing[field_index * count : (field_index + 1) * count]
    return encoded_texts.dictionary


def _evaluate(plan: HistoryPlan, texts: pa.Array, columns: Int64, nulls: UInt8) -> tuple[UInt8, Mapping[str, int]]:
    """Evaluate the conditions of histories (aggregates of past events) on each row: uint8[conditions, N], 1: true.

    A text is represented by its index in `texts`, also in constants. The columns from `plan.derived_first` on are
    filled here. The second result counts, by the identity (hash) of a history, the numbers that exceeded 64 bits.
    """
    count = columns.shape[1]
    words = (count + BLOCK - 1) // BLOCK * (BLOCK // 64)  # one bit per row, for whole blocks of rows
    bitmaps = np.zeros((max(plan.bitmaps_count, 1), max(words, 1)), np.uint64)  # a row for each condition
    overflows = np.zeros(len(plan.vector.code), np.int64)  # by instruction
    if not len(overflows):
        return np.zeros((0, count), np.uint8), {}
    constants = plan.constants.copy()
    if plan.text_constants:
        constant_texts = pa.array([text for _, text in plan.text_constants], TEXT)
        constants[[position for position, _ in plan.text_constants]] = TextNumbers(texts).of(constant_texts)
    code = plan.vector.block_code(constants, np.arange(plan.bitmaps_count, dtype=np.int32), plan.derived_first)
    evaluate_blocks(code, Events(columns, nulls, bitmaps, 0, np.empty(0, np.int64)), overflows)  # from row 0 on
    bits = np.unpackbits(bitmaps.view(np.uint8), axis=1, bitorder="little")[:, :count]
    return bits, _overflows(plan, overflows) if overflows.any() else {}


def _overflows(plan: HistoryPlan, overflows: Int64) -> Mapping[str, int]:
    """Return the overflows of each history by its identity, from the overflows int64[I] of each instruction."""
    members, values = plan.vector.sums_by_result(overflows)
    counts = {
        h.identity: (members[h.member] if h.member >= 0 else 0)
        + (values[h.value - plan.derived_first] if h.value >= plan.derived_first else 0)
        for h in plan.histories
    }
    return {identity: count for identity, count in counts.items() if count}
