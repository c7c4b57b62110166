"""The simulated day in this process: the embedded runner with its live job in a thread, and topics in memory.

    send(topic, records) ─▶ lanes, chosen by the hash of the key ─▶ TopicReader (a live source)

Tested by: tests/demo/test_demo.py, tests/cli/test_main.py
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from cep.rulebook.rulebook import Rulebook
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.replay import replay
from cep.runners.embedded.run import Listener, Pace, Runner
from cep.runners.output import BatchReport, Replayed
from cep.sinks.console import ConsoleSink
from cep.sinks.files import DeadLetterFiles
from cep.sources.live.base import Chunk, Positions
from cep.sources.pieces import read_pieces
from cep.step.job import Job


@dataclass(frozen=True, slots=True)
class InProcess:
    """The embedded runner. The live job keeps its state on RocksDB in `folder` and reads from `open_sources`."""

    folder: Path
    cores: int
    console: Console
    open_sources: Callable[[], Sources]

    @contextmanager
    def live(
        self, job: Job, initial: Sequence[bytes], take: Callable[[BatchReport], None]
    ) -> Iterator[Callable[[], str | None]]:
        """Run the live job with the rules of `initial` while the block runs, and report each micro-batch to `take`.

        Yield a function that returns why the job has ended, None while it runs.
        """
        commits = Commits(StoreSettings(self.folder / "checkpoint"))  # the job's stored state
        engine = Engine(job, tuple(initial), commits.store, Workers(self.cores))
        sources = self.open_sources()
        outlets = Outlets([ConsoleSink(self.console)], DeadLetterFiles(self.folder / "letters"))
        runner = Runner(engine, sources, outlets, commits, Pace(sends_at_once=True), Listener(take))
        stop, reasons = threading.Event(), list[str]()  # why the job has ended: its error

        def work() -> None:
            try:
                runner.run(stop)
            except Exception as error:  # noqa: BLE001 a thread's error is handed to the one that waits for it
                reasons.append(str(error))

        thread = threading.Thread(target=work, name="live")
        thread.start()
        try:
            yield lambda: reasons[0] if reasons else None
        finally:
            stop.set()
            thread.join()
            outlets.close()
            sources.close()
            engine.close()
            commits.close()

    def replay(self, job: Job, rulebook: Rulebook, path: Path) -> Replayed:
        return replay(job, rulebook, read_pieces(path, job.schema), self.cores)

    def close(self) -> None:
        """Do nothing: the live job has closed its resources."""


_LANES_COUNT = 4  # as many as the embedded Kafka gives a topic


class MemoryTopics:
    """Topics that one thread fills and another one reads. Each topic has lanes, as Kafka has partitions."""

    def __init__(self) -> None:
        self._lanes: dict[str, list[list[bytes]]] = {}
        self._has_more = threading.Condition()

    def create(self, topic: str) -> None:
        self._lanes[topic] = [[] for _ in range(_LANES_COUNT)]

    def send(self, topic: str, records: Iterable[tuple[str, bytes]]) -> None:
        """Append records, each a key and a value. Records of one key stay in order."""
        with self._has_more:
            for key, value in records:
                self._lanes[topic][zlib.crc32(key.encode()) % _LANES_COUNT].append(value)
            self._has_more.notify_all()

    def reader(self, topic: str) -> TopicReader:
        return TopicReader(self._lanes[topic], self._has_more)


class TopicReader:
    """A topic as a live source. It never ends: the caller stops the job."""

    ended = False

    def __init__(self, lanes: list[list[bytes]], has_more: threading.Condition) -> None:
        self._lanes = {str(number): lane for number, lane in enumerate(lanes)}
        self._offsets: Positions = dict.fromkeys(self._lanes, 0)
        self._has_more = has_more

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        """Return new records, from each lane (partition) an equal part of `records_max` at most; wait for the first."""
        share = max(1, records_max // len(self._lanes))
        deadline_s = time.monotonic() + wait_s
        with self._has_more:
            while not any(self.behind().values()):
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return []
                self._has_more.wait(left_s)
            chunks = []
            for name, lane in self._lanes.items():
                values = lane[self._offsets[name] : self._offsets[name] + share]
                if values:
                    self._offsets[name] += len(values)
                    chunks.append(Chunk(name, pa.array(values, pa.large_binary())))
            return chunks

    def positions(self) -> Positions:
        return dict(self._offsets)

    def seek(self, positions: Mapping[str, int]) -> None:
        """Continue after these positions, and at the start of lanes without one."""
        self._offsets = {name: positions.get(name, 0) for name in self._lanes}

    def hold(self, lanes: Collection[str]) -> None:
        """Do nothing: every lane gives an equal share."""

    def behind(self) -> dict[str, bool]:
        """Return for each lane whether more of it waits."""
        return {name: self._offsets[name] < len(lane) for name, lane in self._lanes.items()}

    def look(self) -> None:
        """Do nothing: `behind` reads the current state itself."""

    def close(self) -> None:
        """Do nothing: the records are the topics'."""
