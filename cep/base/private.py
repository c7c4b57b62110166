"""Files that a job writes are readable only by their owner.

State, checkpoints, savepoints, dead letters, logs and alerts contain data about customers. Java and the Python workers
that Spark starts here inherit the setting; workers on other machines set it themselves (`make_private`).
Tested by: tests/base/test_private.py, tests/cli/test_run.py, tests/runners/spark/test_live_process.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_OWNER_ONLY = 0o077  # permissions removed from groups and others


@contextmanager
def private_files() -> Iterator[None]:
    """Make files and folders that come into being in the block, in all threads, private. Others stay as they are."""
    before = os.umask(_OWNER_ONLY)
    try:
        yield
    finally:
        os.umask(before)


def make_private() -> None:
    """Make all files and folders private that this process makes from now on."""
    os.umask(_OWNER_ONLY)
