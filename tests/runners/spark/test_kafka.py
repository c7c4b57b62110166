"""The plan of a streaming read of topics: bounds, times, new partitions, topics created again.

Micro-batches without records let the watermark move with the clock, and a plan reports about partitions. A source plans
the same micro-batches, whether or not Spark gives it the start and the limit. Spark gets every planned record once,
across micro-batches and restarts, or a query that fails with the reason.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable as ReadAllOfSpark
from pyspark.sql.types import StructType

from cep.base.errors import SourceError, UsageError
from cep.base.kafka import WRITER_FIXED
from cep.base.limits import TIME_MS_MIN
from cep.runners.spark import kafka as source
from cep.runners.spark import session as spark_session
from cep.runners.spark.admission import AdmittedReader, ReadAllAvailable, ReadLimit, ReadMaxRows
from cep.runners.spark.kafka import KafkaDataSource, KafkaEventsReader, KafkaEventsSource, KafkaStreamReader, TaskRanges
from cep.runners.spark.packed import TIMES
from cep.runners.spark.session import create_session
from cep.sources.kafka import topic_ids
from cep.sources.offsets import BatchClock, Position, next_empty_batch
from cep.step.event_time import NOTHING_READ, PartitionTimes, TimesRead, merge_times, watermark_of
from cep.step.job import Job
from tests.mock_kafka import PARTITIONS, MockKafka
from tests.real_kafka import TIMEOUT_S, KafkaCluster, RealKafka, add_partitions, new_topic
from tests.runners.embedded.test_future import NOW_MS, PAST_MS, payment
from tests.step.contract import DEPLOYED


def reader(kafka: KafkaCluster, topic: str, **options: str) -> KafkaStreamReader:
    source_options = {"bootstrap.servers": kafka.address, "topic": topic, "startingOffsets": "earliest", **options}
    return KafkaDataSource(source_options).streamReader(StructType())


def planned(stream: KafkaStreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Return the next end, and the numbers before it."""
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    tasks = stream.partitions(start, end)
    batches = itertools.chain.from_iterable(stream.read(task) for task in tasks)
    return end, sorted(int(value) for batch in batches for value in batch.column("value").to_pylist())


PLANNING = """
import json, sys
sys.modules |= dict.fromkeys(("numba", "pydantic"))  # they are not there
from pyspark.sql.types import StructType
from cep.runners.spark.kafka import KafkaEventsSource
stream = KafkaEventsSource(json.loads(sys.argv[1])).streamReader(StructType())
begin = stream.initialOffset()
print(len(stream.partitions(begin, stream.latestOffset(begin, stream.getDefaultReadLimit()))), "pandas" in sys.modules)
"""


def test_planning_loads_nothing_that_decodes(kafka_broker: KafkaCluster) -> None:
    """Spark plans in separate processes, and a job waits for them at its start."""
    topic = new_topic(kafka_broker, 2)
    send(kafka_broker, topic, range(10))
    job = json.dumps({"idle_ms": 1_000, "ahead_ms": 1_000})
    source_options = {"bootstrap.servers": kafka_broker.address, "topic": topic, "startingOffsets": "earliest"}
    command = [sys.executable, "-c", PLANNING, json.dumps({**source_options, "job": job})]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (process.stdout, process.returncode) == ("2 False\n", 0), process.stderr


def plan_until_refused(stream: KafkaStreamReader, start: dict[str, Any]) -> None:
    """Plan repeatedly: a broker learns that a topic is gone some moments after the answer."""
    for _ in range(100):
        planned(stream, start)
        time.sleep(0.05)


def send(kafka: KafkaCluster, topic: str, numbers: range, partitions: int = 2, width: int = 1) -> None:
    # A producer that has not seen the topic before, with the options that keep all records and their order.
    producer = Producer({**WRITER_FIXED, "bootstrap.servers": kafka.address, "log_level": 2})
    refused: list[object] = []
    for n in numbers:
        producer.produce(
            topic,
            b"%0*d" % (width, n),
            partition=n % partitions,
            timestamp=1_000 * (n + 1),
            on_delivery=lambda error, _: refused.append(error) if error is not None else None,
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert not refused


def test_added_partitions_are_read_from_their_beginning(real_broker: RealKafka) -> None:
    # the mock's topics have a fixed number of partitions
    topic = new_topic(real_broker, 1)
    stream = reader(real_broker, topic)
    send(real_broker, topic, range(5), 1)
    first, numbers = planned(stream, stream.initialOffset())
    assert numbers == list(range(5))
    add_partitions(real_broker, topic, 3)
    send(real_broker, topic, range(5, 30), 3)
    numbers, end, give_up_s = [], first, time.monotonic() + TIMEOUT_S
    while len(numbers) < 25 and time.monotonic() < give_up_s:  # a broker may name a new partition some moments later
        end, more = planned(stream, end)
        numbers += more
    assert sorted(numbers) == list(range(5, 30))
    assert planned(stream, end)[1] == []


@pytest.mark.parametrize("refilled", [0, 3, 50])
def test_a_topic_that_was_created_again_is_refused_whatever_it_holds(real_broker: RealKafka, refilled: int) -> None:
    # the mock cannot delete topics
    topic = new_topic(real_broker, 2)
    send(real_broker, topic, range(20))
    stream = reader(real_broker, topic)
    end, _ = planned(stream, stream.initialOffset())
    admin = AdminClient({"bootstrap.servers": real_broker.address})
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    with pytest.raises(SourceError, match=f"topic {topic} cannot be read on .*Unknown topic"):
        plan_until_refused(stream, end)
    for _ in range(100):  # the name becomes free, and the new topic known, some moments after the answers
        with contextlib.suppress(KafkaException):
            real_broker.create(topic, 2)
        with contextlib.suppress(SourceError):
            assert topic_ids(stream._options.settings, [topic])
            break
        time.sleep(0.05)
    send(real_broker, topic, range(refilled))
    with pytest.raises(SourceError, match=f"topic {topic} was deleted and created again .*new checkpoint directory"):
        planned(stream, end)


def test_bounds_of_a_micro_batch(kafka_broker: KafkaCluster) -> None:
    topic = new_topic(kafka_broker, 2)
    send(kafka_broker, topic, range(400), width=100)
    by_count = reader(kafka_broker, topic, maxRecordsPerTrigger="150")
    assert len(planned(by_count, by_count.initialOffset())[1]) == 150
    by_size = reader(kafka_broker, topic, maxBytesPerTrigger="10000")
    end, numbers = planned(by_size, by_size.initialOffset())
    assert 80 <= len(numbers) <= 100, "a record has 100 bytes, and some for the offsets of its column"
    assert end["behind"] == {topic: [0, 1]}
    both = reader(kafka_broker, topic, maxBytesPerTrigger="10000", maxRecordsPerTrigger="7")
    assert len(planned(both, both.initialOffset())[1]) == 7
    assert planned(by_size, planned(by_size, end)[0])[0]["behind"] == {topic: [0, 1]}
    everything = reader(kafka_broker, topic)
    assert everything.getDefaultReadLimit() == ReadAllOfSpark()
    assert planned(everything, end)[0]["behind"] == {}


def test_a_stream_ends_at_offsets_and_goes_on_behind_them(kafka_broker: KafkaCluster) -> None:
    topic = new_topic(kafka_broker, 2)
    send(kafka_broker, topic, range(100))
    whole = reader(kafka_broker, topic)
    first = reader(kafka_broker, topic, endingOffsets=f'{{"{topic}": {{"0": 10, "1": -2}}}}', maxRecordsPerTrigger="6")
    first.prepareForTriggerAvailableNow()
    end, numbers = planned(first, first.initialOffset())
    assert len(numbers) == 6
    end, more = planned(first, end)
    assert planned(first, end) == (end, []), "it goes no further"
    in_first = [n for n in range(100) if n % 2 == 0][:10]
    assert sorted(numbers + more) == in_first
    assert end["behind"] == {topic: [0, 1]}
    assert sorted(planned(whole, end)[1]) == sorted(set(range(100)) - set(in_first))
    passed = reader(kafka_broker, topic, endingOffsets="earliest")
    assert planned(passed, end)[1] == [], "a job that has read on does not go back"


def test_a_start_by_time(real_broker: RealKafka) -> None:  # the mock looks up no times
    topic = new_topic(real_broker, 2)
    send(real_broker, topic, range(100))
    with pytest.raises(UsageError, match="startingOffsets or startingTimestamp, not both"):
        reader(real_broker, topic, startingTimestamp="40500")
    source_options = {"bootstrap.servers": real_broker.address, "topic": topic, "startingTimestamp": "40500"}
    stream = KafkaDataSource(source_options).streamReader(StructType())
    assert planned(stream, stream.initialOffset())[1] == list(range(40, 100))
    late = KafkaDataSource({**source_options, "startingTimestamp": "9000000"}).streamReader(StructType())
    assert planned(late, late.initialOffset())[1] == []
    until = KafkaDataSource({**source_options, "endingTimestamp": "50000"}).streamReader(StructType())
    assert planned(until, until.initialOffset())[1] == list(range(40, 49))
    batch = KafkaDataSource({**source_options, "endingTimestamp": "50000"}).reader(StructType())
    tasks = batch.partitions()
    assert all(isinstance(task, TaskRanges) for task in tasks)
    values = [int(v) for task in tasks for part in batch.read(task) for v in part.column("value").to_pylist()]
    assert sorted(values) == list(range(40, 49))


def test_records_of_a_transaction_count_when_it_is_committed(real_broker: RealKafka) -> None:
    # the mock's transactions are not seen by others
    """Aborted records never come, and the offsets of markers are not records."""
    topic = new_topic(real_broker, 1)
    producer = Producer({"bootstrap.servers": real_broker.address, "transactional.id": topic, "log_level": 2})
    producer.init_transactions(TIMEOUT_S)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.flush(TIMEOUT_S)
        if number % 2:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
    stream = reader(real_broker, topic)
    assert planned(stream, stream.initialOffset())[1] == [0, 2, 4]


def test_what_is_refused(kafka_broker: KafkaCluster) -> None:
    source_options = {"bootstrap.servers": kafka_broker.address, "topic": "t"}
    with pytest.raises(UsageError, match="is for streaming"):
        KafkaEventsSource(source_options).reader(StructType())
    with pytest.raises(UsageError, match="needs option job"):
        next(KafkaEventsSource(source_options).streamReader(StructType()).read(TaskRanges(())))


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
    position = Position({"looks": {**end.offsets["looks"], 1: 0}}, {"looks": [1]}, end.topic_ids, end.clock)
    (task,) = stream.reader.partitions(stream.at, position.to_json())
    assert task.times.partitions.keys() == {"looks-0", "looks-1"}  # type: ignore[attr-defined]
    assert task.times.partitions["looks-1"].is_behind  # type: ignore[attr-defined]


@pytest.mark.parametrize("ending", [{}, {"endingOffsets": '{"control": {"0": 50}}'}])
def test_a_heartbeat_is_planned_behind_all_that_stood_before_it(stream: Stream, ending: dict[str, str]) -> None:
    """Spark asks for the end of the events, then of the control topic. Records may come between the two."""
    stream.kafka.create("control")
    options = {"bootstrap.servers": stream.kafka.address, "topic": "control", "startingOffsets": "earliest"}
    control = KafkaDataSource({**options, **ending, "plansLate": "true"}).streamReader(StructType())
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
    assert next_empty_batch(None, 100, [10]) is None, "nothing has been read"
    assert next_empty_batch(BatchClock(5, 5), 15, [10, 50]) is None
    assert next_empty_batch(BatchClock(5, 5), 16, [10, 50]) == BatchClock(16, 5, 1)
    assert next_empty_batch(BatchClock(16, 5, 1), 55, [10, 50]) is None
    assert next_empty_batch(BatchClock(16, 5, 1), 56, [10, 50]) == BatchClock(56, 5, 2)
    assert next_empty_batch(BatchClock(56, 5, 2), 10**15, [10, 50]) is None


def test_a_position_of_an_earlier_build_has_no_clock() -> None:
    clock = BatchClock(7, 5, 1, is_end=True)
    for position in (Position({"t": {0: 1}}), Position({"t": {0: 1}}, {"t": [0]}, {"t": "id"}, clock)):
        assert Position.from_json(json.loads(json.dumps(position.to_json()))) == position


class Numbers(AdmittedReader):
    """Numbers from 10 on, `limit` at a time; more and more of them become available."""

    def __init__(self, limit: int | None, *, ends: bool = False) -> None:
        super().__init__(ends=ends)
        self.limit = limit
        self.there = 10
        self.target: int | None = None

    def first(self) -> dict[str, Any]:
        return {"at": self.there}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 Spark's name
        return ReadAllAvailable() if self.limit is None else ReadMaxRows(self.limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 Spark's name
        self.target = self.there

    def latest(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        end = self.there if self.target is None else self.target
        return {"at": min(end, start["at"] + limit.max_rows) if isinstance(limit, ReadMaxRows) else end}

    def planned(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Any]:
        return list(range(start["at"], end["at"]))

    def read(self, partition: Any) -> Iterator[Any]:
        return iter([partition])


def batches(source: Numbers, start: Mapping[str, Any] | None, *, is_asked_as_now: bool) -> list[list[Any]]:
    """Return the micro-batches until all numbers are read, as Spark 4.2 plans them, or as Spark 4.1 does."""
    plans: list[list[Any]] = []
    while True:
        if is_asked_as_now:
            start = source.initialOffset() if start is None else start
            end = source.latestOffset(start, source.getDefaultReadLimit())
        else:
            end = source.latestOffset()
            start = source.initialOffset() if start is None else start
        if end == start:
            return plans
        plans.append(source.partitions(start, end))
        start = end


def test_both_ways_plan_the_same() -> None:
    for limit in (None, 3):
        planned = []
        for is_asked_as_now in (True, False):
            source = Numbers(limit)
            assert batches(source, None, is_asked_as_now=is_asked_as_now) == []  # it begins at the end
            source.there = 17
            planned.append(batches(source, {"at": 10}, is_asked_as_now=is_asked_as_now))
        assert planned[0] == planned[1]
        assert list(chain.from_iterable(planned[0])) == list(range(10, 17))
        assert len(planned[0]) == (1 if limit is None else 3)


def test_a_query_that_goes_on_is_not_asked_where_it_begins() -> None:
    source = Numbers(4)
    source.there = 30
    source.partitions({"at": 20}, {"at": 20})  # so Spark 4.1 reports the content of the checkpoint
    assert batches(source, {"at": 20}, is_asked_as_now=False) == [[20, 21, 22, 23], [24, 25, 26, 27], [28, 29]]


def test_a_query_that_ends_takes_what_was_there() -> None:
    source = Numbers(3, ends=True)
    assert source.latestOffset() == source.initialOffset() == {"at": 10}
    source.there = 99
    assert batches(source, {"at": 10}, is_asked_as_now=False) == []


WAIT_S = 60


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    """Return the session of all tests, with the source registered."""
    spark.dataSource.register(KafkaDataSource)
    return spark


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockKafka]:
    with MockKafka() as cluster:
        yield cluster


def send_numbers(kafka: MockKafka, topic: str, first: int, end: int) -> None:
    """Send number n to partition n % 4 with event time n."""
    kafka.send(
        topic,
        (
            {"partition": n % PARTITIONS, "key": b"k%d" % n, "value": b"%d" % n, "timestamp": n}
            for n in range(first, end)
        ),
    )


def batch_read(spark: SparkSession, kafka: MockKafka, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("cep-kafka").option("bootstrap.servers", kafka.address).option("topic", topic)
    return reader.options(**options).load()


def streamed(spark: SparkSession, kafka: MockKafka, topic: str, checkpoint: Path, **options: str) -> list[list[int]]:
    """Return the numbers of each micro-batch, until the query has read the records from before its start."""
    reader = spark.readStream.format("cep-kafka").option("bootstrap.servers", kafka.address).option("topic", topic)
    micro_batches: list[list[int]] = []

    def collect(frame: DataFrame, _: int) -> None:
        micro_batches.append(sorted(int(value) for value in frame.toArrow()["value"].to_pylist()))

    query = (
        reader.options(**{"startingOffsets": "earliest", **options})
        .load()
        .writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)
    return micro_batches


@pytest.mark.spark
def test_a_batch_is_what_was_produced(spark: SparkSession, kafka: MockKafka) -> None:
    send_numbers(kafka, "batch", 0, 1_000)
    starting, ending = '{"batch": {"0": 10}}', '{"batch": {"1": 20, "2": -2}}'
    frame = batch_read(
        spark, kafka, "batch", startingOffsets=starting, endingOffsets=ending, maxRecordsPerPartition="100"
    )
    assert frame.rdd.getNumPartitions() == 3 + 1 + 0 + 3
    assert batch_read(spark, kafka, "batch", maxTasks="3").rdd.getNumPartitions() == 3
    rows = sorted((row.asDict() for row in frame.collect()), key=lambda row: row["timestamp"])
    expected = [
        {
            "topic": "batch",
            "partition": n % PARTITIONS,
            "offset": n // PARTITIONS,
            "timestamp": n,
            "key": b"k%d" % n,
            "value": b"%d" % n,
        }
        for n in range(1_000)
        if (n % PARTITIONS == 0 and n >= 40) or (n % PARTITIONS == 1 and n < 80) or n % PARTITIONS == 3
    ]
    assert rows == expected


@pytest.mark.spark
def test_an_empty_batch(spark: SparkSession, kafka: MockKafka) -> None:
    kafka.create("empty")
    assert batch_read(spark, kafka, "empty").collect() == []


@pytest.mark.spark
def test_every_record_once_across_micro_batches_and_a_restart(
    spark: SparkSession, kafka: MockKafka, tmp_path: Path
) -> None:
    send_numbers(kafka, "stream", 0, 1_000)
    first = streamed(spark, kafka, "stream", tmp_path, maxRecordsPerTrigger="400")
    assert [len(numbers) for numbers in first] == [400, 400, 200]
    assert first[0] == list(range(400)), "partitions advance together"
    assert streamed(spark, kafka, "stream", tmp_path) == []
    send_numbers(kafka, "stream", 1_000, 1_500)
    second = streamed(spark, kafka, "stream", tmp_path, maxRecordsPerTrigger="300", maxTasks="2")
    assert [len(numbers) for numbers in second] == [300, 200]
    assert sorted(itertools.chain(*first, *second)) == list(range(1_500))


@pytest.mark.spark
def test_two_topics_and_the_end_as_a_start(spark: SparkSession, kafka: MockKafka, tmp_path: Path) -> None:
    send_numbers(kafka, "left", 0, 8)
    send_numbers(kafka, "right", 100, 108)
    assert streamed(spark, kafka, "left,right", tmp_path / "both") == [[*range(8), *range(100, 108)]]
    starting = '{"right": {"0": -1, "1": -1, "2": -1}}'
    assert streamed(spark, kafka, "right", tmp_path / "some", startingOffsets=starting) == [[103, 107]]
    with pytest.raises(Exception, match="no longer names"):
        streamed(spark, kafka, "right", tmp_path / "both")


@pytest.mark.spark
def test_records_that_retention_took(spark: SparkSession, kafka: MockKafka, tmp_path: Path) -> None:
    send_numbers(kafka, "retained", 0, 8)
    assert streamed(spark, kafka, "retained", tmp_path) == [list(range(8))]
    kafka.send("retained", ({"partition": 0, "value": b"x" * 1_000} for _ in range(9_000)))
    pattern = r"SourceGoneError: retained\[0\].*: offset 2 is gone, retained\[0\] now has \d{4}"
    with pytest.raises(Exception, match=pattern):
        streamed(spark, kafka, "retained", tmp_path)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("topic", "options", "message"),
    [
        ("nowhere", {}, "topic nowhere cannot be read"),
        ("batch", {"endingOffsets": '{"batch": {"0": 99999}}'}, "the partition ends at"),
        ("batch", {"maxRecordPerPartition": "1"}, "did you mean maxRecordsPerPartition"),
        ("batch", {"maxRecordsPerPartition": "0"}, "a number above 0, not '0'"),
        ("batch", {"maxRecordsPerTrigger": "1"}, "bounds a trigger only in streaming"),
        (" ,", {}, "needs option topic"),
        ("batch", {"kafka.sasl.pasword": "hunter2"}, r"No such configuration property.*sasl\.pasword"),
    ],
)
def test_what_is_refused_of_a_read(
    spark: SparkSession, kafka: MockKafka, topic: str, options: dict[str, Any], message: str
) -> None:
    kafka.create("batch")
    with pytest.raises(Exception, match=message) as caught:
        batch_read(spark, kafka, topic, **options).collect()
    assert "hunter2" not in str(caught.value)


@pytest.mark.spark
def test_the_session_is_set_up(spark: SparkSession) -> None:
    settings = spark.conf
    assert settings.get("spark.sql.session.timeZone") == "UTC"
    assert settings.get("spark.sql.shuffle.partitions") == "2"
    assert "RocksDB" in (settings.get("spark.sql.streaming.stateStore.providerClass") or "")
    paths = spark.range(1).rdd.map(lambda _: os.environ["PYTHONPATH"]).collect()
    assert str(spark_session._PACKAGE_ROOT) in paths[0].split(os.pathsep)


def test_no_cores() -> None:
    with pytest.raises(UsageError, match="not 0"):
        create_session("none", cores=0)
