"""Alerts, dead letters and suppressed alerts of a commit → their sinks: step 4 of commit.py.

A number that comes again ends in the same place, since every sink keeps that contract.
Tested by: tests/runners/embedded/test_commit.py, tests/runners/embedded/test_run.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cep.sinks.base import AlertSink, DeadLetterSink, RecallingSink
from cep.step.suppress import is_suppressed


@dataclass(frozen=True, slots=True)
class Outlets:
    """Where alerts, dead letters and suppressed alerts (`suppressed`) go; those without a sink go nowhere.

    `sending` surrounds each delivery of alerts: for who watches how long it takes.
    """

    sinks: Sequence[AlertSink]
    dead_letters: DeadLetterSink | None
    suppressed: DeadLetterSink | None = None
    sending: Callable[[pa.Table], AbstractContextManager[Any]] = nullcontext

    def deliver(self, alerts: pa.Table, lines: Sequence[bytes], number: int) -> None:
        """Send alerts, and lines of dead letters and suppressed alerts.

        Raises: SinkError; the same number may then come again.
        """
        with self.sending(alerts):
            for sink in self.sinks:
                sink.write(alerts, number)
        for beside, is_other in ((self.dead_letters, False), (self.suppressed, True)):
            chosen = sorted(line for line in lines if is_suppressed(line) == is_other)
            if chosen and beside is not None:
                beside.write(chosen, number)

    @property
    def recalling(self) -> list[RecallingSink]:
        """The sinks that can say what they were sent."""
        sinks: list[object] = [*self.sinks, self.dead_letters]
        return [sink for sink in sinks if isinstance(sink, RecallingSink)]

    def close(self) -> None:
        for sink in (*self.sinks, self.dead_letters, self.suppressed):
            if sink is not None:
                sink.close()
