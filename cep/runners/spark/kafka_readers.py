"""Offsets of a topic → the ranges and tasks of a micro-batch; kafka.py describes the guarantees.

Planning knows offsets and a clock. It does not know events, and loads no code that decodes them.
Tested by: tests/runners/spark/test_kafka_source.py, tests/runners/spark/test_kafka_positions.py,
tests/runners/spark/test_kafka_looks.py
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from cep.base.errors import SourceError, UsageError
from cep.base.limits import TIME_MS_MIN
from cep.runners.spark.admission import AdmittedReader, ReadAllAvailable, ReadLimit, ReadMaxRows
from cep.runners.spark.kafka_options import FORMAT, Options
from cep.runners.spark.paused_partitions import partition_name, read_paused, without_paused
from cep.sources.kafka import latest_offsets, latest_offsets_and_ids, mean_record_bytes, read_range, topic_ids
from cep.sources.offsets import (
    Look,
    OffsetRange,
    Offsets,
    Position,
    bounded,
    limit_offsets,
    next_look,
    ranges_between,
    reached,
    refuse_new_topics,
    share_ranges,
)
from cep.step.event_time import NOTHING_READ, PartitionTime, TimesRead

# Of a micro-batch, if maxTasks is set. A task costs as much as decoding some thousand records.
_RECORDS_PER_TASK = 5_000


class TaskRanges(InputPartition):
    """The work of one task: ranges, one after another; and the times of the micro-batch before any of it is read."""

    def __init__(self, ranges: tuple[OffsetRange, ...], times: TimesRead = NOTHING_READ) -> None:
        super().__init__(ranges)
        self.ranges = ranges
        self.times = times


class KafkaReader(DataSourceReader):
    """Reads the records between two offsets of every partition, once."""

    def __init__(self, options: Options) -> None:
        if options.records_per_trigger_max is not None or options.bytes_per_trigger_max is not None:
            raise UsageError(f"{FORMAT} bounds a trigger only in streaming; set endingOffsets for a batch")
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        start, end = options.starting("earliest", "earliest"), options.ending()
        latest = latest_offsets(options.settings, options.topics)
        for offset_range in ranges_between(start, end):
            last = latest[offset_range.topic][offset_range.partition]
            if offset_range.end > last:
                raise SourceError(
                    f"endingOffsets want {offset_range}, but the partition ends at {last}; lower the offset"
                )
        # Spark takes an empty list for "not partitioned" and would read once with no ranges at all.
        return _plan(options, Position(start), Position(end)) or [TaskRanges(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class KafkaStreamReader(AdmittedReader):
    """Reads micro-batch after micro-batch. The offset that Spark stores is a Position."""

    def __init__(self, options: Options) -> None:
        super().__init__(ends=options.ends)
        self._options = options
        self._ending: Offsets | None = None
        self._target: Offsets | None = None
        self._latest: Position | None = None
        self._seen: Offsets | None = None  # the end of the topic at the plan before

    def first(self) -> dict[str, Any]:
        options = self._options
        return Position(
            options.starting("latest", "earliest"), {}, topic_ids(options.settings, options.topics)
        ).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        records_max = self._options.records_per_trigger_max
        return ReadAllAvailable() if records_max is None else ReadMaxRows(records_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = latest_offsets(self._options.settings, self._options.topics)

    def latest(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        options, position = self._options, Position.from_json(start)
        for topic in position.offsets:
            if topic not in options.topics:
                raise UsageError(
                    f"the checkpoint directory has offsets of topic {topic}, which option topic no longer names; "
                    "name it again or start with a new checkpoint directory"
                )
        if self._target is None:
            latest, ids = latest_offsets_and_ids(options.settings, options.topics)
        else:
            latest, ids = self._target, topic_ids(options.settings, options.topics)
        refuse_new_topics(position.topic_ids, ids)
        end = latest
        if options.plans_late and self._target is None:
            end, self._seen = self._seen or latest, latest
        ranges = ranges_between(position.offsets, end)  # refuses a topic that went backwards before anything is planned
        if options.has_ending:
            end = bounded(position.offsets, latest, self._ending_offsets())
            ranges = ranges_between(position.offsets, end)
        if options.paused_partitions is not None and (paused := read_paused(options.paused_partitions)):
            end = without_paused(ranges, end, paused)
            ranges = ranges_between(position.offsets, end)
        records_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if options.bytes_per_trigger_max is not None and ranges:
            longest = max(ranges, key=lambda r: r.end - r.start)
            by_size = max(1, options.bytes_per_trigger_max // mean_record_bytes(options.settings, longest))
            records_max = by_size if records_max is None else min(by_size, records_max)
        if records_max is not None:
            end = limit_offsets(position.offsets, end, records_max)
        self._latest = Position(latest, {}, ids)
        return reached(position, end, latest, ids, self._look(position, end)).to_json()

    def _look(self, start: Position, end: Offsets) -> Look | None:
        """Return the clock of the next micro-batch; the last one's clock without records and without due events."""
        job, now_ms = self._options.job, _clock_ms()
        if job is None:
            return None
        if end != start.offsets:
            return Look(now_ms, now_ms, is_end=end == self._target)
        if self._target is not None:
            return start.look if start.look is None or start.look.is_end else Look(now_ms, now_ms, is_end=True)
        waits_ms = {job["ahead_ms"] or 0}
        if sum(map(len, end.values())) > 1:
            waits_ms.add(job["idle_ms"])
        return next_look(start.look, now_ms, sorted(waits_ms - {0})) or start.look

    def _ending_offsets(self) -> Offsets:
        """Return where the stream ends: asked for once, so that a time is the same place for all micro-batches of a
        start.
        """
        if self._ending is None:
            self._ending = self._options.ending()
        return self._ending

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else self._latest.to_json()

    def planned(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        return _plan(self._options, Position.from_json(start), Position.from_json(end), _RECORDS_PER_TASK)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class KafkaEventsReader(KafkaStreamReader):
    """Plans as KafkaStreamReader, and packs the records that it reads."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from cep.runners.spark.kafka_events import read_events  # noqa: PLC0415 a second, which planning can do without

        assert isinstance(partition, TaskRanges)
        return read_events(self._options, partition.ranges, partition.times)


def _clock_ms() -> int:
    return int(time.time() * 1_000)


def _plan(options: Options, start: Position, end: Position, records_per_task: int = 1) -> list[InputPartition]:
    """Deal the ranges to tasks; where the number of tasks is bounded, to no more than have work for their start.

    A micro-batch without ranges has one task if its clock tells something.
    """
    ranges = ranges_between(start.offsets, end.offsets, options.records_per_partition_max)
    times = NOTHING_READ if end.look is None else _times(start, end, end.look)
    tasks = len(ranges)
    if options.tasks_max is not None:
        records = sum(offset_range.end - offset_range.start for offset_range in ranges)
        tasks = min(options.tasks_max, -(-records // records_per_task))
    dealt = share_ranges(ranges, tasks)
    if end.look is not None and not dealt:
        dealt = [()]
    return [TaskRanges(task, times) for task in dealt]


def _times(start: Position, end: Position, look: Look) -> TimesRead:
    """Return the partitions of a micro-batch that are behind or new, before its first event is decoded.

    A partition that is behind holds the watermark even if no record of it has been read, and so does a new one for a
    while.
    """
    partitions: dict[str, PartitionTime] = {}
    for topic, by_partition in end.offsets.items():
        behind, named = end.behind.get(topic, ()), {} if start.look is None else start.offsets.get(topic, {})
        for partition, offset in by_partition.items():
            if partition in behind or named.get(partition) != offset:
                partitions[partition_name(topic, partition)] = PartitionTime(TIME_MS_MIN, partition in behind)
    return TimesRead(partitions, now_ms=look.now_ms, is_end=look.is_end)


def _read(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, TaskRanges)
    return chain.from_iterable(read_range(options.settings, offset_range) for offset_range in partition.ranges)
