"""The contracts of sinks: what a runner may rely on, whoever takes the alerts, or what was set aside.

Tested by: tests/sinks/test_contract.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa


class AlertSink(Protocol):
    """Takes the alerts of one micro-batch after the other.

    A runner that crashed does its last micro-batch again, so the same batch id may come twice, with the same alerts:
    the sink is to end in the same place as if it had come once. When `write` returns, the alerts are as safe as the
    sink can make them; when it raises SinkError, the runner stops before it commits, and the batch comes again.
    """

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        """Deliver the alerts of a micro-batch. Raises: SinkError."""
        ...

    def close(self) -> None:
        """Release what the sink holds. A closed sink is not written to again."""
        ...


@dataclass(frozen=True, slots=True)
class Recalled:
    """What a sink has got after a micro-batch: ids of alerts (earlier ones may be among them), the highest number."""

    alert_ids: frozenset[str]
    number: int


@runtime_checkable
class RecallingSink(Protocol):
    """An AlertSink that can tell what it was sent: for a job that has lost its own memory of it."""

    def place(self) -> str:
        """Where the sink stands behind its last write, in words of its own; empty if it needs none for `recall`."""
        ...

    def recall(self, after: int, since_ms: int, places: Sequence[str] = ()) -> Recalled:
        """What came after the micro-batch `after`, which was delivered before the time `since_ms` (UTC).

        `places`: what sinks have said before any of it was written. Unlike a time, a place does not depend on a clock.
        Raises: SinkError.
        """
        ...


class LetterSink(Protocol):
    """Takes what was set aside, as JSON objects, under the same contract."""

    def write(self, letters: Sequence[bytes], batch_id: int) -> None:
        """Deliver the letters of a micro-batch. Raises: SinkError."""
        ...

    def close(self) -> None:
        """Release what the sink holds. A closed sink is not written to again."""
        ...
