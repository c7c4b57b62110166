"""When each rule that suppresses last fired on each key, for as long as that may suppress another alert.

What has changed is told apart from what was there before, so that whoever keeps the memory writes that alone: a job
with a hundred thousand such keys has a few new ones in a micro-batch. Times are event time.
Cost: what is added, and what is over; when the policies change, all of it once.
Tested by: tests/rulebook/test_memory.py
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from cep.base.limits import FIRED_MAX
from cep.rulebook.held import Fired, Policies

# What is over at the same time, as after a quiet night, goes a few with each micro-batch: it suppresses nothing.
_AT_A_TIME = 1_000


class Memory:
    """`last` is what `hold_back` asks for: (rule, key) → event time of the last alert that went out."""

    def __init__(self, last: Mapping[tuple[str, str], int] | None = None) -> None:
        self.last: Fired = dict(last or {})
        self._before: dict[tuple[str, str], int | None] = {}
        self._policies: Policies | None = None
        self._longest_ms: dict[str, int] = {}
        self._over: list[tuple[int, tuple[str, str], int]] = []  # heap: from when it suppresses nothing, what, its time

    def put(self, entries: Mapping[tuple[str, str], int | None]) -> None:
        """Set these, and forget those that are None: what `hold_back` has found, or `changed` has told to undo it."""
        for at, ms in entries.items():
            self._before.setdefault(at, self.last.get(at))
            if ms is None:
                self.last.pop(at, None)
            else:
                self.last[at] = ms
                if self._policies is not None:
                    heappush(self._over, (ms + self._longest_ms.get(at[0], 0), at, ms))

    def forget(self, policies: Policies, before_ms: int) -> int:
        """Drop what cannot suppress an alert at or after `before_ms`: some at a time, more than have been added.

        Returns: how many were dropped beyond that, those that are over first, because of FIRED_MAX.
        """
        if policies is not self._policies:
            self._policies, self._longest_ms = policies, policies.longest_ms()
            longest_ms = self._longest_ms
            self._over = [(ms + longest_ms.get(at[0], 0), at, ms) for at, ms in self.last.items()]
            heapify(self._over)
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
        _, at, ms = heappop(self._over)
        if self.last.get(at) != ms:
            return False
        self.put({at: None})
        return True

    def changed(self) -> dict[tuple[str, str], int | None]:
        """What has changed since the last call: as it was before, None where there was nothing."""
        before, self._before = self._before, {}
        return {at: ms for at, ms in before.items() if self.last.get(at) != ms}
