"""Rows of one micro-batch of the live job → sinks, letters, running totals. In the driver, one action a micro-batch.

The commit protocol, of micro-batch N. The code and the crash tests use the same numbers:

    1. Spark writes down the plan of N                                       CHECKPOINT/query/offsets/N
    2. tasks match; each partition of the state store keeps keyed state N    CHECKPOINT/query/state
    3. alerts are sent to the sinks, to all at the same time                 Kafka: into an open transaction, with N
    4. alerts are committed; if a sink does not answer in time, its alerts   Kafka: with the transaction; files: renamed
       go into a file, and the sink gets them later (sink_queue.py)          CHECKPOINT/waiting
    5. letters are written: dead records, refused control records, late events
    6. the totals are written                                                CHECKPOINT/progress.json
    7. Spark writes down that N is done                                      CHECKPOINT/query/commits/N

Killed after 1 and before 7, Spark does N again, from keyed state N - 1 and with the same records, so with the same
rows. Everything then ends in the same place: a Kafka topic knows that it holds N, a file of N is replaced by an equal
one, the totals know that they count N. Readers see nothing of N before 4, and nothing twice.

    CHECKPOINT/rulebooks/kept.json    {"since": 4, "swept": 120, "rulebooks": [[batch id, digest], …]}

All key groups change their rulebook in the same micro-batch, and Spark can go back by MICRO_BATCHES_RETAINED of them. A
rulebook that was replaced longer ago is therefore removed, and so are control records of micro-batches that have ended.
Tested by: tests/runners/spark/test_driver.py, tests/runners/spark/test_live_crash.py, tests/runners/spark/test_tasks.py
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame

from cep.base.audit import is_audit
from cep.base.errors import CepError, StateCorruptError
from cep.base.files import read_document
from cep.base.limits import MICRO_BATCHES_RETAINED, TIME_MS_MIN, UNDELIVERED_BYTES_MAX, UNDELIVERED_MAX
from cep.engine.alerts import NO_ALERTS, sorted_together
from cep.rulebook.kafka import StatusTopic
from cep.rulebook.saved import RulebookStore
from cep.runners.handover.beginning import read_beginning
from cep.runners.live_checkpoint import RULEBOOKS_FOLDER, read_progress, write_progress
from cep.runners.meanings import current_names, forget_open_runs, open_runs
from cep.runners.output import BatchReport, decode_alerts, encode_alerts
from cep.runners.patience import Newest, Patience
from cep.runners.rule_output import RuleOutput
from cep.runners.spark.packed import ALERTS, COUNTERS, DEAD, LATE, MARKS, REFUSED, STATUS, WATERMARK, by_kind
from cep.runners.spark.paused_partitions import PausedPartitions
from cep.runners.spark.sink_queue import SinkQueue, await_deliveries, reassign_alerts
from cep.sinks.base import DEAD_LETTERS, AlertSink, DeadLetterSink
from cep.sinks.durable import write_durably
from cep.step.dead_letters import bounded_equals, event_dead_letters, under_rules
from cep.step.event_time import times_from_json
from cep.step.marks import joined_marks, marks_from_bytes

_RETAINED_FILE = "kept.json"
_SINK_POLL_S = 0.05  # between two checks of sinks that are waited for
_DRAIN_S = 1.0  # for sinks, once a job that is to stop has ended its micro-batch


class StoppedBetween(Exception):  # noqa: N818 nothing went wrong
    """Ends a query between two micro-batches."""


class LiveOutput:
    """The driver's part of each micro-batch: it delivers alerts and dead letters through a queue for each sink, and
    keeps the totals in `directory`. `audit` gets a copy of audit lines. `patience` tries a sink again that is away.

    A job that continues from another one's state (beginning.py) also continues its numbers of micro-batches.
    """

    def __init__(
        self, directory: Path, dead_letter_sink: DeadLetterSink, sinks: Sequence[AlertSink],
        report: Callable[[BatchReport], None] | None = None,
        sending: Callable[[str, pa.Table], AbstractContextManager[Any]] = lambda *_: nullcontext(),
        audit: DeadLetterSink | None = None, patience: Patience | None = None, names: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Continue the output of a job from its files in `directory`. `sending` observes each delivery to a sink."""
        self._retries = patience or Patience(threading.Event())  # tries a delivery again
        self._directory = directory
        self._audit = audit
        names = tuple(names) or tuple(f"sink {number}" for number in range(len(sinks)))
        self._alert_queues = [
            SinkQueue(name, sink, encode_alerts, decode_alerts, self._retries, partial(sending, name))
            for name, sink in zip(names, sinks, strict=True)
        ]
        self._line_queue = SinkQueue(
            DEAD_LETTERS, dead_letter_sink, b"\n".join, bytes.splitlines, self._retries,
            lambda _: sending(DEAD_LETTERS, NO_ALERTS),  # it has lines, not alerts
        )  # fmt: skip
        self.abandoned = reassign_alerts(directory, [*names, DEAD_LETTERS])  # counts of alerts for removed sinks
        for queue in self._queues:
            queue.open(directory)
        self._report = report
        self.batch_id, self.totals = read_progress(directory)
        self.totals = current_names(self.totals)  # an earlier build had other names
        self.totals.update(self._retries.counted())  # 0 for each sink that may refuse: an alarm compares with it
        begins = read_beginning(directory)  # the state of an earlier job, which this one continues, or None
        self._first_number = 0 if begins is None else begins.first_number  # Spark's batch 0 has this number
        self._rulebooks = RetainedRulebooks(directory / RULEBOOKS_FOLDER, None if begins is None else begins.rulebook)
        self.failure: CepError | None = None
        self.rules: RuleOutput | None = None
        self._status: Newest | None = None  # publishes the newest status of the rules
        self.paused_partitions: PausedPartitions | None = None
        self._stopping = threading.Event()
        self.refused_batch_id: int | None = None  # the micro-batch that did not begin because the job stops

    @property
    def status(self) -> dict[str, Any]:
        """The status of the rules; empty before the job has them."""
        return {} if self.rules is None else self.rules.status

    def publisher(self, status: StatusTopic) -> Callable[[bytes], None]:
        """Return the function that publishes the status of the rules, from one thread over all starts of the query."""
        self._status = self._status or Newest(status.name, status.publish, self._retries)
        return self._status.offer

    def stop(self) -> None:
        """Let the micro-batch that runs come to its end and refuse the next one."""
        self._stopping.set()

    def take(self, frame: DataFrame, batch_id: int) -> None:
        """Deliver a micro-batch, for foreachBatch. Raises: SinkError, StoppedBetween; Spark does it again later."""
        if self._stopping.is_set():
            # Spark has planned it, but not recorded its end, so it is the first micro-batch after the next start.
            self.refused_batch_id = batch_id
            raise StoppedBetween
        try:
            started_s = perf_counter()
            rows = frame.toArrow()
            self.take_table(rows, self._first_number + batch_id, (perf_counter() - started_s) * 1_000)
        except CepError as error:
            self.failure = error  # for `serve`: Spark's own error has it only as a part of its text
            raise

    def take_table(self, rows: pa.Table, batch_id: int, matching_ms: float = 0.0) -> None:
        """Rows (kind, payload) of a micro-batch, in any order; `matching_ms` is how long they took to be here."""
        started_s = perf_counter()
        payloads = {kind: [payload.as_py() for payload in of_kind] for kind, of_kind in by_kind(rows).items()}
        counters: Counter[str] = Counter()
        for payload in payloads.get(COUNTERS, ()):
            counters.update(json.loads(payload))
        status: bytes | None = next(iter(payloads.get(STATUS, ())), None)
        reached = [json.loads(payload) for payload in payloads.get(WATERMARK, ())]  # of one key group
        ended_ms = max((values["ms"] for values in reached), default=TIME_MS_MIN)
        dead_letters = list(payloads.get(DEAD, ()))
        for payload in payloads.get(LATE, ()):
            dead_letters += event_dead_letters(json.loads(payload))
        dead_letters = list(bounded_equals(dead_letters, counters))
        alerts = sorted_together(list(map(decode_alerts, payloads.get(ALERTS, ()))))
        # Before 3: record the alerts that the rules hold back, and the status of the rules (rule_output.py).
        if self.rules is not None:
            runs = open_runs(self.totals + counters)
            marks = joined_marks(map(marks_from_bytes, payloads.get(MARKS, ())))
            alerts, suppressed = self.rules.take(alerts, status, batch_id, ended_ms, runs, marks)
            counters.update(suppressed)
            status_now = self.rules.status
            dead_letters = under_rules(dead_letters, status_now["epoch"], status_now.get("content_hash", ""))
        # 3. and 4. When all turns are over, a sink has the alerts, or a file has them for it.
        # In an order of its own: rows come as tasks finish. A refused control record has the rules that judged it.
        lines = sorted([*payloads.get(REFUSED, ()), *dead_letters])
        self._wait_for_room()
        for queue in self._alert_queues:
            queue.offer(alerts, batch_id)
        await_deliveries(self._alert_queues)
        sent_s = perf_counter()
        # 5. Write the letters.
        if self._audit is not None:
            self._audit.write([line for line in lines if is_audit(line)], batch_id)
        self._line_queue.offer(lines, batch_id)
        await_deliveries([self._line_queue])
        counters.update(self._retries.counted())
        counters.update(self._delivered())
        # 6. The totals.
        if batch_id > self.batch_id:
            self.batch_id = batch_id
            self.totals.update(counters)
            if status is not None and self.rules is not None:
                forget_open_runs(self.totals, self.rules.status)
            write_progress(self._directory, batch_id, self.totals, self.undelivered_count)
        if status is not None:  # also if the micro-batch is repeated: the job may have ended just before this line
            self._rulebooks.note_end(orjson.loads(status)["digest"], batch_id)
        if self.paused_partitions is not None:
            self.paused_partitions.update(times_from_json(reached[0]["partitions"]) if reached else {})
        if self._report is not None:
            watermark_ms = ended_ms if ended_ms > TIME_MS_MIN else None
            records_ms, sinks_ms = (perf_counter() - sent_s) * 1_000, (sent_s - started_s) * 1_000
            phases_ms = {"matching": matching_ms, "sinks": sinks_ms, "records": records_ms}
            self._report(BatchReport(batch_id, alerts, counters, self.totals, watermark_ms, phases_ms, lines))

    @property
    def _queues(self) -> list[SinkQueue]:
        return [*self._alert_queues, self._line_queue]

    def _delivered(self) -> Counter[str]:
        counts = {queue.name: queue.delivered() for queue in self._alert_queues}
        return Counter({f"alerts_delivered[{name}]": count for name, count in counts.items() if count})

    def _wait_for_room(self) -> None:
        """Wait while too many alerts wait for a sink, until the job is to stop. Raises: SinkError."""
        while not self._retries.stop.is_set():
            waiting = [size for queue in self._queues for size in queue.sizes.values()]
            count, bytes_count = (sum(size[part] for size in waiting) for part in (0, 1))
            if count <= UNDELIVERED_MAX and bytes_count <= UNDELIVERED_BYTES_MAX:
                return
            self.check()
            self._retries.stop.wait(_SINK_POLL_S)

    def check(self) -> None:
        """Raise the error of a sink that waiting does not mend. Raises: SinkError."""
        for queue in self._queues:
            if queue.error is not None:
                raise queue.error

    @property
    def undelivered_count(self) -> int:
        """The number of alerts and dead letters that some sink lacks."""
        by_batch: Counter[int] = Counter()
        for queue in self._alert_queues:
            for number, size in queue.sizes.items():
                by_batch[number] = max(by_batch[number], size[0])
        return by_batch.total() + sum(size[0] for size in self._line_queue.sizes.values())

    @property
    def backlogs(self) -> dict[str, tuple[int, int | None]]:
        """For each sink of alerts, how many wait for it, and since when the oldest does (ms UTC)."""
        sizes_of = {queue.name: queue.sizes.values() for queue in self._alert_queues}
        return {
            name: (sum(size[0] for size in sizes), min((int(size[2] * 1_000) for size in sizes), default=None))
            for name, sizes in sizes_of.items()
        }

    def drain(self, report_queues: Callable[[], None]) -> None:
        """Wait until all sinks and the status topic have everything; a job that must stop waits only _DRAIN_S.

        `report_queues` is called again and again in the meantime. Raises: SinkError."""
        deadline_s: float | None = None
        while any(queue.sizes for queue in self._queues) or not (self._status is None or self._status.settle(0.0)):
            self.check()
            report_queues()
            if deadline_s is None and self._retries.stop.is_set():
                deadline_s = monotonic() + _DRAIN_S
            if deadline_s is not None and monotonic() >= deadline_s:
                break
            self._retries.stop.wait(_SINK_POLL_S) if deadline_s is None else sleep(_SINK_POLL_S)  # set: no wait
        self.totals.update(self._retries.counted() + self._delivered())
        write_progress(self._directory, self.batch_id, self.totals, self.undelivered_count)

    def close(self) -> None:
        """Close the sinks and the letters, except sinks that still wait for an answer."""
        for queue in self._queues:
            queue.close()


class RetainedRulebooks:
    """The stored rulebooks of one job, in `directory`, with a file that lists the micro-batches in which they changed.
    `first` is the digest of the rulebook that the job has begun with; None if it began without."""

    def __init__(self, directory: Path, first: str | None = None) -> None:
        self._path = directory / _RETAINED_FILE
        self._store = RulebookStore(directory)
        self._starting_digest = first

    def note_end(self, digest: str, batch_id: int) -> int:
        """Note that a micro-batch has changed to the rulebook of this digest. From time to time, remove the rulebooks
        that Spark cannot need for a repeated micro-batch. Return the count of removed files. Raises: SinkError."""
        # `since`: the first micro-batch that was noted; `swept`: the one that last removed rulebooks.
        ledger: dict[str, Any] = {"since": batch_id, "swept": batch_id}
        if self._path.exists():
            ledger = self._read()
        earlier = [entry for entry in ledger.get("rulebooks", []) if entry[0] < batch_id]
        rulebooks = [*earlier, [batch_id, digest]]  # (the first micro-batch that ended with a rulebook, its digest)
        oldest_repeatable = batch_id - MICRO_BATCHES_RETAINED
        is_due = oldest_repeatable >= max(ledger["since"], ledger["swept"])  # the list has all that may be repeated
        if is_due:  # a rulebook is needed until the micro-batch that replaced it cannot be repeated any more
            replaced_in = [first_batch for first_batch, _ in rulebooks[1:]] + [batch_id]
            rulebooks = [entry for entry, end in zip(rulebooks, replaced_in, strict=True) if end > oldest_repeatable]
            ledger["swept"] = batch_id
        write_durably(self._path, orjson.dumps({**ledger, "rulebooks": rulebooks}))
        if not is_due:  # a repeated micro-batch may need any rulebook, also one from before the list begins
            return 0
        digests = {entry_digest for _, entry_digest in rulebooks}  # and the one with which new key groups begin:
        return self._store.prune(digests | ({self._starting_digest} if self._starting_digest else set()))

    def _read(self) -> dict[str, Any]:
        ledger = read_document(self._path)
        entries = ledger.get("rulebooks", [])
        numbers = [ledger.get("since"), ledger.get("swept")]
        is_right = isinstance(entries, list) and all(isinstance(entry, list) and len(entry) == 2 for entry in entries)
        if is_right:
            numbers += [entry[0] for entry in entries]
            is_right = all(isinstance(entry[1], str) for entry in entries)
        if not is_right or any(type(number) is not int for number in numbers):
            raise StateCorruptError(f"{self._path} does not list the rulebooks; restore it with the checkpoint")
        return ledger
