"""The progress of a live job, in its folder: the last micro-batch that has ended, and the totals up to its end.

    DIRECTORY/progress.json    {"batch_id": 17, "totals": {"events": …, …}}

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


def write_progress(directory: Path, batch_id: int, totals: Mapping[str, int]) -> None:
    """Write the last micro-batch and the totals. Raises: SinkError."""
    record = {"batch_id": batch_id, "totals": dict(sorted(totals.items()))}
    write_durably(directory / PROGRESS_FILE, orjson.dumps(record, option=orjson.OPT_INDENT_2))
