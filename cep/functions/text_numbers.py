"""Texts → which of a call's texts each one is.

Tested by: tests/histories/test_classes.py, tests/histories/test_tally.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.columnar.batch import TEXT, read_only, slot_values, text_buffers
from cep.columnar.table_key import table_key
from cep.kernels.histories.reach import fill_places, number_texts
from cep.kernels.layout import Int32, Int64, UInt8
from cep.kernels.siphash import keyed_text_hashes


@dataclass(frozen=True, slots=True)
class HashedTexts:
    """Texts with their hashes, which mean something in this process alone. Shapes: hashes uint64[N], offsets
    int64[N + 1] into data uint8[B]; read-only."""

    hashes: NDArray[np.uint64]
    offsets: Int64
    data: UInt8


@dataclass(frozen=True, slots=True)
class ValueBytes:
    """The values of a column, to be compared byte by byte. Shapes: offsets int64[N + 1] into data uint8[B], nulls
    uint8[N], or none if no value is; read-only."""

    offsets: Int64
    data: UInt8
    nulls: UInt8


def value_bytes(column: pa.Array) -> ValueBytes:
    """Return a view of a text column."""
    nulls = read_only(np.asarray(pc.is_null(column)).view(np.uint8) if column.null_count else np.zeros(0, np.uint8))
    if column.type == TEXT:
        return ValueBytes(*text_buffers(column), nulls)
    values = slot_values(column)
    offsets = np.arange(len(values) + 1, dtype=np.int64) * values.itemsize
    return ValueBytes(read_only(offsets), read_only(values.view(np.uint8)), nulls)


def hashed_texts(texts: pa.Array) -> HashedTexts:
    """Return a view of a text array without nulls."""
    offsets, data = text_buffers(texts)
    hashes = np.empty(len(texts), np.uint64)
    keyed_text_hashes(offsets, data, table_key(), hashes)
    return HashedTexts(read_only(hashes), offsets, data)


class TextNumbers:
    """Finds the number of a text among some distinct texts, by its hash."""

    def __init__(self, texts: pa.Array) -> None:
        self.hashed = hashed_texts(texts)
        self._places = np.full(2 << max(len(texts) - 1, 1).bit_length(), -1, np.int32)
        fill_places(self.hashed.hashes, self._places)

    def of(self, texts: pa.Array) -> Int32:
        """Return the number of each text, -1 for unknown texts: int32[N]."""
        return self.of_hashed(hashed_texts(texts))

    def of_hashed(self, texts: HashedTexts) -> Int32:
        """int32[N]: the number of each hashed text, -1 for others."""
        mine, numbers = self.hashed, np.empty(len(texts.hashes), np.int32)
        number_texts(
            self._places, mine.hashes, mine.offsets, mine.data, texts.hashes, texts.offsets, texts.data, numbers
        )
        return numbers
