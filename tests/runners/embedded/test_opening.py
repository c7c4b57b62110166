"""The start of a job: it leaves a store that it cannot judge as it is, and asks sinks for the alerts sent since."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from cep.base.errors import StateCorruptError, StoreError
from cep.runners.embedded.commit import DELIVERED, Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from tests.runners.embedded.outside import Lines
from tests.runners.embedded.test_commit import INITIAL, JOB
from tests.small_disk import small_disk


class Remote(MemoryFileSystem):  # type: ignore[misc] # fsspec publishes no types
    """An object store that may be unreachable."""

    protocol = "remote"
    is_away = False

    def _reach(self) -> None:
        if self.is_away:
            raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self._reach()
        return super().ls(path, detail, **options)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self._reach()
        super().pipe_file(path, value, **options)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())


@pytest.fixture
def remote() -> Iterator[str]:
    fsspec.register_implementation("remote", Remote, clobber=True)
    yield f"remote://{uuid4()}"
    Remote.is_away = False


@dataclass
class Process:
    """A job that reads no records and commits on request."""

    settings: StoreSettings
    failed: list[StoreError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.commits = Commits(self.settings, on_failed=self.failed.append)
        self._engine = Engine(JOB, INITIAL, self.commits.store, Workers(1))
        self._ends = Sources(Lines([], np.random.default_rng(0)), None), Outlets((), None)
        self.commits.resume(self._engine, *self._ends)

    def commit(self) -> int:
        assert self.commits.begin(self._engine, *self._ends)
        self.commits.finish(wait=True)
        return self.number

    def commit_until_refused(self) -> None:
        """A full disk refuses at once; a limit on files refuses after the log has grown to it."""
        for _ in range(1_000):
            self.commit()

    def settle(self) -> None:
        self.commits.settle(self._engine, *self._ends)

    @property
    def number(self) -> int:
        """Return the number of the last commit; 0 for a new job."""
        return 0 if self.commits.head is None else self.commits.head.number

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()
        self.commits.close()


def settings_of(folder: Path, target: str | None = None, checkpoint_ms: int = 0) -> StoreSettings:
    return StoreSettings(folder, "rocksdb", target, cache_bytes=8 << 20, checkpoint_ms=checkpoint_ms)


def test_a_target_out_of_reach_stops_no_job_that_runs_and_costs_no_store(remote: str, tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "job", remote)
    with Process(settings) as job:
        job.commit()
        Remote.is_away = True
        assert [job.commit() for _ in range(3)] == [2, 3, 4]
        job.settle()
        assert len(job.failed) == job.commits.totals["checkpoints_failed"] == 5, "one for each commit, one at the end"
        assert "No route to host" in str(job.failed[0])
        assert not (tmp_path / "job" / DELIVERED).exists(), "the newest checkpoint is not of the end"
    with pytest.raises(StoreError, match="No route to host"):
        Commits(settings)
    Remote.is_away = False
    with Process(settings) as job:
        assert job.number == 5, "which only this disk has"
        assert job.commits.totals["checkpoints_failed"] == 3, "as the last commit knew"
        job.settle()
        assert not job.failed
    assert (tmp_path / "job" / DELIVERED).exists()


def test_in_memory_a_commit_is_its_checkpoint_and_a_target_out_of_reach_ends_the_job(
    remote: str, tmp_path: Path
) -> None:
    with Process(StoreSettings(tmp_path / "job", "memory", remote)) as job:
        job.commit()
        Remote.is_away = True
        with pytest.raises(StoreError, match="No route to host"):
            job.commit()
        assert not job.failed


def test_a_full_disk_costs_no_store_and_the_job_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16) as disk:
        settings = settings_of(disk.folder / "job", checkpoint_ms=3_600_000)
        with Process(settings) as job:
            job.commit()
            disk.fill(0)
            with pytest.raises(StoreError, match="make room on the disk, then start again"):
                job.commit_until_refused()
            last = job.number
        with pytest.raises(StoreError, match="make room"):
            Process(settings)
        disk.free()
        with Process(settings) as job:
            assert job.number == last, "and nothing was gone back to"
            job.commit()


@pytest.mark.parametrize("harm", ["damaged", "marked"])
def test_a_damaged_store_without_a_checkpoint_is_told_and_stays(harm: str, tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "job", checkpoint_ms=3_600_000)
    store = tmp_path / "job" / "store" / "store"
    with Process(settings) as job:
        job.commit()
        if harm == "marked":
            job.commits.distrust()
    if harm == "damaged":
        (store / "CURRENT").write_text("MANIFEST-000099\n")
    with pytest.raises(StateCorruptError, match=r"no checkpoint in .* to go back to: restore a savepoint"):
        Commits(settings)
    assert (store / "CURRENT").exists()


def test_what_was_brought_back_asks_again_until_a_commit_keeps_the_answer(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "job", checkpoint_ms=3_600_000)
    with Process(replace(settings, checkpoint_ms=0)) as job:
        job.commit()
    shutil.rmtree(tmp_path / "job" / "store")
    from_checkpoint = []
    for _ in range(2):  # each of them ends before its first commit
        with Process(settings) as job:
            from_checkpoint.append(job.commits.from_checkpoint)
    with Process(settings) as job:
        from_checkpoint.append(job.commits.from_checkpoint)
        job.commit()
    with Process(settings) as job:
        assert job.number == 2
        from_checkpoint.append(job.commits.from_checkpoint)
    assert from_checkpoint == [True, True, True, False], (
        "the last one goes on here, though no checkpoint has its commit"
    )
