"""Records of the control topic and of the status topic → Kafka. Reading is for the sources.

Everything goes to partition 0: control records have one order, and a job that reads both topics would have none over
several partitions. Topics that are missing are made compacted: the last record of each key is all that a new job needs.
Tested by: tests/rulebook/test_kafka.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cep.base.errors import SinkError
from cep.base.limits import CONTROL_RECORD_BYTES_MAX, KAFKA_WAIT_MS_MAX

STATUS_KEY = b"rules"
_COMPACTED = {"cleanup.policy": "compact"}
_ROOM_BYTES = 65_536  # beside the record itself: its key and what the protocol adds


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic whose records are all in partition 0. `client_options` go to librdkafka and are never printed."""

    servers: str
    name: str
    client_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def send(self, records: Iterable[tuple[bytes, bytes | None]], wait_ms_max: int = KAFKA_WAIT_MS_MAX) -> int:
        """Produce (key, value) in this order and wait until the brokers have all; a value None forgets its key.

        Returns: how many. Raises: SinkError after `wait_ms_max`; some of the records may have arrived.
        """
        errors: list[str] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                errors.append(str(error))

        deadline_s = monotonic() + wait_ms_max / 1_000
        count = 0
        try:
            producer = Producer(
                {
                    "linger.ms": "5",
                    "compression.type": "lz4",
                    "log_level": "2",
                    "message.max.bytes": str(CONTROL_RECORD_BYTES_MAX + _ROOM_BYTES),
                    **dict(self.client_options),
                    "message.timeout.ms": str(wait_ms_max),
                    "enable.idempotence": "true",  # and with it, the order
                    "bootstrap.servers": self.servers,
                }
            )
            for key, value in records:
                _produce(producer, self.name, key, value, delivered, deadline_s)
                count += 1
            unsent_count = producer.flush(max(0.0, deadline_s - monotonic()))
        except (KafkaException, BufferError) as error:
            raise SinkError(self._failed(count, str(error))) from error
        if errors or unsent_count:
            raise SinkError(self._failed(count, errors[0] if errors else f"no answer within {wait_ms_max} ms"))
        return count

    def create(self, settings: Mapping[str, str] | None = None) -> bool:
        """Make the topic, compacted, if it is not there; returns whether it was made. Raises: SinkError.

        `settings`: the topic's, by the broker's names, beside that.
        """
        admin = AdminClient({**dict(self.client_options), "bootstrap.servers": self.servers, "log_level": 2})
        try:
            if self.name in admin.list_topics(timeout=KAFKA_WAIT_MS_MAX / 1_000).topics:
                return False
            made = admin.create_topics([NewTopic(self.name, 1, 1, config={**_COMPACTED, **(settings or {})})])
            made[self.name].result(KAFKA_WAIT_MS_MAX / 1_000)
        except (KafkaException, TimeoutError) as error:
            raise SinkError(f"topic {self.name} at {self.servers} cannot be made: {error}; make it yourself") from error
        return True

    def _failed(self, count: int, reason: str) -> str:
        return (
            f"of {count} records for topic {self.name} at {self.servers} some did not arrive: {reason}; "
            "check the brokers and send them again: a record that is there twice counts once"
        )


class StatusTopic(Topic):
    """Where a job says what its rules are: one key, so that a compacted topic holds the last word."""

    def publish(self, status: bytes) -> None:
        """Say it. Raises: SinkError."""
        self.send([(STATUS_KEY, status)])


def _produce(
    producer: Producer, topic: str, key: bytes, value: bytes | None, delivered: object, deadline_s: float
) -> None:
    while True:
        try:
            producer.produce(topic, value, key, partition=0, on_delivery=delivered)  # type: ignore[arg-type]
        except BufferError:
            if monotonic() >= deadline_s:
                raise
            producer.poll(0.1)  # serves deliveries, which makes room
        else:
            producer.poll(0)
            return
