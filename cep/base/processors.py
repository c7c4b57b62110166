"""The number of processors that this process may use: fewer than the machine has, where it is bound to some.

Tested by: tests/base/test_collection.py
"""

from __future__ import annotations

import os


def processors_count() -> int:
    """Return how many processors this process may use; 1 if this is unknown."""
    if hasattr(os, "sched_getaffinity"):  # Linux; macOS binds no process
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
