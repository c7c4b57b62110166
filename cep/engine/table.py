"""KeyedState + EventBatch → the event table that kernels read: retained rows first, then new ones by key and time.

Tested by: tests/engine/test_advance.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.columnar.batch import NO_TEXTS, TEXT, EventBatch, read_only, slots, text_buffers
from cep.engine.functions import fill_computed
from cep.engine.histories import Past, look_back
from cep.engine.history_reach import KnownKeys
from cep.engine.history_state import Histories
from cep.engine.history_table import NewEvents
from cep.engine.keyed_state import KeyedState
from cep.kernels import layout as y
from cep.kernels.arrange import count_ordinals, find_concerned, group_by_key, queue_rows
from cep.kernels.evaluate import BLOCK, evaluate_blocks
from cep.kernels.layout import Int32, Int64, UInt8, UInt64
from cep.kernels.lookup import FILTER_SIZE, look_up
from cep.nfa.columns import TOLD
from cep.nfa.program import Program


@dataclass(frozen=True, slots=True)
class PreparedEvents:
    """Everything about the events of one call, as the kernels want it. `image` is the program's, with the numbers of
    this call's texts in it; `first_row` is the first new row of the columns. `event_of` int64[N] says which event a row
    is, of the retained ones and then those of the batch.

    `texts` is the dictionary of all text columns. `overflows` counts arithmetic that became null, `folded` values of
    histories with older events folded, `cut` those that may lack some. `histories` are what is kept from now on.
    """

    keys: pa.Array
    columns: Int64
    nulls: UInt8
    image: Int64
    bitmaps: UInt64
    first_row: int
    event_of: Int64
    texts: pa.Array
    overflows: int
    folded: int
    cut: int
    dropped: int
    histories: Histories

    @property
    def rows_count(self) -> int:
        return int(self.columns.shape[1])

    @property
    def batch_rows(self) -> Int64:
        """Which event of the batch each new row is."""
        return self.event_of[self.first_row :] - self.first_row


def prepare(program: Program, keyed_state: KeyedState, batch: EventBatch, watermark_ms: int) -> PreparedEvents:
    """Sort the batch by (key, time, event id) behind the retained events, and evaluate what needs no run.

    Cost: a sort by time if the batch is not sorted yet, else O(N) for each column that the program reads.
    """
    of_histories = NO_TEXTS if program.histories is None else keyed_state.histories.keys
    encoded = pa.concat_arrays([keyed_state.keys, of_histories, batch.key]).dictionary_encode()
    codes = np.asarray(encoded.indices)
    batch_key = codes[len(codes) - len(batch) :]
    batch_rows = _order(batch, batch_key, len(encoded.dictionary))
    first_row = len(keyed_state.events)
    event_of = np.arange(first_row + len(batch))
    np.add(batch_rows, first_row, out=event_of[first_row:])
    columns = np.zeros((len(program.columns), first_row + len(batch)), np.int64)
    nulls = np.zeros(columns.shape, np.uint8)
    columns[y.COLUMN_TYPE, :first_row] = keyed_state.events.event_type
    columns[y.COLUMN_TYPE, first_row:] = batch.event_type[batch_rows]
    _gather(batch.time_ms, batch_rows, columns[y.COLUMN_TIME, first_row:])
    columns[y.COLUMN_TIME, :first_row] = keyed_state.events.time_ms
    columns[y.COLUMN_KEY, :first_row] = keyed_state.events.key
    columns[y.COLUMN_KEY, first_row:] = batch_key[batch_rows]
    past = Past({}, {}, Histories(), pa.nulls(len(batch), TEXT))
    if program.histories is not None:
        known = KnownKeys(encoded.dictionary, codes[len(keyed_state.keys) : len(codes) - len(batch)])
        new = NewEvents(batch, batch_rows, batch_key, len(encoded.dictionary))
        past = look_back(program.histories, program.lists, keyed_state.histories, known, new, watermark_ms)
    for number, (values, flags) in past.slots.items():
        columns[number, first_row:], nulls[number, first_row:] = values, flags
    told = {} if program.histories is None or program.column(TOLD) < 0 else {program.column(TOLD): past.told}
    texts = _fill_texts(program, keyed_state, batch, batch_rows, {**past.texts, **told}, columns, nulls)
    for number, column in enumerate(program.columns):
        if number < y.COLUMNS_FIXED or column.type.is_text or not column.is_read:
            continue
        if column.retained:
            columns[number, :first_row], nulls[number, :first_row] = slots(keyed_state.events.columns[column.name])
        new = batch.columns[column.name]
        values, flags = slots(new)
        _gather(values, batch_rows, columns[number, first_row:])
        if new.null_count:
            _gather(flags, batch_rows, nulls[number, first_row:])
    texts = fill_computed(program.columns, program.lists, texts, first_row, columns, nulls)
    image = _image(program, texts)
    constants = image[image[y.HEADER_CONSTANTS] :]
    words = (len(batch) + BLOCK - 1) // BLOCK * (BLOCK // 64)
    bitmaps = np.zeros((max(program.predicates.count, 1), max(words, 1)), np.uint64)
    errors = np.zeros(1, np.int64)
    vector = program.vector
    if len(batch) and len(vector.code):
        evaluate_blocks(
            vector.code, columns, nulls, constants, first_row, vector.machine_size, vector.predicate_registers,
            program.predicates.dense, bitmaps, vector.derived_registers, program.derived_first(), errors,
        )  # fmt: skip
    if len(batch) and len(program.predicates.groups):
        errors[0] += _look_up(program, constants, columns, nulls, image, bitmaps, first_row)
    return PreparedEvents(
        encoded.dictionary, columns, nulls, image, bitmaps, first_row, event_of, texts,
        int(errors[0]) + past.overflows, past.folded, past.cut, past.dropped, past.histories,
    )  # fmt: skip


def _gather(values: np.ndarray, rows: Int64, out: np.ndarray) -> None:
    """Fill out with values[rows]. The rows are in range; with the mode that asks, numpy goes through a copy."""
    np.take(values, rows, out=out, mode="clip")


def _look_up(
    program: Program, constants: Int64, columns: Int64, nulls: UInt8, image: Int64, bitmaps: UInt64, first_row: int
) -> int:
    """Fill the bitmaps of the indexed predicates; returns how many overflows there were."""
    groups, entries = program.predicates.groups, program.predicates.entries
    values = constants[entries[:, y.INDEX_CONSTANT]]
    # Texts have other numbers in each call, so entries are brought into order here; groups lie one after the other.
    group_of_entry = np.repeat(np.arange(len(groups)), groups[:, y.INDEX_END] - groups[:, y.INDEX_FIRST])
    order = np.lexsort((values, group_of_entry))
    machine = np.zeros(2 * program.machine_size, np.int64)
    counters = np.zeros(y.COUNTERS, np.int64)
    look_up(
        image, groups, entries[order], values[order], columns, nulls, first_row, bitmaps,
        np.zeros(FILTER_SIZE, np.uint8), np.empty((0, 0), np.int64), machine, counters,
    )  # fmt: skip
    return int(counters[y.COUNT_OVERFLOW])


def _order(batch: EventBatch, key: Int32, keys_count: int) -> Int64:
    """The batch's events by (key, time, event id)."""
    if len(batch) == 0:
        return np.empty(0, np.int64)
    time = batch.time_ms
    sorted_already = bool(np.all(time[1:] >= time[:-1]))
    by_time = np.arange(len(batch)) if sorted_already else np.argsort(time, kind="stable")
    offsets, data = text_buffers(batch.event_id)
    ordered = np.empty(len(batch), np.int64)
    group_by_key(by_time, key, keys_count, read_only(time), offsets, data, ordered)
    return ordered


def _fill_texts(
    program: Program, keyed_state: KeyedState, batch: EventBatch, batch_rows: Int64, past: Mapping[int, pa.Array],
    columns: Int64, nulls: UInt8,
) -> pa.Array:  # fmt: skip
    """Number the texts of all text columns alike, so that any two can be compared; returns the dictionary.

    `past` are texts that histories give, in the order of the new rows.
    """
    numbers = [n for n, c in enumerate(program.columns) if c.type.is_text and c.is_read] + list(past)
    written = pa.array([text for _, text in program.text_constants], TEXT)
    if not numbers:
        return written
    parts: list[pa.Array] = []
    for number in numbers:
        column = program.columns[number]
        parts.append(keyed_state.events.columns[column.name] if column.retained else NO_TEXTS)
        parts.append(past[number] if number in past else batch.columns[column.name])
    # A text that a rule writes has a number too, or a measure could not be it.
    encoded = pa.concat_arrays([*parts, written]).dictionary_encode()
    indices = encoded.indices
    missing = np.asarray(pc.is_null(indices)).astype(np.uint8) if indices.null_count else None
    codes = np.asarray(indices.fill_null(0) if missing is not None else indices)
    first_row, at = len(keyed_state.events), 0
    in_order = np.arange(len(batch))
    for number, old in zip(numbers, parts[::2], strict=True):
        before, after = at + len(old), at + len(old) + len(batch)
        rows = in_order if number in past else batch_rows
        if len(old):
            columns[number, :first_row] = codes[at:before]
        _gather(codes[before:after].astype(np.int64), rows, columns[number, first_row:])
        if missing is not None:
            if len(old):
                nulls[number, :first_row] = missing[at:before]
            _gather(missing[before:after], rows, nulls[number, first_row:])
        at = after
    return encoded.dictionary


def _image(program: Program, texts: pa.Array) -> Int64:
    """The program's image with each text constant replaced by the text's number; -1 for a text that no event has."""
    if not program.text_constants:
        return program.image
    image = program.image.copy()
    wanted = pa.array([text for _, text in program.text_constants], TEXT)
    numbers = pc.index_in(wanted, value_set=texts).fill_null(-1)
    image[[int(image[y.HEADER_CONSTANTS]) + slot for slot, _ in program.text_constants]] = np.asarray(numbers)
    return image


def rules_that_react(program: Program, prepared: PreparedEvents) -> NDArray[np.bool_]:
    """Which rules any of the new events may concern: bool[rules]."""
    concerned = np.zeros(len(program.rules), np.uint8)
    find_concerned(prepared.bitmaps, program.relevance_first, program.relevance, concerned)
    return concerned.astype(bool)


def queue_of(prepared: PreparedEvents, relevant: Int32) -> Int32:
    """The new rows that a rule may react to (Program.relevant_to)."""
    count = prepared.rows_count - prepared.first_row
    if np.any(relevant < 0):
        return np.arange(prepared.first_row, prepared.rows_count, dtype=np.int32)
    rows = np.empty(count, np.int32)
    found = queue_rows(prepared.bitmaps, relevant, prepared.first_row, count, rows)
    return rows[:found]


def number_stream(prepared: PreparedEvents, stream: tuple[int, ...], types_count: int) -> Int32:
    """Write the new events' positions in a stream (a set of event types) into the table; returns counts by key."""
    stream_count = np.zeros(len(prepared.keys), np.int32)
    in_stream = np.zeros(types_count, np.uint8)
    in_stream[list(stream)] = 1
    count_ordinals(prepared.columns, in_stream, prepared.first_row, stream_count)
    return stream_count
