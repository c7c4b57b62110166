"""The folder of a job → the store with which it continues: step R1 of commit.py.

    FOLDER/store/store     the store of the last commit
    FOLDER/store/beside    the sets of lists
    FOLDER/store/payload   only after a restore: the checkpoint's description of itself
    FOLDER/store/damaged   only if the store returned bytes that cannot be right
    FOLDER/checkpoints/    the checkpoints, unless the settings name another target; a restored savepoint in any case
    FOLDER/target          that other target, so that `cep job state` and `cep job savepoint` find it

The first of these that exists is used:

1. the store that has followed the changelog, if this process was a standby (job.py)
2. the local store, if it can be read and no other process has continued from its checkpoint or in the changelog
3. the store of the changelog (changelog.py)
4. the newest whole checkpoint

A checkpoint that was restored and lacks a commit since is restored again, because it does not know which alerts were
sent since. A store that cannot be judged (a full disk, an unreachable target, another format) stays unchanged, and the
job does not start: it may be the only store.
Tested by: tests/runners/embedded/test_commit.py, tests/runners/embedded/test_simulation.py,
tests/runners/embedded/test_savepoint.py.
"""

import shutil
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from cep.base.errors import StateCorruptError, StateError, StoreError, UsageError
from cep.base.files import replace_file
from cep.runners.embedded.changelog import Changelog
from cep.runners.embedded.commit_entries import Head, payload_of, read_head, store_of_payload
from cep.state.checkpoints import LISTS_FOLDER, PAYLOAD, Restored, checkpoint_numbers, payload_bytes, restore
from cep.state.memory import MemoryStore
from cep.state.rocks import RocksMemory, RocksSettings, RocksStore
from cep.state.store import DurableStore
from cep.state.target import PARTIAL, Target

_CHECKPOINTS, _TARGET_NOTE = "checkpoints", "target"


def default_target(folder: Path) -> Target:
    """Return the target of checkpoints inside a job's folder."""
    return Target(str(folder / _CHECKPOINTS))


def is_embedded(folder: Path) -> bool:
    """Return True if the folder is of a process of `cep run`."""
    return (folder / _CHECKPOINTS).is_dir() or (folder / _TARGET_NOTE).exists()


def remembered_target(folder: Path, target_text: str | None) -> Target:
    """Return the place of a job's checkpoints, and note it in its folder for other commands. Raises: StoreError."""
    if target_text and ":" not in target_text:
        target_text = str(Path(target_text).resolve())
    target = default_target(folder) if target_text is None else Target(target_text)
    path = folder / _TARGET_NOTE
    try:
        if target_text is None:
            path.unlink(missing_ok=True)
        elif not path.exists() or path.read_bytes() != target_text.encode():
            replace_file(path, target_text.encode())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; make room on the disk, then start again") from error
    return target


def target_of(folder: Path) -> Target:
    """Return the target of a job that has run in the folder. Raises: StoreError, StateCorruptError."""
    path = folder / _TARGET_NOTE
    try:
        return Target(path.read_text(encoding="utf-8")) if path.exists() else default_target(folder)
    except (OSError, UnicodeDecodeError, UsageError) as error:
        raise StateCorruptError(
            f"{path} names no place of checkpoints ({error}); write there what `--checkpoint-target` had, or restore it"
        ) from error


STORE_PART = "store"
_STORE, _DAMAGED = "store", "damaged"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The settings of the store of keyed state and of its checkpoints."""

    folder: Path | None  # of the job; None: in memory, and nothing survives
    backend: str = "rocksdb"  # or "memory"
    target: str | None = None  # the place of checkpoints, a path or an address of fsspec; None: next to the store
    kept_count: int = 3  # checkpoints
    cache_bytes: int = 256 << 20  # of RocksDB, including write buffers
    checkpoint_ms: int = 10_000  # between two checkpoints

    def open(self, path: Path) -> DurableStore:
        """Open the store at a path, which may be new or a checkpoint's."""
        if self.backend == "memory":
            return MemoryStore.open(path) if path.exists() else MemoryStore()
        # Half is for write buffers: the engine has the pages in use, and larger buffers reach the disk less often.
        memory = RocksMemory(self.cache_bytes, max(1 << 20, self.cache_bytes // 2))
        return RocksStore(path, RocksSettings(memory))


@dataclass(frozen=True, slots=True)
class Opened:
    """The result of opening a store: the store, its last commit (None: a new job), and the restored checkpoint."""

    target: Target
    store: DurableStore
    head: Head | None
    restored: Restored | None
    refused: tuple[str, ...]  # checkpoints that could not be used
    replayed_ms: int | None = None  # the time of the changelog's last commit in the store (ms UTC)


def store_folder(folder: Path) -> Path:
    """Return the folder of a job's store and the files that belong to it."""
    return folder / _STORE


def followed_folder(folder: Path) -> Path:
    """Return the folder in which a standby keeps the changelog's entries until it takes over."""
    return store_folder(folder).with_name(_STORE + PARTIAL)


def mark_damaged(folder: Path) -> None:
    """Note that the next start takes the newest checkpoint in place of the store."""
    with suppress(OSError):
        (folder / _STORE / _DAMAGED).touch()


def open_store(settings: StoreSettings, folder: Path, changelog: Changelog | None = None) -> Opened:
    """Open the first store that exists: of a standby, on this disk, in the changelog, in a checkpoint, or a new one.

    Raises: StateCorruptError if the store is damaged and there is no checkpoint; StateFormatError, StoreError.
    """
    target = remembered_target(folder, settings.target)
    working = folder / _STORE  # the local store's place
    refused: tuple[str, ...] = ()  # damaged stores and checkpoints, with the reasons
    was_standby = changelog is not None and changelog.is_followed  # its copy of the changelog is the newest store
    followed_ms = _replay_changelog(settings, changelog, working) if was_standby else None
    if followed_ms is None:  # no standby has left a copy: try the store on this disk
        opened, refused = _open_local_store(settings, target, working, changelog)
        if opened is not None:
            return Opened(target, *opened, None, refused)
    replayed_ms = _replay_changelog(settings, changelog, working) if followed_ms is None else followed_ms  # only once
    if replayed_ms is not None:  # the changelog has a store, which is at `working` now
        store = settings.open(working / STORE_PART)
        return Opened(target, store, read_head(store), None, refused, replayed_ms)
    if refused and not checkpoint_numbers(target):
        raise StateCorruptError(
            f"{refused[-1]}; and there is no checkpoint in {target.url} to go back to: restore a savepoint, or begin "
            "in a new folder"
        )
    shutil.rmtree(working, ignore_errors=True)
    # A savepoint is restored into the job's folder, even if checkpoints go to another target: look there second.
    restored = restore(target, working) or restore(default_target(folder), working)
    if restored is not None:
        try:
            store_of_payload(restored.payload)  # checks the format
        except StateError:  # of another format: remove the copy, so that another build can restore it again
            shutil.rmtree(working)
            raise
        refused += restored.refused
    store = settings.open(working / STORE_PART)
    return Opened(target, store, read_head(store), restored, refused)


def _replay_changelog(settings: StoreSettings, changelog: Changelog | None, working: Path) -> int | None:
    """Replace the local store by the copy in the changelog topic. Return the time of its last commit, or None."""
    if changelog is None:
        return None
    incoming = followed_folder(working.parent)
    if not changelog.is_followed:  # the rest of an earlier start; a standby keeps its copy
        shutil.rmtree(incoming, ignore_errors=True)
    with settings.open(incoming / STORE_PART) as store:
        replayed_ms = changelog.replay(store, lists_folder=incoming / LISTS_FOLDER)
        head = read_head(store)
    if replayed_ms is not None and head is not None:
        shutil.rmtree(working, ignore_errors=True)
        (incoming / PAYLOAD).write_bytes(payload_of(head.lineage))  # names the store of which this is a copy
        incoming.rename(working)
        return replayed_ms
    shutil.rmtree(incoming, ignore_errors=True)  # the topic has no commit
    return None


def _open_local_store(
    settings: StoreSettings, target: Target, working: Path, changelog: Changelog | None
) -> tuple[tuple[DurableStore, Head] | None, tuple[str, ...]]:
    """Open the store on this disk. Returns: (store, last commit) or None; and the reason if the store is damaged.

    None without a reason: it is missing or old. It is old if another process has continued the job. Then the newest
    checkpoint has another lineage (name of a store) than this store and its source (file PAYLOAD). Raises: CepError.
    """
    if settings.backend == "memory" or not (working / STORE_PART).exists():
        return None, ()
    if (working / _DAMAGED).exists():
        return None, ("the local store: it was found damaged while the job ran",)
    with ExitStack() as unless_returned:  # closes the store unless it is returned
        try:
            store = settings.open(working / STORE_PART)
            unless_returned.callback(store.close)
            head = read_head(store)
            newest_lineage, payload = _newest_lineage(target), working / PAYLOAD
            restored_lineage = store_of_payload(payload.read_bytes()) if payload.exists() else None  # of the source
        except StateCorruptError as error:
            return None, (f"the local store: {error}",)
        if head is None or newest_lineage not in (None, head.lineage, restored_lineage):
            return None, ()  # without a commit, or old
        if restored_lineage == head.lineage:  # a copy without a commit of its own: sinks may have later alerts
            return None, ()
        if changelog is not None and _is_older_than(head, changelog):  # another process has taken over
            return None, ()
        unless_returned.pop_all()
        return (store, head), ()


def _is_older_than(head: Head, changelog: Changelog) -> bool:
    """Return True if another process has taken over the job in the meantime, and only its commits are in the changelog.

    Its store has a lineage of its own. A store that began from the changelog and has delivered nothing counts as one,
    too: the topic lacks nothing that was shown. Raises: SourceError, SinkError, StateError.
    """
    last = changelog.last_head()
    return last is not None and (last.lineage != head.lineage or last.number > head.number)


def _newest_lineage(target: Target) -> str | None:
    """Return the lineage of the newest checkpoint; None if it is missing or damaged. Raises: StateError."""
    numbers = checkpoint_numbers(target)
    if not numbers:
        return None
    try:
        return store_of_payload(payload_bytes(target, numbers[-1]))
    except StateCorruptError:
        return None
