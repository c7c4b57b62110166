"""Events of many segments → the events of wanted classes. A class: the events of a key with equal field values.

A class has a code of 32 bits, which a segment caches for each of its events. If two classes share a code, events of the
other class are read in vain, but no event is missing. A search for the latest event compares the values too.
Tested by: tests/histories/test_classes.py, tests/histories/test_reach.py
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.columnar.batch import TEXT, read_only, slot_values
from cep.columnar.texts import table_key
from cep.functions.columns import HashedTexts, hashed_texts, value_bytes
from cep.histories.store import Block, HistoryRows
from cep.kernels.histories import records
from cep.kernels.histories.reach import fill_classes, fill_codes, find_latest
from cep.kernels.layout import Int32, Int64
from cep.kernels.siphash import keyed_number_hashes

UInt32 = NDArray[np.uint32]
UInt64 = NDArray[np.uint64]
_ODD = np.uint64(0x9E3779B97F4A7C15)
_PLACES, _BITS = 2, 16  # minimum table places and bits per code; one in 2^16 other codes is searched in vain
_ROWS = 1 << 32  # more than the rows of a block


class LatestSearch:
    """The latest event of each requested class in some blocks, if it is later than a given time.

    With an event type other than -1, only events of that type count.
    Shapes: number int32[C] of the class's key, -1 for none; codes uint32[C]; column of length C. Classes may repeat.
    """

    def __init__(
        self, name: str, number: Int32, codes: UInt32, column: pa.Array, after_ms: int, event_type: int
    ) -> None:
        self._name, self._event_type, self._column = name, event_type, column
        self._classes = records.Classes(_empty_table(read_only(codes)), read_only(number), value_bytes(column))
        fill_classes(*self._classes)
        self._latest = records.Latest(np.full(len(codes), after_ms, np.int64), np.full(len(codes), -1, np.int64))

    def search(self, blocks: Sequence[Block], key_numbers: Sequence[Int32], last_ms: Sequence[int]) -> None:
        """Search blocks of past events, which are in time order, for the latest event of each class.

        A class is the events of a key with the same value of this field. `key_numbers` gives, for each block, the
        batch's number of each of its keys, `last_ms` the time of its latest event. The newest block is searched first:
        a class that is found there need not be searched for in older blocks.
        """
        scratch = records.Scratch(*np.empty((3, max(map(len, blocks), default=0)), np.int64))
        for block_index in reversed(range(len(blocks))):
            block = blocks[block_index]
            if self._name not in block.rows.columns:
                continue
            if self._name not in block.values:
                block.values[self._name] = value_bytes(block.rows.columns[self._name])
            events = records.ClassBlock(
                block.read_only_rows, codes_of_block(block, (self._name,)), block.values[self._name],
                key_numbers[block_index], block_index * _ROWS, last_ms[block_index],  # _ROWS: numbers for each block
            )  # fmt: skip
            find_latest(self._classes, events, self._event_type, self._latest, scratch)  # updates `_latest`

    def latest_rows(self, blocks_count: int) -> list[Int64]:
        """After the search, return for each block the rows that are the latest of their class, ascending."""
        positions = np.sort(self._latest.at[self._latest.at >= 0])
        return np.split(positions % _ROWS, np.searchsorted(positions, _ROWS * np.arange(1, blocks_count)))

    def latest_events(self) -> tuple[HistoryRows, Int64]:
        """Return the latest events, with only this field and in time order, and the block of each."""
        there = np.flatnonzero(self._latest.at >= 0)
        there = there[np.argsort(self._latest.time[there], kind="stable")]
        event_type, span = np.full(len(there), self._event_type), np.zeros(len(there), np.int8)
        columns = {self._name: self._column.take(pa.array(there))}
        rows = HistoryRows(self._classes.key_numbers[there], event_type, self._latest.time[there], span, columns)
        return rows, self._latest.at[there] // _ROWS


def code_table(codes: UInt32) -> records.CodeTable:
    """Return the table that finds the codes uint32[C] of requested classes."""
    table = _empty_table(codes)
    fill_codes(table)
    return table


def _empty_table(codes: UInt32) -> records.CodeTable:
    size = 1 << max(len(codes) - 1, 1).bit_length()
    bits, places = np.zeros(max(_BITS * size // 64, 1), np.uint64), np.full(_PLACES * size, -1, np.int32)
    return records.CodeTable(codes, bits, places)


def codes_of_block(block: Block, names: tuple[str, ...]) -> UInt32:
    """Return the codes of a block's events by these fields, computed once. A missing field is null."""
    if names not in block.codes:
        rows = block.rows
        nothing = pa.nulls(len(rows), pa.int64())
        columns = [rows.columns.get(name, nothing) for name in names]
        block.codes[names] = class_codes(block.hashed_keys, rows.key, columns)
    return block.codes[names]


def class_codes(keys: HashedTexts, key: Int32, columns: Sequence[pa.Array]) -> UInt32:
    """uint32[N]: the codes of events with keys[key] and these values."""
    mixed = keys.hashes[key]
    for column in columns:
        mixed = (mixed ^ (mixed >> np.uint64(29))) * _ODD + _hashes(column)
    return ((mixed ^ (mixed >> np.uint64(29))) * _ODD >> np.uint64(32)).astype(np.uint32)


def _hashes(values: pa.Array) -> UInt64:
    if values.type != TEXT:
        numbers = np.ascontiguousarray(slot_values(values))
        hashes = np.empty(len(numbers), np.uint64)
        keyed_number_hashes(read_only(numbers), table_key(), hashes)
        return hashes
    return hashed_texts(values).hashes
