"""Alerts of a micro-batch, and the status of the rules → what goes out, what is held back, where the job stands.

    DIRECTORY/rule_status.json   what the job last said of its rules
    DIRECTORY/held_memory.json   when each rule that suppresses last fired on each key
    DIRECTORY/held/batch-N.jsonl the alerts of a micro-batch that were held back, each with `held` for the reason

A micro-batch that is done again ends in the same place: the memory keeps what it was before the batch as well.
Tested by: tests/runners/test_rule_output.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from cep.rulebook.held import HeldBack, Policies, counted, forgotten, hold_back, memory_from_json, memory_json
from cep.sinks.durable import write_durably
from cep.sinks.json_form import json_lines

STATUS_FILE = "rule_status.json"
HELD_FOLDER = "held"
_MEMORY_FILE = "held_memory.json"


class RuleOutput:
    """Keeps to the rules in what leaves the job. `publish` is told what the job says of its rules, as JSON.

    `first` is the status of the rules that a job begins with; one that goes on knows better.
    """

    def __init__(self, directory: Path, first: dict[str, Any], publish: Callable[[bytes], None] | None = None) -> None:
        self._directory = directory
        self._publish = publish
        self.status = _read(directory / STATUS_FILE) or first
        memory = _read(directory / _MEMORY_FILE) or {"batch_id": -1, "before": [], "after": []}
        self._memory_batch_id: int = memory["batch_id"]
        self._before, self._after = (memory_from_json(memory[name]) for name in ("before", "after"))

    def announce(self) -> None:
        """Say where the job stands, when it starts. Raises: what `publish` raises."""
        if self._publish is not None:
            self._publish(orjson.dumps(self.status))

    def take(self, alerts: pa.Table, status: bytes | None, batch_id: int) -> tuple[pa.Table, dict[str, int]]:
        """The alerts that go out, and counters of those that do not. `status` is there if the rules have changed.

        Raises: SinkError if the files cannot be written, what `publish` raises.
        """
        if status is not None:
            self.status = {**orjson.loads(status), "batch_id": batch_id}
            write_durably(self._directory / STATUS_FILE, orjson.dumps(self.status, option=orjson.OPT_INDENT_2))
        memory = self._before if batch_id <= self._memory_batch_id else self._after
        policies = Policies.from_json(self.status["policies"])
        found = hold_back(alerts, policies, memory)
        if found.held.num_rows:
            lines = held_lines(found)
            write_durably(self._directory / HELD_FOLDER / f"batch-{batch_id:019d}.jsonl", b"\n".join(lines) + b"\n")
        self._remember(policies, memory, found.memory, alerts, batch_id)
        if status is not None:
            # Last: who reads that a change is in force finds what it held back.
            self.announce()
        return found.alerts, counted(found)

    def _remember(
        self, policies: Policies, before: dict[tuple[str, str], int], after: dict[tuple[str, str], int],
        alerts: pa.Table, batch_id: int,
    ) -> None:  # fmt: skip
        if before == after and batch_id > self._memory_batch_id:
            return  # most micro-batches
        if alerts.num_rows:
            after = forgotten(after, policies, int(alerts["detected_at"][-1].value))
        self._memory_batch_id, self._before, self._after = batch_id, before, after
        memory = {"batch_id": batch_id, "before": memory_json(before), "after": memory_json(after)}
        write_durably(self._directory / _MEMORY_FILE, orjson.dumps(memory))


def begin_rule_output(directory: Path, status: dict[str, Any], memory: list[list[Any]]) -> None:
    """What a job begins with that goes on from another one's state: its rules, and when they last fired.

    Raises: SinkError.
    """
    write_durably(directory / STATUS_FILE, orjson.dumps(status, option=orjson.OPT_INDENT_2))
    kept = {"batch_id": -1, "before": memory, "after": memory}
    write_durably(directory / _MEMORY_FILE, orjson.dumps(kept))


def last_alerted(directory: Path) -> list[list[Any]]:
    """When each rule that suppresses last fired on each key, as `begin_rule_output` takes it."""
    found: list[list[Any]] = (_read(directory / _MEMORY_FILE) or {"after": []})["after"]
    return found


def held_lines(found: HeldBack) -> list[bytes]:
    """What was held back, a JSON object each: `{"held": reason, "alert": …}`."""
    lines = zip(found.reasons, json_lines(found.held), strict=True)
    return [orjson.dumps({"held": reason, "alert": orjson.Fragment(line)}) for reason, line in lines]


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    found: dict[str, Any] = orjson.loads(path.read_bytes())
    return found
