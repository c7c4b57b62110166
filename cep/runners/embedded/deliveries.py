"""The alerts and dead letters of a job → its sinks: steps 1, 4 and 5 of commit.py, and R2 and R3 of a start.

    micro-batch ─▶ pending ─▶ commit: entries of the store ─▶ a delivery to each sink (queues.py) ─▶ settled
                      1                  2                                   4                        5

A job whose alerts wait for no commit sends them through `direct_queues` instead (queues.py).
Tested by: tests/runners/embedded/test_queues.py, tests/runners/embedded/test_commit.py
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
from cep.runners.embedded.commit_entries import Head, Numbers, Outgoing, PendingOutput, SinkPosition
from cep.runners.embedded.engine import Stepped
from cep.runners.embedded.outlets import Outlet, Outlets
from cep.runners.embedded.queues import Backlog, DeliveryQueue, DirectQueues, RecalledIds, open_queues
from cep.sinks.base import RecallingSink
from cep.state.store import KeyedStore, WriteBatch

Starting = list[tuple[DeliveryQueue, list[int]]]  # deliveries that a commit starts: the sink, the commits that go to it


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
        """Begin without sinks. `numbers`: of the last commit. `totals` counts alerts. `on_step` gets names of steps."""
        self.queues: list[DeliveryQueue] = []  # one for each sink
        self.direct_queues: DirectQueues | None = None  # the deliveries of a job whose alerts wait for no commit
        self.undelivered = Undelivered()
        self._pending = PendingOutput()  # the output since the last commit
        self._recalled_ids = RecalledIds()  # alerts that sinks have though the restored commit does not know of them
        self._outlets: Outlets | None = None  # of the queues
        self._numbers = numbers
        self._totals = totals
        self._changelog = changelog  # the copy of the store in Kafka
        self._on_step = on_step

    def requeue_stored(self, outlets: Outlets, head: Head, store: KeyedStore) -> dict[str, SinkPosition]:
        """Queue the alerts in the store again for the sinks that lack them. Return the stored position of each sink."""
        positions = self._open_queues(outlets, head.lanes, store)  # lanes: how far each sink has all
        names = [queue.name for queue in self.queues if queue.outlet.takes_alerts]
        self._recalled_ids = RecalledIds.stored(store, names)  # alerts that sinks got before a restore
        for commit, outgoing in Outgoing.stored(store).items():
            sinks_count = 0
            for queue in self.queues:
                position = positions[queue.name]
                if commit > position.position:  # the sink lacks this commit
                    sinks_count += queue.add(commit, outgoing, position.since_ms)
            if sinks_count:
                self.undelivered.add(commit, outgoing, sinks_count)
            else:  # all sinks have it: the next commit removes it from the store
                self.undelivered.forgettable.append(commit)
        return positions

    def repeat_unfinished(self, positions: Mapping[str, SinkPosition]) -> None:
        """Start the unfinished delivery of each sink again, under its number: the sink may have it already."""
        for queue in self.queues:
            position = positions[queue.name]
            commits = [] if position.last is None else queue.up_to(position.last)
            if position.delivery is not None and commits:
                self._start(queue, commits, position.delivery, [])

    def recall_later(self, positions: Mapping[str, SinkPosition], head: Head, created_ms: int) -> int:
        """Ask sinks for their alerts since a restored checkpoint. Return the highest number. Raises: SinkError."""
        base = self._numbers.base
        # A delivery of that time went out under the number of a commit that the checkpoint has.
        after = {name: base + position.position for name, position in positions.items()}
        if "" in head.lanes:  # of an earlier build
            after = dict.fromkeys(after, base + min(self.undelivered.commits, default=self._numbers.last + 1) - 1)
        return self._recalled_ids.recall(self.queues, after, created_ms) - base

    def _open_queues(
        self, outlets: Outlets, stored: Mapping[str, SinkPosition], store: KeyedStore
    ) -> dict[str, SinkPosition]:
        """Make a queue for each sink. Report alerts that wait for removed sinks. Return how far each sink has all."""
        queues, gone = open_queues(outlets.all, stored, self._numbers.last, has_changelog=self._changelog is not None)
        for queue in self.queues:  # of earlier sinks, which have got all output
            queue.close(wait=False)
        self.queues, self._outlets = [queue for queue, _ in queues], outlets
        for name in sorted(gone):  # of the removed sinks
            left = [item for commit, item in Outgoing.stored(store).items() if commit > stored[name].position]
            if left:
                outlets.abandoned(name, sum(item.alerts.num_rows for item in left))
        return {queue.name: position for queue, position in queues}

    def take(self, stepped: Stepped) -> None:
        """Keep the output of a micro-batch until the next commit, which delivers it."""
        self._on_step("1")
        self._pending.take(stepped)

    def save(self, batch: WriteBatch, number: int, outlets: Outlets, store: KeyedStore) -> None:
        """Add the output since the last commit to the batch of a commit, and remove the output that all sinks have."""
        if outlets is not self._outlets:
            self._open_queues(outlets, {}, store)  # the sinks are new
        self.undelivered.forget(batch)  # output that all sinks have
        if self._pending:
            outgoing = Outgoing(self._pending.table(), tuple(self._pending.dead_letters))
            since_ms = int(time.time() * 1_000)
            sinks_count = sum(queue.add(number, outgoing, since_ms) for queue in self.queues)
            if sinks_count:  # otherwise the output is for no sink
                outgoing.save(batch, number)
                self.undelivered.add(number, outgoing, sinks_count)
            self._pending = PendingOutput()
        self._recalled_ids.save(batch)  # alerts that sinks have from before a restore

    def plan(self, number: int) -> tuple[Starting, dict[str, SinkPosition]]:
        """Choose the deliveries that a commit starts. Return them, and each sink's position for the store."""
        idle = [queue for queue in self.queues if queue.delivery is None]
        starting = [(queue, queue.next_commits()) for queue in idle if queue.is_idle or queue.carries_changelog]
        planned = {queue.name: (number, commits[-1] if commits else number) for queue, commits in starting}
        return starting, {queue.name: queue.position(number, planned.get(queue.name)) for queue in self.queues}

    def start(self, starting: Starting, number: int, waits: Sequence[Future[Any]]) -> None:
        """Start the planned deliveries under the number of the commit, once the tasks `waits` are over."""
        for queue, commits in starting:
            self._start(queue, commits, number, waits, self._changelog if queue.carries_changelog else None)

    def _start(
        self, queue: DeliveryQueue, commits: Sequence[int], number: int, waits: Sequence[Future[Any]],
        changelog: Changelog | None = None,
    ) -> None:  # fmt: skip
        """Start the delivery of commits to a sink in the background, after `waits`. A sink ignores a repeated `number`.

        With a `changelog` the sink is Kafka: its transaction has the alerts, if any, and the changes of the store.
        """
        items, outlets = [self.undelivered.commits[commit] for commit in commits], self._outlets
        entries, changed_commits = ([], ()) if changelog is None else changelog.take_pending()
        assert outlets is not None, "a queue exists for each outlet"

        def deliver() -> Sequence[str]:
            for task in waits:
                task.result()
            if changelog is not None:
                changelog.add_to_next_write(entries)
            self._deliver(outlets, queue, items, number)
            sink_position = queue.outlet.sink.place() if isinstance(queue.outlet.sink, RecallingSink) else ""
            return [sink_position] if sink_position else []  # a restored job asks for the alerts after it

        queue.begin(number, commits[-1] if commits else number, deliver, changed_commits)  # none: changes alone

    def _deliver(self, outlets: Outlets, queue: DeliveryQueue, items: Sequence[Outgoing], number: int) -> None:
        self._on_step("4")
        alerts = sorted_together([item.alerts for item in items if item.alerts.num_rows])
        lines = [line for item in items for line in item.dead_letters]
        content = queue.outlet.content(self._recalled_ids.lacking(queue.name, alerts), lines)
        if len(content) or queue.carries_changelog:
            outlets.send(queue.outlet, content, self._numbers.base + number)

    def finish(self, *, wait: bool) -> None:
        """Note the deliveries that are over, or wait for all of them. Raises: SinkError, StoreError."""
        away: SinkAwayError | None = None
        for queue in self.queues:
            if queue.delivery is not None and (wait or queue.delivery.done.done()):
                try:
                    self._settle(queue)
                except SinkAwayError as error:
                    away = error
        if away is not None:
            raise away

    def _settle(self, queue: DeliveryQueue) -> None:
        """Note that the delivery to a sink is over: count its alerts, and forget commits that all sinks have."""
        delivery, settled = queue.settle()
        self._on_step("5")
        for commit, _, _ in settled:
            alerts = self.undelivered.settle(commit).alerts
            self.count_delivered(queue.outlet, alerts.num_rows)
            if queue.outlet.takes_alerts:
                self._recalled_ids.settle(queue.name, alerts)
        if self._changelog is not None:
            self._changelog.note_delivered(delivery.changed)

    def count_delivered(self, outlet: Outlet, alerts_count: int) -> None:
        """Count the alerts that a sink has taken. A sink of dead letters gets no alerts."""
        if outlet.takes_alerts:
            self._totals[f"alerts_delivered[{outlet.name}]"] += alerts_count

    @property
    def futures(self) -> list[Future[Any]]:
        """The deliveries that are on their way."""
        running = [queue.delivery.done for queue in self.queues if queue.delivery is not None and not queue.has_failed]
        return [*running, *([] if self.direct_queues is None else self.direct_queues.tasks)]

    @property
    def are_in_memory(self) -> bool:
        """True if alerts wait in memory alone, so that a commit would lose them."""
        return self.direct_queues is not None and bool(self.direct_queues.tasks)

    @property
    def is_waiting(self) -> bool:
        """True if another commit is needed before something can be delivered."""
        return any(
            queue.is_idle or (queue.carries_changelog and queue.delivery is None and self.unsent_bytes > 0)
            for queue in self.queues
        )

    @property
    def needs_commit(self) -> bool:
        """True if the store lacks output of the job, or another commit changes what it has to deliver."""
        return bool(self._pending or self.undelivered.forgettable or self.is_waiting)

    @property
    def is_over(self) -> bool:
        """True if all sinks have the output of all commits."""
        return not self.undelivered.commits and not any(queue.has_failed for queue in self.queues)

    @property
    def unsent_bytes(self) -> int:
        """The bytes of changes that no delivery to the changelog has taken over."""
        return 0 if self._changelog is None else self._changelog.pending_bytes

    @property
    def undelivered_count(self) -> int:
        """The number of alerts and dead letters that some sink is not known to have."""
        in_memory = 0 if self.direct_queues is None else self.direct_queues.undelivered_count
        return self.undelivered.count + self._pending.count + in_memory

    @property
    def undelivered_bytes(self) -> int:
        """The bytes of alerts and dead letters that some sink is not known to have."""
        return self.undelivered.bytes + (0 if self.direct_queues is None else self.direct_queues.undelivered_bytes)

    @property
    def backlogs(self) -> dict[str, Backlog]:
        """The alerts that wait for each sink of alerts, by its name."""
        if self.direct_queues is not None:
            return self.direct_queues.backlogs
        return {queue.name: queue.backlog for queue in self.queues if queue.outlet.takes_alerts}

    def close(self, *, wait: bool) -> None:
        """End the threads; `wait`: once their deliveries are over."""
        if self.direct_queues is not None:
            self.direct_queues.close()
        for queue in self.queues:
            queue.close(wait=wait)
