"""Files that a job writes are readable only by their owner.

State, checkpoints, savepoints, dead letters, logs and alerts contain data about customers. Java and the Python workers
that Spark starts here inherit the setting; workers on other machines set it themselves (`make_private`).
Tested by: tests/base/test_durable.py, tests/cli/test_run.py, tests/runners/spark/test_live_process.py
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OWNER_ONLY = 0o077  # permissions removed from groups and others


@contextmanager
def private_files() -> Iterator[None]:
    """Make files and folders that come into being in the block, in all threads, private. Others stay as they are."""
    before = os.umask(_OWNER_ONLY)
    try:
        yield
    finally:
        os.umask(before)


def is_ours(folder: Path) -> bool:
    """Return True if no other user but root can put a file into a folder, or another folder in its place.

    That is so if the folder, and each folder above it, belongs to this user or root, and only they may write there. In
    a folder with a sticky bit others cannot exchange our files. A group that has the user's number is this user alone.
    """
    place, user = Path(os.path.realpath(folder)), os.geteuid()
    for number, above in enumerate((place, *place.parents)):
        try:
            status = above.stat()
        except OSError:
            return False
        is_alone = status.st_gid in (0, user)
        others = status.st_mode & (stat.S_IWOTH if is_alone else stat.S_IWOTH | stat.S_IWGRP)
        is_sticky = number > 0 and status.st_mode & stat.S_ISVTX
        if status.st_uid not in (0, user) or (others and not is_sticky):
            return False
    return True


def make_private() -> None:
    """Make all files and folders private that this process makes from now on."""
    os.umask(_OWNER_ONLY)
