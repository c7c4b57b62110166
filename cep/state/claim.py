"""One process at a time has a folder of stores: the second is told who, before it touches a file.

    FOLDER/OWNER     the process id, under a lock of the kernel's, which ends with the process however it ends

RocksDB locks its own directory, but not what a runner does around it: clearing what a dead process left, linking files.
Tested by: tests/state/test_claim.py
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from cep.base.errors import StoreError

_FILE = "OWNER"


class Claim:
    """The right to a folder, until it is closed or the process ends."""

    def __init__(self, folder: Path) -> None:
        """Take the folder, made if it is not there. Raises: StoreError if another process has it."""
        path = folder / _FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+")
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}; make room, or name another folder") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            owner = self._file.read().strip()
            self._file.close()
            raise StoreError(f"process {owner} works in {folder}; stop it first, or name another folder") from error
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def close(self) -> None:
        """Let others have it. The file stays: removing it would let two processes lock two files of one name."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()
