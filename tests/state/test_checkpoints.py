"""Checkpoints: only changed files are copied, N are kept, damage is noticed, and the last whole one is restored.

If a target refuses, the checkpoint fails with a reason, earlier ones stay, and the next one may succeed. The protocol
survives a crash before each numbered step, by kill -9 and by simulation, and damage at random.
"""

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import Event
from typing import Any
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from cep.base.errors import StateCorruptError, StateFormatError, StoreError
from cep.base.limits import CHECKPOINTS_PENDING_MAX
from cep.state import checkpoints
from cep.state.checkpoints import Checkpoints, Part, Published, checkpoint_numbers, read_manifest, restore
from cep.state.manifest import FOLDER, Manifest, sha256_of
from cep.state.memory import MemoryStore
from cep.state.rocks import RocksSettings, RocksStore
from cep.state.store import ALL_KEYS, DurableStore, store_key
from cep.state.target import Target
from tests.small_disk import small_disk

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


def test_a_copied_manifest_under_another_name_is_no_checkpoint(tmp_path: Path, job: Job) -> None:
    job.take()
    path = Path(job.target.url) / "checkpoint-00000001.manifest"
    shutil.copy(path, path.with_name("checkpoint-00000001-old.manifest"))
    assert checkpoint_numbers(job.target) == [1]


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


class FlakyFileSystem(MemoryFileSystem):  # type: ignore[misc] # fsspec publishes no types
    """An object store in which every third write fails; some failures leave half of the file. Removals may fail too."""

    protocol = "flaky"
    chance = Random(0)
    keeps = 0.0  # the share of removals that fail

    def rm_file(self, path: str) -> None:
        if self.chance.random() < self.keeps:
            raise OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        super().rm_file(path)

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
def test_an_object_store_that_fails_now_and_then(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    FlakyFileSystem.chance = Random(seed)
    monkeypatch.setattr(FlakyFileSystem, "keeps", 0.5)
    target = Target(f"flaky://{uuid4()}")
    store = MemoryStore()
    published: dict[int, dict[bytes, bytes]] = {}
    failures: list[str] = []
    with Checkpoints(target, tmp_path / "work", kept_count=2) as checkpoints:
        for number in range(36):
            content = b"%d" % (number // 3)  # a failed checkpoint is tried again unchanged
            store.put(store_key(0, content, b"", b""), b"x")
            try:
                newest = take(checkpoints, store, content)
            except StoreError as error:
                failures.append(str(error))
                continue
            published[newest] = dict(store.scan(ALL_KEYS))
            assert {file.sha256 for file in read_manifest(target, newest).files} <= target.sizes(FOLDER).keys()
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
    with pytest.raises(StoreError, match="timed out"):  # its files would count as those of no checkpoint
        Checkpoints(target, tmp_path / "work")
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


# Writes 100 entries and takes a checkpoint, again and again; in round 4 it dies before the given unit of work.
VICTIM = """
import os, signal, sys
from pathlib import Path
from cep.state.checkpoints import Checkpoints, Part
from cep.state.store import store_key
from cep.state.rocks import RocksStore
from cep.state.target import Target

folder, fatal_step, fatal_unit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
round_number, units = 0, 0

def on_step(step):
    global units
    if round_number == 4 and step == fatal_step:
        units += 1
        if units == fatal_unit:
            os.kill(os.getpid(), signal.SIGKILL)

store = RocksStore(folder / "store")
checkpoints = Checkpoints(Target(str(folder / "target")), folder / "work", kept_count=2, on_step=on_step)
for round_number in range(1, 6):
    for i in range(100):
        store.put(store_key(0, b"%d/%d" % (round_number, i), b"", b"n"), b"%d" % round_number)
    checkpoints.begin([Part("main", store, 0, 8)], b"%d" % round_number, 0).result()
"""
PUBLISHED_FROM = 5  # a crash before this step, or before a later one, leaves the new checkpoint


@pytest.mark.parametrize(
    ("step", "unit"), [(1, 1), (2, 1), (3, 1), (3, 3), (4, 1), (5, 1), (6, 1), (6, 2), (7, 1)], ids=str
)
def test_kill_9_before_a_step(tmp_path: Path, step: int, unit: int) -> None:
    result = subprocess.run(
        [sys.executable, "-c", VICTIM, str(tmp_path), str(step), str(unit)],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == -signal.SIGKILL, result.stderr
    target = Target(str(tmp_path / "target"))
    restored = restore(target, tmp_path / "back")
    assert restored is not None
    last = 4 if step >= PUBLISHED_FROM else 3
    assert (restored.manifest.number, restored.payload, restored.refused) == (last, b"%d" % last, ())
    with (
        RocksStore(restored.path("main")) as store,
        Checkpoints(target, tmp_path / "work", kept_count=2, restored=restored) as checkpoints,
    ):
        assert len(list(store.scan(ALL_KEYS))) == 100 * last
        copying = checkpoints.begin([Part("main", store, 0, 8)], b"next", 0)
        assert copying is not None
        assert copying.result(timeout=60).number == last + 1
    numbers = checkpoint_numbers(target)
    assert numbers == [last, last + 1]
    named = {file.sha256 for number in numbers for file in read_manifest(target, number).files}
    assert set(target.sizes(FOLDER)) == named, "what the crash left is collected"
    assert list((tmp_path / "work").iterdir()) == []


class _Crash(BaseException):
    """The process has died."""


class _Life:
    """One life of a process: it writes, takes checkpoints, and dies before a random unit of a random step."""

    def __init__(self, chance: Random, states: list[dict[bytes, bytes]]) -> None:
        """`states` holds the contents of each checkpoint ever begun; a payload is an index into it."""
        self._chance = chance
        self._countdown = chance.randrange(1, 40)
        self._states = states

    def on_step(self, step: int) -> None:
        self._countdown -= 1
        if self._countdown <= 0:
            raise _Crash(step)

    def until_death(self, path: Path, checkpoints: Checkpoints, model: dict[bytes, bytes]) -> None:
        chance = self._chance
        with RocksStore(path, RocksSettings(wal=False)) as store:
            while True:
                for _ in range(chance.randrange(30)):
                    key = store_key(0, b"%d" % chance.randrange(60), b"", b"n")
                    if chance.random() < 0.3:
                        store.delete(key)
                        model.pop(key, None)
                    else:
                        model[key] = chance.randbytes(chance.randrange(100))
                        store.put(key, model[key])
                self._states.append(dict(model))
                copying = checkpoints.begin([Part("main", store, 0, 8)], b"%d" % (len(self._states) - 1), 0)
                assert copying is not None
                copying.result(timeout=60)


def _damaged(target: Target, chance: Random) -> set[int]:
    """Damage a file that the newest checkpoint has and its predecessors do not; return the damaged numbers."""
    numbers = checkpoint_numbers(target)
    if len(numbers) < 2 or chance.random() < 0.5:
        return set()
    files = {number: {file.sha256 for file in read_manifest(target, number).files} for number in numbers}
    new_files = sorted(files[numbers[-1]] - set[str]().union(*(files[number] for number in numbers[:-1])))
    paths = [path for name in new_files if (path := Path(target.url) / FOLDER / name).exists()]
    if not paths:
        return set()
    path = chance.choice(paths)
    good = path.read_bytes()
    path.unlink()
    if chance.random() < 0.7 and good:
        place = chance.randrange(len(good))
        path.write_bytes(
            good[:place] if chance.random() < 0.5 else good[:place] + bytes([good[place] ^ 255]) + good[place + 1 :]
        )
    return {numbers[-1]}


SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 60))]


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize("seed", SEEDS)
def test_any_number_of_crashes_and_damages_lose_nothing_published(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    target = Target(str(tmp_path / "target"))
    states: list[dict[bytes, bytes]] = []
    lost: set[int] = set()
    for life_number in range(6):
        lost |= _damaged(target, chance)
        numbers = checkpoint_numbers(target)
        whole = [number for number in numbers if number not in lost]
        folder = tmp_path / f"life{life_number}"
        restored = restore(target, folder)
        model: dict[bytes, bytes] = {}
        if whole:
            assert restored is not None
            # A damaged checkpoint may be whole again: a later checkpoint, which was never published, wrote the same
            # file.
            assert restored.manifest.number >= max(whole), f"seed {seed}"
        if restored is not None:
            model = dict(states[int(restored.payload)])
            with RocksStore(restored.path("main")) as store:
                assert dict(store.scan(ALL_KEYS)) == model, f"seed {seed}, life {life_number}"
        life = _Life(chance, states)
        with (
            Checkpoints(
                target, tmp_path / "work", kept_count=2, restored=restored, on_step=life.on_step
            ) as checkpoints,
            pytest.raises(_Crash),
        ):
            life.until_death(folder / "main", checkpoints, model)
        shutil.rmtree(folder)
    assert checkpoint_numbers(target), f"seed {seed}"
