"""Alerts and dead letters → records of a Kafka topic.

    alerts         key = alert id, value = JSON, headers `rule` and `version`
    dead letters   value = JSON, header `code`

Each micro-batch has a transaction of its own, so readers of committed records see each alert once
(transactions/kafka.py). A job that keeps no progress sends its alerts at once.
Tested by: tests/sinks/test_kafka.py, tests/sinks/test_contract.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import monotonic

import orjson
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cep.base.errors import SinkAwayError, SinkError
from cep.base.kafka import produce, reason_of, seconds_left, sink_reason, writer_options
from cep.base.limits import KAFKA_WAIT_MS_MAX
from cep.sinks.base import SINK_REASONS, Recalled
from cep.sinks.json_form import json_lines
from cep.sinks.transactions.kafka import KafkaTarget, Record, Transactions

_RECALL_MS_BEFORE = 3_600_000  # clocks differ; earlier records do no harm


class KafkaTransactionSink:
    """A sink that writes alerts to a topic in transactions: readers of committed records get each alert once."""

    def __init__(self, target: KafkaTarget) -> None:
        self._transactions = Transactions(target, "alerts")
        self._carried: list[Record] = []

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        """Write the alerts and the carried records to Kafka, unless they are already there. Raises: SinkError."""
        self._transactions.write(_alert_records(alerts), batch_id, self._carried)
        self._carried = []

    def open(self) -> None:
        """End the transaction that an earlier process left open, so that readers can continue. Raises: SinkError."""
        self._transactions.open()

    def carry(self, topic: str, entries: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Add these (key, value) of another topic to the transaction of the next write."""
        self._carried = [Record(key, value, (), topic) for key, value in entries]

    def bring(self, topic: str, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write these (key, value) to another topic in one transaction, all or none. Raises: SinkError."""
        self._transactions.bring(Record(key, value, (), topic) for key, value in entries)

    def place(self) -> str:
        """Return the topic's place, as of RecallingSink.place."""
        return self._transactions.place()

    def recall(self, after: int, since_ms: int, places: Sequence[str] = ()) -> Recalled:
        """Return the committed records after the topic's place, or since an hour before. Raises: SinkError."""
        return Recalled(*self._transactions.recall(after, since_ms - _RECALL_MS_BEFORE, places))

    def close(self) -> None:
        self._transactions.close()


class _AtOnce:
    """Records into a topic at once, for a job without stored progress: a repeated record is there twice."""

    def __init__(
        self, servers: str, topic: str, settings: Mapping[str, str] | None = None, wait_ms_max: int = KAFKA_WAIT_MS_MAX
    ) -> None:
        self._servers = servers
        self._topic = topic
        self._wait_ms_max = wait_ms_max
        self._errors: list[KafkaException] = []
        try:
            self._producer = Producer(writer_options(servers, settings or {}, wait_ms_max))
        except KafkaException as error:
            raise SinkError(f"the Kafka client does not accept its settings: {error}; mend them") from error

    def send(self, records: Sequence[Record], noun: str) -> None:
        """Send records and wait for the brokers. Raises: SinkAwayError if they do not take all within `wait_ms_max`."""
        self._errors.clear()
        deadline_s = monotonic() + self._wait_ms_max / 1_000
        for record in records:
            headers = list(record.headers)
            try:
                produce(
                    self._producer, self._topic, record.value, record.key, deadline_s,
                    headers=headers, on_delivery=self._delivered,
                )  # fmt: skip
            except KafkaException as error:
                self._errors.append(error)
            self._producer.poll(0)
        unsent_count = self._producer.flush(seconds_left(deadline_s))
        if self._errors or unsent_count:
            # Queued records are not purged: if they arrive after all, they are repeats of the same records.
            reason = reason_of(self._errors[0]) if self._errors else f"no answer within {self._wait_ms_max} ms"
            word = sink_reason(self._errors[0]) if self._errors else "no_answer"
            raise SinkAwayError(
                f"{len(self._errors) + unsent_count} of {len(records)} {noun} did not reach "
                f"topic {self._topic} at {self._servers}: {reason}; {SINK_REASONS[word]}: nothing is lost",
                word,
            )

    def close(self) -> None:
        """Close the client; every write has waited for its own records, so none are left."""
        self._producer.flush(0)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._errors.append(KafkaException(error))


class KafkaSink(_AtOnce):
    """Alerts into a topic at once."""

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        """Send the alerts and wait for the brokers. Raises: SinkError."""
        self.send(_alert_records(alerts), f"alerts of batch {batch_id}")


class KafkaDeadLettersAtOnce(_AtOnce):
    """Dead letters into a topic at once."""

    def write(self, dead_letters: Sequence[bytes], batch_id: int) -> None:
        """Send the dead letters and wait for the brokers. Raises: SinkError."""
        self.send(_letter_records(dead_letters), f"dead letters of batch {batch_id}")


class KafkaDeadLetters:
    """A sink that writes dead letters to a topic in transactions: readers of committed records get each letter once."""

    def __init__(self, target: KafkaTarget) -> None:
        self._transactions = Transactions(target, "letters")

    def write(self, dead_letters: Sequence[bytes], batch_id: int) -> None:
        """Write the dead letters of a micro-batch to the topic, unless they are already there. Raises: SinkError."""
        self._transactions.write(_letter_records(dead_letters), batch_id)

    def place(self) -> str:
        """Return an empty place: dead letters cannot be recalled by id."""
        return ""

    def recall(self, after: int, since_ms: int, places: Sequence[str] = ()) -> Recalled:
        """Return the number of the last micro-batch in the topic, so that no other one gets it. Raises: SinkError."""
        return Recalled(frozenset(), max(after, self._transactions.newest()))

    def close(self) -> None:
        self._transactions.close()


def _letter_records(dead_letters: Sequence[bytes]) -> list[Record]:
    codes = [str(orjson.loads(letter)["code"]).encode() for letter in dead_letters]
    return [Record(None, value, (("code", code),)) for value, code in zip(dead_letters, codes, strict=True)]


def _alert_records(alerts: pa.Table) -> list[Record]:
    keys, rules, versions = (
        alerts[name].cast(pa.string()).cast(pa.binary()).to_pylist() for name in ("alert_id", "rule_id", "version")
    )
    return [
        Record(key, value, (("rule", rule), ("version", version)))
        for key, rule, version, value in zip(keys, rules, versions, json_lines(alerts), strict=True)
    ]
