"""The contracts of sinks, which a runner relies on: one for alerts, one for dead letters.

Alerts that a receiver refuses for good become dead letters (`RefusedAlerts`):

    {"code": "alert_refused", "sink": "https://…", "reason": "it answered 400", "record": "the alert as it was sent"}

A job that is killed at this moment may write such a letter twice; `cep job letters send` sends each alert once.

Tested by: tests/sinks/test_contract.py, tests/sinks/test_webhook.py, tests/cli/test_run.py.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import orjson
import pyarrow as pa

from cep.base.errors import SinkAwayError

# The message of a process once another one works on its job, whether the lease or a sink's transaction notices it.
TAKEN_OVER = "another process has taken over this job"
TAKEN_OVER_HELP = (
    "nothing is lost; with --standby let its platform start this one again, so that it stands by; otherwise leave one "
    "of the two stopped"
)
DEAD_LETTERS = "dead letters"  # the name of their sink in health, metrics and messages
# Why a sink does not take alerts now → one sentence for its operator. The words are labels of `cep_sink_up`.
SINK_REASONS = {
    "no_answer": "nobody answers; check the receiver and the network",
    "busy": "it answers that it cannot take alerts now; check the receiver",
    "access": "it refuses access; check the rights and the secret of this job there",
    "missing": "it is not at this address; check the address, the topic or the table",
    "locked": "another session locks its table; end that session",
    "too_large": "an alert is larger than it allows; raise its limit",
    "lease": "this process waits for the lease of its job; check the brokers",
    "slow": "it has not answered a delivery for five seconds; check the receiver and the network",
    "refused": "it refuses the alerts; its own message, in the log, says why",
}


def sink_away(records: str, place: str, error_text: str, reason: str) -> SinkAwayError:
    """Return the error for records, such as "3 alerts of micro-batch 7", that a place does not take now."""
    next_step = f"{SINK_REASONS[reason]}: nothing is lost"
    return SinkAwayError(f"{records} did not reach {place}: {error_text}; {next_step}", reason)


class AlertSink(Protocol):
    """A destination of alerts, which gets them one micro-batch after the other.

    A runner that crashed repeats its last micro-batch: the same batch id comes twice, with the same alerts, and the
    sink then has the same content as after one write. When `write` returns, the alerts are as safe as the sink can make
    them. A write is one try: after a SinkAwayError the runner calls it again (runners/patience.py), and after another
    SinkError it stops before it commits.
    """

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        """Deliver the alerts of a micro-batch. Raises: SinkError."""
        ...

    def close(self) -> None:
        """Release the sink's resources. A closed sink is not written to again."""
        ...


@dataclass(frozen=True, slots=True)
class Recalled:
    """The alerts that a sink got after a micro-batch, perhaps with ids of earlier ones, and the highest number."""

    alert_ids: frozenset[str]
    number: int


@runtime_checkable
class RecallingSink(Protocol):
    """An AlertSink that can report the alerts it already has, so that a job that lost its progress skips them."""

    def place(self) -> str:
        """Return a position in the sink before its next write, such as offsets, as text; "" if `recall` needs none."""
        ...

    def recall(self, after: int, since_ms: int, places: Sequence[str] = ()) -> Recalled:
        """Return the alerts that came after the micro-batch `after`, which was delivered before `since_ms` (UTC).

        `places`: results of `place` from before these alerts were written. A sink that reads from there on needs no
        `since_ms`, so clocks may differ. Raises: SinkError."""
        ...


class DeadLetterSink(Protocol):
    """A taker of dead letters, as JSON objects, under the same contract."""

    def write(self, dead_letters: Sequence[bytes], batch_id: int) -> None:
        """Deliver the dead letters of a micro-batch. Raises: SinkError."""
        ...

    def close(self) -> None:
        """Release the sink's resources. A closed sink is not written to again."""
        ...


CODE = "alert_refused"
COUNTER = "alerts_refused"


@dataclass(frozen=True, slots=True)
class RefusedAlerts:
    """A writer of refused alerts to the dead letters. `tell` gets the sink's name, their number and the reason."""

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
        self.dead_letters.close()
