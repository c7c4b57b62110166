"""Stores and a payload → checkpoints in a target, each whole or not there, copied in the background.

The payload names the offsets, the rulebook's epoch and unsent alerts, so it must not part from the stores. The steps:

    1  link     every store's files, by hard links, into a folder of their own: one moment for all
    2  hash     the files that were not hashed for an earlier checkpoint
    3  copy     to `files/SHA256` what the target does not have: only what changed since the last checkpoint.
    4  publish  the manifest under its number, which makes the checkpoint count.
    5  retire   manifests beyond the newest N
    6  collect  files that no manifest names any more
    7  drop     the links

A failure before the end of 4 removes the copied files. A crash there leaves the earlier checkpoints as they were, and
files that step 6 of the next checkpoint removes. `on_step` is called with the step's number before each of its units:
tests crash there. One process writes to a target at a time. A second one is refused at 4, and removes nothing.
Tested by: tests/state/test_checkpoints.py
"""

import hashlib
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cep.base.errors import StateCorruptError, StateError, StoreError
from cep.base.limits import CHECKPOINTS_PENDING_MAX, CHECKPOINTS_RETAINED_DEFAULT
from cep.base.process import Closing
from cep.state.manifest import FOLDER, Manifest, StoredFile, StoredPart, fetch, path_inside, sha256_of
from cep.state.store import DurableStore
from cep.state.target import PARTIAL, Target

KIND = "checkpoint"
PAYLOAD = "payload"
_PREFIX, _SUFFIX = "checkpoint-", ".manifest"
_NUMBERED = re.compile(rf"{_PREFIX}([0-9]{{8,}})\{_SUFFIX}")  # a person's copy of a manifest has another name
LISTS_FOLDER = "beside"  # the folder of files that no store wrote: the entries of lists
# RocksDB writes its tables once, and so are the files of lists. RocksDB may append to its other files.
_FOREVER_SAME = (".sst", ".keys")
_NICENESS = 15  # of the thread that computes checksums


@dataclass(frozen=True, slots=True)
class Part:
    """One store to checkpoint, its name in the checkpoint, and its key groups first <= g < end."""

    name: str
    store: DurableStore
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Published:
    """The figures of a published checkpoint. Copied files are new in the target. `is_tidy`: older ones are removed."""

    number: int
    files_count: int
    bytes_count: int
    copied_files_count: int
    copied_bytes_count: int
    is_tidy: bool


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint that was copied from `url`: a store directory for each part, and why newer ones were refused."""

    url: str
    manifest: Manifest
    payload: bytes
    folder: Path
    refused: tuple[str, ...]

    def path(self, part: str) -> Path:
        return self.folder / part


def checkpoint_numbers(target: Target) -> list[int]:
    """Return the numbers of the checkpoints that are there, oldest first, damaged ones too."""
    return sorted(int(named[1]) for name in target.sizes() if (named := _NUMBERED.fullmatch(name)))


def read_manifest(target: Target, number: int) -> Manifest:
    """Read the manifest of a checkpoint. An old one under a higher number is refused. Raises: StateError."""
    manifest = Manifest.from_bytes(target.read(_name(number)), _name(number), KIND)
    manifest.check_number(number, _name(number))
    return manifest


def payload_bytes(target: Target, number: int) -> bytes:
    """Read the payload of a checkpoint, verified. Raises: StateError."""
    file = read_manifest(target, number).file(PAYLOAD)
    data = target.read(f"{FOLDER}/{file.sha256}", file.size)
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise StateCorruptError(f"{file.name} of checkpoint {number} fails its checksum")
    return data


def restore(target: Target, folder: Path) -> Restored | None:
    """Copy the newest undamaged checkpoint into the new directory `folder`. Return None if none was ever published.

    Every file is verified. After a damaged or missing file, the checkpoint before is tried. Raises: StateCorruptError
    if no checkpoint is undamaged, with each reason. StoreError if the target cannot be reached, and StateFormatError
    for a checkpoint of a later build: to go back in time would be wrong in both cases."""
    assert not folder.exists(), f"{folder} is in the way"
    refused: list[str] = []
    partial = folder.with_name(folder.name + PARTIAL)
    for number in reversed(checkpoint_numbers(target)):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            manifest = _fetched(target, number, partial)
        except StateCorruptError as error:
            refused.append(f"checkpoint {number}: {error}")
            continue
        payload = (partial / PAYLOAD).read_bytes()
        partial.rename(folder)
        return Restored(target.url, manifest, payload, folder, tuple(refused))
    shutil.rmtree(partial, ignore_errors=True)
    if refused:
        raise StateCorruptError(
            f"no checkpoint in {target.url} is whole; restore a savepoint, or start from an empty directory:\n  "
            + "\n  ".join(refused)
        )
    return None


def _fetched(target: Target, number: int, folder: Path) -> Manifest:
    manifest = read_manifest(target, number)
    manifest.file(PAYLOAD)  # refused here if it is missing
    for file in manifest.files:
        fetch(target, file, path_inside(folder, file.name), file.name.endswith(_FOREVER_SAME))
    return manifest


class Checkpoints(Closing):
    """A writer of checkpoints into a target, one after the other, in a thread of its own. Use it from one thread."""

    def __init__(
        self, target: Target, work: Path, *, kept_count: int = CHECKPOINTS_RETAINED_DEFAULT,
        restored: Restored | None = None, on_step: Callable[[int], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """Begin after `restored`, which the stores were opened from. `work` is a folder on their disk, emptied here.

        Checkpoints share unchanged files, so a file is copied once. But a file that the target already has is copied
        again, unless this process has verified it or written it. `on_step` is for tests.

        Raises: StoreError if the target cannot be read now, StateFormatError for a checkpoint of a later build."""
        self._target = target
        self._work = work
        self._retained_count = kept_count
        self._on_step = on_step
        self._hashes = _hashes_of(restored) if restored else {}  # by a file's identity: inode, size, time
        from_target = restored if restored is not None and restored.url == target.url else None
        self._verified_hashes = {file.sha256 for file in from_target.manifest.files} if from_target else set[str]()
        self._listed_hashes = self._listed_manifests(from_target)  # hashes of files, by number of a checkpoint
        self._names = set(target.sizes(FOLDER))  # hashes of all files in the target: each is the name of its file
        self._next = max(checkpoint_numbers(target), default=0) + 1
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._hasher = ThreadPoolExecutor(1, "checksums", initializer=_lower_priority)
        self._pending: list[Future[Published]] = []
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)

    def begin(
        self, parts: Sequence[Part], payload: bytes, created_ms: int, *, is_atomic: bool = False,
        beside: Callable[[], Sequence[Path]] = tuple,
    ) -> Future[Published] | None:  # fmt: skip
        """Take a checkpoint: link its files now, copy them in the background; None if too many copies are not finished.

        When the result is available, the checkpoint is safe. Do not write to the stores until this returns. With
        `is_atomic` you may write: then there is one store, every write batch of it leaves a state that may be saved,
        and its files are linked in the background. `beside` is called when the stores are linked. It returns more files
        on their disk, which a restore puts into LISTS_FOLDER. The result raises StoreError if the target refuses; a
        later checkpoint may be tried. Raises: StoreError if the links cannot be made.
        """
        self._pending = [copying for copying in self._pending if not copying.done()]
        if len(self._pending) >= CHECKPOINTS_PENDING_MAX:
            return None
        number, self._next = self._next, self._next + 1
        header = (number, created_ms, tuple(StoredPart(part.name, part.first, part.end) for part in parts))
        if is_atomic:
            copying = self._thread.submit(lambda: self._copy(self._link(number, parts, payload, beside), header))
        else:
            paths = self._link(number, parts, payload, beside)
            copying = self._thread.submit(self._copy, paths, header)
        self._pending.append(copying)
        return copying

    def _link(
        self, number: int, parts: Sequence[Part], payload: bytes, beside: Callable[[], Sequence[Path]]
    ) -> list[Path]:
        """Step 1: link a checkpoint's files and the files from `beside` in a work folder. Write the payload there."""
        self._on_step(1)
        folder = self._work / str(number)
        try:
            folder.mkdir()
            linked = [file for part in parts for file in part.store.checkpoint(folder / part.name)]
            (folder / LISTS_FOLDER).mkdir()
            for path in beside():
                os.link(path, folder / LISTS_FOLDER / path.name)
                linked.append(folder / LISTS_FOLDER / path.name)
            (folder / PAYLOAD).write_bytes(payload)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise StoreError(f"cannot write {folder}: {error.strerror}; make room on the disk") from error
        except StateError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return [*linked, folder / PAYLOAD]  # `_copy` needs the payload as the last one

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._hasher.shutdown(wait=True)

    # ------------------------------------------------------------------------------------ in the background thread

    def _copy(self, paths: Sequence[Path], header: tuple[int, int, tuple[StoredPart, ...]]) -> Published:
        """Copy the files of a checkpoint to the target, write the manifest that makes it complete, remove old files."""
        number, created_ms, parts = header
        folder = paths[-1].parent  # the last path is the payload, which lies in the work folder itself
        try:
            self._on_step(2)  # compute hashes; `_upload` has step 3, the copies
            files = self._hashed(folder, paths)
            copied = self._upload(paths, files)
            self._on_step(4)  # write the manifest; `_tidied` has steps 5 and 6, the removal of old files
            self._target.create(_name(number), Manifest(KIND, number, created_ms, parts, files).to_bytes())
            self._listed_hashes[number] = {file.sha256 for file in files}
            is_tidy = self._tidied()
            self._on_step(7)  # drop the links
        except StateError:
            # Remove the copied files, so that failed checkpoints do not fill the target. But keep them if another
            # process has published a checkpoint with this number, because it may need the same files.
            with suppress(StateError):
                if number not in checkpoint_numbers(self._target):
                    self._collect()
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        total = sum(file.size for file in files)
        return Published(number, len(files), total, len(copied), sum(copied.values()), is_tidy)

    def _tidied(self) -> bool:
        """Remove old files; return False if that failed. The checkpoint counts in any case."""
        try:
            self._retire()
            self._collect()
        except StateError:
            return False
        return True

    def _upload(self, paths: Sequence[Path], files: Sequence[StoredFile]) -> dict[str, int]:
        copied: dict[str, int] = {}
        for path, file in zip(paths, files, strict=True):
            if file.sha256 not in self._verified_hashes:
                self._on_step(3)
                self._names.add(file.sha256)
                self._target.put(path, f"{FOLDER}/{file.sha256}", path.name.endswith(_FOREVER_SAME))
                self._verified_hashes.add(file.sha256)
                copied[file.sha256] = file.size
        return copied

    def _hashed(self, folder: Path, paths: Sequence[Path]) -> tuple[StoredFile, ...]:
        """Compute size and hash of each file. A hard link keeps the identity of its file, so no file is read twice."""
        hashes: dict[tuple[int, int, int], str] = {}
        files = []
        for path in paths:
            try:
                identity = _identity(path)  # (inode, size, time)
                hashes[identity] = self._hashes.get(identity) or self._hasher.submit(sha256_of, path).result()
            except OSError as error:
                raise StoreError(f"cannot read {path}: {error.strerror}; look at the disk of the stores") from error
            files.append(StoredFile(str(path.relative_to(folder)), identity[1], hashes[identity]))
        self._hashes = hashes
        return tuple(files)

    def _retire(self) -> None:
        oldest = sorted(self._listed_hashes)[-self._retained_count :][0]
        for number in [number for number in checkpoint_numbers(self._target) if number < oldest]:
            self._on_step(5)
            self._target.remove(_name(number))
            self._listed_hashes.pop(number, None)

    def _collect(self) -> None:
        named = set[str]().union(*self._listed_hashes.values())
        self._verified_hashes &= named  # before anything is removed, which may fail halfway
        for name in sorted(self._names - named):
            self._on_step(6)
            self._target.remove(f"{FOLDER}/{name}")
        self._names &= named

    def _listed_manifests(self, restored: Restored | None) -> dict[int, set[str]]:
        """Map the number of each undamaged checkpoint to the checksums of its files.

        Raises: StoreError, StateFormatError. Without its checksums, the files of such a checkpoint would be removed."""
        files_by_number: dict[int, set[str]] = {}
        for number in checkpoint_numbers(self._target):
            if restored is not None and number > restored.manifest.number:
                continue  # passed over: it does not count as one that is kept
            try:
                files_by_number[number] = {file.sha256 for file in read_manifest(self._target, number).files}
            except StateCorruptError:
                continue  # damaged; it is retired with others of its age
        return files_by_number


def _lower_priority() -> None:
    """Lower the priority of this thread, which may read gigabytes. Other threads wait for the one that links files."""
    if sys.platform == "linux":  # elsewhere the same call is for whole processes
        thread_id = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread_id, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread_id)))


def _identity(path: Path) -> tuple[int, int, int]:
    about = path.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns


def _hashes_of(restored: Restored) -> dict[tuple[int, int, int], str]:
    """Map the identity of restored files to their checksums, for files that an open store never changes."""
    stored = [(restored.folder / file.name, file) for file in restored.manifest.files]
    return {
        _identity(path): file.sha256
        for path, file in stored
        if file.name.endswith(_FOREVER_SAME) and path.exists() and path.stat().st_size == file.size
    }


def _name(number: int) -> str:
    return f"{_PREFIX}{number:08}{_SUFFIX}"
