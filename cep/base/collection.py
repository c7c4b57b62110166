"""Pausing Python's cyclic garbage collector.

A syntax tree is a hundred thousand objects without a cycle; the collector walks all of them again and again while the
tree grows, which is a third of the time of a check.
Tested by: tests/base/test_collection.py
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """No cyclic collection inside; afterwards as before. Memory is still freed by reference counts."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
