"""Pausing Python's cyclic garbage collector.

A syntax tree is a hundred thousand objects without a cycle; the collector walks all of them again and again while the
tree grows, which is a third of the time of a check.
Tested by: tests/base/test_collection.py
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MANY = 50_000  # objects; to look at fewer takes less than a few milliseconds


@contextmanager
def paused() -> Iterator[None]:
    """No cyclic collection inside; afterwards as before. Memory is still freed by reference counts."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            _age()
            gc.enable()


def _age() -> None:
    """Let many new objects count as old: a full collection visits them, but no earlier one.

    Freezing and unfreezing does that without a traversal. Objects that were frozen for good stay frozen.
    """
    if gc.get_count()[0] > _MANY and gc.get_freeze_count() == 0:
        gc.freeze()
        gc.unfreeze()
