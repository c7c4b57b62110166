"""HistoryRows: the past events of many keys that histories may still read, as columns.

They are a separate part of the keyed state, because the past of a key outlives its last run, and rules without
histories never read it.
Tested by: tests/histories/test_values.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.columnar.batch import NO_TEXTS, read_only
from cep.columnar.texts import numbered
from cep.functions.text_numbers import HashedTexts, ValueBytes
from cep.kernels.arrange import group_rows
from cep.kernels.layout import Int32, Int64

Int8 = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class HistoryRows:
    """Past events that windows may still need, sorted by key; the events of a key are in event order.

    Shapes: key int32[H], ascending indexes into a list of keys that the caller holds; event_type, time_ms int64[H];
    span int8[H]: after 2^span ms no window includes the event; columns are Arrow arrays of length H.
    """

    key: Int32
    event_type: Int64
    time_ms: Int64
    span: Int8
    columns: Mapping[str, pa.Array]

    def __len__(self) -> int:
        return len(self.time_ms)

    def take(self, rows: Int64) -> HistoryRows:
        """Return the events at these positions."""
        indices = pa.array(rows)
        columns = {name: column.take(indices) for name, column in self.columns.items()}
        return HistoryRows(self.key[rows], self.event_type[rows], self.time_ms[rows], self.span[rows], columns)

    def of_keys(self, key: Int32) -> HistoryRows:
        """Return the same events with new key numbers."""
        return HistoryRows(key, self.event_type, self.time_ms, self.span, self.columns)

    @property
    def nbytes(self) -> int:
        """The approximate memory of the events, in bytes."""
        return 21 * len(self) + sum(int(column.nbytes) for column in self.columns.values())


@dataclass(frozen=True, slots=True)
class Block:
    """Past events together with their keys text[K]. Each key has at least one event.

    `codes`, `hashed`, `values` and `views` are caches, computed once from the events (classes.py).
    """

    keys: pa.Array
    rows: HistoryRows
    codes: dict[tuple[str, ...], NDArray[np.uint32]] = field(default_factory=dict, compare=False, repr=False)
    hashed: list[HashedTexts] = field(default_factory=list, compare=False, repr=False)
    values: dict[str, ValueBytes] = field(default_factory=dict, compare=False, repr=False)
    views: list[tuple[Int32, Int64, Int64]] = field(default_factory=list, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def read_only_rows(self) -> tuple[Int32, Int64, Int64]:
        """Key, time and event type, as kernels take them."""
        if not self.views:
            rows = self.rows
            self.views.append((read_only(rows.key), read_only(rows.time_ms), read_only(rows.event_type)))
        return self.views[0]

    @property
    def nbytes(self) -> int:
        """The approximate memory of the block, in bytes."""
        return int(self.keys.nbytes) + self.rows.nbytes


def no_rows() -> HistoryRows:
    """Return empty history rows."""
    nothing = np.empty(0, np.int64)
    return HistoryRows(nothing.astype(np.int32), nothing, nothing, nothing.astype(np.int8), {})


def concat_rows(parts: Sequence[HistoryRows]) -> HistoryRows:
    """Join all events, part after part. A column that a part lacks is null there."""
    parts = [part for part in parts if len(part)]
    if len(parts) <= 1:
        return parts[0] if parts else no_rows()
    types = {name: column.type for part in parts for name, column in part.columns.items()}
    return HistoryRows(
        np.concatenate([part.key for part in parts]),
        np.concatenate([part.event_type for part in parts]),
        np.concatenate([part.time_ms for part in parts]),
        np.concatenate([part.span for part in parts]),
        {
            name: pa.concat_arrays([part.columns.get(name, pa.nulls(len(part), type_)) for part in parts])
            for name, type_ in types.items()
        },
    )


def sort_rows(rows: HistoryRows) -> HistoryRows:
    """Sort the events by key; the events of a key keep their order."""
    if np.all(rows.key[1:] >= rows.key[:-1]):
        return rows
    key, order = rows.key.astype(np.int64), np.empty(len(rows), np.int64)
    group_rows(key, np.zeros(int(key.max()) + 2, np.int64), order)
    return rows.take(order)


def block_of(keys: pa.Array, rows: HistoryRows) -> Block:
    """Return a block of the events with the keys that they use. The row's key is an index into `keys`."""
    used = np.zeros(len(keys), bool)
    used[rows.key] = True
    if used.all():
        return Block(keys, sort_rows(rows))
    number = (np.cumsum(used) - 1).astype(np.int32)
    return Block(keys.filter(pa.array(used)), sort_rows(rows.of_keys(number[rows.key])))


def concat_blocks(blocks: Sequence[Block]) -> Block:
    """Join all events. A key of several blocks appears once, with its events in block order."""
    if len(blocks) == 1:
        return blocks[0]
    keys, codes = numbered(pa.concat_arrays([block.keys for block in blocks] or [NO_TEXTS]))
    offset = 0
    parts = []
    for block in blocks:
        parts.append(block.rows.of_keys(codes[offset : offset + len(block.keys)][block.rows.key]))
        offset += len(block.keys)
    return Block(keys, sort_rows(concat_rows(parts)))
