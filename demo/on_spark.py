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

from cep.demo.feed import CONTROL, PAYMENTS
from cep.rulebook.rulebook import Rulebook
from cep.runners.output import Replayed
from cep.runners.spark.live import JAVA_OPTIONS, SPARK_SETTINGS, LiveSettings, start_live
from cep.runners.spark.live_output import BatchReport, LiveOutput
from cep.runners.spark.replay import read_events, replay
from cep.runners.spark.session import create_session
from cep.runners.spark.sources import TopicSource
from cep.sinks.console import ConsoleSink
from cep.sinks.dead_letters import DeadLetterFiles
from cep.step.job import Job


class OnSpark:
    """One session for both. The live job reads from the brokers at `address`."""

    def __init__(self, folder: Path, cores: int, console: Console, address: str) -> None:
        self._folder = folder
        self._cores = cores
        self._console = console
        self._address = address
        with _stderr_into(folder / "spark.log"):
            self._spark: SparkSession = create_session("cep demo", cores, SPARK_SETTINGS, JAVA_OPTIONS)

    @contextmanager
    def live(
        self, job: Job, initial: Sequence[bytes], take: Callable[[BatchReport], None]
    ) -> Iterator[Callable[[], str | None]]:
        """Run the live job for as long as the block runs, with the rules of `initial` at its start.

        `take` gets a report of each micro-batch. Gives a function that returns why the job has ended, None while it
        runs.
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
            yield lambda: None if query.isActive else str(query.exception())
        finally:
            query.stop()
            output.close()

    def replay(self, job: Job, rulebook: Rulebook, path: Path) -> Replayed:
        """Match the events of a file."""
        events, values_column = read_events(self._spark, path)
        return replay(job, rulebook, events, values_column, self._cores)

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
