"""SubTallies: the tallies of one history by sub-key, for many keys: an entry for each with events in its window.

    entry    key | the sub-key's fields | tally        gone with the last event of its window

Tested by: tests/engine/test_tallies.py, tests/engine/test_histories.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from cep.columnar.batch import slots
from cep.engine.history_table import HistoryTable, dense_codes
from cep.kernels.layout import Int32, Int64


@dataclass(frozen=True, slots=True)
class SubTallies:
    """E entries. Shapes: key int32[E], a number of somebody's keys; by the sub-key's fields, Arrow arrays of length E
    without nulls; sums int64[E, W] (tallies.py)."""

    key: Int32
    by: tuple[pa.Array, ...]
    sums: Int64

    def __len__(self) -> int:
        return len(self.key)

    @property
    def nbytes(self) -> int:
        """About how much memory they take."""
        return int(self.key.nbytes + self.sums.nbytes) + sum(int(values.nbytes) for values in self.by)

    def take(self, rows: Int64) -> SubTallies:
        """The entries at these positions."""
        indices = pa.array(rows)
        return SubTallies(self.key[rows], tuple(values.take(indices) for values in self.by), self.sums[rows])

    def of_keys(self, key: Int64 | Int32) -> SubTallies:
        """The same, their keys numbered otherwise."""
        return SubTallies(key.astype(np.int32), self.by, self.sums)


@dataclass(frozen=True, slots=True)
class Tallied:
    """Tallies by keys, int64[K, W] by name, and by sub-keys; those of which there are none, because they would have too
    many entries, are `crowded`."""

    by_key: Mapping[str, Int64] = field(default_factory=dict)
    by_sub_key: Mapping[str, SubTallies] = field(default_factory=dict)
    crowded: frozenset[str] = frozenset()

    def of_keys(self, numbers: Int64 | Int32, keys_count: int) -> Tallied:
        """The same with key k as numbers[k] of so many keys."""
        by_key = {}
        for name, tally in self.by_key.items():
            by_key[name] = np.zeros((keys_count, tally.shape[1]), np.int64)
            by_key[name][numbers] = tally
        by_sub_key = {name: entries.of_keys(numbers[entries.key]) for name, entries in self.by_sub_key.items()}
        return Tallied(by_key, by_sub_key, self.crowded)


def concat_sub_tallies(parts: Sequence[SubTallies]) -> SubTallies:
    """All entries; at least one part."""
    if len(parts) == 1:
        return parts[0]
    by = zip(*(part.by for part in parts), strict=True)
    return SubTallies(
        np.concatenate([part.key for part in parts]),
        tuple(pa.concat_arrays(values) for values in by),
        np.concatenate([part.sums for part in parts]),
    )


def no_entries(table: HistoryTable, names: Sequence[str], width: int) -> SubTallies:
    """None yet, for a sub-key of these fields."""
    by = tuple(table.fields[name].slice(0, 0) for name in names)
    return SubTallies(np.empty(0, np.int32), by, np.empty((0, width), np.int64))


def segments_of(entries: SubTallies, table: HistoryTable, by: Sequence[int], names: Sequence[str]) -> Int64:
    """int64[E]: the segment of the table (`table.segments(by)`) that each entry is of, -1 for those that it has no row
    of. `names` are those of the fields `by`."""
    has_all = np.ones(len(table.key), bool)
    for column in by:
        has_all &= table.nulls[column] == 0
    rows, indices = np.flatnonzero(has_all), pa.array(np.flatnonzero(has_all))
    codes = np.concatenate([entries.key, table.key[rows]])
    for name, values in zip(names, entries.by, strict=True):
        own, count = _codes(pa.concat_arrays([values, table.fields[name].take(indices)]))
        codes, _ = dense_codes(codes * (count + 1) + own)
    segment, _ = table.segments(tuple(by))
    found = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
    found[codes[len(entries) :]] = segment[rows]
    of_entries: Int64 = found[codes[: len(entries)]]
    return of_entries


def entries_after(entries: SubTallies, segment_of: Int64, sums: Int64, table: HistoryTable, by: Sequence[int],
                  names: Sequence[str]) -> SubTallies:  # fmt: skip
    """The entries after a call, in which those of segments of the table have become sums int64[S, W]."""
    segment, _ = table.segments(tuple(by))
    row_of = np.zeros(len(sums), np.int64)
    row_of[segment] = np.arange(len(segment))
    alive = np.flatnonzero(sums[:, 0] != 0)
    rows = row_of[alive]
    fields = tuple(table.fields[name].take(pa.array(rows)) for name in names)
    fresh = SubTallies(table.key[rows].astype(np.int32), fields, sums[alive])
    return concat_sub_tallies([entries.take(np.flatnonzero(segment_of < 0)), fresh]) if len(entries) else fresh


def _codes(values: pa.Array) -> tuple[Int64, int]:
    """Numbers for values, equal ones alike, as the table tells them apart."""
    if pa.types.is_large_string(values.type) or pa.types.is_string(values.type):
        encoded = values.dictionary_encode()
        return np.asarray(encoded.indices).astype(np.int64), len(encoded.dictionary)
    return dense_codes(slots(values)[0])
