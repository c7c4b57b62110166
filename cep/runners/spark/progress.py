"""Spark's reports of a job that runs in other threads → a progress bar, gauges for operators, or our error.

Our errors reach Spark as text when they are raised where it plans or executes in Python. Around that text Spark puts
Python's traceback, frames of Java and the plan of the query, which do not help an operator.
Tested by: tests/runners/spark/test_driver.py, tests/runners/test_replay.py, tests/runners/spark/test_live_process.py
"""

import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from pyspark.sql import SparkSession
from rich.console import Console

from cep.base import errors
from cep.base.errors import CepError, SourceError
from cep.base.terminal import progress_bar
from cep.sources.offsets import Position, by_lane

_POLL_S = 0.2
T = TypeVar("T")
# The last line of a Python traceback, and the rest of our message, up to the text that Spark or Java append.
_OURS = re.compile(r"cep\.base\.errors\.(\w+): (.+?)\s*(?=\n\s*SQLSTATE|\n\s+at |\n===|\n\n|\Z)", re.DOTALL)
_PLAN = "\n=== Streaming Query ==="
_FRAME = re.compile(r"\s+at [\w.$/]+\(.*\)|\s*\.\.\. \d+ more")


def with_progress(spark: SparkSession, title: str, work: Callable[[], T], console: Console) -> T:
    """Run `work` and show a progress bar of Spark's tasks on `console`, if it is a terminal."""
    if not console.is_terminal:
        return work()
    tracker = spark.sparkContext.statusTracker()
    finished = threading.Event()
    with ThreadPoolExecutor(1) as pool, progress_bar(console) as bar:
        task = bar.add_task(title, total=None)
        running = pool.submit(work)
        running.add_done_callback(lambda _: finished.set())
        while not finished.wait(_POLL_S):
            stages = [s for i in tracker.getActiveStageIds() if (s := tracker.getStageInfo(i)) is not None]
            total = sum(s.numTasks for s in stages)
            if total:
                bar.update(task, total=total, completed=sum(s.numCompletedTasks for s in stages))
        return running.result()


def measures(progress: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """Return gauges by name, and milliseconds by phase, from Spark's report about a micro-batch."""
    operators = progress.get("stateOperators") or []
    sizes = (o["memoryUsedBytes"] + o["customMetrics"].get("rocksdbSstFileSize", 0) for o in operators)
    return {"state_bytes": sum(sizes)}, {name: float(ms) for name, ms in (progress.get("durationMs") or {}).items()}


def positions(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return the offsets after the latest micro-batch, by partition; empty for folders."""
    offsets_of: dict[str, int] = {}
    for source in progress.get("sources") or []:
        with suppress(SourceError):  # the offset of a folder has another form
            offsets_of |= by_lane(Position.from_json(source.get("endOffset") or {}).offsets)
    return offsets_of


def failure_of(java_text: str) -> CepError:
    """Convert the text with which a query failed to the error to raise."""
    messages = _OURS.findall(java_text)
    if messages:
        name, message = messages[-1]  # of errors that came of each other the last is for the reader
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, CepError):
            error = kind.__new__(kind)  # without its constructor, because the message is complete already
            error.args = (message,)
            return error
    lines = java_text.partition(_PLAN)[0].splitlines()
    reason = [line for line in lines if line.strip() and not _FRAME.fullmatch(line)]
    return SourceError(
        "the query failed; it goes on from its checkpoint when started again: " + "\n".join(reason).strip()
    )
