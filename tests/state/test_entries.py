"""A file of entries: it is read as it was written, and a damaged or truncated file is refused."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cep.base.errors import StateCorruptError, StateError, StateFormatError, StoreError
from cep.base.limits import ENTRY_BLOCK_BYTES_MAX
from cep.state.entries import read_entries, write_entries

ENTRIES = [(b"%05d" % i, bytes([i % 256]) * 700) for i in range(4_000)]  # three blocks


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=4))))
def test_entries_come_back(tmp_path: Path, entries: list[tuple[bytes, bytes]]) -> None:
    assert write_entries(tmp_path / "e", entries) == len(entries)
    assert list(read_entries(tmp_path / "e")) == entries


def test_many_blocks_come_back(tmp_path: Path) -> None:
    write_entries(tmp_path / "e", ENTRIES)
    assert list(read_entries(tmp_path / "e")) == ENTRIES


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_file_that_ends_early_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    write_entries(tmp_path / "e", ENTRIES[:3])
    whole = (tmp_path / "e").read_bytes()
    (tmp_path / "e").write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(StateCorruptError):
        list(read_entries(tmp_path / "e"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_byte_is_noticed(tmp_path: Path, data: st.DataObject) -> None:
    write_entries(tmp_path / "e", ENTRIES[:3])
    broken = bytearray((tmp_path / "e").read_bytes())
    broken[data.draw(st.integers(0, len(broken) - 1))] ^= data.draw(st.integers(1, 255))
    (tmp_path / "e").write_bytes(broken)
    with pytest.raises(StateError):
        list(read_entries(tmp_path / "e"))


@pytest.mark.parametrize("block", range(3))
def test_a_length_that_became_zero_is_not_taken_for_the_end(tmp_path: Path, block: int) -> None:
    path = tmp_path / "entries"
    write_entries(path, ENTRIES)
    damaged = bytearray(path.read_bytes())
    offset = 0
    for _ in range(block):
        offset += 4 + struct.unpack_from("<I", damaged, offset)[0]
    damaged[offset : offset + 4] = bytes(4)
    path.write_bytes(damaged)
    with pytest.raises(StateCorruptError, match="goes on behind its last block"):
        list(read_entries(path))


def test_a_length_that_is_longer_than_the_file_takes_no_room(tmp_path: Path) -> None:
    path = tmp_path / "entries"
    path.write_bytes(struct.pack("<I", ENTRY_BLOCK_BYTES_MAX) + b"block")
    tracemalloc.start()
    try:
        with pytest.raises(StateCorruptError, match="ends inside a block"):
            list(read_entries(path))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_missing_file_and_a_missing_folder_have_names(tmp_path: Path) -> None:
    with pytest.raises(StateCorruptError, match="cannot read"):
        list(read_entries(tmp_path / "none"))
    with pytest.raises(StoreError, match="cannot write"):
        write_entries(tmp_path / "none" / "e", ())


def test_a_forged_block_whose_columns_have_no_names_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "entries"
    write_entries(path, [(b"key", b"other")])
    data = bytearray(path.read_bytes())
    offset = data.index(b"value")
    data[offset : offset + 1] = b"\xcc"
    data[8:12] = struct.pack("<I", zlib.crc32(data[12:-4]))
    path.write_bytes(data)
    with pytest.raises(StateCorruptError, match="a block that is none"):
        list(read_entries(path))


@pytest.mark.parametrize("place", range(0, 600, 7))
def test_a_forged_block_with_the_right_checksum_is_refused_or_whole(tmp_path: Path, place: int) -> None:
    """Offsets beyond a buffer would read, and show, memory of the process."""
    path = tmp_path / "entries"
    write_entries(path, [(b"key-%d" % n, bytes(n)) for n in range(20)])
    data = bytearray(path.read_bytes())
    body_at = 4 + 8  # the length of the block, and its header
    end = len(data) - 4
    data[body_at + place % (end - body_at)] ^= 0x40
    data[body_at - 4 : body_at] = struct.pack("<I", zlib.crc32(data[body_at:end]))
    path.write_bytes(data)
    try:
        entries = list(read_entries(path))
    except (StateCorruptError, StateFormatError):
        return
    assert all(isinstance(key, bytes) and isinstance(value, bytes) for key, value in entries)
    assert sum(len(value) for _, value in entries) < len(data)
