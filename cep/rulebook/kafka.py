"""Records of the control topic and of the status topic → Kafka. Sources do the reading.

All records go to partition 0, because control records have one order. Missing topics are created as compacted topics: a
new job needs only the last record of each key.
Tested by: tests/rulebook/test_publish.py
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic, sleep

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cep.base.errors import SinkAwayError, SinkError
from cep.base.kafka import admin_options, is_away, is_shown, produce, reason_of, seconds_left, writer_options
from cep.base.limits import CONTROL_RECORD_BYTES_MAX, KAFKA_WAIT_MS_MAX

STATUS_KEY = b"rules"
_NEXT_TRY_S = 0.2
_COMPACTED = {"cleanup.policy": "compact"}
_ROOM_BYTES = 65_536  # in addition to the record itself: its key and the overhead of the protocol
_DEFAULTS = {"linger.ms": "5", "message.max.bytes": str(CONTROL_RECORD_BYTES_MAX + _ROOM_BYTES)}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic whose records are all in partition 0. `client_options` go to librdkafka and are never printed."""

    servers: str
    name: str
    client_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def send(self, records: Iterable[tuple[bytes, bytes | None]], wait_ms_max: int = KAFKA_WAIT_MS_MAX) -> int:
        """Send (key, value) pairs in this order and wait until the brokers have all; a value None removes its key.

        Returns: the number sent. Raises: SinkAwayError after `wait_ms_max`, SinkError; some records may have arrived.
        """
        errors: list[KafkaException] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                errors.append(KafkaException(error))

        deadline_s = monotonic() + wait_ms_max / 1_000
        count = 0
        try:
            producer = Producer(writer_options(self.servers, dict(self.client_options), wait_ms_max, _DEFAULTS))
            for key, value in records:
                produce(producer, self.name, value, key, deadline_s, partition=0, on_delivery=delivered)
                producer.poll(0)
                count += 1
            unsent_count = producer.flush(seconds_left(deadline_s))
        except KafkaException as error:
            kind = SinkAwayError if is_away(error) else SinkError
            raise kind(self._failed(count, reason_of(error))) from error
        if errors or unsent_count:
            kind = SinkAwayError if all(map(is_away, errors)) else SinkError
            reason = reason_of(errors[0]) if errors else f"no answer within {wait_ms_max} ms"
            raise kind(self._failed(count, reason))
        return count

    def create(self, settings: Mapping[str, str] | None = None) -> bool:
        """Create the topic, compacted, if it is missing; return whether it was created. Raises: SinkError.

        `settings` are the topic's, by the broker's names. Brokers confirm a topic before they show it: waits for both.
        """
        began_s = monotonic()
        while True:  # a broker that starts again answers at once that it cannot
            try:
                return self._create(settings or {}, began_s)
            except SinkAwayError:
                if monotonic() - began_s >= KAFKA_WAIT_MS_MAX / 1_000:
                    raise
                sleep(_NEXT_TRY_S)

    def _create(self, settings: Mapping[str, str], began_s: float) -> bool:  # False: the topic is there already
        admin, is_new = AdminClient(admin_options(self.servers, dict(self.client_options))), True
        wait_s = max(_NEXT_TRY_S, began_s + KAFKA_WAIT_MS_MAX / 1_000 - monotonic())  # the time that is left
        try:
            if self.name in admin.list_topics(timeout=wait_s).topics:
                return False
            futures = admin.create_topics([NewTopic(self.name, 1, 1, config={**_COMPACTED, **settings})])
            futures[self.name].result(KAFKA_WAIT_MS_MAX / 1_000)
        except (KafkaException, TimeoutError) as error:
            if isinstance(error, KafkaException) and is_away(error):
                raise SinkAwayError(
                    f"Kafka at {self.servers} gave no answer within {monotonic() - began_s:.1f} s, asked for topic "
                    f"{self.name}: {reason_of(error)}; check the brokers and the network"
                ) from error
            if isinstance(error, TimeoutError) or error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise SinkError(
                    f"topic {self.name} at {self.servers} cannot be made: {error}; make it yourself"
                ) from error
            is_new = False  # another process has created it in the meantime
        if not is_shown(admin, self.name, KAFKA_WAIT_MS_MAX / 1_000):
            raise SinkError(f"topic {self.name} at {self.servers} is made, and no broker shows it; check the brokers")
        return is_new

    def _failed(self, count: int, reason: str) -> str:
        return (
            f"of {count} records for topic {self.name} at {self.servers} some did not arrive: {reason}; "
            "check the brokers and send them again: a record that is there twice counts once"
        )


class StatusTopic(Topic):
    """The topic with a job's status of its rules: one key, so that a compacted topic holds the latest."""

    def publish(self, status: bytes) -> None:
        """Say it. Raises: SinkError."""
        self.send([(STATUS_KEY, status)])
