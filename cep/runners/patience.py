"""A write to a sink that does not take it now → tries of the same write, until the sink takes it or the job is to stop.

A sink makes one try and raises SinkAwayError with a word for the reason (sinks/base.py). A stop request never waits
for the pause of a sink, and one place decides how often both runners ask a sink.
Tested by: tests/runners/embedded/test_outage.py, tests/sinks/test_kafka.py
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from cep.base.errors import SinkAwayError, SinkError
from cep.base.limits import KAFKA_WAIT_MS_MAX
from cep.sinks.base import RefusedAlerts

T = TypeVar("T")
_PAUSE_S, _PAUSE_S_MAX = 0.1, 5.0  # between two tries: doubled after each, so that a receiver can recover


@dataclass(slots=True)
class Patience:
    """The tries of a job to reach its sinks. They end with the first failure once `stop` is set."""

    stop: threading.Event
    # Gets a sink's name, and the error of each failed try or None once the sink has taken the write.
    away: Callable[[str, SinkAwayError | None], None] = lambda _name, _error: None
    pause_s: float = _PAUSE_S
    retries: int = 0  # failed tries
    refusals: Sequence[RefusedAlerts] = ()
    _counted_retries: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep_trying(self, name: str, write: Callable[[], None]) -> None:
        """Repeat a write to a sink until it succeeds.

        Raises: SinkError for a fault that time does not repair; SinkAwayError when the job must stop.
        """
        is_away, pause_s = False, self.pause_s
        while True:
            try:
                write()
            except SinkAwayError as error:
                with self._lock:
                    self.retries += 1
                is_away = True
                self.away(name, error)
                if self.stop.wait(pause_s):
                    raise
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
            else:
                if is_away:
                    self.away(name, None)
                return

    def counted(self) -> Counter[str]:
        """Return the failed tries and the refused alerts since the last call, by counter; from one thread."""
        counts: Counter[str] = Counter()
        for refusals in self.refusals:
            counts.update(refusals.counted())
        retries = self.retries
        if retries > self._counted_retries:
            counts["deliveries_retried"] = retries - self._counted_retries
            self._counted_retries = retries
        return counts


class Newest:
    """The newest of some texts → a receiver of this name, from a thread: one that hangs delays nobody."""

    def __init__(self, name: str, write: Callable[[bytes], None], patience: Patience) -> None:
        self._name, self._write, self._patience = name, write, patience
        self._text = b""
        self._error: SinkError | None = None
        self._is_working = False
        self._changed = threading.Condition()

    def offer(self, text: bytes) -> None:
        """Send a text, in place of an earlier one that waits. Raises: SinkError of an earlier one."""
        with self._changed:
            if self._error is not None:
                raise self._error
            self._text = text
            if not self._is_working:
                self._is_working = True
                threading.Thread(target=self._work, name=f"delivery to {self._name}", daemon=True).start()

    def settle(self, wait_s: float) -> bool:
        """Wait, at most so long, until the receiver has the newest text; return whether it has. Raises: SinkError."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_working, wait_s)
            if self._error is not None:
                raise self._error
            return not self._is_working

    def _work(self) -> None:
        """Send the newest text, and again if it has changed in the meantime."""
        sent = [b""]  # the text of the last try; in a list, so that `write` can replace it

        def write() -> None:
            sent[0] = self._text
            self._write(sent[0])

        error: SinkError | None = None
        while error is None:
            try:
                self._patience.keep_trying(self._name, write)
            except SinkError as caught:
                error = caught
            with self._changed:
                if error is None and sent[0] != self._text:
                    continue
                self._is_working = False
                self._error = None if self._patience.stop.is_set() else error  # a stop is none
                self._changed.notify_all()
                return


def ask_in_time(ask: Callable[[], T], wait_ms_max: int = KAFKA_WAIT_MS_MAX) -> T:
    """Repeat a request to brokers at a start until they answer: while they restart, they refuse at once.

    Raises: SinkAwayError once the time of a start is over; other errors of `ask`.
    """
    end_s = time.monotonic() + wait_ms_max / 1_000
    while True:
        try:
            return ask()
        except SinkAwayError:
            if time.monotonic() >= end_s:
                raise
            time.sleep(_PAUSE_S)


def impatient() -> Patience:
    """Return a patience that tries once."""
    stopped = threading.Event()
    stopped.set()
    return Patience(stopped)
