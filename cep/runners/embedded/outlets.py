"""Alerts, dead letters and suppressed alerts of a commit → their sinks: step 4 of commit.py.

A number that comes again ends in the same place, since every sink keeps that contract.
Tested by: tests/runners/embedded/test_commit.py, tests/runners/embedded/test_run.py
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cep.base.errors import SinkError
from cep.base.limits import KAFKA_WAIT_MS_MAX
from cep.sinks.base import AlertSink, DeadLetterSink, RecallingSink
from cep.step.suppress import is_suppressed

_LEAVE_S = 0.05


@dataclass(frozen=True, slots=True)
class Outlets:
    """Where alerts, dead letters and suppressed alerts (`suppressed`) go; those without a sink go nowhere.

    `sending` surrounds each delivery of alerts: for who watches how long it takes. `may_send` is False while another
    process may have taken over the job, and raises SinkError once one has.
    """

    sinks: Sequence[AlertSink]
    dead_letters: DeadLetterSink | None
    suppressed: DeadLetterSink | None = None
    sending: Callable[[pa.Table], AbstractContextManager[Any]] = nullcontext
    may_send: Callable[[], bool] = lambda: True

    def deliver(self, alerts: pa.Table, lines: Sequence[bytes], number: int) -> None:
        """Send alerts, and lines of dead letters and suppressed alerts.

        Raises: SinkError; the same number may then come again.
        """
        self._wait_for_leave()
        with self.sending(alerts):
            for sink in self.sinks:
                sink.write(alerts, number)
        for beside, is_other in ((self.dead_letters, False), (self.suppressed, True)):
            chosen = sorted(line for line in lines if is_suppressed(line) == is_other)
            if chosen and beside is not None:
                beside.write(chosen, number)

    def _wait_for_leave(self) -> None:
        deadline_s = time.monotonic() + KAFKA_WAIT_MS_MAX / 1_000
        while not self.may_send():
            if time.monotonic() > deadline_s:
                raise SinkError(
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
        for sink in (*self.sinks, self.dead_letters, self.suppressed):
            if sink is not None:
                sink.close()
