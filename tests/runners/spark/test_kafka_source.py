"""Spark gets every planned record once, across micro-batches and restarts, or a query that fails with the reason."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cep.base.errors import UsageError
from cep.runners.spark import session as spark_session
from cep.runners.spark.kafka import KafkaDataSource
from cep.runners.spark.session import create_session
from tests.mock_kafka import PARTITIONS, MockKafka

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


def read(spark: SparkSession, kafka: MockKafka, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("cep-kafka").option("bootstrap.servers", kafka.address).option("topic", topic)
    return reader.options(**options).load()


def stream(spark: SparkSession, kafka: MockKafka, topic: str, checkpoint: Path, **options: str) -> list[list[int]]:
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
    frame = read(spark, kafka, "batch", startingOffsets=starting, endingOffsets=ending, maxRecordsPerPartition="100")
    assert frame.rdd.getNumPartitions() == 3 + 1 + 0 + 3
    assert read(spark, kafka, "batch", maxTasks="3").rdd.getNumPartitions() == 3
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
    assert read(spark, kafka, "empty").collect() == []


@pytest.mark.spark
def test_every_record_once_across_micro_batches_and_a_restart(
    spark: SparkSession, kafka: MockKafka, tmp_path: Path
) -> None:
    send_numbers(kafka, "stream", 0, 1_000)
    first = stream(spark, kafka, "stream", tmp_path, maxRecordsPerTrigger="400")
    assert [len(numbers) for numbers in first] == [400, 400, 200]
    assert first[0] == list(range(400)), "partitions advance together"
    assert stream(spark, kafka, "stream", tmp_path) == []
    send_numbers(kafka, "stream", 1_000, 1_500)
    second = stream(spark, kafka, "stream", tmp_path, maxRecordsPerTrigger="300", maxTasks="2")
    assert [len(numbers) for numbers in second] == [300, 200]
    assert sorted(itertools.chain(*first, *second)) == list(range(1_500))


@pytest.mark.spark
def test_two_topics_and_the_end_as_a_start(spark: SparkSession, kafka: MockKafka, tmp_path: Path) -> None:
    send_numbers(kafka, "left", 0, 8)
    send_numbers(kafka, "right", 100, 108)
    assert stream(spark, kafka, "left,right", tmp_path / "both") == [[*range(8), *range(100, 108)]]
    starting = '{"right": {"0": -1, "1": -1, "2": -1}}'
    assert stream(spark, kafka, "right", tmp_path / "some", startingOffsets=starting) == [[103, 107]]
    with pytest.raises(Exception, match="no longer names"):
        stream(spark, kafka, "right", tmp_path / "both")


@pytest.mark.spark
def test_records_that_retention_took(spark: SparkSession, kafka: MockKafka, tmp_path: Path) -> None:
    send_numbers(kafka, "retained", 0, 8)
    assert stream(spark, kafka, "retained", tmp_path) == [list(range(8))]
    kafka.send("retained", ({"partition": 0, "value": b"x" * 1_000} for _ in range(9_000)))
    pattern = r"SourceGoneError: retained\[0\].*: offset 2 is gone, retained\[0\] now has \d{4}"
    with pytest.raises(Exception, match=pattern):
        stream(spark, kafka, "retained", tmp_path)


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
def test_what_is_refused(
    spark: SparkSession, kafka: MockKafka, topic: str, options: dict[str, Any], message: str
) -> None:
    kafka.create("batch")
    with pytest.raises(Exception, match=message) as caught:
        read(spark, kafka, topic, **options).collect()
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
