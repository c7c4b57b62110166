"""The demo's live job and replay on Spark.

Tested by: tests/demo/test_demo.py
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from cep.demo.day import CONTROL, PAYMENTS
from cep.rulebook.rulebook import Rulebook
from cep.runners.output import BatchReport, Replayed
from cep.runners.spark.live import JAVA_OPTIONS, SPARK_SETTINGS, LiveSettings, start_live
from cep.runners.spark.live_output import LiveOutput
from cep.runners.spark.replay import read_events, replay
from cep.runners.spark.session import create_session
from cep.runners.spark.sources import TopicSource
from cep.runners.warm import Warming
from cep.sinks.console import ConsoleSink
from cep.sinks.files import DeadLetterFiles
from cep.step.job import Job


class OnSpark:
    """One session for both. The live job reads from the brokers at `address`, and matches with what `warming` makes."""

    def __init__(self, folder: Path, cores: int, console: Console, address: str, warming: Warming) -> None:
        self._folder = folder
        self._cores = cores
        self._console = console
        self._address = address
        self._warming = warming
        with _stderr_into(folder / "spark.log"):
            self._spark: SparkSession = create_session("cep demo", cores, SPARK_SETTINGS, JAVA_OPTIONS)

    @contextmanager
    def live(
        self, job: Job, initial: Sequence[bytes], take: Callable[[BatchReport], None]
    ) -> Iterator[Callable[[], str | None]]:
        """Run the live job for as long as the block runs, with the rules of `initial` at its start.

        `take` gets a report of each micro-batch. Gives a function that returns why the job has ended, None while it
        runs. The job starts while the kernels are compiled, and the block begins when both are done.
        """
        settings = LiveSettings(
            job,
            tuple(initial),
            TopicSource(self._address, PAYMENTS),
            TopicSource(self._address, CONTROL),
            self._folder / "checkpoint",
            trigger_ms=100,
            tasks=self._cores,
        )
        output = LiveOutput(self._folder, DeadLetterFiles(self._folder / "letters"), [ConsoleSink(self._console)], take)
        query = start_live(self._spark, settings, output)
        try:
            self._wait_for_kernels()
            yield lambda: None if query.isActive else str(query.exception())
        finally:
            query.stop()
            output.close()

    def _wait_for_kernels(self) -> None:
        with self._console.status("starting the job") as status:
            if not self._warming.wait_until_done():
                status.update("compiling the matcher, once after an installation or a change: up to half a minute")
            while not self._warming.wait_until_done():
                pass  # it waits some seconds by itself

    def replay(self, job: Job, rulebook: Rulebook, path: Path) -> Replayed:
        """Match the events of a file."""
        events = read_events(self._spark, path)
        return replay(job, rulebook, events, self._cores)

    def close(self) -> None:
        """Stop Spark."""
        self._spark.stop()


@contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    """Send the chatter of Java and of its workers, which start meanwhile, into a file."""
    sys.stderr.flush()
    terminal = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
