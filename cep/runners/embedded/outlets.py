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
from cep.runners.patience import Patience, impatient
from cep.sinks.base import AlertSink, DeadLetterSink, RecallingSink
from cep.step.suppress import is_suppressed

_LEAVE_S = 0.05


@dataclass(frozen=True, slots=True)
class Outlets:
    """The sinks of alerts, dead letters and suppressed alerts (`suppressed`); those without a sink go nowhere.

    `audit` gets the lines of the audit once more, before the dead letters that they are among.
    `sending` surrounds each delivery of alerts: for who watches how long it takes. `may_send` is False while another
    process may have taken over the job, and raises SinkError once one has. Without `patience` a sink that is away ends
    the job. `names` are those of the sinks in messages, metrics and health.
    `left` is set once a stopped job leaves a write that still waits for an answer: its client is not closed then.
    """

    sinks: Sequence[AlertSink]
    dead_letters: DeadLetterSink | None
    suppressed: DeadLetterSink | None = None
    sending: Callable[[pa.Table], AbstractContextManager[Any]] = nullcontext
    may_send: Callable[[], bool] = lambda: True
    patience: Patience = field(default_factory=impatient)
    audit: DeadLetterSink | None = None
    names: Sequence[str] = ()
    left: threading.Event = field(default_factory=threading.Event)

    def name(self, place: int) -> str:
        """Return the name of the sink at a place."""
        return self.names[place] if self.names else f"sink {place}"

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
                self._send(self.name(place), partial(sink.write, lacking(alerts, place), number))
        for name, beside, belongs in (
            ("audit", self.audit, is_audit),
            ("dead letters", self.dead_letters, lambda line: not is_suppressed(line)),
            ("suppressed alerts", self.suppressed, is_suppressed),
        ):
            chosen = sorted(line for line in lines if belongs(line)) if beside is not None else []
            if chosen and beside is not None:
                self._send(name, partial(beside.write, chosen, number))

    def _send(self, name: str, write: Callable[[], None]) -> None:
        """Write with leave to do so, which another process may have taken over in an outage."""

        def with_leave() -> None:
            self._wait_for_leave()
            write()

        self.patience.keep_trying(name, with_leave)

    def _wait_for_leave(self) -> None:
        deadline_s = time.monotonic() + KAFKA_WAIT_MS_MAX / 1_000
        while not self.may_send():
            if time.monotonic() > deadline_s:
                raise SinkAwayError(
                    f"nobody has said for {KAFKA_WAIT_MS_MAX / 1_000:.0f} s that this process still has its job; check "
                    "the brokers: nothing is lost",
                    "lease",
                )
            time.sleep(_LEAVE_S)

    @property
    def recalling(self) -> list[RecallingSink]:
        """The sinks that can say what they were sent."""
        sinks: list[object] = [*self.sinks, self.dead_letters]
        return [sink for sink in sinks if isinstance(sink, RecallingSink)]

    def close(self) -> None:
        for sink in () if self.left.is_set() else (*self.sinks, self.dead_letters, self.suppressed, self.audit):
            if sink is not None:
                sink.close()
