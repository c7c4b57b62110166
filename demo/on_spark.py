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

from cep.rulebook.rulebook import Rulebook
from cep.runners.job import Job
from cep.runners.output import Replayed
from cep.runners.spark.live import SPARK_SETTINGS, LiveSettings, start_live
from cep.runners.spark.live_output import BatchReport, LiveOutput
from cep.runners.spark.replay import read_events, replay
from cep.runners.spark.session import create_session
from cep.runners.spark.sources import TopicSource
from cep.sinks.console import ConsoleSink
from cep.sinks.letters import LetterFiles


class OnSpark:
    """One session for both."""

    def __init__(self, folder: Path, cores: int, console: Console) -> None:
        self._folder = folder
        self._cores = cores
        self._console = console
        with console.status("starting Spark"), _stderr_into(folder / "spark.log"):
            self._spark: SparkSession = create_session("cep demo", cores, SPARK_SETTINGS)

    @contextmanager
    def live(
        self, job: Job, initial: Sequence[bytes], topics: tuple[str, str, str], take: Callable[[BatchReport], None]
    ) -> Iterator[Callable[[], str | None]]:
        """A live job for as long as the block runs; `topics` are the brokers, the events' and the control topic. Gives
        a function that says why it has ended, None while it runs.
        """
        address, events, control = topics
        settings = LiveSettings(
            job,
            tuple(initial),
            TopicSource(address, events),
            TopicSource(address, control),
            self._folder / "checkpoint",
            trigger_ms=100,
            tasks=self._cores,
        )
        output = LiveOutput(self._folder, LetterFiles(self._folder / "letters"), [ConsoleSink(self._console)], take)
        query = start_live(self._spark, settings, output)
        try:
            yield lambda: None if query.isActive else str(query.exception())
        finally:
            query.stop()
            output.close()

    def replay(self, job: Job, rulebook: Rulebook, path: Path) -> Replayed:
        """The alerts of a file of events."""
        events, values_column = read_events(self._spark, path)
        return replay(job, rulebook, events, values_column, self._cores)

    def close(self) -> None:
        """Stop Spark."""
        self._spark.stop()


@contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    """What is started meanwhile (Java, and its workers) writes its chatter into a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
