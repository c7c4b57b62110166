"""Alerts to Kafka, against librdkafka's mock brokers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from cep.base.errors import SinkError
from cep.sinks.kafka import KafkaSink, KafkaTransactionSink
from tests.mock_kafka import PARTITIONS, TIMEOUT_S, MockKafka
from tests.real_kafka import KafkaCluster
from tests.sinks.alerts import alert_table


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockKafka]:
    with MockKafka() as cluster:
        yield cluster


def consumed(kafka: MockKafka, topic: str, count: int) -> list[Message]:
    """`count` records of the topic, in any order; fewer if no more come."""
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "test"})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    records = consumer.consume(count, TIMEOUT_S)
    consumer.close()
    return records


def test_key_value_and_headers(kafka: MockKafka) -> None:
    sink = KafkaSink(kafka.address, "alerts-form")
    sink.write(alert_table(7, 1), 0)
    sink.close()
    (record,) = consumed(kafka, "alerts-form", 1)
    assert record.key() == b"a7"
    assert dict(record.headers() or []) == {"rule": b"card_testing", "version": b"2"}
    value = record.value()
    assert value is not None
    assert json.loads(value)["measures"] == {"probes": 3, "amount": "900.00"}


def test_a_batch_that_comes_again_has_the_same_keys_and_values(kafka: MockKafka) -> None:
    for _ in range(2):
        sink = KafkaSink(kafka.address, "alerts-again")
        sink.write(alert_table(0, 20), 3)
        sink.close()
    records = consumed(kafka, "alerts-again", 40)
    assert len(records) == 40
    assert len({(record.key(), record.value()) for record in records}) == 20


def test_more_alerts_than_the_queue_holds(kafka: MockKafka) -> None:
    sink = KafkaSink(kafka.address, "alerts-many", {"queue.buffering.max.messages": "10"})
    sink.write(alert_table(0, 200), 0)
    sink.close()
    assert len({record.key() for record in consumed(kafka, "alerts-many", 200)}) == 200


def test_no_broker_is_an_error_within_the_bound() -> None:
    sink = KafkaSink("127.0.0.1:1", "alerts", wait_ms_max=300)
    with pytest.raises(SinkError, match=r"2 of 2 alerts of batch 5 did not reach topic alerts at 127\.0\.0\.1:1"):
        sink.write(alert_table(0, 2), 5)
    sink.close()


def test_wrong_settings_are_named() -> None:
    with pytest.raises(SinkError, match=r"no\.such\.setting"):
        KafkaSink("127.0.0.1:1", "alerts", {"no.such.setting": "1"})


def test_a_job_that_is_started_again_sends_no_batch_twice(kafka_broker: KafkaCluster) -> None:
    topic = f"transactions-{uuid.uuid4().hex[:8]}"
    kafka_broker.create(topic)
    first = KafkaTransactionSink(kafka_broker.address, topic, topic)
    first.write(alert_table(0, 3), 4)
    second = KafkaTransactionSink(kafka_broker.address, topic, topic)
    second.write(alert_table(0, 3), 4)
    if kafka_broker.is_real:  # the mock forgets offsets of transactions, and lets a second process be
        with pytest.raises(SinkError, match="did not reach"):
            first.write(alert_table(5, 1), 5)  # it was thought dead
    second.write(alert_table(3, 2), 5)
    first.close()
    second.close()
    consumer = Consumer({"bootstrap.servers": kafka_broker.address, "group.id": topic})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    keys = [key for record in consumer.consume(9, 3.0) if (key := record.key())]
    consumer.close()
    assert sorted(set(keys)) == [b"a0", b"a1", b"a2", b"a3", b"a4"]
    assert len(keys) == 5 or not kafka_broker.is_real


def test_no_broker_for_a_transaction() -> None:
    with pytest.raises(SinkError, match="no transaction with"):
        KafkaTransactionSink("127.0.0.1:1", "alerts", "job", wait_ms_max=1_000)
