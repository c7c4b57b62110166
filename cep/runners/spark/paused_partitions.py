"""Partitions that the next micro-batch skips: a message from the driver to the source, which runs in another process.

    CHECKPOINT/paused_partitions.json   {"partitions": ["payments-1", …]}

Tasks report how far they have read each partition, and the driver stores the names of partitions that are far ahead of
the slowest. The planner has a process of its own, so it reads the file. A repeated micro-batch has its stored plan.
Tested by: tests/runners/spark/test_future.py
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from cep.base.errors import StateCorruptError
from cep.base.files import read_document
from cep.sinks.durable import write_durably
from cep.sources.offsets import OffsetRange, Offsets
from cep.step.event_time import PartitionTimes, too_far_ahead

if TYPE_CHECKING:
    from cep.step.job import Job

FILE = "paused_partitions.json"


class PausedPartitions:
    """A file in a job's folder with the names of the partitions that are far ahead of the others, written when they
    change. The source, which runs in another process, reads the file and skips these partitions."""

    def __init__(self, directory: Path, job: Job) -> None:
        self.path = directory / FILE
        self._job = job
        self._paused: frozenset[str] | None = None

    def update(self, times: PartitionTimes) -> None:
        """Write the file if other partitions are far ahead now. `times`: how far each was read. Raises: SinkError."""
        paused = too_far_ahead(times, self._job.read_ahead_ms)
        if paused != self._paused:
            write_durably(self.path, orjson.dumps({"partitions": sorted(paused)}))
            self._paused = paused


def read_paused(path: Path) -> frozenset[str]:
    """Return the partitions that a file names; an absent file names none. Raises: StateCorruptError."""
    if not path.exists():
        return frozenset()
    names = read_document(path).get("partitions")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise StateCorruptError(f"{path} does not name partitions; remove it, the job writes it anew")
    return frozenset(names)


def without_paused(ranges: Sequence[OffsetRange], end: Offsets, paused: Collection[str]) -> Offsets:
    """Limit `end` so that paused partitions are not read, unless only paused partitions have records."""
    waiting = {(r.topic, r.partition): r.start for r in ranges if partition_name(r.topic, r.partition) in paused}
    if len(waiting) in (0, len(ranges)):
        return end
    return {
        topic: {p: waiting.get((topic, p), last) for p, last in by_partition.items()}
        for topic, by_partition in end.items()
    }


def partition_name(topic: str, partition: int) -> str:
    """Return a partition's name, as a micro-batch's times have it."""
    return f"{topic}-{partition}"
