"""Texts as offsets and bytes → copies, texts by row, numbers.

Two columns of texts are numbered and taken as if they were concatenated, without a copy of both.
Tested by: tests/columnar/test_texts.py
"""

import numpy as np

from cep.kernels.jit import bare, inlined, kernel
from cep.kernels.layout import Int32, Int64, UInt8, UInt64, int64
from cep.kernels.records import NumberedTexts, Texts
from cep.kernels.siphash import WORD_BYTES, keyed_hash, word_at

_FIRST_WIDE = 128  # first byte of multi-byte characters
_TABLE_MIN, _TABLE_FIRST = 16, 1_024
_TABLE_GROWTH = 8  # large, so that texts are rarely hashed again
_TABLE_NEAR = 2_048  # places of a table that fits the processor's cache

_AHEAD = 32  # rows that are hashed together
# Of a place: its text's number, and bits of its hash.
_NUMBER, _TAG = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFF00000000)


@inlined
def copy_bytes(data: UInt8, start: int, end: int, out: UInt8, position: int) -> int:
    """Copy data[start:end] to `position` of `out`; return the end."""
    for k in range(start, end):
        out[position] = data[k]
        position += 1
    return position


@kernel
def copy_texts(data: UInt8, starts: Int64, ends: Int64) -> tuple[Int64, UInt8, bool]:
    """Copy the texts between int64 starts[N] and ends[N] of data uint8 into one buffer.

    Returns: int64 offsets[N + 1], uint8[B], True if all bytes are ASCII.
    """
    count = starts.shape[0]
    offsets = np.zeros(count + 1, np.int64)
    for row in range(count):
        offsets[row + 1] = offsets[row] + ends[row] - starts[row]
    texts, position, all_bits = np.empty(offsets[count], np.uint8), 0, np.uint8(0)
    for row in range(count):
        for k in range(starts[row], ends[row]):
            texts[position] = data[k]
            all_bits |= data[k]
            position += 1
    return offsets, texts, bool(all_bits < _FIRST_WIDE)


@kernel
def longest_text(offsets: Int64) -> int:
    """Return the bytes of the longest text between these offsets, int64[N + 1]; 0 without a text."""
    longest = 0
    for row in range(offsets.shape[0] - 1):
        longest = max(longest, offsets[row + 1] - offsets[row])
    return longest


@kernel
def take_texts(offsets_a: Int64, data_a: UInt8, offsets_b: Int64, data_b: UInt8, rows: Int64) -> tuple[Int64, UInt8]:
    """Copy the texts of some rows of two columns. The rows of column b follow the rows of column a.

    Shapes: rows int64[N] in any order. Returns offsets int64[N + 1] and bytes uint8[B]. The call has plain arrays, not
    `Texts`, because a record would cost as much time as the work, for every column of texts.
    """
    count_a, count = offsets_a.shape[0] - 1, rows.shape[0]
    offsets = np.zeros(count + 1, np.int64)
    for k in range(count):
        row = rows[k]
        if row < count_a:
            offsets[k + 1] = offsets[k] + offsets_a[row + 1] - offsets_a[row]
        else:
            offsets[k + 1] = offsets[k] + offsets_b[row - count_a + 1] - offsets_b[row - count_a]
    texts, position = np.empty(offsets[count], np.uint8), 0
    for k in range(count):
        row = rows[k]
        if row < count_a:
            position = copy_bytes(data_a, offsets_a[row], offsets_a[row + 1], texts, position)
        else:
            position = copy_bytes(data_b, offsets_b[row - count_a], offsets_b[row - count_a + 1], texts, position)
    return offsets, texts


@inlined
def is_same_text(data: UInt8, start: int, end: int, other: UInt8, other_start: int, other_end: int) -> bool:
    """Return True if data[start:end] and other[other_start:other_end] are the same bytes."""
    if end - start != other_end - other_start:
        return False
    while start + WORD_BYTES <= end:  # compares eight bytes at once
        if word_at(data, start) != word_at(other, other_start):
            return False
        start += WORD_BYTES
        other_start += WORD_BYTES
    rest = end - start
    if rest > 0 and start + WORD_BYTES <= data.shape[0] and other_start + WORD_BYTES <= other.shape[0]:
        different = word_at(data, start) ^ word_at(other, other_start)  # also the bytes after the texts
        return bool(different << np.uint64(64 - 8 * rest) == 0)  # the shift drops the bytes after the texts
    for k in range(rest):
        if data[start + k] != other[other_start + k]:
            return False
    return True


@inlined
def _look_ahead(texts: Texts, row_at: int, end: int, a: Texts, b: Texts, numbered: NumberedTexts) -> None:
    """Fill numbered.ahead with the hashes of the rows [row_at, end). Load the memory that number_rows reads for them.

    number_rows searches the hash table, reads the first row of the number there (rows of b follow rows of a), then this
    row's text. Each read waits for the one before. Here, reads for different rows overlap, which is faster.
    """
    places, firsts, ahead = numbered.places, numbered.firsts, numbered.ahead
    count_a, mask = a.offsets.shape[0] - 1, np.uint64(places.shape[0] - 1)
    for k in range(row_at, end):
        ahead[k - row_at] = keyed_hash(texts.data, texts.offsets[k], texts.offsets[k + 1], numbered.key)
    if places.shape[0] <= _TABLE_NEAR:  # the table is in the processor's cache, so reads are fast
        return
    read = np.uint64(0)
    for k in range(end - row_at):
        place = places[ahead[k] & mask]
        if place != 0:
            row = firsts[int64(place & _NUMBER) - 1]  # a place has a number + 1
            data, position = (a.data, a.offsets[row]) if row < count_a else (b.data, b.offsets[row - count_a])
            if position < data.shape[0]:
                read ^= np.uint64(data[position])
    ahead[_AHEAD] = read  # this is not used, but without it the compiler would remove the reads


@bare
def number_rows(
    texts: Texts, first_row: int, row_at: int, a: Texts, b: Texts, numbered: NumberedTexts, count: int
) -> tuple[int, int]:
    """Assign numbers to `texts`, one of the columns a and b, from row `row_at` on: equal texts get the same one.

    Places of the hash table have upper bits of a text's hash (_TAG) and its number + 1; 0 if empty. `first_row` is the
    column's first row. Returns how many numbers are used, `count` before, and the row at which the table was half full.
    """
    offsets, data = texts.offsets, texts.data
    places, codes, firsts = numbered.places, numbered.codes, numbered.firsts
    count_a, mask, count_max = a.offsets.shape[0] - 1, np.uint64(places.shape[0] - 1), places.shape[0] // 2
    block = row_at
    for k in range(row_at, offsets.shape[0] - 1):
        if count >= count_max:
            return count, k
        if k == block + _AHEAD or k == row_at:  # hash the next block of rows together
            block = k
            _look_ahead(texts, block, min(block + _AHEAD, offsets.shape[0] - 1), a, b, numbered)
        start, end, h = offsets[k], offsets[k + 1], numbered.ahead[k - block]
        position = h & mask
        while True:
            place = places[position]
            if place == 0:
                code = int64(count)
                places[position] = h & _TAG | np.uint64(count + 1)
                firsts[count] = first_row + k
                count += 1
                break
            if (place ^ h) & _TAG == 0:
                code = int64(place & _NUMBER) - 1
                row = firsts[code]
                if row < count_a:
                    is_same = is_same_text(data, start, end, a.data, a.offsets[row], a.offsets[row + 1])
                else:
                    row -= count_a
                    is_same = is_same_text(data, start, end, b.data, b.offsets[row], b.offsets[row + 1])
                if is_same:
                    break
            position = (position + np.uint64(1)) & mask
        codes[first_row + k] = code
    return count, offsets.shape[0] - 1


@bare
def place_again(a: Texts, b: Texts, numbered: NumberedTexts, count: int) -> None:
    """Enter the texts with numbers, 0 to count - 1, into a hash table that replaces a full one. It is empty before."""
    places, firsts = numbered.places, numbered.firsts
    count_a, mask = a.offsets.shape[0] - 1, np.uint64(places.shape[0] - 1)
    for code in range(count):
        row = firsts[code]  # the first row with this text
        if row < count_a:
            h = keyed_hash(a.data, a.offsets[row], a.offsets[row + 1], numbered.key)
        else:  # the rows of b follow the rows of a
            row -= count_a
            h = keyed_hash(b.data, b.offsets[row], b.offsets[row + 1], numbered.key)
        position = h & mask
        while places[position] != 0:
            position = (position + np.uint64(1)) & mask
        places[position] = h & _TAG | np.uint64(code + 1)  # bits of the hash, and the number + 1


@kernel
def number_texts(
    offsets_a: Int64, data_a: UInt8, offsets_b: Int64, data_b: UInt8, key: UInt64, codes: Int32, firsts: Int64
) -> int:
    """Give texts numbers in order of first appearance, and equal texts the same one. Return how many numbers there are.

    The rows of column b follow the rows of column a. Fills codes int32[A + B] with the number of each row, and firsts
    int64[A + B] with the first row of each number. The hashes have the key uint64[2]. Their table is small at first, so
    that it stays in the cache if there are few distinct texts. number_rows stops at a row when the table is half full.
    """
    a, b = Texts(offsets_a, data_a), Texts(offsets_b, data_b)
    size, size_max = _TABLE_MIN, _TABLE_MIN
    while size_max <= 2 * codes.shape[0]:  # with this size, the table is never more than half full
        size_max *= 2
    while size < size_max and size < _TABLE_FIRST:
        size *= 2
    ahead = np.empty(_AHEAD + 1, np.uint64)
    numbered, count = NumberedTexts(np.zeros(size, np.uint64), codes, firsts, key, ahead), int64(0)
    for side in range(2):  # column a, then column b
        texts, first_row, row = (a, int64(0), int64(0)) if side == 0 else (b, a.offsets.shape[0] - 1, int64(0))
        count, row = number_rows(texts, first_row, row, a, b, numbered, count)
        while row < texts.offsets.shape[0] - 1:
            # Each growth hashes all texts again, so the table gets its final size at once if most texts are new.
            mostly_new = 2 * count > first_row + row
            size = size_max if mostly_new else min(size * _TABLE_GROWTH, size_max)
            numbered = NumberedTexts(np.zeros(size, np.uint64), codes, firsts, key, ahead)
            place_again(a, b, numbered, count)
            count, row = number_rows(texts, first_row, row, a, b, numbered, count)
    return count
