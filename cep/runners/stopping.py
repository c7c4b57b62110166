"""A stop request (SIGTERM, SIGINT) → a job that ends within five seconds, during any wait.

The job ends by itself between two micro-batches, and leaves alerts that a sink does not take to the next start. A wait
for another machine can last longer: a connection, a lock, a registry, an object store. Then a thread of this module
ends the process. That is as safe as `kill -9`: every commit is on the disk, and the next start repeats the work since
then.
Tested by: tests/cli/test_run.py, tests/cli/test_sinks.py
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from cep.base.errors import CepError, SinkAwayError, SourceAwayError, StoreAwayError
from cep.base.limits import STOP_MS_MAX

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_EXIT_OF_SIGNAL = 128  # as shells have it
_REPORT_S = 0.3  # for the last lines that another thread prints
_LAST_LINES_S = 0.2  # while Spark starts, a thread passes on what is printed (runners/spark/session.py)
_AWAY = (SourceAwayError, SinkAwayError, StoreAwayError)


@dataclass(slots=True)
class Stopping:
    """The stop request of a job, for as long as the block runs. `report` prints the job's last lines, once.

    `close_log` is called after them if the process ends at once, while other threads still run.

    Python runs handlers of signals in the main thread, once that is not inside a library: a client of Kafka or
    PostgreSQL may hold it for half a minute. The bytes of `signal.set_wakeup_fd` come at once, to a thread.
    """

    report: Callable[[], None] = lambda: None
    close_log: Callable[[], None] = lambda: None
    event: threading.Event = field(default_factory=threading.Event)
    _ended: threading.Event = field(default_factory=threading.Event)
    _end_lock: threading.Lock = field(default_factory=threading.Lock)
    _sockets: list[socket.socket] = field(default_factory=list)
    _replaced_fd: int = -1
    _is_asked: bool = False
    _is_heard: bool = False  # by the thread that reads numbers of signals
    _has_reported: bool = False
    _report_lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        self._sockets.extend(socket.socketpair())
        self._sockets[1].setblocking(False)
        self._replaced_fd = signal.set_wakeup_fd(self._sockets[1].fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._hear, name="cep-stop", daemon=True).start()
        self.listen()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with self._end_lock:  # a thread that is about to end the process has the last word
            self._ended.set()
        signal.set_wakeup_fd(self._replaced_fd)
        self._sockets[1].close()  # which ends the thread that reads the other one

    def tell(self) -> None:
        """Print the last lines of the job, unless they are printed."""
        if not self._report_lock.acquire(timeout=_REPORT_S):
            return  # the other thread waits for something itself
        try:
            if not self._has_reported:
                self.report()
                self._has_reported = True
        finally:
            self._report_lock.release()

    def ends(self, error: CepError) -> bool:
        """Return True if an error only says that another machine is away, and the job is asked to stop anyway."""
        return self._is_asked and isinstance(error, _AWAY)

    def listen(self) -> None:
        """Handle SIGINT and SIGTERM. Call it again after a library has set handlers of its own."""
        for number in _SIGNALS:
            signal.signal(number, lambda *_: self._ask())

    def _ask(self) -> None:
        self._is_asked = True
        self.event.set()

    def _hear(self) -> None:
        """Read the numbers of signals. The second one ends the process: a micro-batch is done again, and no more."""
        with self._sockets[0] as numbers:
            while number := numbers.recv(1):
                if number[0] not in _SIGNALS:
                    continue
                if self._is_heard:
                    os._exit(_EXIT_OF_SIGNAL + number[0])
                self._is_heard = True
                self._ask()
                threading.Thread(target=self._end_in_time, name="cep-stop-in-time", daemon=True).start()

    def _end_in_time(self) -> None:
        """Wait for the job to stop by itself. After STOP_MS_MAX, print its last lines and end the process."""
        if self._ended.wait(STOP_MS_MAX / 1_000):
            return
        with self._end_lock:
            if self._ended.is_set():
                return
            try:
                self.tell()
                self.close_log()
                sys.stdout.flush()
                sys.stderr.flush()
                time.sleep(_LAST_LINES_S)  # another thread may be printing them
            finally:
                os._exit(0)  # a stop on request is a success
