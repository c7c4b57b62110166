"""Find the values that are in a set of keys. Keys are bytes, sorted by hash.

A set is a `MemberSet`: the hashes ascend, and each bucket has about one key, so a look-up costs the same for a hundred
keys and for millions. The hash is not keyed, because sets are files. Keys with equal hashes are sorted by their bytes,
so values that are made to collide cost a binary search. Three sets make a list (`Layers`).

    text      the key is the text
    prefix    the key is any prefix of the text; only lengths that occur are looked up
    number    the key is eight bytes, little-endian
    network   the key is (4 or 6, length of the prefix, the masked address); only pairs that occur are looked up

Addresses are parsed as in Python's ipaddress.
Tested by: tests/lists/test_lists.py
"""

import numpy as np

from cep.kernels.arrange import HASH_PRIME, HASH_SEED, finished, hash_bytes
from cep.kernels.jit import kernel
from cep.kernels.layout import Int64, UInt8, UInt64, int64
from cep.kernels.records import Layers, MemberSet
from cep.kernels.text.texts import copy_bytes

NETWORK_BYTES = 18
_FEW = 8  # keys of a bucket: up to this number they are compared one by one.
_SCRATCH, _HEXTETS, _OCTETS = 48, 16, 30  # the address from 0 on, parts of an IPv6 address, octets of its last part.
_EMPTY, _INVALID = -1, -2  # instead of the value of a part
_TOO_LONG = 10_000  # for the length of a prefix that is not a number, or has too many digits
_ZERO, _NINE, _POINT, _COLON, _SLASH, _PERCENT = (ord(mark) for mark in "09.:/%")


@kernel
def bucket_of(h: np.uint64, buckets: int) -> int:
    """Return the bucket of a hash; buckets below 2**31 divide the hashes in their order."""
    return int64(((h >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32))


@kernel
def _is_before(data: UInt8, lo: int, hi: int, other: UInt8, other_lo: int, other_hi: int) -> bool:
    """Return True if data[lo:hi] precedes the other key: a shorter key first, then by bytes."""
    if hi - lo != other_hi - other_lo:
        return hi - lo < other_hi - other_lo
    for k in range(hi - lo):
        if data[lo + k] != other[other_lo + k]:
            return data[lo + k] < other[other_lo + k]
    return False


@kernel
def _contains(members: MemberSet, h: np.uint64, data: UInt8, lo: int, hi: int) -> bool:
    """Return True if the set contains the key data[lo:hi] with hash h. Its bucket is sorted by hash, then by key."""
    first, hashes, offsets = members.first, members.hashes, members.offsets
    if hashes.shape[0] == 0:
        return False
    bucket = bucket_of(h, first.shape[0] - 1)
    low, end = first[bucket], first[bucket + 1]
    bucket_end = end
    while end - low > _FEW:  # a binary search, because an attacker may put many keys into one bucket
        middle = (low + end) >> 1
        is_before = hashes[middle] < h
        if hashes[middle] == h:  # keys with equal hashes are sorted by their bytes
            is_before = _is_before(members.data, offsets[middle], offsets[middle + 1], data, lo, hi)
        if is_before:
            low = middle + 1
        else:
            end = middle
    for i in range(low, min(end + 1, bucket_end)):  # entry `end` may be the key itself
        if hashes[i] > h:
            return False
        if hashes[i] == h and offsets[i + 1] - offsets[i] == hi - lo:
            start, is_equal = offsets[i], True
            for k in range(hi - lo):
                if members.data[start + k] != data[lo + k]:
                    is_equal = False
                    break
            if is_equal:
                return True
    return False


@kernel
def _listed(layers: Layers, h: np.uint64, data: UInt8, lo: int, hi: int) -> bool:
    if _contains(layers.added, h, data, lo, hi):
        return True
    return _contains(layers.base, h, data, lo, hi) and not _contains(layers.removed, h, data, lo, hi)


@kernel
def texts_within(layers: Layers, offsets: Int64, data: UInt8, out: UInt8) -> None:
    """Fill out uint8[N] with 1 where text i (offsets int64[N + 1] into UTF-8 bytes) is listed. Cost: O(its length)."""
    for i in range(out.shape[0]):
        h = hash_bytes(data, offsets[i], offsets[i + 1], 0)
        out[i] = _listed(layers, h, data, offsets[i], offsets[i + 1])


@kernel
def prefixes_within(layers: Layers, lengths: UInt8, offsets: Int64, data: UInt8, out: UInt8) -> None:
    """Fill out uint8[N] with 1 where a prefix of text i is listed; lengths uint8[L + 1] marks lengths that occur."""
    longest = lengths.shape[0] - 1
    for i in range(out.shape[0]):
        h, lo, is_listed = HASH_SEED, offsets[i], False
        for length in range(1, min(longest, offsets[i + 1] - lo) + 1):
            h = (h ^ np.uint64(data[lo + length - 1])) * HASH_PRIME
            if lengths[length] != 0 and _listed(layers, finished(h), data, lo, lo + length):
                is_listed = True
                break
        out[i] = is_listed


@kernel
def numbers_within(layers: Layers, values: Int64, out: UInt8) -> None:
    """Fill out uint8[N] with 1 where values int64[N] are listed."""
    key = np.empty(8, np.uint8)
    for i in range(out.shape[0]):
        rest = np.uint64(values[i])
        for k in range(8):
            key[k] = np.uint8(rest & np.uint64(255))
            rest >>= np.uint64(8)
        out[i] = _listed(layers, hash_bytes(key, 0, 8, 0), key, 0, 8)


@kernel
def _read_ipv4(data: UInt8, lo: int, hi: int, out: Int64, position: int) -> bool:
    """Parse data[lo:hi] as an IPv4 address into out[position …]; return False if it is not four decimal octets."""
    count, digits, value = 0, 0, int64(0)
    for k in range(lo, hi + 1):
        if k < hi and _ZERO <= data[k] <= _NINE:
            if digits == 3 or (digits >= 1 and value == 0):  # a leading zero is not allowed
                return False
            value = value * 10 + int64(data[k]) - _ZERO
            digits += 1
        elif k == hi or data[k] == _POINT:
            if digits == 0 or value > 255 or count == 4:
                return False
            out[position + count] = value
            count, digits, value = count + 1, 0, int64(0)
        else:
            return False
    return count == 4


@kernel
def _read_hextet(data: UInt8, lo: int, hi: int) -> int:
    """Parse one to four hexadecimal digits. Return their value, _EMPTY for none, _INVALID for anything else."""
    if hi == lo:
        return _EMPTY
    if hi - lo > 4:
        return _INVALID
    value = int64(0)
    for k in range(lo, hi):
        c = int64(data[k])
        if 48 <= c <= 57:  # 0 to 9
            value = value * 16 + c - 48
        elif 97 <= c <= 102:  # a to f
            value = value * 16 + c - 87
        elif 65 <= c <= 70:  # A to F
            value = value * 16 + c - 55
        else:
            return _INVALID
    return value


@kernel
def _read_hextets(data: UInt8, lo: int, hi: int, scratch: Int64) -> int:
    """Parse the parts of an IPv6 address, 16 bits or _EMPTY, into scratch[_HEXTETS:]. Return how many, 0 if invalid."""
    count, start = 0, lo
    for k in range(lo, hi + 1):
        if k < hi and data[k] != _COLON:
            continue
        if count >= 9:  # there are at most eight; `::2:3:4:5:6:7:8` has nine, because `::` begins with two empty ones
            return 0
        value = _read_hextet(data, start, k)  # up to four hexadecimal digits between colons
        # An IPv4 address may stand for the last two parts.
        if value == _INVALID and k == hi and count < 8 and _read_ipv4(data, start, k, scratch, _OCTETS):
            scratch[_HEXTETS + count] = scratch[_OCTETS] * 256 + scratch[_OCTETS + 1]
            value = scratch[_OCTETS + 2] * 256 + scratch[_OCTETS + 3]
            count += 1
        if value == _INVALID:
            return 0
        scratch[_HEXTETS + count] = value
        count, start = count + 1, k + 1
    return count


@kernel
def _read_ipv6(data: UInt8, lo: int, hi: int, scratch: Int64) -> bool:
    """Parse data[lo:hi] as an IPv6 address without a scope into scratch[0:16]. Return False if it is not one."""
    count = _read_hextets(data, lo, hi, scratch)  # into scratch[_HEXTETS:], where _EMPTY is a part of `::`
    if count < 3:  # `::` alone has three empty parts; a leading or trailing `::` has two
        return False
    skip = -1  # the index of the empty part at `::`, which stands for one zero part or more
    for i in range(1, count - 1):
        if scratch[_HEXTETS + i] == _EMPTY:
            if skip >= 0:  # `::` may occur once
                return False
            skip = i
    before, after = count, 0  # the number of parts before and after `::`
    if skip >= 0:
        before, after = skip, count - skip - 1
        if scratch[_HEXTETS] == _EMPTY:  # the first part is empty: `::` begins the address, or it is invalid
            before -= 1
            if before > 0:
                return False
        if scratch[_HEXTETS + count - 1] == _EMPTY:  # the same for the last part
            after -= 1
            if after > 0:
                return False
        if before + after > 7:
            return False
    elif count != 8 or scratch[_HEXTETS] == _EMPTY or scratch[_HEXTETS + count - 1] == _EMPTY:
        return False
    for i in range(16):
        scratch[i] = 0
    for i in range(before):
        scratch[2 * i], scratch[2 * i + 1] = scratch[_HEXTETS + i] >> 8, scratch[_HEXTETS + i] & 255
    for i in range(after):
        word, index = scratch[_HEXTETS + count - after + i], 8 - after + i
        scratch[2 * index], scratch[2 * index + 1] = word >> 8, word & 255
    return True


@kernel
def _read_address(data: UInt8, lo: int, hi: int, scratch: Int64) -> int:
    """Read an address into scratch; return 4 or 6, or 0 if it is not an address. A scope (`%eth0`) is left out."""
    if _read_ipv4(data, lo, hi, scratch, 0):
        return 4
    end = hi
    for k in range(lo, hi):
        if data[k] == _SLASH or (data[k] == _PERCENT and (end < hi or k + 1 == hi)):
            return 0
        if data[k] == _PERCENT:
            end = k
    return 6 if _read_ipv6(data, lo, end, scratch) else 0


@kernel
def _write_network(key: UInt8, position: int, family: int, length: int, scratch: Int64) -> int:
    """Write the key of the address in scratch, masked to `length` bits; return its end."""
    key[position], key[position + 1] = family, length
    count = 4 if family == 4 else 16
    for k in range(count):
        bits = min(8, max(0, length - 8 * k))
        key[position + 2 + k] = np.uint8(scratch[k] & (0xFF00 >> bits) & 0xFF)
    return position + 2 + count


@kernel
def networks_within(layers: Layers, lengths: UInt8, offsets: Int64, data: UInt8, out: UInt8) -> None:
    """Fill out uint8[N] with 1 where a listed network contains address i, 2 where text i is not an address.

    lengths uint8[2 · 129] marks the prefix lengths that occur in the list: 129 for IPv4, then 129 for IPv6.
    """
    scratch = np.empty(_SCRATCH, np.int64)
    key = np.empty(NETWORK_BYTES, np.uint8)
    for i in range(out.shape[0]):
        family = _read_address(data, offsets[i], offsets[i + 1], scratch)
        if family == 0:
            out[i] = 2
            continue
        row, is_listed = 0 if family == 4 else 129, False  # where the family's lengths begin
        for length in range(33 if family == 4 else 129):
            if lengths[row + length] == 0:
                continue
            end = _write_network(key, 0, family, length, scratch)
            if _listed(layers, hash_bytes(key, 0, end, 0), key, 0, end):
                is_listed = True
                break
        out[i] = is_listed


@kernel
def read_networks(offsets: Int64, data: UInt8, keys: UInt8, ends: Int64) -> None:
    """Read texts such as `10.0.0.0/8`, `2001:db8::/32` or a single address as keys of networks, in one buffer.

    A key is the family (4 or 6), the length of the prefix, and the bytes of the address. A text that is not a network,
    or has bits after its prefix, gets no key: its end is the end of the key before. Shapes: keys uint8[N ·
    NETWORK_BYTES]; ends int64[N + 1], where ends[i + 1] is the end of key i.
    """
    scratch = np.empty(_SCRATCH, np.int64)
    position = 0
    ends[0] = 0
    for i in range(offsets.shape[0] - 1):
        lo, hi = offsets[i], offsets[i + 1]
        slash, length = hi, int64(-1)  # of a single address
        for k in range(lo, hi):
            if data[k] == _SLASH:
                slash = k
                break
        if slash < hi:
            length = int64(0)
            for k in range(slash + 1, hi):
                digit = int64(data[k]) - _ZERO
                length = length * 10 + digit if 0 <= digit <= 9 and length < _TOO_LONG // 10 else int64(_TOO_LONG)
            if slash + 1 == hi:
                length = int64(_TOO_LONG)
        family = _read_address(data, lo, slash, scratch)
        for k in range(lo, slash):
            if data[k] == _PERCENT:  # the zone of an address, which a network does not have
                family = 0
        bits = 32 if family == 4 else 128
        if family != 0 and length <= bits:
            end = _write_network(keys, position, family, bits if length < 0 else length, scratch)
            has_no_host_bits = True
            for k in range(end - position - 2):  # the bytes of the address follow the family and the length
                if keys[position + 2 + k] != scratch[k]:  # the key has only the prefix, the other bits are 0
                    has_no_host_bits = False
            position = end if has_no_host_bits else position
        ends[i + 1] = position


@kernel
def distinct(order: Int64, hashes: UInt64, offsets: Int64, data: UInt8) -> int:
    """Keep one key of each group of equal keys: move its number to the front of `order`. Return how many keys remain.

    Shapes: order int64[N], the numbers of the keys, sorted by hash before. Key k is data[offsets[k]:offsets[k + 1]] and
    has hashes[k]. Cost: O(N log N), even if an attacker has made all hashes equal.
    """
    begin, count = 0, 0
    while begin < order.shape[0]:
        end = begin + 1
        while end < order.shape[0] and hashes[order[end]] == hashes[order[begin]]:
            end += 1
        if end - begin > 1:
            _sort(order[begin:end], offsets, data)
        for i in range(begin, end):
            # Keys with equal hashes are sorted now, so a key is new if it is greater than the key before.
            if i == begin or _is_ordered(order[count - 1], order[i], offsets, data):
                order[count] = order[i]
                count += 1
        begin = end
    return count


@kernel
def _is_ordered(first: int, second: int, offsets: Int64, data: UInt8) -> bool:
    return _is_before(data, offsets[first], offsets[first + 1], data, offsets[second], offsets[second + 1])


@kernel
def _sort(order: Int64, offsets: Int64, data: UInt8) -> None:
    """Sort the numbers of keys by the keys themselves. This is a heapsort, because no input can make it slow."""
    count = order.shape[0]
    for step in range(count // 2 + count - 1):
        if step < count // 2:  # first build the heap: each parent sinks, from the last one on
            root, end = count // 2 - 1 - step, count
        else:  # then the greatest key moves to the end of the heap, and the new root sinks
            end = count - 1 - (step - count // 2)
            order[0], order[end] = order[end], order[0]
            root = 0
        while 2 * root + 1 < end:
            child = 2 * root + 1
            if child + 1 < end and _is_ordered(order[child], order[child + 1], offsets, data):
                child += 1
            if not _is_ordered(order[root], order[child], offsets, data):
                break
            order[root], order[child] = order[child], order[root]
            root = child


@kernel
def copy_keys(order: Int64, offsets: Int64, data: UInt8, into_offsets: Int64, into: UInt8) -> None:
    """Copy keys in this order; also fills into_offsets int64[N + 1]."""
    position = 0
    into_offsets[0] = 0
    for i in range(order.shape[0]):
        position = copy_bytes(data, offsets[order[i]], offsets[order[i] + 1], into, position)
        into_offsets[i + 1] = position


@kernel
def keys_within(members: MemberSet, offsets: Int64, data: UInt8, out: UInt8) -> None:
    """Fill out uint8[N] with 1 where key i is in this single set."""
    for i in range(out.shape[0]):
        h = hash_bytes(data, offsets[i], offsets[i + 1], 0)
        out[i] = _contains(members, h, data, offsets[i], offsets[i + 1])
