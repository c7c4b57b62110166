"""Micro-batches → commits on this disk. A commit has keyed state, positions and undelivered alerts of one moment.

    1  hold      alerts and letters of the micro-batches since the last commit wait in memory
    2  write     one write batch: changed pages, waiting events, positions, rulebook, watermark, totals, alerts and
                 letters; which alerts are to be delivered now, and that the alerts of the last delivery are forgotten
    3  sync      in the background: the store's log reaches the disk. From then on the commit exists
    4  deliver   after 3, in the background and for each sink by itself (queues.py): its alerts or letters, perhaps of
                 several commits, under the number of this commit; with a changelog the changes of these commits are
                 part of the transaction of the last sink
    5  settle    the delivery to a sink is over: the next commit forgets it, and may start another one.
                 Once all sinks have a commit, its alerts leave the store

While the disk writes (3), the next micro-batch is matched. At intervals a checkpoint is taken after 3, in the
background (copies.py): for another machine, for a savepoint, and in case this disk is lost. A store in memory does not
have a log: a commit there is safe when its checkpoint is.

Start:

    R1 open      the local store; if it is gone, damaged or old, the store of the changelog or of the newest
                 checkpoint (opening.py)
    R2 deliver   the unfinished delivery of each sink, under its number, in the background: a sink that gets the same
                 number twice ends as if it came once
    R3 recall    only after a restore: the sinks report which alerts they got since. They do not get these again
    R4 seek      the sources continue after the positions

A crash before the end of 3 loses nothing that a sink has shown: the work since the last commit is done again. After a
later crash, R2 repeats 4. So every alert is delivered exactly once, if a sink's transaction (Kafka) or file has the
number. Numbers only grow during a job's life. `on_step` is called with the name of each step before it; tests crash
there.
Tested by: tests/runners/embedded/test_commit.py, tests/runners/embedded/test_simulation.py
"""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
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
from cep.lists.store import ListStore
from cep.runners.embedded.changelog import Changelog
from cep.runners.embedded.commit_entries import Head, Numbers
from cep.runners.embedded.copies import CheckpointCopies
from cep.runners.embedded.deliveries import Deliveries
from cep.runners.embedded.engine import Engine
from cep.runners.embedded.opening import StoreSettings, mark_damaged, open_store, store_folder
from cep.runners.embedded.outlets import Outlets
from cep.runners.live_checkpoint import lock_checkpoint
from cep.runners.meanings import current_names
from cep.sources.live.base import GappedSource, IdentifiedSource, LiveSource
from cep.state.checkpoints import LISTS_FOLDER, Checkpoints
from cep.state.memory import MemoryStore
from cep.state.store import DurableStore, WriteBatch

_LINKS = "links"  # a folder: hard links to the files that a checkpoint copies
_LOOK_S = 0.2  # between two looks at a job whose end waits for sinks
DELIVERED = "delivered"  # a file that says up to which checkpoint, once the process has ended in order


@dataclass(slots=True)
class Sources:
    """The sources of a job: events and their decoder, and control records if rules may change."""

    events: LiveSource
    control: LiveSource | None
    decode: Callable[[Schema, pa.Array], Decoded] = decode_json
    mapping: FieldMapping = PLAIN  # where fields are in events that come as tables
    # `positions` while records were read that cannot be matched yet: they do not count as read.
    positions_before: dict[str, dict[str, int]] | None = field(default=None, init=False)
    _identified: tuple[IdentifiedSource, ...] = field(init=False)

    def __post_init__(self) -> None:
        # Once: to ask a protocol takes a tenth of a millisecond, and each commit needs the answer.
        sources = self.events, self.control
        self._identified = tuple(source for source in sources if isinstance(source, IdentifiedSource))

    def positions(self) -> dict[str, dict[str, int]]:
        """Return the positions of a commit, by kind of source."""
        if self.positions_before is not None:
            return self.positions_before
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


class _Log:
    """The log of the store, which a background thread writes to the disk: step 3 (sync) of a commit."""

    def __init__(self, store: DurableStore, on_step: Callable[[str], None]) -> None:
        self._store = store
        self._on_step = on_step
        self._thread = ThreadPoolExecutor(1, "log")
        self._syncing: Future[None] | None = None  # the last commit's; None: it is on the disk

    @property
    def futures(self) -> list[Future[None]]:
        return [] if self._syncing is None else [self._syncing]

    def begin(self) -> None:
        self._syncing = self._thread.submit(self._sync)

    def _sync(self) -> None:
        self._on_step("3")  # the name of the step, for tests that crash there
        self._store.sync()

    def finish(self, *, wait: bool) -> None:
        """Note the end of the write, or wait for it. Raises: StoreError."""
        if self._syncing is not None and (wait or self._syncing.done()):
            self._syncing.result()
            self._syncing = None

    def close(self) -> None:
        self._thread.shutdown()


class Commits:
    """The commit protocol of one process. Use it from one thread."""

    def __init__(
        self, settings: StoreSettings, on_step: Callable[[str], None] = lambda _: None,
        on_checkpoint: Callable[[int], None] = lambda _: None,
        on_failed: Callable[[StoreError], None] = lambda _: None,
        changelog: Changelog | None = None,
    ) -> None:  # fmt: skip
        """Open the store: of the last commit on this disk, or of the newest whole checkpoint (a copy), or an empty one.

        `on_step` is called before each step of a start or a commit, with its name. `on_failed` gets the reason if
        a checkpoint fails and the job continues. Raises: UsageError, StateError.
        """
        self._settings = settings
        self._is_in_memory = settings.backend == "memory"
        self._lock = ExitStack()  # on the job's folder
        self.refused: tuple[str, ...] = ()  # checkpoints that could not be used
        self.from_checkpoint_ms: int | None = None  # when the store was copied (ms UTC), if sinks may have later alerts
        self._on_step = on_step
        self._changelog = changelog  # copies the store to a Kafka topic
        self._numbers = Numbers()  # the last commit's number, and the store's random name
        self.totals: Counter[str] = Counter()
        self.batch_id = 0  # of the next micro-batch, for the job's whole life
        self.head: Head | None = None  # the record of the last commit; None: the job begins
        self.deliveries = Deliveries(self._numbers, self.totals, changelog, on_step)
        self.checkpoints: CheckpointCopies | None = None  # None: the job has no folder, and does not commit
        # True: all output is delivered and in a checkpoint. False: the process ends while sinks lack some of it. None:
        # the job works, or had an error.
        self._is_all_delivered: bool | None = None
        # The files of lists are in the folder `LISTS_FOLDER` next to the store, as in a checkpoint.
        self.lists = ListStore(None if settings.folder is None else store_folder(settings.folder) / LISTS_FOLDER)
        if settings.folder is None:
            self.store: DurableStore = MemoryStore()
        else:
            self._lock.enter_context(lock_checkpoint(settings.folder))
            try:
                self.store, self.checkpoints = self._open(settings.folder, on_checkpoint, on_failed)
            except BaseException:
                self._lock.close()
                raise
        self._log = _Log(self.store, on_step)

    def _open(
        self, folder: Path, on_checkpoint: Callable[[int], None], on_failed: Callable[[StoreError], None]
    ) -> tuple[DurableStore, CheckpointCopies]:
        """Open the store. If sinks may have later alerts, set `from_checkpoint_ms`, so that `resume` asks for them."""
        # Step R1 of a start (module docstring): open.
        self._on_step("R1")
        settings = self._settings
        (folder / DELIVERED).unlink(missing_ok=True)  # the file says that all alerts are delivered
        opened = open_store(settings, folder, self._changelog)
        self.head, self.refused, restored = opened.head, opened.refused, opened.restored  # refused: damaged copies
        # With a store in memory, alerts wait for a checkpoint. If the newest one is used, no sink has later alerts.
        if restored is not None and (not self._is_in_memory or restored.refused):
            self.from_checkpoint_ms = restored.manifest.created_ms
        if opened.replayed_ms is not None:  # the store was read from the changelog, up to that time
            self.from_checkpoint_ms = opened.replayed_ms
        # A lineage is the random name of a store. A copy gets a new name, because the old store may still be in use.
        is_continued = self.head is not None and restored is None and opened.replayed_ms is None
        self._numbers.lineage = self.head.lineage if self.head is not None and is_continued else uuid.uuid4().hex
        checkpoints = Checkpoints(
            opened.target, folder / _LINKS, kept_count=settings.kept_count, restored=restored, on_step=on_checkpoint
        )
        return opened.store, CheckpointCopies(checkpoints, settings, self._numbers, self.totals, on_failed)

    def resume(self, engine: Engine, sources: Sources, outlets: Outlets) -> None:
        """Resume the engine, the deliveries and the sources from the last commit. Do nothing for a new job.

        Raises: UsageError if the store is of other key groups; StateError, SinkError, SourceError.
        """
        head, numbers = self.head, self._numbers
        if head is None:
            return
        if head.groups != engine.groups:
            stored, given = _groups_text(head.groups), _groups_text(engine.groups)
            raise UsageError(
                f"the checkpoint is of the key groups {stored}, not {given}; start it with --groups {stored}, or make "
                "a savepoint and restore it with the key groups of each process"
            )
        engine.restore()
        numbers.base, numbers.last, self.batch_id = head.base, head.number, head.batch_id  # sinks get base + number
        self.totals.clear()
        self.totals.update(current_names(head.totals))
        if self._changelog is not None:
            self._changelog.resume(self.store, self.lists)
        positions = self.deliveries.requeue_stored(outlets, head, self.store)  # up to which commit each sink has all
        # Step R2 of a start: deliver again what a sink may lack.
        self._on_step("R2")
        if self.from_checkpoint_ms is None:
            self.deliveries.repeat_unfinished(positions)
        else:
            # Step R3: the state is older than the sinks, so they are asked for the alerts that they got since.
            self._on_step("R3")
            newest = self.deliveries.recall_later(positions, head, self.from_checkpoint_ms)
            numbers.last = max(numbers.last, newest)  # sinks have seen the numbers up to `newest`
        # Step R4: the sources continue after the positions of the commit.
        self._on_step("R4")
        sources.seek(head.positions, head.topic_ids)

    def begin(self, engine: Engine, sources: Sources, outlets: Outlets) -> bool:
        """Write a commit, and start its sync to the disk and its deliveries in the background. Raises: StoreError.

        Returns: False if it cannot commit: without a folder, or while a store in memory is still being copied.
        """
        checkpoints, deliveries = self.checkpoints, self.deliveries
        if checkpoints is None:
            engine.forget_changes()
        if checkpoints is None or (self._is_in_memory and checkpoints.futures):
            return False
        self._log.finish(wait=True)  # the sync of the commit before
        # Step 2 of a commit: write.
        self._on_step("2")
        number, batch = self._numbers.last + 1, WriteBatch()
        engine.save(batch, number)
        deliveries.save(batch, number, outlets, self.store)
        starting, sink_positions = deliveries.plan(number)  # the deliveries that this commit starts
        head = Head(
            number, self._numbers.base, self._numbers.lineage, engine.groups, dict(self.totals), sources.positions(),
            sink_positions, self.batch_id, sources.topic_ids(),
        )  # fmt: skip
        head.save(batch)
        if self._changelog is not None:
            self._changelog.collect(batch, self.store, self.lists, number)
        self.store.write(batch)
        # Step 3: sync, in the background.
        self._log.begin()
        self._numbers.last, self.head = number, head
        checkpoints.note_commit()
        if self._is_in_memory or checkpoints.is_due:
            self.checkpoint(engine)
        # Step 4: deliver, in the background, once the commit is on the disk, or in the checkpoint of a store in memory.
        deliveries.start(starting, number, [*self._log.futures, *(checkpoints.futures if self._is_in_memory else ())])
        return True

    def finish(self, *, wait: bool) -> None:
        """Note the deliveries and checkpoints that are over, or wait for them. Raises: SinkError, StateError."""
        if self.deliveries.direct_queues is not None:
            self.deliveries.direct_queues.finish()
        self._log.finish(wait=wait)
        if self.checkpoints is not None:
            self.checkpoints.finish(wait=wait)
        # Step 5: settle.
        self.deliveries.finish(wait=wait)

    def checkpoint(self, engine: Engine) -> None:
        """Begin a checkpoint of the store as it is, unless one is still being copied. Raises: StoreError."""
        assert self.checkpoints is not None, "there is a folder"
        if not self.checkpoints.futures:
            self._log.finish(wait=True)
            self.checkpoints.begin(engine, self.store, self.lists)

    def checkpoint_if_due(self, engine: Engine) -> None:
        """Begin a checkpoint if one is due and the newest one lacks commits, though there is nothing to commit now.

        Without it the last commit of a stream that falls silent would exist on this disk only. A restored store without
        a later commit is not copied: a later start would take it for a store that knows the contents of the sinks.
        """
        if self.checkpoints is None or self.head is None or self._is_in_memory:
            return
        if self.head.lineage == self._numbers.lineage and self.checkpoints.lacks_commits and self.checkpoints.is_due:
            self.checkpoint(engine)

    def wait_for_delivery(self, wait_s: float) -> None:
        """Wait for the end of a delivery or a checkpoint that is under way, at most so long."""
        wait(self._futures(), wait_s, FIRST_COMPLETED)

    def _futures(self) -> list[Future[Any]]:
        return [*self.deliveries.futures, *([] if self.checkpoints is None else self.checkpoints.futures)]

    def settle(
        self, engine: Engine, sources: Sources, outlets: Outlets, while_waiting: Callable[[], None] = lambda: None
    ) -> None:
        """End a job whose events have ended: commit and deliver everything, then copy the store to a last checkpoint.

        `while_waiting` is called now and then while this waits. Raises: SinkError, StoreError.
        """
        if self.checkpoints is None:  # a job without a folder does not commit
            return
        self._drain(engine, sources, outlets, deadline_s=None, while_waiting=while_waiting)
        if not self._is_in_memory:  # the commits of a store in memory are checkpoints
            self.finish(wait=True)  # an earlier checkpoint may still be copied
            self.checkpoint(engine)  # begins the last checkpoint
            self.finish(wait=True)
        self._is_all_delivered = True

    def leave(self, engine: Engine, sources: Sources, outlets: Outlets, wait_s: float) -> bool:
        """Stop: commit everything, deliver as much as the sinks accept within `wait_s`, and then take a checkpoint.

        The next start delivers the rest under the same numbers. Returns: whether all is delivered and in a checkpoint.
        Raises: SinkError for another reason than a sink that is away; StoreError.
        """
        if self.checkpoints is None:  # a job without a folder does not commit
            return True
        deadline_s = time.monotonic() + wait_s
        is_over = self._drain(engine, sources, outlets, deadline_s)  # all is delivered
        self._log.finish(wait=True)
        if is_over and not self._is_in_memory:  # the commits of a store in memory are checkpoints
            self.checkpoint(engine)
            is_over = not wait(self._futures(), max(0.0, deadline_s - time.monotonic())).not_done  # and copied
            self.finish(wait=False)
        self._is_all_delivered = is_over
        if not is_over:  # a client that is in the middle of a write must not be closed
            outlets.left_unfinished.set()
        return is_over

    def _drain(
        self, engine: Engine, sources: Sources, outlets: Outlets, deadline_s: float | None,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> bool:  # fmt: skip
        """Commit everything; then deliver it to each sink as fast as the sink accepts it, at most until the deadline.

        Returns: whether all sinks have all alerts. Raises: SinkError, StoreError; without a deadline SinkAwayError.
        """
        is_committed = False
        while True:
            try:
                self.finish(wait=False)  # note the deliveries that are over
            except SinkAwayError:  # one sink's delivery has given up; the other deliveries continue
                if deadline_s is None:
                    raise
            # A delivery starts with a commit: commit again if alerts wait and the earlier delivery is over.
            if not is_committed or self.deliveries.needs_commit:
                is_committed = self.begin(engine, sources, outlets) or is_committed  # False: a copy still runs
            futures = self._futures()
            if is_committed and not futures:  # nothing is on its way
                return self.deliveries.is_over
            wait_s = None if deadline_s is None or not is_committed else deadline_s - time.monotonic()
            if wait_s is not None and wait_s <= 0:
                return False
            wait(futures, _LOOK_S if wait_s is None else wait_s, FIRST_COMPLETED)
            while_waiting()

    def distrust(self) -> None:
        """Mark the store as damaged: the next start takes the newest checkpoint in its place."""
        if self._settings.folder is not None:
            mark_damaged(self._settings.folder)

    def close(self) -> None:
        """Wait for background work unless a sink hangs, close the store, and note in the folder if all is delivered."""
        folder, checkpoints = self._settings.folder, self.checkpoints
        waits = self._is_all_delivered is not False  # False: a sink hangs; None: an error
        self._log.close()
        self.deliveries.close(wait=waits)
        if checkpoints is not None and waits:
            checkpoints.close()
        with suppress(StateError):  # a full disk, which was reported before; the commits are safe
            self.store.close()
        if folder is not None and checkpoints is not None and checkpoints.last is not None and self._is_all_delivered:
            with suppress(OSError):  # without the file, `cep job savepoint` asks for another run
                replace_file(folder / DELIVERED, str(checkpoints.last.number).encode())
        self._lock.close()


def _groups_text(groups: range) -> str:
    return f"{groups.start}-{groups.stop - 1}"
