"""Alerts of rules in force → the alerts that go out, and the suppressed alerts, each with its reason.

| reason     | why                                                                                       |
| ---------- | ----------------------------------------------------------------------------------------- |
| shadow     | the version is in shadow                                                                  |
| snoozed    | a person does not want the rule's alerts until a date, on all keys or on one              |
| excluded   | another rule of the same exclusive group fired on the same event                          |
| suppressed | the rule's last alert on this key is younger than `suppress` of both versions             |

A higher severity than the last alert's breaks a suppression, and so does a measure, named by `escalate`, that is
greater than in all alerts of that time: a small fraud must not hide a large one.

The reasons are tried in this order. A snoozed alert therefore takes no other rule's place, and only an alert that goes
out begins a time of suppression. Times are event time, so that replay and live jobs suppress the same alerts.
Cost: columns, and a loop over the alerts of rules that suppress or exclude.
Tested by: tests/rulebook/test_suppression.py
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.limits import FIRED_MAX, TIME_MS_MAX, TIME_MS_MIN
from cep.base.text import of_type
from cep.engine.alerts import NO_ALERTS
from cep.rulebook.outcome import SnoozeReport
from cep.rulebook.rulebook import Rulebook

SHADOW, SNOOZED, EXCLUDED, SUPPRESSED = "shadow", "snoozed", "excluded", "suppressed"
SEVERITIES = ("low", "medium", "high", "critical")
# Event time of the last alert that went out, and how long it suppresses others at most. A version with a longer time
# than the one that fired does not lengthen that: by then the alert may have been forgotten. Then the number of its
# severity, and the greatest value of its `escalate` so far.
LastAlert = tuple[int, int, int, float]
Fired = dict[tuple[str, str], LastAlert]  # by rule and key
NO_MEASURE = float("-inf")
_MARK = "flawed "
# Builds up to 0.2.0 did not store the severity. Such an entry suppresses alerts of every severity, as in those builds.
UNKNOWN_SEVERITY = len(SEVERITIES)


def mark_name(key_fields: str) -> str:
    """Return the name under which the last alerts have the marks of keys (step/marks.py). No rule has such a name."""
    return f"{_MARK}{key_fields}"


def is_mark(name: str) -> bool:
    """Return True for a name of `mark_name`."""
    return name.startswith(_MARK)


@dataclass(frozen=True, slots=True)
class Policies:
    """The rules of suppression: the exclusive group and the time of suppression of each version, and the snoozes.

    `escalations` names the measure of each version that has `escalate`. `keys` are the key fields of each version.
    """

    by_version: dict[tuple[str, int], tuple[str | None, int]] = field(default_factory=dict)
    snoozes: tuple[SnoozeReport, ...] = ()
    escalations: dict[tuple[str, int], str] = field(default_factory=dict)
    keys: dict[tuple[str, int], str] = field(default_factory=dict)

    @staticmethod
    def of(book: Rulebook) -> Policies:
        policies = Policies(snoozes=book.snoozes.report())
        for entry in (entry for versions in book.rules.values() for entry in versions.entries):
            record, rule_version = entry.record, (entry.record.id, entry.record.version)
            policies.keys[rule_version] = ",".join(entry.rule.pattern.key)
            if record.exclusive is not None or record.suppress is not None:
                policies.by_version[rule_version] = record.exclusive, record.suppress_ms
            if record.escalate is not None:
                policies.escalations[rule_version] = record.escalate
        return policies

    def to_json(self) -> dict[str, Any]:
        escalations = [[*rule_version, name] for rule_version, name in sorted(self.escalations.items())]
        return {
            "versions": [[*rule_version, *policy] for rule_version, policy in sorted(self.by_version.items())],
            "snoozes": [
                [s.rule_id, s.key, None if s.from_ms <= TIME_MS_MIN else s.from_ms, s.until_ms] for s in self.snoozes
            ],
            **({"escalations": escalations} if escalations else {}),
            "keys": [[*rule_version, fields] for rule_version, fields in sorted(self.keys.items())],
        }

    @staticmethod
    def from_json(saved: dict[str, Any]) -> Policies:
        versions = {(rule, version): (group, ms) for rule, version, group, ms in saved["versions"]}
        snoozes = (
            SnoozeReport(rule_id, key, TIME_MS_MIN if from_ms is None else from_ms, until_ms)
            for rule_id, key, from_ms, until_ms in saved["snoozes"]
        )
        escalations = {(rule, version): name for rule, version, name in saved.get("escalations", ())}
        keys = {(rule, version): fields for rule, version, fields in saved.get("keys", ())}
        return Policies(versions, tuple(snoozes), escalations, keys)


@dataclass(frozen=True, slots=True)
class Suppression:
    """Alerts, divided: `alerts` go out, `suppressed` do not, for the reason of the same row in `reasons`.

    `fired` are the new entries of the last alerts (`LastAlerts`), for later alerts.
    """

    alerts: pa.Table
    suppressed: pa.Table
    reasons: tuple[str, ...]
    fired: Fired


def suppress_alerts(alerts: pa.Table, policies: Policies, earlier: Mapping[tuple[str, str], LastAlert]) -> Suppression:
    """Divide alerts into sent and suppressed ones.

    `alerts` are sorted by sort_alerts. Alerts of one rule and key must come in their order, also over several calls.
    `earlier` has the last alert of each rule and key. It is not changed, and only the needed entries are read.
    """
    if not (policies.by_version or policies.snoozes or pc.index(alerts["status"], SHADOW).as_py() >= 0):
        return Suppression(alerts, NO_ALERTS, (), {})
    reasons = np.where(np.asarray(pc.equal(alerts["status"], SHADOW)), SHADOW, "").astype(object)  # "": to be sent
    detected_ms = np.asarray(alerts["detected_at"].cast(pa.int64()))
    for snooze in policies.snoozes:
        mask = np.asarray(pc.equal(alerts["rule_id"], snooze.rule_id))
        if snooze.key is not None:
            mask = mask & np.asarray(pc.equal(alerts["key"], snooze.key))
        reasons[mask & (snooze.from_ms <= detected_ms) & (detected_ms < snooze.until_ms) & (reasons == "")] = SNOOZED
    last = _exclude_and_suppress(alerts, detected_ms, reasons, policies, earlier)  # it adds to `reasons`, too
    goes_out = reasons == ""
    if goes_out.all():
        return Suppression(alerts, NO_ALERTS, (), last)
    return Suppression(
        alerts.filter(pa.array(goes_out)), alerts.filter(pa.array(~goes_out)), tuple(reasons[~goes_out].tolist()), last
    )


def _exclude_and_suppress(
    alerts: pa.Table, detected_ms: np.ndarray, reasons: np.ndarray, policies: Policies,
    earlier: Mapping[tuple[str, str], LastAlert],
) -> Fired:  # fmt: skip
    """Write EXCLUDED or SUPPRESSED into `reasons`, where "" is an alert that goes out. Return the new last alerts."""
    rules = alerts["rule_id"].to_pylist() if policies.by_version else []  # []: nothing excludes or suppresses
    versions = alerts["version"].to_pylist() if policies.by_version else []
    rule_versions = enumerate(zip(rules, versions, strict=True))
    rows = [row for row, rule_version in rule_versions if rule_version in policies.by_version and not reasons[row]]
    fired: Fired = {}
    if not rows:
        return fired
    read = alerts.select(["alert_id", "priority", "severity", "key", "events", "measures"])
    ordered = sorted(
        (detected_ms[row], alert["priority"], rules[row], versions[row], alert["alert_id"], row, alert)
        for row, alert in zip(rows, read.take(pa.array(rows)).to_pylist(), strict=True)
    )
    fired_groups: set[tuple[str, int, str]] = set()  # a group, and the event on which one of its rules fired
    for *_, row, alert in ordered:
        group, suppress_ms = policies.by_version[rules[row], versions[row]]
        time_ms, rule_key = int(detected_ms[row]), (rules[row], alert["key"])
        group_event = (group or "", time_ms, alert["events"][-1]["event_id"])
        if group is not None and group_event in fired_groups:
            reasons[row] = EXCLUDED  # another rule of its exclusive group fired on the same event
            continue
        fired_groups.add(group_event)
        last_alert = fired.get(rule_key) or earlier.get(rule_key, (TIME_MS_MIN, 0, 0, NO_MEASURE))
        last_ms, last_suppress_ms, last_rank, last_value = last_alert  # rank: of the severity; value: of `escalate`
        rank = SEVERITIES.index(alert["severity"])
        value = _value(alert["measures"], policies.escalations.get((rules[row], versions[row])))
        is_suppressed = time_ms < last_ms + min(suppress_ms, last_suppress_ms)  # after that, it may be forgotten
        if is_suppressed and rank <= last_rank and value <= last_value:
            reasons[row] = SUPPRESSED  # its rule fired on the key a short time ago, and it is not more serious
        elif suppress_ms:
            fired[rule_key] = (time_ms, suppress_ms, rank, max(value, last_value) if is_suppressed else value)
    return fired


def _value(measures: str, name: str | None) -> float:
    """Return the measure that `escalate` names, from the measures of an alert; without one, minus infinity."""
    value = None if name is None else json.loads(measures).get(name)
    try:
        number = NO_MEASURE if value is None else float(value)
    except (TypeError, ValueError):
        return NO_MEASURE
    return NO_MEASURE if math.isnan(number) else number


def count_suppressed(suppression: Suppression) -> dict[str, int]:
    """Count suppressed alerts by reason and rule, as `held[suppressed@card_testing]`.

    They were counted as alerts when they were matched; that is taken back here, so these counts are below 0.
    """
    rules, versions = (suppression.suppressed[name].to_pylist() for name in ("rule_id", "version"))
    counts = Counter(f"held[{reason}@{rule}]" for reason, rule in zip(suppression.reasons, rules, strict=True))
    counts.subtract(f"alerts[{rule}@{version}]" for rule, version in zip(rules, versions, strict=True))
    return dict(counts)


def fired_json(fired: Mapping[tuple[str, str], LastAlert]) -> list[list[Any]]:
    """Return [rule, key, ms, for ms, severity, value] of each entry, sorted; a null is no value."""
    return [
        [*rule_key, *last[:3], None if last[3] == NO_MEASURE else last[3]] for rule_key, last in sorted(fired.items())
    ]


def fired_from_json(saved: Iterable[Iterable[Any]]) -> Fired:
    """Read the entries of `fired_json`. In earlier builds' entries, `suppress` of the next alert is the only limit.

    Raises: TypeError or ValueError for other values."""
    return {
        (of_type("a rule", rule_id, str), of_type("a key", key, str)): _last_alert(*last)
        for rule_id, key, *last in saved
    }


def _last_alert(
    time_ms: int, for_ms: int = TIME_MS_MAX, rank: int = UNKNOWN_SEVERITY, value: float | None = None
) -> LastAlert:
    for number in (time_ms, for_ms, rank):
        of_type("a last alert", number, int)
    return time_ms, for_ms, rank, NO_MEASURE if value is None else float(value)


_AT_A_TIME = 1_000  # entries to drop with one micro-batch: many may be over at once, as after a quiet night


class LastAlerts:
    """The last alert of each rule and key: event time, for how long it suppresses others, severity and value.

    The object lists its changes, so that only these are stored. The lifetime of an entry follows from its alert alone,
    never from later versions, so the moment at which it is dropped changes no result. Marks of keys (step/marks.py) are
    entries, too; `marks_count` counts them. Cost: the added entries, and the expired ones.
    """

    def __init__(self, last: Mapping[tuple[str, str], LastAlert] | None = None) -> None:
        self.last: Fired = dict(last or {})
        self.marks_count = sum(is_mark(name) for name, _ in self.last)
        self._before: dict[tuple[str, str], LastAlert | None] = {}
        # heap: the time from which it suppresses nothing, its rule and key, its start
        self._ends = [(times[0] + times[1], rule_key, times[0]) for rule_key, times in self.last.items()]
        heapify(self._ends)

    def put(self, entries: Mapping[tuple[str, str], LastAlert | None]) -> None:
        """Set the last alert of each rule and key; None removes it. `changed` will return the values from before."""
        for rule_key, entry in entries.items():
            previous = self.last.get(rule_key)
            self._before.setdefault(rule_key, previous)  # of several changes, the value before the first
            if is_mark(rule_key[0]):  # this entry is not an alert: it marks a key that had unreadable values
                self.marks_count += (entry is not None) - (previous is not None)
            if entry is None:
                self.last.pop(rule_key, None)
            else:
                self.last[rule_key] = entry
                time_ms, suppress_ms, *_ = entry
                heappush(self._ends, (time_ms + suppress_ms, rule_key, time_ms))  # first: when the suppression ends

    def forget(self, before_ms: int) -> int:
        """Drop some entries that are over at `before_ms`. Return how many more went because of FIRED_MAX."""
        for _ in range(_AT_A_TIME + len(self._before)):
            if not self._ends or self._ends[0][0] > before_ms:
                break
            self._drop()
        lost_count = 0
        while len(self.last) > FIRED_MAX:
            lost_count += self._drop()
        return lost_count

    def _drop(self) -> bool:
        """Drop the entry that is over first, unless its rule has fired again. Return True if it was dropped."""
        over_ms, rule_key, ms = heappop(self._ends)
        last = self.last.get(rule_key)
        if last is None or last[:2] != (ms, over_ms - ms):
            return False
        self.put({rule_key: None})
        return True

    def changed(self) -> dict[tuple[str, str], LastAlert | None]:
        """Return the entries changed since the last call, as they were before; None for a new one."""
        before, self._before = self._before, {}
        return {rule_key: times for rule_key, times in before.items() if self.last.get(rule_key) != times}
