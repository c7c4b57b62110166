"""Alerts or lines of micro-batches → one sink, in their order, while the job continues with the next micro-batch.

    CHECKPOINT/waiting/DIGEST/name                   the name of the sink
    CHECKPOINT/waiting/DIGEST/0000000000000000007    the alerts of micro-batch 7 that the sink does not have yet

A sink that answers at once gets the alerts of a micro-batch before that ends, and no file is written. For any other
sink the alerts go into a file until a thread has delivered them, perhaps after the next start. A micro-batch that comes
again after a crash has the same number and alerts: it replaces its own file, and a sink takes a number once.
Tested by: tests/runners/spark/test_driver.py
"""

import hashlib
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from cep.base.errors import SinkError, UsageError
from cep.base.files import sync
from cep.runners.output import decode_alerts
from cep.runners.patience import Patience
from cep.sinks.base import AlertSink, DeadLetterSink
from cep.sinks.durable import write_durably

FOLDER = "waiting"
_NAME = "name"
_DIGEST_CHARS = 16
_NUMBER_CHARS = 19
_DELIVERY_WAIT_S = 1.0  # for a sink that answers; after it the alerts wait in a file, and the micro-batch goes on


class SinkQueue:
    """The queue of one sink. One thread offers micro-batches, another one writes."""

    def __init__(
        self, name: str, sink: AlertSink | DeadLetterSink, to_bytes: Callable[[Any], bytes],
        from_bytes: Callable[[bytes], Any], patience: Patience, sending: Callable[[Any], AbstractContextManager[Any]],
    ) -> None:  # fmt: skip
        """`to_bytes` and `from_bytes` encode and decode the alerts of a file. `sending` observes one delivery."""
        self.name = name
        self._sink, self._to_bytes, self._from_bytes = sink, to_bytes, from_bytes
        self._retries, self._sending = patience, sending  # retries: repeats a failed delivery
        self._folder = Path()
        self._sizes: dict[int, tuple[int, int, float]] = {}  # by micro-batch that waits in a file: alerts, bytes, time
        self._offered: tuple[int, Any] | None = None  # (number, alerts) of the newest one, if no file has it
        self._changed = threading.Condition()
        self._delivered_count = 0  # of alerts, since `delivered` was last called
        self._newest_delivered = -1  # of the micro-batches that this process has delivered
        self._failures = 0  # failed tries: a waiting micro-batch notices a new one
        self.error: SinkError | None = None
        self._is_closed = False

    def open(self, directory: Path) -> None:
        """Continue with the files in the folder of a job, and start to write."""
        self._folder = directory / FOLDER / digest_of(self.name)
        if not (self._folder / _NAME).exists():
            write_durably(self._folder / _NAME, self.name.encode())
        for path in _files(self._folder):
            content, about = self._from_bytes(path.read_bytes()), path.stat()
            self._sizes[int(path.name)] = (len(content), about.st_size, about.st_mtime)
        threading.Thread(target=self._work, name=f"delivery to {self.name}", daemon=True).start()

    def offer(self, content: Any, number: int) -> None:
        """Queue the alerts of micro-batch `number` for the sink. Raises: SinkError, also of an earlier micro-batch.

        Nothing is queued if there are no alerts, or if the micro-batch waits already or has been delivered."""
        with self._changed:
            if self.error is not None:
                raise self.error
            if not len(content) or number in self._sizes or number <= self._newest_delivered:
                return
            if self._sizes:  # earlier micro-batches wait in files: this one gets a file, too, to come after them
                self._store(content, number)
            else:
                self._offered = (number, content)  # in memory, for the thread that writes
            self._changed.notify_all()

    def await_delivery(self, deadline_s: float) -> None:
        """Wait until the sink's thread has delivered the offered alerts. At the deadline, when a try fails, or when the
        job is to stop, store them in a file; the thread delivers them later. Raises: SinkError."""
        with self._changed:
            failures_before = self._failures
            while self._offered is not None and self.error is None and self._failures == failures_before:
                remaining_s = deadline_s - time.monotonic()
                if remaining_s <= 0 or self._retries.stop.is_set():
                    break
                self._changed.wait(min(remaining_s, 0.05))  # a stop request does not notify
            if self.error is not None:
                raise self.error
            if self._offered is not None:
                number, content = self._offered
                self._store(content, number)
                self._offered = None

    @property
    def sizes(self) -> dict[int, tuple[int, int, float]]:
        """By micro-batch that waits in a file: alerts, bytes, and the time of the file (seconds since 1970)."""
        with self._changed:
            return dict(self._sizes)

    def delivered(self) -> int:
        """Return how many alerts the sink has taken since the last call."""
        with self._changed:
            count, self._delivered_count = self._delivered_count, 0
        return count

    def close(self) -> None:
        """End the thread, and close the sink unless a write still waits for its answer."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            is_writing = bool(self._sizes) or self._offered is not None
        if not is_writing:
            self._sink.close()

    def _store(self, content: Any, number: int) -> None:
        data = self._to_bytes(content)
        write_durably(self._folder / f"{number:0{_NUMBER_CHARS}d}", data)
        self._sizes[number] = (len(content), len(data), time.time())

    def _work(self) -> None:
        try:
            while (item := self._next()) is not None:
                number, content = item
                with self._sending(content):
                    self._retries.keep_trying(self.name, lambda: self._try(content, number))  # noqa: B023 called at once
                self._settle(number, len(content))
        except SinkError as error:
            with self._changed:
                self.error = None if self._retries.stop.is_set() else error
                self._changed.notify_all()

    def _try(self, content: Any, number: int) -> None:
        try:
            self._sink.write(content, number)
        except SinkError:
            with self._changed:  # the micro-batch that waits for the try goes on
                self._failures += 1
                self._changed.notify_all()
            raise

    def _next(self) -> tuple[int, Any] | None:
        with self._changed:
            while not (self._sizes or self._offered or self._is_closed):
                self._changed.wait()
            if self._is_closed:
                return None
            if self._offered is not None:
                return self._offered
            number = min(self._sizes)
        return number, self._from_bytes((self._folder / f"{number:0{_NUMBER_CHARS}d}").read_bytes())

    def _settle(self, number: int, count: int) -> None:
        with self._changed:
            if self._offered is not None and self._offered[0] == number:
                self._offered = None
            if self._sizes.pop(number, None) is not None:
                (self._folder / f"{number:0{_NUMBER_CHARS}d}").unlink(missing_ok=True)
                sync(self._folder)  # a file that a power cut brings back would come after later micro-batches
            self._delivered_count += count
            self._newest_delivered = number
            self._changed.notify_all()


def await_deliveries(queues: Sequence[SinkQueue]) -> None:
    """Wait until all sinks together have the offered alerts, or files have them. Raises: SinkError."""
    deadline_s = time.monotonic() + _DELIVERY_WAIT_S
    for queue in queues:
        queue.await_delivery(deadline_s)


def digest_of(name: str) -> str:
    """Return the name of the folder of a sink's queue."""
    return hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]


def reassign_alerts(directory: Path, names: Sequence[str]) -> dict[str, int]:
    """Give the alerts that wait for removed sinks (not in `names`) to each added sink, and return nothing. If no sink
    was added, the alerts stay where they are: return how many wait for each removed sink."""
    folder = directory / FOLDER
    sink_digests = {digest_of(name) for name in names}
    removed_folders = [path for path in sorted(folder.glob("*")) if path.name not in sink_digests and _files(path)]
    # New to the job. A start that a crash cut off leaves a folder without the file `name`, perhaps with some alerts.
    added_names = [name for name in names if not (folder / digest_of(name) / _NAME).exists()]
    if not added_names:
        counts = [sum(decode_alerts(file.read_bytes()).num_rows for file in _files(path)) for path in removed_folders]
        return dict(zip(map(_name_in, removed_folders), counts, strict=True))
    for path in removed_folders:
        for name in added_names:
            for file in _files(path):
                write_durably(folder / digest_of(name) / file.name, file.read_bytes())
        shutil.rmtree(path)
    return {}


def refuse_waiting(directory: Path) -> None:
    """Refuse a job whose sinks lack alerts, for a savepoint, which has none. Raises: UsageError."""
    for path in sorted((directory / FOLDER).glob("*")):
        if _files(path):
            raise UsageError(
                f"the alerts of {len(_files(path))} micro-batches wait for {_name_in(path)}; "
                "run `cep live --available-now` with the job's settings once, then make the savepoint"
            )


def _name_in(folder: Path) -> str:
    """Return the name of the sink of a folder, or the folder's own if a crash came before the file with the name."""
    path = folder / _NAME
    return path.read_text(encoding="utf-8") if path.exists() else folder.name


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.name.isdigit())
