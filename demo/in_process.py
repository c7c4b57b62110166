"""The demo's live job and replay in this process, where there is no Java for Spark.

Tested by: tests/demo/test_demo.py
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from cep.rulebook.rulebook import Rulebook
from cep.runners.embedded.commit import Commits, Outlets, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.replay import replay
from cep.runners.embedded.run import BatchReport, Pace, Runner
from cep.runners.job import Job
from cep.runners.output import Replayed
from cep.sinks.console import ConsoleSink
from cep.sources.kafka import KafkaSettings
from cep.sources.live.kafka import TopicSource
from cep.sources.pieces import read_pieces


class InProcess:
    """The live job in a thread, its keyed state on RocksDB."""

    def __init__(self, folder: Path, cores: int, console: Console) -> None:
        self._folder = folder
        self._cores = cores
        self._console = console

    @contextmanager
    def live(
        self, job: Job, initial: Sequence[bytes], topics: tuple[str, str, str], take: Callable[[BatchReport], None]
    ) -> Iterator[Callable[[], str | None]]:
        """A live job for as long as the block runs; `topics` are the brokers, the events' and the control topic. Gives
        a function that says why it has ended, None while it runs.
        """
        kafka = KafkaSettings(topics[0])
        commits = Commits(StoreSettings(self._folder / "checkpoint"))
        engine = Engine(job, tuple(initial), commits.store, Workers(self._cores))
        sources = Sources(TopicSource(kafka, topics[1]), TopicSource(kafka, topics[2]))
        outlets = Outlets([ConsoleSink(self._console)], self._folder / "letters")
        runner = Runner(engine, sources, outlets, commits, Pace(at_once=True), take)
        stop, ended = threading.Event(), list[str]()

        def work() -> None:
            try:
                runner.run(stop)
            except Exception as error:  # noqa: BLE001 whoever waits is told
                ended.append(str(error))

        thread = threading.Thread(target=work, name="live")
        thread.start()
        try:
            yield lambda: ended[0] if ended else None
        finally:
            stop.set()
            thread.join()
            outlets.close()
            sources.close()
            engine.close()
            commits.close()

    def replay(self, job: Job, rulebook: Rulebook, path: Path) -> Replayed:
        """The alerts of a file of events."""
        return replay(job, rulebook, read_pieces(path, job.schema), self._cores)

    def close(self) -> None:
        """Nothing is left between live and replay."""
