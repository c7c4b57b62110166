"""The store of a job → checkpoints in another place, one at a time, in the background (state/checkpoints.py).

A checkpoint that fails is logged, counted in `checkpoints_failed`, and tried again when the next one is due: data that
is safe on this disk does not wait for a target. With a store in memory, whose commits are checkpoints, the job ends.
Tested by: tests/runners/embedded/test_commit.py
"""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future

from cep.base.errors import StoreError
from cep.lists.store import ListStore
from cep.runners.embedded.commit_entries import Numbers, payload_of
from cep.runners.embedded.engine import Engine
from cep.runners.embedded.opening import STORE_PART, StoreSettings
from cep.state.checkpoints import Checkpoints, Part, Published
from cep.state.store import DurableStore


class CheckpointCopies:
    """The checkpoints of a job: copies of its store in another place. Use it from one thread."""

    def __init__(
        self, checkpoints: Checkpoints, settings: StoreSettings, numbers: Numbers, totals: Counter[str],
        on_failed: Callable[[StoreError], None],
    ) -> None:  # fmt: skip
        """Begin without copies. `numbers`: of the last commit. `totals` counts failures, `on_failed` gets each."""
        self._checkpoints = checkpoints
        self._is_in_memory = settings.backend == "memory"  # then a failed checkpoint ends the job
        self.interval_s = settings.checkpoint_ms / 1_000
        self._numbers = numbers
        self._totals = totals
        self._on_failed = on_failed
        self._copying: tuple[int, Future[Published]] | None = None  # the checkpoint under way: its commit, its end
        self._checkpointed_commit = -1  # the number of the commit in the last checkpoint; -1: none yet
        self._began_s = time.monotonic()  # when the last checkpoint began
        self._uncopied_since_s: float | None = None  # when the first commit came that no checkpoint has
        self.last: Published | None = None
        self.error: StoreError | None = None  # of the last checkpoint, if it failed

    @property
    def futures(self) -> list[Future[Published]]:
        """The checkpoint that is being copied."""
        return [] if self._copying is None else [self._copying[1]]

    @property
    def is_due(self) -> bool:
        """True if the last checkpoint began long enough ago."""
        return time.monotonic() - self._began_s >= self.interval_s

    @property
    def lacks_commits(self) -> bool:
        """True if there are commits after the last checkpoint."""
        return self._checkpointed_commit != self._numbers.last

    @property
    def uncheckpointed_s(self) -> float:
        """The seconds for which commits have been on this disk alone."""
        return 0.0 if self._uncopied_since_s is None else time.monotonic() - self._uncopied_since_s

    def note_commit(self) -> None:
        """Note a commit, which no checkpoint has yet."""
        self._uncopied_since_s = time.monotonic() if self._uncopied_since_s is None else self._uncopied_since_s

    def begin(self, engine: Engine, store: DurableStore, lists: ListStore) -> None:
        """Begin a checkpoint of the store as it is, while no other one is being copied. Raises: StoreError."""
        part = Part(STORE_PART, store, engine.groups.start, engine.groups.stop)
        payload = payload_of(self._numbers.lineage, engine.audit_head())
        copying = self._checkpoints.begin(
            (part,), payload, int(time.time() * 1_000), is_atomic=not self._is_in_memory, beside=lists.files
        )
        assert copying is not None, "there is one at a time"
        self._copying, self._began_s = (self._numbers.last, copying), time.monotonic()

    def finish(self, *, wait: bool) -> None:
        """Note the end of a checkpoint, or wait for it. Raises: StoreError if the store is in memory only."""
        if self._copying is None or not (wait or self._copying[1].done()):
            return
        (commit_number, copying), self._copying = self._copying, None
        try:
            self.last = copying.result()
        except StoreError as error:
            if self._is_in_memory:
                raise
            self.last, self.error = None, error  # only reported, because the commits are on this disk
            self._totals["checkpoints_failed"] += 1
            self._on_failed(error)
        else:
            self._checkpointed_commit, self.error = commit_number, None
            self._uncopied_since_s = self._began_s if self.lacks_commits else None  # later commits came after that

    def close(self) -> None:
        """Wait for the checkpoint that is being copied."""
        self._checkpoints.close()
