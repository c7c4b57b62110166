"""Matches → the texts of their alerts: the input of id digests, and texts copied into columns.

Tested by: tests/kernels/test_alert_texts.py, tests/engine/test_alerts.py
"""

import numpy as np

from cep.kernels.jit import inlined, kernel
from cep.kernels.layout import Int32, Int64, UInt8
from cep.kernels.records import Texts
from cep.kernels.text.texts import copy_bytes

_ZERO, _COLON = 48, 58


@inlined
def _digits_count(number: int) -> int:
    count = 1
    while number >= 10:
        number //= 10
        count += 1
    return count


@inlined
def _write(texts: Texts, row: int, out: UInt8, position: int) -> int:
    """Write a text after its length in bytes, `5:abcde` for `abcde`. Return the end."""
    offsets, data = texts.offsets, texts.data
    start, length = offsets[row], offsets[row + 1] - offsets[row]
    position += _digits_count(length)
    rest, digit_at = length, position
    while True:
        digit_at -= 1
        out[digit_at] = _ZERO + rest % 10
        rest //= 10
        if rest == 0:
            break
    out[position] = _COLON
    for k in range(length):
        out[position + 1 + k] = data[start + k]
    return position + 1 + length


@kernel
def digest_texts(
    heads: Texts, head_of: Int64, keys: Texts, key_of: Int32, ids: Texts, bounds: Int64, rows: Int64
) -> tuple[UInt8, Int64]:
    """Write for each of M matches the text whose hash becomes the alert's id: a head, the key and the events' ids.

    A head names the kind of alert, the rule and its version. The key and each id follow their length in bytes. Shapes:
    rows int64[M], the numbers of the matches; head_of int64[M] and key_of int32[M], the numbers of their heads and
    keys. Match number r has the ids bounds[r] to bounds[r + 1]. Returns all texts as uint8[T], and their ends int64[M].
    """
    ends = np.empty(rows.shape[0], np.int64)
    total = 0
    for i in range(rows.shape[0]):
        total += heads.offsets[head_of[i] + 1] - heads.offsets[head_of[i]]
        length = keys.offsets[key_of[i] + 1] - keys.offsets[key_of[i]]
        total += length + 1 + _digits_count(length)
        for event in range(bounds[rows[i]], bounds[rows[i] + 1]):
            length = ids.offsets[event + 1] - ids.offsets[event]
            total += length + 1 + _digits_count(length)
        ends[i] = total
    out = np.empty(total, np.uint8)
    position = 0
    for i in range(rows.shape[0]):
        for k in range(heads.offsets[head_of[i]], heads.offsets[head_of[i] + 1]):
            out[position] = heads.data[k]
            position += 1
        position = _write(keys, key_of[i], out, position)
        for event in range(bounds[rows[i]], bounds[rows[i] + 1]):
            position = _write(ids, event, out, position)
    return out, ends


@kernel
def chosen_texts(offsets: Int64, data: UInt8, rows: Int64 | Int32) -> tuple[Int32, UInt8]:
    """Copy the texts at rows int64[N] or int32[N] into one buffer: offsets int32[N + 1], bytes uint8[B] below 2 GB."""
    ends = np.zeros(rows.shape[0] + 1, np.int32)
    total = 0
    for i in range(rows.shape[0]):
        total += offsets[rows[i] + 1] - offsets[rows[i]]
        ends[i + 1] = total
    out = np.empty(total, np.uint8)
    position = 0
    for i in range(rows.shape[0]):
        position = copy_bytes(data, offsets[rows[i]], offsets[rows[i] + 1], out, position)
    return ends, out


@kernel
def bound_rows(bounds: Int64, rows: Int64) -> tuple[Int32, Int64]:
    """List the events that M matches have bound, match by match. Return offsets int32[M + 1] and events int64[B].

    Shapes: rows int64[M], the numbers of the matches. Match number r has the events bounds[r] to bounds[r + 1], int64.
    """
    ends = np.zeros(rows.shape[0] + 1, np.int32)
    total = 0
    for i in range(rows.shape[0]):
        total += bounds[rows[i] + 1] - bounds[rows[i]]
        ends[i + 1] = total
    events = np.empty(total, np.int64)
    position = 0
    for i in range(rows.shape[0]):
        for event in range(bounds[rows[i]], bounds[rows[i] + 1]):
            events[position] = event
            position += 1
    return ends, events
