"""Numbers of different pairs, and the keyed hashes that they are found by: SipHash, which nobody can make collide."""

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from cep.columnar.batch import TEXT, text_buffers
from cep.columnar.texts import table_key
from cep.functions.columns import TextNumbers, hashed_texts
from cep.histories.table import empty_places, grouped
from cep.kernels.arrange import hash_texts
from cep.kernels.groups import find_pairs, group_pairs
from cep.kernels.layout import Int64
from cep.kernels.records import NumberedTexts, Texts
from cep.kernels.siphash import keyed_id_hashes, keyed_number_hashes, keyed_text_hashes
from cep.kernels.text.texts import number_rows


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_those_of_a_dictionary(seed: int) -> None:
    random = Random(f"groups {seed}")
    most = random.choice((1, 3, 50, 2**62))
    pairs = [(random.randint(-most, most), random.randint(0, most)) for _ in range(random.choice((0, 1, 2, 200)))]
    others = [random.choice([*pairs, (most, -1), (0, 0)]) for _ in range(50)]
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    first, second = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
    codes, firsts = grouped(first, second)
    assert codes.tolist() == [numbers[pair] for pair in pairs]
    assert firsts.tolist() == [pairs.index(pair) for pair in numbers]
    places, group_numbers = empty_places(len(pairs)), np.empty(len(others), np.int64)
    rows, codes = np.empty(len(pairs), np.int64), np.empty(len(pairs), np.int64)
    assert group_pairs(first, second, table_key(), places, rows, codes) == len(numbers)
    queries = np.array(others, np.int64).T.copy()
    find_pairs(first, second, table_key(), places, rows, queries[0], queries[1], group_numbers)
    assert group_numbers.tolist() == [numbers.get(pair, -1) for pair in others]


@pytest.mark.parametrize("seed", range(5))
def test_texts_are_found_among_different_ones(seed: int) -> None:
    random = Random(f"texts {seed}")
    texts = ["".join(random.choices("abä", k=random.randint(0, 4))) for _ in range(300)]
    distinct = list(dict.fromkeys(texts[: random.choice((0, 1, 20, 200))]))
    numbers = TextNumbers(pa.array(["", *distinct], TEXT).slice(1)).of(pa.array(["x", *texts], TEXT).slice(1))
    assert numbers.tolist() == [distinct.index(text) if text in distinct else -1 for text in texts]


_MASK = 2**64 - 1
PROBES = 8  # on average, in a half-full table; a degraded table has thousands


def _turned(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _MASK


def sip(data: bytes, key: bytes, compress: int, final: int, *, is_wide: bool = False) -> bytes:
    """Compute SipHash as in the paper and its reference code, in Python's integers."""
    k = [int.from_bytes(key[start : start + 8], "little") for start in (0, 8)]
    v = [k[0] ^ 0x736F6D6570736575, k[1] ^ 0x646F72616E646F6D, k[0] ^ 0x6C7967656E657261, k[1] ^ 0x7465646279746573]
    v[1] ^= 0xEE if is_wide else 0

    def turn(count: int) -> None:
        for _ in range(count):
            v[0], v[2] = (v[0] + v[1]) & _MASK, (v[2] + v[3]) & _MASK
            v[1], v[3] = _turned(v[1], 13) ^ v[0], _turned(v[3], 16) ^ v[2]
            v[0] = _turned(v[0], 32)
            v[2], v[0] = (v[2] + v[1]) & _MASK, (v[0] + v[3]) & _MASK
            v[1], v[3] = _turned(v[1], 17) ^ v[2], _turned(v[3], 21) ^ v[0]
            v[2] = _turned(v[2], 32)

    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) & 255])
    for start in range(0, len(padded), 8):
        word = int.from_bytes(padded[start : start + 8], "little")
        v[3] ^= word
        turn(compress)
        v[0] ^= word
    v[2] ^= 0xEE if is_wide else 0xFF
    turn(final)
    out = (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")
    if is_wide:
        v[1] ^= 0xDD
        turn(final)
        out += (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")
    return out


def test_the_plain_one_gives_the_values_of_the_reference() -> None:
    key = bytes(range(16))
    assert sip(bytes(range(15)), key, 2, 4) == bytes.fromhex("e545be4961ca29a1")
    assert sip(b"", key, 2, 4, is_wide=True) == bytes.fromhex("a3817f04ba25a8e66df67214c7550293")


@pytest.mark.parametrize("seed", range(5))
def test_kernels_give_what_the_plain_one_gives(seed: int) -> None:
    random = Random(f"siphash {seed}")
    key = random.randbytes(16)
    words = np.frombuffer(key, np.uint64)
    texts = ["".join(random.choices("aé€z0", k=length)) for length in [*range(40), 300]]
    offsets, data = text_buffers(pa.array(texts, TEXT))
    hashes = np.empty(len(texts), np.uint64)
    keyed_text_hashes(offsets, data, words, hashes)
    assert [int(h).to_bytes(8, "little") for h in hashes] == [sip(t.encode(), key, 1, 3) for t in texts]
    kinds, ids = np.array([random.randint(-5, 2**40) for _ in texts]), np.empty(len(texts), np.uint64)
    keyed_id_hashes(kinds, offsets, data, words[None], ids)
    whole = [int(k).to_bytes(8, "little", signed=True) + t.encode() for k, t in zip(kinds, texts, strict=True)]
    assert [int(h).to_bytes(8, "little") for h in ids] == [sip(data, key, 2, 4) for data in whole]


def colliding_keys(count: int, bits: int) -> pa.Array:
    """Return texts whose hash without a key ends in so many zero bits.

    A hostile sender who has read arrange.py makes such texts.
    """
    batches: list[pa.Array] = []
    for part in range(10_000):
        if sum(map(len, batches)) >= count:
            break
        numbers = np.arange(part * 1_000_000, (part + 1) * 1_000_000)
        texts = pa.array(numbers).cast(TEXT)
        hashes = np.empty(len(texts), np.uint64)
        hash_texts(*text_buffers(texts), 0, hashes)
        batches.append(texts.filter(pa.array(hashes & np.uint64((1 << bits) - 1) == 0)))
    return pa.concat_arrays(batches).slice(0, count)


def _probes(places_of: Int64, size: int) -> float:
    """Return the average distance of the keys from the first place of their search, in a table without gaps."""
    is_taken, total = np.zeros(size, bool), 0
    for place in places_of.tolist():
        slot = place
        while is_taken[slot]:
            slot, total = (slot + 1) % size, total + 1
        is_taken[slot] = True
    return total / len(places_of)


def test_made_keys_fill_a_table_without_a_key_only() -> None:
    keys, key = colliding_keys(1_000, 11), np.array([3, 4], np.uint64)
    without = np.empty(len(keys), np.uint64)
    hash_texts(*text_buffers(keys), 0, without)
    assert _probes((without & np.uint64(2_047)).astype(np.int64), 2_048) > 400, "the keys are what they are made for"
    codes, firsts, places = np.empty(1_000, np.int32), np.empty(1_000, np.int64), np.zeros(2_048, np.uint64)
    texts = Texts(*text_buffers(keys))
    numbered = NumberedTexts(places, codes, firsts, key, np.empty(33, np.uint64))
    assert number_rows(texts, 0, 0, texts, texts, numbered, 0) == (1_000, 1_000)
    hashes = np.empty(1_000, np.uint64)
    keyed_text_hashes(texts.offsets, texts.data, key, hashes)
    filled = np.flatnonzero(places)
    begins = hashes[(places[filled] & np.uint64(0xFFFFFFFF)).astype(np.int64) - 1] & np.uint64(2_047)
    assert ((filled - begins.astype(np.int64)) % 2_048).mean() < PROBES
    assert _probes((hashed_texts(keys).hashes & np.uint64(2_047)).astype(np.int64), 2_048) < PROBES


def test_made_numbers_fill_no_table_of_pairs() -> None:
    """Multiples of 2^46 shared one place when pairs were mixed by a constant."""
    first = np.arange(1_000, dtype=np.int64) << 46
    key, places = np.array([5, 6], np.uint64), empty_places(len(first))
    firsts, codes = np.empty(len(first), np.int64), np.empty(len(first), np.int64)
    assert group_pairs(first, np.zeros_like(first), key, places, firsts, codes) == len(first)
    hashes, size = np.empty(len(first), np.uint64), np.uint64(len(places) - 1)
    keyed_number_hashes(first, key, hashes)
    filled = np.flatnonzero(places >= 0)
    begins = (hashes[places[filled]] & size).astype(np.int64)
    assert ((filled - begins) % len(places)).mean() < PROBES
