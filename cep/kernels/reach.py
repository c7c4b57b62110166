"""Which keys of a call the keys of kept events are, and which of those events a call looks at.

    number   int32[B]   by key of a block of kept events its number among the keys of the call, -1 if it is none
    key      int32[N]   by event of the block its key there; a key's events lie together, in their order

A class are the events of a key with equal values; equal ones have the same code, uint32. A table of classes is places
int32[2^n], −1 where there is none; it is searched from the last n bits of a code on. Before it, bits uint64[2^m] say of
the last bits of a code whether any class has them: few enough to stay in the processor's nearest cache.

Tested by: tests/engine/test_history_classes.py, tests/engine/test_history_reach.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels.jit import bare, inlined


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


@inlined
def _has_bit(bits: Any, code: Any) -> Any:
    word = bits[(code >> np.uint32(6)) & np.uint32(bits.shape[0] - 1)]
    return (word >> np.uint64(code & np.uint32(63))) & np.uint64(1)


@inlined
def _set_bit(bits: Any, code: Any) -> None:
    bits[(code >> np.uint32(6)) & np.uint32(bits.shape[0] - 1)] |= np.uint64(1) << np.uint64(code & np.uint32(63))


@bare
def fill_codes(codes: Any, bits: Any, places: Any) -> None:
    """Put codes uint32[C] into a table, equal ones once; it has more places than there are codes."""
    mask = np.uint32(places.shape[0] - 1)
    for i in range(codes.shape[0]):
        _set_bit(bits, codes[i])
        at = np.int64(codes[i] & mask)
        while places[at] >= 0 and codes[places[at]] != codes[i]:
            at = (at + 1) & np.int64(mask)
        places[at] = i


@bare
def is_any_asked(number: Any, keys: Any) -> Any:
    """Whether keys that are asked for, bool[K] by number, have any events in a block."""
    for own in number:
        if own >= 0 and keys[own]:
            return True
    return False


@bare
def choose(key: Any, time: Any, number: Any, keys: Any, back_ms: Any, chosen: Any) -> None:
    """Set chosen bool[N] for the events later than back_ms of keys that are asked for: keys bool[K], by number."""
    if not is_any_asked(number, keys):
        return
    for i in range(key.shape[0]):
        own = number[key[i]]
        if own >= 0 and keys[own] and time[i] > back_ms:
            chosen[i] = True


@bare
def choose_classes(
    codes: Any, bits: Any, places: Any, wanted: Any, key: Any, time: Any, number: Any, keys: Any, back_ms: Any,
    chosen: Any,
) -> None:  # fmt: skip
    """The same of those whose codes uint32[N] are in a table of wanted ones, uint32[C]."""
    mask = np.uint32(places.shape[0] - 1)
    for i in range(key.shape[0]):
        if _has_bit(bits, codes[i]) == 0:
            continue
        at = np.int64(codes[i] & mask)
        while places[at] >= 0:
            if wanted[places[at]] == codes[i]:
                own = number[key[i]]
                if own >= 0 and keys[own] and time[i] > back_ms:
                    chosen[i] = True
                break
            at = (at + 1) & np.int64(mask)


@bare
def fill_classes(codes: Any, number: Any, offsets: Any, data: Any, nulls: Any, bits: Any, places: Any) -> None:
    """Put classes into a table, equal ones once: those of keys number int32[C] with the values
    data[offsets[i]:offsets[i + 1]]; none of a key −1, or of a value that is null."""
    mask = np.uint32(places.shape[0] - 1)
    for i in range(codes.shape[0]):
        if number[i] < 0 or (nulls.shape[0] > 0 and nulls[i] != 0):
            continue
        _set_bit(bits, codes[i])
        at = np.int64(codes[i] & mask)
        while places[at] >= 0:
            own = places[at]
            if number[own] == number[i] and _is_same(offsets, data, i, offsets, data, own):
                break
            at = (at + 1) & np.int64(mask)
        if places[at] < 0:
            places[at] = i


@bare
def find_latest(
    bits: Any, places: Any, own_codes: Any, own_number: Any, own_offsets: Any, own_data: Any, codes: Any, key: Any,
    time: Any, event_type: Any, offsets: Any, data: Any, nulls: Any, number: Any, wanted_type: Any, first: Any,
    last_ms: Any, latest_ms: Any, latest_at: Any, rows: Any, times: Any, numbers: Any,
) -> None:  # fmt: skip
    """The latest event of each class of a table in several blocks, of which this is one.

    Shapes: codes, nulls and values by event; latest_ms int64[C], which nothing is later than at first, is its time and
    latest_at int64[C] its place: `first` is that of the block's first event, last_ms the time of its latest. Of an
    event type if that is not −1. rows, times, numbers int64[N] are scratch, or longer.

    First of all events the codes are read alone, in their order, then of those that may be of a class the time and the
    key: they are in no cache mostly, and by loops of their own the processor fetches them for many events at a time.
    """
    mask, count, kept = np.uint32(places.shape[0] - 1), np.int64(0), np.int64(0)
    for i in range(codes.shape[0]):
        rows[count] = i
        count += np.int64(_has_bit(bits, codes[i]))
    for k in range(count):
        code = codes[rows[k]]
        at = np.int64(code & mask)
        while places[at] >= 0:
            own = np.int64(places[at])
            if own_codes[own] == code and latest_ms[own] < last_ms:
                rows[kept] = rows[k]
                kept += 1
                break
            at = (at + 1) & np.int64(mask)
    for k in range(kept):
        times[k], numbers[k] = time[rows[k]], number[key[rows[k]]]
    for k in range(kept):
        i = rows[k]
        at = np.int64(codes[i] & mask)
        while places[at] >= 0:
            own = np.int64(places[at])
            if own_codes[own] == codes[i] and times[k] > latest_ms[own] and own_number[own] == numbers[k]:
                if _is_same(offsets, data, i, own_offsets, own_data, own):
                    is_null = nulls.shape[0] > 0 and nulls[i] != 0
                    if not is_null and (wanted_type < 0 or event_type[i] == wanted_type):
                        latest_ms[own], latest_at[own] = times[k], first + i
                    break
            at = (at + 1) & np.int64(mask)


@bare
def choose_first(
    key: Any, time: Any, event_type: Any, number: Any, keys: Any, back_ms: Any, until_ms: Any, wanted_type: Any,
    chosen: Any,
) -> None:  # fmt: skip
    """The same of those up to until_ms, and of the first one after it of each key, of a type if that is not −1.

    Keys that have it are taken out of `keys`.
    """
    found = np.int64(-1)
    if not is_any_asked(number, keys):
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
