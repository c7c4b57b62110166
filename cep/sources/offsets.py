"""Offsets of topics: the ranges between them, how much of a range is read at once, and their JSON.

    Position   offsets, the partitions of which more waits, the ids of the topics, the clock  ⇄  JSON of Spark's
               offset log

A repeated micro-batch must be the same, so its end position has all that it depends on. Must not know Kafka's client.
Tested by: tests/sources/test_kafka.py, tests/runners/spark/test_kafka.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from heapq import heapreplace
from itertools import accumulate, pairwise
from typing import Any

import orjson

from cep.base.errors import SourceError, SourceGoneError, UsageError

# Topic → partition → the next offset to read.
Offsets = dict[str, dict[int, int]]

NEW_TOPIC_HELP = (
    "what the new topic holds may be other records, and what was not read of the old one is lost; "
    "start with a new checkpoint directory"
)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The records of one partition with start <= offset < end."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] offsets {self.start}..{self.end}"


def by_lane(offsets: Offsets) -> dict[str, int]:
    """Return the offset of each partition by the name of its lane, `topic[partition]`."""
    return {f"{topic}[{number}]": offset for topic, numbers in offsets.items() for number, offset in numbers.items()}


@dataclass(frozen=True, slots=True)
class BatchClock:
    """The clock of a micro-batch: `now_ms` when it was planned, `moved_ms` when the last one with records was planned.

    `repeats` counts micro-batches without records since then, which let the watermark move with the clock. `is_end`:
    the query ends with this micro-batch.
    """

    now_ms: int
    moved_ms: int
    repeats: int = 0
    is_end: bool = False


def next_empty_batch(before: BatchClock | None, now_ms: int, waits_ms: Sequence[int]) -> BatchClock | None:
    """Return the clock of the next micro-batch without records; None if none is due. `before`: the clock of the last
    micro-batch. `waits_ms`: how long after the last records each such micro-batch is due, ascending."""
    if before is None or before.repeats >= len(waits_ms) or now_ms <= before.moved_ms + waits_ms[before.repeats]:
        return None
    return BatchClock(now_ms, before.moved_ms, before.repeats + 1)


@dataclass(frozen=True, slots=True)
class Position:
    """The offsets up to which a micro-batch has read topics, by topic and partition. `behind`: the partitions with more
    records. `topic_ids`: the ids of topics at the brokers. `clock` ("look" in JSON): the time of planning, which gives
    a repeated micro-batch the same watermark; None for a stream without a watermark."""

    offsets: Offsets
    behind: Mapping[str, Sequence[int]] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    clock: BatchClock | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the position for JSON: partition numbers as text."""
        offsets = {topic: {str(p): offset for p, offset in each.items()} for topic, each in self.offsets.items()}
        behind = {topic: list(partitions) for topic, partitions in self.behind.items() if partitions}
        clock = {} if self.clock is None else {"look": asdict(self.clock)}
        return {"offsets": offsets, "behind": behind, "topic_ids": dict(self.topic_ids), **clock}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Position:
        """Invert `to_json`, or read the bare offsets that Spark's own Kafka source stores. Raises: SourceError."""
        try:
            fields = data if "topic_ids" in data else {"offsets": data, "behind": {}, "topic_ids": {}}
            offsets = _whole_numbers(fields["offsets"])
            clock = BatchClock(**fields["look"]) if "look" in fields else None
            return Position(offsets, fields["behind"], fields["topic_ids"], clock)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SourceError(
                f"the checkpoint directory has offsets in a form that this build does not know ({error!r}); "
                "go on with the build that wrote them, or start with a new checkpoint directory"
            ) from error


def reached(
    start: Position, end: Offsets, latest: Offsets, topic_ids: Mapping[str, str], clock: BatchClock | None = None
) -> Position:
    """Return the position at the end of a micro-batch that began at `start`. `latest` are the ends of the partitions.
    Ids that brokers do not report stay unchanged."""
    behind = {
        t: [p for p, last in sorted(by_partition.items()) if end[t].get(p, 0) < last]
        for t, by_partition in latest.items()
    }
    return Position(end, behind, {**start.topic_ids, **topic_ids}, clock)


def refuse_new_topics(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Compare ids of topics. Raises: SourceGoneError if a topic of the same name is another one now."""
    for topic, topic_id in now.items():
        if before.get(topic, topic_id) != topic_id:
            raise SourceGoneError(
                f"topic {topic} was deleted and created again (its id was {before[topic]} and is {topic_id}); "
                f"{NEW_TOPIC_HELP}"
            )


def parse_offsets(text: str) -> Offsets:
    """Read the offsets that an option names, as {"payments": {"0": 17}}. Raises: UsageError."""
    try:
        return _whole_numbers(orjson.loads(text))
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f'offsets are earliest, latest or {{"topic": {{"0": 17}}}}, not {text[:200]}') from error


def _whole_numbers(written: Any) -> Offsets:
    return {str(t): {int(p): int(offset) for p, offset in each.items()} for t, each in written.items()}


def is_time(where: str) -> bool:
    """Return True if a place in a topic is a time. Otherwise it is earliest, latest or offsets."""
    return where not in ("earliest", "latest") and not where.startswith("{")


def bounded(start: Offsets, latest: Offsets, ending: Offsets) -> Offsets:
    """Return the offsets to read to: `latest`, but not beyond `ending`, and never before `start`."""
    return {
        t: {p: max(min(last, _offset_in(ending, t, p)), _offset_in(start, t, p)) for p, last in each.items()}
        for t, each in latest.items()
    }


def limit_offsets(start: Offsets, end: Offsets, records_max: int) -> Offsets:
    """Shorten the ranges from `start` to `end`, so that they have at most `records_max` offsets in all.

    Every partition with records gets at least one while there are enough. The rest is shared in proportion to the
    waiting records, so that lagging partitions catch up together.
    """
    ranges = ranges_between(start, end)
    sizes = [r.end - r.start for r in ranges]
    if sum(sizes) <= records_max:
        return end
    limited = {t: {p: min(_offset_in(start, t, p), last) for p, last in each.items()} for t, each in end.items()}
    first_count = min(len(ranges), records_max)
    rest = records_max - first_count
    rest_total = max(sum(sizes) - len(sizes), 1)
    # Rounding the running sum instead of each share keeps the total exact.
    running_totals = [0, *(total * rest // rest_total for total in accumulate(size - 1 for size in sizes))]
    shares = [after - before for before, after in pairwise(running_totals)]
    for index, (part, share) in enumerate(zip(ranges, shares, strict=True)):
        limited[part.topic][part.partition] = part.start + share + int(index < first_count)
    return limited


def ranges_between(start: Offsets, end: Offsets, records_max: int | None = None) -> list[OffsetRange]:
    """Return the non-empty ranges from `start` to `end`, each cut into pieces of at most `records_max` offsets.

    A partition that `start` does not know is new and begins at 0. Raises: SourceGoneError when a partition ends before
    it starts, which happens when a topic was deleted and created again, or when `end` lacks a partition.
    """
    for topic, partitions in start.items():
        for partition, offset in partitions.items():
            last = end.get(topic, {}).get(partition)
            if last is None or last < offset:
                ends = "is no longer there" if last is None else f"ends at {last}"
                raise SourceGoneError(
                    f"{topic}[{partition}] was read up to offset {offset} but {ends}: the topic was probably deleted "
                    f"and created again; {NEW_TOPIC_HELP}"
                )
    ranges: list[OffsetRange] = []
    for topic, partitions in end.items():
        for partition, last in sorted(partitions.items()):
            first = _offset_in(start, topic, partition)
            step = records_max if records_max is not None else max(last - first, 1)
            ranges += [
                OffsetRange(topic, partition, offset, min(offset + step, last)) for offset in range(first, last, step)
            ]
    return ranges


def share_ranges(ranges: Sequence[OffsetRange], tasks_count: int) -> list[tuple[OffsetRange, ...]]:
    """Divide ranges among at most `tasks_count` tasks: the largest first, to the task with the fewest records.

    No task is empty. The ranges of one partition keep their order, in a task and from task to task.
    """
    tasks: dict[tuple[str, int], list[int]] = {}  # by partition: a task's number for each range
    heap = [(0, task) for task in range(min(tasks_count, len(ranges)))]  # (records so far, task)
    for offset_range in sorted(ranges, key=lambda r: r.start - r.end):
        records_count, task = heap[0]
        tasks.setdefault((offset_range.topic, offset_range.partition), []).append(task)
        heapreplace(heap, (records_count + offset_range.end - offset_range.start, task))
    # A partition's ranges, in their order, get the same tasks in ascending order: earlier ranges are in earlier tasks.
    next_tasks = {partition: iter(sorted(of_partition)) for partition, of_partition in tasks.items()}
    ranges_by_task: list[list[OffsetRange]] = [[] for _ in heap]
    for offset_range in ranges:
        ranges_by_task[next(next_tasks[offset_range.topic, offset_range.partition])].append(offset_range)
    return [tuple(task) for task in ranges_by_task]


def _offset_in(offsets: Offsets, topic: str, partition: int) -> int:
    return offsets.get(topic, {}).get(partition, 0)
