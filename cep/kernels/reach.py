"""Which keys of a call the keys of kept events are, and which of those events a call looks at.

    number   int32[B]   by key of a block of kept events its number among the keys of the call, -1 if it is none
    key      int32[N]   by event of the block its key there; a key's events lie together, in their order

Tested by: tests/engine/test_history_classes.py, tests/engine/test_history_reach.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels.jit import bare


@bare
def _is_same(offsets: Any, data: Any, at: Any, other_offsets: Any, other_data: Any, other: Any) -> Any:
    start, length = offsets[at], offsets[at + 1] - offsets[at]
    other_start = other_offsets[other]
    if other_offsets[other + 1] - other_start != length:
        return False
    for i in range(length):
        if data[start + i] != other_data[other_start + i]:
            return False
    return True


@bare
def fill_places(hashes: Any, places: Any) -> None:
    """Put different texts with these hashes (uint64[K]) into a table: places int32[2^n] above K, −1 at first."""
    mask = np.uint64(places.shape[0] - 1)
    for i in range(hashes.shape[0]):
        at = np.int64(hashes[i] & mask)
        while places[at] >= 0:
            at = (at + 1) & np.int64(mask)
        places[at] = i


@bare
def number_texts(
    places: Any, own_hashes: Any, own_offsets: Any, own_data: Any, hashes: Any, offsets: Any, data: Any, out: Any
) -> None:
    """Fill out int32[B] with which of a table's own texts each text is, −1 for none of them."""
    mask = np.uint64(places.shape[0] - 1)
    for i in range(hashes.shape[0]):
        at = np.int64(hashes[i] & mask)
        out[i] = -1
        while places[at] >= 0:
            own = np.int64(places[at])
            if own_hashes[own] == hashes[i] and _is_same(offsets, data, i, own_offsets, own_data, own):
                out[i] = own
                break
            at = (at + 1) & np.int64(mask)


@bare
def _is_any_asked(number: Any, keys: Any) -> Any:
    for own in number:
        if own >= 0 and keys[own]:
            return True
    return False


@bare
def choose(key: Any, time: Any, number: Any, keys: Any, back_ms: Any, chosen: Any) -> None:
    """Set chosen bool[N] for the events later than back_ms of keys that are asked for: keys bool[K], by number."""
    if not _is_any_asked(number, keys):
        return
    for i in range(key.shape[0]):
        own = number[key[i]]
        if own >= 0 and keys[own] and time[i] > back_ms:
            chosen[i] = True


@bare
def choose_classes(
    codes: Any, wanted: Any, key: Any, time: Any, number: Any, keys: Any, back_ms: Any, chosen: Any
) -> None:
    """The same of those whose codes uint32[N] are in the table wanted bool[2^n]."""
    mask = np.uint32(wanted.shape[0] - 1)
    for i in range(key.shape[0]):
        if wanted[codes[i] & mask]:
            own = number[key[i]]
            if own >= 0 and keys[own] and time[i] > back_ms:
                chosen[i] = True


@bare
def choose_first(
    key: Any, time: Any, event_type: Any, number: Any, keys: Any, back_ms: Any, until_ms: Any, wanted_type: Any,
    chosen: Any,
) -> None:  # fmt: skip
    """The same of those up to until_ms, and of the first one after it of each key, of a type if that is not −1.

    Keys that have it are taken out of `keys`.
    """
    found = np.int64(-1)
    if not _is_any_asked(number, keys):
        return
    for i in range(key.shape[0]):
        own = np.int64(number[key[i]])
        if found >= 0 and found != own:
            keys[found] = False
            found = np.int64(-1)
        if own < 0 or not keys[own] or time[i] <= back_ms:
            continue
        if time[i] <= until_ms:
            chosen[i] = True
        elif found < 0 and (wanted_type < 0 or event_type[i] == wanted_type):
            chosen[i] = True
            found = own
    if found >= 0:
        keys[found] = False
