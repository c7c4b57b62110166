"""Keys → a set with look-ups in constant time, in memory or as a file that processes share through the page cache.

    file    "CEPLIST2" | int64 keys, buckets, bytes of keys, kinds of lengths | two words of the digest
            | crc32 of the bytes before and after it, as a word | the five arrays, each at a multiple of 8

A file is written once and from then on only mapped: processes of one machine share one copy. Each process verifies it
when it maps it, because kernels trust its content: about half a second per gigabyte.
Tested by: tests/lists/test_lists.py
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from cep.base.errors import StateCorruptError, StateFormatError, StoreError
from cep.base.files import replace_file
from cep.kernels.arrange import hash_texts
from cep.kernels.layout import Int64, UInt8, UInt64
from cep.kernels.records import MemberSet
from cep.kernels.text.members import copy_keys, distinct, keys_within
from cep.lists.entries import Keys

_MAGIC, _FORMAT = b"CEPLIST", b"2"
_HEADER_END = 56  # bytes of magic, four int64 and the digest; the checksum follows
LENGTHS = 2 * 129  # of prefixes of networks; texts have at most LIST_ENTRY_BYTES_MAX
_SECOND_SEED = 0x5851F42D4C957F2D


@dataclass(frozen=True, slots=True)
class KeySet:
    """A set of keys in arrays, which a kernel searches by hash (kernels/text/members.py): N keys in B buckets.

    Shapes: first int64[B + 1], the first key of each bucket; hashes uint64[N]; offsets int64[N + 1] and data
    uint8[bytes], the keys; lengths uint8[LENGTHS] is 1 for each length of a prefix in the set. `digest` are two 64-bit
    words, each the sum of a hash of the keys: the digest of a union of disjoint sets is the sum of their digests.
    """

    first: Int64
    hashes: UInt64
    offsets: Int64
    data: UInt8
    lengths: UInt8
    digest: tuple[int, int]

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def members(self) -> MemberSet:
        return MemberSet(self.first, self.hashes, self.offsets, self.data)

    @property
    def keys(self) -> Keys:
        return Keys(self.offsets, self.data)

    def has(self, keys: Keys) -> np.ndarray:
        out = np.empty(len(keys), np.uint8)
        keys_within(self.members, keys.offsets, keys.data, out)
        return out.astype(bool)


def build(keys: Keys, kind: str) -> KeySet:
    """Build a set from the keys of a list of this kind (string, prefix, cidr). Equal sets have equal digests."""
    hashes = np.empty(len(keys), np.uint64)
    hash_texts(keys.offsets, keys.data, 0, hashes)
    order = np.argsort(hashes, kind="stable")  # most of the cost; buckets need this order, too
    order = order[: distinct(order, hashes, keys.offsets, keys.data)]  # one row of each key
    unique, hashes = _copied(keys, order), hashes[order]
    buckets_count = max(len(order), 1)
    # The upper 32 bits of a hash, scaled to the number of buckets, choose the bucket: greater hashes, later buckets.
    bucket_of_key = ((hashes >> np.uint64(32)) * np.uint64(buckets_count)) >> np.uint64(32)
    first = np.zeros(buckets_count + 1, np.int64)  # the first key of each bucket
    np.cumsum(np.bincount(bucket_of_key.astype(np.int64), minlength=buckets_count), out=first[1:])
    second_hashes = np.empty(len(order), np.uint64)
    hash_texts(unique.offsets, unique.data, _SECOND_SEED, second_hashes)
    digest = int(hashes.sum(dtype=np.uint64)), int(second_hashes.sum(dtype=np.uint64))  # in any order
    return KeySet(first, hashes, unique.offsets, unique.data, _lengths(unique, kind), digest)


def _lengths(keys: Keys, kind: str) -> UInt8:
    present = np.zeros(LENGTHS, np.uint8)
    if kind == "cidr":
        present[np.where(keys.data[keys.offsets[:-1]] == 4, 0, 129) + keys.data[keys.offsets[:-1] + 1]] = 1
    elif kind == "prefix":
        present[np.diff(keys.offsets)] = 1
    return present


def join_keys(*parts: Keys) -> Keys:
    """Concatenate keys."""
    sizes = [part.offsets[-1] - part.offsets[0] for part in parts]
    starts = np.cumsum([0, *sizes])
    offsets = [part.offsets[:-1] - part.offsets[0] + start for part, start in zip(parts, starts, strict=False)]
    data = [part.data[part.offsets[0] : part.offsets[-1]] for part in parts]
    return Keys(np.concatenate([*offsets, starts[-1:]]).astype(np.int64), np.concatenate(data))


def choose_keys(keys: Keys, is_chosen: np.ndarray) -> Keys:
    """Return the keys that a mask bool[N] chooses."""
    return _copied(keys, np.flatnonzero(is_chosen))


def _copied(keys: Keys, order: Int64) -> Keys:
    offsets = np.empty(len(order) + 1, np.int64)
    data = np.empty(int((keys.offsets[order + 1] - keys.offsets[order]).sum()), np.uint8)
    copy_keys(order, keys.offsets, keys.data, offsets, data)
    return Keys(offsets, data)


# The result of `build` without keys, so that a starting process need not load kernels for it.
EMPTY = KeySet(
    first=np.zeros(2, np.int64),
    hashes=np.zeros(0, np.uint64),
    offsets=np.zeros(1, np.int64),
    data=np.zeros(0, np.uint8),
    lengths=np.zeros(LENGTHS, np.uint8),
    digest=(0, 0),
)


def write(path: Path, members: KeySet) -> None:
    """Write a set to its file, completely or not at all. Raises: StoreError."""
    header, *arrays = (np.ascontiguousarray(array).view(np.uint8).data for array in _arrays(members))

    def fill(file: BinaryIO) -> None:
        checksum = zlib.crc32(header)
        for array in arrays:
            checksum = zlib.crc32(bytes(-len(array) % 8), zlib.crc32(array, checksum))  # with the zeros after it
        file.write(_MAGIC + _FORMAT)
        file.write(header)
        file.write(checksum.to_bytes(8, "little"))
        for array in arrays:
            file.write(array)
            file.write(bytes(-len(array) % 8))

    try:
        replace_file(path, fill, many_writers=True)
    except OSError as error:
        raise StoreError(f"the list {path} cannot be written: {error.strerror}; make room on the disk") from error


def _arrays(members: KeySet) -> Iterator[np.ndarray]:
    digest = np.array(members.digest, np.uint64).view(np.int64)
    sizes = np.array([len(members), len(members.first) - 1, len(members.data), LENGTHS], np.int64)
    yield np.concatenate([sizes, digest])
    yield from (members.first, members.hashes, members.offsets, members.lengths, members.data)


def map_set_file(path: Path) -> KeySet:
    """Map the file of a set into memory. Raises: StateCorruptError; StateFormatError for one of another build."""
    try:
        # Copy on write: arrays that may be written compile to the same code as arrays in memory. No one writes to them.
        whole = np.memmap(path, np.uint8, "c").view(np.ndarray)
    except (OSError, ValueError) as error:
        raise StateCorruptError(f"the list {path} cannot be read ({error}); restore it with the checkpoint") from error
    position = _verified(whole, path)
    count, buckets, size, lengths = whole[8:40].view(np.int64).tolist()  # the header after magic and format
    stored: list[np.ndarray] = []
    for bytes_count in (8 * (buckets + 1), 8 * count, 8 * (count + 1), lengths, size):
        stored.append(whole[position : position + bytes_count])
        position += bytes_count + -bytes_count % 8  # each array begins at a multiple of 8
    if position != len(whole) or lengths != LENGTHS:
        raise StateCorruptError(f"{path} has {len(whole)} bytes instead of {position}; restore it with the checkpoint")
    first, hashes, offsets, flags, data = stored
    digest_a, digest_b = whole[40:_HEADER_END].view(np.uint64).tolist()
    return KeySet(
        first.view(np.int64), hashes.view(np.uint64), offsets.view(np.int64), data, flags, (digest_a, digest_b)
    )


def _verified(whole: UInt8, path: Path) -> int:
    """Check the header and the checksum of a file. Return where its arrays begin. Raises: as `map_set_file`."""
    magic, format_ = whole[: len(_MAGIC)].tobytes(), whole[len(_MAGIC) : 8].tobytes()
    if len(whole) < _HEADER_END or magic != _MAGIC:
        raise StateCorruptError(f"{path} is not the file of a list; restore it with the checkpoint")
    if format_ != _FORMAT:
        raise StateFormatError(
            f"the list {path} has format {format_.decode(errors='replace')}, this build reads {_FORMAT.decode()}; "
            "start with the build that wrote it"
        )
    begin = _HEADER_END + 8  # after the checksum
    checksum = int.from_bytes(whole[_HEADER_END:begin].tobytes(), "little")
    if zlib.crc32(whole[begin:].data, zlib.crc32(whole[8:_HEADER_END].data)) != checksum:
        raise StateCorruptError(f"the list {path} fails its checksum; restore it with the checkpoint")
    return begin
