"""Texts and numbers → hashes that cannot be predicted without the key.

Senders choose the keys, ids and values of events. With a predictable hash, a sender could place thousands of them in
one slot of a table, so that each look-up costs as much as the table is long. So tables in memory use these hashes.
Their key, two words, differs in every process (columnar/texts.py). Key groups and files of lists outlive a process;
they use the hash of arrange.py.

    tables       SipHash-1-3, 64 bits      8 … 16 bytes take about 10 ns, as with FNV-1a
    event ids    SipHash-2-4, 64 bits      no sender can make an id that passes for another (step/duplicates.py)

After Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012).
Tested by: tests/kernels/test_groups.py
"""

import numpy as np

from cep.kernels.jit import bare
from cep.kernels.layout import Int64, UInt8, UInt64

_U = np.uint64
WORD_BYTES = 8  # bytes of a word
_V0, _V1, _V2, _V3 = _U(0x736F6D6570736575), _U(0x646F72616E646F6D), _U(0x6C7967656E657261), _U(0x7465646279746573)
_FINISH_MARK = _U(0xFF)  # SipHash mixes it in before the last rounds
State = tuple[np.uint64, np.uint64, np.uint64, np.uint64]


@bare
def _rounds(v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64, count: int) -> State:
    """Mix the four words of SipHash's state, `count` times."""
    for _ in range(count):
        v0 += v1
        v2 += v3
        v1 = (v1 << _U(13) | v1 >> _U(51)) ^ v0
        v3 = (v3 << _U(16) | v3 >> _U(48)) ^ v2
        v0 = v0 << _U(32) | v0 >> _U(32)
        v2 += v1
        v0 += v3
        v1 = (v1 << _U(17) | v1 >> _U(47)) ^ v2
        v3 = (v3 << _U(21) | v3 >> _U(43)) ^ v0
        v2 = v2 << _U(32) | v2 >> _U(32)
    return v0, v1, v2, v3


@bare
def begin(key: UInt64) -> State:
    """Return the initial state. Shapes: key uint64[2]."""
    return _V0 ^ key[0], _V1 ^ key[1], _V2 ^ key[0], _V3 ^ key[1]


@bare
def take_word(sip: State, word: np.uint64) -> State:
    """Return the state after one more word."""
    v0, v1, v2, v3 = _rounds(sip[0], sip[1], sip[2], sip[3] ^ word, 1)
    return v0 ^ word, v1, v2, v3


@bare
def finish(sip: State) -> np.uint64:
    """Return the hash of all words. Compared inputs have the same number of words, or the last word is their number."""
    v0, v1, v2, v3 = _rounds(sip[0], sip[1], sip[2] ^ _FINISH_MARK, sip[3], 3)
    return v0 ^ v1 ^ v2 ^ v3


@bare
def word_at(data: UInt8, position: int) -> np.uint64:
    """Return eight bytes as a word, little-endian. Unsigned indexes make it a single load."""
    k = _U(position)
    low = _U(data[k]) | _U(data[k + _U(1)]) << _U(8) | _U(data[k + _U(2)]) << _U(16) | _U(data[k + _U(3)]) << _U(24)
    high = _U(data[k + _U(4)]) << _U(32) | _U(data[k + _U(5)]) << _U(40) | _U(data[k + _U(6)]) << _U(48)
    return low | high | _U(data[k + _U(7)]) << _U(56)


@bare
def _last_word(data: UInt8, position: int, hi: int, length: int) -> np.uint64:
    """Return the last word of a hash: data[position:hi], fewer than eight bytes, and the length of the whole text.

    SipHash has the length in the top byte, so that texts that differ in zero bytes at the end have different words.
    Usually more bytes follow in the buffer; then one load reads eight bytes, and a mask removes the extra ones.
    """
    word, shift = _U(length) << _U(56), _U(0)
    if position + WORD_BYTES <= data.shape[0]:
        return word | (word_at(data, position) & ((_U(1) << _U(8 * (hi - position))) - _U(1)))
    for k in range(position, hi):
        word |= _U(data[_U(k)]) << shift
        shift += _U(8)
    return word


@bare
def keyed_hash(data: UInt8, lo: int, hi: int, key: UInt64) -> np.uint64:
    """Return SipHash-1-3 of data[lo:hi]. Shapes: key uint64[2]."""
    sip, position = begin(key), lo
    while position + WORD_BYTES <= hi:
        sip = take_word(sip, word_at(data, position))
        position += WORD_BYTES
    return finish(take_word(sip, _last_word(data, position, hi, hi - lo)))


@bare
def keyed_hash_of_pair(first: int, second: int, key: UInt64) -> np.uint64:
    """Return the hash of two words."""
    return finish(take_word(take_word(begin(key), _U(first)), _U(second)))


@bare
def keyed_text_hashes(offsets: Int64, data: UInt8, key: UInt64, out: UInt64) -> None:
    """Fill out uint64[N] with the hash of each text data[offsets[i]:offsets[i + 1]] (int64 offsets, UTF-8 bytes)."""
    for i in range(out.shape[0]):
        out[i] = keyed_hash(data, offsets[i], offsets[i + 1], key)


@bare
def keyed_number_hashes(values: Int64, key: UInt64, out: UInt64) -> None:
    """Fill out uint64[N] with the hash of each number of int64[N]."""
    for i in range(out.shape[0]):
        out[i] = keyed_hash_of_pair(values[i], 0, key)


@bare
def keyed_id_hashes(key_digests: Int64, offsets: Int64, data: UInt8, keys: UInt64, out: UInt64) -> None:
    """Fill out uint64[N] with the SipHash-2-4 hash of each event's id, after eight bytes that identify the event's key.

    These bytes, key_digests int64[N], make the hashes of equal ids of two keys different. Shapes: keys uint64[N, 2] are
    the secret keys of the hash, or uint64[1, 2] one for all events.
    """
    step = 0 if keys.shape[0] == 1 else 1  # 0: all events have the first row of `keys`
    for i in range(out.shape[0]):
        lo, hi, key_digest = offsets[i], offsets[i + 1], _U(key_digests[i])
        k0, k1 = keys[i * step, 0], keys[i * step, 1]
        v0, v1, v2, v3 = _rounds(_V0 ^ k0, _V1 ^ k1, _V2 ^ k0, _V3 ^ k1 ^ key_digest, 2)
        v0 ^= key_digest  # the first word of the text
        position = lo
        while position + WORD_BYTES <= hi:
            word = word_at(data, position)
            v0, v1, v2, v3 = _rounds(v0, v1, v2, v3 ^ word, 2)
            v0 ^= word
            position += WORD_BYTES
        word = _last_word(data, position, hi, WORD_BYTES + hi - lo)
        v0, v1, v2, v3 = _rounds(v0, v1, v2, v3 ^ word, 2)
        v0, v1, v2, v3 = _rounds(v0 ^ word, v1, v2 ^ _FINISH_MARK, v3, 4)
        out[i] = v0 ^ v1 ^ v2 ^ v3
