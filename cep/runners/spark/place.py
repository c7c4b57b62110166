"""The folder of a job, as the driver sees it → the proof that a task sees the same folder.

    CHECKPOINT/place    a token that the driver draws at each start; every worker reads it before it matches

If an executor has a folder of its own under that path, Spark would write keyed state to that machine's disk without a
message, and lose it with the machine. The first task there therefore refuses the micro-batch, before any commit.
Tested by: tests/runners/spark/test_tasks.py
"""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from cep.base.errors import StoreError
from cep.base.files import replace_file

_FILE = "place"
_SEEN: set[SharedFolder] = set()  # of this process, which looks once


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """The folder of a job, and a token that the driver writes into it. A task that reads another token, or none, has a
    folder of its own at this path."""

    directory: Path
    token: str

    @staticmethod
    def of_driver(directory: Path) -> SharedFolder:
        """Write a new token. Raises: StoreError."""
        shared_folder = SharedFolder(directory, secrets.token_hex(16))
        try:
            replace_file(directory / _FILE, shared_folder.token.encode())
        except OSError as error:
            raise StoreError(
                f"cannot write {directory / _FILE}: {error.strerror}; make room, then start again"
            ) from error
        return shared_folder

    def check(self) -> None:
        """Check that this process sees the driver's folder: its file has the driver's token. Raises: StoreError."""
        if self in _SEEN:
            return  # checked before in this process
        try:
            token = (self.directory / _FILE).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            token = ""
        if token != self.token:
            raise StoreError(
                f"the executor on {socket.gethostname()} does not see the driver's checkpoint folder at "
                f"{self.directory}, so keyed state would be lost with its disk; mount one file system there on the "
                "driver and on every executor, then start again: nothing was committed"
            )
        _SEEN.add(self)
