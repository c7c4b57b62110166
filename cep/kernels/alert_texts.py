"""The texts of alerts: those whose digests are their ids, and those that are taken over.

Tested by: tests/kernels/test_alert_texts.py, tests/engine/test_alerts.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels.jit import inlined, kernel
from cep.kernels.texts import copy_bytes

_ZERO, _COLON = 48, 58


@inlined
def _digits_count(number: Any) -> Any:
    count = 1
    while number >= 10:
        number //= 10
        count += 1
    return count


@inlined
def _write(texts: Any, row: Any, out: Any, at: Any) -> Any:
    """`5:abcde` for `abcde`, bytes counted; returns where it ends."""
    offsets, data = texts
    start, length = offsets[row], offsets[row + 1] - offsets[row]
    at += _digits_count(length)
    rest, digit_at = length, at
    while True:
        digit_at -= 1
        out[digit_at] = _ZERO + rest % 10
        rest //= 10
        if rest == 0:
            break
    out[at] = _COLON
    for k in range(length):
        out[at + 1 + k] = data[start + k]
    return at + 1 + length


@kernel
def digest_texts(heads: Any, head_of: Any, keys: Any, key_of: Any, ids: Any, bounds: Any, rows: Any) -> Any:
    """For each of M matches its head, then its key and the ids of its events, each behind its length in bytes.

    Shapes: heads, keys and ids are texts, (int64 offsets, UTF-8 bytes); head_of int64[M] and key_of int32[M] choose
    among them; the events of match number r are bounds[r] to bounds[r + 1] of ids, and rows int64[M] are the matches.
    Returns all texts as uint8[T], and int64[M] where each ends.
    """
    ends = np.empty(rows.shape[0], np.int64)
    total = 0
    for i in range(rows.shape[0]):
        total += heads[0][head_of[i] + 1] - heads[0][head_of[i]]
        length = keys[0][key_of[i] + 1] - keys[0][key_of[i]]
        total += length + 1 + _digits_count(length)
        for event in range(bounds[rows[i]], bounds[rows[i] + 1]):
            length = ids[0][event + 1] - ids[0][event]
            total += length + 1 + _digits_count(length)
        ends[i] = total
    out = np.empty(total, np.uint8)
    at = 0
    for i in range(rows.shape[0]):
        for k in range(heads[0][head_of[i]], heads[0][head_of[i] + 1]):
            out[at] = heads[1][k]
            at += 1
        at = _write(keys, key_of[i], out, at)
        for event in range(bounds[rows[i]], bounds[rows[i] + 1]):
            at = _write(ids, event, out, at)
    return out, ends


@kernel
def chosen_texts(offsets: Any, data: Any, rows: Any) -> Any:
    """The texts at these rows one after the other: their offsets int32[N + 1], and bytes uint8[B].

    Shapes: int64 offsets into data uint8, rows int64[N] or int32[N]. B is to be less than two gigabytes.
    """
    ends = np.zeros(rows.shape[0] + 1, np.int32)
    total = 0
    for i in range(rows.shape[0]):
        total += offsets[rows[i] + 1] - offsets[rows[i]]
        ends[i + 1] = total
    out = np.empty(total, np.uint8)
    at = 0
    for i in range(rows.shape[0]):
        at = copy_bytes(data, offsets[rows[i]], offsets[rows[i] + 1], out, at)
    return ends, out


@kernel
def bound_rows(bounds: Any, rows: Any) -> Any:
    """Which events these matches have bound: offsets int32[M + 1], and the events' numbers int64[B], match by match.

    Shapes: the events of match number r are bounds[r] to bounds[r + 1], int64; rows int64[M] are the matches.
    """
    ends = np.zeros(rows.shape[0] + 1, np.int32)
    total = 0
    for i in range(rows.shape[0]):
        total += bounds[rows[i] + 1] - bounds[rows[i]]
        ends[i + 1] = total
    events = np.empty(total, np.int64)
    at = 0
    for i in range(rows.shape[0]):
        for event in range(bounds[rows[i]], bounds[rows[i] + 1]):
            events[at] = event
            at += 1
    return ends, events
