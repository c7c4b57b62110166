"""The simulated day through the embedded runner, in this process: a live job in a thread, and the replay.

Tested by: tests/demo/test_demo.py, tests/cli/test_main.py
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from cep.rulebook.rulebook import Rulebook
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.replay import replay
from cep.runners.embedded.run import BatchReport, Listener, Pace, Runner
from cep.runners.output import Replayed
from cep.sinks.console import ConsoleSink
from cep.sinks.dead_letters import DeadLetterFiles
from cep.sources.pieces import read_pieces
from cep.step.job import Job


class InProcess:
    """The embedded runner. The live job keeps its state on RocksDB in `folder` and reads from `open_sources`."""

    def __init__(self, folder: Path, cores: int, console: Console, open_sources: Callable[[], Sources]) -> None:
        self._folder = folder
        self._cores = cores
        self._console = console
        self._open_sources = open_sources

    @contextmanager
    def live(
        self, job: Job, initial: Sequence[bytes], take: Callable[[BatchReport], None]
    ) -> Iterator[Callable[[], str | None]]:
        """Run the live job for as long as the block runs, with the rules of `initial` at its start.

        `take` gets a report of each micro-batch. Gives a function that returns why the job has ended, None while it
        runs.
        """
        commits = Commits(StoreSettings(self._folder / "checkpoint"))
        engine = Engine(job, tuple(initial), commits.store, Workers(self._cores))
        sources = self._open_sources()
        outlets = Outlets([ConsoleSink(self._console)], DeadLetterFiles(self._folder / "letters"))
        runner = Runner(engine, sources, outlets, commits, Pace(at_once=True), Listener(take))
        stop, reasons = threading.Event(), list[str]()

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
        """Match the events of a file."""
        return replay(job, rulebook, read_pieces(path, job.schema), self._cores)

    def close(self) -> None:
        """Do nothing: the live job has closed its resources."""
