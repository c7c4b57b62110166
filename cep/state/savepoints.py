"""Stores → a savepoint: all entries by key group, in files that any store can read; and back, whole or by key groups.

    savepoint.manifest        first line sha256 of the rest | JSON: its parts (manifest.py)
    files/SHA256              group-00042.cep: the entries of one key group (below), empty groups have none
                              payload; beside/: files that belong to no store

A checkpoint belongs to the stores that wrote it. A savepoint can be copied as a folder, read years later, loaded into
another kind of store, or divided between several by key groups. Its manifest is written last.

The file of a key group has blocks of the one codec (columnar/batch.py), each with its own checksum:

    ( length u32 | block: key binary, value binary ) … | 00 00 00 00 |      little-endian

The closing zero is the end of the file, so a file that ends early, and a length that became a zero, are found.

Tested by: tests/state/test_savepoints.py, tests/state/test_pages.py.
"""

import os
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from cep.base.errors import StateCorruptError, StoreError
from cep.base.limits import ENTRY_BLOCK_BYTES_MAX
from cep.columnar.batch import decode_table, encode_table
from cep.state.checkpoints import LISTS_FOLDER, PAYLOAD, Part
from cep.state.manifest import FOLDER, Manifest, StoredFile, StoredPart, fetch, path_inside, sha256_of
from cep.state.store import DurableStore, StoreSnapshot, group_range
from cep.state.target import Target

_LENGTH = struct.Struct("<I")
_SCHEMA = pa.schema([("key", pa.large_binary()), ("value", pa.large_binary())])
_BLOCK_BYTES = 1 << 20  # written at once; one entry may be larger


def write_entries(path: Path, entries: Iterable[tuple[bytes, bytes]]) -> int:
    """Write entries to a file in blocks, each after its length. Return the number of entries. Raises: StoreError."""
    entries_count = 0
    try:
        with path.open("wb") as file:
            for block in _blocks(entries):
                entries_count += block.num_rows
                data = encode_table(block)
                file.write(_LENGTH.pack(len(data)))
                file.write(data)
            file.write(_LENGTH.pack(0))  # the end mark
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
    """Check that a block has whole entries: a right checksum may cover wrong bytes. Raises: StateCorruptError."""
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
    keys: list[bytes] = []
    values: list[bytes] = []
    block_bytes = 0
    for key, value in entries:
        keys.append(key)
        values.append(value)
        block_bytes += len(key) + len(value)
        if block_bytes >= _BLOCK_BYTES:  # the block is large enough
            yield pa.record_batch([keys, values], schema=_SCHEMA)
            keys, values, block_bytes = [], [], 0
    if keys:  # the last block
        yield pa.record_batch([keys, values], schema=_SCHEMA)


KIND = "savepoint"
NAME = "savepoint.manifest"


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A whole savepoint. `groups` are all key groups of its stores, with entries or not."""

    target: Target
    manifest: Manifest
    payload: bytes

    @property
    def groups(self) -> range:
        return range(min(part.first for part in self.manifest.parts), max(part.end for part in self.manifest.parts))


def write_savepoint(
    target: Target, work: Path, parts: Sequence[Part], payload: bytes, created_ms: int, list_files: Sequence[Path] = ()
) -> Manifest:
    """Write all entries of stores as a savepoint. Each store has a range of key groups; together they have all of them.

    `work`: a new local folder, which has the file of one key group at a time. Entries outside of all key groups
    (STORE_GROUP) are left out. `payload`: the job without its keyed state. `list_files`: entries of the rules' lists.
    Raises: StoreError if a disk is full, or if the target has a savepoint."""
    stores = sorted(parts, key=lambda part: part.first)
    assert all(part.end == after.first for part, after in pairwise(stores)), "key groups that no store holds, or two"
    if NAME in target.sizes():
        raise StoreError(f"{target.url} has a savepoint already; name another place")
    try:
        work.mkdir(parents=True)
        with ExitStack() as opened:
            snapshots = [opened.enter_context(part.store.snapshot()) for part in stores]
            files = [_put(target, path) for path in _entry_files(work, stores, snapshots)]
        files += [replace(_put(target, path), name=f"{LISTS_FOLDER}/{path.name}") for path in list_files]
        (work / PAYLOAD).write_bytes(payload)
        files.append(_put(target, work / PAYLOAD))
        stored_parts = tuple(StoredPart(part.name, part.first, part.end) for part in stores)
        manifest = Manifest(KIND, 0, created_ms, stored_parts, tuple(files))  # 0: only checkpoints are numbered
        target.create(NAME, manifest.to_bytes())
    except OSError as error:
        raise StoreError(f"cannot write {work}: {error.strerror}; make room on the disk") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return manifest


def open_savepoint(target: Target, work: Path) -> Savepoint:
    """Read the manifest and the payload of a savepoint. `work` is a new local folder. Raises: StateError."""
    manifest = Manifest.from_bytes(target.read(NAME), NAME, KIND)
    file = manifest.file(PAYLOAD)
    if not manifest.parts:
        raise StateCorruptError(f"the savepoint in {target.url} names no key groups; take another copy")
    try:
        fetch(target, file, work / PAYLOAD, may_link=False)
        return Savepoint(target, manifest, (work / PAYLOAD).read_bytes())
    finally:
        shutil.rmtree(work, ignore_errors=True)


def load_savepoint(savepoint: Savepoint, store: DurableStore, groups: range, work: Path) -> int:
    """Load some key groups of a savepoint into an empty store. Return the number of entries.

    `work` is a new local folder. Raises: StateCorruptError, and then the store must be deleted; StoreError.
    """
    names = {_file_name(group) for group in groups}
    files = sorted((file for file in savepoint.manifest.files if file.name in names), key=lambda file: file.name)
    try:
        return store.ingest(chain.from_iterable(_verified(savepoint.target, file, work) for file in files))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def entries_of_group(savepoint: Savepoint, group: int, work: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the verified entries of a key group. `work` is a local folder. Raises: StateCorruptError, StoreError."""
    for file in savepoint.manifest.files:
        if file.name == _file_name(group):
            yield from _verified(savepoint.target, file, work)


def load_lists(savepoint: Savepoint, folder: Path) -> list[Path]:
    """Bring the files that belong to the savepoint into a folder, verified. Raises: StateCorruptError, StoreError."""
    files = [file for file in savepoint.manifest.files if file.name.startswith(f"{LISTS_FOLDER}/")]
    paths = [path_inside(folder, file.name.removeprefix(f"{LISTS_FOLDER}/")) for file in files]
    for file, path in zip(files, paths, strict=True):
        fetch(savepoint.target, file, path, may_link=False)
    return paths


def _entry_files(work: Path, parts: Sequence[Part], snapshots: Sequence[StoreSnapshot]) -> Iterator[Path]:
    """Write one file after the other, so that the disk holds one of them."""
    for part, snapshot in zip(parts, snapshots, strict=True):
        for group in range(part.first, part.end):
            path = work / _file_name(group)
            if write_entries(path, snapshot.scan(group_range(group))):
                yield path
            path.unlink()


def _put(target: Target, path: Path) -> StoredFile:
    file = StoredFile(path.name, path.stat().st_size, sha256_of(path))
    target.put(path, f"{FOLDER}/{file.sha256}")
    return file


def _verified(target: Target, file: StoredFile, work: Path) -> Iterator[tuple[bytes, bytes]]:
    path = work / file.name
    fetch(target, file, path, may_link=True)
    yield from read_entries(path)
    path.unlink()


def _file_name(group: int) -> str:
    return f"group-{group:05}.cep"
