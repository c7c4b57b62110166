"""A history with known frauds → three parts of its time: to choose on, to confirm, and to report.

Between two parts there is a gap that belongs to neither, so that nothing begins in one part and ends in the next. An
alert belongs to the part of its detection, a fraud to the part in which it begins.
Tested by: tests/analysis/test_tune.py
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cep.analysis.backtest import DAY_MS
from cep.analysis.history import Events
from cep.analysis.marks import Marks

NAMES = ("train", "validation", "test")
_SHARES = (0.6, 0.8)  # of the time, where the parts end


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the time: [from_ms, until_ms), with the frauds F that begin in it, bool[F]."""

    name: str
    from_ms: int
    until_ms: int
    frauds: NDArray[np.bool_]

    @property
    def days(self) -> float:
        return (self.until_ms - self.from_ms) / DAY_MS

    def has(self, time_ms: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say of each time whether it is in the part."""
        inside: NDArray[np.bool_] = (time_ms >= self.from_ms) & (time_ms < self.until_ms)
        return inside


def parts_of_time(events: Events, marks: Marks, gap_ms: int) -> tuple[Part, ...]:
    """Cut the time of the history into three parts, with a gap after the first and the second."""
    times = events.time_ms[events.time_ms <= marks.as_of_ms]
    first, last = int(times.min(initial=marks.as_of_ms)), int(times.max(initial=0)) + 1
    edges = [first, *(int(first + share * (last - first)) for share in _SHARES), last]
    spans = [(low + (gap_ms if at else 0), high) for at, (low, high) in enumerate(pairwise(edges))]
    return tuple(
        Part(name, low, max(low, high), (marks.first_ms >= low) & (marks.first_ms < high))
        for name, (low, high) in zip(NAMES, spans, strict=True)
    )


def whole_time(events: Events, marks: Marks) -> Part:
    """Return all of the time as one part, with all frauds."""
    first = int(events.time_ms.min(initial=marks.as_of_ms))
    return Part("all", first, marks.as_of_ms + 1, np.ones(marks.frauds_count, np.bool_))
