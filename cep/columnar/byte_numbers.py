"""The bytes of whole numbers, or their base64 → the numbers: decimals of Debezium (`decimal.handling.mode=precise`).

    "BBo="  →  bytes 04 1A  →  1050        two's complement, the highest byte first

Tested by: tests/columnar/test_number_texts.py
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.columnar.batch import TEXT, text_buffers
from cep.kernels.layout import Int64

# The value of each character of base64; -1 for others, `=` among them.
_SIX_BITS = np.full(256, -1, np.int64)
_SIX_BITS[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")] = np.arange(64)
_CHARACTERS_MAX = 11  # of the 8 bytes of a whole number


def is_bytes(type_: pa.DataType) -> bool:
    """Return True for a column of bytes of any layout."""
    is_plain = pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_)
    return bool(is_plain or pa.types.is_binary_view(type_))


def whole_numbers(source: pa.Array) -> pa.Array:
    """Read whole numbers that are sent as big-endian bytes, or as base64 text of such bytes.

    Returns: int64, null for other values and for numbers of more bits. Cost: a pass over the columns of characters; no
    loop over rows.
    """
    if is_bytes(source.type):
        return _of_bytes(source.cast(pa.large_binary()))
    offsets, data = text_buffers(source.cast(TEXT))
    lengths = np.diff(offsets)
    data = np.append(data, np.uint8(0))
    last = np.maximum(offsets[1:] - 1, 0)
    pads = (data[last] == ord("=")).astype(np.int64) + (data[np.maximum(last - 1, 0)] == ord("=")) * (lengths > 1)
    counts = lengths - pads
    fits = (lengths % 4 == 0) & (counts >= 2) & (counts <= _CHARACTERS_MAX) & (pads <= 2)
    bits, spare = np.zeros(len(lengths), np.uint64), 6 * counts % 8
    for position in range(_CHARACTERS_MAX):
        value = _SIX_BITS[data[np.minimum(offsets[:-1] + position, len(data) - 1)]]
        is_used = position < counts
        fits &= ~is_used | (value >= 0)
        step = np.where(position == counts - 1, 6 - spare, 6)
        shifted = (bits << step.astype(np.uint64)) | (np.maximum(value, 0) >> (6 - step)).astype(np.uint64)
        bits = np.where(is_used & fits, shifted, bits)
    unused = (64 - 8 * (6 * counts // 8)).clip(0, 63)
    numbers: Int64 = (bits << unused.astype(np.uint64)).view(np.int64) >> unused
    is_valid = fits & np.asarray(pc.is_valid(source))
    return pa.array(np.where(is_valid, numbers, 0), mask=~is_valid)


def _of_bytes(source: pa.Array) -> pa.Array:
    offsets, data = text_buffers(source.view(TEXT))
    lengths = np.diff(offsets)
    data = np.append(data, np.uint8(0)).astype(np.int64)
    first = data[np.minimum(offsets[:-1], len(data) - 1)]
    numbers = np.where(first >= 128, np.int64(-1), np.int64(0))
    for at in range(8):
        byte = data[np.minimum(offsets[:-1] + at, len(data) - 1)]
        numbers = np.where(at < lengths, (numbers << 8) | byte, numbers)
    fits = (lengths >= 1) & (lengths <= 8) & np.asarray(pc.is_valid(source))
    return pa.array(np.where(fits, numbers, 0), mask=~fits)
