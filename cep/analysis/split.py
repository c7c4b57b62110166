"""A history with known frauds → three parts of its time: to choose on, to confirm, and to report.

Between two parts there is a gap that belongs to neither, so that nothing begins in one part and ends in the next. An
alert belongs to the part of its detection, a fraud to the part in which it begins. Each part has the frauds that were
known at its end: on that day, nobody could have chosen by a later report.
Tested by: tests/analysis/test_tune.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cep.analysis.backtest import DAY_MS, distinct_days
from cep.analysis.history import Events
from cep.analysis.marks import Marks
from cep.base.errors import UsageError
from cep.base.utc import utc_text

NAMES = ("train", "validation", "test")
_SHARES = (0.6, 0.8)  # of the time, where the parts end


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the history's time, [from_ms, until_ms), with the frauds that were known at its end (`marks`).

    Shapes: `frauds` bool[F] marks the frauds that begin in it. `days` is its length, or the days with events if these
    are fewer.
    """

    name: str
    from_ms: int
    until_ms: int
    frauds: NDArray[np.bool_]
    marks: Marks
    days: float

    def has(self, time_ms: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Mark the times that are in the part."""
        inside: NDArray[np.bool_] = (time_ms >= self.from_ms) & (time_ms < self.until_ms)
        return inside

    @property
    def title(self) -> str:
        """The name with its dates and the number of its frauds."""
        first, last = (utc_text(time_ms)[:10] for time_ms in (self.from_ms, self.until_ms))
        return f"{self.name} ({first} to {last}, n = {int(self.frauds.sum())} frauds)"


def parts_of_time(
    events: Events, marks: Marks, gap_ms: int, marks_at: Callable[[int], Marks] | None = None
) -> tuple[Part, ...]:
    """Divide the time of the history into train, validation and test, with a gap before the second and the third.

    `marks_at` returns the frauds that were known at a time; without it, each part has all of `marks`.
    """
    times = events.time_ms[events.time_ms <= marks.as_of_ms]
    first, last = int(times.min(initial=marks.as_of_ms)), int(times.max(initial=0)) + 1
    known_at = marks_at or (lambda _: marks)
    edges = [first, *(int(first + share * (last - first)) for share in _SHARES), last]
    parts = []
    for index, (name, (low, high)) in enumerate(zip(NAMES, pairwise(edges), strict=True)):
        begin = low + (gap_ms if index else 0)
        part_marks = marks if name == NAMES[-1] else known_at(high - 1)
        parts.append(_part((name, begin, max(begin, high)), times, part_marks))
    return tuple(parts)


def _part(span: tuple[str, int, int], times: NDArray[np.int64], marks: Marks) -> Part:
    name, low, high = span
    times = times[(times >= low) & (times < high)]
    days = min((high - low) / DAY_MS, distinct_days(times))
    return Part(name, low, high, (marks.first_ms >= low) & (marks.first_ms < high), marks, float(days))


def whole_time(events: Events, marks: Marks) -> Part:
    """Return all of the time as one part, with all frauds."""
    first = int(events.time_ms.min(initial=marks.as_of_ms))
    part = _part(("all", first, marks.as_of_ms + 1), events.time_ms, marks)
    return Part("all", part.from_ms, part.until_ms, np.ones(marks.frauds_count, np.bool_), marks, part.days)


def check_frauds(parts: Sequence[Part]) -> None:
    """Refuse a cut whose parts cannot be compared. Raises: UsageError with the number of frauds of each part."""
    empty = [part for part in parts if not part.frauds.any()]
    if empty:
        raise UsageError(
            f"no fraud was known in {empty[0].name} when it ended: {', '.join(part.title for part in parts)}; give a "
            "longer history, a shorter --gap or --maturity, or shorter --episodes"
        )
