"""Blocks of retained events → the events that a call looks at: of its keys, and of wanted classes.

    number   int32[B]   by key of a block of retained events its number among the keys of the call, -1 if it is none
    key      int32[N]   by event of the block its key there; a key's events lie together, in their order

A class are the events of a key with equal values; equal ones have the same code, uint32. A table of classes is places
int32[2^n], −1 where there is none; it is searched from the last n bits of a code on. Before it, bits uint64[2^m] tell
of the last bits of a code if any class has them: few enough to stay in the processor's nearest cache.

Tested by: tests/histories/test_classes.py, tests/histories/test_reach.py
"""

from __future__ import annotations

import numpy as np

from cep.kernels.histories.records import (
    BlockRequest,
    BlockRows,
    ClassBlock,
    Classes,
    CodeTable,
    Latest,
    Scratch,
    UInt32,
    ValueBytes,
)
from cep.kernels.jit import bare, inlined
from cep.kernels.layout import Bool, Int32, Int64, UInt8, UInt64, int64


@bare
def _is_same(offsets: Int64, data: UInt8, at: int, other_offsets: Int64, other_data: UInt8, other: int) -> bool:
    """Return True if two values have the same bytes."""
    start, length = offsets[at], offsets[at + 1] - offsets[at]
    other_start = other_offsets[other]
    if other_offsets[other + 1] - other_start != length:
        return False
    for i in range(length):
        if data[start + i] != other_data[other_start + i]:
            return False
    return True


@bare
def fill_places(hashes: UInt64, places: Int32) -> None:
    """Put different texts with these hashes (uint64[K]) into a table: places int32[2^n] above K, −1 at first."""
    mask = np.uint64(places.shape[0] - 1)
    for i in range(hashes.shape[0]):
        at = int64(hashes[i] & mask)
        while places[at] >= 0:
            at = (at + 1) & int64(mask)
        places[at] = i


@bare
def number_texts(
    places: Int32,
    stored_hashes: UInt64,
    stored_offsets: Int64,
    stored_data: UInt8,
    hashes: UInt64,
    offsets: Int64,
    data: UInt8,
    out: Int32,
) -> None:
    """Fill out int32[B] with which of a table's candidate texts each text is, −1 for none of them."""
    mask = np.uint64(places.shape[0] - 1)
    for i in range(hashes.shape[0]):
        at = int64(hashes[i] & mask)
        out[i] = -1
        while places[at] >= 0:
            candidate = int64(places[at])
            if stored_hashes[candidate] == hashes[i] and _is_same(
                offsets, data, i, stored_offsets, stored_data, candidate
            ):
                out[i] = candidate
                break
            at = (at + 1) & int64(mask)


@inlined
def _has_bit(bits: UInt64, code: np.uint32) -> int:
    word = bits[(code >> np.uint32(6)) & np.uint32(bits.shape[0] - 1)]
    is_set: int = (word >> np.uint64(code & np.uint32(63))) & np.uint64(1)
    return is_set


@inlined
def _set_bit(bits: UInt64, code: np.uint32) -> None:
    bits[(code >> np.uint32(6)) & np.uint32(bits.shape[0] - 1)] |= np.uint64(1) << np.uint64(code & np.uint32(63))


@bare
def fill_codes(table: CodeTable) -> None:
    """Put the codes into their table, equal ones once; it has more places than there are codes."""
    codes, bits, places = table.codes, table.bits, table.places
    mask = np.uint32(places.shape[0] - 1)
    for i in range(codes.shape[0]):
        _set_bit(bits, codes[i])
        at = int64(codes[i] & mask)
        while places[at] >= 0 and codes[places[at]] != codes[i]:
            at = (at + 1) & int64(mask)
        places[at] = i


@bare
def is_any_asked(number: Int32, keys: Bool) -> bool:
    """Return True if a key that is asked for, bool[K] by number, has events in a block."""
    for asked_key in number:
        if asked_key >= 0 and keys[asked_key]:
            return True
    return False


@bare
def choose(rows: BlockRows, asked: BlockRequest, back_ms: int, chosen: Bool) -> None:
    """Set chosen bool[N] for the events later than back_ms of keys that are asked for."""
    key, time, number, keys = rows.key, rows.time, asked.number, asked.keys
    if not is_any_asked(number, keys):
        return
    for i in range(key.shape[0]):
        asked_key = number[key[i]]
        if asked_key >= 0 and keys[asked_key] and time[i] > back_ms:
            chosen[i] = True


@bare
def choose_classes(
    codes: UInt32, table: CodeTable, rows: BlockRows, asked: BlockRequest, back_ms: int, chosen: Bool
) -> None:
    """Set chosen bool[N] as `choose` does, but only where the code, of uint32[N], is in a table of wanted ones."""
    bits, places, wanted = table.bits, table.places, table.codes
    key, time, number, keys = rows.key, rows.time, asked.number, asked.keys
    mask = np.uint32(places.shape[0] - 1)
    for i in range(key.shape[0]):
        if _has_bit(bits, codes[i]) == 0:
            continue
        at = int64(codes[i] & mask)
        while places[at] >= 0:
            if wanted[places[at]] == codes[i]:
                asked_key = number[key[i]]
                if asked_key >= 0 and keys[asked_key] and time[i] > back_ms:
                    chosen[i] = True
                break
            at = (at + 1) & int64(mask)


@bare
def fill_classes(table: CodeTable, number: Int32, values: ValueBytes) -> None:
    """Put classes into their table, equal ones once: those of keys number int32[C] with these values.

    A class of key −1, or of a value that is null, is left out.
    """
    codes, bits, places = table.codes, table.bits, table.places
    offsets, data, nulls = values.offsets, values.data, values.nulls
    mask = np.uint32(places.shape[0] - 1)
    for i in range(codes.shape[0]):
        if number[i] < 0 or (nulls.shape[0] > 0 and nulls[i] != 0):
            continue
        _set_bit(bits, codes[i])
        at = int64(codes[i] & mask)
        while places[at] >= 0:
            candidate = places[at]
            if number[candidate] == number[i] and _is_same(offsets, data, i, offsets, data, candidate):
                break
            at = (at + 1) & int64(mask)
        if places[at] < 0:
            places[at] = i


@bare
def find_latest(classes: Classes, block: ClassBlock, wanted_type: int, latest: Latest, scratch: Scratch) -> None:
    """Find the latest event of each class of a table in several blocks, of which this is one.

    At first nothing is later than latest.time. Only events of an event type count if that is not −1.

    First of all events the codes are read alone, in their order, then of those that may be of a class the time and the
    key: they are in no cache mostly, and by loops of their own the processor fetches them for many events at a time.
    """
    table, values, codes = classes.table, block.values, block.codes
    rows, times, numbers = scratch.rows, scratch.times, scratch.numbers
    mask, count, remaining_count = np.uint32(table.places.shape[0] - 1), int64(0), int64(0)
    for i in range(codes.shape[0]):
        rows[count] = i
        count += int64(_has_bit(table.bits, codes[i]))
    for k in range(count):
        code = codes[rows[k]]
        at = int64(code & mask)
        while table.places[at] >= 0:
            candidate = int64(table.places[at])
            if table.codes[candidate] == code and latest.time[candidate] < block.last_ms:
                rows[remaining_count] = rows[k]
                remaining_count += 1
                break
            at = (at + 1) & int64(mask)
    for k in range(remaining_count):
        times[k], numbers[k] = block.rows.time[rows[k]], block.number[block.rows.key[rows[k]]]
    for k in range(remaining_count):
        i = rows[k]
        at = int64(codes[i] & mask)
        while table.places[at] >= 0:
            candidate = int64(table.places[at])
            is_later = table.codes[candidate] == codes[i] and times[k] > latest.time[candidate]
            if is_later and classes.number[candidate] == numbers[k]:
                if _is_same(values.offsets, values.data, i, classes.values.offsets, classes.values.data, candidate):
                    is_null = values.nulls.shape[0] > 0 and values.nulls[i] != 0
                    if not is_null and (wanted_type < 0 or block.rows.event_type[i] == wanted_type):
                        latest.time[candidate], latest.at[candidate] = times[k], block.first + i
                    break
            at = (at + 1) & int64(mask)


@bare
def choose_first(
    rows: BlockRows, asked: BlockRequest, back_ms: int, until_ms: int, wanted_type: int, chosen: Bool
) -> None:
    """Set chosen bool[N] for events up to until_ms, and for the first one after it of each key.

    That one is of an event type if that is not −1. Keys that have it are taken out of `asked.keys`.
    """
    key, time, event_type, number, keys = rows.key, rows.time, rows.event_type, asked.number, asked.keys
    done = int64(-1)
    if not is_any_asked(number, keys):
        return
    for i in range(key.shape[0]):
        asked_key = int64(number[key[i]])
        if done >= 0 and done != asked_key:
            keys[done] = False
            done = int64(-1)
        if asked_key < 0 or not keys[asked_key] or time[i] <= back_ms:
            continue
        if time[i] <= until_ms:
            chosen[i] = True
        elif done < 0 and (wanted_type < 0 or event_type[i] == wanted_type):
            chosen[i] = True
            done = asked_key
    if done >= 0:
        keys[done] = False
