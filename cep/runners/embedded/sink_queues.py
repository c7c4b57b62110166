"""Alerts that wait for no commit → each sink by itself: with `delivery = "at-least-once"`, or without a folder.

    micro-batch 7 ─┬─▶ kafka:alerts   7
                   └─▶ https://…      5 is on its way, 6 and 7 wait in memory

A sink that answers has the alerts of a micro-batch before the next one begins. A sink that does not answer in its turn
gets them later, and delays no other sink. A job with a folder does not commit meanwhile: after a crash it would lose
the alerts in memory, so it makes them again from its last commit.
Tested by: tests/runners/embedded/test_outage.py
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from cep.runners.embedded.lanes import Backlog
from cep.runners.embedded.outlets import Outlet, Outlets

_TURN_S = 1.0  # for a sink that answers; after it the job goes on without


class _Sent(NamedTuple):
    """The part of a micro-batch for a sink, on its way: alerts or lines, bytes, the time (ms UTC), and its end."""

    size: int
    bytes: int
    since_ms: int
    done: Future[None]


@dataclass(slots=True)
class _Line:
    """One sink, and the parts that it does not have yet, the oldest first. `is_late`: it has missed its turn."""

    outlet: Outlet
    thread: ThreadPoolExecutor
    parts: deque[_Sent] = field(default_factory=deque)
    is_late: bool = False


class SinkQueues:
    """The deliveries of a job whose alerts wait for no commit. Use it from one thread.

    `count` is called with a sink and the number of alerts that it has taken.
    """

    def __init__(self, outlets: Outlets, count: Callable[[Outlet, int], None]) -> None:
        self._outlets, self._count = outlets, count
        self._lines = [_Line(outlet, ThreadPoolExecutor(1, f"delivery to {outlet.name}")) for outlet in outlets.all]

    def send(self, alerts: pa.Table, lines: Sequence[bytes], number: int) -> None:
        """Queue a micro-batch for all sinks at the same time, and wait for each as long as its turn lasts.

        Raises: SinkError.
        """
        for line in self._lines:
            content = line.outlet.content(alerts, lines)
            if len(content):
                bytes_count = content.nbytes if isinstance(content, pa.Table) else sum(map(len, content))
                done = line.thread.submit(self._outlets.send, line.outlet, content, number)
                line.parts.append(_Sent(len(content), bytes_count, int(time.time() * 1_000), done))
        wait([line.parts[-1].done for line in self._lines if line.parts and not line.is_late], _TURN_S)
        for line in self._lines:
            line.is_late = bool(line.parts) and not line.parts[-1].done.done()
        self.finish()

    def finish(self) -> None:
        """Forget deliveries that are over. Raises: SinkError, also SinkAwayError once the job is to stop."""
        for line in self._lines:
            while line.parts and line.parts[0].done.done():
                line.parts[0].done.result()
                self._count(line.outlet, line.parts.popleft().size)
            line.is_late = line.is_late and bool(line.parts)

    @property
    def tasks(self) -> list[Future[None]]:
        """The delivery of each sink that is on its way."""
        return [line.parts[0].done for line in self._lines if line.parts]

    @property
    def undelivered_count(self) -> int:
        """The number of alerts and lines that some sink lacks."""
        alerts = [_size(line) for line in self._lines if line.outlet.belongs is None]
        lines = [_size(line) for line in self._lines if line.outlet.belongs is not None]
        return max(alerts, default=0) + max(lines, default=0)

    @property
    def undelivered_bytes(self) -> int:
        """The bytes of the parts that wait in memory."""
        return sum(part.bytes for line in self._lines for part in line.parts)

    @property
    def backlogs(self) -> dict[str, Backlog]:
        """The alerts that wait for each sink of alerts, by its name."""
        return {
            line.outlet.name: Backlog(_size(line), line.parts[0].since_ms if line.parts else None)
            for line in self._lines if line.outlet.belongs is None
        }  # fmt: skip

    def close(self) -> None:
        """End the threads. Sinks that still have a delivery on its way are not closed."""
        if self.tasks:
            self._outlets.left.set()
        for line in self._lines:
            line.thread.shutdown(wait=False)


def _size(line: _Line) -> int:
    return sum(part.size for part in line.parts)
