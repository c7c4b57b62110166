"""`cep run --standby`: a process that waits for its turn → one that works for as long as it has the lease.

Tested by: tests/cli/test_standby.py
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from cep.base.errors import UsageError
from cep.model.settings import Settings
from cep.runners.embedded.changelog import Changelog
from cep.runners.embedded.kafka import Lease
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.standby import stand_by
from cep.runners.observe import Log, Observed
from cep.runners.warm import Warming
from cep.sources.kafka import KafkaSettings

_AT_ONCE_S = 5.0  # A first process has the lease by then; preparing later work would only delay it.
_POLL_S = 0.05


@contextmanager
def turn_of(
    settings: Settings, store: StoreSettings, changelog: Changelog | None, observed: Observed, log: Log,
    stop: threading.Event,
) -> Iterator[Callable[[], bool]]:  # fmt: skip
    """Wait until this process is to work on the job, or `stop` is set; give the lease back at the end.

    Yields: a function that says whether it may send, and raises SinkError once another process has taken over. Without
    `--standby` that is always. Raises: UsageError without a changelog; as `stand_by`.
    """
    if not settings.embedded.standby:
        yield lambda: True
        return
    if changelog is None or store.folder is None:
        raise UsageError("--standby needs --changelog TOPIC: a standby takes the state of the job from there")
    servers, client = settings.kafka.bootstrap_servers, settings.kafka.client_settings()
    assert servers is not None, "a changelog needs it"
    waiting = _Waiting(observed, log)
    with Lease(KafkaSettings(servers, tuple(client.items())), changelog.topic, stop.set) as lease:
        if not _has_at_once(lease, stop):
            waiting.begin(changelog.topic)
            warming = Warming()  # while the standby follows, so that the state is here before the kernels are compiled
            try:
                stand_by(store, store.folder, changelog, lease.is_here, stop, waiting.follow)
            finally:
                warming.close()
        if not stop.is_set():
            waiting.end()
        yield lease.is_here


def _has_at_once(lease: Lease, stop: threading.Event) -> bool:
    """Return True if no other process has the lease."""
    deadline_s = time.monotonic() + _AT_ONCE_S
    while time.monotonic() < deadline_s and not (stop.is_set() or lease.is_elsewhere):
        if lease.is_here():
            return True
        stop.wait(_POLL_S)
    return False


@dataclass
class _Waiting:
    """The signs that a process gives while it stands by."""

    observed: Observed
    log: Log
    since_s: float | None = None
    offset: int = field(default=-1, init=False)

    def begin(self, topic: str) -> None:
        self.since_s = time.monotonic()
        self.observed.measured({"standby": 1.0}, {})
        self.log.tell("standby", f"stands by: another process works; topic {topic} has its state", topic=topic)

    def follow(self, offset: int) -> None:
        """Note that all up to an offset is here: the process is ready to take over."""
        if self.offset < 0:
            self.observed.begin()
            self.log.tell("standby_ready", f"ready to take over: has the state up to offset {offset:,}", offset=offset)
        self.offset = offset
        self.observed.idle()

    def end(self) -> None:
        self.observed.measured({"standby": 0.0}, {})
        self.observed.has_begun = False  # until it has read its sources
        if self.since_s is not None:
            seconds = round(time.monotonic() - self.since_s, 1)
            self.log.tell("took_over", f"takes over the job, after {seconds:.0f} s of standing by", seconds=seconds)
