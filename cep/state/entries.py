"""Entries of a store ↔ a file that any store can read: blocks of the one codec (columnar/codec.py).

    ( length u32 | block: key binary, value binary ) … | 00 00 00 00 |      little-endian

The closing zero is the end of the file: so one that ends early, and a length that became a zero, are found. Each block
has its own checksum.
Tested by: tests/state/test_pages.py
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from cep.base.errors import StateCorruptError, StoreError
from cep.base.limits import ENTRY_BLOCK_BYTES_MAX
from cep.columnar.codec import decode_table, encode_table

_LENGTH = struct.Struct("<I")
_SCHEMA = pa.schema([("key", pa.large_binary()), ("value", pa.large_binary())])
_BLOCK_BYTES = 1 << 20  # written at once; one entry may be larger


def write_entries(path: Path, entries: Iterable[tuple[bytes, bytes]]) -> int:
    """Write entries to a file in blocks, and return their number. Raises: StoreError if the disk takes no more."""
    entries_count = 0
    try:
        with path.open("wb") as file:
            for block in _blocks(entries):
                entries_count += block.num_rows
                data = encode_table(block)
                file.write(_LENGTH.pack(len(data)))
                file.write(data)
            file.write(_LENGTH.pack(0))
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; make room or choose another directory") from error
    return entries_count


def read_entries(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Read the entries of the file. Raises: StateCorruptError if it is damaged, cut off or not there."""
    try:
        with path.open("rb") as file:
            end = os.fstat(file.fileno()).st_size
            while (size := _length(file, path)) > 0:
                if size > end - file.tell():  # before memory is allocated for a damaged length
                    raise StateCorruptError(f"{path} ends inside a block; take an older copy")
                block = _checked(decode_table(file.read(size)), path)
                yield from zip(block.column(0).to_pylist(), block.column(1).to_pylist(), strict=True)
            if file.tell() < end:
                raise StateCorruptError(f"{path} goes on behind its last block; take an older copy")
    except OSError as error:
        raise StateCorruptError(f"cannot read {path}: {error.strerror}; take an older copy") from error


def _checked(block: pa.RecordBatch, path: Path) -> pa.RecordBatch:
    """Check that a block has only whole entries. A file of any origin may have right checksums over wrong bytes.

    Raises: StateCorruptError.
    """
    try:
        block.validate(full=True)  # each offset is inside of its buffer
        is_whole = block.schema.types == _SCHEMA.types and not any(column.null_count for column in block.columns)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:  # the names of columns, too, are the writer's
        raise StateCorruptError(f"{path} has a block that is none: {error}; take an older copy") from error
    if not is_whole:
        raise StateCorruptError(f"{path} has a block without keys and values; take an older copy")
    return block


def _length(file: BinaryIO, path: Path) -> int:
    data = file.read(_LENGTH.size)
    if len(data) < _LENGTH.size:
        raise StateCorruptError(f"{path} ends before its last block; take an older copy")
    size = int(_LENGTH.unpack(data)[0])
    if size > ENTRY_BLOCK_BYTES_MAX:
        raise StateCorruptError(
            f"{path} announces a block of {size} bytes, {ENTRY_BLOCK_BYTES_MAX} at most are written"
        )
    return size


def _blocks(entries: Iterable[tuple[bytes, bytes]]) -> Iterator[pa.RecordBatch]:
    """Group entries into record batches of about `_BLOCK_BYTES`."""
    keys: list[bytes] = []
    values: list[bytes] = []
    block_bytes = 0
    for key, value in entries:
        keys.append(key)
        values.append(value)
        block_bytes += len(key) + len(value)
        if block_bytes >= _BLOCK_BYTES:
            yield pa.record_batch([keys, values], schema=_SCHEMA)
            keys, values, block_bytes = [], [], 0
    if keys:
        yield pa.record_batch([keys, values], schema=_SCHEMA)
