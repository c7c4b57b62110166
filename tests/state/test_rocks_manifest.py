"""A damaged list of a store's files is refused before RocksDB reads it; the list of a good store is accepted."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from cep.base.errors import StateCorruptError
from cep.state.rocks import RocksMemory, RocksSettings, RocksStore
from cep.state.rocks_manifest import check_manifest

SETTINGS = RocksSettings(RocksMemory(4 << 20, 1 << 20), background_jobs=1)


def store(folder: Path, flushes: int) -> Path:
    """Make a store whose list has a record for each flush; return the list."""
    with RocksStore(folder, SETTINGS) as opened:
        for number in range(flushes):
            opened.put(b"%d" % number, b"x" * 100)
            opened.checkpoint(folder.with_name(f"{folder.name}-{number}"))
    return folder / (folder / "CURRENT").read_text().strip()


def test_a_record_of_a_kind_that_only_logs_have_is_refused(tmp_path: Path) -> None:
    """RocksDB would loop for ever: a middle piece of a recycled log, with a length beyond the end of the file."""
    path = store(tmp_path / "store", 2)
    data = path.read_bytes()
    first = 7 + struct.unpack_from("<IHB", data)[1]
    for kind, length in ((7, 2_048), (9, 3), (130, 1), (0, 5), (1, 40_000)):
        path.write_bytes(data[:first] + struct.pack("<IHB", 1, length, kind) + data[first + 7 :])
        with pytest.raises(StateCorruptError, match=f"damaged at byte {first}"):
            RocksStore(tmp_path / "store", SETTINGS)
    path.write_bytes(data)
    RocksStore(tmp_path / "store", SETTINGS).close()


def test_a_good_list_passes_also_over_several_blocks_and_cut_off(tmp_path: Path) -> None:
    path = store(tmp_path / "store", 3)
    check_manifest(tmp_path / "store")
    check_manifest(tmp_path / "new")
    record = struct.pack("<IHB", 1, 32_754, 2) + bytes(32_754)
    assert len(record) == 32_761, "seven bytes are left in the block: a header without data"
    whole = record + struct.pack("<IHB", 1, 0, 3) + record[:-1]
    for data in (whole, whole[:40_000], whole[:100], b"", bytes(32_768) + record):
        path.write_bytes(data)
        check_manifest(tmp_path / "store")
    (tmp_path / "store" / "CURRENT").write_text("../../etc/passwd\n")
    with pytest.raises(StateCorruptError, match="cannot be read"):
        check_manifest(tmp_path / "store")


def test_a_store_may_be_named_relative_to_here_and_lie_behind_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path / "store", 2)
    (tmp_path / "link").symlink_to(tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    for name in ("store", "link"):
        RocksStore(Path(name), SETTINGS).close()
