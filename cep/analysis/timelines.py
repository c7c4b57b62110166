"""Judged alerts and missed frauds → some of each, with the events of their key around them.

Ten alerts are shown, right and wrong ones in turn, evenly over time; of the frauds that no rule finds the ten with the
most money. Values of protected fields never appear: not even their tokens.
Tested by: tests/analysis/test_report.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cep.analysis.cases import Ending, first_events, key_batches, keys_of_events, sampled
from cep.analysis.measure import Measured
from cep.base.schema import Schema
from cep.base.secrets import hide_tokens
from cep.columnar.batch import EventBatch
from cep.columnar.decode import KEY_SEPARATOR, KeyDomain
from cep.lang.show import show_time, show_value
from cep.sources.pieces import Pieces

HIDDEN = "•••"
_SHOWN = 10
_EVENTS_MAX = 14  # of a timeline: the bound ones first, then those nearest to them


@dataclass(frozen=True, slots=True)
class Line:
    """One event of a timeline. `variable` is its variable in an alert, `is_fraud` its label."""

    time: str
    event_id: str
    event_type: str
    variable: str
    is_fraud: bool
    fields: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """An alert or a missed fraud: a description in a line, further notes, and the events of its key."""

    title: str
    notes: tuple[str, ...]
    lines: tuple[Line, ...]


def alert_timelines(measured: Measured, pieces_of: Callable[[Schema], Pieces]) -> list[Timeline]:
    """Return the time lines of some alerts: half of them right, half of them others, if there are enough."""
    judged, history = measured.judged, measured.history
    right = np.flatnonzero(judged.is_right)
    others = np.flatnonzero(~judged.is_right)
    half = _SHOWN // 2
    counts_max = max(half, _SHOWN - len(right)), max(half, _SHOWN - len(others))
    chosen = [*(right[sampled(len(right), counts_max[1])]), *(others[sampled(len(others), counts_max[0])])][:_SHOWN]
    rows = history.replayed.alerts.take(pa.array(judged.row[chosen], pa.int64())).to_pylist()
    domain_of = {rule.rule_id: rule.pattern.key for rule in history.deployment.rulebook.deployed()}
    batches = _batches(measured, pieces_of, [(domain_of[row["rule_id"]], row["key"]) for row in rows])
    frauds = _fraud_ids(measured)
    lines = []
    for alert, row in zip(chosen, rows, strict=True):
        domain = domain_of[row["rule_id"]]
        bound = {event["event_id"]: event["variable"] for event in row["events"]}
        verdict = "right" if judged.is_right[alert] else "immature" if judged.is_immature[alert] else "wrong"
        key = shown_key(row["key"], domain, measured.history.events.schema)
        title = f"{verdict}: {row['rule_id']} for {key} at {str(row['detected_at'])[:19]}"
        batch = batches[domain, row["key"]]
        lines.append(
            Timeline(title, (), _lines(measured, batch, bound, frauds, row["detected_at"].timestamp() * 1_000))
        )
    return lines


def missed_timelines(
    measured: Measured, pieces_of: Callable[[Schema], Pieces], endings: Sequence[Ending]
) -> list[Timeline]:
    """Return the time lines of the largest frauds that no rule finds, each with the rule that came furthest."""
    marks = measured.marks
    missed = np.flatnonzero(~measured.judged.has_detected.any(axis=0)) if marks.frauds_count else np.empty(0, np.int64)
    furthest: dict[int, Ending] = {}
    for ending in endings:
        if ending.fraud not in furthest or ending.depth > furthest[ending.fraud].depth:
            furthest[ending.fraud] = ending
    walked = [fraud for fraud in missed.tolist() if fraud in furthest]
    chosen = sorted(walked, key=lambda fraud: (-marks.amount[fraud], fraud))[:_SHOWN]
    rows = first_events(measured)[chosen] if chosen else np.empty(0, np.int64)
    domain_of = {rule.rule_id: rule.pattern.key for rule in measured.history.deployment.rulebook.deployed()}
    domain_keys = []
    for fraud, row in zip(chosen, rows, strict=True):
        domain = domain_of[furthest[fraud].rule]
        (key,) = keys_of_events(measured, np.array([row]), domain)
        domain_keys.append((domain, key or ""))
    batches = _batches(measured, pieces_of, domain_keys)
    frauds = _fraud_ids(measured)
    lines = []
    for fraud, domain_key in zip(chosen, domain_keys, strict=True):
        ending = furthest[fraud]
        kind = marks.kind[fraud]
        shown = shown_key(domain_key[1], domain_key[0], measured.history.events.schema)
        money = f", {marks.amount[fraud]:,.2f}" if marks.amount[fraud] else ""
        title = f"missed: {shown} at {show_time(int(marks.first_ms[fraud]))}{money}{f', {kind}' if kind else ''}"
        head = f"{ending.rule} came furthest" if ending.depth else f"{ending.rule} began no run"
        notes = (head, *(hide_tokens(line) for line in ending.story))
        lines.append(
            Timeline(title, notes, _lines(measured, batches[domain_key], {}, frauds, int(marks.first_ms[fraud])))
        )
    return lines


def _batches(
    measured: Measured, pieces_of: Callable[[Schema], Pieces], domain_keys: Sequence[tuple[KeyDomain, str]]
) -> dict[tuple[KeyDomain, str], EventBatch]:
    """Read the events of some keys. Returns: the events by (domain, key)."""
    by_domain: dict[KeyDomain, list[str]] = {}
    for domain, key in domain_keys:
        by_domain.setdefault(domain, []).append(key)
    if not domain_keys:
        return {}
    read = key_batches(pieces_of, measured.history.deployment.schema, by_domain)
    return {
        (domain, key): read[domain].take(np.array([k == key for k in read[domain].key.to_pylist()], np.bool_))
        for domain, key in domain_keys
    }


def _fraud_ids(measured: Measured) -> set[str]:
    rows = np.flatnonzero(measured.marks.fraud >= 0)
    return set(measured.history.events.event_id.take(pa.array(rows)).to_pylist())


def _lines(
    measured: Measured, batch: EventBatch, bound: Mapping[str, str], frauds: set[str], at_ms: float
) -> tuple[Line, ...]:
    """Return the lines of a time line: the bound events and the events nearest to `at_ms`, in the order of time."""
    schema = measured.history.deployment.schema
    ids = batch.event_id.to_pylist()
    distances = [(ids[row] not in bound, abs(int(batch.time_ms[row]) - at_ms), ids[row]) for row in range(len(batch))]
    rows = sorted(range(len(batch)), key=lambda row: distances[row])[:_EVENTS_MAX]
    rows.sort(key=lambda row: (int(batch.time_ms[row]), ids[row]))
    return tuple(
        Line(
            show_time(int(batch.time_ms[row])),
            ids[row],
            schema.event_types[int(batch.event_type[row])].name,
            bound.get(ids[row], ""),
            ids[row] in frauds,
            _fields(schema, batch, row),
        )
        for row in rows
    )


def _fields(schema: Schema, batch: EventBatch, row: int) -> str:
    """Write the values of an event, without protected fields."""
    event_type = schema.event_types[int(batch.event_type[row])]
    parts = []
    for field in event_type.fields:
        if field.name in (event_type.id_field, event_type.time_field) or field.name not in batch.columns:
            continue
        value: Any = batch.columns[field.name][row].as_py()
        if value is not None:
            parts.append(f"{field.name} {HIDDEN if field.type.protected else show_value(value, field.type)}")
    return ", ".join(parts)


def shown_key(key: str, domain: KeyDomain, schema: Schema) -> str:
    """Return a key with the names of its fields, protected ones hidden."""
    protected = dict(schema.protected)
    parts = key.split(KEY_SEPARATOR)
    return ", ".join(
        f"{name} {HIDDEN if name in protected else part}" for name, part in zip(domain, parts, strict=False)
    )
