"""Text columns (large_string) numbered, found and taken by row, each in a call of a kernel; and numbers counted.

The tables have keyed hashes, so no sender can make texts that collide. Arrow's `dictionary_encode`, `unique` and
`index_in` do not, so texts that a sender chooses use this module. No output of a process depends on the key, which it
draws when it begins (kernels/siphash.py): tables number their content by first occurrence.
Tested by: tests/columnar/test_texts.py, tests/columnar/test_number_texts.py.
"""

import secrets
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.columnar.batch import NO_TEXTS, read_only, text_buffers
from cep.kernels.layout import UInt64
from cep.kernels.text.texts import number_texts, take_texts

_key = read_only(np.frombuffer(secrets.token_bytes(16), np.uint64).copy())


def table_key() -> UInt64:
    """Return the key: uint64[2], read-only."""
    return _key


def taken(rows: NDArray[np.int64], first: pa.Array, second: pa.Array = NO_TEXTS) -> pa.Array:
    """Take the texts of these rows; the rows of `second` follow those of `first`."""
    offsets, texts = take_texts(*text_buffers(first), *text_buffers(second), rows)
    return pa.LargeStringArray.from_buffers(len(rows), pa.py_buffer(offsets), pa.py_buffer(texts))


def numbered(first: pa.Array, second: pa.Array = NO_TEXTS) -> tuple[pa.Array, NDArray[np.int32]]:
    """Return the distinct texts of both (no nulls) in the order of their first row, and each row's index: int32[N]."""
    count = len(first) + len(second)
    codes, firsts = np.empty(count, np.int32), np.empty(count, np.int64)
    texts_count = number_texts(*text_buffers(first), *text_buffers(second), table_key(), codes, firsts)
    if texts_count == len(first) and (not texts_count or firsts[texts_count - 1] == texts_count - 1):
        return first, codes  # all of `first` differ, and `second` adds none
    return taken(firsts[:texts_count], first, second), codes


def encoded(texts: pa.Array) -> pa.DictionaryArray:
    """Return texts with their dictionary, in the order of the first row of each. A null stays one."""
    if not texts.null_count:
        dictionary, codes = numbered(texts)
        return pa.DictionaryArray.from_arrays(pa.array(codes), dictionary)
    is_null = np.asarray(pc.is_null(texts))
    dictionary, codes = numbered(texts.drop_null())
    indices = np.zeros(len(texts), np.int32)
    indices[~is_null] = codes
    return pa.DictionaryArray.from_arrays(pa.array(indices, mask=is_null), dictionary)


def different_texts(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return each text once, in the order of its first row, and no null."""
    whole = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    return numbered(whole.cast(pa.large_string()).drop_null())[0]


def rows_among(texts: pa.Array | pa.ChunkedArray, among: pa.Array) -> NDArray[np.int64]:
    """Return for each text the first row of `among` that has it: int64[N], -1 for one that none has, and for a null."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    is_null = np.asarray(pc.is_null(texts))
    is_text = np.asarray(pc.is_valid(among))
    rows = np.flatnonzero(is_text)
    dictionary, codes = numbered(among.drop_null(), texts.fill_null(""))
    first = np.full(len(dictionary), -1)
    first[codes[: len(rows)][::-1]] = rows[::-1]
    return np.where(is_null, -1, first[codes[len(rows) :]])


def different_count(numbers: NDArray[Any]) -> int:
    """Count the different numbers of an array; NaN is one of them, however often it is there. Cost: O(N log N).

    Without `return_…`, `np.unique` uses a hash table without a key (FNV-1a). 40 000 numbers that were made to collide
    took 250 ms, others 6 ms, and twice as many take four times as long. Sorted, all take 1 ms.
    """
    if not len(numbers):
        return 0
    ordered = np.sort(numbers)  # NaN comes last
    count = 1 + int(np.count_nonzero(ordered[1:] > ordered[:-1]))
    has_both = bool(np.isnan(ordered[-1])) and not np.isnan(ordered[0])
    return count + has_both
