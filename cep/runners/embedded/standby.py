"""The changelog of a job that another process runs → a nearly current store here, until this process has the lease.

    lease elsewhere   follow the changelog into FOLDER/store.partial, a few times a second
    lease here        end; opening.py fences the previous owner, reads the rest of the changelog, and the job continues

If the brokers are unreachable, the standby waits: then no process works, and none takes over.
Tested by: tests/runners/embedded/test_changelog.py, tests/cli/test_outage.py
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cep.base.errors import SourceError, UsageError
from cep.model.settings import Settings
from cep.runners.embedded.changelog import Changelog
from cep.runners.embedded.kafka import Lease
from cep.runners.embedded.opening import PART, StoreSettings, followed_folder
from cep.runners.live_checkpoint import lock_checkpoint
from cep.runners.observe import Log, Observed
from cep.runners.warm import Warming
from cep.sources.live.kinds import kafka_client
from cep.state.checkpoints import BESIDE

_FOLLOW_S = 0.25
_AT_ONCE_S = 5.0  # A first process has the lease by then; preparing later work would only delay it.
_POLL_S = 0.05


@contextmanager
def turn_of(
    settings: Settings, store: StoreSettings, changelog: Changelog | None, observed: Observed, log: Log,
    stop: threading.Event,
) -> Iterator[Callable[[], bool]]:  # fmt: skip
    """Wait until this process may work on the job, or `stop` is set. Return the lease at the end.

    Yields: a function that says whether it may send, and raises SinkError once another process has taken over. Without
    `--standby` that is always. Raises: UsageError without a changelog; as `stand_by`.
    """
    if not settings.embedded.standby:
        yield lambda: True
        return
    if changelog is None or store.folder is None:
        raise UsageError("--standby needs --changelog TOPIC: a standby takes the state of the job from there")
    waiting = _Waiting(observed, log)
    with Lease(kafka_client(settings), changelog.topic, stop.set) as lease:
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


def stand_by(
    settings: StoreSettings, folder: Path, changelog: Changelog, has_lease: Callable[[], bool], stop: threading.Event,
    followed: Callable[[int], None] = lambda _: None,
) -> None:  # fmt: skip
    """Follow the changelog until this process gets the lease, or `stop` is set.

    `followed` is called with the offset up to which the store is complete. Raises: UsageError if another process has
    the folder, or if the topic is not a changelog of this job; SinkError if the lease is refused; StateError.
    """
    partial = followed_folder(folder)
    with lock_checkpoint(folder):
        shutil.rmtree(partial, ignore_errors=True)
        with settings.open(partial / PART) as store:
            while not (has_lease() or stop.is_set()):
                with suppress(SourceError):  # the watch says that no broker answers
                    followed(changelog.follow(store, partial / BESIDE))
                stop.wait(_FOLLOW_S)
