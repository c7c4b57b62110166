"""The fields of a sub-key ↔ one number for each row, which distinguishes the panes of different sub-keys.

    merchant_id, channel  ──▶  64 bits of a hash        of one numeric field: distinct for distinct values

Tested by: tests/histories/test_folds.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from cep.columnar.batch import slot_values
from cep.columnar.texts import encoded
from cep.histories.numbers.panes import PaneRows
from cep.histories.numbers.sketches import UInt64, mixed, text_hashes
from cep.histories.table import grouped
from cep.kernels.layout import Int64


def sub_numbers(fields: Sequence[pa.Array]) -> Int64:
    """int64[N]: the number of each row's values in these fields, one or more of length N; undefined for null."""
    numbers = _numbers(fields[0])
    for values in fields[1:]:
        numbers = mixed((numbers + _numbers(values)).view(np.int64))
    return numbers.view(np.int64)


def in_segments(rows: PaneRows, key: Int64, sub: Int64, segment: Int64) -> PaneRows:
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


def _numbers(values: pa.Array) -> UInt64:
    if pa.types.is_large_string(values.type):
        texts = encoded(values)
        hashes = text_hashes(texts.dictionary)
        codes = np.asarray(texts.indices.fill_null(0))
        return hashes[codes] if len(hashes) else np.zeros(len(values), np.uint64)
    return mixed(np.ascontiguousarray(slot_values(values)))
