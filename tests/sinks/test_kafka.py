"""Alerts and letters to Kafka: each once for readers of committed records, however often a micro-batch comes."""

import json
import threading
import time
import unittest.mock
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cep.base.errors import SinkAwayError, SinkError
from cep.runners.patience import Patience
from cep.sinks.kafka import KafkaDeadLetters, KafkaSink, KafkaTarget, KafkaTransactionSink, Transactions
from tests.real_kafka import TIMEOUT_S, KafkaCluster, RealKafka, SecondBroker, new_topic
from tests.sinks.alerts import alert_table

QUIET_S = 1.0
NOBODY = KafkaTarget("127.0.0.1:1", "alerts", "job", wait_ms_max=300)


def consumed(kafka: KafkaCluster, topic: str, count: int) -> list[Message]:
    """Return the committed records of a topic: `count` of them in any order, and the records that come soon after."""
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "test", "log_level": 2})
    try:
        partitions = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        return consumer.consume(count, TIMEOUT_S) + consumer.consume(1_000, QUIET_S)
    finally:
        consumer.close()


def target(kafka: KafkaCluster, job_id: str = "job", **changes: Any) -> KafkaTarget:
    topic = new_topic(kafka, 3)
    return KafkaTarget(kafka.address, topic, job_id, **changes)


def keys(records: list[Message]) -> list[str]:
    return sorted(str(record.key(), "ascii") for record in records)  # type: ignore[arg-type]


def names(first: int, count: int) -> list[str]:
    return sorted(f"a{number}" for number in range(first, first + count))


def test_key_value_and_headers(kafka_broker: KafkaCluster) -> None:
    to = target(kafka_broker)
    sink = KafkaTransactionSink(to)
    sink.write(alert_table(7, 1), 0)
    sink.close()
    (record,) = consumed(kafka_broker, to.topic, 1)
    assert record.key() == b"a7"
    assert dict(record.headers() or []) == {"rule": b"card_testing", "version": b"2"}
    value = record.value()
    assert value is not None
    assert json.loads(value)["measures"] == {"probes": 3, "amount": "900.00"}


def test_a_micro_batch_that_comes_again_is_in_the_topic_once(real_broker: RealKafka) -> None:
    # the mock keeps no offsets of transactions
    """The same process does not send them again. The next one reads from the topic which alerts it has."""
    to = target(real_broker)
    first = KafkaTransactionSink(to)
    first.write(alert_table(0, 20), 3)
    first.write(alert_table(0, 20), 3)
    first.write(alert_table(0, 0), 4)
    second = KafkaTransactionSink(to)
    second.write(alert_table(0, 20), 3)
    second.write(alert_table(20, 5), 5)
    third = KafkaTransactionSink(to)
    third.write(alert_table(20, 5), 5)
    assert keys(consumed(real_broker, to.topic, 25)) == names(0, 25)


def test_another_job_may_write_to_the_same_topic(kafka_broker: KafkaCluster) -> None:
    to = target(kafka_broker)
    KafkaTransactionSink(to).write(alert_table(0, 3), 0)
    KafkaTransactionSink(KafkaTarget(to.servers, to.topic, "other job")).write(alert_table(3, 3), 0)
    assert keys(consumed(kafka_broker, to.topic, 6)) == names(0, 6)


def test_what_was_not_committed_is_aborted_by_the_next_process(
    real_broker: RealKafka, monkeypatch: pytest.MonkeyPatch
) -> None:  # the mock's transactions are not seen by others
    to = target(real_broker)
    dead = KafkaTransactionSink(to)
    monkeypatch.setattr(dead, "_commit", lambda _: None)  # as if it was killed after step 3
    dead.write(alert_table(0, 3), 0)
    sink = KafkaTransactionSink(to)
    sink.write(alert_table(0, 4), 0)
    assert keys(consumed(real_broker, to.topic, 4)) == names(0, 4)


def test_a_process_that_only_seemed_dead_is_fenced_off(real_broker: RealKafka) -> None:  # the mock does not fence
    to = target(real_broker)
    sleeper = KafkaTransactionSink(to)
    sleeper.write(alert_table(0, 2), 0)
    successor = KafkaTransactionSink(to)
    successor.write(alert_table(2, 2), 1)
    with pytest.raises(
        SinkError, match=r"micro-batch 1 did not reach .*has taken over this job .*one of the two stopped$"
    ):
        sleeper.write(alert_table(2, 2), 1)
    sleeper.close()
    assert keys(consumed(real_broker, to.topic, 4)) == names(0, 4)


@pytest.mark.parametrize("first", [2, 9])
def test_a_process_that_was_stopped_before_the_offset_fences_nobody_off(
    real_broker: RealKafka, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:  # the mock does not fence
    """The process that has taken over has sent the same micro-batch or another one, and continues."""
    to = target(real_broker)
    sleeper = KafkaTransactionSink(to)
    sleeper.write(alert_table(0, 2), 0)
    successors: list[KafkaTransactionSink] = []

    def overdue(*_: Any) -> None:
        if not successors:
            successors.append(KafkaTransactionSink(to))
            successors[0].write(alert_table(first, 2), 1)
        raise KafkaException(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE, retriable=True))

    sleeping = unittest.mock.Mock(wraps=sleeper._producer)
    sleeping.send_offsets_to_transaction.side_effect = overdue
    monkeypatch.setattr(sleeper, "_producer", sleeping)
    if first == 2:
        sleeper.write(alert_table(2, 2), 1)
    else:
        with pytest.raises(SinkError, match=r"another process has taken over this job: .*; nothing is lost"):
            sleeper.write(alert_table(2, 2), 1)
    successors[0].write(alert_table(20, 2), 2)
    with pytest.raises(SinkError, match=r"another process has taken over this job: .*; nothing is lost"):
        sleeper.write(alert_table(30, 2), 2)
    sleeper.close()
    successors[0].write(alert_table(22, 2), 3)
    assert keys(consumed(real_broker, to.topic, 8)) == sorted([*names(0, 2), *names(first, 2), *names(20, 4)])


@pytest.mark.parametrize(("batch_id", "first"), [(4, 0), (5, 9)])
def test_a_checkpoint_that_does_not_go_with_the_topic(real_broker: RealKafka, batch_id: int, first: int) -> None:
    # the mock keeps no offsets of transactions
    """The checkpoint is older, or has the same age and gives other alerts."""
    to = target(real_broker)
    KafkaTransactionSink(to).write(alert_table(0, 2), 5)
    with pytest.raises(
        SinkError, match=rf"holds micro-batch 5 of this job, and micro-batch {batch_id} comes with other"
    ):
        KafkaTransactionSink(to).write(alert_table(first, 2), batch_id)


@pytest.mark.slow
def test_the_broker_goes_away_before_the_offset_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this the client waits for ever (librdkafka 5456), as the crash suite has shown."""
    with RealKafka() as kafka:
        to = target(kafka, wait_ms_max=120_000)
        sink = KafkaTransactionSink(to)
        sink.write(alert_table(0, 2), 0)
        original, again = Transactions._send_offset, threading.Timer(1.0, kafka.start)

        def without_broker(*arguments: Any) -> None:
            monkeypatch.undo()
            kafka.kill()
            again.start()
            original(*arguments)

        monkeypatch.setattr(Transactions, "_send_offset", without_broker)
        sink.write(alert_table(2, 2), 1)
        again.join()
        sink.write(alert_table(2, 2), 1)
        sink.write(alert_table(4, 1), 2)
        sink.close()
        assert keys(consumed(kafka, to.topic, 5)) == names(0, 5)


@pytest.mark.slow
def test_a_topic_that_takes_nothing_for_a_while() -> None:
    with RealKafka() as kafka, SecondBroker(kafka) as second:  # the mock refuses no record
        _a_topic_that_takes_nothing(kafka, second)


def _a_topic_that_takes_nothing(kafka: RealKafka, second: SecondBroker) -> None:
    to = replace(target(kafka), topic="needs-both")
    second.create_on_both(to.topic)
    sink = KafkaTransactionSink(replace(to, wait_ms_max=1_500))
    patience = Patience(threading.Event(), pause_s=0.1)
    patience.keep_trying("alerts", lambda: sink.write(alert_table(0, 3), 0))
    second.stop()
    for _ in range(2):
        with pytest.raises(SinkAwayError, match="2 alerts of micro-batch 1 did not reach"):
            sink.write(alert_table(3, 2), 1)
    second.start()
    patience.keep_trying("alerts", lambda: sink.write(alert_table(3, 2), 1))
    assert keys(consumed(kafka, to.topic, 5)) == names(0, 5)
    # Another process has taken the job over in an outage. The first process must not fence it off when it comes back.
    second.wait_for_both(to.topic)
    second.stop()
    with pytest.raises(SinkAwayError):
        sink.write(alert_table(5, 1), 2)
    second.start()
    second.wait_for_both(to.topic)
    other = KafkaTransactionSink(to)
    other.write(alert_table(7, 1), 2)
    with pytest.raises(SinkError, match=r"another process has taken over this job: .*; nothing is lost"):
        patience.keep_trying("alerts", lambda: sink.write(alert_table(5, 1), 2))
    other.write(alert_table(8, 1), 3)
    assert keys(consumed(kafka, to.topic, 7)) == sorted([*names(0, 5), "a7", "a8"])


def test_letters(kafka_broker: KafkaCluster) -> None:
    to = target(kafka_broker)
    letters = [b'{"code": "late", "event_id": "e1"}', b'{"code": "unreadable", "record": "{"}']
    sink = KafkaDeadLetters(to)
    sink.write(letters, 0)
    sink.write([], 1)
    sink.close()
    records = consumed(kafka_broker, to.topic, 2)
    assert sorted(record.value() or b"" for record in records) == letters
    assert {dict(record.headers() or [])["code"] for record in records} == {b"late", b"unreadable"}


def test_more_alerts_than_the_queue_holds(kafka_broker: KafkaCluster) -> None:
    to = target(kafka_broker, settings={"queue.buffering.max.messages": "10"})
    KafkaTransactionSink(to).write(alert_table(0, 200), 0)
    assert keys(consumed(kafka_broker, to.topic, 200)) == names(0, 200)


def test_no_broker_is_an_error_within_the_bound() -> None:
    sink = KafkaTransactionSink(NOBODY)
    with pytest.raises(SinkError, match=r"2 alerts of micro-batch 5 did not reach topic alerts at 127\.0\.0\.1:1"):
        sink.write(alert_table(0, 2), 5)
    sink.close()


def test_at_once_and_at_least_once(kafka_broker: KafkaCluster) -> None:
    to = target(kafka_broker, settings={})
    for _ in range(2):
        sink = KafkaSink(to.servers, to.topic, {"queue.buffering.max.messages": "10"})
        sink.write(alert_table(0, 40), 3)
        sink.close()
    records = consumed(kafka_broker, to.topic, 80)
    assert len(records) == 80
    assert len({(record.key(), record.value()) for record in records}) == 40
    sink = KafkaSink("127.0.0.1:1", "alerts", wait_ms_max=300)
    with pytest.raises(SinkError, match=r"2 of 2 alerts of batch 5 did not reach topic alerts at 127\.0\.0\.1:1"):
        sink.write(alert_table(0, 2), 5)
    sink.close()


def test_wrong_settings_are_named_and_secrets_are_not() -> None:
    to = KafkaTarget("127.0.0.1:1", "alerts", "job", {"no.such.setting": "1", "sasl.password": "hunter2"})
    with pytest.raises(SinkError, match=r"no\.such\.setting") as caught:
        KafkaTransactionSink(to)
    assert "hunter2" not in str(caught.value) + repr(to)


def test_a_job_that_has_lost_its_memory_is_told_what_the_topic_got(real_broker: RealKafka) -> None:
    """The sink returns the alerts that were committed after a micro-batch, without aborted or older alerts."""
    to = target(real_broker)
    first = KafkaTransactionSink(to)
    first.write(alert_table(0, 20), 3)
    # The broker ends a transaction in each partition at different times; until then the place is an older one.
    assert keys(consumed(real_broker, to.topic, 20)) == names(0, 20)
    place = first.place()
    first.write(alert_table(20, 5), 4)
    first._producer.begin_transaction()
    first._producer.produce(to.topic, b"{}", b"never")
    first._producer.flush(TIMEOUT_S)
    now_ms = int(time.time() * 1_000)
    later = KafkaTransactionSink(to)  # ends the open transaction of the first one
    recalled = later.recall(3, now_ms)
    assert recalled.number == 4
    assert sorted(recalled.alert_ids) == names(0, 25), "of an hour before too, which does no harm"
    assert later.recall(4, now_ms).alert_ids == frozenset(), "nothing came behind it"
    assert later.recall(7, now_ms).number == 7
    wrong_ms = now_ms + 2 * 3_600_000
    assert later.recall(3, wrong_ms).alert_ids == frozenset(), "by a clock that was ahead"
    assert sorted(later.recall(3, wrong_ms, ['["other",[[0,5]]]', place]).alert_ids) == names(20, 5), "by the place"
    later.write(alert_table(25, 5), 9)
    assert keys(consumed(real_broker, to.topic, 30)) == names(0, 30)
    nobody = KafkaTransactionSink(NOBODY)
    with pytest.raises(SinkError, match="does not tell which alerts it has"):
        nobody.recall(0, now_ms)
