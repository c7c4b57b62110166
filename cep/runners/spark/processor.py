"""What Spark is given of the second stage: it says what the stage keeps, and loads the stage with the first rows.

Spark starts a Python process of its own whenever a query starts, for nothing but the question what a processor keeps.
All that matches takes that process one and a half seconds to load, before the first micro-batch of a job; so it is
loaded only where rows are.
Tested by: tests/runners/spark/test_live.py, tests/runners/spark/test_processor.py
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from cep.runners.spark.group_parts import GroupParts

if TYPE_CHECKING:
    from cep.runners.beginning import Beginning
    from cep.runners.group_rules import JobRules
    from cep.runners.spark.match_stage import MatchStage


class MatchProcessor(StatefulProcessor):
    """transformWithState's processor for one stage of one job (match_stage.py, which says what the arguments are)."""

    def __init__(self, rules: JobRules, level: int, begins: tuple[Path, Beginning] | None = None) -> None:
        self._given = pickle.dumps((rules, level, begins))  # bytes: to read them is to load their modules
        self._stage: MatchStage | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._kept = GroupParts(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Called once a micro-batch for each key group that has rows."""
        if self._stage is None:
            from cep.runners.spark.match_stage import MatchStage  # noqa: PLC0415 see above

            self._stage = MatchStage(self._kept, *pickle.loads(self._given))  # noqa: S301 from __init__, by Spark
        return self._stage.rows(key[0], rows)

    def close(self) -> None:
        """Nothing is held between micro-batches but caches."""
