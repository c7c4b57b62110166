"""Event times of a source's partitions → the watermark, and which events are due; step 3 of a micro-batch.

A source is read in partitions, at different speeds. The watermark is what all of them have passed:

    payments-0  ━━━━━━━━━━━━━━━━━━━━┫ 10:04        read to its end
    payments-1  ━━━━━━━━━━━━┫ 10:02 ┄┄┄┄┄┄┄        more of it waits in the source: it holds the watermark
    payments-2  ━━━┫ 09:10                         read to its end, `idle_ms` behind the others: it holds nothing
                            ▲
                            10:02, less the lateness

A partition with unread records always holds the watermark back, or its own records would be late. A partition read to
its end may have gone quiet: it holds the watermark back for at most `idle_ms` of event time. No clock is asked, so that
a micro-batch that is done again gives the same.
Tested by: tests/step/test_event_time.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN

# Partition → (largest event time read, whether more of it waits in the source).
PartitionTimes = dict[str, tuple[int, bool]]


@dataclass(frozen=True, slots=True)
class TimesRead:
    """How far each partition was read, and the time of the earliest event; TIME_MS_MAX without one."""

    partitions: PartitionTimes
    first_ms: int = TIME_MS_MAX

    def to_bytes(self) -> bytes:
        return json.dumps([self.partitions, self.first_ms]).encode()

    @staticmethod
    def from_bytes(data: bytes) -> TimesRead:
        partitions, first_ms = json.loads(data)
        return TimesRead({name: (ms, behind) for name, (ms, behind) in partitions.items()}, first_ms)

    def joined(self, other: TimesRead) -> TimesRead:
        """Join what two tasks have read."""
        return TimesRead(merge_times(self.partitions, other.partitions), min(self.first_ms, other.first_ms))

    @property
    def last_ms(self) -> int:
        """The time of the latest event, TIME_MS_MIN without one."""
        return max((ms for ms, _ in self.partitions.values()), default=TIME_MS_MIN)


def earliest_seen(since_ms: int, first_ms: int, before_ms: int) -> int:
    """Return since when a job has seen all events: TIME_MS_MAX before the first one.

    `first_ms` is the time of the earliest event that has come now. Behind the watermark `before_ms` events are late,
    and late events are not seen.
    """
    return since_ms if first_ms == TIME_MS_MAX else min(since_ms, max(first_ms, before_ms))


def merge_times(before: Mapping[str, tuple[int, bool]], read: Mapping[str, tuple[int, bool]]) -> PartitionTimes:
    """Add what was read to the times before: times only grow, and the last reading says if more waits."""
    return {
        **before,
        **{name: (max(ms, before.get(name, (TIME_MS_MIN, False))[0]), behind) for name, (ms, behind) in read.items()},
    }


def watermark_of(times: Mapping[str, tuple[int, bool]], lateness_ms: int, idle_ms: int) -> int:
    """Return the time that every partition has passed, less the lateness; TIME_MS_MIN before the first event."""
    first_ms = max((ms for ms, _ in times.values()), default=TIME_MS_MIN)
    held_ms = min((ms for ms, behind in times.values() if behind or first_ms - ms <= idle_ms), default=TIME_MS_MIN)
    return max(TIME_MS_MIN, held_ms - lateness_ms)


def due_before(watermark_ms: int, *, at_once: bool) -> int:
    """Return the time before which events may be matched: no earlier one is expected.

    Nor is one of the same time, unless `at_once`. Events of one time are matched in the order of their ids, for which
    they must be there together. Where records come in order from one partition, there is no reason to wait for that.
    """
    return watermark_ms + 1 if at_once else watermark_ms
