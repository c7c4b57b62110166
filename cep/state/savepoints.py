"""Stores → a savepoint: everything, by key group, in files that any store can read; and back, whole or by key groups.

    savepoint.manifest        first line sha256 of the rest | JSON: what it is made of (manifest.py)
    files/SHA256              group-00042.cep: the entries of one key group (entries.py), empty groups have none
                              store.cep: what the store knows of itself; payload; beside/: files of no store

A checkpoint belongs to the stores that wrote it; a savepoint to nobody: it can be copied as a folder, read years later,
loaded into another kind of store, or divided between several by ranges of key groups. It is whole when its manifest is
there, which is written last.
Tested by: tests/state/test_savepoints.py
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path

from cep.base.errors import StoreError
from cep.state.checkpoints import BESIDE, PAYLOAD, Part
from cep.state.entries import read_entries, write_entries
from cep.state.keys import STORE_GROUP, group_range
from cep.state.manifest import FOLDER, Manifest, StoredFile, StoredPart, fetch, sha256_of
from cep.state.registry import merged
from cep.state.store import DurableStore, KeyedStore, StoreSnapshot
from cep.state.target import Target

KIND = "savepoint"
NAME = "savepoint.manifest"
_STORE_FILE = "store.cep"


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint that is there. `groups` are all that its stores had, with entries or not."""

    target: Target
    manifest: Manifest
    payload: bytes

    @property
    def groups(self) -> range:
        return range(min(part.first for part in self.manifest.parts), max(part.end for part in self.manifest.parts))


def write_savepoint(
    target: Target, work: Path, parts: Sequence[Part], payload: bytes, created_ms: int, beside: Sequence[Path] = ()
) -> Manifest:
    """Write all entries of the stores as they are now, which together hold consecutive key groups.

    `work` is a new local folder; it takes one key group at a time. `beside` are files that belong to the savepoint.

    Raises: StoreError if a disk takes no more, or if the target has a savepoint already. StateSchemaError if the stores
    declare different state.
    """
    stores = sorted(parts, key=lambda part: part.first)
    assert all(a.end == b.first for a, b in pairwise(stores)), "key groups that no store holds, or two"
    if NAME in target.sizes():
        raise StoreError(f"{target.url} has a savepoint already; name another place")
    try:
        work.mkdir(parents=True)
        with ExitStack() as opened:
            snapshots = [opened.enter_context(part.store.snapshot()) for part in stores]
            files = [_put(target, path) for path in _entry_files(work, stores, snapshots)]
        files += [replace(_put(target, path), name=f"{BESIDE}/{path.name}") for path in beside]
        (work / PAYLOAD).write_bytes(payload)
        files.append(_put(target, work / PAYLOAD))
        held = tuple(StoredPart(part.name, part.first, part.end) for part in stores)
        manifest = Manifest(KIND, 0, created_ms, held, tuple(files))
        target.create(NAME, manifest.to_bytes())
    except OSError as error:
        raise StoreError(f"cannot write {work}: {error.strerror}; make room on the disk") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return manifest


def open_savepoint(target: Target, work: Path) -> Savepoint:
    """What the savepoint says of itself, and its payload. `work` is a new local folder.

    Raises: StateCorruptError if it is damaged, not there or not finished; StateFormatError for one of a later build.
    """
    manifest = Manifest.from_bytes(target.read(NAME), NAME)
    file = next(file for file in manifest.files if file.name == PAYLOAD)
    try:
        fetch(target, file, work / PAYLOAD, may_link=False)
        return Savepoint(target, manifest, (work / PAYLOAD).read_bytes())
    finally:
        shutil.rmtree(work, ignore_errors=True)


def load_savepoint(savepoint: Savepoint, store: DurableStore, groups: range, work: Path) -> int:
    """Load these key groups into an empty store; returns how many entries. `work` is a new local folder.

    Every file is verified before its entries are taken. Raises: StateCorruptError, and the store is then to be thrown
    away; StoreError.
    """
    wanted = {_STORE_FILE, *(_file_name(group) for group in groups)}
    found = sorted((file for file in savepoint.manifest.files if file.name in wanted), key=lambda file: file.name)
    try:
        return store.ingest(chain.from_iterable(_verified(savepoint.target, file, work) for file in found))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def entries_of_group(savepoint: Savepoint, group: int, work: Path) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a key group, whose file is verified before the first. `work` is a local folder.

    Raises: StateCorruptError, StoreError.
    """
    for file in savepoint.manifest.files:
        if file.name == _file_name(group):
            yield from _verified(savepoint.target, file, work)


def load_beside(savepoint: Savepoint, folder: Path) -> list[Path]:
    """Bring the files that belong to the savepoint into a folder, verified. Raises: StateCorruptError, StoreError."""
    found = [file for file in savepoint.manifest.files if file.name.startswith(f"{BESIDE}/")]
    paths = [folder / file.name.removeprefix(f"{BESIDE}/") for file in found]
    for file, path in zip(found, paths, strict=True):
        fetch(savepoint.target, file, path, may_link=False)
    return paths


def move_groups(sources: Iterable[KeyedStore], store: DurableStore, groups: range) -> int:
    """Copy key groups of other stores into an empty one: what changes when workers do. Returns how many entries.

    No two sources hold the same key group. Raises: StateSchemaError if they declare different state.
    """
    opened = list(sources)
    own = _own_entries(opened)
    each = ((group, source) for group in groups for source in opened)
    entries = chain.from_iterable(source.scan(group_range(group)) for group, source in each)
    return store.ingest(chain(entries, own))


def shares(groups: range, count: int) -> list[range]:
    """The key groups divided between `count` stores, evenly; every store gets at least one."""
    assert 1 <= count <= len(groups), f"{len(groups)} key groups cannot be divided between {count} stores"
    bounds = [groups.start + len(groups) * number // count for number in range(count + 1)]
    return [range(first, end) for first, end in pairwise(bounds)]


def _entry_files(work: Path, parts: Sequence[Part], snapshots: Sequence[StoreSnapshot]) -> Iterator[Path]:
    """One file after the other, so that the disk holds one of them."""
    for part, snapshot in zip(parts, snapshots, strict=True):
        for group in range(part.first, part.end):
            path = work / _file_name(group)
            if write_entries(path, snapshot.scan(group_range(group))):
                yield path
            path.unlink()
    path = work / _STORE_FILE
    if write_entries(path, _own_entries(snapshots)):
        yield path


def _own_entries(stores: Iterable[KeyedStore | StoreSnapshot]) -> list[tuple[bytes, bytes]]:
    return merged(chain.from_iterable(store.scan(group_range(STORE_GROUP)) for store in stores))


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
