"""The number of the last synced write of a store on disk, in a small file next to its own.

    | number of the last write u64 | crc32 of that u32 |      little-endian

A log that is damaged in the middle reads like one that was cut by a power failure: RocksDB takes the part before, and
opens. Only the number of the last synced write distinguishes the two. The file is written after each sync and is not
synced itself, so its number was true at some time, and may be too small after a power failure.
Tested by: tests/state/test_stores.py
"""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path

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
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _checksum(number: int) -> int:
    return zlib.crc32(number.to_bytes(8, "little"))
