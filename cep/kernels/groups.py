"""Kernels that find equal things: groups of pairs, places in sorted arrays, repeated events, digests of events.

A group is numbered by the first appearance of its pair of numbers. A sender may choose both numbers, so the hashes have
a key (siphash.py).

    places       int32[2^n]   a hash table of groups, −1 for an empty place; more places than there are groups
    first_rows   int64[G]     the first row of each group

An event is repeated if its pair (hash of the id, digest of the content) is. A table of the kept pairs has open
addressing and is at most half full: slots int32[S], S a power of two, each the number of a pair, or NO_PAIR.

A digest of an event has 64 bits: the sum of a hash of each value with the salt of its column. A value that is null adds
nothing, so a column that is null everywhere need not be looked at.
Tested by: tests/kernels/test_groups.py, tests/engine/test_starts.py, tests/histories/test_classes.py,
tests/step/test_duplicates.py, tests/runners/embedded/test_stored_parts.py, tests/columnar/test_route.py.
"""

import numpy as np

from cep.kernels.arrange import HASH_PRIME, finished
from cep.kernels.jit import bare
from cep.kernels.layout import Int32, Int64, UInt8, UInt64, int64
from cep.kernels.siphash import keyed_hash, keyed_hash_of_pair


@bare
def _first_place(first: int, second: int, hash_key: UInt64, places: Int32) -> int:
    return int64(keyed_hash_of_pair(first, second, hash_key) & np.uint64(places.shape[0] - 1))


@bare
def group_pairs(first: Int64, second: Int64, hash_key: UInt64, places: Int32, first_rows: Int64, out: Int64) -> int:
    """Give equal pairs (first, second int64[N]) the same group number: fill out int64[N] with the group of each.

    first_rows int64[N] gets the first row of each group. `places` int32[2^n], initially −1, becomes a hash table of
    groups. hash_key uint64[2] is random, so that no sender can make pairs collide. Returns: the number of groups.
    """
    count = 0
    for i in range(first.shape[0]):
        place = _first_place(first[i], second[i], hash_key, places)
        while places[place] >= 0:
            row = first_rows[places[place]]
            if first[row] == first[i] and second[row] == second[i]:
                break
            place = (place + 1) & (places.shape[0] - 1)
        if places[place] < 0:
            places[place], first_rows[count] = count, i
            count += 1
        out[i] = places[place]
    return count


@bare
def find_pairs(
    first: Int64, second: Int64, hash_key: UInt64, places: Int32, first_rows: Int64,
    wanted_first: Int64, wanted_second: Int64, out: Int64,
) -> None:  # fmt: skip
    """Find the group of each wanted pair: fill out int64[M] with the groups' numbers, −1 for a pair without a group.

    `group_pairs` has grouped the pairs (first, second), and filled the hash table `places`, and first_rows.
    """
    for i in range(wanted_first.shape[0]):
        place = _first_place(wanted_first[i], wanted_second[i], hash_key, places)
        out[i] = -1
        while places[place] >= 0:
            row = first_rows[places[place]]  # a row with the pair of the group at this place
            if first[row] == wanted_first[i] and second[row] == wanted_second[i]:
                out[i] = places[place]
                break
            place = (place + 1) & (places.shape[0] - 1)


@bare
def first_at(ordered: Int64 | Int32, lo: int, hi: int, value: int) -> int:
    """Return the first position in [lo, hi) with at least this value; hi if there is none. Cost: O(log(hi - lo))."""
    while lo < hi:
        middle = (lo + hi) // 2
        if ordered[middle] < value:
            lo = middle + 1
        else:
            hi = middle
    return lo


_U = np.uint64
NO_PAIR = -1
NEW, SAME, OTHER = 0, 1, 2  # the verdicts: a new id; the id and content of a kept pair; its id with another content


@bare
def fill_slots(kept: UInt64, count: int, slots: Int32) -> None:
    """Enter the first `count` kept pairs uint64[2, C], whose ids are all different, into empty slots."""
    mask = _U(slots.shape[0] - 1)
    for k in range(count):
        slot = kept[0, k] & mask
        while slots[slot] != NO_PAIR:
            slot = (slot + _U(1)) & mask
        slots[slot] = k


@bare
def judge_pairs(pairs: UInt64, kept: UInt64, count: int, slots: Int32, verdicts: UInt8) -> int:
    """Find events that repeat kept ones. Keep the events with a new id, and return how many are kept then.

    A pair is the hash of an event's id and the hash of its content. The verdict on an event is NEW for a new id, SAME
    if id and content are kept, OTHER if the id is kept with another content. Shapes: pairs uint64[2, N] of the events;
    kept uint64[2, C], `count` pairs and room for N more; slots int32[S], a hash table of indexes into `kept`; verdicts
    uint8[N] is filled.
    """
    mask = _U(slots.shape[0] - 1)
    for i in range(pairs.shape[1]):
        slot = pairs[0, i] & mask
        while slots[slot] != NO_PAIR and kept[0, slots[slot]] != pairs[0, i]:
            slot = (slot + _U(1)) & mask
        if slots[slot] == NO_PAIR:
            slots[slot] = count
            kept[0, count] = pairs[0, i]
            kept[1, count] = pairs[1, i]
            count += 1
            verdicts[i] = NEW
        else:
            verdicts[i] = SAME if kept[1, slots[slot]] == pairs[1, i] else OTHER
    return count


@bare
def judge_against_sorted(pairs: UInt64, kept: UInt64, places: Int64, verdicts: UInt8) -> None:
    """Judge pairs by kept pairs uint64[2, C] alone, which are sorted by their ids; none of them is new to each other.

    Shapes: pairs uint64[2, N]; places int64[N] where each id belongs among the kept ones; verdicts uint8[N] is filled.
    """
    for i in range(pairs.shape[1]):
        k = places[i]
        if k == kept.shape[1] or kept[0, k] != pairs[0, i]:
            verdicts[i] = NEW
        else:
            verdicts[i] = SAME if kept[1, k] == pairs[1, i] else OTHER


@bare
def add_numbers(values: Int64, validity: UInt8, first: int, salt: UInt64, out: UInt64) -> None:
    """Add a hash of each number of values int64[N] to the digest in the same row of out uint64[N].

    Shapes: validity is a bitmap, whose bit first + i is 1 if number i is not null; it is empty if none is null. salt
    uint64[3] differs by column. A secret salt is mixed in twice, because after one round of hashing the difference of
    two hashes may show the difference of the numbers.
    """
    is_secret = salt[2] != 0  # a salt that is not secret has two words and 0
    for i in range(out.shape[0]):
        bit = first + i
        if validity.shape[0] == 0 or validity[bit >> 3] >> (bit & 7) & 1:
            h = finished(_U(values[i]) * HASH_PRIME ^ salt[0])
            out[i] += finished(h ^ salt[2]) if is_secret else h


@bare
def add_texts(offsets: Int64, data: UInt8, validity: UInt8, first: int, salt: UInt64, out: UInt64) -> None:
    """Add the hash of each text data[offsets[i]:offsets[i + 1]] to out uint64[N]. The rest is as in `add_numbers`."""
    for i in range(out.shape[0]):
        bit = first + i
        if validity.shape[0] == 0 or validity[bit >> 3] >> (bit & 7) & 1:
            out[i] += keyed_hash(data, offsets[i], offsets[i + 1], salt)
