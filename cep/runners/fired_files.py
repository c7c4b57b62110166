"""The last alert of each rule that suppresses, by key (rulebook/suppression.py), in files of a job's folder.

    DIRECTORY/held_memory.json   {"batch_id": 7, "fired": [[rule, key, ms, for ms] …]}       all
    DIRECTORY/held_memory.jsonl  {"batch_id": 9, "fired": [[rule, key, ms, for ms] …], "gone": [[rule, key] …]}  since

A micro-batch adds a line with its changes. When the lines have grown to several times the snapshot, that is
written again with all changes before the micro-batch, and the lines begin with its own. A repeated micro-batch begins
with the same memory as before. Its line replaces the first one, which may be torn: no reader saw its result.
Tested by: tests/runners/test_output.py
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from cep.base.errors import SinkError, StateCorruptError
from cep.base.files import replace_file
from cep.rulebook.suppression import LastAlert, LastAlerts, fired_from_json, fired_json
from cep.sinks.durable import write_durably

_SNAPSHOT, _CHANGES = "held_memory.json", "held_memory.jsonl"
_CHANGES_BYTES_MIN, _CHANGES_FACTOR = 1 << 20, 2


class FiredFiles:
    """The memory as of the last micro-batch, which can go back to the memory before that micro-batch."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._batch_id = -1
        # The entries before the changes of the last micro-batch.
        self._before: dict[tuple[str, str], LastAlert | None] = {}
        self._snapshot_bytes = self._changes_bytes = 0
        self.memory = self._read()

    def begin(self, batch_id: int) -> LastAlerts:
        """Return the memory as a micro-batch begins, the last one again or a later one. The caller changes it."""
        _undo(self.memory, self.memory.changed())  # of one that has failed
        if batch_id <= self._batch_id:
            _undo(self.memory, self._before)
            self._before = {}
        return self.memory

    def end(self, batch_id: int) -> None:
        """Save how a micro-batch has changed the last alerts by rule and key: append a line to the file of changes. If
        that is long, write a snapshot of all last alerts, and begin the file of changes anew. Raises: SinkError."""
        before = self.memory.changed()  # the changed entries, as they were before
        if not before and batch_id > self._batch_id:
            return  # as usual; only a repeated micro-batch without changes must replace its earlier line
        self._batch_id, self._before = batch_id, before
        last = self.memory.last
        fired = fired_json({rule_and_key: last[rule_and_key] for rule_and_key in before if rule_and_key in last})
        removed = sorted(before.keys() - last.keys())
        line = orjson.dumps({"batch_id": batch_id, "fired": fired, "gone": removed}) + b"\n"
        try:
            changes_bytes_max = max(_CHANGES_BYTES_MIN, _CHANGES_FACTOR * self._snapshot_bytes)
            if self._changes_bytes == 0 or self._changes_bytes > changes_bytes_max:
                self._write_snapshot(batch_id - 1)  # from before the micro-batch, which may be repeated after a crash
                replace_file(self._directory / _CHANGES, line)
                self._changes_bytes = len(line)
            else:
                self._append(line)
        except OSError as error:
            raise SinkError(
                f"{self._directory / _CHANGES} cannot be written: {error}; make room or mend the folder and start "
                "again: nothing is lost"
            ) from error

    def _write_snapshot(self, batch_id: int) -> None:
        """Write all of it as it was before the last micro-batch."""
        then = {**self.memory.last, **self._before}
        fired = fired_json({rule_and_key: times for rule_and_key, times in then.items() if times is not None})
        data = orjson.dumps({"batch_id": batch_id, "fired": fired})
        replace_file(self._directory / _SNAPSHOT, data)
        self._snapshot_bytes = len(data)

    def _append(self, line: bytes) -> None:
        with (self._directory / _CHANGES).open("r+b") as file:
            file.truncate(self._changes_bytes)  # the rest belongs to a write that was cut off
            file.seek(self._changes_bytes)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._changes_bytes += len(line)

    def _read(self) -> LastAlerts:
        """Read the last alert of each rule and key: the snapshot, and the changes since. Raises: StateCorruptError."""
        snapshot, changes = self._directory / _SNAPSHOT, self._directory / _CHANGES
        try:
            data = snapshot.read_bytes() if snapshot.exists() else b'{"batch_id": -1, "fired": []}'
            self._snapshot_bytes, document = len(data), orjson.loads(data)
            memory = LastAlerts(fired_from_json(document["fired"]))
            self._batch_id = document["batch_id"]
            added = changes.read_bytes() if changes.exists() else b""
            self._changes_bytes = added.rfind(b"\n") + 1  # a process may have been cut off from writing the last line
            for change in map(orjson.loads, added[: self._changes_bytes].splitlines()):
                if change["batch_id"] > document["batch_id"]:
                    self._apply(memory, change)
        except (KeyError, TypeError, ValueError) as error:
            text = f"{snapshot} or {changes} cannot be read ({error!r}); restore a savepoint"
            raise StateCorruptError(text) from error
        return memory

    def _apply(self, memory: LastAlerts, change: dict[str, Any]) -> None:
        if change["batch_id"] <= self._batch_id:  # done again
            _undo(memory, self._before)
        memory.put(fired_from_json(change["fired"]))
        memory.put(dict.fromkeys((rule_id, key) for rule_id, key in change["gone"]))
        self._batch_id, self._before = change["batch_id"], memory.changed()


def begin_fired(directory: Path, fired: Iterable[Iterable[Any]]) -> None:
    """Write the memory of a job that continues another job's state, in the form of `fired_json`. Raises: SinkError."""
    write_durably(directory / _SNAPSHOT, orjson.dumps({"batch_id": -1, "fired": list(fired)}))
    (directory / _CHANGES).unlink(missing_ok=True)


def _undo(memory: LastAlerts, before: Mapping[tuple[str, str], LastAlert | None]) -> None:
    memory.put(before)
    memory.changed()
