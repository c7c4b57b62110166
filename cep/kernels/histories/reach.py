"""Blocks of retained events → the events that a call reads: events of its keys, and of wanted classes.

    number   int32[B]   by key of a block of retained events, its number among the keys of the call, -1 for other keys
    key      int32[N]   by event of the block, its key there; a key's events are adjacent and in event order

A class is the events of a key with equal values; equal classes have the same code, uint32. A table of classes is places
int32[2^n], −1 for an empty place; a search starts at the last n bits of a code. A filter precedes it: bits uint64[2^m]
mark the last bits of all codes in the table, small enough for the processor's fastest cache.
Tested by: tests/histories/test_classes.py, tests/histories/test_reach.py
"""

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
def _is_same(offsets: Int64, data: UInt8, place: int, other_offsets: Int64, other_data: UInt8, other: int) -> bool:
    start, length = offsets[place], offsets[place + 1] - offsets[place]
    other_start = other_offsets[other]
    if other_offsets[other + 1] - other_start != length:
        return False
    for i in range(length):
        if data[start + i] != other_data[other_start + i]:
            return False
    return True


@bare
def fill_places(hashes: UInt64, places: Int32) -> None:
    """Put distinct texts with these hashes (uint64[K]) into a table: places int32[2^n], larger than K, initially −1."""
    mask = np.uint64(places.shape[0] - 1)
    for i in range(hashes.shape[0]):
        place = int64(hashes[i] & mask)
        while places[place] >= 0:
            place = (place + 1) & int64(mask)
        places[place] = i


@bare
def number_texts(
    places: Int32, stored_hashes: UInt64, stored_offsets: Int64, stored_data: UInt8, hashes: UInt64, offsets: Int64,
    data: UInt8, out: Int32,
) -> None:  # fmt: skip
    """Fill out int32[B] with each text's index among the texts in the hash table `places`; −1 for other texts."""
    mask = np.uint64(places.shape[0] - 1)
    for i in range(hashes.shape[0]):
        place = int64(hashes[i] & mask)
        out[i] = -1
        while places[place] >= 0:
            candidate = int64(places[place])
            if stored_hashes[candidate] == hashes[i] and _is_same(
                offsets, data, i, stored_offsets, stored_data, candidate
            ):
                out[i] = candidate
                break
            place = (place + 1) & int64(mask)


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
    """Put the distinct codes into their table, which has more places than codes."""
    codes, bits, places = table.codes, table.bits, table.places
    mask = np.uint32(places.shape[0] - 1)
    for i in range(codes.shape[0]):
        _set_bit(bits, codes[i])
        place = int64(codes[i] & mask)
        while places[place] >= 0 and codes[places[place]] != codes[i]:
            place = (place + 1) & int64(mask)
        places[place] = i


@bare
def is_any_requested(key_numbers: Int32, keys: Bool) -> bool:
    """Return True if a requested key, bool[K] by number, has events in a block."""
    for key_number in key_numbers:
        if key_number >= 0 and keys[key_number]:
            return True
    return False


@bare
def choose(rows: BlockRows, request: BlockRequest, after_ms: int, chosen: Bool) -> None:
    """Set chosen bool[N] for the events of requested keys that are later than after_ms."""
    key, time, key_numbers, keys = rows.key, rows.time, request.key_numbers, request.keys
    if not is_any_requested(key_numbers, keys):
        return
    for i in range(key.shape[0]):
        key_number = key_numbers[key[i]]
        if key_number >= 0 and keys[key_number] and time[i] > after_ms:
            chosen[i] = True


@bare
def choose_classes(
    codes: UInt32, table: CodeTable, rows: BlockRows, request: BlockRequest, after_ms: int, chosen: Bool
) -> None:
    """Set chosen bool[N] for the events of requested keys that are later than after_ms and have a wanted class.

    A class is a key's events with equal values of some fields. Its code is a hash of 32 bits: codes uint32[N] of the
    events; `table` has the wanted codes, and a filter. An event of another class with an equal code is chosen too.
    """
    bits, places, codes_wanted = table.bits, table.places, table.codes
    key, time, key_numbers, keys = rows.key, rows.time, request.key_numbers, request.keys
    mask = np.uint32(places.shape[0] - 1)
    for i in range(key.shape[0]):
        if _has_bit(bits, codes[i]) == 0:
            continue
        place = int64(codes[i] & mask)
        while places[place] >= 0:
            if codes_wanted[places[place]] == codes[i]:
                key_number = key_numbers[key[i]]
                if key_number >= 0 and keys[key_number] and time[i] > after_ms:
                    chosen[i] = True
                break
            place = (place + 1) & int64(mask)


@bare
def fill_classes(table: CodeTable, key_numbers: Int32, values: ValueBytes) -> None:
    """Enter the wanted classes into a hash table, and their codes (hashes of 32 bits) into its filter, table.bits.

    A class is the events of a key (number int32[C]) with one value. An absent key (−1) or a null value is left out.
    """
    codes, bits, places = table.codes, table.bits, table.places
    offsets, data, nulls = values.offsets, values.data, values.nulls
    mask = np.uint32(places.shape[0] - 1)
    for i in range(codes.shape[0]):
        if key_numbers[i] < 0 or (nulls.shape[0] > 0 and nulls[i] != 0):
            continue
        _set_bit(bits, codes[i])
        place = int64(codes[i] & mask)
        while places[place] >= 0:
            candidate = places[place]
            if key_numbers[candidate] == key_numbers[i] and _is_same(offsets, data, i, offsets, data, candidate):
                break
            place = (place + 1) & int64(mask)
        if places[place] < 0:  # the pair is new
            places[place] = i


@bare
def find_latest(classes: Classes, block: ClassBlock, wanted_type: int, latest: Latest, scratch: Scratch) -> None:
    """Find the latest event of each wanted class in several blocks of stored events, one block per call.

    A class is a key's events with the same value of a field, and has a code, a hash of 32 bits. Only events later than
    latest.time count, and only events of wanted_type unless it is −1. Each loop reads more about fewer events: first
    codes, later times and keys. Times and keys are rarely in a cache. In a loop of its own, the processor fetches them
    for many events at a time.
    """
    table, values, codes = classes.table, block.values, block.codes
    rows, times, numbers = scratch.rows, scratch.times, scratch.numbers
    mask, count, remaining_count = np.uint32(table.places.shape[0] - 1), int64(0), int64(0)
    for i in range(codes.shape[0]):  # keep rows whose code passes the filter
        rows[count] = i
        count += int64(_has_bit(table.bits, codes[i]))
    for k in range(count):  # keep rows whose code is in the table
        code = codes[rows[k]]
        place = int64(code & mask)
        while table.places[place] >= 0:
            candidate = int64(table.places[place])
            if table.codes[candidate] == code and latest.time[candidate] < block.last_ms:  # it may have a later one
                rows[remaining_count] = rows[k]
                remaining_count += 1
                break
            place = (place + 1) & int64(mask)
    for k in range(remaining_count):
        times[k], numbers[k] = block.rows.time[rows[k]], block.key_numbers[block.rows.key[rows[k]]]
    for k in range(remaining_count):
        i = rows[k]
        place = int64(codes[i] & mask)
        while table.places[place] >= 0:
            candidate = int64(table.places[place])
            is_later = table.codes[candidate] == codes[i] and times[k] > latest.time[candidate]
            if is_later and classes.key_numbers[candidate] == numbers[k]:
                if _is_same(values.offsets, values.data, i, classes.values.offsets, classes.values.data, candidate):
                    is_null = values.nulls.shape[0] > 0 and values.nulls[i] != 0
                    if not is_null and (wanted_type < 0 or block.rows.event_type[i] == wanted_type):
                        latest.time[candidate], latest.at[candidate] = times[k], block.first + i  # number among all
                    break
            place = (place + 1) & int64(mask)


@bare
def choose_first(
    rows: BlockRows, request: BlockRequest, after_ms: int, until_ms: int, wanted_type: int, chosen: Bool
) -> None:
    """Set chosen bool[N] for the requested keys' events in (after_ms, until_ms], and for each key's first later event.

    The chosen events up to until_ms leave the window of a `first(…)`. Then the later event is the oldest in the window.
    It has `wanted_type`, unless that is −1. Its key needs no more events, so the key is removed from request.keys. The
    rows of a key are adjacent and in event order; key_numbers has −1 for a key outside of the call.
    """
    key, time, event_type, key_numbers, keys = rows.key, rows.time, rows.event_type, request.key_numbers, request.keys
    finished_key = int64(-1)  # the key whose later event is chosen; it is removed after its last row here
    if not is_any_requested(key_numbers, keys):
        return
    for i in range(key.shape[0]):
        key_number = int64(key_numbers[key[i]])
        if finished_key >= 0 and finished_key != key_number:
            keys[finished_key] = False
            finished_key = int64(-1)
        if key_number < 0 or not keys[key_number] or time[i] <= after_ms:
            continue
        if time[i] <= until_ms:
            chosen[i] = True
        elif finished_key < 0 and (wanted_type < 0 or event_type[i] == wanted_type):
            chosen[i] = True
            finished_key = key_number
    if finished_key >= 0:
        keys[finished_key] = False
