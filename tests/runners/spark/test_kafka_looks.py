"""Micro-batches of a topic that let the watermark move with the clock, and the report of a plan about partitions."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.types import StructType

from cep.base.limits import TIME_MS_MIN
from cep.runners.spark import kafka as source
from cep.runners.spark.kafka import KafkaDataSource, KafkaEventsReader, KafkaEventsSource
from cep.runners.spark.packed import TIMES
from cep.sources.offsets import Look, Position, next_look
from cep.step.event_time import NOTHING_READ, PartitionTimes, TimesRead, merge_times, watermark_of
from cep.step.job import Job
from tests.mock_kafka import PARTITIONS, MockKafka
from tests.runners.embedded.test_future import NOW_MS, PAST_MS, payment
from tests.step.contract import DEPLOYED

JOB = Job(DEPLOYED.schema, (("card",),), 2)


class Stream:
    """A topic that Spark plans and reads, at a clock that the test moves."""

    def __init__(self, kafka: MockKafka, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
        kafka.create(topic)
        self.kafka, self.topic, self.now_ms = kafka, topic, NOW_MS
        monkeypatch.setattr(source, "_clock_ms", lambda: self.now_ms)
        self.start()
        self.at = self.reader.initialOffset()
        self.times: PartitionTimes = {}
        self.watermark_ms = TIME_MS_MIN

    def start(self) -> None:
        options = {"bootstrap.servers": self.kafka.address, "topic": self.topic, "startingOffsets": "earliest"}
        source = KafkaEventsSource({**options, "job": json.dumps(JOB.to_json())})
        self.reader: KafkaEventsReader = source.streamReader(StructType())

    def send(self, partition: int, *times: int) -> None:
        values = [payment(f"{partition}-{ms}", "c", ms, 1) for ms in times]
        self.kafka.send(self.topic, [{"value": value, "partition": partition} for value in values])

    def look(self) -> TimesRead | None:
        """Process a micro-batch if there is one; return how far partitions were read."""
        end = self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())
        if json.dumps(end) == json.dumps(self.at):
            return None
        tasks = self.reader.partitions(self.at, end)
        batches = list(itertools.chain.from_iterable(self.reader.read(task) for task in tasks))
        assert [self._times(batch) for batch in self._again(self.at, end)] == [self._times(batch) for batch in batches]
        read = NOTHING_READ
        for batch in batches:
            read = read.joined(self._times(batch))
        self.at = end
        self.times = merge_times(self.times, read, JOB.idle_ms)
        self.watermark_ms = max(self.watermark_ms, watermark_of(self.times, 0, JOB.idle_ms, read.now_ms))
        return read

    def _again(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:
        """Read the micro-batch again, as in a repetition."""
        return itertools.chain.from_iterable(self.reader.read(task) for task in self.reader.partitions(start, end))

    def _times(self, batch: Any) -> TimesRead:
        rows = [row for row in batch.to_pylist() if row["kind"] == TIMES]
        assert [row["key_group"] for row in rows] == list(range(JOB.groups_count)), "for every key group"
        return TimesRead.from_bytes(rows[0]["payload"])


@pytest.fixture
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    with MockKafka() as kafka:
        yield Stream(kafka, "looks", monkeypatch)


def test_a_quiet_topic_is_looked_at_twice_and_then_left_alone(stream: Stream) -> None:
    stream.send(0, PAST_MS, NOW_MS + 20_000)
    first = stream.look()
    assert first is not None
    assert len(first.partitions) == PARTITIONS, "the empty ones too"
    assert stream.watermark_ms == TIME_MS_MIN
    for wait_ms, watermark_ms in ((JOB.idle_ms, PAST_MS), (JOB.ahead_ms or 0, NOW_MS + 20_000)):
        stream.now_ms = NOW_MS + wait_ms
        assert stream.look() is None, "not before it is due"
        stream.now_ms += 1
        read = stream.look()
        assert read is not None
        assert (read.partitions, read.now_ms) == ({}, NOW_MS + wait_ms + 1)
        assert stream.watermark_ms == watermark_ms
    stream.now_ms += 86_400_000
    stream.start()
    assert stream.look() is None
    stream.send(3, PAST_MS + 5)
    assert stream.look() is not None
    assert stream.watermark_ms == NOW_MS + 20_000


def test_a_burst_partition_by_partition_makes_nothing_late(stream: Stream) -> None:
    for start_ms in (PAST_MS - 10_000_000, PAST_MS):  # the second one after a day of silence, and a restart
        for partition in range(PARTITIONS):
            assert stream.watermark_ms < start_ms
            stream.send(partition, start_ms, start_ms + 5_000_000)
            stream.now_ms += 1_000
            assert stream.look() is not None
        assert stream.watermark_ms == start_ms + 5_000_000
        stream.now_ms += 86_400_000
        stream.start()


def test_a_query_that_ends_waits_for_no_partition(stream: Stream) -> None:
    stream.send(0, PAST_MS)
    stream.reader.prepareForTriggerAvailableNow()
    read = stream.look()
    assert read is not None
    assert read.is_end
    assert stream.watermark_ms == PAST_MS
    assert stream.look() is None
    stream.send(1, PAST_MS + 5)
    stream.start()
    assert stream.look() is not None
    assert stream.watermark_ms == PAST_MS
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.look() is not None, "what the query before has read is at its end too"
    assert (stream.watermark_ms, stream.look()) == (PAST_MS + 5, None)


def test_what_waits_holds_the_watermark_though_nothing_of_it_is_read(stream: Stream) -> None:
    stream.send(0, PAST_MS)
    stream.look()
    stream.now_ms += JOB.idle_ms + 1
    stream.look()
    stream.send(0, PAST_MS + 10, PAST_MS + 20)
    stream.send(1, PAST_MS + 1)
    end = Position.from_json(stream.reader.latestOffset(stream.at, stream.reader.getDefaultReadLimit()))
    position = Position({"looks": {**end.offsets["looks"], 1: 0}}, {"looks": [1]}, end.topic_ids, end.look)
    (task,) = stream.reader.partitions(stream.at, position.to_json())
    assert task.times.partitions.keys() == {"looks-0", "looks-1"}  # type: ignore[attr-defined]
    assert task.times.partitions["looks-1"].is_behind  # type: ignore[attr-defined]


def test_a_heartbeat_is_planned_behind_all_that_stood_before_it(stream: Stream) -> None:
    """Spark asks for the end of the events, then of the control topic. Records may come between the two."""
    stream.kafka.create("control")
    options = {"bootstrap.servers": stream.kafka.address, "topic": "control", "startingOffsets": "earliest"}
    control = KafkaDataSource({**options, "plansLate": "true"}).streamReader(StructType())
    position, beats = control.initialOffset(), list[int]()

    def send(number: int) -> None:
        stream.send(0, PAST_MS + number)
        stream.kafka.send("control", [{"value": b"beat", "partition": 0}])

    for number in range(4):
        stream.at = stream.reader.latestOffset(stream.at, stream.reader.getDefaultReadLimit())
        if number:
            send(number)
        position = control.latestOffset(position, control.getDefaultReadLimit())
        beats.append(Position.from_json(position).offsets["control"][0])
        assert beats[-1] <= Position.from_json(stream.at).offsets["looks"][0], "each has an event before it"
    assert beats == [0, 0, 1, 2]


def test_a_look_is_due_once_for_each_wait() -> None:
    assert next_look(None, 100, [10]) is None, "nothing has been read"
    assert next_look(Look(5, 5), 15, [10, 50]) is None
    assert next_look(Look(5, 5), 16, [10, 50]) == Look(16, 5, 1)
    assert next_look(Look(16, 5, 1), 55, [10, 50]) is None
    assert next_look(Look(16, 5, 1), 56, [10, 50]) == Look(56, 5, 2)
    assert next_look(Look(56, 5, 2), 10**15, [10, 50]) is None


def test_a_position_of_an_earlier_build_has_no_clock() -> None:
    look = Look(7, 5, 1, is_end=True)
    for position in (Position({"t": {0: 1}}), Position({"t": {0: 1}}, {"t": [0]}, {"t": "id"}, look)):
        assert Position.from_json(json.loads(json.dumps(position.to_json()))) == position
