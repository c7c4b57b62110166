"""Alerts → JSON lines, one file for each micro-batch that has any.

    alerts/batch-0000000000000000007.jsonl

A file is written under another name, made durable, and renamed: a reader sees all of it or nothing, and a micro-batch
that comes again replaces its own file. The folder belongs to one checkpoint, where batch ids are unique; a
file with other alerts under the same batch id is another job's, and is not overwritten.
Tested by: tests/sinks/test_jsonl.py, tests/sinks/test_contract.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from cep.base.durable import replace_file
from cep.base.errors import SinkError
from cep.sinks.json_form import json_lines

_PREFIX = "batch-"
_SUFFIX = ".jsonl"


class JsonLinesSink:
    """Writes into `directory`, which is made if it is not there. Raises: SinkError if it cannot be."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SinkError(f"the folder for alerts {directory} cannot be made: {error}; give another") from error

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        """Write the micro-batch's file; none for no alerts. Raises: SinkError, the old file is then as it was."""
        if alerts.num_rows == 0:
            return
        # 19 digits hold every int64, so that the order of names is the order of batches.
        path = self._directory / f"{_PREFIX}{batch_id:019d}{_SUFFIX}"
        try:
            self._refuse_strangers(path, alerts)
            replace_file(path, lambda file: file.writelines(line + b"\n" for line in json_lines(alerts)))
        except OSError as error:
            raise SinkError(
                f"{alerts.num_rows} alerts of batch {batch_id} cannot be written to {path}: {error}; "
                "make room or give another folder, then start again: nothing is lost"
            ) from error

    def close(self) -> None:
        """Nothing is held between writes."""

    def _refuse_strangers(self, path: Path, alerts: pa.Table) -> None:
        if not path.exists():
            return
        ours = set(alerts["alert_id"].to_pylist())
        theirs = {alert["alert_id"] for alert in _read(path)}
        if ours != theirs:
            raise SinkError(
                f"{path} holds {len(theirs)} alerts, {len(ours & theirs)} of them among the {len(ours)} of this batch: "
                "another job writes here; give each checkpoint a folder of its own, or move the file away"
            )


def read_alerts(directory: Path) -> Iterator[dict[str, Any]]:
    """Every alert that the sink has written to the folder, in the order of the micro-batches.

    Raises: SinkError for a line that is not JSON, with the file and the line.
    """
    for path in sorted(directory.glob(f"{_PREFIX}*{_SUFFIX}")):
        yield from _read(path)


def _read(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise SinkError(f"{path}:{number} is not JSON ({error}); move the file away") from error
