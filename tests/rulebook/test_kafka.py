"""Records of the control topic on a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from cep.base.errors import SinkError
from cep.rulebook.kafka import STATUS_KEY, StatusTopic, Topic
from tests.real_kafka import KafkaCluster


def records_in(kafka: KafkaCluster, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "t", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [(message.key(), message.value()) for message in consumer.consume(count, 30.0)]
    finally:
        consumer.close()


def test_records_keep_their_order_in_one_partition(kafka_broker: KafkaCluster) -> None:
    topic = Topic(kafka_broker.address, "control-order")
    if kafka_broker.is_real:
        assert topic.create()
        assert not topic.create()
    else:
        kafka_broker.create(topic.name)
    records: list[tuple[bytes, bytes | None]] = [(f"{n % 7}".encode(), f"{n}".encode()) for n in range(500)]
    assert topic.send([*records, (b"gone", None)]) == 501
    assert records_in(kafka_broker, topic.name, 501) == [*records, (b"gone", None)]


def test_a_topic_that_another_process_makes_meanwhile_is_there(
    kafka_broker: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kafka_broker.is_real:
        topic = Topic(kafka_broker.address, "control-at-once")
        assert topic.create()
        looks, look = [], AdminClient.list_topics

        def see_it_later(admin: AdminClient, *arguments: Any, **more: Any) -> Any:
            looks.append(arguments)
            return SimpleNamespace(topics={}) if len(looks) < 3 else look(admin, *arguments, **more)

        monkeypatch.setattr(AdminClient, "list_topics", see_it_later)
        assert not topic.create()
        assert looks == [(), ("control-at-once",), ("control-at-once",)]


def test_a_status_replaces_the_one_before(kafka_broker: KafkaCluster) -> None:
    kafka_broker.create("status-key", 1)
    StatusTopic(kafka_broker.address, "status-key").publish(b"{}")
    assert records_in(kafka_broker, "status-key", 1) == [(STATUS_KEY, b"{}")]


def test_brokers_that_do_not_answer_are_told(unused_port: int) -> None:
    topic = Topic(f"127.0.0.1:{unused_port}", "control")
    with pytest.raises(SinkError, match=r"1 records for topic control .* some did not arrive"):
        topic.send([(b"k", b"v")], wait_ms_max=500)


@pytest.fixture
def unused_port() -> int:
    """Return a port without a listener."""
    import socket  # noqa: PLC0415 only here

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
