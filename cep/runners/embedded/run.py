"""The embedded live job: sources → engine → commits → sinks, until it is stopped or its sources end.

    poll ─▶ decode ─▶ engine.step ─▶ alerts ─▶ at once to the sinks, or after the next commit (commit.py)

A micro-batch is all that arrived during the previous one. So a quiet job answers in milliseconds, and a busy one works
on many records at a time. A job that keeps up commits each micro-batch. In a job that lags, commits take at most a
third of its time, and a tenth if its micro-batches are large. Control records that exist when the job starts are
applied before its first event.
Tested by: tests/runners/embedded/test_run.py, tests/runners/embedded/test_future.py
"""

import gc
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from cep.base.errors import SinkAwayError, SourceAwayError, StateCorruptError
from cep.base.limits import STOP_DELIVERY_MS_MAX, TIME_MS_MAX, UNDELIVERED_BYTES_MAX, UNDELIVERED_MAX
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Stepped
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.queues import DirectQueues
from cep.runners.embedded.shares import THREADS_EVENTS_MIN
from cep.runners.output import BatchReport
from cep.sources.live.base import Chunk, decode_chunks
from cep.step.event_time import read_time
from cep.step.job import add_counts

_WAIT_S = 0.05  # for a first record; a control record waits as long, at most
_ANSWER_S = 5.0
# How long deliveries and checkpoints, which are threads, may keep the interpreter from a micro-batch at a time.
_SWITCH_S = 0.0005
# The time that a job with a lag works between two commits, as a multiple of the time that the last commit took; the
# same with large micro-batches.
_WORK_PER_COMMIT, _WORK_PER_COMMIT_LARGE = 2, 9
_CHANGED_BYTES_MAX = 64 << 20  # of pages that wait for a commit in memory
_UNSENT_BYTES_MAX = 64 << 20  # of changes that the changelog has not taken over; as with alerts
_ATTEMPT_BITS = 24
T = TypeVar("T")
RECORDS_MAX = 50_000  # of a micro-batch, by default
_NEVER = threading.Event()
_NO_TIMES = np.zeros(0, np.int64)


def clock_ms() -> int:
    """Return the clock of this machine (ms UTC)."""
    return int(time.time() * 1_000)


@dataclass(frozen=True, slots=True)
class Pace:
    """When a job commits and sends alerts, and how large its micro-batches are."""

    interval_ms: int = 0  # between two commits, at least
    sends_at_once: bool = False  # alerts do not wait for commits, and may come twice after a crash
    linger_ms: int = 0  # how long a micro-batch waits for more records
    records_max: int = RECORDS_MAX  # of one micro-batch


@dataclass(frozen=True, slots=True)
class Listener:
    """The observer of a runner: `report` is called after each micro-batch, `idle` without one."""

    report: Callable[[BatchReport], None] = lambda _: None
    idle: Callable[[], None] = lambda: None


_NO_LISTENER = Listener()


class Runner:
    """One process of a job. Everything is called from one thread, and `stop` may be set by any."""

    def __init__(
        self, engine: Engine, sources: Sources, outlets: Outlets, commits: Commits, pace: Pace,
        listener: Listener = _NO_LISTENER, clock: Callable[[], int] = clock_ms,
    ) -> None:  # fmt: skip
        """Prepare the loop. `clock` is called for each micro-batch."""
        self._engine = engine
        self._sources = sources
        self._outlets = outlets
        self._commits = commits
        self._pace = pace
        self._report = listener.report  # called after each micro-batch
        self._idle = listener.idle  # called if there is no input for one
        # After a restart, micro-batches have other records. They must not get the ids of earlier ones.
        self._batch_id_base = int(time.time()) << _ATTEMPT_BITS
        self._committed_s = time.monotonic()  # the time of the last commit
        self._commit_took_s = 0.0
        self._has_uncommitted = False
        self._was_batch_large = False  # True: the last micro-batch had THREADS_EVENTS_MIN events or more
        self._is_behind: dict[str, bool] = {}  # by partition: True if it has records that were not read
        self._clock = clock
        self._stop = _NEVER
        self._positions_before: dict[str, dict[str, int]] = {}  # the positions of the sources before the micro-batch
        if pace.sends_at_once:  # alerts do not wait for commits
            commits.deliveries.direct_queues = DirectQueues(outlets, commits.deliveries.count_delivered)
        self._watermark_check_ms = TIME_MS_MAX  # the clock at which the watermark may move though no event comes
        # Questions of other threads are answered between two micro-batches.
        self._questions: SimpleQueue[tuple[Callable[[Engine], Any], Future[Any]]] = SimpleQueue()

    def run(self, stop: threading.Event, *, until_end: bool = False) -> None:
        """Process micro-batches until `stop` is set or the source ends; then commit the rest.

        Once `stop` is set, sinks get a moment for the alerts that wait; the next start sends the others. `until_end`:
        also end after reading everything that exists. Raises: SourceError, SinkError, StateError.
        """
        try:
            self._run(stop, until_end)
        except StateCorruptError:
            self._commits.distrust()
            raise

    def _run(self, stop: threading.Event, until_end: bool) -> None:
        """Start, work and finish. If the job must stop anyway, errors of an unavailable sink or source are ignored."""
        has_started, self._stop = False, stop
        try:
            self.start()
            has_started = True
            self._work(stop, until_end)
            if not stop.is_set():
                self.finish()
        except SinkAwayError:  # a delivery that gave up because the job is to stop
            if not stop.is_set():
                raise
        except SourceAwayError:  # the last records are not matched: the next start reads them again
            if not stop.is_set():
                raise
            if self._sources.positions_before is None:  # None: a commit would count unmatched records as read
                return
        if stop.is_set() and has_started and not self._commits.deliveries.are_in_memory:  # a commit would lose those
            self._commits.leave(self._engine, self._sources, self._outlets, wait_s=STOP_DELIVERY_MS_MAX / 1_000)

    def _work(self, stop: threading.Event, until_end: bool) -> None:
        """Do micro-batches until `stop` is set, the sources end, or (`until_end`) all existing records are read."""
        is_end = False
        while not (stop.is_set() or is_end):
            if not self._outlets.may_send():  # another process may have the job
                self._idle()
                stop.wait(_WAIT_S)
                continue
            is_quiet = not self.cycle(_WAIT_S, stop)  # no record came
            is_read = until_end and is_quiet and not any(self._is_behind.values())
            is_end = is_read or self._sources.events.ended
        # The watermark may still wait for a partition. After the end it waits for none, so a last step moves it on.
        if is_end and (len(self._is_behind) > 1 or any(self._is_behind.values())):
            self._step([], (), is_end=True)

    def ask(self, question: Callable[[Engine], T]) -> T:
        """Ask the engine something between two micro-batches; to be called from another thread.

        Raises: the errors of the question; TimeoutError if the job is too busy, or has ended.
        """
        asked: Future[T] = Future()
        self._questions.put((question, asked))
        return asked.result(_ANSWER_S)

    def start(self) -> None:
        """Resume from the last commit, accept gaps (records that were deleted unread), and apply control records."""
        self._commits.resume(self._engine, self._sources, self._outlets)
        self._engine.keep_lanes(self._sources.events.behind())  # the job may have another source than before
        if gaps := self._sources.gaps():
            accepted = self._engine.accept_gaps(gaps, self._clock())
            add_counts(self._commits.totals, accepted.counters)
            self._queue_output(accepted)
            self._has_uncommitted = True
        while self._sources.control is not None:
            self._positions_before = self._sources.positions()  # counts if the step cannot be done
            controls = self._poll_controls(_WAIT_S)
            if controls:
                self._step([], controls)
            if self._sources.control.ended or not any(self._sources.control.behind().values()):
                break  # all control records that exist are applied
        self._idle()  # report where the job begins to read

    def cycle(self, wait_s: float, stop: threading.Event = _NEVER) -> bool:
        """Do one micro-batch if there is input, and finish or begin commits. Return True if there was work."""
        pace, sources = self._pace, self._sources
        while self._waits_for_sinks:
            self._commits.wait_for_delivery(_WAIT_S)
            self._idle()  # sinks may be away for hours without harm to the job
            self.commit(is_due=True)
            if stop.is_set():
                return False
        self._positions_before = sources.positions()
        controls = self._poll_controls(wait_s=0.0)
        chunks = sources.events.poll(pace.records_max, 0.0 if controls else wait_s)
        if chunks and pace.linger_ms and sum(map(len, chunks)) < pace.records_max:  # wait for more
            chunks += sources.events.poll(pace.records_max - sum(map(len, chunks)), pace.linger_ms / 1_000)
        has_work = bool(chunks or controls) or sources.events.behind() != self._is_behind  # this may move the watermark
        has_work = has_work or self._clock() >= self._watermark_check_ms
        if has_work:
            self._step(chunks, controls)
        else:
            self._idle()
        while not self._questions.empty():
            question, asked = self._questions.get()
            if asked.set_running_or_notify_cancel():  # the thread that asked still waits
                try:
                    asked.set_result(question(self._engine))
                except Exception as error:  # the thread that asked gets the error
                    asked.set_exception(error)
        self.commit()
        return has_work

    @property
    def _waits_for_sinks(self) -> bool:
        """True if so much waits that nothing more is read until the sinks have taken some."""
        waiting = self._commits.deliveries
        is_full = waiting.undelivered_count > UNDELIVERED_MAX or waiting.undelivered_bytes > UNDELIVERED_BYTES_MAX
        if waiting.are_in_memory:  # and no commit lets go of changed pages
            is_full = is_full or self._engine.changed_bytes > _CHANGED_BYTES_MAX
        return is_full or waiting.unsent_bytes > _UNSENT_BYTES_MAX

    def commit(self, *, is_due: bool = False) -> None:
        """Note deliveries to sinks that are over. If it is time or `is_due`, commit: save changes, start deliveries."""
        commits = self._commits
        commits.finish(wait=False)
        if commits.deliveries.are_in_memory:
            return  # a commit would lose alerts that wait in memory
        if not (self._has_uncommitted or commits.deliveries.is_waiting):
            commits.checkpoint_if_due(self._engine)  # copies the committed store to another place
            return
        since_commit_s = time.monotonic() - self._committed_s
        # A job that lags commits less often: after `factor` times a commit's duration, unless changes fill the memory.
        lags = any(self._is_behind.values()) and self._engine.changed_bytes < _CHANGED_BYTES_MAX
        factor = _WORK_PER_COMMIT_LARGE if self._was_batch_large else _WORK_PER_COMMIT
        is_early = since_commit_s * 1_000 < self._pace.interval_ms
        is_early = is_early or (lags and since_commit_s < factor * self._commit_took_s)
        if is_early and not is_due:  # not yet
            commits.checkpoint_if_due(self._engine)
            return
        began_s = time.monotonic()
        if commits.begin(self._engine, self._sources, self._outlets):
            self._has_uncommitted = False
            self._committed_s = time.monotonic()
            self._commit_took_s = self._committed_s - began_s

    def finish(self) -> None:
        """Commit and deliver everything. Events that wait for the watermark stay in the store."""
        while self._commits.deliveries.are_in_memory:
            self._commits.wait_for_delivery(_WAIT_S)
            self._commits.finish(wait=False)
            self._idle()
        self._commits.settle(self._engine, self._sources, self._outlets, self._idle)
        self._has_uncommitted = False

    def _poll_controls(self, wait_s: float) -> tuple[bytes, ...]:
        """Poll about as many control records as a micro-batch may have; wait for the first one."""
        control, values = self._sources.control, list[bytes]()
        while control is not None and len(values) < self._pace.records_max:
            chunks = control.poll(self._pace.records_max, 0.0 if values else wait_s)
            if not chunks:
                break
            values += [value for chunk in chunks for value in chunk.values if value]
        return tuple(values)

    def _step(self, chunks: list[Chunk], controls: tuple[bytes, ...], *, is_end: bool = False) -> None:
        """Decode the records of a micro-batch, match them, and note the duration of each phase."""
        decoding_s = time.monotonic()
        schema, sources = self._engine.job.schema, self._sources
        decoded = self._ask_until_answered(lambda: decode_chunks(schema, chunks, sources.decode, sources.mapping))
        matching_s = time.monotonic()
        # A heartbeat (control record) counts after all records that exist now, so the source must know their end.
        if any(b"heartbeat" in data for data in controls):
            self._ask_until_answered(sources.events.look)  # asks for the end of each partition
        is_behind = self._sources.events.behind()  # by partition: True if it has records that were not read
        now_ms, ahead_ms = self._clock(), self._engine.job.ahead_ms  # how far an event may be ahead of the clock
        times = {  # how far each partition was read
            partition: read_time(decoded.time_ms.get(partition, _NO_TIMES), now_ms, ahead_ms, is_behind=has_more)
            for partition, has_more in is_behind.items()
            if partition in decoded.time_ms or has_more != self._is_behind.get(partition)  # new events, or a new flag
        }
        stepped = self._engine.step(decoded.parts, controls, times, now_ms, is_end=is_end)
        matched_s = time.monotonic()
        self._watermark_check_ms = self._engine.next_look_ms(now_ms)
        self._is_behind = is_behind
        self._sources.events.hold(self._engine.too_far_ahead())  # pauses partitions until the others are read as far
        self._was_batch_large = sum(map(len, decoded.parts)) >= THREADS_EVENTS_MIN  # then commits are rarer
        add_counts(self._commits.totals, stepped.counters)
        self._queue_output(stepped)
        self._has_uncommitted = True
        phases_ms = {
            "decoding": (matching_s - decoding_s) * 1_000,
            "matching": (matched_s - matching_s) * 1_000,
            "commit": self._commit_took_s * 1_000,
        }
        commits, watermark_ms = self._commits, self._engine.watermark_ms
        outcome = stepped.alerts, stepped.counters, commits.totals, watermark_ms, phases_ms, stepped.dead_letters
        self._report(BatchReport(commits.batch_id, *outcome))
        commits.batch_id += 1

    def _ask_until_answered(self, ask: Callable[[], T]) -> T:
        """Repeat a request to brokers or a registry until it is answered, because the micro-batch needs the answer.

        In the meantime the records of the micro-batch count as unread, and earlier alerts are committed and delivered.
        Raises: SourceAwayError when the job must stop.
        """
        while True:
            try:
                answer = ask()
            except SourceAwayError:
                self._sources.positions_before = self._positions_before  # a commit stores these
                self._idle()  # reports that the job still waits
                if self._stop.wait(_WAIT_S):
                    raise
                self.commit()
            else:
                self._sources.positions_before = None  # the records count as read again
                return answer

    def _queue_output(self, stepped: Stepped) -> None:
        """Queue alerts and dead letters for the next commit, or send them now if they wait for no commit."""
        queues = self._commits.deliveries.direct_queues
        if queues is None:
            self._commits.deliveries.take(stepped)
        elif stepped.alerts.num_rows or stepped.dead_letters:
            queues.send(stepped.alerts, stepped.dead_letters, self._batch_id_base + self._commits.batch_id)


def shorten_pauses() -> None:
    """Set up this process for a job that is asked to answer in milliseconds; to be called once it has all its parts."""
    gc.freeze()  # the garbage collector need not look through the present objects again
    sys.setswitchinterval(_SWITCH_S)
