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

from cep.columnar.batch import TEXT, slots
from cep.engine.history_rows import Block
from cep.engine.text_numbers import HashedTexts, hashed_texts
from cep.kernels.layout import Int32

UInt32 = NDArray[np.uint32]
UInt64 = NDArray[np.uint64]
_ODD = np.uint64(0x9E3779B97F4A7C15)
_TABLE_SHARE = 16  # of the table of wanted codes that is filled at most: so many others are looked at in vain


class Wanted:
    """Codes of the classes that are asked for; no others, but for one in so many: `table` bool[2^n] is true at their
    last n bits."""

    def __init__(self, codes: Sequence[UInt32]) -> None:
        count = sum(map(len, codes))
        self.table = np.zeros(1 << max(_TABLE_SHARE * count, 1).bit_length(), bool)
        for some in codes:
            self.table[some & np.uint32(len(self.table) - 1)] = True


def codes_of_block(block: Block, names: tuple[str, ...]) -> UInt32:
    """The codes of a block's events by these fields, worked out once. A field that is not kept there is null."""
    if names not in block.codes:
        rows = block.rows
        nothing = pa.nulls(len(rows), pa.int64())
        columns = [rows.columns.get(name, nothing) for name in names]
        block.codes[names] = _codes(hashed_keys(block).hashes, rows.key, columns)
    return block.codes[names]


def hashed_keys(block: Block) -> HashedTexts:
    """The keys of a block, hashed once."""
    if not block.hashed:
        block.hashed.append(hashed_texts(block.keys))
    return block.hashed[0]


def class_codes(keys: pa.Array, key: Int32, columns: Sequence[pa.Array]) -> UInt32:
    """uint32[N]: the codes of events of keys[key] with these values."""
    return _codes(hashed_texts(keys).hashes, key, columns)


def _codes(hashes: UInt64, key: Int32, columns: Sequence[pa.Array]) -> UInt32:
    found = hashes[key]
    for column in columns:
        found = (found ^ (found >> np.uint64(29))) * _ODD + _hashes(column)
    return ((found ^ (found >> np.uint64(29))) * _ODD >> np.uint64(32)).astype(np.uint32)


def _hashes(values: pa.Array) -> UInt64:
    if values.type != TEXT:
        return slots(values)[0].view(np.uint64) * _ODD
    return hashed_texts(values).hashes
