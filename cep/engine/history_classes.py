"""Events of many segments → those of wanted classes. A class are the events of a key with equal values of some fields.

A class has a code of 32 bits, which a segment keeps for each of its events once it has been asked. Other classes may
have the same code: their events are looked at in vain, and all of them, so that none of a class is ever missing.
Tested by: tests/engine/test_history_classes.py, tests/engine/test_history_reach.py
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.columnar.batch import TEXT, slots, text_buffers
from cep.engine.history_rows import Block
from cep.kernels.arrange import hash_texts
from cep.kernels.layout import Int32

UInt32 = NDArray[np.uint32]
UInt64 = NDArray[np.uint64]
_SEED = 2
_ODD = np.uint64(0x9E3779B97F4A7C15)
_TABLE_SHARE = 16  # of the table of wanted codes that is filled at most: so many others are looked at in vain


class Wanted:
    """Codes of the classes that are asked for; no others, but for one in so many."""

    def __init__(self, codes: Sequence[UInt32]) -> None:
        count = sum(map(len, codes))
        self._mask = np.uint32((1 << max(_TABLE_SHARE * count, 1).bit_length()) - 1)
        self._table = np.zeros(int(self._mask) + 1, bool)
        for some in codes:
            self._table[some & self._mask] = True

    def has(self, codes: UInt32) -> NDArray[np.bool_]:
        """Which of these are wanted."""
        found: NDArray[np.bool_] = self._table[codes & self._mask]
        return found


def codes_of_block(block: Block, names: tuple[str, ...]) -> UInt32:
    """The codes of a block's events by these fields, worked out once. A field that is not kept there is null."""
    if names not in block.codes:
        rows = block.rows
        nothing = pa.nulls(len(rows), pa.int64())
        block.codes[names] = class_codes(block.keys, rows.key, [rows.columns.get(name, nothing) for name in names])
    return block.codes[names]


def class_codes(keys: pa.Array, key: Int32, columns: Sequence[pa.Array]) -> UInt32:
    """uint32[N]: the codes of events of keys[key] with these values."""
    found = _hashes(keys)[key]
    for column in columns:
        found = (found ^ (found >> np.uint64(29))) * _ODD + _hashes(column)
    return ((found ^ (found >> np.uint64(29))) * _ODD >> np.uint64(32)).astype(np.uint32)


def _hashes(values: pa.Array) -> UInt64:
    if values.type != TEXT:
        return slots(values)[0].view(np.uint64) * _ODD
    found = np.empty(len(values), np.uint64)
    hash_texts(*text_buffers(values), _SEED, found)
    return found
