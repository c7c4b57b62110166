"""Alerts and dead letters → records of a Kafka topic, each once by a transaction, or at once.

    alerts         key = alert id, value = JSON, headers `rule` and `version`
    dead letters   value = JSON, header `code`

A job that keeps no progress sends its records at once. Otherwise a micro-batch has a transaction of its own, which also
moves an offset that no reader uses: group `cep-JOB`, partition 0 of the topic, offset = micro-batch + 1, with a digest
of the records. A repeated micro-batch finds its own number there and sends nothing. The numbers are those of the
protocol in runners/spark/live_output.py:

    3. begin, send the records, wait until the brokers have them, send the offset
    4. commit

If the process is killed before 4, the next process has the same transactional id, and the brokers abort the open
transaction of that id. A process that only seemed dead is fenced off in the same way: its commit is refused.

Brokers that do not answer in time give SinkAwayError. The next write makes new clients, which end the open transaction.
First it reads the offset: if it has moved on, another process has taken the job over, and this one ends.

The offset is kept for the brokers' `offsets.retention.minutes` after the last record (seven days). A job that was
killed between 4 and 7 and starts again after that time sends its last micro-batch once more, with the same alert ids.
Tested by: tests/sinks/test_kafka.py, tests/sinks/test_contract.py, tests/runners/spark/test_live_crash.py
"""

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

import orjson
import pyarrow as pa
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from cep.base import kafka as client
from cep.base.errors import SinkAwayError, SinkError
from cep.base.limits import KAFKA_WAIT_MS_MAX
from cep.sinks.base import SINK_REASONS, TAKEN_OVER, TAKEN_OVER_HELP, Recalled, sink_away
from cep.sinks.json_form import json_lines

_READING = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
_OPEN_MS_MORE = 10_000  # a transaction may stay open a little longer than its records are waited for
_FENCED_CODES = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)  # noqa: SLF001
_DIGEST_CHARS = 32
_COORDINATOR_S, _GRACE_S = 10.0, 1.0  # for the answer to an offset, of a broker that may have been started again
_ENDS_AGE_S = 5.0  # after which the end offsets are looked up again
_RECALL_RECORDS, _RECALL_WAIT_S = 1_000, 0.1
_RECALL_MS_BEFORE = 3_600_000  # clocks differ; earlier records do no harm


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    """A topic, and the job whose records go there. `settings` are librdkafka's, and secret: they are never printed."""

    servers: str
    topic: str
    job_id: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    wait_ms_max: int = KAFKA_WAIT_MS_MAX


class Record(NamedTuple):  # made in a third of the time of a dataclass, and there are many
    """A record to send. `topic` is set if it differs from the sink's."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, str | bytes | None], ...]
    topic: str | None = None


class _AgainError(Exception):
    """The transaction was aborted; another one may do."""


class Transactions:
    """Micro-batches of records into one topic, each once. Messages call the records by a `noun`."""

    def __init__(self, target: KafkaTarget, noun: str) -> None:
        """Connect. A transaction also commits batch id + 1 as a group's offset, so that no batch is written twice."""
        self._target = target
        self._noun = noun  # the name of the records in messages, such as "alerts"
        self._name = f"cep-{target.job_id}"
        self._partition = (target.topic, 0)  # of which the group commits an offset
        self._last_batch: tuple[int, str] = (-1, "")  # the last micro-batch in the topic, and its digest
        self._ends: dict[int, int] = {}  # the end offset of each partition, looked up between micro-batches
        self._ends_s = -_ENDS_AGE_S  # when they were looked up; at first, long ago
        self._knows_last_batch = False  # True once the number of the last micro-batch in the topic has been read
        self._has_written = False  # True once this process has written a micro-batch
        self._must_recover = False  # the brokers went away, so that the outcome of a request is unknown
        self._connect()

    def _connect(self) -> None:
        """Make new clients, whose `_open` ends open transactions of the same name."""
        target = self._target
        open_ms = {"transaction.timeout.ms": str(target.wait_ms_max + _OPEN_MS_MORE)}
        options = client.writer_options(target.servers, target.settings, target.wait_ms_max, open_ms)
        try:
            self._producer = Producer({**options, "transactional.id": f"{self._name}-{target.topic}"})
            self._consumer = Consumer({**options, "group.id": self._name, "enable.auto.commit": "false"})
        except KafkaException as error:
            raise SinkError(f"the Kafka client does not accept its settings: {error}; mend them") from error
        self._is_open = False

    def deliver(self, records: Sequence[Record], batch_id: int, carried: Sequence[Record] = ()) -> None:
        """Write the micro-batch and `carried` (records of another topic) in one transaction, unless they are there.

        The same transaction commits an offset of the job's consumer group: the batch id + 1, with a digest of the
        records. Raises: SinkError; SinkAwayError if brokers do not answer within `wait_ms_max`; then try again."""
        deadline_s = monotonic() + self._target.wait_ms_max / 1_000
        try:
            digest = _digest(records)
            while True:
                try:
                    if self._recover((batch_id, digest), deadline_s):
                        break  # it is in the topic: only the answer to its commit was lost
                    self._open(deadline_s)
                    if not (records or carried) or self._is_there(batch_id, digest):
                        return  # all is written already, or the batch is empty
                    self._send([*records, *carried], TopicPartition(*self._partition, batch_id + 1, digest), deadline_s)
                    self._commit(deadline_s)
                    break
                except _AgainError as error:  # aborted; a new transaction may succeed
                    if monotonic() >= deadline_s:
                        self._must_recover = True
                        raise SinkAwayError(self._failed(records, batch_id, str(error), "no_answer")) from error
        except KafkaException as error:
            if _is_fenced(error):
                raise SinkError(self._failed(records, batch_id, _reason(error))) from error
            self._must_recover = True
            reason = client.sink_reason(error)
            raise SinkAwayError(self._failed(records, batch_id, _reason(error), reason), reason) from error
        self._last_batch = (batch_id, digest)
        self._has_written = True

    def _recover(self, batch: tuple[int, str], deadline_s: float) -> bool:
        """After an outage, return True if the micro-batch to write (id, digest) is in the topic. Otherwise make new
        clients. The check comes first, because new clients would end the transactions of a process that took over.

        Each transaction commits an offset of the job's group: the batch id + 1, with the digest as metadata. Raises:
        SinkError if another process has committed a later one, so that it has taken over the job; KafkaException."""
        if not self._must_recover:
            return False
        target = self._target
        # Open transactions must not block this reader.
        fixed = {"group.id": self._name, "isolation.level": "read_uncommitted"}
        consumer = Consumer(client.reader_options(target.servers, target.settings, fixed=fixed))
        timeout_s = client.seconds_left(deadline_s)
        try:
            (committed,) = consumer.committed([TopicPartition(*self._partition)], timeout=timeout_s)
        finally:
            consumer.close()
        if committed.error is not None:
            raise KafkaException(committed.error)
        committed_id, committed_digest = committed.offset - 1, committed.metadata or ""
        if (committed_id, committed_digest) == batch:
            return True
        if committed_id > self._last_batch[0] and self._knows_last_batch:  # later than all that this one knows
            raise self._taken_over(committed_id)  # by the process that wrote it
        self._connect()
        self._must_recover = False
        return False

    def _taken_over(self, batch_id: int) -> SinkError:
        return SinkError(
            f"{TAKEN_OVER}: topic {self._target.topic} at {self._target.servers} has its micro-batch {batch_id}; "
            f"{TAKEN_OVER_HELP}"
        )

    def open(self) -> None:
        """End a transaction that an earlier process left open. Raises: SinkError after `wait_ms_max`."""
        try:
            self._open(monotonic() + self._target.wait_ms_max / 1_000)
        except KafkaException as error:
            raise _kind(error)(self._failed([], -1, _reason(error))) from error

    def write_alone(self, topic: str, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write these (key, value) to a topic in a transaction of their own. Raises: SinkError after `wait_ms_max`."""
        deadline_s = monotonic() + self._target.wait_ms_max / 1_000
        try:
            self._open(deadline_s)
            self._send((Record(key, value, (), topic) for key, value in entries), None, deadline_s)
            self._commit(deadline_s)
        except (KafkaException, _AgainError) as error:
            reason = _reason(error) if isinstance(error, KafkaException) else str(error)
            raise _kind(error)(
                f"what a job has kept so far was not brought to {self._target.servers} in one transaction: {reason}; "
                "check the brokers and start again"
            ) from error

    def recall(self, after: int, since_ms: int, places: Sequence[str] = ()) -> Recalled:
        """Return the ids of alerts of micro-batches after `after`, which a restarted job must not send again, and the
        number of the last micro-batch. The topic is read from the offsets in `places` (see `place`), or from an
        hour before `since_ms`, so ids of earlier alerts may be among them. Raises: SinkError."""
        deadline_s = monotonic() + self._target.wait_ms_max / 1_000
        try:
            self._open(deadline_s)
            number, _batch_digest = self._last_batch
            earliest_ms = since_ms - _RECALL_MS_BEFORE
            keys = frozenset(self._record_keys(earliest_ms, places, deadline_s)) if number > after else frozenset[str]()
        except KafkaException as error:
            raise _kind(error)(
                f"topic {self._target.topic} at {self._target.servers} does not tell which {self._noun} it has: "
                f"{_reason(error)}; check the brokers and start again: nothing is lost"
            ) from error
        return Recalled(keys, max(number, after))

    def place(self) -> str:
        """Return the topic and for each partition an offset, a few seconds old, before all that will be written."""
        if monotonic() - self._ends_s > _ENDS_AGE_S:
            with suppress(KafkaException):  # the one before is as good, and further from the end
                self._look_up_ends(monotonic() + _COORDINATOR_S)
        return orjson.dumps([self._target.topic, sorted(self._ends.items())]).decode()

    def _look_up_ends(self, deadline_s: float) -> None:
        topic = self._target.topic
        partitions = self._consumer.list_topics(topic, client.seconds_left(deadline_s)).topics[topic].partitions
        end_requests = [TopicPartition(topic, partition, OFFSET_END) for partition in partitions]
        ends = self._consumer.offsets_for_times(end_requests, client.seconds_left(deadline_s)) if end_requests else []
        self._ends, self._ends_s = {end.partition: end.offset for end in ends if end.error is None}, monotonic()

    def _record_keys(self, since_ms: int, places: Sequence[str], deadline_s: float) -> Iterator[str]:
        """Yield the keys (alert ids) of the topic's records up to its present end: from the offsets in `places` (which
        `place` returned before the records were written), or without them since a time."""
        topic, fixed = self._target.topic, {**_READING, "group.id": self._name}
        consumer = Consumer(client.reader_options(self._target.servers, self._target.settings, fixed=fixed))
        try:
            partitions = consumer.list_topics(topic, client.seconds_left(deadline_s)).topics[topic].partitions
            starts = {name: dict(offsets) for name, offsets in map(orjson.loads, places)}.get(topic)
            if starts is None:
                start_times = [TopicPartition(topic, partition, since_ms) for partition in partitions]
                consumer.assign(consumer.offsets_for_times(start_times, client.seconds_left(deadline_s)))
            else:  # a partition that the topic got later is read from its start
                consumer.assign([TopicPartition(topic, p, starts.get(p, OFFSET_BEGINNING)) for p in partitions])
            unread = set(partitions)
            while unread:
                for message in consumer.consume(_RECALL_RECORDS, _RECALL_WAIT_S):
                    error, key = message.error(), message.key()
                    if error is None and isinstance(key, bytes):
                        yield key.decode()
                    elif error is not None and error.code() == client.END_CODE:
                        unread.discard(message.partition() or 0)
                    elif error is not None:
                        raise KafkaException(error)
                if monotonic() > deadline_s:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
        finally:
            consumer.close()

    def close(self) -> None:
        self._consumer.close()  # and a transaction that is open is aborted by the next process of the job

    def _open(self, deadline_s: float) -> None:
        """End the transaction that an earlier process of this job left open, and read which micro-batch is the last one
        in the topic: the committed offset of the job's group is the batch id + 1, with the digest as metadata."""
        if self._is_open:
            return
        self._producer.init_transactions(client.seconds_left(deadline_s))
        (committed,) = self._consumer.committed(
            [TopicPartition(*self._partition)], timeout=client.seconds_left(deadline_s)
        )
        if committed.error is not None:
            raise KafkaException(committed.error)
        if committed.offset >= 0:  # the job has written to the topic before
            self._last_batch = (committed.offset - 1, committed.metadata or "")
        self._is_open = self._knows_last_batch = True

    def _is_there(self, batch_id: int, digest: str) -> bool:
        """Return True if the micro-batch is already in the topic. Raises: SinkError if its number has other records."""
        last_id, _last_digest = self._last_batch
        if batch_id > last_id:
            return False
        if (batch_id, digest) != self._last_batch:
            if self._has_written:  # this process was in order before, so another one has written since
                raise self._taken_over(last_id)
            raise SinkError(
                f"topic {self._target.topic} already holds micro-batch {last_id} of this job, and micro-batch "
                f"{batch_id} comes with other {self._noun}: the checkpoint directory is older than the topic; "
                "restore the one that goes with it, or begin a new job with a new checkpoint directory"
            )
        return True

    # Step 3 of the protocol. A record that does not reach the brokers makes the transaction one that must be aborted.
    def _send(self, records: Iterable[Record], batch_offset: TopicPartition | None, deadline_s: float) -> None:
        """Send records in a new transaction; the caller commits it. `batch_offset`: the offset of the job's group that
        is committed with it: the micro-batch's number + 1; None for records without a micro-batch."""
        self._producer.begin_transaction()
        try:
            for record in records:
                topic = record.topic or self._target.topic
                client.produce(
                    self._producer, topic, record.value, record.key, deadline_s, headers=list(record.headers)
                )
            self._producer.flush(client.seconds_left(deadline_s))
            if batch_offset is not None:
                self._send_offset(batch_offset, deadline_s)
        except KafkaException as error:
            self._abort(error, deadline_s)
            raise

    def _send_offset(self, batch_offset: TopicPartition, deadline_s: float) -> None:
        """Add the micro-batch's number to the transaction, as an offset that is committed together with the records.

        The client may wait for ever for a coordinator that went away and came back, in spite of its time-out
        (https://github.com/confluentinc/librdkafka/issues/5456). The call therefore has a thread. An overdue call is
        given up together with its clients. Raises: _AgainError then."""
        producer, group = self._producer, self._consumer.consumer_group_metadata()
        wait_s = min(_COORDINATOR_S, client.seconds_left(deadline_s))
        answer: Future[None] = Future()

        def send() -> None:
            try:
                producer.send_offsets_to_transaction([batch_offset], group, wait_s)
            except KafkaException as error:
                answer.set_exception(error)
            else:
                answer.set_result(None)

        threading.Thread(target=send, name="cep-kafka-offset", daemon=True).start()
        try:
            answer.result(wait_s + _GRACE_S)
        except TimeoutError as error:
            self._must_recover = True
            raise _AgainError("the group's coordinator gave no answer") from error
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            self._must_recover = True
            raise _AgainError(error.args[0].str()) from error

    # Step 4.
    def _commit(self, deadline_s: float) -> None:
        while True:
            try:
                self._producer.commit_transaction(client.seconds_left(deadline_s))
            except KafkaException as error:
                if error.args[0].retriable() and monotonic() < deadline_s:
                    continue
                self._abort(error, deadline_s)
                raise
            return

    def _abort(self, error: KafkaException, deadline_s: float) -> None:
        """Abort the transaction where the failure asks for it. Raises: _AgainError if a new one may do at once."""
        if error.args[0].txn_requires_abort():
            self._producer.abort_transaction(client.seconds_left(deadline_s))
            if client.is_away(error):
                raise _AgainError(error.args[0].str()) from error

    def _failed(self, records: Sequence[Record], batch_id: int, error_text: str, reason: str | None = None) -> str:
        """Return the message; `reason` is a word of SINK_REASONS, None if `error_text` names the next step."""
        failure = (
            f"{len(records)} {self._noun} of micro-batch {batch_id} did not reach topic {self._target.topic} "
            f"at {self._target.servers}: {error_text}"
        )
        return failure if reason is None else f"{failure}; {SINK_REASONS[reason]}: nothing is lost"


class KafkaTransactionSink(Transactions):
    """A sink that writes alerts to a topic in transactions: readers of committed records get each alert once. Records
    of the job's state, for another topic, may be carried: they are committed together with the alerts or not at all."""

    def __init__(self, target: KafkaTarget) -> None:
        super().__init__(target, "alerts")
        self._carried: list[Record] = []

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        """Write the alerts and the carried records to Kafka, unless they are already there. Raises: SinkError."""
        self.deliver(_alert_records(alerts), batch_id, self._carried)
        self._carried = []

    def add_to_next_write(self, topic: str, entries: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Add these (key, value) of another topic to the transaction of the next write."""
        self._carried = [Record(key, value, (), topic) for key, value in entries]


class KafkaDeadLetters(Transactions):
    """A sink that writes dead letters to a topic in transactions: readers of committed records get each letter once."""

    def __init__(self, target: KafkaTarget) -> None:
        super().__init__(target, "letters")

    def write(self, dead_letters: Sequence[bytes], batch_id: int) -> None:
        """Write the dead letters of a micro-batch to the topic, unless they are already there. Raises: SinkError."""
        self.deliver(_letter_records(dead_letters), batch_id)

    def place(self) -> str:
        """Return an empty text: `recall` reads no records, because dead letters lack ids."""
        return ""

    def recall(self, after: int, since_ms: int, places: Sequence[str] = ()) -> Recalled:
        """Return only the number of the last micro-batch in the topic, so that no other gets it. Raises: SinkError."""
        self.open()
        number, _batch_digest = self._last_batch
        return Recalled(frozenset(), max(after, number))


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
            self._producer = Producer(client.writer_options(servers, settings or {}, wait_ms_max))
        except KafkaException as error:
            raise SinkError(f"the Kafka client does not accept its settings: {error}; mend them") from error

    def send(self, records: Sequence[Record], noun: str) -> None:
        """Send records and wait for the brokers. Raises: SinkAwayError if they do not take all within `wait_ms_max`."""
        self._errors.clear()
        deadline_s = monotonic() + self._wait_ms_max / 1_000
        for record in records:
            headers = list(record.headers)
            try:
                client.produce(
                    self._producer, self._topic, record.value, record.key, deadline_s,
                    headers=headers, on_delivery=self._delivered,
                )  # fmt: skip
            except KafkaException as error:
                self._errors.append(error)
            self._producer.poll(0)
        unsent_count = self._producer.flush(client.seconds_left(deadline_s))
        if self._errors or unsent_count:
            # Queued records are not purged: if they arrive after all, they are repeats of the same records.
            reason = client.reason_of(self._errors[0]) if self._errors else f"no answer within {self._wait_ms_max} ms"
            word = client.sink_reason(self._errors[0]) if self._errors else "no_answer"
            count = f"{len(self._errors) + unsent_count} of {len(records)} {noun}"
            raise sink_away(count, f"topic {self._topic} at {self._servers}", reason, word)

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


def _kind(error: Exception) -> type[SinkError]:
    return SinkAwayError if not isinstance(error, KafkaException) or client.is_away(error) else SinkError


def _digest(records: Sequence[Record]) -> str:
    """Return a digest that is equal for the same records in the same order."""
    whole = hashlib.sha256()
    for record in records:
        whole.update(hashlib.sha256(record.value or b"").digest())
    return whole.hexdigest()[:_DIGEST_CHARS]


def _is_fenced(error: KafkaException) -> bool:
    cause = error.args[0]
    return isinstance(cause, KafkaError) and cause.code() in _FENCED_CODES


def _reason(error: KafkaException) -> str:
    cause = error.args[0]
    if _is_fenced(error):
        return f"{TAKEN_OVER} ({cause.str()}); {TAKEN_OVER_HELP}"
    return client.reason_of(error)
