"""Text columns (large_string without nulls) numbered and taken by row, each in a call of a kernel.

Tested by: tests/columnar/test_texts.py
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.columnar.batch import NO_TEXTS, text_buffers
from cep.kernels.text.texts import number_texts, take_texts


def taken(rows: NDArray[np.int64], first: pa.Array, second: pa.Array = NO_TEXTS) -> pa.Array:
    """Take the texts of these rows, of which those of `second` stand behind those of `first`."""
    offsets, texts = take_texts(*text_buffers(first), *text_buffers(second), rows)
    return pa.LargeStringArray.from_buffers(len(rows), pa.py_buffer(offsets), pa.py_buffer(texts))


def numbered(first: pa.Array, second: pa.Array) -> tuple[pa.Array, NDArray[np.int32]]:
    """Return the different texts of both in the order of their first row, and which one each row is: int32[N]."""
    count = len(first) + len(second)
    codes, firsts = np.empty(count, np.int32), np.empty(count, np.int64)
    texts_count = number_texts(*text_buffers(first), *text_buffers(second), codes, firsts)
    if texts_count == len(first) and (not texts_count or firsts[texts_count - 1] == texts_count - 1):
        return first, codes  # all of `first` differ, and `second` has no others
    return taken(firsts[:texts_count], first, second), codes
