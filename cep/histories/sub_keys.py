"""The fields of a sub-key ↔ one number for each row, by which panes of different sub-keys are told apart.

    merchant_id, channel  ──▶  64 bits of a hash        of one field of numbers: different for different values

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
    """int64[N]: the number of each row's values in these fields, one or more of length N; of nulls it means nothing."""
    numbers = _numbers(fields[0])
    for values in fields[1:]:
        numbers = mixed((numbers + _numbers(values)).view(np.int64))
    return numbers.view(np.int64)


def in_segments(rows: PaneRows, key: Int64, sub: Int64, segment: Int64) -> PaneRows:
    """Return the rows of sub-keys that a table has, their key the table's segment. Shapes: key, sub, segment int64[N]
    of the table's rows."""
    at = places(key, sub, rows.key, rows.sub)
    has_segment = at >= 0
    return replace(rows, key=segment[at] if len(segment) else at).take(has_segment)


def places(key: Int64, sub: Int64, wanted_key: Int64, wanted_sub: Int64) -> Int64:
    """int64[M]: where among N rows one is of each wanted key and sub-key, by their numbers; -1: nowhere."""
    codes, firsts = grouped(np.concatenate([key, wanted_key]), np.concatenate([sub, wanted_sub]))
    place_of = np.full(len(firsts), -1, np.int64)
    place_of[codes[: len(key)]] = np.arange(len(key))
    at: Int64 = place_of[codes[len(key) :]]
    return at


def _numbers(values: pa.Array) -> UInt64:
    if pa.types.is_large_string(values.type):
        texts = encoded(values)
        hashes = text_hashes(texts.dictionary)
        codes = np.asarray(texts.indices.fill_null(0))
        return hashes[codes] if len(hashes) else np.zeros(len(values), np.uint64)
    return mixed(np.ascontiguousarray(slot_values(values)))
