"""The alerts and dead letters of a job → its sinks: steps 1, 4 and 5 of commit.py, and R2 and R3 of a start.

    micro-batch ─▶ pending ─▶ commit: entries of the store ─▶ a delivery to each sink (lanes.py) ─▶ settled
                      1                  2                                   4                        5

A job whose alerts wait for no commit sends them through `queues` instead (lanes.py).
Tested by: tests/runners/embedded/test_lanes.py, tests/runners/embedded/test_commit.py
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from cep.base.errors import SinkAwayError
from cep.engine.alerts import sorted_together
from cep.runners.embedded.changelog import Changelog
from cep.runners.embedded.commit_entries import Head, LanePosition, Numbers, Outgoing, PendingOutput
from cep.runners.embedded.engine import Stepped
from cep.runners.embedded.lanes import Backlog, Lane, Sent, SinkQueues, lanes_of
from cep.runners.embedded.outlets import Outlet, Outlets
from cep.sinks.base import RecallingSink
from cep.state.store import KeyedStore, WriteBatch

Starting = list[tuple[Lane, list[int]]]  # deliveries that a commit starts: the sink, and the commits that go to it


@dataclass(slots=True)
class Undelivered:
    """The output of commits that some sink is not known to have, by commit; `count` and `bytes` are of all of it."""

    commits: dict[int, Outgoing] = field(default_factory=dict)
    forgettable: list[int] = field(default_factory=list)  # commits that all sinks have, and the store still has
    count: int = 0
    bytes: int = 0
    _lacking: dict[int, int] = field(default_factory=dict)  # by commit: how many sinks are not known to have it

    def add(self, commit: int, outgoing: Outgoing, sinks_count: int) -> None:
        """Add the output of a commit, which so many sinks lack."""
        self.commits[commit], self._lacking[commit] = outgoing, sinks_count
        self.count += outgoing.count
        self.bytes += outgoing.bytes

    def settle(self, commit: int) -> Outgoing:
        """Note that one more sink has the output of a commit. Return the output."""
        outgoing = self.commits[commit]
        self._lacking[commit] -= 1
        if not self._lacking[commit]:
            del self.commits[commit], self._lacking[commit]
            self.count -= outgoing.count
            self.bytes -= outgoing.bytes
            self.forgettable.append(commit)
        return outgoing

    def forget(self, batch: WriteBatch) -> None:
        """Remove from the store what all sinks have."""
        for commit in self.forgettable:
            Outgoing.forget(batch, commit)
        self.forgettable = []


class Deliveries:
    """The output of a job on its way to the sinks. Use it from one thread."""

    def __init__(
        self, numbers: Numbers, totals: Counter[str], changelog: Changelog | None, on_step: Callable[[str], None]
    ) -> None:
        """Begin without sinks. `totals` gets the number of alerts that each sink has taken."""
        self.lanes: list[Lane] = []
        self.queues: SinkQueues | None = None  # the deliveries of a job whose alerts wait for no commit
        self.undelivered = Undelivered()
        self._pending = PendingOutput()
        self._sent = Sent()  # alerts that sinks have and the job has forgotten
        self._outlets: Outlets | None = None  # of the lanes
        self._numbers = numbers
        self._totals = totals
        self._changelog = changelog
        self._on_step = on_step

    def take_up(self, outlets: Outlets, head: Head, store: KeyedStore) -> dict[str, LanePosition]:
        """Queue stored alerts for the sinks that lack them. Return the stored position of each sink."""
        positions = self._open_lanes(outlets, head.lanes, store)
        self._sent = Sent.stored(store, [lane.name for lane in self.lanes if lane.outlet.belongs is None])
        for commit, outgoing in Outgoing.stored(store).items():
            sinks_count = 0
            for lane in self.lanes:
                position = positions[lane.name]
                if commit > position.position:
                    sinks_count += lane.add(commit, outgoing, position.since_ms)
            if sinks_count:
                self.undelivered.add(commit, outgoing, sinks_count)
            else:
                self.undelivered.forgettable.append(commit)
        return positions

    def repeat(self, positions: Mapping[str, LanePosition]) -> None:
        """Start the unfinished delivery of each sink again, under its number (R2)."""
        for lane in self.lanes:
            position = positions[lane.name]
            commits = [] if position.last is None else lane.up_to(position.last)
            if position.delivery is not None and commits:
                self._start(lane, commits, position.delivery, [])

    def recall(self, positions: Mapping[str, LanePosition], head: Head, created_ms: int) -> int:
        """Ask the sinks for later alerts than the checkpoint's (R3). Return their highest number. Raises: SinkError."""
        base = self._numbers.base
        # A delivery of that time went out under the number of a commit that the checkpoint has.
        after = {name: base + position.position for name, position in positions.items()}
        if "" in head.lanes:  # of an earlier build
            after = dict.fromkeys(after, base + min(self.undelivered.commits, default=self._numbers.last + 1) - 1)
        return self._sent.recall(self.lanes, after, created_ms) - base

    def _open_lanes(
        self, outlets: Outlets, stored: Mapping[str, LanePosition], store: KeyedStore
    ) -> dict[str, LanePosition]:
        """Make a lane for each sink, and report sinks that are gone. Return the position of each sink."""
        lanes, gone = lanes_of(outlets.all, stored, self._numbers.last, has_changelog=self._changelog is not None)
        for lane in self.lanes:  # of other outlets, which have all
            lane.close(wait=False)
        self.lanes, self._outlets = [lane for lane, _ in lanes], outlets
        for name in sorted(gone):
            left = [item for commit, item in Outgoing.stored(store).items() if commit > stored[name].position]
            if left:
                outlets.abandoned(name, sum(item.alerts.num_rows for item in left))
        return {lane.name: position for lane, position in lanes}

    def take(self, stepped: Stepped) -> None:
        """Keep the output of a micro-batch until the commit that delivers it (1)."""
        self._on_step("1")
        self._pending.take(stepped)

    def save(self, batch: WriteBatch, number: int, outlets: Outlets, store: KeyedStore) -> None:
        """Add the pending output to the write batch of a commit (2), and remove the output that all sinks have."""
        if outlets is not self._outlets:
            self._open_lanes(outlets, {}, store)
        self.undelivered.forget(batch)
        if self._pending:
            outgoing = Outgoing(self._pending.table(), tuple(self._pending.dead_letters))
            since_ms = int(time.time() * 1_000)
            sinks_count = sum(lane.add(number, outgoing, since_ms) for lane in self.lanes)
            if sinks_count:
                outgoing.save(batch, number)
                self.undelivered.add(number, outgoing, sinks_count)
            self._pending = PendingOutput()
        self._sent.save(batch)

    def plan(self, number: int) -> tuple[Starting, dict[str, LanePosition]]:
        """Choose the deliveries that a commit starts. Return them, and the position of each sink for its head (2)."""
        idle = [lane for lane in self.lanes if lane.delivery is None]
        starting = [(lane, lane.next_commits()) for lane in idle if lane.is_idle or lane.carries]
        planned = {lane.name: (number, commits[-1] if commits else number) for lane, commits in starting}
        return starting, {lane.name: lane.position(number, planned.get(lane.name)) for lane in self.lanes}

    def start(self, starting: Starting, number: int, waits: Sequence[Future[Any]]) -> None:
        """Start the planned deliveries under the number of the commit (4), after `waits`."""
        for lane, commits in starting:
            self._start(lane, commits, number, waits, self._changelog if lane.carries else None)

    def _start(
        self, lane: Lane, commits: Sequence[int], number: int, waits: Sequence[Future[Any]],
        carried: Changelog | None = None,
    ) -> None:  # fmt: skip
        """Start a delivery in the background. The changes for the changelog `carried` go with it."""
        items, outlets = [self.undelivered.commits[commit] for commit in commits], self._outlets
        entries, changed = ([], ()) if carried is None else carried.hand_over()
        assert outlets is not None, "the lane has its outlet from them"

        def deliver() -> Sequence[str]:
            for task in waits:
                task.result()
            if carried is not None:
                carried.carry(entries)
            self._deliver(outlets, lane, items, number)
            place = lane.outlet.sink.place() if isinstance(lane.outlet.sink, RecallingSink) else ""
            return [place] if place else []

        lane.begin(number, commits[-1] if commits else number, deliver, changed)

    def _deliver(self, outlets: Outlets, lane: Lane, items: Sequence[Outgoing], number: int) -> None:
        self._on_step("4")
        alerts = sorted_together([item.alerts for item in items if item.alerts.num_rows])
        lines = [line for item in items for line in item.dead_letters]
        content = lane.outlet.content(self._sent.lacking(lane.name, alerts), lines)
        if len(content) or lane.carries:
            outlets.send(lane.outlet, content, self._numbers.base + number)

    def finish(self, *, wait: bool) -> None:
        """Settle the deliveries that are over, or wait for all of them (5). Raises: SinkError, StoreError."""
        away: SinkAwayError | None = None
        for lane in self.lanes:
            if lane.delivery is not None and (wait or lane.delivery.done.done()):
                try:
                    self._settle(lane)
                except SinkAwayError as error:
                    away = error
        if away is not None:
            raise away

    def _settle(self, lane: Lane) -> None:
        delivery, settled = lane.settle()
        self._on_step("5")
        for commit, _, _ in settled:
            alerts = self.undelivered.settle(commit).alerts
            self.count_delivered(lane.outlet, alerts.num_rows)
            if lane.outlet.belongs is None:
                self._sent.settle(lane.name, alerts)
        if self._changelog is not None:
            self._changelog.settle(delivery.changed)

    def count_delivered(self, outlet: Outlet, alerts_count: int) -> None:
        """Count the alerts that a sink has taken. A sink of dead letters gets no alerts."""
        if outlet.belongs is None:
            self._totals[f"alerts_delivered[{outlet.name}]"] += alerts_count

    @property
    def futures(self) -> list[Future[Any]]:
        """The deliveries that are on their way."""
        running = [lane.delivery.done for lane in self.lanes if lane.delivery is not None and not lane.has_failed]
        return [*running, *([] if self.queues is None else self.queues.tasks)]

    @property
    def are_in_memory(self) -> bool:
        """True if alerts wait in memory alone, so that a commit would lose them."""
        return self.queues is not None and bool(self.queues.tasks)

    @property
    def is_waiting(self) -> bool:
        """True if another commit is needed before something can be delivered."""
        return any(
            lane.is_idle or (lane.carries and lane.delivery is None and self.unsent_bytes > 0) for lane in self.lanes
        )

    @property
    def needs_commit(self) -> bool:
        """True if the store lacks output of the job, or another commit changes what it has to deliver."""
        return bool(self._pending or self.undelivered.forgettable or self.is_waiting)

    @property
    def is_over(self) -> bool:
        """True if all sinks have the output of all commits."""
        return not self.undelivered.commits and not any(lane.has_failed for lane in self.lanes)

    @property
    def unsent_bytes(self) -> int:
        """The bytes of changes that no delivery to the changelog has taken over."""
        return 0 if self._changelog is None else self._changelog.pending_bytes

    @property
    def undelivered_count(self) -> int:
        """The number of alerts and dead letters that some sink is not known to have."""
        in_memory = 0 if self.queues is None else self.queues.undelivered_count
        return self.undelivered.count + self._pending.count + in_memory

    @property
    def undelivered_bytes(self) -> int:
        """The bytes of alerts and dead letters that some sink is not known to have."""
        return self.undelivered.bytes + (0 if self.queues is None else self.queues.undelivered_bytes)

    @property
    def backlogs(self) -> dict[str, Backlog]:
        """The alerts that wait for each sink of alerts, by its name."""
        if self.queues is not None:
            return self.queues.backlogs
        return {lane.name: lane.backlog for lane in self.lanes if lane.outlet.belongs is None}

    def close(self, *, wait: bool) -> None:
        """End the threads; `wait`: once their deliveries are over."""
        if self.queues is not None:
            self.queues.close()
        for lane in self.lanes:
            lane.close(wait=wait)
