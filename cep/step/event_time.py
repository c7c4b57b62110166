"""Event times of a source's partitions and a clock → the watermark, and the due events; step 3 of a micro-batch.

A source is read in partitions, at different speeds. All partitions have passed the watermark:

    payments-0  ━━━━━━━━━━━━━━━━━━━━┫ 10:04 ┄┄ 10:05    read to its end; the clock has not reached 10:05
    payments-1  ━━━━━━━━━━━━┫ 10:02 ┄┄┄┄┄┄┄             more of it waits in the source: it holds the watermark
    payments-2  ━━━┫ 09:10                              read to its end, and nothing new for `idle_ms`: it holds nothing
                            ▲
                            10:02, less the lateness

A partition with unread records always holds the watermark back, because its own records would be late otherwise. A
partition read to its end holds it back for `idle_ms` of the clock. A new event extends that only as far as it moves the
partition's time, and a partition that lags the clock by more than `idle_ms` counts as idle. Otherwise a sender could
stop the job with an occasional event, each dated a little after the previous one. If all are idle, the watermark
follows the partition that is furthest. The next event gives every partition its `idle_ms` again: after an outage the
records of one partition arrive before those of another.

A partition with a backlog is read at times long before the clock. One event of now among events of three hours ago
would make all of them late. Such a partition therefore moves only to the time that a tenth of its records reach, of a
thousand records at least. A later event is accepted, and waits until enough other records have reached its time, the
partition has been read to its end, or the partition is within `ahead_ms` of the clock.

    records  10:00 13:00 10:01 10:01 10:02 … 10:59       read to the time 10:53, and 13:00 waits

An event may be dated up to `ahead_ms` ahead of the clock; beyond that it is set aside (validate.py). It moves the
watermark only when the clock has reached its time, so an event from the future does not make other events late.

Tested by: tests/step/test_event_time.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cep.base import limits

NO_CLOCK = limits.TIME_MS_MAX  # at the end of time nothing is ahead


class PartitionTime(NamedTuple):
    """The time up to which a partition was read.

    last_ms: the largest event time that the clock has reached. is_behind: the source has unread records of the
    partition. active_ms: the clock up to which its events were on time, or when it was last behind; TIME_MS_MAX: the
    next micro-batch sets it. ahead_first_ms, ahead_last_ms: the first and the last event time that the clock has not
    reached. Times between them are not stored: the watermark waits a little longer, and memory has a bound.
    unconfirmed_ms: the largest event time that too few records have reached, as long as the partition is behind.
    counts_by_time: the records since the last move, in parts (number of records, time that all of them reach)."""

    last_ms: int
    is_behind: bool = False
    active_ms: int = limits.TIME_MS_MAX
    ahead_first_ms: int = limits.TIME_MS_MAX
    ahead_last_ms: int = limits.TIME_MS_MIN
    unconfirmed_ms: int = limits.TIME_MS_MIN
    counts_by_time: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def from_json(values: Sequence[Any]) -> PartitionTime:
        """Read a list of its values. An earlier build wrote two. Raises: TypeError or ValueError for other values."""
        if isinstance(values, PartitionTime):
            return values
        last_ms, is_behind, *rest = values
        if len(rest) > _VALUES_MORE:
            raise ValueError("a partition's time has too many values")
        times, counts_by_time = [int(ms) for ms in rest[: len(_NO_TIMES)]], rest[len(_NO_TIMES) :]
        active_ms, first_ms, ahead_ms, unconfirmed_ms = [*times, *_NO_TIMES[len(times) :]]
        parts = tuple((int(count), int(ms)) for part in counts_by_time for count, ms in part)
        return PartitionTime(int(last_ms), bool(is_behind), active_ms, first_ms, ahead_ms, unconfirmed_ms, parts)

    def to_json(self) -> list[Any]:
        """Write it as a list; without the last two values, as an earlier build has it, where they say nothing."""
        has_unconfirmed = self.unconfirmed_ms != limits.TIME_MS_MIN or self.counts_by_time
        return [*self[:-1], [list(part) for part in self.counts_by_time]] if has_unconfirmed else list(self[:-2])

    @property
    def latest_ms(self) -> int:
        """The largest event time, whether it counts or not."""
        return max(self.last_ms, self.ahead_last_ms, self.unconfirmed_ms)

    def joined(self, other: PartitionTime, active_ms: int = limits.TIME_MS_MAX) -> PartitionTime:
        """Add a later reading."""
        return PartitionTime(
            max(self.last_ms, other.last_ms), other.is_behind, active_ms,
            min(self.ahead_first_ms, other.ahead_first_ms), max(self.ahead_last_ms, other.ahead_last_ms),
            max(self.unconfirmed_ms, other.unconfirmed_ms), _bounded(self.counts_by_time + other.counts_by_time),
        )  # fmt: skip

    def with_records(self, read: PartitionTime, active_ms: int) -> PartitionTime:
        """Add new records. One may have a wrong time: `last_ms` moves only to a time that enough records reach.

        `counts_by_time` are groups of records: (count, earliest time). When they have SUPPORT_RECORDS_MIN records in
        all, the time that enough of these have reached moves `last_ms`, and the count begins again."""
        joined_time = self.joined(read, active_ms)
        last_ms, counts_by_time = self.last_ms, joined_time.counts_by_time
        if counts_by_time and sum(count for count, _ in counts_by_time) >= limits.SUPPORT_RECORDS_MIN:
            last_ms, counts_by_time = max(last_ms, _reached_by_share(counts_by_time)), ()  # count from 0 again
        unconfirmed_ms = max(joined_time.unconfirmed_ms, read.last_ms)
        return joined_time._replace(
            last_ms=last_ms,
            unconfirmed_ms=unconfirmed_ms if unconfirmed_ms > last_ms else limits.TIME_MS_MIN,
            counts_by_time=counts_by_time,
        )

    def at_clock(self, now_ms: int, ahead_ms: int | None = None, *, is_end: bool = False) -> PartitionTime:
        """Return the partition's time at the clock `now_ms`. Events dated ahead count once the clock has reached them.

        A partition has a backlog if it has unread records and is more than `ahead_ms` before the clock. Its time then
        stays unconfirmed until enough records have reached that time: one wrong time would make the others late."""
        time = self if self.active_ms <= now_ms else self._replace(active_ms=now_ms)  # the clock went back
        if time.ahead_first_ms <= now_ms:  # almost never: the clock has reached events dated ahead of it
            all_reached = time.ahead_last_ms <= now_ms
            time = time._replace(
                unconfirmed_ms=max(time.unconfirmed_ms, time.ahead_last_ms if all_reached else time.ahead_first_ms),
                ahead_first_ms=limits.TIME_MS_MAX if all_reached else time.ahead_last_ms,
                ahead_last_ms=limits.TIME_MS_MIN if all_reached else time.ahead_last_ms,
            )
        if time.unconfirmed_ms == limits.TIME_MS_MIN and not time.counts_by_time:  # almost always: nothing to confirm
            return time
        has_backlog = time.is_behind and ahead_ms is not None and time.last_ms < now_ms - ahead_ms
        if has_backlog and now_ms < NO_CLOCK and not is_end:
            return time  # more records must confirm its time
        return time._replace(
            last_ms=max(time.last_ms, time.unconfirmed_ms), unconfirmed_ms=limits.TIME_MS_MIN, counts_by_time=()
        )


PartitionTimes = dict[str, PartitionTime]
_UNREAD = PartitionTime(limits.TIME_MS_MIN)
# values that an earlier build did not write
_NO_TIMES = (limits.TIME_MS_MAX, limits.TIME_MS_MAX, limits.TIME_MS_MIN, limits.TIME_MS_MIN)
_VALUES_MORE = len(_NO_TIMES) + 1  # after the first two


def times_from_json(data: Mapping[str, Sequence[Any]]) -> PartitionTimes:
    """Read the times of partitions by name. Raises: TypeError or ValueError for other values."""
    return {name: PartitionTime.from_json(values) for name, values in data.items()}


def times_json(times: Mapping[str, PartitionTime]) -> dict[str, list[Any]]:
    """Write the times of partitions for JSON."""
    return {name: time.to_json() for name, time in times.items()}


def read_time(time_ms: NDArray[np.int64], now_ms: int, ahead_ms: int | None, *, is_behind: bool) -> PartitionTime:
    """Return how far a partition was read, from the times of its new events, int64[N].

    Events up to `ahead_ms` ahead of the clock `now_ms` do not count yet, and later ones are dead letters; None: all
    count. One event may have a wrong time. So a partition with unread records (`is_behind`) moves only to a time that
    enough events have reached: `counts_by_time` is the number of events by time."""
    last_ms = int(np.maximum.reduce(time_ms)) if len(time_ms) else limits.TIME_MS_MIN
    if ahead_ms is None or last_ms <= now_ms:
        return PartitionTime(last_ms, is_behind, counts_by_time=_count_by_time(time_ms) if is_behind else ())
    reached = time_ms[time_ms <= now_ms]
    ahead = time_ms[(time_ms > now_ms) & (time_ms <= now_ms + ahead_ms)]
    return PartitionTime(
        int(reached.max(initial=limits.TIME_MS_MIN)), is_behind,
        ahead_first_ms=int(ahead.min(initial=limits.TIME_MS_MAX)),
        ahead_last_ms=int(ahead.max(initial=limits.TIME_MS_MIN)),
        counts_by_time=_count_by_time(reached) if is_behind else (),
    )  # fmt: skip


def _count_by_time(time_ms: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """Divide records by time into a few groups, the latest first: (number of records, earliest time).

    From them, `_reached_by_share` finds the time that enough records have reached. Some may have wrong times."""
    records_count = len(time_ms)
    if records_count >= limits.SUPPORT_RECORDS_MIN:  # enough to judge now, by the latest 1 / SUPPORT_SHARE of them
        part_size = records_count // limits.SUPPORT_SHARE + 1
        ranks = [records_count - 2 * part_size, records_count - part_size]  # where the two latest parts begin
        second_ms, latest_ms = np.partition(time_ms, ranks)[ranks].tolist()
        return (part_size, latest_ms), (part_size, second_ms), (records_count - 2 * part_size, int(time_ms.min()))
    part_size = max(-(-records_count // limits.SUPPORT_PARTS), 1)  # too few to judge: parts of equal size
    latest_first = np.sort(time_ms)[::-1].tolist()
    ends = [*range(part_size, records_count, part_size), records_count] if records_count else []
    return tuple((end - begin, latest_first[end - 1]) for begin, end in zip([0, *ends], ends, strict=False))


def _reached_by_share(counts_by_time: Sequence[tuple[int, int]]) -> int:
    """Return the time that parts with a tenth of the records reach."""
    enough, reached = sum(count for count, _ in counts_by_time) // limits.SUPPORT_SHARE, 0
    for count, ms in sorted(counts_by_time, key=lambda part: -part[1]):
        reached += count
        if reached > enough:
            return ms
    return limits.TIME_MS_MIN


def _bounded(counts_by_time: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Bound the parts: two neighbours become one, all of which reaches the earlier time."""
    while len(counts_by_time) > limits.SUPPORT_PARTS_MAX:
        ordered = sorted(counts_by_time, key=lambda part: -part[1])
        pairs = zip(ordered[::2], [*ordered[1::2], (0, limits.TIME_MS_MAX)], strict=False)
        counts_by_time = tuple((count + more, min(ms, more_ms)) for (count, ms), (more, more_ms) in pairs)
    return counts_by_time


@dataclass(frozen=True, slots=True)
class TimesRead:
    """The times of the partitions that a micro-batch has read. first_ms: of the first event, TIME_MS_MAX without one.
    now_ms: the clock of the job, NO_CLOCK without one. is_end: the input has ended, so no partition is waited for."""

    partitions: Mapping[str, PartitionTime]
    first_ms: int = limits.TIME_MS_MAX
    now_ms: int = NO_CLOCK
    is_end: bool = False

    def to_bytes(self) -> bytes:
        return json.dumps([times_json(self.partitions), self.first_ms, self.now_ms, self.is_end]).encode()

    @staticmethod
    def from_bytes(data: bytes) -> TimesRead:
        partitions, *rest = json.loads(data)
        return TimesRead(times_from_json(partitions), *rest)

    def joined(self, other: TimesRead) -> TimesRead:
        """Combine the readings of two tasks."""
        partitions = dict(self.partitions)
        for name, time in other.partitions.items():
            partitions[name] = partitions[name].joined(time) if name in partitions else time
        first_ms, now_ms = min(self.first_ms, other.first_ms), min(self.now_ms, other.now_ms)
        return TimesRead(partitions, first_ms, now_ms, self.is_end or other.is_end)

    @property
    def last_ms(self) -> int:
        """The time of the latest event, TIME_MS_MIN without one."""
        return max((time.latest_ms for time in self.partitions.values()), default=limits.TIME_MS_MIN)


NOTHING_READ = TimesRead({})


def earliest_seen(since_ms: int, first_ms: int, before_ms: int) -> int:
    """Return the time from which on a job has seen all events. Those before the watermark `before_ms` are late."""
    return since_ms if first_ms == limits.TIME_MS_MAX else min(since_ms, max(first_ms, before_ms))


def merge_times(
    before: Mapping[str, PartitionTime], read: TimesRead, idle_ms: int, watermark_ms: int = limits.TIME_MS_MIN,
    ahead_ms: int | None = None,
) -> PartitionTimes:  # fmt: skip
    """Add the times of new records to the earlier times of the partitions. Times only grow.

    The watermark waits for a partition until `idle_ms` after `active_ms`, the clock at which the partition was last
    active. This is now for a new partition, and for one that has or had unread records (`is_behind`). Otherwise new
    events move `active_ms` only as far as the latest event time: a few old events do not hold up other partitions. An
    event before `watermark_ms` is late and does not count. Events may be dated up to `ahead_ms` ahead of the clock."""
    now_ms, on_time_ms = read.now_ms, max(watermark_ms, limits.TIME_MS_MIN + 1)
    after = {name: time.at_clock(now_ms, ahead_ms) for name, time in before.items()}
    were_all_idle = not [time for time in after.values() if time.active_ms + idle_ms >= now_ms]
    is_nothing_new = True
    for name, time in read.partitions.items():
        earlier = after.get(name, time)
        active_ms = now_ms
        if name in after and not (earlier.is_behind or time.is_behind):
            moved_ms = max(0, time.latest_ms - earlier.latest_ms) if time.latest_ms >= on_time_ms else 0
            active_ms = min(now_ms, earlier.active_ms + moved_ms)
            is_nothing_new = is_nothing_new and time.latest_ms < on_time_ms
        else:
            is_nothing_new = False
        after[name] = after.get(name, _UNREAD).with_records(time, active_ms).at_clock(now_ms, ahead_ms)
    # After an outage, records of one partition arrive first, so all become active. At the end all become idle.
    if read.is_end or (were_all_idle and not is_nothing_new):
        active_ms = now_ms - idle_ms - 1 if read.is_end else now_ms
        after = {name: time._replace(active_ms=active_ms) for name, time in after.items()}
        after = {name: time.at_clock(now_ms, is_end=True) for name, time in after.items()} if read.is_end else after
    return after


def watermark_of(times: Mapping[str, PartitionTime], lateness_ms: int, idle_ms: int, now_ms: int) -> int:
    """Return the time that every partition has passed, less the lateness; TIME_MS_MIN before the first event."""
    passed = [time.last_ms for time in times.values() if time.is_behind or now_ms < _idle_at(time, idle_ms)]
    last_ms = min(passed) if passed else max((time.last_ms for time in times.values()), default=limits.TIME_MS_MIN)
    return max(limits.TIME_MS_MIN, last_ms - lateness_ms)


def too_far_ahead(times: Mapping[str, PartitionTime], ahead_ms: int | None) -> frozenset[str]:
    """Return the partitions with a backlog to skip: further than the slowest by more than this. None: no partition."""
    if len(times) < 2 or ahead_ms is None:
        return frozenset()
    behind = {name: max(time.last_ms, time.unconfirmed_ms) for name, time in times.items() if time.is_behind}
    slowest_ms = min(behind.values(), default=limits.TIME_MS_MAX)
    return frozenset(name for name, last_ms in behind.items() if last_ms > slowest_ms + ahead_ms)


def next_look_ms(times: Mapping[str, PartitionTime], idle_ms: int, now_ms: int) -> int:
    """Return the clock at which the watermark may move though nothing is read; TIME_MS_MAX if it will not."""
    looks = [time.ahead_first_ms for time in times.values()]
    if len(looks) > 1:
        looks += [_idle_at(time, idle_ms) for time in times.values() if not time.is_behind]
    return min([ms for ms in looks if ms > now_ms], default=limits.TIME_MS_MAX)


def due_before(watermark_ms: int, *, at_once: bool) -> int:
    """Return the time before which events may be matched: no earlier event is expected.

    Events of one millisecond may have another order than their arrival, so all of them must be present. `at_once`: they
    come in order, from one partition.
    """
    return watermark_ms + 1 if at_once else watermark_ms


def _idle_at(time: PartitionTime, idle_ms: int) -> int:
    """Return the clock from which on a partition that was read to its end is idle."""
    return time.active_ms + idle_ms + 1
