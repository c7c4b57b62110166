"""A target that refuses: the checkpoint fails with a reason, earlier ones stay, and the next one may succeed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from cep.base.errors import StateCorruptError, StoreError
from cep.state.checkpoints import Checkpoints, Part, checkpoint_numbers, read_manifest, restore
from cep.state.keys import ALL_KEYS, store_key
from cep.state.manifest import FOLDER
from cep.state.memory import MemoryStore
from cep.state.rocks import RocksStore
from cep.state.store import DurableStore
from cep.state.target import Target
from tests.small_disk import small_disk


class FlakyFileSystem(MemoryFileSystem):  # type: ignore[misc] # fsspec publishes no types
    """An object store in which every third write fails; some failures leave half of the file."""

    protocol = "flaky"
    chance = Random(0)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        if self.chance.random() < 0.3:
            if self.chance.random() < 0.5:
                super().pipe_file(path, value[: len(value) // 2], **options)
            raise OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        super().pipe_file(path, value, **options)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())


def take(checkpoints: Checkpoints, store: DurableStore, payload: bytes = b"") -> int:
    copying = checkpoints.begin([Part("main", store, 0, 8)], payload, 0)
    assert copying is not None
    return copying.result(timeout=60).number


@pytest.mark.parametrize("seed", range(6))
def test_an_object_store_that_fails_now_and_then(tmp_path: Path, seed: int) -> None:
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    FlakyFileSystem.chance = Random(seed)
    target = Target(f"flaky://{uuid4()}")
    store = MemoryStore()
    published: dict[int, dict[bytes, bytes]] = {}
    failures: list[str] = []
    with Checkpoints(target, tmp_path / "work", kept_count=2) as checkpoints:
        for number in range(12):
            store.put(store_key(0, b"%d" % number, b"", b""), b"x" * number)
            try:
                published[take(checkpoints, store)] = dict(store.scan(ALL_KEYS))
            except StoreError as error:
                failures.append(str(error))
    assert failures, f"seed {seed}: nothing was tried"
    assert published, f"seed {seed}: nothing was tried"
    assert all("Connection reset" in text for text in failures), f"seed {seed}"
    restored = restore(target, tmp_path / "back")
    assert restored is not None, f"seed {seed}"
    assert restored.manifest.number == max(published), f"seed {seed}"
    assert dict(MemoryStore.open(restored.path("main")).scan(ALL_KEYS)) == published[max(published)]


@pytest.fixture
def full_at_1_mb(tmp_path: Path) -> Iterator[Path | None]:
    """Return a real file system of 1 MB, if one may be mounted."""
    with small_disk(tmp_path / "disk", 1) as disk:
        yield disk.folder if disk.is_mounted else None


def test_a_full_target_keeps_the_last_good_one_and_takes_the_next_when_there_is_room(
    tmp_path: Path, full_at_1_mb: Path | None
) -> None:
    if full_at_1_mb is None:  # the flaky object store has shown the same, without a real disk
        return
    target = Target(str(full_at_1_mb / "target"))
    with RocksStore(tmp_path / "store") as store, Checkpoints(target, tmp_path / "work") as checkpoints:
        store.put(store_key(0, b"small", b"", b""), b"1")
        assert take(checkpoints, store, b"good") == 1
        for number in range(2_000):
            store.put(store_key(1, b"%d" % number, b"", b""), os.urandom(1_000))
        with pytest.raises(StoreError, match="make room there"):
            take(checkpoints, store)
        restored = restore(target, tmp_path / "back")
        assert restored is not None
        assert (restored.manifest.number, restored.payload) == (1, b"good")
        store.delete_range(ALL_KEYS)
        store.put(store_key(0, b"small", b"", b""), b"2")
        store.compact(ALL_KEYS)
        number = take(checkpoints, store, b"room again")
    after = restore(target, tmp_path / "again")
    assert after is not None
    assert (after.manifest.number, after.payload) == (number, b"room again")
    assert [path.name for path in (tmp_path / "work").iterdir()] == []


def test_a_full_disk_of_the_store_leaves_the_last_good_one(tmp_path: Path, full_at_1_mb: Path | None) -> None:
    if full_at_1_mb is None:
        return
    target = Target(str(tmp_path / "target"))
    with Checkpoints(target, full_at_1_mb / "work") as checkpoints:
        store = MemoryStore()  # its checkpoint is a file, written in full on the small disk
        store.put(store_key(0, b"k", b"", b""), b"1")
        take(checkpoints, store, b"good")
        store.put(store_key(0, b"k", b"", b""), os.urandom(3 << 20))
        with pytest.raises(StoreError, match="make room"):
            take(checkpoints, store)
        assert list((full_at_1_mb / "work").iterdir()) == []
        store.put(store_key(0, b"k", b"", b""), b"2")
        assert take(checkpoints, store, b"good again") == 3
    assert checkpoint_numbers(target) == [1, 3]


def test_a_target_that_cannot_be_reached_is_no_reason_to_go_back(tmp_path: Path) -> None:
    class Away(MemoryFileSystem):  # type: ignore[misc]
        protocol = "away"
        is_away = False

        def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
            if self.is_away:
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            data: bytes = super().cat_file(path, start, end, **options)
            return data

    fsspec.register_implementation("away", Away, clobber=True)
    target = Target(f"away://{uuid4()}")
    with Checkpoints(target, tmp_path / "work") as checkpoints:
        take(checkpoints, MemoryStore())
    Away.is_away = True
    with pytest.raises(StoreError, match="timed out") as error:
        restore(target, tmp_path / "back")
    assert not isinstance(error.value, StateCorruptError)
    Away.is_away = False
    assert restore(target, tmp_path / "back") is not None


class Hoarding(MemoryFileSystem):  # type: ignore[misc]
    """An object store that deletes nothing, for a while."""

    protocol = "hoarding"
    lets_go = False

    def rm_file(self, path: str) -> None:
        if not self.lets_go:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        super().rm_file(path)


def test_what_cannot_be_removed_is_no_failure_and_is_removed_later(tmp_path: Path) -> None:
    fsspec.register_implementation("hoarding", Hoarding, clobber=True)
    target = Target(f"hoarding://{uuid4()}")
    store = MemoryStore()
    tidy = []
    with Checkpoints(target, tmp_path / "work", kept_count=1) as checkpoints:
        for number in range(4):
            Hoarding.lets_go = number == 3
            store.put(store_key(0, b"k", b"", b""), os.urandom(20))
            copying = checkpoints.begin([Part("main", store, 0, 8)], b"%d" % number, 0)
            assert copying is not None
            tidy.append(copying.result(timeout=60).is_tidy)
    assert tidy == [True, False, False, True]
    assert checkpoint_numbers(target) == [4]
    assert set(target.sizes(FOLDER)) == {file.sha256 for file in read_manifest(target, 4).files}


def test_a_failed_checkpoint_leaves_no_file_for_ever(tmp_path: Path) -> None:
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    FlakyFileSystem.chance = Random(3)
    target = Target(f"flaky://{uuid4()}")
    store = MemoryStore()
    with Checkpoints(target, tmp_path / "work", kept_count=1) as checkpoints:
        checkpoint_count = 0
        while checkpoint_count < 3:
            store.put(store_key(0, b"k", b"", b""), os.urandom(20))
            try:
                take(checkpoints, store)
                checkpoint_count += 1
            except StoreError:
                continue
    with Checkpoints(target, tmp_path / "work", kept_count=1) as checkpoints:  # a new process sees torn files too
        FlakyFileSystem.chance = Random(9)
        while True:
            try:
                number = take(checkpoints, store)
                break
            except StoreError:
                continue
    named = {file.sha256 for file in read_manifest(target, number).files}
    assert set(target.sizes(FOLDER)) == named
