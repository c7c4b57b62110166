"""A rulebook → its status, one JSON value: for the status topic, the status file, and the step that suppresses alerts.

    {"digest": …, "epoch": 7, "content_hash": …, "rules": [{"rule_id": …, "version": …, "from_ms": …}],
     "last_versions": {…}, "paused": […], "snoozes": […], "refused": [{"rule_id", "version", "reason"}],
     "policies": {…}, "audit": {"count", "hash"}}

An absent time, such as the end of a version without a successor, is null. The head of the audit is there if the job
writes an audit.

Tested by: tests/runners/test_output.py
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.rulebook.audit import writes_audit
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import save
from cep.rulebook.suppression import Policies

_COUNTS = ("applied_count", "ignored_count", "refused_count", "rule_late_ms")  # of one process: no fact about the job


def rule_status(rulebook: Rulebook) -> dict[str, Any]:
    """Describe the rules in force, the refused rules with their reasons, and the policies of suppression.

    Equal rulebooks give equal values.
    """
    report = asdict(rulebook.report())
    facts = {name: value for name, value in report.items() if name not in _COUNTS}
    facts["rules"] = list(facts["rules"])
    facts = _with_times(facts)
    if writes_audit(rulebook):
        facts["audit"] = rulebook.trail.head.to_json()
    return {"digest": save(rulebook).digest, **facts, "policies": Policies.of(rulebook).to_json()}


def _with_times(value: Any) -> Any:
    """Return the value with null for times before or after all events."""
    if isinstance(value, dict):
        return {name: _time(item) if _is_time(name, item) else _with_times(item) for name, item in value.items()}
    return [_with_times(item) for item in value] if isinstance(value, list | tuple) else value


def _is_time(name: str, value: Any) -> bool:
    """Return True for a time of the report. A rule or an event type may have such a name, too."""
    return name.endswith("_ms") and isinstance(value, int)


def _time(time_ms: int) -> int | None:
    return None if not TIME_MS_MIN < time_ms < TIME_MS_MAX else time_ms
