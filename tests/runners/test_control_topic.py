"""Reading the control topic and waiting for a job's status, on a broker."""

import orjson
import pytest

from cep.base.errors import SourceError
from cep.model.rule import ControlRecord, topic_key
from cep.rulebook.kafka import StatusTopic, Topic
from cep.runners.control_topic import read_control_topic, read_status, wait_for_status
from cep.step.rules import rule_status
from tests.real_kafka import KafkaCluster
from tests.rulebook.records import new_book, retire, upsert


def test_records_come_in_their_order_and_bad_ones_are_counted(kafka_broker: KafkaCluster) -> None:
    kafka_broker.create("read-control", 1)
    topic = Topic(kafka_broker.address, "read-control")
    records: list[ControlRecord] = [upsert(1, "a"), upsert(1, "b"), upsert(2, "a"), retire(2, "b")]
    topic.send((topic_key(record).encode(), record.to_json()) for record in records)
    topic.send([(b"a", b"{"), (b"c", None)])
    places, unreadable_count = read_control_topic(topic)
    assert [place.record for place in places] == records
    assert [(place.partition, place.offset) for place in places] == [(0, n) for n in range(4)]
    assert unreadable_count == 1


def test_the_last_word_counts(kafka_broker: KafkaCluster) -> None:
    kafka_broker.create("read-status", 1)
    topic, book = StatusTopic(kafka_broker.address, "read-status"), new_book()
    assert read_status(topic) is None
    for version in (1, 2):
        book.apply(upsert(version), None)
        topic.publish(orjson.dumps(rule_status(book)))
    job_status = wait_for_status(topic, lambda status: status["epoch"] == 2, 30.0)
    assert job_status is not None
    assert job_status["last_versions"] == {"r": 2}
    assert wait_for_status(topic, lambda status: status["epoch"] == 3, 0.0) is None


def test_another_topic_is_told(kafka_broker: KafkaCluster) -> None:
    kafka_broker.create("no-status", 1)
    topic = StatusTopic(kafka_broker.address, "no-status")
    topic.publish(b'{"epoch": 1}')
    with pytest.raises(SourceError, match="holds no status of rules"):
        read_status(topic)
