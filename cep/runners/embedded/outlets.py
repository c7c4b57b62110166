"""Alerts, dead letters and suppressed alerts of a commit → their sinks: step 4 of commit.py.

A number that comes again ends in the same place, since every sink keeps that contract. So a sink that is away is tried
again, under the same number, for as long as it takes. Meanwhile the job matches on until too many alerts wait; then it
reads nothing more.
Tested by: tests/runners/embedded/test_outage.py, tests/runners/embedded/test_commit.py,
tests/runners/embedded/test_run.py
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from cep.base.audit import is_audit
from cep.base.errors import SinkAwayError
from cep.base.limits import KAFKA_WAIT_MS_MAX
from cep.sinks.base import AlertSink, DeadLetterSink, RecallingSink
from cep.step.suppress import is_suppressed

_LEAVE_S = 0.05
_PAUSE_S = 1.0  # between two tries; a sink has tried for a while by itself before it says that nobody answers


@dataclass(slots=True)
class Patience:
    """The tries of a job to reach a sink that is away. It ends with the first failure once `stop` is set.

    `away` is called with the reason after each try in vain, and with None once the sink has taken the write.
    `retries` counts tries in vain.
    """

    stop: threading.Event
    away: Callable[[str | None], None] = lambda _: None
    pause_s: float = _PAUSE_S
    retries: int = 0

    def keep_trying(self, write: Callable[[], None]) -> None:
        """Write until it is done. Raises: SinkError for what no waiting mends; SinkAwayError when asked to stop."""
        is_away = False
        while True:
            try:
                write()
            except SinkAwayError as error:
                self.retries += 1
                is_away = True
                self.away(str(error))
                if self.stop.wait(self.pause_s):
                    raise
            else:
                if is_away:
                    self.away(None)
                return


def _impatient() -> Patience:
    stopped = threading.Event()
    stopped.set()
    return Patience(stopped)


@dataclass(frozen=True, slots=True)
class Outlets:
    """The sinks of alerts, dead letters and suppressed alerts (`suppressed`); those without a sink go nowhere.

    `audit` gets the lines of the audit once more, before the dead letters that they are among.
    `sending` surrounds each delivery of alerts: for who watches how long it takes. `may_send` is False while another
    process may have taken over the job, and raises SinkError once one has. Without `patience` a sink that is away ends
    the job.
    """

    sinks: Sequence[AlertSink]
    dead_letters: DeadLetterSink | None
    suppressed: DeadLetterSink | None = None
    sending: Callable[[pa.Table], AbstractContextManager[Any]] = nullcontext
    may_send: Callable[[], bool] = lambda: True
    patience: Patience = field(default_factory=_impatient)
    audit: DeadLetterSink | None = None

    def deliver(
        self, alerts: pa.Table, lines: Sequence[bytes], number: int,
        lacking: Callable[[pa.Table, int], pa.Table] = lambda alerts, _: alerts,
    ) -> None:  # fmt: skip
        """Send alerts, and lines of dead letters and suppressed alerts.

        `lacking` gives those of the alerts that the sink at a place does not have yet (sent.py). A sink that is away is
        waited for, as `patience` says. Raises: SinkError; the same number may then come again.
        """
        with self.sending(alerts):
            for place, sink in enumerate(self.sinks):
                self._send(partial(sink.write, lacking(alerts, place), number))
        for beside, belongs in (
            (self.audit, is_audit),
            (self.dead_letters, lambda line: not is_suppressed(line)),
            (self.suppressed, is_suppressed),
        ):
            chosen = sorted(line for line in lines if belongs(line)) if beside is not None else []
            if chosen and beside is not None:
                self._send(partial(beside.write, chosen, number))

    def _send(self, write: Callable[[], None]) -> None:
        """Write with leave to do so, which another process may have taken over in an outage."""

        def with_leave() -> None:
            self._wait_for_leave()
            write()

        self.patience.keep_trying(with_leave)

    def _wait_for_leave(self) -> None:
        deadline_s = time.monotonic() + KAFKA_WAIT_MS_MAX / 1_000
        while not self.may_send():
            if time.monotonic() > deadline_s:
                raise SinkAwayError(
                    f"nobody has said for {KAFKA_WAIT_MS_MAX / 1_000:.0f} s that this process still has its job; check "
                    "the brokers and start again: nothing is lost"
                )
            time.sleep(_LEAVE_S)

    @property
    def recalling(self) -> list[RecallingSink]:
        """The sinks that can say what they were sent."""
        sinks: list[object] = [*self.sinks, self.dead_letters]
        return [sink for sink in sinks if isinstance(sink, RecallingSink)]

    def close(self) -> None:
        for sink in (*self.sinks, self.dead_letters, self.suppressed, self.audit):
            if sink is not None:
                sink.close()
