"""Alerts of a micro-batch, and the status of the rules → the alerts that go out, the suppressed ones, the job's status.

    DIRECTORY/rule_status.json   what the job last said of its rules
    DIRECTORY/held_memory.json…  when each rule that suppresses last fired on each key (fired_files.py)
    DIRECTORY/held/batch-N.jsonl the alerts of a micro-batch that were held back, each with `held` for the reason.
    DIRECTORY/audit/batch-N.jsonl its lines of the audit, if the dead letters go into a topic

This is step 9 of the Spark runner (step/step.py). A repeated micro-batch ends with the same files.
Tested by: tests/runners/test_output.py
"""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from cep.base.errors import StateCorruptError
from cep.base.files import read_document
from cep.base.limits import TIME_MS_MIN
from cep.rulebook.suppression import Policies, fired_json
from cep.runners.fired_files import FiredFiles, begin_fired
from cep.sinks.durable import write_durably
from cep.step.marks import NO_MARKS, Marks
from cep.step.rules import sign_status
from cep.step.step import filter_alerts

STATUS_FILE = "rule_status.json"
SUPPRESSED_FOLDER = "held"
AUDIT_FOLDER = "audit"


class RuleOutput:
    """Applies the rules of suppression to the alerts of a job. `publish` receives the status of the rules, as JSON.

    `first` is the status that a new job begins with. Raises: StateCorruptError for damaged files.
    """

    def __init__(self, directory: Path, first: dict[str, Any], publish: Callable[[bytes], None] | None = None) -> None:
        self._directory = directory
        self._publish = publish
        path = directory / STATUS_FILE
        self.status = (read_document(path) if path.exists() else None) or sign_status(first)
        try:
            self._policies = Policies.from_json(self.status["policies"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateCorruptError(f"{path} does not say which rules there are ({error!r}); restore it") from error
        self._last_alerts = FiredFiles(directory)

    def announce(self) -> None:
        """Publish the status of the job when it starts. Raises: the errors of `publish`."""
        if self._publish is not None:
            self._publish(orjson.dumps(self.status))

    def take(
        self, alerts: pa.Table, status: bytes | None, batch_id: int, watermark_ms: int = TIME_MS_MIN,
        open_runs: Mapping[str, int] = {}, marks: Marks = NO_MARKS,
    ) -> tuple[pa.Table, Counter[str]]:  # fmt: skip
        """Return the alerts that go out, and the counters of the suppressed ones.

        `status`: the new status of the rules, None if they have not changed. `open_runs`: open matches by rule and
        version. `marks`: times of events with unreadable values, by key. Raises: SinkError; the errors of `publish`.
        """
        if status is not None:
            values = {**orjson.loads(status), "batch_id": batch_id, "open_runs": open_runs}
            self.status = write_status(self._directory, values)
            self._policies = Policies.from_json(self.status["policies"])
        memory = self._last_alerts.begin(batch_id)  # the last alerts by rule and key before it, also if it is repeated
        # Step 9 of a micro-batch: suppress alerts that come too soon after the last one of their rule and key.
        sent = filter_alerts(alerts, self._policies, memory, watermark_ms, marks)
        if sent.suppressed:
            lines = b"\n".join(sent.suppressed) + b"\n"
            write_durably(self._directory / SUPPRESSED_FOLDER / f"batch-{batch_id:019d}.jsonl", lines)
        self._last_alerts.end(batch_id)  # writes the changes to a file
        if status is not None:
            # Published last, so that its readers already find the files of suppressed alerts.
            self.announce()
        return sent.alerts, sent.counters


def begin_rule_output(directory: Path, status: dict[str, Any], memory: list[list[Any]]) -> None:
    """Write the first files of a job that continues another job's state: rules and last alerts. Raises: SinkError."""
    write_status(directory, status)
    begin_fired(directory, memory)


def write_status(directory: Path, status: dict[str, Any]) -> dict[str, Any]:
    """Write the status of the rules, with the signed head of the audit, and return it. Raises: SinkError."""
    values = sign_status(status)
    write_durably(directory / STATUS_FILE, orjson.dumps(values, option=orjson.OPT_INDENT_2))
    return values


def last_alerted(directory: Path) -> list[list[Any]]:
    """When each rule that suppresses last fired on each key, as `begin_rule_output` takes it."""
    return fired_json(FiredFiles(directory).memory.last)
