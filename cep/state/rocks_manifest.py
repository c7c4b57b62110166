"""The list of files of a RocksDB folder, record by record → StateCorruptError if it is invalid.

    CURRENT ──▶ MANIFEST-000005: blocks of 32 kB, in each records of  checksum 4 | length 2 | kind 1 | data

RocksDB hangs when it opens a folder whose list has a record of a kind that only logs have, and blocks Python. The
headers are therefore checked before. RocksDB checks checksums and a cut end.
Tested by: tests/state/test_manifest.py
"""

from __future__ import annotations

import struct
from pathlib import Path

from cep.base.errors import StateCorruptError, UnreadableError
from cep.base.limits import STORE_MANIFEST_BYTES_MAX
from cep.base.reading import read_file

_BLOCK = 32_768
_HEADER = struct.Struct("<IHB")  # rocksdb/db/log_format.h
_FILLING, _KINDS = 0, range(1, 5)  # of records in one piece, and of their first, middle and last pieces
_NAME_BYTES_MAX = 4_096


def check_manifest(folder: Path) -> None:
    """Check the file in which RocksDB lists its files, before RocksDB reads it. A folder without it is a new store.

    Raises: StateCorruptError.
    """
    current = folder / "CURRENT"
    if not current.exists():
        return
    try:
        name = read_file(current, _NAME_BYTES_MAX).decode().strip()
        real = folder.resolve()  # the root of a check is a real folder, and a job may name its own relative to here
        data = read_file(real / name, STORE_MANIFEST_BYTES_MAX, real)
    except (UnreadableError, UnicodeDecodeError) as error:
        raise StateCorruptError(
            f"the list of files of the store in {folder} cannot be read ({error}); restore the last good checkpoint"
        ) from error
    position = 0
    while position + _HEADER.size <= len(data):
        room = _BLOCK - position % _BLOCK
        _, length, kind = _HEADER.unpack_from(data, position) if room >= _HEADER.size else (0, 0, _FILLING)
        if kind == _FILLING and length == 0:
            position += room
            continue
        if kind not in _KINDS or _HEADER.size + length > room:
            raise StateCorruptError(
                f"the list of files of the store in {folder} is damaged at byte {position}; "
                "restore the last good checkpoint"
            )
        position += _HEADER.size + length
