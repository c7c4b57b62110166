"""The committed alerts of a job → each sink by itself: a queue, a position and at most one delivery for each.

    commits        1   2   3   4   5   6   7
    kafka:alerts   ─────────────────────▶ (6) [7]       has all up to 6, 7 is on its way
    https://…      ──▶ (1) [2   3]  4   5   6   7        2 and 3 are on their way, the rest waits

The store keeps a commit's alerts until the last sink has them, and each commit stores the position of every sink and
the number of the delivery that is on its way. A process that goes on from a commit repeats that delivery under its
number, with the same alerts, and sends what waits after it.
Tested by: tests/runners/embedded/test_lanes.py, tests/runners/embedded/test_commit.py
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from cep.base.limits import DELIVERY_ALERTS_MAX
from cep.runners.embedded.commit_entries import LanePosition, Outgoing
from cep.runners.embedded.outlets import Outlet


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
    """Commits up to `last` on their way to a sink, under one number.

    `done` gives the place of the sink after the write. `changed` are the commits whose changes go with it to the
    changelog.
    """

    number: int
    last: int
    done: Future[Sequence[str]]
    changed: tuple[int, ...] = ()


class Lane:
    """One sink, the commits that it lacks in their order, and the delivery that is on its way to it.

    Use it from one thread. `carries` is True for the sink whose deliveries bring the changelog.
    """

    def __init__(self, outlet: Outlet, position: LanePosition, *, carries: bool) -> None:
        self.outlet = outlet
        self.carries = carries
        self.places = position.places
        self.delivery: Delivery | None = None
        self.has_failed = False  # the delivery: only another start repeats it
        self.size = 0
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
            if commits and count + waiting.size > DELIVERY_ALERTS_MAX and not self.carries:
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
        assert self.delivery is not None, "there is one"
        self.has_failed = True
        self.places = self.delivery.done.result()
        self.has_failed = False
        delivery, self.delivery = self.delivery, None
        settled: list[Waiting] = []
        while self._waiting and self._waiting[0].commit <= delivery.last:
            settled.append(self._waiting.popleft())
        self.size -= sum(waiting.size for waiting in settled)
        return delivery, settled

    def position(self, newest: int, planned: tuple[int, int] | None) -> LanePosition:
        """Return the position that a commit stores. `planned` is the number and the last commit of a delivery.

        `newest` is the number of the commit. The delivery begins once that commit is on the disk.
        """
        first = self._waiting[0] if self._waiting else None
        on_its_way = planned if self.delivery is None else (self.delivery.number, self.delivery.last)
        return LanePosition(
            newest if first is None else first.commit - 1,
            None if on_its_way is None else on_its_way[0],
            None if on_its_way is None else on_its_way[1],
            0 if first is None else first.since_ms,
            tuple(self.places),
        )

    def close(self, *, wait: bool) -> None:
        """End the thread; `wait`: once its delivery is over."""
        self._thread.shutdown(wait=wait)


def lanes_of(
    outlets: Sequence[Outlet], stored: Mapping[str, LanePosition], newest: int, *, has_changelog: bool
) -> tuple[list[tuple[Lane, LanePosition]], set[str]]:
    """Create a lane for each sink, with its stored position. Return them, and the names of stored sinks that are gone.

    A sink that the job did not have before takes over the alerts that wait for the sinks that are gone.
    """
    gone = set() if "" in stored else stored.keys() - {outlet.name for outlet in outlets}
    oldest = min((stored[name].position for name in gone), default=newest)
    started = LanePosition(min(oldest, newest), since_ms=int(time.time() * 1_000))
    is_new = False
    lanes: list[tuple[Lane, LanePosition]] = []
    for place, outlet in enumerate(outlets, 1):
        position = stored.get(outlet.name) or stored.get("")
        is_new = is_new or position is None
        position = position or started
        carries = has_changelog and place == len(outlets) and outlet.belongs is None
        lanes.append((Lane(outlet, position, carries=carries), position))
    return lanes, set() if is_new else set(gone)


def futures_of(lanes: Sequence[Lane]) -> list[Future[Any]]:
    """Return the deliveries in progress, to wait for; without failed ones."""
    return [lane.delivery.done for lane in lanes if lane.delivery is not None and not lane.has_failed]
