"""The last alert of each rule and key, as long as it may suppress another alert.

The object lists its changes, so that only these are stored: a job with a hundred thousand such keys has a few new ones
in a micro-batch. Times are event time. The lifetime of an entry follows from its alert alone, never from later
versions, so the moment at which it is dropped changes no result.
Marks of keys (step/marks.py) are entries, too; `marks_count` counts them.
Cost: the added entries, and the expired ones.
Tested by: tests/rulebook/test_last_alerts.py
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from cep.base.limits import FIRED_MAX
from cep.rulebook.suppression import Fired, LastAlert, is_mark

# Many entries may be over at once, as after a quiet night. They go a few with each micro-batch.
_AT_A_TIME = 1_000


class LastAlerts:
    """The last alert of each rule and key: event time, for how long it suppresses others, severity and value."""

    def __init__(self, last: Mapping[tuple[str, str], LastAlert] | None = None) -> None:
        self.last: Fired = dict(last or {})
        self.marks_count = sum(is_mark(name) for name, _ in self.last)
        self._before: dict[tuple[str, str], LastAlert | None] = {}
        # heap: the time from which it suppresses nothing, its rule and key, its start
        self._over = [(times[0] + times[1], rule_key, times[0]) for rule_key, times in self.last.items()]
        heapify(self._over)

    def put(self, entries: Mapping[tuple[str, str], LastAlert | None]) -> None:
        """Set these entries; None removes an entry. `changed` returns the inverse."""
        for rule_key, times in entries.items():
            before = self.last.get(rule_key)
            self._before.setdefault(rule_key, before)
            if is_mark(rule_key[0]):
                self.marks_count += (times is not None) - (before is not None)
            if times is None:
                self.last.pop(rule_key, None)
            else:
                self.last[rule_key] = times
                heappush(self._over, (times[0] + times[1], rule_key, times[0]))

    def forget(self, before_ms: int) -> int:
        """Drop entries that cannot suppress an alert at or after `before_ms`: a few, but more than were added.

        Returns: how many more were dropped because of FIRED_MAX, the earliest to expire first.
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
        """Drop the entry that is over first, unless its rule has fired again. Return True if it was dropped."""
        over_ms, rule_key, ms = heappop(self._over)
        last = self.last.get(rule_key)
        if last is None or last[:2] != (ms, over_ms - ms):
            return False
        self.put({rule_key: None})
        return True

    def changed(self) -> dict[tuple[str, str], LastAlert | None]:
        """Return the entries changed since the last call, as they were before; None for a new one."""
        before, self._before = self._before, {}
        return {rule_key: times for rule_key, times in before.items() if self.last.get(rule_key) != times}
