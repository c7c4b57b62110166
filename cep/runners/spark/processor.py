"""A stage as a processor of Spark: it describes the state of the stage, and loads the stage with the first rows.

When a query starts, Spark starts a Python process only to ask for the state of a processor. Loading the matcher would
take that process one and a half seconds, before the first micro-batch of a job. The matcher is therefore loaded only in
processes that receive rows.
Tested by: tests/runners/spark/test_live.py, tests/runners/spark/test_processor.py
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from cep.runners.spark.group_parts import GroupParts


class Stage(Protocol):
    """The work on the rows of one key group: match_stage.py, suppress_stage.py."""

    def rows(self, group: int, rows: Iterator[Row]) -> Iterator[Row]: ...


class MatchProcessor(StatefulProcessor):
    """transformWithState's processor. `stage` makes a task's stage from its state, and can be pickled."""

    def __init__(self, stage: Callable[[GroupParts], Stage]) -> None:
        self._pickled = pickle.dumps(stage)  # to read it is to load its modules
        self._stage: Stage | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._parts = GroupParts(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Do a micro-batch of one key group; Spark calls it for each that has rows."""
        if self._stage is None:
            self._stage = pickle.loads(self._pickled)(self._parts)  # noqa: S301 what __init__ was given
        return self._stage.rows(key[0], rows)

    def close(self) -> None:
        """Nothing is held between micro-batches but caches."""
