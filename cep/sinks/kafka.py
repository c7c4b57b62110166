"""Alerts → records of a Kafka topic: key = alert id, value = JSON, headers `rule` and `version`.

A micro-batch that comes again is sent again with the same keys. Its values are the same alerts, so a compacted topic,
or a reader that knows alerts by their id, holds each once. KafkaTransactionSink sends each batch id once, for readers
of committed records: the number of the last batch is committed in the same transaction, as an offset.
Tested by: tests/sinks/test_kafka.py, tests/sinks/test_contract.py
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from cep.base.errors import SinkError
from cep.base.limits import KAFKA_WAIT_MS_MAX
from cep.sinks.json_form import json_lines

_DEFAULTS = {
    "linger.ms": "5",
    "compression.type": "lz4",
    "log_level": "2",  # broker errors reach the caller in our exceptions
}
_SET_BY_US = {
    "enable.idempotence": "true",  # the client's own retries neither duplicate nor reorder
    "acks": "all",
}


class KafkaSink:
    """Writes to `topic`. `settings` are librdkafka's; those that keep alerts safe are set here.

    `wait_ms_max` bounds a write, from the first record to the last acknowledgement.
    """

    def __init__(
        self, servers: str, topic: str, settings: Mapping[str, str] | None = None, wait_ms_max: int = KAFKA_WAIT_MS_MAX
    ) -> None:
        self._servers = servers
        self._topic = topic
        self._wait_ms_max = wait_ms_max
        self._errors: list[str] = []
        configuration: dict[str, str] = {
            **_DEFAULTS,
            "message.timeout.ms": str(wait_ms_max),
            **(settings or {}),
            **_SET_BY_US,
            "bootstrap.servers": servers,
        }
        try:
            self._producer = Producer(configuration)
        except KafkaException as error:
            raise SinkError(f"the Kafka client does not accept its settings: {error}; mend them") from error

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        """Send the alerts and wait until the brokers have all of them. Raises: SinkError after `wait_ms_max`."""
        self._errors.clear()
        deadline_s = monotonic() + self._wait_ms_max / 1_000
        heads = alerts.select(["alert_id", "rule_id", "version"]).to_pylist()
        for head, value in zip(heads, json_lines(alerts), strict=True):
            headers: list[tuple[str, str | bytes | None]] = [
                ("rule", head["rule_id"].encode()),
                ("version", str(head["version"]).encode()),
            ]
            self._produce(head["alert_id"].encode(), value, headers, deadline_s)
        unsent_count = self._producer.flush(max(0.0, deadline_s - monotonic()))
        if self._errors or unsent_count:
            # What is still queued is not purged: should it arrive after all, it is the same alert under the same key.
            reason = self._errors[0] if self._errors else f"no answer within {self._wait_ms_max} ms"
            raise SinkError(
                f"{len(self._errors) + unsent_count} of {alerts.num_rows} alerts of batch {batch_id} did not reach "
                f"topic {self._topic} at {self._servers}: {reason}; check the brokers and start again: nothing is lost"
            )

    def close(self) -> None:
        """Let the client go; every write has waited for its own records, so none are left."""
        self._producer.flush(0)

    def _produce(
        self, key: bytes, value: bytes, headers: list[tuple[str, str | bytes | None]], deadline_s: float
    ) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, key, headers=headers, on_delivery=self._delivered)
            except BufferError:
                if monotonic() >= deadline_s:
                    self._errors.append(f"the client's queue stayed full for {self._wait_ms_max} ms")
                    return
                self._producer.poll(0.1)  # serves deliveries, which makes room
            except KafkaException as error:
                self._errors.append(str(error))
                return
            else:
                self._producer.poll(0)
                return

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._errors.append(str(error))


class KafkaTransactionSink:
    """Writes to `topic`, each batch in a transaction of its own, and none twice.

    `name` is the job's: the transactional id, by which a process that was thought dead is kept from writing, and the
    consumer group in which the last batch id stands, as an offset of the topic's partition 0. Batch ids only grow.
    """

    def __init__(
        self, servers: str, topic: str, name: str, settings: Mapping[str, str] | None = None,
        wait_ms_max: int = KAFKA_WAIT_MS_MAX,
    ) -> None:  # fmt: skip
        """Raises: SinkError if the brokers cannot be reached."""
        self._servers = servers
        self._topic = topic
        self._wait_ms_max = wait_ms_max
        self._marker = TopicPartition(topic, 0)
        configuration: dict[str, str] = {
            **_DEFAULTS,
            **(settings or {}),
            **_SET_BY_US,
            "bootstrap.servers": servers,
        }
        own = {"transactional.id": f"cep-{name}", "transaction.timeout.ms": str(wait_ms_max), "linger.ms": "0"}
        reading = {"group.id": f"cep-{name}", "enable.auto.commit": "false"}
        allowed = {n: v for n, v in configuration.items() if n not in (*_DEFAULTS, *_SET_BY_US) or n == "log_level"}
        try:
            self._producer = Producer({**configuration, **own, "message.timeout.ms": str(wait_ms_max)})
            self._consumer = Consumer({**allowed, **reading})
            self._producer.init_transactions(wait_ms_max / 1_000)
            found = self._consumer.committed([self._marker], timeout=wait_ms_max / 1_000)
        except KafkaException as error:
            raise SinkError(f"no transaction with {servers}: {error}; check the brokers and their settings") from error
        self._batch_id = max(found[0].offset, -1)

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        """Commit the alerts and the batch id together; nothing for a batch that was. Raises: SinkError."""
        if batch_id <= self._batch_id:
            return
        wait_s = self._wait_ms_max / 1_000
        try:
            self._producer.begin_transaction()
            for head, value in zip(
                alerts.select(["alert_id", "rule_id", "version"]).to_pylist(), json_lines(alerts), strict=True
            ):
                headers: list[tuple[str, str | bytes | None]] = [
                    ("rule", head["rule_id"].encode()),
                    ("version", str(head["version"]).encode()),
                ]
                self._produce(head["alert_id"].encode(), value, headers)
            self._producer.send_offsets_to_transaction(
                [TopicPartition(self._topic, 0, batch_id)], self._consumer.consumer_group_metadata(), wait_s
            )
            self._producer.commit_transaction(wait_s)
        except (KafkaException, BufferError) as error:
            raise SinkError(
                f"{alerts.num_rows} alerts of batch {batch_id} did not reach topic {self._topic} at {self._servers}: "
                f"{error}; check the brokers and start again: nothing is lost"
            ) from error
        self._batch_id = batch_id

    def close(self) -> None:
        """Let the clients go; a transaction that is open is aborted by the next writer of the name."""
        self._consumer.close()

    def _produce(self, key: bytes, value: bytes, headers: list[tuple[str, str | bytes | None]]) -> None:
        deadline_s = monotonic() + self._wait_ms_max / 1_000
        while True:
            try:
                self._producer.produce(self._topic, value, key, headers=headers)
            except BufferError:
                if monotonic() >= deadline_s:
                    raise
                self._producer.poll(0.1)  # serves deliveries, which makes room
            else:
                return
