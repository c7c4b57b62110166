"""Micro-batches → commits on this disk. A commit has keyed state, positions and undelivered alerts of one moment.

    1  hold      alerts and letters of the micro-batches since the last commit wait in memory
    2  write     one write batch: changed pages, waiting events, positions, rulebook, watermark, totals, alerts and
                 letters; which alerts are to be delivered now, and that the alerts of the last delivery are forgotten
    3  sync      in the background: the store's log reaches the disk. From then on the commit exists
    4  deliver   after 3, in the background and for each sink by itself (lanes.py): its alerts or letters, perhaps of
                 several commits, under the number of this commit; with a changelog the changes of these commits are
                 part of the transaction of the last sink
    5  settle    the delivery to a sink is over: the next commit forgets it, and may start another one.
                 Once all sinks have a commit, its alerts leave the store

A commit costs its changes and one write to the disk, so by default there is one for each micro-batch. While the disk
writes, the next micro-batch is matched; its commit begins when the previous one is on the disk. At intervals a
checkpoint is taken after 3, in the background (checkpoints.py): for another machine, for a savepoint, and in case this
disk is lost. A checkpoint is also taken once the stream has fallen silent. A store in memory does not have a log: a
commit there is safe when its checkpoint is.

Start:

    R1 open      the local store; if it is gone, damaged or old, that of the changelog or of the newest whole
                 checkpoint (opening.py)
    R2 deliver   the unfinished delivery of each sink, under its number, in the background: a sink that gets the same
                 number twice ends as if it came once
    R3 recall    only after a restore: the sinks report which alerts they got since. They do not get these again
    R4 seek      the sources continue after the positions

A crash before the end of 3 loses nothing that a sink has shown: the work since the last commit is done again. After a
later crash, R2 repeats 4. So every alert is delivered exactly once, if sinks keep their contract: a transaction that
contains the number (Kafka), a file that is named by the number. Numbers only grow during a job's life. A checkpoint
that fails is logged, counted in `checkpoints_failed`, and tried again when the next one is due: data that is safe on
this disk does not wait for a target. With a store in memory, whose commits are checkpoints, the job ends. `on_step` is
called with the name of each step before the step; tests crash in it.
Tested by: tests/runners/embedded/test_commit.py, tests/runners/embedded/test_simulation.py
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from cep.base.errors import SinkAwayError, StateError, StoreError, UsageError
from cep.base.files import replace_file
from cep.base.schema import Schema
from cep.columnar.decode import Decoded, decode_json
from cep.columnar.mapping import PLAIN, FieldMapping
from cep.engine.alerts import sorted_together
from cep.lists.store import ListStore
from cep.runners.embedded.changelog import Changelog
from cep.runners.embedded.commit_entries import Head, LanePosition, Outgoing, PendingOutput, payload_of
from cep.runners.embedded.engine import Engine, Stepped
from cep.runners.embedded.lanes import Backlog, Lane, Sent, SinkQueues, futures_of, lanes_of
from cep.runners.embedded.opening import PART, StoreSettings, mark_damaged, open_store, store_folder
from cep.runners.embedded.outlets import Outlet, Outlets
from cep.runners.live_checkpoint import lock_checkpoint
from cep.runners.meanings import current_names
from cep.sinks.base import RecallingSink
from cep.sources.live.base import GappedSource, IdentifiedSource, LiveSource
from cep.state.checkpoints import BESIDE, Checkpoints, Part, Published
from cep.state.memory import MemoryStore
from cep.state.store import DurableStore, WriteBatch

_LINKS = "links"
_LOOK_S = 0.2  # between two looks at a job whose end waits for sinks
DELIVERED = "delivered"  # a file that says up to which checkpoint, once the process has ended in order


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of a job: events and their decoder, and control records if rules may change.

    mapping: where fields are in events that come as tables.
    """

    events: LiveSource
    control: LiveSource | None
    decode: Callable[[Schema, pa.Array], Decoded] = decode_json
    mapping: FieldMapping = PLAIN
    _identified: tuple[IdentifiedSource, ...] = field(init=False)
    _before: list[dict[str, dict[str, int]]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        # Once: to ask a protocol takes a tenth of a millisecond, and each commit needs the answer.
        identified = tuple(source for source in (self.events, self.control) if isinstance(source, IdentifiedSource))
        object.__setattr__(self, "_identified", identified)

    def hold_back(self, positions: dict[str, dict[str, int]]) -> None:
        """Let `positions` be these, before records that were read and cannot be matched yet, until `release`."""
        self._before[:] = [positions]

    def release(self) -> None:
        """Let all records that were read count as read again."""
        self._before.clear()

    @property
    def holds_back(self) -> bool:
        """True if records were read that do not count as read."""
        return bool(self._before)

    def positions(self) -> dict[str, dict[str, int]]:
        """Return the positions of a commit, by kind of source."""
        if self._before:
            return self._before[0]
        control = {} if self.control is None else self.control.positions()
        return {"events": self.events.positions(), "control": control}

    def gaps(self) -> Mapping[str, tuple[int, int]]:
        """Return the positions of events that the last `seek` has passed over, by lane."""
        return self.events.gaps if isinstance(self.events, GappedSource) else {}

    def topic_ids(self) -> dict[str, str]:
        """Return the ids of the topics that are read, by name."""
        return {topic: topic_id for source in self._identified for topic, topic_id in source.ids().items()}

    def seek(self, positions: Mapping[str, Mapping[str, int]], topic_ids: Mapping[str, str]) -> None:
        for source in self._identified:
            source.expect(topic_ids)
        self.events.seek(positions["events"])
        if self.control is not None:
            self.control.seek(positions["control"])

    def close(self) -> None:
        self.events.close()
        if self.control is not None:
            self.control.close()


class Commits:
    """The commit protocol of one process. Use it from one thread."""

    def __init__(
        self, settings: StoreSettings, on_step: Callable[[str], None] = lambda _: None,
        on_checkpoint: Callable[[int], None] = lambda _: None,
        on_failed: Callable[[StoreError], None] = lambda _: None,
        changelog: Changelog | None = None,
    ) -> None:  # fmt: skip
        """Open the store (R1): of the last commit, or of the newest whole checkpoint, or an empty one.

        `on_failed` gets the reason if a job continues without a checkpoint.
        Raises: UsageError if another process has the folder; StateError.
        """
        self._settings = settings
        self._lock = ExitStack()
        self._on_step = on_step
        self._on_failed = on_failed
        self._changelog = changelog
        self._checkpoints: Checkpoints | None = None
        self._copying: Future[Published] | None = None
        self._copied_s = time.monotonic()
        self._outgoing: dict[int, Outgoing] = {}  # by commit: in the store, and some sink is not known to have it
        self._lacking: Counter[int] = Counter()  # by commit: how many sinks are not known to have it
        self._outlets: Outlets | None = None  # of the lanes
        self.queues: SinkQueues | None = None  # the deliveries of a job whose alerts wait for no commit
        self.lanes: list[Lane] = []
        self._syncing: Future[None] | None = None  # the last commit's; None: it is on the disk
        self._forgettable: list[int] = []
        self._sent = Sent()  # alerts that sinks have and the job has forgotten
        self._from_checkpoint_ms: int | None = None
        self._outgoing_bytes = self._outgoing_count = 0  # of `_outgoing`
        self._base = 0  # the summand of a commit's number
        self._number = 0
        self._settled: int | None = None
        self._is_left = False  # a delivery or a copy still waits for another machine, and the process is about to end
        self.head: Head | None = None  # None: the job begins
        self.refused: tuple[str, ...] = ()
        self.last: Published | None = None
        self.checkpoint_error: StoreError | None = None  # of the last checkpoint, if it failed
        self._alone_s: float | None = None  # by time.monotonic(): since then there are commits without a checkpoint
        self._copying_number = self._copied_number = -1  # of the commit in the checkpoint that is copied, and was
        self.pending_output = PendingOutput()
        self.totals: Counter[str] = Counter()
        self.batch_id = 0  # of the next micro-batch, for the job's whole life
        self._log_thread = ThreadPoolExecutor(1, "log")
        # The same place relative to the store as in a restored checkpoint. A set is written before a commit names it.
        self.lists = ListStore(None if settings.folder is None else store_folder(settings.folder) / BESIDE)
        if settings.folder is None:
            self.store: DurableStore = MemoryStore()
            return
        self._lock.enter_context(lock_checkpoint(settings.folder))
        try:
            self._open(settings.folder, on_checkpoint)
        except BaseException:
            self._lock.close()
            raise

    # ------------------------------------------------------------------------------------------------------- start

    def _open(self, folder: Path, on_checkpoint: Callable[[int], None]) -> None:
        """Open the store (step R1), and find out whether the sinks may have got alerts that it does not know."""
        settings = self._settings
        self._on_step("R1")
        (folder / DELIVERED).unlink(missing_ok=True)
        opened = open_store(settings, folder, self._changelog)
        restored = opened.restored
        self.store, self.head, self.refused = opened.store, opened.head, opened.refused
        # In memory the newest checkpoint is the last commit, and no sink got later alerts.
        if restored is not None and (settings.backend != "memory" or restored.refused):
            self._from_checkpoint_ms = restored.manifest.created_ms
        if opened.replayed_ms is not None:
            self._from_checkpoint_ms = opened.replayed_ms
        is_continued = self.head is not None and restored is None and opened.replayed_ms is None
        self._lineage = self.head.lineage if self.head is not None and is_continued else uuid.uuid4().hex
        self._checkpoints = Checkpoints(
            opened.target, folder / _LINKS, kept_count=settings.kept_count, restored=restored, on_step=on_checkpoint
        )

    def resume(self, engine: Engine, sources: Sources, outlets: Outlets) -> None:
        """Resume from the last commit: engine (R1), sinks and sources (R2 to R4). Do nothing for a new job.

        Raises: UsageError if the store is of other key groups; StateError, SinkError, SourceError.
        """
        head = self.head
        if head is None:
            return
        if head.groups != engine.groups:
            stored, given = _shown(head.groups), _shown(engine.groups)
            raise UsageError(
                f"the checkpoint is of the key groups {stored}, not {given}; start it with --groups {stored}, or make "
                "a savepoint and restore it with the key groups of each process"
            )
        engine.restore()
        self.totals, self._base, self._number = current_names(head.totals), head.base, head.number
        self.batch_id = head.batch_id
        if self._changelog is not None:
            self._changelog.resume(self.store, self.lists)
        positions = self._take_up(outlets, head)
        self._on_step("R2")
        if self._from_checkpoint_ms is not None:
            self._recall(positions, self._from_checkpoint_ms)
        else:
            for lane in self.lanes:
                position = positions[lane.name]
                if position.delivery is not None and position.last is not None and lane.up_to(position.last):
                    self._begin_delivery(outlets, lane, lane.up_to(position.last), position.delivery, None)
        self._on_step("R4")
        sources.seek(head.positions, head.topic_ids)

    def _take_up(self, outlets: Outlets, head: Head) -> dict[str, LanePosition]:
        """Queue stored alerts for the sinks that lack them; return the stored position of each sink."""
        positions = self._open_lanes(outlets, head.lanes)
        self._sent = Sent.stored(self.store, [lane.name for lane in self.lanes if lane.outlet.belongs is None])
        for commit, outgoing in Outgoing.stored(self.store).items():
            for lane in self.lanes:
                position = positions[lane.name]
                if commit > position.position:
                    self._lacking[commit] += lane.add(commit, outgoing, position.since_ms)
            if self._lacking[commit]:
                self._note_outgoing(commit, outgoing)
            else:
                self._forgettable.append(commit)
        return positions

    def _open_lanes(self, outlets: Outlets, stored: Mapping[str, LanePosition]) -> dict[str, LanePosition]:
        """Make a lane for each sink, and tell of sinks that are gone; return the position of each sink."""
        lanes, gone = lanes_of(outlets.all, stored, self._number, has_changelog=self._changelog is not None)
        for lane in self.lanes:  # of other outlets, which have all
            lane.close(wait=False)
        self.lanes, self._outlets = [lane for lane, _ in lanes], outlets
        for name in sorted(gone):
            left = [item for commit, item in Outgoing.stored(self.store).items() if commit > stored[name].position]
            if left:
                outlets.abandoned(name, sum(item.alerts.num_rows for item in left))
        return {lane.name: position for lane, position in lanes}

    def _recall(self, positions: Mapping[str, LanePosition], created_ms: int) -> None:
        """Ask the sinks for alerts that forgotten commits sent after the checkpoint, under their numbers."""
        self._on_step("R3")
        # A delivery of that time went out under the number of a commit that the checkpoint has.
        after = {name: self._base + position.position for name, position in positions.items()}
        if "" in (self.head.lanes if self.head is not None else {}):  # of an earlier build
            after = dict.fromkeys(after, self._base + min(self._outgoing, default=self._number + 1) - 1)
        self._number = max(self._number, self._sent.recall(self.lanes, after, created_ms) - self._base)

    # ------------------------------------------------------------------------------------------------------ commits

    def take(self, stepped: Stepped) -> None:
        """1: keep the output of a micro-batch until the commit that delivers it."""
        self._on_step("1")
        self.pending_output.take(stepped)

    @property
    def from_checkpoint(self) -> bool:
        """True if sinks may have alerts of which the store did not know when it was opened."""
        return self._from_checkpoint_ms is not None

    @property
    def is_waiting(self) -> bool:
        """True if another commit is needed before something can be delivered."""
        return any(
            lane.is_idle or (lane.carries and lane.delivery is None and self.unsent_bytes > 0) for lane in self.lanes
        )

    @property
    def unsent_bytes(self) -> int:
        """The bytes of changes that no delivery to the changelog has taken over."""
        return 0 if self._changelog is None else self._changelog.pending_bytes

    @property
    def undelivered_count(self) -> int:
        """The number of alerts and dead letters that some sink is not known to have."""
        in_memory = 0 if self.queues is None else self.queues.undelivered_count
        return self._outgoing_count + self.pending_output.count + in_memory

    @property
    def undelivered_bytes(self) -> int:
        """The bytes of alerts and dead letters that some sink is not known to have."""
        return self._outgoing_bytes + (0 if self.queues is None else self.queues.undelivered_bytes)

    @property
    def backlogs(self) -> dict[str, Backlog]:
        """The alerts that wait for each sink of alerts, by its name."""
        if self.queues is not None:
            return self.queues.backlogs
        return {lane.name: lane.backlog for lane in self.lanes if lane.outlet.belongs is None}

    def begin(self, engine: Engine, sources: Sources, outlets: Outlets) -> bool:
        """Do 2, and start 3 and 4 in the background; return True if there was a commit.

        There is none without a folder, and none into memory while a checkpoint is being copied. Raises: StoreError,
        also for the sync of the previous commit.
        """
        is_memory = self._settings.backend == "memory"
        if self._checkpoints is None or (is_memory and self._copying is not None):
            return False
        self._wait_for_sync()
        self._on_step("2")
        if outlets is not self._outlets:
            self._open_lanes(outlets, {})
        number = self._number + 1
        batch = WriteBatch()
        engine.save(batch, number)
        self._write_outgoing(batch, number)
        idle = [lane for lane in self.lanes if lane.delivery is None]
        starting = {lane.name: lane.next_commits() for lane in idle if lane.is_idle or lane.carries}
        planned = {name: (number, commits[-1] if commits else number) for name, commits in starting.items()}
        head = Head(
            number,
            self._base,
            self._lineage,
            engine.groups,
            dict(self.totals),
            sources.positions(),
            {lane.name: lane.position(number, planned.get(lane.name)) for lane in self.lanes},
            self.batch_id,
            sources.topic_ids(),
        )
        head.save(batch)
        if self._changelog is not None:
            self._changelog.take(batch, self.store, self.lists, number)
        self.store.write(batch)
        self._syncing = self._log_thread.submit(self._sync)
        self._number, self.head = number, head
        self._alone_s = time.monotonic() if self._alone_s is None else self._alone_s
        if is_memory or self._is_checkpoint_due:
            self.checkpoint(engine)
        for lane in idle:
            if lane.name in starting:
                carried = self._changelog if lane.carries else None
                self._begin_delivery(outlets, lane, starting[lane.name], number, carried)
        return True

    def _sync(self) -> None:
        self._on_step("3")
        self.store.sync()

    def _wait_for_sync(self) -> None:
        """Until the last commit is on the disk. Raises: StoreError."""
        if self._syncing is not None:
            self._syncing.result()
            self._syncing = None

    def _begin_delivery(
        self, outlets: Outlets, lane: Lane, commits: Sequence[int], number: int, carried: Changelog | None
    ) -> None:
        """Begin to deliver these commits to a sink, in the background, once the last commit is on the disk.

        The changes for the changelog `carried` go with them.
        """
        items = [self._outgoing[commit] for commit in commits]
        waits = [self._syncing, self._copying if self._settings.backend == "memory" else None]
        entries, changed = ([], ()) if carried is None else carried.hand_over()

        def deliver() -> Sequence[str]:
            for task in waits:
                if task is not None:
                    task.result()
            if carried is not None:
                carried.carry(entries)
            self._deliver(outlets, lane, items, number)
            place = lane.outlet.sink.place() if isinstance(lane.outlet.sink, RecallingSink) else ""
            return [place] if place else []

        lane.begin(number, commits[-1] if commits else number, deliver, changed)

    def _write_outgoing(self, batch: WriteBatch, number: int) -> None:
        """Add the alerts and dead letters of a commit to its write batch, and remove those that all sinks have."""
        for delivered in self._forgettable:
            Outgoing.forget(batch, delivered)
        self._forgettable = []
        if self.pending_output:
            outgoing = Outgoing(self.pending_output.table(), tuple(self.pending_output.dead_letters))
            since_ms = int(time.time() * 1_000)
            self._lacking[number] = sum(lane.add(number, outgoing, since_ms) for lane in self.lanes)
            if self._lacking[number]:
                outgoing.save(batch, number)
                self._note_outgoing(number, outgoing)
            self.pending_output = PendingOutput()
        self._sent.save(batch)

    def _note_outgoing(self, commit: int, outgoing: Outgoing) -> None:
        """Keep a commit's alerts in memory, until no sink lacks them."""
        self._outgoing[commit] = outgoing
        self._outgoing_count += outgoing.count
        self._outgoing_bytes += outgoing.bytes

    @property
    def _is_checkpoint_due(self) -> bool:
        return time.monotonic() - self._copied_s >= self._settings.checkpoint_ms / 1_000

    @property
    def uncheckpointed_s(self) -> float:
        """The seconds for which commits have been on this disk alone."""
        return 0.0 if self._alone_s is None else time.monotonic() - self._alone_s

    def checkpoint_quiet(self, engine: Engine) -> None:
        """Begin a checkpoint if one is due and the newest one lacks commits, though there is nothing to commit now.

        Without it the last commit of a stream that falls silent would exist on this disk only. A restored store without
        a later commit is not copied: a later start would take it for a store that knows the contents of the sinks.
        Raises: StoreError.
        """
        if self._checkpoints is None or self.head is None or self._settings.backend == "memory":
            return
        if self.head.lineage != self._lineage:
            return
        if self._copied_number != self._number and self._is_checkpoint_due:
            self.checkpoint(engine)

    def checkpoint(self, engine: Engine) -> None:
        """Begin a checkpoint of the store as it is, unless one is still being copied. Raises: StoreError."""
        assert self._checkpoints is not None, "there is a folder"
        if self._copying is None:
            self._wait_for_sync()
            part = Part(PART, self.store, engine.groups.start, engine.groups.stop)
            payload = payload_of(self._lineage, engine.audit_head())
            is_atomic = self._settings.backend != "memory"
            self._copying_number = self._number
            self._copying = self._checkpoints.begin(
                (part,), payload, int(time.time() * 1_000), is_atomic=is_atomic, beside=self.lists.files
            )
            self._copied_s = time.monotonic()

    def finish(self, *, wait: bool) -> None:
        """Finish deliveries (step 5) and checkpoints that are over, or wait for them if that is allowed.

        Raises: SinkError, StoreError, StateCorruptError; the job continues from its last commit when it starts again.
        """
        copying = self._copying
        if self.queues is not None:
            self.queues.finish()
        if wait or (self._syncing is not None and self._syncing.done()):
            self._wait_for_sync()
        if copying is not None and (wait or copying.done()):
            self._copying = None
            self._copied(copying)
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
        """Finish the delivery to one sink (step 5). Raises: SinkError, StoreError."""
        delivery, settled = lane.settle()
        self._on_step("5")
        for commit, _, _ in settled:
            outgoing = self._outgoing[commit]
            self.count_delivered(lane.outlet, outgoing.alerts.num_rows)
            if lane.outlet.belongs is None:
                self._sent.settle(lane.name, outgoing.alerts)
            self._lacking[commit] -= 1
            if not self._lacking[commit]:
                del self._lacking[commit], self._outgoing[commit]
                self._outgoing_count -= outgoing.count
                self._outgoing_bytes -= outgoing.bytes
                self._forgettable.append(commit)
        if self._changelog is not None:
            self._changelog.settle(delivery.changed)

    def count_delivered(self, outlet: Outlet, alerts_count: int) -> None:
        """Count the alerts that a sink has taken. A sink of dead letters gets no alerts."""
        if outlet.belongs is None:
            self.totals[f"alerts_delivered[{outlet.name}]"] += alerts_count

    def wait_for_delivery(self, wait_s: float) -> None:
        """Wait for the end of a delivery or a checkpoint that is under way, at most so long."""
        wait(self._tasks(), wait_s, FIRST_COMPLETED)

    def _tasks(self) -> list[Future[Any]]:
        queued = [] if self.queues is None else self.queues.tasks
        return [*futures_of(self.lanes), *queued, *([] if self._copying is None else [self._copying])]

    def _copied(self, copying: Future[Published]) -> None:
        """Note the result of a checkpoint: its number, or the error."""
        try:
            self.last = copying.result()
        except StoreError as error:
            if self._settings.backend == "memory":
                raise
            self.last, self.checkpoint_error = None, error
            self.totals["checkpoints_failed"] += 1
            self._on_failed(error)
        else:
            self._copied_number, self.checkpoint_error = self._copying_number, None
            self._alone_s = None if self._copied_number == self._number else self._copied_s

    def settle(
        self, engine: Engine, sources: Sources, outlets: Outlets, look: Callable[[], None] = lambda: None
    ) -> None:
        """Commit and deliver everything, and take a checkpoint without a delivery in progress, if the target has it.

        `look` is called now and then while this waits. Raises: SinkError, StoreError.
        """
        if self._checkpoints is None:
            return
        self._drain(engine, sources, outlets, None, look)
        if self._settings.backend != "memory":
            self.finish(wait=True)
            self.checkpoint(engine)
            self.finish(wait=True)
        self._settled = None if self.last is None else self.last.number

    def leave(self, engine: Engine, sources: Sources, outlets: Outlets, wait_s: float) -> bool:
        """Commit everything, and deliver as much as the sinks accept within `wait_s`, because the job must stop.

        The next start delivers the rest under the same numbers. Returns: whether everything was delivered and is in a
        checkpoint. Raises: SinkError for another reason than a sink that is away; StoreError.
        """
        if self._checkpoints is None:
            return True
        deadline_s = time.monotonic() + wait_s
        is_over = self._drain(engine, sources, outlets, deadline_s)
        self._wait_for_sync()
        if is_over and self._settings.backend != "memory":
            self.checkpoint(engine)
            is_over = not wait(self._tasks(), max(0.0, deadline_s - time.monotonic())).not_done
            self.finish(wait=False)
        self._is_left = not is_over
        if self._is_left:
            outlets.left.set()
        if is_over and self.last is not None:
            self._settled = self.last.number
        return is_over

    def _drain(
        self, engine: Engine, sources: Sources, outlets: Outlets, deadline_s: float | None,
        look: Callable[[], None] = lambda: None,
    ) -> bool:  # fmt: skip
        """Commit everything, and deliver it to each sink as fast as the sink accepts it, until the deadline.

        Returns: whether all sinks have all alerts. Raises: SinkError; StoreError; without a deadline also
        SinkAwayError.
        """
        is_committed = False
        while True:
            try:
                self.finish(wait=False)
            except SinkAwayError:  # it has given up; the other sinks go on
                if deadline_s is None:
                    raise
            if not is_committed or self.pending_output or self._forgettable or self.is_waiting:
                is_committed = self.begin(engine, sources, outlets) or is_committed
            tasks = self._tasks()
            if is_committed and not tasks:
                return not self._outgoing and not any(lane.has_failed for lane in self.lanes)
            wait_s = None if deadline_s is None or not is_committed else deadline_s - time.monotonic()
            if wait_s is not None and wait_s <= 0:
                return False
            wait(tasks, _LOOK_S if wait_s is None else wait_s, FIRST_COMPLETED)
            look()

    def distrust(self) -> None:
        """Mark the store as damaged: the next start takes the newest checkpoint in its place."""
        if self._settings.folder is not None:
            mark_damaged(self._settings.folder)

    def close(self) -> None:
        """Wait for the background work, and close the store."""
        self._log_thread.shutdown()
        if self.queues is not None:
            self.queues.close()
        for lane in self.lanes:
            lane.close(wait=not self._is_left)
        if self._checkpoints is not None and not self._is_left:
            self._checkpoints.close()
        with suppress(StateError):  # a store whose disk was full reports it again; its commits exist
            self.store.close()
        if self._settings.folder is not None and self._settled is not None:
            with suppress(OSError):  # the next start then cannot see that the end was in order
                replace_file(self._settings.folder / DELIVERED, str(self._settled).encode())
        self._lock.close()

    def _deliver(self, outlets: Outlets, lane: Lane, items: Sequence[Outgoing], number: int) -> None:
        self._on_step("4")
        alerts = sorted_together([item.alerts for item in items if item.alerts.num_rows])
        lines = [line for item in items for line in item.dead_letters]
        content = lane.outlet.content(self._sent.lacking(lane.name, alerts), lines)
        if len(content) or lane.carries:
            outlets.send(lane.outlet, content, self._base + number)


def _shown(groups: range) -> str:
    return f"{groups.start}-{groups.stop - 1}"
