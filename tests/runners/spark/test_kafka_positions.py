"""The plan of a streaming read of topics, without Spark: bounds, times, new partitions, topics created again."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import time
import uuid
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from cep.base.errors import SourceError, UsageError
from cep.base.kafka import WRITER_FIXED
from cep.runners.spark.kafka import KafkaDataSource, KafkaEventsSource, KafkaStreamReader, TaskRanges
from cep.sources.kafka import topic_ids
from tests.real_kafka import TIMEOUT_S, KafkaCluster, add_partitions


def reader(kafka: KafkaCluster, topic: str, **options: str) -> KafkaStreamReader:
    source_options = {"bootstrap.servers": kafka.address, "topic": topic, "startingOffsets": "earliest", **options}
    return KafkaDataSource(source_options).streamReader(StructType())


def new_topic(kafka: KafkaCluster, partitions: int = 2) -> str:
    topic = f"positions-{uuid.uuid4().hex}"
    kafka.create(topic, partitions)
    return topic


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
    topic = new_topic(kafka_broker)
    send(kafka_broker, topic, range(10))
    job = json.dumps({"idle_ms": 1_000, "ahead_ms": 1_000})
    source_options = {
        "bootstrap.servers": kafka_broker.address,
        "topic": topic,
        "startingOffsets": "earliest",
        "job": job,
    }
    command = [sys.executable, "-c", PLANNING, json.dumps(source_options)]
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


def test_added_partitions_are_read_from_their_beginning(kafka_broker: KafkaCluster) -> None:
    if not kafka_broker.is_real:  # the mock's topics have a fixed number of partitions
        return
    topic = new_topic(kafka_broker, 1)
    stream = reader(kafka_broker, topic)
    send(kafka_broker, topic, range(5), 1)
    first, numbers = planned(stream, stream.initialOffset())
    assert numbers == list(range(5))
    add_partitions(kafka_broker, topic, 3)
    send(kafka_broker, topic, range(5, 30), 3)
    numbers, end, give_up_s = [], first, time.monotonic() + TIMEOUT_S
    while len(numbers) < 25 and time.monotonic() < give_up_s:  # a broker may name a new partition some moments later
        end, more = planned(stream, end)
        numbers += more
    assert sorted(numbers) == list(range(5, 30))
    assert planned(stream, end)[1] == []


@pytest.mark.parametrize("refilled", [0, 3, 50])
def test_a_topic_that_was_created_again_is_refused_whatever_it_holds(kafka_broker: KafkaCluster, refilled: int) -> None:
    if not kafka_broker.is_real:  # the mock cannot delete topics
        return
    topic = new_topic(kafka_broker)
    send(kafka_broker, topic, range(20))
    stream = reader(kafka_broker, topic)
    end, _ = planned(stream, stream.initialOffset())
    admin = AdminClient({"bootstrap.servers": kafka_broker.address})
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    with pytest.raises(SourceError, match=f"topic {topic} cannot be read on .*Unknown topic"):
        plan_until_refused(stream, end)
    for _ in range(100):  # the name becomes free, and the new topic known, some moments after the answers
        with contextlib.suppress(KafkaException):
            kafka_broker.create(topic, 2)
        with contextlib.suppress(SourceError):
            assert topic_ids(stream._options.settings, [topic])
            break
        time.sleep(0.05)
    send(kafka_broker, topic, range(refilled))
    with pytest.raises(SourceError, match=f"topic {topic} was deleted and created again .*new checkpoint directory"):
        planned(stream, end)


def test_bounds_of_a_micro_batch(kafka_broker: KafkaCluster) -> None:
    topic = new_topic(kafka_broker)
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
    assert everything.getDefaultReadLimit() == ReadAllAvailable()
    assert planned(everything, end)[0]["behind"] == {}


def test_a_stream_ends_at_offsets_and_goes_on_behind_them(kafka_broker: KafkaCluster) -> None:
    topic = new_topic(kafka_broker)
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


def test_a_start_by_time(kafka_broker: KafkaCluster) -> None:
    if not kafka_broker.is_real:  # the mock looks up no times
        return
    topic = new_topic(kafka_broker)
    send(kafka_broker, topic, range(100))
    with pytest.raises(UsageError, match="startingOffsets or startingTimestamp, not both"):
        reader(kafka_broker, topic, startingTimestamp="40500")
    source_options = {"bootstrap.servers": kafka_broker.address, "topic": topic, "startingTimestamp": "40500"}
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


def test_records_of_a_transaction_count_when_it_is_committed(kafka_broker: KafkaCluster) -> None:
    """Aborted records never come, and the offsets of markers are not records."""
    if not kafka_broker.is_real:  # the mock's transactions are not seen by others
        return
    topic = new_topic(kafka_broker, 1)
    producer = Producer({"bootstrap.servers": kafka_broker.address, "transactional.id": topic, "log_level": 2})
    producer.init_transactions(TIMEOUT_S)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.flush(TIMEOUT_S)
        if number % 2:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
    stream = reader(kafka_broker, topic)
    assert planned(stream, stream.initialOffset())[1] == [0, 2, 4]


def test_what_is_refused(kafka_broker: KafkaCluster) -> None:
    source_options = {"bootstrap.servers": kafka_broker.address, "topic": "t"}
    with pytest.raises(UsageError, match="is for streaming"):
        KafkaEventsSource(source_options).reader(StructType())
    with pytest.raises(UsageError, match="needs option job"):
        next(KafkaEventsSource(source_options).streamReader(StructType()).read(TaskRanges(())))
