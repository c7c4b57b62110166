"""The end of a micro-batch, as Spark requests it from a Python source: Spark 4.2, and Spark 4.1.

| Spark | call | consequence |
| --- | --- | --- |
| 4.2, 4.3 | `latestOffset(start, limit)`; another call ends the query at the present records | it plans |
| 4.1 | `latestOffset()`, nothing more | it remembers its position; the job ends the query |

On 4.1 a source learns its position from `initialOffset` and `partitions`. Spark calls `partitions` for each
micro-batch, and with the last offset of the checkpoint when a query continues. An option of the source says that such a
query ends.
Tested by: tests/runners/spark/test_kafka.py
"""

import threading
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["HAS_ADMISSION", "AdmittedReader", "ReadAllAvailable", "ReadLimit", "ReadMaxRows", "end_when_done"]

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

    HAS_ADMISSION = True
except ModuleNotFoundError:  # Spark 4.1
    HAS_ADMISSION = False
    if not TYPE_CHECKING:

        class ReadLimit:
            """The bound of a micro-batch."""

        class ReadAllAvailable(ReadLimit):
            """No bound."""

        @dataclass(frozen=True)
        class ReadMaxRows(ReadLimit):
            """A bound of records."""

            max_rows: int

        class SupportsTriggerAvailableNow:
            """Nothing that Spark 4.1 asks for."""


class AdmittedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader that plans each micro-batch from a start and within a limit, on any Spark: Spark 4.1 asks for an end
    without them, so the reader remembers where it is. `ends`: the query ends after the records that are there now."""

    def __init__(self, *, ends: bool = False) -> None:
        self._ends = ends
        self._first_offset: dict[str, Any] | None = None
        self._planned_end: dict[str, Any] | None = None  # of the last micro-batch; the next one starts there

    @abstractmethod
    def first(self) -> dict[str, Any]:
        """Return where a new query begins."""

    @abstractmethod
    def latest(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next micro-batch ends."""

    @abstractmethod
    def planned(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Return the tasks of a micro-batch."""

    # The calls of Spark.

    def initialOffset(self) -> dict[str, Any]:
        # Spark 4.1 asks after it has asked for the end of the first micro-batch.
        if self._first_offset is None:
            self._first_offset = self.first()
        return self._first_offset

    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        if start is not None and limit is not None:
            return self.latest(start, limit)
        if self._ends:
            self.prepareForTriggerAvailableNow()
            self._ends = False
        start = self.initialOffset() if self._planned_end is None else self._planned_end
        return self.latest(start, self.getDefaultReadLimit())

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        self._planned_end = dict(end)
        return self.planned(start, end)


def end_when_done(query: StreamingQuery) -> None:
    """End a query, from a thread of its own, when all its sources have reported their end."""

    def work() -> None:
        with suppress(PySparkException):  # why a query failed is for who waits for it
            query.processAllAvailable()
            query.stop()

    threading.Thread(target=work, name="cep-end", daemon=True).start()
