"""The progress of a live job, in its folder: the last micro-batch that has ended, and the totals up to its end.

    DIRECTORY/progress.json    {"batch_id": 17, "totals": {"events": …, …}, "undelivered": 45}

`undelivered` counts the alerts that waited for sinks at that time: a job that is stopped before it has opened its state
reports them.

Tested by: tests/runners/spark/test_live_output.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import orjson

from cep.base.errors import StateCorruptError
from cep.runners.documents import read_document
from cep.sinks.durable import write_durably

PROGRESS_FILE = "progress.json"


def read_progress(directory: Path) -> tuple[int, Counter[str]]:
    """(last micro-batch, totals up to its end) of a job; (-1, nothing) for one that has not begun.

    Raises: StateCorruptError.
    """
    path = directory / PROGRESS_FILE
    if not path.exists():
        return -1, Counter()
    record = read_document(path)
    batch_id, totals = record.get("batch_id"), record.get("totals")
    if type(batch_id) is not int or not isinstance(totals, dict) or any(type(n) is not int for n in totals.values()):
        raise StateCorruptError(f"{path} does not say how far the job is; restore it, or give a new folder")
    return batch_id, Counter(totals)


def read_undelivered(directory: Path | None) -> int:
    """Return how many alerts waited for sinks when the job wrote its progress; 0 if that is not known."""
    path = None if directory is None else directory / PROGRESS_FILE
    try:
        count = 0 if path is None or not path.exists() else read_document(path).get("undelivered", 0)
    except StateCorruptError:  # the start reports it
        return 0
    return count if type(count) is int else 0


def write_progress(directory: Path, batch_id: int, totals: Mapping[str, int], undelivered: int = 0) -> None:
    """Write the last micro-batch, the totals and the count of waiting alerts. Raises: SinkError."""
    record = {"batch_id": batch_id, "totals": dict(sorted(totals.items())), "undelivered": undelivered}
    write_durably(directory / PROGRESS_FILE, orjson.dumps(record, option=orjson.OPT_INDENT_2))
