"""A batch of events → hashes, order and queues for the matcher.

Tested by: tests/kernels/test_plain.py
"""

import numpy as np

from cep.kernels import layout as y
from cep.kernels.jit import bare, inlined, kernel
from cep.kernels.layout import Int32, Int64, UInt8, UInt64, int64
from cep.kernels.records import Arrivals

# FNV-1a (Fowler, Noll, Vo), 64 bit, with the finaliser of MurmurHash3, so that all bits suit a modulus. It must never
# change: key groups of stored state and sets on disk depend on it.
HASH_SEED = np.uint64(0xCBF29CE484222325)
HASH_PRIME = np.uint64(0x100000001B3)
# The origin of an event in an order table: the number of id bytes of its view, the position of the view, its partition.
VIEW_TAIL_BITS, PARTITION_SHIFT = 8, 32
DERIVED_US = 1_000  # derived events have this or more: greater than each microsecond of a millisecond


@inlined
def finished(h: np.uint64) -> np.uint64:
    """Finish an FNV-1a hash."""
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xFF51AFD7ED558CCD)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xC4CEB9FE1A85EC53)
    h ^= h >> np.uint64(33)
    return h


@inlined
def hash_bytes(data: UInt8, lo: int, hi: int, seed: int) -> np.uint64:
    """Return the hash of data[lo:hi]."""
    h = HASH_SEED ^ np.uint64(seed)
    for k in range(lo, hi):
        h = (h ^ np.uint64(data[k])) * HASH_PRIME
    return finished(h)


@kernel
def hash_texts(offsets: Int64, data: UInt8, seed: int, out: UInt64) -> None:
    """Fill out uint64[N] with the hash of each text data[offsets[i]:offsets[i + 1]] (int64 offsets, UTF-8 bytes)."""
    for i in range(out.shape[0]):
        out[i] = hash_bytes(data, offsets[i], offsets[i + 1], seed)


@kernel
def hash_slots(offsets: Int64, data: UInt8, groups_count: int, first_group: int, pages_count: int, out: Int64) -> None:
    """Fill out int64[N] with the slot of each text's page, counted from the first group. Texts are as in `hash_texts`.

    The hash chooses a key group, and one of the group's pages.
    """
    for i in range(out.shape[0]):
        h = hash_bytes(data, offsets[i], offsets[i + 1], 0)
        group, rest = h % np.uint64(groups_count), h // np.uint64(groups_count)
        out[i] = (int64(group) - first_group) * pages_count + int64(rest % np.uint64(pages_count))


@kernel
def page_keys(slots: Int64, pages_count: int, prefixes: UInt8, out: UInt8) -> None:
    """Fill out uint8[N, B] with the store keys of pages: the prefix of the key group, and the page in two bytes.

    Shapes: slots int64[N] of the pages; prefixes uint8[key groups, B]. The bytes of a page are big-endian.
    """
    width = out.shape[1]
    for i in range(slots.shape[0]):
        group, page = slots[i] // pages_count, slots[i] % pages_count
        for k in range(width - 2):
            out[i, k] = prefixes[group, k]
        out[i, width - 2], out[i, width - 1] = page >> 8, page & 255


@bare
def group_rows(codes: Int64, starts: Int64, out: Int64) -> None:
    """Sort rows by their codes, stably: fill out int64[N] with the row numbers in the sorted order.

    Shapes: codes int64[N] below G; starts int64[G + 1], zeros before. Afterwards, code g's rows end at starts[g].
    """
    for i in range(codes.shape[0]):
        starts[codes[i] + 1] += 1  # the number of rows of each code
    for g in range(1, starts.shape[0]):
        starts[g] += starts[g - 1]  # where the rows of code g begin
    for i in range(codes.shape[0]):
        code = codes[i]
        out[starts[code]] = i
        starts[code] += 1


@kernel
def _compare_ids(a: int, b: int, view_lengths: tuple[int, int], offsets: Int64, data: UInt8) -> int:
    """Compare ids a and b without their last view_lengths bytes: -1, 0 or 1. A shorter id precedes, as for numbers."""
    length_a, length_b = offsets[a + 1] - offsets[a] - view_lengths[0], offsets[b + 1] - offsets[b] - view_lengths[1]
    if length_a != length_b:
        return -1 if length_a < length_b else 1
    for k in range(length_a):
        x, y = data[offsets[a] + k], data[offsets[b] + k]
        if x != y:
            return -1 if x < y else 1
    return 0


@kernel
def is_before(a: int, b: int, order: Int64, offsets: Int64, data: UInt8) -> bool:
    """Return True if event a comes before event b in the order of events. Both have the same time in ms.

    order int64[N, 3] has an event's microseconds, the field that the user declared for the order, and its origin
    (partition, number of the view, bytes of the id after the record's id). If it is empty, events are in the order of
    their rows. The first two columns decide first. Then the partition and the arrival decide between source events.
    Derived events, which rules emit, have DERIVED_US or more microseconds. They may arrive in another order next time,
    so their ids decide: first the id of the record from which a view made the event, then the view, then the whole id.
    """
    if order.shape[0] == 0:
        return a < b
    for column in range(2):
        if order[a, column] != order[b, column]:
            return order[a, column] < order[b, column]
    origin_a, origin_b = order[a, 2], order[b, 2]
    if order[a, 0] < DERIVED_US:
        if origin_a >> PARTITION_SHIFT != origin_b >> PARTITION_SHIFT:
            return origin_a < origin_b
        return a < b  # rows are in the order of arrival
    view_lengths = (origin_a & ((1 << VIEW_TAIL_BITS) - 1), origin_b & ((1 << VIEW_TAIL_BITS) - 1))
    record_order = _compare_ids(a, b, view_lengths, offsets, data)
    if record_order != 0:
        return record_order < 0
    if origin_a >> VIEW_TAIL_BITS != origin_b >> VIEW_TAIL_BITS:
        return origin_a < origin_b
    id_order = _compare_ids(a, b, (0, 0), offsets, data)
    return a < b if id_order == 0 else id_order < 0


@kernel
def _sift(rows: Int64, lo: int, root: int, count: int, new: Arrivals) -> None:
    order, offsets, data = new.order, new.id_offsets, new.id_bytes
    while 2 * root + 1 < count:
        child = 2 * root + 1
        if child + 1 < count and is_before(rows[lo + child], rows[lo + child + 1], order, offsets, data):
            child += 1
        if not is_before(rows[lo + root], rows[lo + child], order, offsets, data):
            return
        rows[lo + root], rows[lo + child] = rows[lo + child], rows[lo + root]
        root = child


@kernel
def arrange_events(rows_by_time: Int64, new: Arrivals, keys_count: int, out: Int64) -> None:
    """Sort new events by key, time and `is_before`: fill out int64[N] with their rows in the new order.

    Shapes: rows_by_time int64[N] are their rows sorted by time, stably; keys are below keys_count.
    Cost: O(N). With an order table, also a heap sort of each group of equal key and time that is not in order yet.
    """
    key, time = new.keys, new.time_ms
    start = np.zeros(keys_count + 1, np.int64)
    for i in range(key.shape[0]):
        start[key[i] + 1] += 1
    for k in range(keys_count):
        start[k + 1] += start[k]
    for i in range(rows_by_time.shape[0]):
        row = rows_by_time[i]
        out[start[key[row]]] = row
        start[key[row]] += 1
    if new.order.shape[0] == 0:
        return
    lo = 0
    while lo < out.shape[0]:
        hi = lo + 1
        in_order = True
        while hi < out.shape[0] and time[out[hi]] == time[out[lo]] and key[out[hi]] == key[out[lo]]:
            in_order = in_order and is_before(out[hi - 1], out[hi], new.order, new.id_offsets, new.id_bytes)
            hi += 1
        if not in_order:
            for root in range((hi - lo) // 2 - 1, -1, -1):
                _sift(out, lo, root, hi - lo, new)
            for last in range(hi - lo - 1, 0, -1):
                out[lo], out[lo + last] = out[lo + last], out[lo]
                _sift(out, lo, 0, last, new)
        lo = hi


@bare
def count_ordinals(columns: Int64, in_stream: UInt8, first_row: int, stream_count: Int32) -> None:
    """Give the events of a stream, from first_row on, their numbers on their keys. Other events get the number -1.

    A stream is the events that a window of n events counts. The numbers go to a column of the event table. Shapes:
    in_stream uint8[event types] marks the stream's types; stream_count int32[K], each key's next number, advances.
    """
    for row in range(first_row, columns.shape[1]):
        if in_stream[columns[y.COLUMN_TYPE, row]] != 0:
            key = columns[y.COLUMN_KEY, row]
            columns[y.COLUMN_ORDINAL, row] = stream_count[key]
            stream_count[key] += 1
        else:
            columns[y.COLUMN_ORDINAL, row] = -1


@bare
def queue_rows(bitmaps: UInt64, predicates: Int32, first_row: int, rows_count: int, out: Int32) -> int:
    """Write the new rows for which one of the predicates holds to out int32[N], ascending; return their number.

    Shapes: bitmaps uint64[P, words]; predicates int32[*], of which -1 holds for all rows.
    Cost: a word of each bitmap for 64 events, and the written rows.
    """
    count = 0
    for k in range(predicates.shape[0]):
        if predicates[k] < 0:
            for i in range(rows_count):
                out[i] = first_row + i
            return rows_count
    for word in range((rows_count + 63) // 64):
        bits = np.uint64(0)
        for k in range(predicates.shape[0]):
            bits |= bitmaps[predicates[k], word]
        while bits != 0:
            lowest = bits & (~bits + np.uint64(1))  # the lowest bit of `bits` alone
            position = 0
            probe = lowest  # the loop finds the position of its bit by halving
            for shift in (32, 16, 8, 4, 2, 1):
                if probe >> np.uint64(shift) != 0:
                    probe >>= np.uint64(shift)
                    position += shift
            out[count] = first_row + 64 * word + position
            count += 1
            bits ^= lowest
    return count
