"""Alerts, dead letters and suppressed alerts of a commit → their sinks: step 4 of commit.py.

Each sink takes its part by itself, from a thread of its own, so one that hangs delays no other (queues.py). A sink that
is away is tried again under the same number, for as long as it takes.
Tested by: tests/runners/embedded/test_outage.py, tests/runners/embedded/test_commit.py,
tests/runners/embedded/test_run.py
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from cep.base.audit import is_audit
from cep.base.errors import SinkAwayError
from cep.base.limits import KAFKA_WAIT_MS_MAX
from cep.engine.alerts import NO_ALERTS
from cep.runners.patience import Patience, impatient
from cep.sinks.base import DEAD_LETTERS, AlertSink, DeadLetterSink
from cep.step.step import is_suppressed

_MAY_SEND_POLL_S = 0.05
Content: TypeAlias = pa.Table | list[bytes]


@dataclass(frozen=True, slots=True)
class Outlet:
    """A sink with its name, and its part of a commit: dead letters that `selects_line` selects; None: the alerts."""

    name: str
    sink: AlertSink | DeadLetterSink
    selects_line: Callable[[bytes], bool] | None = None

    @property
    def takes_alerts(self) -> bool:
        """True for a sink of alerts, False for a sink of dead letters."""
        return self.selects_line is None

    def content(self, alerts: pa.Table, lines: Sequence[bytes]) -> Content:
        """Select the alerts or the dead letters for this sink; a repeated delivery has the same order."""
        selects_line = self.selects_line
        return alerts if selects_line is None else sorted(line for line in lines if selects_line(line))

    def count(self, alerts: pa.Table, lines: Sequence[bytes]) -> int:
        """Return the number of alerts or dead letters for this sink."""
        selects_line = self.selects_line
        return int(alerts.num_rows if selects_line is None else sum(map(selects_line, lines)))


@dataclass(frozen=True, slots=True)
class Outlets:
    """The sinks of alerts, dead letters and suppressed alerts. Without a sink of dead letters, they are dropped."""

    sinks: Sequence[AlertSink]
    dead_letters: DeadLetterSink | None
    suppressed: DeadLetterSink | None = None
    sending: Callable[[str, pa.Table], AbstractContextManager[Any]] = lambda *_: nullcontext()  # measures a delivery.
    may_send: Callable[[], bool] = lambda: True  # False: another process may have the job. SinkError: one has it.
    patience: Patience = field(default_factory=impatient)  # The default ends the job if a sink is away.
    audit: DeadLetterSink | None = None  # a second copy of the audit.
    names: Sequence[str] = ()  # of the sinks, in messages, metrics, health and commits.
    abandoned: Callable[[str, int], None] = lambda *_: None  # a sink that the job lost, and its waiting alerts.
    # Set once a stopped job leaves a write that still waits for an answer: its client is not closed then.
    left_unfinished: threading.Event = field(default_factory=threading.Event)

    @property
    def all(self) -> list[Outlet]:
        """Each sink with its part of a commit. The last sink of alerts stands last, for its changelog."""
        lines = (
            ("audit", self.audit, is_audit),
            (DEAD_LETTERS, self.dead_letters, lambda line: not is_suppressed(line)),
            ("suppressed alerts", self.suppressed, is_suppressed),
        )
        names = self.names or [f"sink {place}" for place in range(len(self.sinks))]
        outlets = [Outlet(name, sink, selects_line) for name, sink, selects_line in lines if sink is not None]
        return [*outlets, *(Outlet(name, sink) for name, sink in zip(names, self.sinks, strict=True))]

    def send(self, outlet: Outlet, content: Content, number: int) -> None:
        """Write to a sink until it has the content, while this process may send for the job. Raises: SinkError."""

        def write_when_allowed() -> None:
            deadline_s = time.monotonic() + KAFKA_WAIT_MS_MAX / 1_000
            while not self.may_send():
                if time.monotonic() > deadline_s:
                    raise SinkAwayError(
                        f"nobody has said for {KAFKA_WAIT_MS_MAX / 1_000:.0f} s that this process still has its job; "
                        "check the brokers: nothing is lost",
                        "lease",
                    )
                time.sleep(_MAY_SEND_POLL_S)
            outlet.sink.write(content, number)

        with self.sending(outlet.name, content if isinstance(content, pa.Table) else NO_ALERTS):
            self.patience.keep_trying(outlet.name, write_when_allowed)

    def close(self) -> None:
        for outlet in () if self.left_unfinished.is_set() else self.all:
            outlet.sink.close()
