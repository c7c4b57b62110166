"""RocksDB itself: bytes in memory, kill -9, a second process, a damaged file, a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from cep.base.errors import StateCorruptError
from cep.state.keys import ALL_KEYS, group_range, store_key
from cep.state.rocks import RocksMemory, RocksSettings, RocksStore

WRITER = """
import sys
from pathlib import Path
from cep.state.keys import store_key
from cep.state.rocks import RocksSettings, RocksStore
store = RocksStore(Path(sys.argv[1]), RocksSettings(wal=sys.argv[2] == "log"))
for i in range(100_000):
    store.put(store_key(1, i.to_bytes(4), b"", b""), b"x" * 100)
    if i == 5_000:
        store.sync()
        print("synced", flush=True)
"""


def key(number: int) -> bytes:
    return store_key(1, number.to_bytes(4), b"", b"")


@pytest.mark.parametrize("wal", ["log", "none"])
def test_after_kill_9_what_was_synced_is_there_and_losses_are_from_the_end(tmp_path: Path, wal: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "s"), wal], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "synced\n"
        process.send_signal(signal.SIGKILL)
    with RocksStore(tmp_path / "s") as store:
        kept = [k for k, _ in store.scan(ALL_KEYS)]
    assert len(kept) >= 5_001
    assert kept == [key(i) for i in range(len(kept))]


def test_a_second_process_is_told_who_has_it(tmp_path: Path) -> None:
    with RocksStore(tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", WRITER, str(tmp_path), "log"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert "StoreError" in done.stderr
    assert "another process has it open" in done.stderr


@pytest.mark.slow
@pytest.mark.always
def test_memory_is_bounded_by_bytes_however_much_is_stored(tmp_path: Path) -> None:
    memory = RocksMemory(cache_bytes=2 << 20, write_buffer_bytes=1 << 20)
    with RocksStore(tmp_path, RocksSettings(memory, wal=False)) as store:
        held = []
        for number in range(16_000):
            store.put(key(number), Random(number).randbytes(1_000))
            if number % 500 == 0:
                held.append(memory.buffers.get_usage())
        for number in range(0, 16_000, 7):
            assert store.get(key(number)) == Random(number).randbytes(1_000)
            if number % 490 == 0:
                held.append(memory.cache.get_usage())
        assert store.sizes().disk_bytes > 4 * memory.cache_bytes, "the store is larger than its memory"
    # A write buffer that is being written out still counts, so the bound of the buffers is soft.
    assert max(held) <= 2 * memory.cache_bytes


def test_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    with RocksStore(tmp_path) as store:
        for number in range(2_000):
            store.put(key(number), os.urandom(100))
        store.checkpoint(tmp_path / "copy")
    (file,) = (tmp_path / "copy").glob("*.sst")
    broken = bytearray(file.read_bytes())
    broken[len(broken) // 3] ^= 1
    file.unlink()  # the original shares its bytes
    file.write_bytes(broken)
    with RocksStore(tmp_path / "copy") as store, pytest.raises(StateCorruptError, match="last good checkpoint"):
        list(store.scan(ALL_KEYS))
    file.write_bytes(broken[:1_000])
    with pytest.raises(StateCorruptError, match="copy"), RocksStore(tmp_path / "copy") as store:
        list(store.scan(ALL_KEYS))


def test_a_full_disk_has_a_name_and_loses_nothing_synced(tmp_path: Path) -> None:
    """A process that may write files of 3 MB only: the same path through RocksDB as a disk without room."""
    script = """
import resource, signal, sys
from pathlib import Path
from cep.base.errors import StoreError
from cep.state.keys import store_key
from cep.state.rocks import RocksStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = RocksStore(Path(sys.argv[1]))
store.put(store_key(1, b"first", b"", b""), b"safe")
store.sync()
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
try:
    for i in range(20_000):
        store.put(store_key(1, i.to_bytes(4), b"", b""), bytes(1000))
except StoreError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "make room on the disk" in done.stdout, done.stderr
    with RocksStore(tmp_path) as store:
        assert store.get(store_key(1, b"first", b"", b"")) == b"safe"


def test_compaction_gives_back_the_space_of_a_deleted_range(tmp_path: Path) -> None:
    with RocksStore(tmp_path, RocksSettings(wal=False)) as store:
        for number in range(2_000):
            store.put(key(number), os.urandom(200))
        store.sync()
        before = store.sizes().disk_bytes
        store.delete_range(group_range(1))
        store.compact(group_range(1))
        assert store.sizes().disk_bytes < before / 10
