"""A Kafka cluster inside this process, so that the demo needs none: librdkafka's mock brokers, reached over TCP.

It keeps about five megabytes a partition, so whoever sends must not run far ahead of whoever reads.
Tested by: tests/demo/test_demo.py
"""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Producer

from cep.base.process import Closing

_TIMEOUT_S = 20.0


class EmbeddedKafka(Closing):
    """The brokers and a producer for them. `address` is what clients take as bootstrap servers."""

    def __init__(self) -> None:
        settings: dict[str, str | int] = {
            "bootstrap.servers": "mock:1",  # never resolved: the mock takes its place
            "test.mock.num.brokers": 1,
            "linger.ms": 1,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 2,
        }
        self._producer = Producer(settings)
        brokers = self._producer.list_topics(timeout=_TIMEOUT_S).brokers.values()
        self.address = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def create(self, topic: str) -> None:
        """Bring a topic into being; the mock gives it four partitions."""
        self._producer.list_topics(topic, timeout=_TIMEOUT_S)

    def send(self, topic: str, records: Iterable[tuple[str, bytes]]) -> None:
        """Send records (key, value) and wait until all are stored. Raises: OSError if one is not."""
        refused: list[str] = []
        for key, value in records:
            self._producer.produce(
                topic, value, key.encode(), on_delivery=lambda error, _: refused.append(str(error)) if error else None
            )
        unsent_count = self._producer.flush(_TIMEOUT_S)
        if refused or unsent_count:
            raise OSError(f"topic {topic}: {refused[0] if refused else f'{unsent_count} records unsent'}")

    def close(self) -> None:
        """Stop the brokers."""
        self._producer.close()
