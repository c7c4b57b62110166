"""KeyedState + EventBatch → the event table that kernels read: retained rows first, then new ones by key and time.

Tested by: tests/engine/test_advance.py
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cep.base.schema import Type
from cep.columnar.batch import NO_TEXTS, TEXT, EventBatch, column_of_slots, null_flags, slot_values, slots
from cep.columnar.order import arranged_rows
from cep.columnar.texts import encoded, numbered, table_key
from cep.engine.keyed_state import NO_WEIGHTS, KeyedState, table_weights
from cep.engine.outputs import Overflows
from cep.functions.columns import fill_computed
from cep.histories.store import Histories
from cep.histories.values import BatchKeys, HistoryValues, NewEvents, history_values
from cep.kernels import layout as y
from cep.kernels.arrange import queue_rows
from cep.kernels.expressions.evaluate import BLOCK, evaluate_blocks
from cep.kernels.expressions.lookup import FILTER_SIZE, look_up
from cep.kernels.layout import Int32, Int64, UInt8, UInt64
from cep.kernels.records import Events, PredicateIndex, Work
from cep.nfa.columns import INCOMPLETE
from cep.nfa.program import Program

_NO_PAST, _NO_NUMBERS = HistoryValues({}, {}, Histories(), NO_TEXTS), np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class PreparedEvents:
    """The event table of one call: retained and new events as columns of numbers, in the form that kernels take."""

    keys: pa.Array
    columns: Int64
    nulls: UInt8
    image: Int64  # the compiled rules, with the numbers of this call's texts
    bitmaps: UInt64  # a row for each condition of single events, with a bit for each new event: 1 if it holds
    first_row: int  # the first row of a new event; retained events come before it.
    event_of: Int64  # the event of each row, as its index in the retained events followed by the batch.
    texts: pa.Array  # the dictionary of all text columns
    overflows: Overflows  # numbers that exceeded 64 bits.
    folded: int  # the number of histories' values (aggregates of past events) that read events merged into sums.
    cut: int  # the number of histories' values that may lack events.
    dropped: int  # the number of events that histories do not remember because of their limits.
    histories: Histories  # after the new events
    weights: Int64  # how much more than 1 each row counts in limits, because of long texts; empty if each counts 1

    @property
    def events(self) -> Events:
        return Events(self.columns, self.nulls, self.bitmaps, self.first_row, self.weights)

    @property
    def rows_count(self) -> int:
        return int(self.columns.shape[1])

    def values(self, number: int, type_: Type) -> pa.Array:
        """Return a column as values of Arrow."""
        return column_of_slots(self.columns[number].copy(), self.nulls[number], type_, self.texts)

    @property
    def batch_rows(self) -> Int64:
        """The event of the batch in each new row."""
        return self.event_of[self.first_row :] - self.first_row


def prepare(program: Program, keyed_state: KeyedState, batch: EventBatch, watermark_ms: int) -> PreparedEvents:
    """Sort the batch by key and event order, after the retained events, and evaluate conditions of single events.

    Cost: a sort by time if the batch is not sorted yet, otherwise O(N) for each column that the program reads.
    """
    plan, retained = program.histories, keyed_state.events
    of_histories = NO_TEXTS if plan is None else keyed_state.histories.keys
    stored_keys = pa.concat_arrays([keyed_state.keys, of_histories]) if len(of_histories) else keyed_state.keys
    keys, codes = numbered(stored_keys, batch.key)
    batch_key = codes[len(stored_keys) :]
    first_row = len(retained)
    columns = np.zeros((len(program.columns), first_row + len(batch)), np.int64)
    nulls = np.zeros(columns.shape, np.uint8)
    columns[y.COLUMN_TYPE, :first_row] = retained.event_type
    columns[y.COLUMN_TIME, :first_row] = retained.time_ms
    columns[y.COLUMN_KEY, :first_row] = retained.key
    batch_rows = _arranged(batch, batch_key, len(keys), first_row, columns)
    event_of = np.arange(columns.shape[1])
    np.add(batch_rows, first_row, out=event_of[first_row:])
    past, past_texts = _NO_PAST, {}
    if plan is not None:
        with_histories = BatchKeys(keys, codes[len(keyed_state.keys) : len(stored_keys)])
        new = NewEvents(batch, batch_rows, batch_key, len(keys))
        past = history_values(plan, program.lists, keyed_state.histories, with_histories, new, watermark_ms)
        past_texts = dict(past.texts)
        if program.column(INCOMPLETE) >= 0:
            past_texts[program.column(INCOMPLETE)] = past.incomplete
    for number, (values, flags) in past.slots.items():
        columns[number, first_row:], nulls[number, first_row:] = values, flags
    for number, column in program.emitted:
        if column.type.is_text:
            past_texts.setdefault(number, NO_TEXTS)  # without new events there are none
        else:
            columns[number, :first_row], nulls[number, :first_row] = slots(retained.columns[column.name])
    texts, written = _fill_texts(program, keyed_state, batch, batch_rows, past_texts, columns, nulls)
    _fill_fields(program, keyed_state, batch, batch_rows, columns, nulls)
    texts = fill_computed(program.columns, program.lists, texts, first_row, columns, nulls)
    image = _image(program, written)
    bitmaps, overflows = _evaluate(program, image, first_row, columns, nulls, past.overflows)
    return PreparedEvents(
        keys, columns, nulls, image, bitmaps, first_row, event_of, texts,
        overflows, past.folded, past.cut, past.dropped, past.histories,
        table_weights(program, texts, columns, nulls, (retained.event_id, batch.event_id), event_of),
    )  # fmt: skip


def _arranged(batch: EventBatch, key: Int32, keys_count: int, first_row: int, columns: Int64) -> Int64:
    """Write the batch's events into the table, sorted by key and event order (columnar/order.py)."""
    ordered = arranged_rows(batch, key, keys_count)
    columns[y.COLUMN_TYPE, first_row:] = batch.event_type[ordered]
    _gather(batch.time_ms, ordered, columns[y.COLUMN_TIME, first_row:])
    columns[y.COLUMN_KEY, first_row:] = key[ordered]
    return ordered


def _fill_fields(
    program: Program, keyed_state: KeyedState, batch: EventBatch, batch_rows: Int64, columns: Int64, nulls: UInt8
) -> None:
    """Fill the columns of fields: retained rows from the keyed state, then new rows with the batch's `batch_rows`."""
    first_row = len(keyed_state.events)
    for number, column in program.fields:
        if column.type.is_text:  # filled by _fill_texts, which numbers them
            continue
        if column.retained:
            old = keyed_state.events.columns[column.name]
            columns[number, :first_row] = slot_values(old)
            if old.null_count:
                nulls[number, :first_row] = null_flags(old)
        new = batch.columns[column.name]
        _gather(slot_values(new), batch_rows, columns[number, first_row:])
        if new.null_count:
            _gather(null_flags(new), batch_rows, nulls[number, first_row:])


def _evaluate(
    program: Program, image: Int64, first_row: int, columns: Int64, nulls: UInt8, history_overflows: Mapping[str, int]
) -> tuple[UInt64, Overflows]:  # fmt: skip
    """Evaluate the conditions of single events for the new rows, and fill derived columns (expressions of one event).

    Code computes some conditions. An index finds the others by their constants. `history_overflows`: by history."""
    vector, predicates = program.vector, program.predicates
    count = columns.shape[1] - first_row
    words = (count + BLOCK - 1) // BLOCK * (BLOCK // 64)  # of 64 rows; code runs on whole blocks of rows
    # Bitmaps of conditions; then one for each prefix (first conditions that rules share), which starts.py fills.
    bitmaps = np.zeros((max(predicates.count, 1) + len(program.shared), max(words, 1)), np.uint64)
    constants = image[image[y.HEADER_CONSTANTS] :]
    events = Events(columns, nulls, bitmaps, first_row, NO_WEIGHTS)  # weights matter only to the matcher
    instruction_counts, entry_counts = np.zeros(len(vector.code), np.int64), np.zeros(len(predicates.entries), np.int64)
    overflows = Overflows(instruction_counts, entry_counts, history_overflows)
    if count and len(vector.code):
        code = vector.block_code(constants, predicates.evaluated, program.derived_first)
        evaluate_blocks(code, events, overflows.instructions)
    if count and len(predicates.groups):
        _fill_by_index(program, constants, image, events, overflows.entries)
    return bitmaps, overflows


def _gather(values: np.ndarray, rows: Int64, out: np.ndarray) -> None:
    """Fill out with values[rows]. The rows are in range; with the mode that asks, numpy goes through a copy."""
    values.take(rows, out=out, mode="clip")


def _fill_by_index(program: Program, constants: Int64, image: Int64, events: Events, overflows: Int64) -> None:
    """Fill the bitmaps (events.bitmaps) of conditions that an index finds by a constant that they compare with.

    The index of a column is a group of entries, E in all. An entry has a constant, and the rest of a condition: this is
    computed only for events with that constant. `overflows` int64[E] counts numbers beyond 64 bits in the rests."""
    groups, entries = program.predicates.groups, program.predicates.entries
    values = constants[entries[:, y.INDEX_CONSTANT]]
    # The constants of each group are sorted in each call, because the numbers that stand for texts differ by call.
    group_of_entry = np.repeat(np.arange(len(groups)), groups[:, y.INDEX_END] - groups[:, y.INDEX_FIRST])
    order = np.lexsort((values, group_of_entry))
    nothing, counters = np.empty((0, 0), np.int64), np.zeros(y.COUNTERS, np.int64)
    registers = np.zeros(2 * program.machine_size, np.int64)
    work = Work(nothing, nothing, nothing, registers, counters, table_key())  # no runs, nodes and matches
    ordered_overflows = np.zeros(len(entries), np.int64)
    index = PredicateIndex(groups, entries[order], values[order])
    look_up(image, index, events, np.zeros(FILTER_SIZE, np.uint8), work, ordered_overflows)
    overflows[order] = ordered_overflows


def _fill_texts(
    program: Program, keyed_state: KeyedState, batch: EventBatch, batch_rows: Int64, past_texts: Mapping[int, pa.Array],
    columns: Int64, nulls: UInt8,
) -> tuple[pa.Array, Int32]:  # fmt: skip
    """Assign numbers to the texts of all text columns, equal numbers to equal texts, so that they can be compared.

    The retained events fill the first rows, and the batch's events at `batch_rows` the others. `past_texts` are results
    of histories (of past events), in the order of these others. Returns: (the dictionary, int32 numbers of the rules'
    texts)."""
    numbers = [number for number, column in program.fields if column.type.is_text]
    old_and_new: list[pa.Array] = []  # by turns: the retained texts of a column, and its new texts
    for number in (*numbers, *past_texts):
        column = program.columns[number]
        old_and_new.append(keyed_state.events.columns[column.name] if column.retained else NO_TEXTS)
        old_and_new.append(past_texts[number] if number in past_texts else batch.columns[column.name])
    if not old_and_new and not program.text_constants:
        return NO_TEXTS, _NO_NUMBERS
    # Texts in rules get numbers, too: conditions compare with them, and a measure may return one.
    written = pa.array([text for _, text in program.text_constants], TEXT)
    every = encoded(pa.concat_arrays([*old_and_new, written]))
    codes, missing = _numbers(every.indices)
    first_row, offset = len(keyed_state.events), 0
    for number, old in zip((*numbers, *past_texts), old_and_new[::2], strict=True):
        new_begin, new_end = offset + len(old), offset + len(old) + len(batch)
        rows = np.arange(len(batch)) if number in past_texts else batch_rows
        if len(old):
            columns[number, :first_row] = codes[offset:new_begin]
        _gather(codes[new_begin:new_end].astype(np.int64), rows, columns[number, first_row:])
        if missing is not None:
            if len(old):
                nulls[number, :first_row] = missing[offset:new_begin]
            _gather(missing[new_begin:new_end], rows, nulls[number, first_row:])
        offset = new_end
    return every.dictionary, codes[offset:]  # the last numbers are of `written`


def _numbers(indices: pa.Array) -> tuple[Int32, UInt8 | None]:
    """Return places in a dictionary: int32[N], 0 for null; and uint8[N] the nulls, None without nulls."""
    if not indices.null_count:
        return np.asarray(indices), None
    validity, values = indices.buffers()
    missing = np.unpackbits(~np.frombuffer(validity, np.uint8), count=len(indices), bitorder="little")
    return np.where(missing, np.int32(0), np.frombuffer(values, np.int32, len(indices))), missing


def _image(program: Program, written: Int32) -> Int64:
    if not program.text_constants:
        return program.image
    image = program.image.copy()
    image[[int(image[y.HEADER_CONSTANTS]) + slot for slot, _ in program.text_constants]] = written
    return image


def queue_of(prepared: PreparedEvents, relevant: Int32) -> Int32:
    """Return the new rows for which one of the predicates holds, ascending."""
    count = prepared.rows_count - prepared.first_row
    rows = np.empty(count, np.int32)
    return rows[: queue_rows(prepared.bitmaps, relevant, prepared.first_row, count, rows)]
