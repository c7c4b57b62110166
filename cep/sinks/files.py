"""Alerts → files, one for each micro-batch that has any: JSON lines or Parquet. Dead letters → JSON lines.

    alerts/batch-0000000000000000007.jsonl
    alerts/batch-0000000000000000007.parquet

A reader sees all of a file or nothing (base/files.py), and a micro-batch that comes again replaces its own file. The
folder belongs to one checkpoint, where batch ids are unique. A file with other alerts under the same batch id is
another job's, and is not overwritten. Parquet has the columns of the alert table, and Spark, Arrow and DuckDB read the
folder as one table.

Tested by: tests/sinks/test_files.py, tests/sinks/test_contract.py.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from cep.base.errors import SinkError, UnreadableError
from cep.base.files import read_lines, replace_file
from cep.sinks.base import Recalled
from cep.sinks.durable import write_durably
from cep.sinks.json_form import json_lines

Form = Literal["jsonl", "parquet"]
_PREFIX = "batch-"


class FileSink:
    """A sink that writes the alerts of each micro-batch to a file in a folder. Raises: SinkError without the folder."""

    def __init__(self, directory: Path, form: Form = "jsonl") -> None:
        self._directory = directory
        self._form = form
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SinkError(f"the folder for alerts {directory} cannot be made: {error}; give another") from error

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        """Write the file of a micro-batch, if it has alerts. Raises: SinkError; an earlier file is then unchanged."""
        if alerts.num_rows == 0:
            return
        # 19 digits hold every int64, so that the order of names is the order of batches.
        path = self._directory / f"{_PREFIX}{batch_id:019d}.{self._form}"
        try:
            _refuse_other_alerts(path, alerts)  # that another job has written under the same number
            replace_file(path, lambda file: _fill(file, alerts, self._form))
        except OSError as error:
            raise SinkError(
                f"{alerts.num_rows} alerts of batch {batch_id} cannot be written to {path}: {error}; "
                "make room or give another folder, then start again: nothing is lost"
            ) from error

    def place(self) -> str:
        """Return an empty text: `recall` needs only the numbers of the files."""
        return ""

    def recall(self, after: int, since_ms: int, places: Sequence[str] = ()) -> Recalled:
        """Return the alert ids in the files of micro-batches after `after`, so that a job that lost its progress does
        not send these alerts again (RecallingSink). Raises: SinkError."""
        later = {
            int(number): path
            for path in self._directory.glob(f"{_PREFIX}*.{self._form}")
            if (number := path.stem.removeprefix(_PREFIX)).isdecimal()  # a person's copy has another name
        }
        ids = frozenset[str]().union(*(_ids(path) for number, path in later.items() if number > after))
        return Recalled(ids, max([after, *later]))

    def close(self) -> None:
        """Do nothing: no file is open between writes."""


def read_alerts(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the alerts in a folder of JSON lines, in the order of the micro-batches. Raises: SinkError."""
    for path in sorted(directory.glob(f"{_PREFIX}*.jsonl")):
        yield from _read_lines(path)


def _fill(file: BinaryIO, alerts: pa.Table, form: Form) -> None:
    if form == "parquet":
        pq.write_table(alerts, file, compression="zstd")
    else:
        file.writelines(line + b"\n" for line in json_lines(alerts))


def _refuse_other_alerts(path: Path, alerts: pa.Table) -> None:
    """Raise SinkError if the file exists and holds other alerts than these."""
    if not path.exists():
        return
    ours, theirs = set(alerts["alert_id"].to_pylist()), _ids(path)
    if ours != theirs:
        raise SinkError(
            f"{path} holds {len(theirs)} alerts, {len(ours & theirs)} of them among the {len(ours)} of this batch: "
            "another job writes here; give each checkpoint a folder of its own, or move the file away"
        )


def _ids(path: Path) -> set[str]:
    try:
        if path.suffix == ".jsonl":
            return {alert["alert_id"] for alert in _read_lines(path)}
        return set(pq.read_table(path, columns=["alert_id"])["alert_id"].to_pylist())
    except (pa.ArrowException, KeyError, TypeError) as error:
        raise SinkError(f"{path} is not a file of alerts ({error!r}); move the file away") from error


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        for number, line in enumerate(read_lines(path), start=1):
            try:
                yield orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise SinkError(f"{path}:{number} is not JSON ({error}); move the file away") from error
    except UnreadableError as error:
        raise SinkError(f"{path} cannot be read: {error}; move the file away") from error


class DeadLetterFiles:
    """A sink that writes the dead letters of each micro-batch to a file in a folder; its name begins with `prefix`."""

    def __init__(self, directory: Path, prefix: str = "batch") -> None:
        self._directory = directory
        self._prefix = prefix

    def write(self, dead_letters: Sequence[bytes], batch_id: int) -> None:
        """Write the file of a micro-batch, if it has dead letters. Raises: SinkError."""
        if dead_letters:
            write_durably(self._directory / f"{self._prefix}-{batch_id:019d}.jsonl", b"\n".join(dead_letters) + b"\n")

    def close(self) -> None:
        """Do nothing, because no file is open between writes."""
