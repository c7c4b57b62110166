"""SubTallies: the tallies of one history by sub-key, for many keys: one entry for each sub-key with events in its
window.

    entry    key | the sub-key's fields | tally        removed when the last event leaves its window

Tested by: tests/histories/test_tally.py, tests/histories/test_values.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from cep.columnar.batch import TEXT, read_only, slot_values
from cep.columnar.table_key import table_key
from cep.functions.text_numbers import TextNumbers
from cep.histories.store import SubTallies, concat_sub_tallies
from cep.histories.table import HistoryTable, empty_places
from cep.kernels.groups import find_pairs, group_pairs
from cep.kernels.layout import Int32, Int64


@dataclass(frozen=True, slots=True)
class Tallied:
    """The tallies that a call carries: by name, int64[K, W] by key, and entries by sub-key.

    `crowded` names the tallies that would have too many entries to be carried.
    """

    by_key: Mapping[str, Int64] = field(default_factory=dict)
    by_sub_key: Mapping[str, SubTallies] = field(default_factory=dict)
    crowded: frozenset[str] = frozenset()

    def of_keys(self, numbers: Int64 | Int32, keys_count: int) -> Tallied:
        """Return the same tallies, with key k renumbered as numbers[k] of `keys_count` keys."""
        by_key = {}
        for name, tally in self.by_key.items():
            by_key[name] = np.zeros((keys_count, tally.shape[1]), np.int64)
            by_key[name][numbers] = tally
        by_sub_key = {name: entries.of_keys(numbers[entries.key]) for name, entries in self.by_sub_key.items()}
        return Tallied(by_key, by_sub_key, self.crowded)


def no_entries(table: HistoryTable, names: Sequence[str], width: int) -> SubTallies:
    """Return no entries, for a sub-key of these fields."""
    by = tuple(table.fields[name].slice(0, 0) for name in names)
    return SubTallies(np.empty(0, np.int32), by, np.empty((0, width), np.int64))


def segments_of(entries: SubTallies, table: HistoryTable, by: Sequence[int]) -> Int64:
    """Find the segment of the table to which each stored entry belongs: int64[E], -1 if the table has no such rows.

    A segment (`table.segments(by)`) is a key with one value of each field in `by`; the entries have the same fields.
    """
    has_all = np.ones(len(table.key), bool)
    for column in by:
        has_all &= table.nulls[column] == 0
    rows = np.flatnonzero(has_all)
    row_group, entry_group = table.key[rows], entries.key.astype(np.int64)
    for column, values in zip(by, entries.by, strict=True):
        codes = _codes(values, table.texts)
        row_group, entry_group = _grouped_with(row_group, table.columns[column, rows], entry_group, codes)
    segment, _ = table.segments(tuple(by))
    of_group = np.full(int(row_group.max(initial=-1)) + 2, -1, np.int64)
    of_group[row_group] = segment[rows]
    of_entries: Int64 = of_group[entry_group]  # the last group stands for entries without a row
    return of_entries


def _grouped_with(first: Int64, second: Int64, others_first: Int64, others_second: Int64) -> tuple[Int64, Int64]:
    """Return the numbers of pairs, and the number of each other pair, -1 if it is not among the pairs."""
    places, firsts = empty_places(len(first)), np.empty(len(first), np.int64)
    codes, other_codes = np.empty(len(first), np.int64), np.empty(len(others_first), np.int64)
    pairs = read_only(first), read_only(second)
    group_pairs(*pairs, table_key(), places, firsts, codes)
    find_pairs(*pairs, table_key(), places, firsts, read_only(others_first), read_only(others_second), other_codes)
    return codes, other_codes


def entries_after(entries: SubTallies, segment_of: Int64, sums: Int64, table: HistoryTable, by: Sequence[int],
                  names: Sequence[str]) -> SubTallies:  # fmt: skip
    """Return the entries after a call: old entries with new sums, and new entries for segments that had none.

    Shapes: segment_of int64[E] is the segment of each old entry or -1; sums int64[S, W] are the new sums by segment. An
    entry whose window has become empty is dropped.
    """
    segment, _ = table.segments(tuple(by))
    row_of = np.zeros(len(sums), np.int64)
    row_of[segment] = np.arange(len(segment))
    in_table = np.flatnonzero(segment_of >= 0)
    new_sums = entries.sums.copy()
    new_sums[in_table] = sums[segment_of[in_table]]
    is_new = sums[:, 0] != 0
    is_new[segment_of[in_table]] = False
    rows = row_of[is_new]
    fields = tuple(table.fields[name].take(pa.array(rows)) for name in names)
    new_entries = SubTallies(table.key[rows].astype(np.int32), fields, sums[is_new])
    old, is_nonempty = SubTallies(entries.key, entries.by, new_sums), new_sums[:, 0] != 0
    if not is_nonempty.all():
        old = old.take(np.flatnonzero(is_nonempty))
    return concat_sub_tallies([part for part in (old, new_entries) if len(part)] or [new_entries])


def _codes(values: pa.Array, texts: pa.Array) -> Int64:
    """Return the values as a table with these texts encodes them; -1 for unknown texts."""
    if values.type != TEXT:
        return slot_values(values)
    return TextNumbers(texts).of(values).astype(np.int64)
