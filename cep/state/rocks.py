"""A keyed store on disk: RocksDB through rocksdict, in raw bytes mode.

All memory of all stores of a process comes out of one `RocksMemory`. Without the log (`wal=False`) a crash loses all
writes after the last `sync` or checkpoint. Another thread than the writer may take a checkpoint: it has all batches up
to one of them.

Before a folder is opened, its list of files is read record by record:

    CURRENT ──▶ MANIFEST-000005: blocks of 32 kB, in each records of  checksum 4 | length 2 | kind 1 | data

RocksDB hangs, and blocks Python, when the list has a record of a kind that only logs have. It checks checksums and a
cut end itself.

A small file next to those of the store has the number of the last synced write:

    | number of the last write u64 | crc32 of that u32 |      little-endian

RocksDB opens a log that is damaged in the middle like one that was cut by a power failure, with the part before. Only
this number distinguishes the two. The file is written after each sync and is not synced itself, so its number was true
at some time, and may be too small after a power failure.

Tested by: tests/state/test_stores.py, tests/state/test_manifest.py.
"""

import os
import shutil
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import rocksdict

from cep.base.errors import CepError, StateCorruptError, StoreError, UnreadableError
from cep.base.files import read_file
from cep.base.limits import STORE_MANIFEST_BYTES_MAX, STORE_OPEN_FILES_MAX
from cep.state.store import Change, DurableStore, KeyRange, StoreSizes, StoreSnapshot, WriteBatch

_BLOCK = 32_768
_HEADER = struct.Struct("<IHB")  # rocksdb/db/log_format.h
_FILLING, _KINDS = 0, range(1, 5)  # of records in one piece, and of their first, middle and last pieces
_NAME_BYTES_MAX = 4_096


def check_manifest(folder: Path) -> None:
    """Check the list of a store's files, because RocksDB hangs on a damaged one. Raises: StateCorruptError."""
    current = folder / "CURRENT"
    if not current.exists():
        return
    try:
        name = read_file(current, _NAME_BYTES_MAX).decode().strip()
        real = folder.resolve()  # the root that a read must not leave is absolute; a job's folder may be relative
        data = read_file(real / name, STORE_MANIFEST_BYTES_MAX, real)
    except (UnreadableError, UnicodeDecodeError) as error:
        raise StateCorruptError(
            f"the list of files of the store in {folder} cannot be read ({error}); restore the last good checkpoint"
        ) from error
    position = 0
    while position + _HEADER.size <= len(data):  # the list has blocks of records, each after a header
        left_in_block = _BLOCK - position % _BLOCK
        _, length, kind = _HEADER.unpack_from(data, position) if left_in_block >= _HEADER.size else (0, 0, _FILLING)
        if kind == _FILLING and length == 0:  # zeros to the end of a block, which may have no room for a header
            position += left_in_block
            continue
        if kind not in _KINDS or _HEADER.size + length > left_in_block:
            raise StateCorruptError(
                f"the list of files of the store in {folder} is damaged at byte {position}; "
                "restore the last good checkpoint"
            )
        position += _HEADER.size + length


FILE = "SYNCED"
_MARK = struct.Struct("<QI")


class Synced:
    """The file in a store's folder that notes the last write on disk. `number` is 0 if it is missing or damaged."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._descriptor: int | None = None
        self.number = 0
        with suppress(OSError, struct.error):
            number, checksum = _MARK.unpack(self._path.read_bytes())
            self.number = number if _checksum(number) == checksum else 0

    def write(self, number: int) -> None:
        """Note that all writes up to this one are on the disk. On a full disk the earlier number stays."""
        with suppress(OSError):
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            os.pwrite(self._descriptor, _MARK.pack(number, _checksum(number)), 0)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _checksum(number: int) -> int:
    return zlib.crc32(number.to_bytes(8, "little"))


_BLOOM_BITS = 10  # of levels but the last: one read in a hundred of a key that is not there touches the disk
# For a file that compaction writes: written to disk in small parts, so that no commit waits for all of it.
_WRITTEN_OUT_BYTES = 1 << 20
_ANY_ENTRY_BYTES = 0  # the cache finds the size of its entries itself
_INGEST_BYTES = 64 << 20  # of one file that `ingest` writes
_SNAPSHOT_READ = 1_024  # entries of a snapshot that are read at once
_FLUSH_WAIT_S, _FLUSH_NAP_S = 60.0, 0.002
_NOT_OURS = ("LOG", "LOCK")  # files of RocksDB's directory that a reopened store writes again


class RocksMemory:
    """The limit of memory that stores share: a cache of blocks, in whose bytes index, filters and buffers count too."""

    def __init__(self, cache_bytes: int, write_buffer_bytes: int) -> None:
        assert 0 < write_buffer_bytes <= cache_bytes, "write buffers are charged to the cache"
        self.cache_bytes = cache_bytes
        # A write buffer has half of the limit. When one is full, a store writes to another one, and waits for the disk
        # when two are full. The manager's own way of waiting (allow_stall) can wait for ever.
        self.buffer_bytes = write_buffer_bytes // 2
        # Not the LRU cache: its parts of a megabyte each are too small for a filter together with data blocks.
        self.cache = rocksdict.Cache.new_hyper_clock_cache(cache_bytes, _ANY_ENTRY_BYTES)
        self.buffers = rocksdict.WriteBufferManager.new_write_buffer_manager_with_cache(
            write_buffer_bytes, allow_stall=False, cache=self.cache
        )


@dataclass(frozen=True)
class RocksSettings:
    """The settings of a store on disk. `block_bytes` is the unit that is read and cached."""

    memory: RocksMemory = field(default_factory=lambda: RocksMemory(64 << 20, 32 << 20))
    wal: bool = True
    block_bytes: int = 4 << 10
    background_jobs: int = 2

    def options(self) -> rocksdict.Options:
        table = rocksdict.BlockBasedOptions()
        table.set_block_cache(self.memory.cache)
        table.set_cache_index_and_filter_blocks(True)
        table.set_bloom_filter(_BLOOM_BITS, block_based=False)
        # Index and filters are divided into blocks too: a read needs few of them, and the cache cannot hold all.
        table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        table.set_pin_top_level_index_and_filter(True)
        table.set_block_size(self.block_bytes)
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(table)
        options.set_optimize_filters_for_hits(True)  # most requested keys exist: no filters for the last level
        options.set_write_buffer_manager(self.memory.buffers)
        options.set_write_buffer_size(self.memory.buffer_bytes)
        options.set_compression_type(rocksdict.DBCompressionType.lz4())
        options.set_max_open_files(STORE_OPEN_FILES_MAX)
        options.set_max_background_jobs(self.background_jobs)
        options.set_bytes_per_sync(_WRITTEN_OUT_BYTES)
        options.set_level_compaction_dynamic_level_bytes(True)
        options.set_paranoid_checks(True)
        options.set_keep_log_file_num(2)
        # Another thread, and not the last read of a buffer or a file, frees it.
        options.set_avoid_unnecessary_blocking_io(True)
        # Compaction yields to micro-batches where there are fewer free cores than threads; flushes do not, for a
        # checkpoint waits for one with the interpreter's lock held.
        env = rocksdict.Env()
        env.lower_thread_pool_cpu_priority()
        options.set_env(env)
        return options


class RocksStore(DurableStore):
    """A RocksDB directory. Close snapshots and exhaust or drop scans before closing it."""

    def __init__(self, path: Path, settings: RocksSettings | None = None) -> None:
        """Open the store in a directory, such as a checkpoint, or create a new one.

        Raises: StoreError if another process has it open, StateCorruptError for damaged files or lost synced writes.
        """
        self._path = path
        self._settings = settings or RocksSettings()
        self._options = self._settings.options()
        with _translating(path, "open"):
            path.mkdir(parents=True, exist_ok=True)
            check_manifest(path)
            self._rocks = rocksdict.Rdict(str(path), self._options)
        self._synced = Synced(path)
        last = self._rocks.latest_sequence_number()
        if last < self._synced.number:
            self._rocks.close()
            raise StateCorruptError(
                f"the store in {path} ends with write {last}, though {self._synced.number} were synced: its log is "
                "damaged; restore the last good checkpoint"
            )
        self._write_options = rocksdict.WriteOptions()
        # A property, contrary to rocksdict's stubs.
        self._write_options.disable_wal = not self._settings.wal  # type: ignore[method-assign, assignment]
        self._rocks.set_write_options(self._write_options)

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with _translating(self._path, "read"):
            return self._rocks.get(list(keys)) or []

    def write(self, batch: WriteBatch) -> None:
        rocks_batch = rocksdict.WriteBatch(raw_mode=True)
        is_put, put = Change.PUT, rocks_batch.put
        for change, key, other in batch.changes:
            if change is is_put:
                put(key, other)
            elif change is Change.DELETE:
                rocks_batch.delete(key)
            else:
                rocks_batch.delete_range(key, other)
        with _translating(self._path, "write"):
            self._rocks.write(rocks_batch, self._write_options)

    def scan(self, keys: KeyRange, count_max: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        return islice(_walk(self._rocks.iter(), keys, self._path), count_max)

    def snapshot(self) -> StoreSnapshot:
        return _RocksSnapshot(self._rocks.iter(), self._path)

    def sync(self) -> None:
        last = self._rocks.latest_sequence_number()
        with _translating(self._path, "sync"):
            if self._settings.wal:
                self._rocks.flush_wal(sync=True)
            else:
                self._rocks.flush(wait=True)
        self._synced.write(last)

    def checkpoint(self, path: Path) -> tuple[Path, ...]:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _translating(self._path, "checkpoint"):
            # For a checkpoint, RocksDB writes memory to disk with the interpreter's lock held. So write most of it now.
            self._rocks.flush(wait=False)
            deadline_s = time.monotonic() + _FLUSH_WAIT_S
            while self._figure("num-immutable-mem-table") and time.monotonic() < deadline_s:
                if self._figure("background-errors"):  # a full disk: do not wait; the checkpoint reports it
                    break
                time.sleep(_FLUSH_NAP_S)
            rocksdict.Checkpoint(self._rocks).create_checkpoint(str(path))
        return tuple(sorted(file for file in path.iterdir() if file.name not in _NOT_OURS))  # not RocksDB's LOG, LOCK

    def ingest(self, entries: Iterable[tuple[bytes, bytes]]) -> int:
        folder = self._path / "ingest"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            with _translating(self._path, "load"):
                return self._ingest(entries, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _ingest(self, entries: Iterable[tuple[bytes, bytes]], folder: Path) -> int:
        """Write sorted files and link them into the last level that they fit: no log, write buffer or compaction."""
        entries_count = 0
        paths: list[str] = []
        writer: rocksdict.SstFileWriter | None = None
        for key, value in entries:
            if writer is None:
                writer = rocksdict.SstFileWriter(self._options)
                paths.append(str(folder / f"{len(paths)}.sst"))
                writer.open(paths[-1])
            writer[key] = value
            entries_count += 1
            if entries_count % 1024 == 0 and writer.file_size() >= _INGEST_BYTES:
                writer.finish()
                writer = None
        if writer is not None:
            writer.finish()
        if paths:
            chosen = rocksdict.IngestExternalFileOptions()
            chosen.set_move_files(True)
            self._rocks.ingest_external_file(paths, chosen)
        return entries_count

    def compact(self, keys: KeyRange) -> None:
        """Rewrite the range now, so that deleted entries free their disk space."""
        with _translating(self._path, "compact"):
            self._rocks.flush(wait=True)
            self._rocks.compact_range(keys.begin, keys.end)

    def sizes(self) -> StoreSizes:
        return StoreSizes(
            self._figure("estimate-num-keys"), self._figure("live-sst-files-size"),
            self._figure("cur-size-all-mem-tables"), self._settings.memory.cache.get_usage(),
        )  # fmt: skip

    def close(self) -> None:
        self._synced.close()
        with _translating(self._path, "close"):
            self._rocks.close()

    def _figure(self, name: str) -> int:
        return self._rocks.property_int_value(f"rocksdb.{name}") or 0


class _RocksSnapshot(StoreSnapshot):
    """A view of the store as it was when `cursor` was made. rocksdict's own snapshots would show later deletions."""

    def __init__(self, cursor: rocksdict.RdictIter, path: Path) -> None:
        self._cursor: rocksdict.RdictIter | None = cursor
        self._path = path

    def scan(self, keys: KeyRange) -> Iterator[tuple[bytes, bytes]]:
        begin = keys.begin
        while True:
            assert self._cursor is not None, "the snapshot is closed"
            # All scans share the cursor. Read many entries at once, then seek again: another scan may have moved it.
            entries = list(islice(_walk(self._cursor, KeyRange(begin, keys.end), self._path), _SNAPSHOT_READ))
            if not entries:
                return
            yield from entries
            begin = entries[-1][0] + b"\x00"  # the least key after the last one

    def close(self) -> None:
        self._cursor = None  # the last reference to it frees its files


def _walk(cursor: rocksdict.RdictIter, keys: KeyRange, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of a range in the order of their keys.

    rocksdict's `items` ends silently at a damaged block, and a bound in its ReadOptions is freed under the iterator.
    """
    with _translating(path, "scan"):
        cursor.seek(keys.begin)
        while cursor.valid():
            key: bytes = cursor.key()
            if key >= keys.end:
                return
            yield key, cursor.value()
            cursor.next()
        cursor.status()


@contextmanager
def _translating(path: Path, doing: str) -> Iterator[None]:
    """Convert RocksDB's errors in the block to ours."""
    try:
        yield
    except CepError:  # of a reader of entries
        raise
    except Exception as error:
        raise _translated(error, path, doing) from error


def _translated(error: Exception, path: Path, doing: str) -> CepError:
    """Convert RocksDB's error to one of ours. rocksdict raises a bare Exception for all of them."""
    text = str(error)
    is_damaged = text.startswith("Corruption") or "checksum mismatch" in text
    if is_damaged or (doing == "open" and "No such file" in text):  # a file that its other files name is gone
        return StateCorruptError(f"cannot {doing} the store in {path}: {text}; restore the last good checkpoint")
    if "While lock file" in text or "lock hold by" in text:  # not `lock` alone: a folder may be called so
        return StoreError(f"cannot open the store in {path}: {text}; another process has it open, stop that one first")
    if "No space left" in text or "File too large" in text:
        return StoreError(f"cannot {doing} the store in {path}: {text}; make room on the disk, then start again")
    if "previous error" in text:  # another call, or one of RocksDB's own threads, got the original error
        return StoreError(
            f"cannot {doing} the store in {path}: {text} An earlier write has failed; if it is full, make room on the "
            "disk, then start again"
        )
    return StoreError(f"cannot {doing} the store in {path}: {text}; see RocksDB's LOG in that directory")
