"""Micro-batches → commits: keyed state, positions and what has not been delivered, all of one moment, on this disk.

    1  hold      alerts and letters of the micro-batches since the last commit wait in memory
    2  write     one write batch: changed pages, what waits, positions, rulebook, watermark, totals; alerts and letters;
                 which of them are to be delivered now, and that those of the last delivery are forgotten
    3  sync      in the background: the store's log reaches the disk: from here on the commit is there, before it is not
    4  deliver   behind 3, in the background: alerts and letters, of several commits perhaps, under the number of this
                 one; with a changelog what these commits have changed, in the same transaction
    5  settle    the delivery is known to be over: the next commit forgets it, and may ask for another one

A commit costs what has changed and one write to the disk, so there is one for each micro-batch if nothing else is asked
for. While the disk writes, the next micro-batch is matched; its commit begins when the one before is there. Every so
often a checkpoint is taken after 3, in the background (checkpoints.py): for another machine, for a savepoint, for the
day on which this disk is lost. One is also taken once the stream has fallen silent. A store in memory has no log: a
commit there is safe when its checkpoint is.

Start:

    R1 open      the local store; if it is gone, damaged or behind, that of the changelog or of the newest whole
                 checkpoint (opening.py)
    R2 deliver   what was to be delivered, under its number: sinks take the same number twice as if it came once
    R3 recall    only if it was brought back: the sinks tell which alerts they got since. No sink gets those again
    R4 seek      the sources go on behind the positions

A crash before 3 is over loses nothing that was shown: the work since the last commit is done again. After it, R2 does
what 4 did or was about to do. So every alert is delivered exactly once, if sinks keep their contract: a transaction
with the number in it (Kafka), a file with the number as its name. Numbers only grow, for a job's whole life.
A checkpoint that fails is told, counted in `checkpoints_failed` and tried again when the next one is due: what is safe
on this disk does not wait for a target. With a store in memory, whose commits are checkpoints, the job ends.
`on_step` is called before each step with its name: what tests crash in.
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

from cep.base.durable import replace_file
from cep.base.errors import SinkAwayError, StateError, StoreError, UsageError
from cep.base.schema import Schema
from cep.columnar.decode import Decoded, decode_json
from cep.columnar.mapping import PLAIN, FieldMapping
from cep.engine.alerts import sorted_together
from cep.lists.store import ListStore
from cep.runners.embedded.changelog import Changelog
from cep.runners.embedded.commit_entries import Head, Outgoing, PendingOutput, payload_of
from cep.runners.embedded.engine import Engine, Stepped
from cep.runners.embedded.opening import PART, StoreSettings, mark_damaged, open_store, store_folder
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.sent import Sent
from cep.runners.live_checkpoint import lock_checkpoint
from cep.runners.meanings import current_names
from cep.sources.live.base import IdentifiedSource, LiveSource
from cep.state.checkpoints import BESIDE, Checkpoints, Part, Published
from cep.state.memory import MemoryStore
from cep.state.store import DurableStore, WriteBatch

_LINKS = "links"
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

    def __post_init__(self) -> None:
        # Once: to ask a protocol takes a tenth of a millisecond, and each commit needs the answer.
        identified = tuple(source for source in (self.events, self.control) if isinstance(source, IdentifiedSource))
        object.__setattr__(self, "_identified", identified)

    def positions(self) -> dict[str, dict[str, int]]:
        control = {} if self.control is None else self.control.positions()
        return {"events": self.events.positions(), "control": control}

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


@dataclass(frozen=True, slots=True)
class _Delivery:
    """Between 4 and 5, under the number of the commit that began it, which may have nothing to deliver itself.

    `commits`: those whose alerts and letters it has; `changed`: those whose changes it brings.
    """

    number: int
    commits: tuple[int, ...]
    done: Future[list[str]]
    changed: tuple[int, ...] = ()


class Commits:
    """The commit protocol of one process. Use it from one thread."""

    def __init__(
        self, settings: StoreSettings, on_step: Callable[[str], None] = lambda _: None,
        on_checkpoint: Callable[[int], None] = lambda _: None,
        on_failed: Callable[[StoreError], None] = lambda _: None,
        changelog: Changelog | None = None,
    ) -> None:  # fmt: skip
        """R1 as far as the store: after it `store` is of the last commit, or of the newest whole checkpoint, or empty.

        `on_failed` is told why there is no checkpoint, where the job goes on without.
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
        self._outgoing: dict[int, Outgoing] = {}  # by commit: in the store, and not known to be delivered
        self._delivery: _Delivery | None = None
        self._syncing: Future[None] | None = None  # the last commit's; None: it is on the disk
        self._forgettable: list[int] = []
        self._recalled: list[int] = []  # commits whose alerts the sinks had in part; the store does not know it yet
        self._sent = Sent()  # what sinks have though the job has forgotten it
        self._from_checkpoint_ms: int | None = None
        self._places: list[str] = []  # of sinks, when nothing was on its way to them
        self._base = 0  # what is added to a commit's number
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
        self._thread = ThreadPoolExecutor(1, "delivery")
        self._log_thread = ThreadPoolExecutor(1, "log")
        # Beside the store, where a checkpoint that is restored has them; a set is written before a commit names it.
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
        settings = self._settings
        self._on_step("R1")
        (folder / DELIVERED).unlink(missing_ok=True)
        opened = open_store(settings, folder, self._changelog)
        restored = opened.restored
        self.store, self.head, self.refused = opened.store, opened.head, opened.refused
        # In memory the newest checkpoint is the last commit: nothing went out behind it.
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
        """R1 for the engine, R2 to R4; nothing of it for a job that begins.

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
        self._outgoing, self._sent = Outgoing.stored(self.store), Sent.stored(self.store, len(outlets.sinks))
        self._places = list(head.places)
        if self._changelog is not None:
            self._changelog.resume(self.store, self.lists)
        self._on_step("R2")
        if self._from_checkpoint_ms is not None:
            self._recall(outlets, self._from_checkpoint_ms)
        elif head.delivery is not None:
            commits = tuple(number for number in self._outgoing if number <= head.delivery)
            self._deliver(outlets, [self._outgoing[number] for number in commits], head.delivery)
            self._forget(commits)
        self._on_step("R4")
        sources.seek(head.positions, head.topic_ids)

    def _recall(self, outlets: Outlets, created_ms: int) -> None:
        """Ask the sinks for alerts that forgotten commits sent after the checkpoint, under their numbers."""
        self._on_step("R3")
        # What was on its way at that time went out under the number of a commit that the checkpoint has.
        after = min(self._outgoing, default=self._number + 1) - 1
        newest = self._sent.recall(outlets, self._base + after, created_ms, self._places)
        self._number = max(self._number, newest - self._base)
        for number, outgoing in self._outgoing.items():
            self._outgoing[number] = Outgoing(self._sent.unsent(outgoing.alerts), outgoing.dead_letters)
        self._recalled = list(self._outgoing)

    # ------------------------------------------------------------------------------------------------------ commits

    def take(self, stepped: Stepped) -> None:
        """1: keep what a micro-batch gave until the commit that delivers it."""
        self._on_step("1")
        self.pending_output.take(stepped)

    @property
    def from_checkpoint(self) -> bool:
        """True if sinks may have alerts of which the store did not know when it was opened."""
        return self._from_checkpoint_ms is not None

    @property
    def is_waiting(self) -> bool:
        """True if another commit is needed before something can be delivered."""
        return self._delivery is None and (bool(self._outgoing) or self.unsent_bytes > 0)

    @property
    def unsent_bytes(self) -> int:
        """The bytes of changes that no delivery to the changelog has taken over."""
        return 0 if self._changelog is None else self._changelog.pending_bytes

    @property
    def undelivered_count(self) -> int:
        """Alerts and dead letters that no sink is known to have."""
        outgoing = sum(item.alerts.num_rows + len(item.dead_letters) for item in self._outgoing.values())
        return int(
            outgoing
            + sum(table.num_rows for table in self.pending_output.alerts)
            + len(self.pending_output.dead_letters)
        )

    def begin(self, engine: Engine, sources: Sources, outlets: Outlets) -> bool:
        """2, and 3 and 4 in the background; says whether there was a commit.

        There is none without a folder, and none into memory while a checkpoint is being copied. Raises: StoreError,
        also for the sync of the commit before.
        """
        is_memory = self._settings.backend == "memory"
        if self._checkpoints is None or (is_memory and self._copying is not None):
            return False
        self._wait_for_sync()
        self._on_step("2")
        number = self._number + 1
        batch = WriteBatch()
        engine.save(batch, number)
        self._write_outgoing(batch, number)
        delivers = self._delivery is None and (bool(self._outgoing) or self._changelog is not None)
        delivery = number if delivers else (self._delivery.number if self._delivery is not None else None)
        head = Head(
            number,
            self._base,
            self._lineage,
            engine.groups,
            delivery,
            dict(self.totals),
            sources.positions(),
            self._places,
            self.batch_id,
            sources.topic_ids(),
        )
        head.save(batch)
        if self._changelog is not None:
            self._changelog.take(batch, self.store, self.lists, number)
        self.store.write(batch)
        syncing = self._syncing = self._log_thread.submit(self._sync)
        self._number, self.head = number, head
        self._alone_s = time.monotonic() if self._alone_s is None else self._alone_s
        if is_memory or self._is_checkpoint_due:
            self.checkpoint(engine)
        if delivers:
            self._delivery = self._begun_delivery(outlets, number, syncing)
        return True

    def _sync(self) -> None:
        self._on_step("3")
        self.store.sync()

    def _wait_for_sync(self) -> None:
        """Until the last commit is on the disk. Raises: StoreError."""
        if self._syncing is not None:
            self._syncing.result()
            self._syncing = None

    def _begun_delivery(self, outlets: Outlets, number: int, syncing: Future[None]) -> _Delivery:
        """Begin to deliver all that waits, in the background, once the commit is on the disk."""
        commits = tuple(self._outgoing)
        items = [self._outgoing[commit] for commit in commits]
        waits_for = self._copying if self._settings.backend == "memory" else None
        entries, changed = ([], ()) if self._changelog is None else self._changelog.hand_over()

        def deliver() -> list[str]:
            syncing.result()
            if waits_for is not None:
                waits_for.result()
            if self._changelog is not None:
                self._changelog.carry(entries)
            self._deliver(outlets, items, number)
            return [place for sink in outlets.recalling if (place := sink.place())]

        return _Delivery(number, commits, self._thread.submit(deliver), changed)

    def _write_outgoing(self, batch: WriteBatch, number: int) -> None:
        for delivered in self._forgettable:
            Outgoing.forget(batch, delivered)
        self._forgettable = []
        for recalled in self._recalled:  # without what was sent, as the ids that are still known say
            Outgoing.forget(batch, recalled)
            self._outgoing[recalled].save(batch, recalled)
        self._recalled = []
        if self.pending_output:
            outgoing = Outgoing(self._sent.unsent(self.pending_output.table()), tuple(self.pending_output.dead_letters))
            outgoing.save(batch, number)
            self._outgoing[number] = outgoing
            self.pending_output = PendingOutput()
        self._sent.save(batch)

    @property
    def _is_checkpoint_due(self) -> bool:
        return time.monotonic() - self._copied_s >= self._settings.checkpoint_ms / 1_000

    @property
    def uncheckpointed_s(self) -> float:
        """The seconds for which commits have been on this disk alone."""
        return 0.0 if self._alone_s is None else time.monotonic() - self._alone_s

    def checkpoint_quiet(self, engine: Engine) -> None:
        """Begin a checkpoint if one is due and the newest one lacks commits, though there is nothing to commit now.

        Without it a stream that falls silent would leave its last commits on this disk alone. A store that was brought
        back and has had no commit since is none to keep: a later start would take it for one that knows what the sinks
        have. Raises: StoreError.
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
        """5, if the delivery is over or may be waited for, and the same for 3 and for a checkpoint.

        Raises: SinkError, StoreError, StateCorruptError; the job goes on from its last commit when started again.
        """
        copying, delivery = self._copying, self._delivery
        if wait or (self._syncing is not None and self._syncing.done()):
            self._wait_for_sync()
        if copying is not None and (wait or copying.done()):
            self._copying = None
            self._copied(copying)
        if delivery is not None and (wait or delivery.done.done()):
            self._places = delivery.done.result()
            self._on_step("5")
            self._forget(delivery.commits)
            if self._changelog is not None:
                self._changelog.settle(delivery.changed)
            self._delivery = None

    def wait_for_delivery(self, wait_s: float) -> None:
        """Wait for the end of a delivery or a checkpoint that is under way, at most so long."""
        tasks: list[Future[Any]] = [] if self._delivery is None else [self._delivery.done]
        tasks += [] if self._copying is None else [self._copying]
        wait(tasks, wait_s, FIRST_COMPLETED)

    def _copied(self, copying: Future[Published]) -> None:
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

    def settle(self, engine: Engine, sources: Sources, outlets: Outlets) -> None:
        """Commit and deliver everything, and take a checkpoint in which nothing is on its way, if the target has it.

        Raises: SinkError, StoreError.
        """
        if self._checkpoints is None:
            return
        self.finish(wait=True)
        while True:
            self.begin(engine, sources, outlets)
            self.finish(wait=True)
            if not (self.pending_output or self._outgoing or self._forgettable):
                break
        if self._settings.backend != "memory":
            self.checkpoint(engine)
            self.finish(wait=True)
        self._settled = None if self.last is None else self.last.number

    def leave(self, engine: Engine, sources: Sources, outlets: Outlets, wait_s: float) -> bool:
        """Commit everything, and deliver what the sinks take within `wait_s`; for a job that is asked to stop.

        The next start delivers the rest under the same numbers. Returns: whether everything was delivered and is in a
        checkpoint. Raises: SinkError for another reason than a sink that is away; StoreError.
        """
        if self._checkpoints is None:
            return True
        deadline_s = time.monotonic() + wait_s
        is_over = self._ends_by(deadline_s)
        while self.begin(engine, sources, outlets) and is_over:
            is_over = self._ends_by(deadline_s)
            if not (self.pending_output or self._outgoing or self._forgettable):
                break
        self._wait_for_sync()
        if is_over and self._settings.backend != "memory":
            self.checkpoint(engine)
            is_over = self._ends_by(deadline_s)
        self._is_left = not is_over
        if self._is_left:
            outlets.left.set()
        if is_over and self.last is not None:
            self._settled = self.last.number
        return is_over

    def _ends_by(self, deadline_s: float) -> bool:
        """Wait for the background work. Returns: True if it has ended and its outcome is noted."""
        tasks: list[Future[Any]] = [] if self._delivery is None else [self._delivery.done]
        tasks += [] if self._copying is None else [self._copying]
        if wait(tasks, max(0.0, deadline_s - time.monotonic())).not_done:
            return False
        try:
            self.finish(wait=True)
        except SinkAwayError:
            return False
        return True

    def distrust(self) -> None:
        """Mark the store as damaged: the next start takes the newest checkpoint in its place."""
        if self._settings.folder is not None:
            mark_damaged(self._settings.folder)

    def close(self) -> None:
        """Wait for what goes on in the background, and let go of the store."""
        self._log_thread.shutdown()
        self._thread.shutdown(wait=not self._is_left)
        if self._checkpoints is not None and not self._is_left:
            self._checkpoints.close()
        with suppress(StateError):  # one whose disk was full says so again; what was committed is there
            self.store.close()
        if self._settings.folder is not None and self._settled is not None:
            with suppress(OSError):  # then nobody knows that the end was in order
                replace_file(self._settings.folder / DELIVERED, str(self._settled).encode())
        self._lock.close()

    def _deliver(self, outlets: Outlets, items: Sequence[Outgoing], number: int) -> None:
        self._on_step("4")
        alerts = sorted_together([item.alerts for item in items if item.alerts.num_rows])
        dead_letters = [letter for item in items for letter in item.dead_letters]
        outlets.deliver(alerts, dead_letters, self._base + number, self._sent.lacking)

    def _forget(self, commits: Sequence[int]) -> None:
        for number in commits:
            self._sent.settle(self._outgoing.pop(number).alerts)
        self._forgettable += commits


def _shown(groups: range) -> str:
    return f"{groups.start}-{groups.stop - 1}"
