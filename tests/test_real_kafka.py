"""The broker of the tests: topics, compaction settings, a crash."""

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from tests.real_kafka import KafkaCluster, RealKafka


def values(kafka: KafkaCluster, topic: str, count: int) -> list[bytes]:
    """Return the first `count` values of partition 0."""
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "t", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = consumer.consume(count, 30.0)
        return [message.value() or b"" for message in messages]
    finally:
        consumer.close()


def test_what_is_sent_is_there(kafka_broker: KafkaCluster) -> None:
    kafka_broker.create("first-light", 1)
    kafka_broker.send("first-light", [{"value": str(n).encode(), "partition": 0} for n in range(1_000)])
    assert values(kafka_broker, "first-light", 1_000) == [str(n).encode() for n in range(1_000)]


def test_a_topic_has_the_settings_that_were_asked_for(kafka_broker: KafkaCluster) -> None:
    kafka_broker.create("compacted", 2, cleanup_policy="compact")
    if not kafka_broker.is_real:  # a topic of the mock has no settings
        return
    admin = AdminClient({"bootstrap.servers": kafka_broker.address})
    resource = ConfigResource(ResourceType.TOPIC, "compacted")
    config = admin.describe_configs([resource])[resource].result(30.0)
    assert config["cleanup.policy"].value == "compact"
    assert len(admin.list_topics("compacted", timeout=30.0).topics["compacted"].partitions) == 2


@pytest.mark.slow
def test_records_outlive_a_crash(real_broker: RealKafka) -> None:  # the mock lives in this process
    with RealKafka() as kafka:
        kafka.create("kept", 1)
        kafka.send("kept", [{"value": b"one", "partition": 0}])
        kafka.kill()
        kafka.start()
        kafka.send("kept", [{"value": b"two", "partition": 0}])
        assert values(kafka, "kept", 2) == [b"one", b"two"]
