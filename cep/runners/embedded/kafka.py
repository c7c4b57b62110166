"""The lease of a job that has standbys: a consumer group on its changelog, which has one partition.

    partition given to this process   ─▶ claim: the group's offset + 1 is the number of this owner
    commits of that number            ─▶ each that is taken says that the lease is still here
    a process that dies or is stopped ─▶ its session ends, and the partition goes to another one
    an orderly end                    ─▶ the group is left, and another one has it at once

The brokers assign a partition to one member, and accept a commit only from a member whose session is valid. A process
that was stopped for a while therefore knows by its own clock that the lease may be gone, and by the number whether
another process had it. The new owner also fences the transactions of the previous one (sinks/kafka.py). No
process reads records, so an assignment stays when another standby joins (`cooperative-sticky`).
Tested by: tests/runners/embedded/test_run.py, tests/cli/test_outage.py
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from cep.base.errors import SinkError
from cep.base.kafka import reader_options, reason_of
from cep.base.limits import LEASE_CONFIRM_MS, LEASE_MS
from cep.base.process import Closing
from cep.sinks.base import TAKEN_OVER, TAKEN_OVER_HELP
from cep.sources.kafka import KafkaSettings

_POLL_S = 0.1
_ASK_S = 5.0
_VALID_S = (LEASE_MS - 2 * LEASE_CONFIRM_MS) / 1_000  # the brokers' clock began when the commit arrived, ours before
_REFUSALS = (
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.INCONSISTENT_GROUP_PROTOCOL,
)


class Lease(Closing):
    """The right to work on a job, for one process of several. A thread of its own keeps it."""

    def __init__(self, settings: KafkaSettings, topic: str, on_taken: Callable[[], None] = lambda: None) -> None:
        """Request the right to work on the job of `topic`. `on_taken` is called once another process has taken it."""
        self._topic = topic
        self._on_taken = on_taken
        self._is_assigned = False  # True while the brokers give this process the partition.
        self.is_elsewhere = False  # the brokers have answered, and another process has it
        self._number: int | None = None  # of this owner, if it has committed it; each owner has the next number
        self._is_taken = False  # True once another process has committed its number
        self._refusal: str | None = None  # the reason of the brokers, if they refuse
        self._asked_s = self._valid_until_s = float("-inf")  # of the lease, by time.monotonic()
        self._ended = threading.Event()
        fixed: dict[str, Any] = {
            "group.id": self.group,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": str(LEASE_MS),
            "heartbeat.interval.ms": str(LEASE_CONFIRM_MS),
            "socket.timeout.ms": str(LEASE_MS),
        }
        client_options = dict(settings.client_options)
        self._consumer = Consumer(reader_options(settings.bootstrap_servers, client_options, fixed=fixed))
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        self._thread = threading.Thread(target=self._work, name="cep-lease", daemon=True)
        self._thread.start()

    def is_here(self) -> bool:
        """Return True while no other process can have the lease; False while that is uncertain.

        Raises: SinkError once another process has had it after this one, or if the brokers refuse.
        """
        if self._is_taken:
            raise SinkError(
                f"{TAKEN_OVER} (the lease on {self._topic}): this one was silent for more than "
                f"{LEASE_MS / 1_000:.0f} s; {TAKEN_OVER_HELP}"
            )
        if self._refusal is not None:
            raise SinkError(f"the brokers refuse the lease on {self._topic}: {self._refusal}; allow group {self.group}")
        return time.monotonic() < self._valid_until_s

    @property
    def group(self) -> str:
        """The name of the consumer group."""
        return f"cep-{self._topic}-lease"

    def close(self) -> None:
        """Give the lease back, so that another process has it at once."""
        self._ended.set()
        self._thread.join()
        self._valid_until_s = float("-inf")
        with suppress(KafkaException, RuntimeError):
            self._consumer.close()

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                self._keep_lease()
            except KafkaException as error:  # unreachable brokers return; until then the lease runs out
                if error.args[0].code() in _REFUSALS:
                    self._refusal = reason_of(error)
                self._ended.wait(_POLL_S)

    def _keep_lease(self) -> None:
        """Poll the group once; request or confirm the lease. The owner with the highest committed number has it."""
        message = self._consumer.poll(_POLL_S)  # runs the callbacks below; the partition is paused and gives no records
        error = None if message is None else message.error()
        if error is not None and error.code() in _REFUSALS:
            self._refusal = error.str()
        now_s = time.monotonic()
        if now_s - self._asked_s < LEASE_CONFIRM_MS / 1_000:
            return  # it is not time to ask again
        if self._number is None and self._is_assigned:
            self._asked_s = now_s
            number = self._committed_number() + 1  # of this owner; the group's offset stores it
            if self._is_assigned:  # still: the call before may have run a callback that revokes it
                self._commit(number, now_s)
                self._number = number
        elif self._number is not None and not self._is_taken:
            self._asked_s = now_s
            self._confirm(self._number, now_s)

    def _confirm(self, number: int, now_s: float) -> None:
        """Commit the number of this owner; see first who has it, if another one may."""
        if now_s >= self._valid_until_s and self._committed_number() != number:
            self._is_taken = True
            self._on_taken()
        elif self._is_assigned:  # and no other process had the lease
            self._commit(number, now_s)

    def _committed_number(self) -> int:
        (partition,) = self._consumer.committed([TopicPartition(self._topic, 0)], timeout=_ASK_S)
        if partition.error is not None:
            raise KafkaException(partition.error)
        return max(partition.offset, 0)

    def _commit(self, number: int, now_s: float) -> None:
        self._consumer.commit(offsets=[TopicPartition(self._topic, 0, number)], asynchronous=False)
        self._valid_until_s = now_s + _VALID_S

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            partition.offset = OFFSET_END
        consumer.incremental_assign(partitions)
        consumer.pause(partitions)
        self._is_assigned = self._is_assigned or bool(partitions)
        self.is_elsewhere = not self._is_assigned

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._is_assigned, self._valid_until_s = False, float("-inf")
        consumer.incremental_unassign(partitions)
