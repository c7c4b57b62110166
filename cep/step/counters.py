"""Counters by name, added up once for each micro-batch at several places.

Tested by: tests/step/test_step.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def add_counts(counters: Counter[str], more: Mapping[str, int]) -> None:
    """Add `more`. Like `Counter.update`, without its check of the argument."""
    before = counters.get
    for name, count in more.items():
        counters[name] = before(name, 0) + count


def nonzero(counters: Counter[str]) -> Counter[str]:
    """Return the counters that say something; some are negative."""
    return counters if all(counters.values()) else Counter({name: n for name, n in counters.items() if n})
