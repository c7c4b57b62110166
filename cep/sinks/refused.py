"""Alerts that a receiver refuses for good → dead letters, a counter and a line of the log.

    {"code": "alert_refused", "sink": "https://…", "reason": "it answered 400", "record": "the alert as it was sent"}

A job that is killed at this moment may write such a letter twice; `cep job letters send` sends each alert once.
Tested by: tests/sinks/test_webhook.py, tests/cli/test_run.py
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import orjson

from cep.sinks.base import DeadLetterSink

CODE = "alert_refused"
COUNTER = "alerts_refused"


@dataclass(frozen=True, slots=True)
class RefusedAlerts:
    """Collects the alerts that the receiver of one sink refuses, and writes them to the dead letters.

    `tell` is called with the sink's name, the number of alerts and the reason.
    """

    sink: str
    dead_letters: DeadLetterSink
    tell: Callable[[str, int, str], None] = lambda *_: None
    _counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._counts[self._counter] = 0  # a rate begins at 0

    @property
    def _counter(self) -> str:
        return f"{COUNTER}[{self.sink}]"

    def take(self, lines: Sequence[bytes], reason: str, batch_id: int) -> None:
        """Write refused alerts of a micro-batch to the dead letters. Raises: SinkError."""
        letter = {"code": CODE, "sink": self.sink, "reason": reason}
        self.dead_letters.write([orjson.dumps({**letter, "record": line.decode()}) for line in lines], batch_id)
        with self._lock:
            self._counts[self._counter] += len(lines)
        self.tell(self.sink, len(lines), reason)

    def counted(self) -> Counter[str]:
        """Return the refusals since the last call, by counter."""
        with self._lock:
            counts = Counter(self._counts)
            self._counts[self._counter] = 0
        return counts

    def close(self) -> None:
        """Close the sink of the letters."""
        self.dead_letters.close()
