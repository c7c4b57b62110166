"""Checkpoints: only changed files are copied, N are kept, damage is noticed, and the last whole one is restored."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import Event
from uuid import uuid4

import pytest

from cep.base.errors import StateCorruptError, StateFormatError, StoreError
from cep.base.limits import CHECKPOINTS_PENDING_MAX
from cep.state import checkpoints
from cep.state.checkpoints import Checkpoints, Part, Published, checkpoint_numbers, read_manifest, restore
from cep.state.keys import ALL_KEYS, store_key
from cep.state.manifest import FOLDER, Manifest, sha256_of
from cep.state.memory import MemoryStore
from cep.state.rocks import RocksStore
from cep.state.store import DurableStore
from cep.state.target import Target

Entries = dict[bytes, bytes]


def fill(store: DurableStore, seed: int, count: int = 200) -> None:
    chance = Random(seed)
    for number in range(count):
        store.put(store_key(chance.randrange(8), b"%d/%d" % (seed, number), b"", b"n"), chance.randbytes(100))


def entries(store: DurableStore) -> Entries:
    return dict(store.scan(ALL_KEYS))


class Job:
    """One RocksDB store and its checkpoints in a folder."""

    def __init__(self, folder: Path, url: str = "", kept_count: int = 3) -> None:
        self.target = Target(url or str(folder / "target"))
        self.store = RocksStore(folder / "store")
        self.checkpoints = Checkpoints(self.target, folder / "work", kept_count=kept_count)

    def take(self, payload: bytes = b"{}") -> Published:
        copying = self.checkpoints.begin([Part("main", self.store, 0, 8)], payload, created_ms=1_000)
        assert copying is not None
        return copying.result(timeout=60)

    def file_of(self, number: int, suffix: str) -> Path:
        stored = next(f for f in read_manifest(self.target, number).files if f.name.endswith(suffix))
        return Path(self.target.url) / FOLDER / stored.sha256

    def close(self) -> None:
        self.checkpoints.close()
        self.store.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    opened = Job(tmp_path)
    yield opened
    opened.close()


def restored_entries(target: Target, folder: Path) -> tuple[Entries, bytes, tuple[str, ...]]:
    restored = restore(target, folder)
    assert restored is not None
    with RocksStore(restored.path("main")) as store:
        return entries(store), restored.payload, restored.refused


def damage(path: Path, how: str) -> None:
    """Change a file without changing other links to it."""
    good = path.read_bytes()
    path.unlink()
    if how == "torn":
        path.write_bytes(good[: len(good) // 2])
    elif how == "corrupt":
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))


@pytest.mark.parametrize("place", ["local", "memory"])
def test_the_newest_comes_back_with_its_payload(tmp_path: Path, place: str) -> None:
    job = Job(tmp_path, f"memory://{uuid4()}" if place == "memory" else "")
    for seed in range(3):
        fill(job.store, seed)
        job.take(b"payload %d" % seed)
    expected = entries(job.store)
    fill(job.store, 9)
    job.close()
    assert restored_entries(job.target, tmp_path / "back") == (expected, b"payload 2", ())


def test_only_new_files_are_copied(job: Job) -> None:
    fill(job.store, 0, 5_000)
    first = job.take()
    fill(job.store, 1, 50)
    second = job.take()
    assert first.copied_bytes_count == first.bytes_count
    assert second.bytes_count > first.bytes_count
    assert second.copied_bytes_count < first.bytes_count / 10
    assert len(job.target.sizes(FOLDER)) == first.files_count + second.copied_files_count


def test_a_restored_job_copies_only_what_is_new(tmp_path: Path, job: Job) -> None:
    fill(job.store, 0, 5_000)
    whole = job.take()
    restored = restore(job.target, tmp_path / "back")
    assert restored is not None
    with (
        RocksStore(restored.path("main")) as store,
        Checkpoints(job.target, tmp_path / "work2", restored=restored) as checkpoints,
    ):
        fill(store, 1, 50)
        copying = checkpoints.begin([Part("main", store, 0, 8)], b"", 2_000)
        assert copying is not None
        published = copying.result(timeout=60)
        expected = entries(store)
    assert published.number == 2
    assert published.copied_bytes_count < whole.bytes_count / 10
    assert restored_entries(job.target, tmp_path / "again")[0] == expected


def test_n_are_kept_and_no_file_stays_that_none_of_them_names(tmp_path: Path) -> None:
    job = Job(tmp_path, kept_count=2)
    (tmp_path / "target" / FOLDER).mkdir(parents=True)
    (tmp_path / "target" / FOLDER / "left-by-a-crash.part").write_bytes(b"x")
    job.close()
    job = Job(tmp_path, kept_count=2)
    for seed in range(5):
        fill(job.store, seed)
        job.store.delete_range(ALL_KEYS) if seed == 3 else None
        job.take()
    job.close()
    assert checkpoint_numbers(job.target) == [4, 5]
    named = {file.sha256 for number in (4, 5) for file in read_manifest(job.target, number).files}
    assert set(job.target.sizes(FOLDER)) == named
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize("how", ["torn", "corrupt", "missing"])
@pytest.mark.parametrize("damaged", [".sst", "CURRENT", "payload", "manifest"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, job: Job, damaged: str, how: str) -> None:
    fill(job.store, 0)
    job.take(b"good")
    expected = entries(job.store)
    job.store.delete_range(ALL_KEYS)
    fill(job.store, 1)
    job.store.compact(ALL_KEYS)  # so that the second shares only CURRENT with the first, which names MANIFEST
    job.take(b"bad" * 1_000)
    path = tmp_path / "target" / "checkpoint-00000002.manifest" if damaged == "manifest" else job.file_of(2, damaged)
    shared = {file.sha256 for file in read_manifest(job.target, 1).files}
    damage(path, how)
    if path.name in shared:
        with pytest.raises(
            StateCorruptError, match=r"no checkpoint in .* is whole(.|\n)*checkpoint 2(.|\n)*checkpoint 1"
        ):
            restore(job.target, tmp_path / "back")
        return
    restored, payload, refused = restored_entries(job.target, tmp_path / "back")
    assert (restored, payload) == (expected, b"good")
    if (damaged, how) != ("manifest", "missing"):  # a checkpoint without a manifest is not listed
        assert len(refused) == 1
        assert refused[0].startswith("checkpoint 2: ")


def test_after_a_fall_back_the_damaged_one_does_not_count_and_is_copied_anew(tmp_path: Path, job: Job) -> None:
    for seed in range(2):
        fill(job.store, seed)
        job.take(b"payload %d" % seed)
    damage(job.file_of(2, "payload"), "corrupt")
    restored = restore(job.target, tmp_path / "back")
    assert restored is not None
    assert restored.manifest.number == 1
    with (
        RocksStore(restored.path("main")) as store,
        Checkpoints(job.target, tmp_path / "work2", restored=restored, kept_count=2) as checkpoints,
    ):
        for seed in (1, 1):  # the damaged payload comes again
            fill(store, seed)
            copying = checkpoints.begin([Part("main", store, 0, 8)], b"payload %d" % seed, 2_000)
            assert copying is not None
            copying.result(timeout=60)
        expected = entries(store)
    assert checkpoint_numbers(job.target) == [3, 4]
    assert restored_entries(job.target, tmp_path / "again") == (expected, b"payload 1", ())


def test_nothing_published_is_nothing_to_restore(tmp_path: Path) -> None:
    assert restore(Target(str(tmp_path / "target")), tmp_path / "back") is None


def test_a_later_format_is_refused_not_passed_over(tmp_path: Path, job: Job) -> None:
    job.take()
    manifest = read_manifest(job.target, 1)
    body = manifest.to_bytes().partition(b"\n")[2].replace(b'"format": 1', b'"format": 2')
    with pytest.raises(StateCorruptError):
        Manifest.from_bytes(manifest.to_bytes()[:64] + b"\n" + body, "m")
    forged = hashlib.sha256(body).hexdigest().encode() + b"\n" + body
    assert json.loads(body)["format"] == 2
    job.target.create("checkpoint-00000002.manifest", forged)
    with pytest.raises(StateFormatError, match="format 2, this build reads 1"):
        restore(job.target, tmp_path / "back")


def test_two_stores_are_one_checkpoint(tmp_path: Path) -> None:
    stores: dict[str, DurableStore] = {"rocks": RocksStore(tmp_path / "store"), "memory": MemoryStore()}
    target = Target(str(tmp_path / "target"))
    with Checkpoints(target, tmp_path / "work") as checkpoints:
        for seed, store in enumerate(stores.values()):
            fill(store, seed)
        parts = [Part(name, store, 4 * i, 4 * i + 4) for i, (name, store) in enumerate(stores.items())]
        copying = checkpoints.begin(parts, b"p", 5_000)
        assert copying is not None
        copying.result(timeout=60)
    restored = restore(target, tmp_path / "back")
    assert restored is not None
    assert [(part.name, part.first, part.end) for part in restored.manifest.parts] == [
        ("rocks", 0, 4),
        ("memory", 4, 8),
    ]
    assert restored.manifest.created_ms == 5_000
    with RocksStore(restored.path("rocks")) as rocks, stores["rocks"] as expected:
        assert entries(rocks) == entries(expected)
    assert entries(MemoryStore.open(restored.path("memory"))) == entries(stores["memory"])


def test_a_slow_target_does_not_pile_up(tmp_path: Path) -> None:
    may_go_on = Event()

    def hold(step: int) -> None:
        if step == 2:
            may_go_on.wait(60)

    target = Target(str(tmp_path / "target"))
    store = MemoryStore()
    with Checkpoints(target, tmp_path / "work", on_step=hold) as slow:
        begun = [slow.begin([Part("m", store, 0, 8)], b"", 0) for _ in range(CHECKPOINTS_PENDING_MAX + 2)]
        assert [copying is None for copying in begun] == [False] * CHECKPOINTS_PENDING_MAX + [True, True]
        may_go_on.set()
        numbers = [copying.result(timeout=60).number for copying in begun if copying is not None]
        later = slow.begin([Part("m", store, 0, 8)], b"", 0)
        assert later is not None
        assert [*numbers, later.result(timeout=60).number] == [1, 2, 3]


def test_a_second_writer_is_refused(tmp_path: Path, job: Job) -> None:
    with Checkpoints(job.target, tmp_path / "work2") as other:
        job.take()
        copying = other.begin([Part("m", MemoryStore(), 0, 8)], b"", 0)
        assert copying is not None
        with pytest.raises(StoreError, match="another process writes"):
            copying.result(timeout=60)
    assert restored_entries(job.target, tmp_path / "back")[2] == ()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a priority of their own on Linux alone")
def test_checksums_are_computed_while_nobody_else_wants_the_processor(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    visited: list[int] = []

    def looking(path: Path) -> str:
        visited.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return sha256_of(path)

    monkeypatch.setattr(checkpoints, "sha256_of", looking)
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    fill(job.store, 1)
    assert job.take().files_count == len(visited)
    assert min(visited) >= max(before, checkpoints._NICENESS)
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
