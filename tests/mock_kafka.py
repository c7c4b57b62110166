"""A Kafka cluster inside a process, for tests: librdkafka's mock brokers, reached over TCP by any other process.

It lives and dies with its process and keeps about five megabytes a partition, dropping the oldest records. As a
process, `python -m tests.mock_kafka` prints the bootstrap address on one line and serves until its input ends.
Tested by: tests/sources/test_kafka.py
"""

import sys
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import Producer

from cep.base.process import Closing

PARTITIONS = 4  # the mock gives a topic this many on first use; it cannot create topics otherwise
TIMEOUT_S = 10.0


class MockKafka(Closing):
    """Mock brokers and a producer for them. `address` is the bootstrap.servers of clients."""

    def __init__(self, brokers_count: int = 1) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": "mock:1",  # never resolved: the mock takes its place
                "test.mock.num.brokers": brokers_count,
                "linger.ms": 1,
                "queue.buffering.max.messages": 1_000_000,
                "log_level": 2,
            }
        )
        brokers = self._producer.list_topics(timeout=TIMEOUT_S).brokers.values()
        self.address = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def create(self, topic: str) -> None:
        """Create a topic with four partitions, empty."""
        self._producer.list_topics(topic, timeout=TIMEOUT_S)

    def send(self, topic: str, records: Iterable[Mapping[str, object]]) -> None:
        """Send records like `send_all`."""
        send_all(self._producer, topic, records, TIMEOUT_S)

    def close(self) -> None:
        self._producer.close()


def send_all(producer: Producer, topic: str, records: Iterable[Mapping[str, object]], timeout_s: float) -> None:
    """Produce records, given as keyword arguments of `Producer.produce`, and wait until all are stored.

    Errors: AssertionError if one was refused or is still unsent after that time.
    """
    refused: list[object] = []
    produce: Callable[..., None] = producer.produce
    for number, record in enumerate(records):
        produce(topic, on_delivery=lambda error, _: refused.append(error) if error else None, **record)
        if number % 10_000 == 0:
            producer.poll(0)
    unsent_count = producer.flush(timeout_s)
    assert not refused, refused[0]
    assert unsent_count == 0, f"{unsent_count} records unsent"


def main() -> None:
    """Serve until standard input ends, so that the cluster never outlives its starter."""
    with MockKafka() as kafka:
        print(kafka.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
