"""Options of Kafka clients: which source of an option wins."""

from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from cep.base import kafka as clients
from cep.sinks.base import SINK_REASONS


def test_what_the_job_says_wins_over_defaults_and_not_over_what_must_be() -> None:
    settings = {
        "check.crcs": "false",
        "enable.auto.commit": "true",
        "bootstrap.servers": "elsewhere",
        "sasl.password": "x",
    }
    options = clients.reader_options(
        "here:1", settings, {"fetch.wait.max.ms": "5"}, {"isolation.level": "read_committed"}
    )
    assert options["bootstrap.servers"] == "here:1"
    assert options["check.crcs"] == "false"
    assert options["sasl.password"] == "x"
    assert options["fetch.wait.max.ms"] == "5"
    assert options["isolation.level"] == "read_committed"
    assert options.items() >= clients.READER_FIXED.items()
    writer = clients.writer_options(
        "here:1", {"acks": "1", "linger.ms": "9"}, 7, {"linger.ms": "5", "message.max.bytes": "3"}
    )
    assert writer.items() >= clients.WRITER_FIXED.items()
    assert (writer["linger.ms"], writer["message.timeout.ms"], writer["message.max.bytes"]) == ("9", "7", "3")
    assert clients.admin_options("here:1", {"log_level": "6"}) == {"log_level": "6", "bootstrap.servers": "here:1"}


class FullProducer:
    """A producer whose queue has room after some calls of `poll`."""

    def __init__(self, polls_count: int) -> None:
        self.polls_count = polls_count
        self.records: list[Any] = []

    def produce(self, *record: Any, **more: Any) -> None:
        if self.polls_count > 0:
            raise BufferError
        self.records.append((record, more))

    def poll(self, _: float) -> None:
        self.polls_count -= 1


def test_a_full_queue_is_waited_for_until_the_deadline() -> None:
    producer: Any = FullProducer(3)
    clients.produce(producer, "topic", b"value", b"key", monotonic() + 60, partition=0)
    assert producer.records == [(("topic", b"value", b"key"), {"partition": 0})]
    with pytest.raises(KafkaException) as error:
        clients.produce(FullProducer(3), "topic", b"value", b"key", monotonic())  # type: ignore[arg-type]
    assert error.value.args[0].code() == KafkaError._QUEUE_FULL
    assert clients.reason_of(error.value)
    assert clients.reason_of(KafkaException("text")) == "text"


class SlowAdmin:
    """Brokers that show a new topic after some answers. None is a broker that does not answer."""

    def __init__(self, *answers: tuple[object, dict[int, object]] | None) -> None:
        self.answers = list(answers)

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        assert timeout > 0
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        error, partitions = answer
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error, partitions=partitions)})


def test_a_new_topic_is_waited_for() -> None:
    unknown = (KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), dict[int, object]())
    slow: Any = SlowAdmin(unknown, (None, {}), None, (None, {0: "there"}))
    assert clients.is_shown(slow, "new", 60)
    assert len(slow.answers) == 1
    never: Any = SlowAdmin(unknown)
    assert not clients.is_shown(never, "new", 0.05)


# Retriable codes of Kafka's protocol (kafka.apache.org/protocol, column "retriable") that the client has a name for.
RETRIABLE = [
    "UNKNOWN_TOPIC_OR_PART",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "REQUEST_TIMED_OUT",
    "REPLICA_NOT_AVAILABLE",
    "NETWORK_EXCEPTION",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "NOT_CONTROLLER",
    "CONCURRENT_TRANSACTIONS",
    "KAFKA_STORAGE_ERROR",
    "FETCH_SESSION_ID_NOT_FOUND",
    "INVALID_FETCH_SESSION_EPOCH",
    "LISTENER_NOT_FOUND",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "OFFSET_NOT_AVAILABLE",
    "PREFERRED_LEADER_NOT_AVAILABLE",
    "ELIGIBLE_LEADERS_NOT_AVAILABLE",
    "UNSTABLE_OFFSET_COMMIT",
    "THROTTLING_QUOTA_EXCEEDED",
    "UNKNOWN_TOPIC_ID",
    "INCONSISTENT_TOPIC_ID",
    "INVALID_MSG",
]
# These errors also pass by themselves, though the protocol does not say so: a broker restarts, a group or client
# changes.
PASSING = (
    "BROKER_NOT_AVAILABLE REBALANCE_IN_PROGRESS STALE_BROKER_EPOCH REBOOTSTRAP_REQUIRED TRANSACTION_COORDINATOR_FENCED"
)
OF_THE_CLIENT = [
    "_TIMED_OUT",
    "_MSG_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "_RESOLVE",
    "_QUEUE_FULL",
    "_WAIT_COORD",
    "_WAIT_CACHE",
    "_RETRY",
    "_IN_PROGRESS",
    "_PREV_IN_PROGRESS",
    "_DESTROY_BROKER",
    "_UNKNOWN_BROKER",
    "_NODE_UPDATE",
    "_INTR",
    "_ISR_INSUFF",
]
# A missing topic is more often an operator's mistake than a new topic; damaged records are reported separately.
REFUSED = {"UNKNOWN_TOPIC_OR_PART", "INVALID_MSG"}


def test_every_code_of_the_client_is_temporary_or_a_refusal() -> None:
    codes = {name: getattr(KafkaError, name) for name in dir(KafkaError) if name.strip("_").isupper()}
    assert len(codes) > 150
    temporary = {*RETRIABLE, *PASSING.split(), *OF_THE_CLIENT} - REFUSED
    assert {name for name, code in codes.items() if clients.is_temporary(KafkaError(code))} == temporary
    for code in codes.values():
        error = KafkaException(KafkaError(code))
        assert clients.is_away(error) == clients.is_temporary(error.args[0])
        assert (clients.sink_reason(error) == "no_answer") == clients.is_away(error)
        assert clients.sink_reason(error) in SINK_REASONS


def test_what_the_client_calls_retriable_is_temporary_and_what_is_fatal_is_not() -> None:
    assert clients.is_temporary(KafkaError(KafkaError.INVALID_TXN_STATE, retriable=True))
    assert not clients.is_temporary(KafkaError(KafkaError._TIMED_OUT, fatal=True))
