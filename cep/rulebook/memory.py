"""When each rule that suppresses last fired on each key, for as long as that may suppress another alert.

What has changed is told apart from what was there before, so that whoever keeps the memory writes that alone: a job
with a hundred thousand such keys has a few new ones in a micro-batch. Times are event time. How long something is
remembered follows from the alert alone, never from later versions: so when it goes decides nothing.
Cost: what is added, and what is over.
Tested by: tests/rulebook/test_memory.py
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from cep.base.limits import FIRED_MAX
from cep.rulebook.held import Fired

# What is over at the same time, as after a quiet night, goes a few with each micro-batch: it suppresses nothing.
_AT_A_TIME = 1_000


class Memory:
    """`last` is what `hold_back` asks for: (rule, key) → when the last alert went out, and for how long."""

    def __init__(self, last: Mapping[tuple[str, str], tuple[int, int]] | None = None) -> None:
        self.last: Fired = dict(last or {})
        self._before: dict[tuple[str, str], tuple[int, int] | None] = {}
        # Heap: from when it suppresses nothing, what, since when.
        self._over = [(sum(times), at, times[0]) for at, times in self.last.items()]
        heapify(self._over)

    def put(self, entries: Mapping[tuple[str, str], tuple[int, int] | None]) -> None:
        """Set these, and forget those that are None: what `hold_back` has found, or `changed` has told to undo it."""
        for at, times in entries.items():
            self._before.setdefault(at, self.last.get(at))
            if times is None:
                self.last.pop(at, None)
            else:
                self.last[at] = times
                heappush(self._over, (sum(times), at, times[0]))

    def forget(self, before_ms: int) -> int:
        """Drop what cannot suppress an alert at or after `before_ms`: some at a time, more than have been added.

        Returns: how many were dropped beyond that, those that are over first, because of FIRED_MAX.
        """
        for _ in range(_AT_A_TIME + len(self._before)):
            if not self._over or self._over[0][0] > before_ms:
                break
            self._drop()
        lost_count = 0
        while len(self.last) > FIRED_MAX:
            lost_count += self._drop()
        return lost_count

    def _drop(self) -> bool:
        """Drop what is over first, unless it has fired again since; says whether it was dropped."""
        over_ms, at, ms = heappop(self._over)
        if self.last.get(at) != (ms, over_ms - ms):
            return False
        self.put({at: None})
        return True

    def changed(self) -> dict[tuple[str, str], tuple[int, int] | None]:
        """What has changed since the last call: as it was before, None where there was nothing."""
        before, self._before = self._before, {}
        return {at: times for at, times in before.items() if self.last.get(at) != times}
