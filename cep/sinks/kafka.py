"""Alerts, and what was set aside → records of a Kafka topic.

    alerts    key = alert id, value = JSON, headers `rule` and `version`
    letters   value = JSON, header `code`

Each micro-batch in a transaction of its own, so that readers of committed records see each alert once
(transactions/kafka.py); or at once, for a job that keeps no progress.
Tested by: tests/sinks/test_kafka.py, tests/sinks/test_contract.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import monotonic

import orjson
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cep.base.errors import SinkError
from cep.base.limits import KAFKA_WAIT_MS_MAX
from cep.sinks.base import Recalled
from cep.sinks.json_form import json_lines
from cep.sinks.transactions.kafka import DEFAULTS, SET_BY_US, KafkaTarget, Record, Transactions

_RECALL_MS_BEFORE = 3_600_000  # clocks differ; what was sent before does no harm


class KafkaTransactionSink:
    """Alerts into a topic, each once for readers of committed records."""

    def __init__(self, target: KafkaTarget) -> None:
        self._transactions = Transactions(target, "alerts")
        self._carried: list[Record] = []

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        """Bring the micro-batch's alerts, and what is carried, into Kafka unless they are there. Raises: SinkError."""
        self._transactions.write(_alert_records(alerts), batch_id, self._carried)
        self._carried = []

    def open(self) -> None:
        """End what an earlier process of this job has left open, so that readers see the end. Raises: SinkError."""
        self._transactions.open()

    def carry(self, topic: str, entries: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Have the transaction of the next write bring these (key, value) to another topic."""
        self._carried = [Record(key, value, (), topic) for key, value in entries]

    def bring(self, topic: str, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Bring these (key, value) to another topic, all or none. Raises: SinkError."""
        self._transactions.bring(Record(key, value, (), topic) for key, value in entries)

    def place(self) -> str:
        """As RecallingSink.place."""
        return self._transactions.place()

    def recall(self, after: int, since_ms: int, places: Sequence[str] = ()) -> Recalled:
        """As RecallingSink.recall: the committed records of the topic behind its place, or since an hour before.

        Raises: SinkError.
        """
        return Recalled(*self._transactions.recall(after, since_ms - _RECALL_MS_BEFORE, places))

    def close(self) -> None:
        """Let the clients go; every write has waited for its own records, so none are left."""
        self._transactions.close()


class KafkaSink:
    """Alerts into a topic at once, for a job that keeps no progress: what is sent again is there again.

    `settings` are librdkafka's. `wait_ms_max` bounds a write, from the first record to the last acknowledgement.
    """

    def __init__(
        self, servers: str, topic: str, settings: Mapping[str, str] | None = None, wait_ms_max: int = KAFKA_WAIT_MS_MAX
    ) -> None:
        self._servers = servers
        self._topic = topic
        self._wait_ms_max = wait_ms_max
        self._errors: list[str] = []
        configuration: dict[str, str] = {
            **DEFAULTS,
            "message.timeout.ms": str(wait_ms_max),
            **(settings or {}),
            **SET_BY_US,
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
        for record in _alert_records(alerts):
            self._produce(record, deadline_s)
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

    def _produce(self, record: Record, deadline_s: float) -> None:
        headers = list(record.headers)
        while True:
            try:
                self._producer.produce(
                    self._topic, record.value, record.key, headers=headers, on_delivery=self._delivered
                )
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


class KafkaLetters:
    """What was set aside into a topic, each letter once for readers of committed records."""

    def __init__(self, target: KafkaTarget) -> None:
        self._transactions = Transactions(target, "letters")

    def write(self, letters: Sequence[bytes], batch_id: int) -> None:
        """Bring the micro-batch's letters into the topic unless they are there. Raises: SinkError."""
        headers = [(("code", str(orjson.loads(letter)["code"]).encode()),) for letter in letters]
        self._transactions.write([Record(None, v, h) for v, h in zip(letters, headers, strict=True)], batch_id)

    def close(self) -> None:
        """Let the clients go."""
        self._transactions.close()


def _alert_records(alerts: pa.Table) -> list[Record]:
    keys, rules, versions = (
        alerts[name].cast(pa.string()).cast(pa.binary()).to_pylist() for name in ("alert_id", "rule_id", "version")
    )
    return [
        Record(key, value, (("rule", rule), ("version", version)))
        for key, rule, version, value in zip(keys, rules, versions, json_lines(alerts), strict=True)
    ]
