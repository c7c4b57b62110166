"""The alerts of a job → each sink by itself, so that a sink that does not answer delays no other.

A DeliveryQueue brings committed alerts to one sink. It has a position and at most one delivery:

    commits        1   2   3   4   5   6   7
    kafka:alerts   ─────────────────────▶ (6) [7]       has all up to 6, 7 is on its way
    https://…      ──▶ (1) [2   3]  4   5   6   7        2 and 3 are on their way, the rest waits

Each commit stores the position of every sink and the number of its delivery, which a later process repeats with the
same alerts (R2 of commit.py).

DirectQueues bring alerts that wait for no commit: with `delivery = "at-least-once"`, or without a folder.

    micro-batch 7 ─┬─▶ kafka:alerts   7
                   └─▶ https://…      5 is on its way, 6 and 7 wait in memory

A sink that answers has the alerts of a micro-batch before the next one begins. While alerts wait in memory, a job with
a folder does not commit: after a crash it makes them again from its last commit.

A job that goes back to a checkpoint or a changelog asks its sinks for the alerts that they got since then
(RecalledIds), and sends each sink the others. A sink that cannot say what it has (a webhook, PostgreSQL, a terminal)
gets all of them: some come twice, with the same ids. PostgreSQL ignores a repeated id.
Tested by: tests/runners/embedded/test_queues.py, tests/runners/embedded/test_commit.py,
tests/runners/embedded/test_outage.py.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import orjson
import pyarrow as pa

from cep.base.limits import DELIVERY_ALERTS_MAX
from cep.runners.embedded.commit_entries import SENT, Outgoing, SinkPosition
from cep.runners.embedded.outlets import Outlet, Outlets
from cep.runners.patience import ask_in_time
from cep.sinks.base import RecallingSink
from cep.state.store import KeyedStore, WriteBatch


class Waiting(NamedTuple):
    """A commit that a sink lacks: its number, its alerts or lines for this sink, and when it was made (ms UTC)."""

    commit: int
    size: int
    since_ms: int


class Backlog(NamedTuple):
    """The alerts or lines that wait for a sink, and when the oldest was committed (ms UTC); None if none waits."""

    size: int
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """Commits up to `last` on their way to a sink, under one number."""

    number: int
    last: int
    done: Future[Sequence[str]]  # the place in the sink, such as an offset, after the write
    changed: tuple[int, ...] = ()  # the commits whose changes go with it to the changelog


class DeliveryQueue:
    """One sink, the commits that it lacks in their order, and the delivery on its way to it. Use it from one thread."""

    def __init__(self, outlet: Outlet, position: SinkPosition, *, carries_changelog: bool) -> None:
        self.outlet = outlet
        self.carries_changelog = carries_changelog  # True if its deliveries contain the changes for the changelog
        self.places = position.places
        self.delivery: Delivery | None = None
        self.has_failed = False  # the delivery: only another start repeats it
        self.size = 0  # of all waiting commits
        self._waiting: deque[Waiting] = deque()
        self._thread = ThreadPoolExecutor(1, f"delivery to {outlet.name}")

    @property
    def name(self) -> str:
        """The name of the sink."""
        return self.outlet.name

    @property
    def is_idle(self) -> bool:
        """True if commits wait and none is on its way: the next commit begins a delivery."""
        return self.delivery is None and bool(self._waiting)

    @property
    def backlog(self) -> Backlog:
        """The alerts or lines that the sink lacks."""
        return Backlog(self.size, self._waiting[0].since_ms if self._waiting else None)

    def add(self, commit: int, outgoing: Outgoing, since_ms: int) -> bool:
        """Queue the part of a commit for this sink. Returns: False if the commit has nothing for the sink."""
        count = self.outlet.count(outgoing.alerts, outgoing.dead_letters)
        if count:
            self._waiting.append(Waiting(commit, count, since_ms))
            self.size += count
        return bool(count)

    def next_commits(self) -> list[int]:
        """Return the commits of the next delivery: all that wait, up to a limit of alerts."""
        commits, count = list[int](), 0
        for waiting in self._waiting:
            if commits and count + waiting.size > DELIVERY_ALERTS_MAX and not self.carries_changelog:
                break
            commits.append(waiting.commit)
            count += waiting.size
        return commits

    def up_to(self, last: int) -> list[int]:
        """Return the waiting commits up to one."""
        return [waiting.commit for waiting in self._waiting if waiting.commit <= last]

    def begin(
        self, number: int, last: int, deliver: Callable[[], Sequence[str]], changed: tuple[int, ...] = ()
    ) -> None:  # fmt: skip
        """Begin a delivery in the background."""
        self.delivery = Delivery(number, last, self._thread.submit(deliver), changed)

    def settle(self) -> tuple[Delivery, list[Waiting]]:
        """Note that the delivery is over. Return it with its commits. Raises: the error that ended it."""
        assert self.delivery is not None, "a delivery has begun"
        self.has_failed = True  # stays True if the next line raises the error of the delivery
        self.places = self.delivery.done.result()  # the place in the sink after the write
        self.has_failed = False
        delivery, self.delivery = self.delivery, None
        settled: list[Waiting] = []
        while self._waiting and self._waiting[0].commit <= delivery.last:
            settled.append(self._waiting.popleft())
        self.size -= sum(waiting.size for waiting in settled)
        return delivery, settled

    def position(self, newest: int, planned: tuple[int, int] | None) -> SinkPosition:
        """Return the position that commit `newest` stores. `planned`: number and last commit of a delivery after it."""
        number, last = planned or (None, None)
        if self.delivery is not None:
            number, last = self.delivery.number, self.delivery.last
        first = self._waiting[0] if self._waiting else Waiting(newest + 1, size=0, since_ms=0)
        return SinkPosition(first.commit - 1, number, last, first.since_ms, tuple(self.places))

    def close(self, *, wait: bool) -> None:
        """End the thread; `wait`: once its delivery is over."""
        self._thread.shutdown(wait=wait)


def open_queues(
    outlets: Sequence[Outlet], stored: Mapping[str, SinkPosition], newest: int, *, has_changelog: bool
) -> tuple[list[tuple[DeliveryQueue, SinkPosition]], set[str]]:
    """Create the delivery queue of each sink. Return each with the sink's position, and the names of removed sinks.

    If there is a new sink of alerts, it gets the alerts of the removed sinks, and no names are returned. `newest` is
    the last commit.
    """
    # An earlier build stored one position for all sinks, under "".
    gone = set() if "" in stored else stored.keys() - {outlet.name for outlet in outlets}
    oldest = min((stored[name].position for name in gone), default=newest)  # up to it, removed sinks have all
    position_of_new = SinkPosition(min(oldest, newest), since_ms=int(time.time() * 1_000))
    is_new = False
    queues: list[tuple[DeliveryQueue, SinkPosition]] = []
    for place, outlet in enumerate(outlets, 1):
        position = stored.get(outlet.name) or stored.get("")
        is_new = is_new or (position is None and outlet.takes_alerts)
        position = position or position_of_new
        carries_changelog = has_changelog and place == len(outlets) and outlet.takes_alerts  # Kafka, the last sink
        queues.append((DeliveryQueue(outlet, position, carries_changelog=carries_changelog), position))
    return queues, set() if is_new else set(gone)


_WAIT_FOR_SINKS_S = 1.0  # for a sink that answers; after it the job goes on without


class _Part(NamedTuple):
    """The part of a micro-batch for a sink, on its way: alerts or lines, bytes, the time (ms UTC), and its end."""

    size: int
    bytes: int
    since_ms: int
    done: Future[None]


@dataclass(slots=True)
class _DirectQueue:
    """One sink, and the parts that it does not have yet, the oldest first. `is_late`: it has not answered in time."""

    outlet: Outlet
    thread: ThreadPoolExecutor
    parts: deque[_Part] = field(default_factory=deque)
    is_late: bool = False


class DirectQueues:
    """The deliveries of a job whose alerts wait for no commit. Use it from one thread. `count` counts taken alerts."""

    def __init__(self, outlets: Outlets, count: Callable[[Outlet, int], None]) -> None:
        self._outlets, self._count = outlets, count
        self._queues = [
            _DirectQueue(outlet, ThreadPoolExecutor(1, f"delivery to {outlet.name}")) for outlet in outlets.all
        ]

    def send(self, alerts: pa.Table, dead_letters: Sequence[bytes], number: int) -> None:
        """Queue a micro-batch for all sinks. Wait a moment for the sinks that are not late yet. Raises: SinkError."""
        for queue in self._queues:
            content = queue.outlet.content(alerts, dead_letters)  # alerts or lines for this sink
            if len(content):
                bytes_count = content.nbytes if isinstance(content, pa.Table) else sum(map(len, content))
                done = queue.thread.submit(self._outlets.send, queue.outlet, content, number)
                queue.parts.append(_Part(len(content), bytes_count, int(time.time() * 1_000), done))
        wait([queue.parts[-1].done for queue in self._queues if queue.parts and not queue.is_late], _WAIT_FOR_SINKS_S)
        for queue in self._queues:
            queue.is_late = bool(queue.parts) and not queue.parts[-1].done.done()
        self.finish()  # counts the deliveries that are over

    def finish(self) -> None:
        """Forget deliveries that are over. Raises: SinkError, also SinkAwayError once the job is to stop."""
        for queue in self._queues:
            while queue.parts and queue.parts[0].done.done():
                queue.parts[0].done.result()
                self._count(queue.outlet, queue.parts.popleft().size)
            queue.is_late = queue.is_late and bool(queue.parts)

    @property
    def tasks(self) -> list[Future[None]]:
        """The delivery of each sink that is on its way."""
        return [queue.parts[0].done for queue in self._queues if queue.parts]

    @property
    def undelivered_count(self) -> int:
        """The number of alerts and lines that some sink lacks."""
        alerts = [_size(queue) for queue in self._queues if queue.outlet.takes_alerts]
        lines = [_size(queue) for queue in self._queues if not queue.outlet.takes_alerts]
        return max(alerts, default=0) + max(lines, default=0)

    @property
    def undelivered_bytes(self) -> int:
        """The bytes of the parts that wait in memory."""
        return sum(part.bytes for queue in self._queues for part in queue.parts)

    @property
    def backlogs(self) -> dict[str, Backlog]:
        """The alerts that wait for each sink of alerts, by its name."""
        return {
            queue.outlet.name: Backlog(_size(queue), queue.parts[0].since_ms if queue.parts else None)
            for queue in self._queues if queue.outlet.takes_alerts
        }  # fmt: skip

    def close(self) -> None:
        """End the threads. Sinks that still have a delivery on its way are not closed."""
        if self.tasks:
            self._outlets.left_unfinished.set()
        for queue in self._queues:
            queue.thread.shutdown(wait=False)


def _size(queue: _DirectQueue) -> int:
    return sum(part.size for part in queue.parts)


@dataclass
class RecalledIds:
    """The ids of the alerts that a sink has though the job's restored state does not know of them, by sink."""

    ids: dict[str, set[str]] = field(default_factory=dict)
    is_new: bool = False

    @staticmethod
    def stored(store: KeyedStore, names: Sequence[str]) -> RecalledIds:
        """Read which alerts each sink has, by their ids (as `save` wrote them). `names`: of the sinks, in order."""
        saved = orjson.loads(store.get(SENT) or b"{}")
        if isinstance(saved, list):  # the first form: ids that all sinks have
            return RecalledIds({name: set(saved) for name in names})
        if "counts" in saved:  # the second form: by id, n if the first n sinks have it
            # If there are more or fewer sinks now, their old order is unknown: take only the ids that all sinks have.
            counts, sinks_count = saved["counts"], saved["sinks"]
            places = {name: index if len(names) == sinks_count else sinks_count - 1 for index, name in enumerate(names)}
            return RecalledIds(
                {name: {i for i, count in counts.items() if count > index} for name, index in places.items()}
            )
        return RecalledIds({name: set(ids) for name, ids in saved.items()})  # the present form: ids by sink

    def save(self, batch: WriteBatch) -> None:
        """Store the ids, if they have changed."""
        if self.is_new:
            batch.put(SENT, orjson.dumps({name: sorted(ids) for name, ids in sorted(self.ids.items())}))
            self.is_new = False

    def recall(self, queues: Sequence[DeliveryQueue], after: dict[str, int], created_ms: int) -> int:
        """Ask each sink for its alerts after a number (RecallingSink). Return the highest number. Raises: SinkError."""
        newest = -1
        places = [place for queue in queues for place in queue.places if place]
        for queue in queues:
            if isinstance(queue.outlet.sink, RecallingSink):
                recalled = ask_in_time(partial(queue.outlet.sink.recall, after[queue.name], created_ms, places))
                newest = max(newest, recalled.number)
                self.ids.setdefault(queue.name, set()).update(recalled.alert_ids)
        self.is_new = True
        return newest

    def lacking(self, name: str, alerts: pa.Table) -> pa.Table:
        """Return the alerts that the sink of this name does not have."""
        ids = self.ids.get(name)
        if not ids or not alerts.num_rows:
            return alerts
        return alerts.filter(pa.array([alert_id not in ids for alert_id in alerts["alert_id"].to_pylist()], pa.bool_()))

    def settle(self, name: str, alerts: pa.Table) -> None:
        """Forget alerts that the sink has by now: they come no more."""
        ids = self.ids.get(name)
        if ids and alerts.num_rows:
            before = len(ids)
            ids.difference_update(alerts["alert_id"].to_pylist())
            self.is_new |= len(ids) < before
