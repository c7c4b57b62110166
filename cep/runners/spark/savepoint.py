"""The checkpoint directory of a stopped live job → a savepoint in a target, and back; verified both ways.

    TARGET/savepoint-NNNNNN.manifest    what the savepoint is made of (state/manifest.py); number: its last micro-batch
    TARGET/files/SHA256                 the files; what two savepoints share is there once

Steps of a savepoint, each of which may be the last one before a crash:

    1  hash     every file of the checkpoint directory
    2  copy     the files that the target does not have
    3  verify   that what the target has, has the bytes that were hashed
    4  publish  the manifest: from here on the savepoint is there, before it is not

A restore fetches and verifies every file into a folder next to the new checkpoint directory, and renames that folder
last. A job locks its checkpoint directory, so a savepoint of a running job is refused, not torn.
Tested by: tests/runners/spark/test_savepoint.py
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from cep.base.errors import UsageError
from cep.runners.live_checkpoint import LOCK_FILE, lock_checkpoint
from cep.runners.spark.state import job_of, last_batch
from cep.state.manifest import FOLDER, Manifest, StoredFile, fetch, path_inside, sha256_of
from cep.state.target import Target

KIND = "spark-savepoint"
_PREFIX, _SUFFIX = "savepoint-", ".manifest"


@dataclass(frozen=True, slots=True)
class Saved:
    """An existing savepoint. Units: bytes; `copied` are the bytes that the target did not have."""

    name: str
    batch_id: int
    files_count: int
    size: int
    copied: int


def save(checkpoint: Path, target: Target) -> Saved:
    """Copy the checkpoint directory of a stopped job.

    Raises: UsageError if the folder does not belong to a job, or is in use; StoreError if the target fails;
    StateCorruptError if the written bytes are read differently.
    """
    job_of(checkpoint)
    batch_id = last_batch(checkpoint)
    assert batch_id is not None, "job_of has refused one without"
    with lock_checkpoint(checkpoint):
        files = [_described(path, checkpoint) for path in sorted(checkpoint.rglob("*")) if _belongs(path)]
        sizes = target.sizes(FOLDER)
        copied = 0
        for file in files:
            if sizes.get(file.sha256) != file.size:
                target.put(checkpoint / file.name, f"{FOLDER}/{file.sha256}")
                sizes[file.sha256] = file.size
                copied += file.size
        with tempfile.TemporaryDirectory() as scratch:
            for file in files:
                fetch(target, file, Path(scratch) / "file", may_link=False)
        name = f"{_PREFIX}{batch_id:09d}-{int(time.time() * 1_000)}"
        manifest = Manifest(KIND, batch_id, int(time.time() * 1_000), (), tuple(files))
        target.create(name + _SUFFIX, manifest.to_bytes())
    return Saved(name, batch_id, len(files), sum(f.size for f in files), copied)


def savepoints(target: Target) -> list[str]:
    """Return the names of all savepoints, the latest last."""
    names = [name.removesuffix(_SUFFIX) for name in target.sizes() if name.endswith(_SUFFIX)]
    return sorted(name for name in names if name.startswith(_PREFIX))


def restore(target: Target, checkpoint: Path, name: str | None = None) -> Saved:
    """Create a checkpoint directory from a savepoint, by default from the latest one.

    Raises: UsageError if the savepoint does not exist, or the folder is not empty; StateCorruptError if a file differs
    from the saved one; nothing has been created then.
    """
    names = savepoints(target)
    if not names:
        raise UsageError(f"{target.url} has no savepoints; make one with `cep job savepoint`")
    chosen = names[-1] if name is None else name
    if chosen not in names:
        raise UsageError(f"{target.url} has no savepoint {chosen}, only {', '.join(names)}")
    if checkpoint.exists() and any(checkpoint.iterdir()):
        raise UsageError(f"{checkpoint} is not empty; restore into a new folder and start the job with that")
    manifest = Manifest.from_bytes(target.read(chosen + _SUFFIX), chosen)
    if manifest.kind != KIND:
        raise UsageError(f"{chosen} is a {manifest.kind}, not a savepoint of a live job on Spark")
    manifest.check_number(int(chosen.removeprefix(_PREFIX).partition("-")[0]), chosen)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{checkpoint.name}-", dir=checkpoint.parent))
    try:
        for file in manifest.files:
            fetch(target, file, path_inside(fresh, file.name), may_link=False)
        fresh.replace(checkpoint)  # of an empty folder or of nothing
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    size = sum(file.size for file in manifest.files)
    return Saved(chosen, manifest.number, len(manifest.files), size, size)


def _belongs(path: Path) -> bool:
    """Return True for a file of the job, but not for its lock or unfinished files."""
    return path.is_file() and path.name != LOCK_FILE and not path.name.endswith(".tmp")


def _described(path: Path, checkpoint: Path) -> StoredFile:
    return StoredFile(path.relative_to(checkpoint).as_posix(), path.stat().st_size, sha256_of(path))
