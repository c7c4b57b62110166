"""Alerts of a micro-batch → alerts to send and suppressed alerts: step 9 of every runner.

The rules decide (rulebook/suppression.py). Their memory of sent alerts is a `LastAlerts`, which the runner stores. `cep
run` does this in its engine, Spark in its driver, because only there all alerts of a micro-batch are together.
Tested by: tests/step/test_step.py, tests/runners/test_output.py
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import orjson
import pyarrow as pa

from cep.rulebook.suppression import LastAlerts, Policies, Suppression, count_suppressed, suppress_alerts
from cep.sinks.json_form import json_lines
from cep.step.marks import NO_MARKS, Marks, remember_marks, with_marks


@dataclass(frozen=True, slots=True)
class FilteredAlerts:
    """The alerts to send, the suppressed ones as JSON lines, and counters of both."""

    alerts: pa.Table
    suppressed: tuple[bytes, ...]
    counters: Counter[str]


def filter_alerts(
    alerts: pa.Table, policies: Policies, memory: LastAlerts, watermark_ms: int, marks: Marks = NO_MARKS
) -> FilteredAlerts:
    """Remove the alerts that rules suppress, and remember the sent ones. Mark the alerts of keys with flawed events.

    alerts: sorted as sort_alerts does. memory: changed in place. watermark_ms: no later micro-batch has an alert before
    it, so expired entries are forgotten. marks: of the events of this micro-batch.
    """
    if not alerts.num_rows and not marks:  # then nothing is remembered either
        return FilteredAlerts(alerts, (), Counter())
    alerts = with_marks(alerts, policies.keys, marks, memory)
    lost_count = remember_marks(memory, marks)
    suppression = suppress_alerts(alerts, policies, memory.last)
    memory.put(suppression.fired)
    counters = Counter(count_suppressed(suppression))
    lost_count += memory.forget(watermark_ms)
    if lost_count:
        counters["fired_forgotten"] = lost_count
    return FilteredAlerts(suppression.alerts, tuple(suppressed_lines(suppression)), counters)


def is_suppressed(line: bytes) -> bool:
    """Return True for a line of `suppressed_lines`, False for a dead letter."""
    return line.startswith(b'{"held":')


def suppressed_lines(suppression: Suppression) -> list[bytes]:
    """Return a JSON object for each suppressed alert: `{"held": reason, "alert": …}`."""
    lines = zip(suppression.reasons, json_lines(suppression.suppressed), strict=True)
    return [orjson.dumps({"held": reason, "alert": orjson.Fragment(line)}) for reason, line in lines]
