"""Judged alerts → the findings of a team with a daily budget of alerts, and the differences between weeks.

Fields that conditions read are shown week by week: quantiles of a number, or the shares of the most frequent values of
a text or a yes and no. Protected fields, ids and times are left out, and so are fields of produced events: they are in
no file.
Tested by: tests/analysis/test_report.py, tests/analysis/test_drift.py
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.analysis.backtest import DAY_MS, Judged, ratio
from cep.analysis.history import Events
from cep.analysis.labelled_events import LabelledEvents
from cep.base.schema import Kind, Type
from cep.base.text import utc_text
from cep.columnar.texts import encoded
from cep.lang.ir import CurrentField, PatternIR, VarField
from cep.lang.walk import nodes
from cep.rulebook.deploy import Deployment

BUDGETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
_MONDAY = 3  # 1970-01-01 was a Thursday: three days more make weeks begin on Monday
_QUANTILES = (0.5, 0.95)


def places_of_day(judged: Judged) -> NDArray[np.int64]:
    """Return the place of each alert within its day, from 0: by score, then time, then order."""
    order = np.lexsort((judged.detected_ms, -judged.score, judged.detected_ms // DAY_MS))
    day = (judged.detected_ms // DAY_MS)[order]
    first = np.searchsorted(day, day)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - first
    return place


def by_budget(
    judged: Judged, labelled: LabelledEvents, days: int, review_cost: float = 0.0
) -> tuple[dict[str, Any], ...]:
    """Compute the figures of a team that reviews only the first alerts of each day, for several daily budgets. Alerts
    are in the order of `places_of_day`. An immature alert, too recent to judge, does not count for precision."""
    day_position = places_of_day(judged)
    rows: list[dict[str, Any]] = []
    for budget in BUDGETS:
        is_within = day_position < budget
        bound = judged.bound_event_row[is_within[judged.bound_event_alert]]  # the events of these alerts
        frauds = np.unique(labelled.fraud[bound][labelled.fraud[bound] >= 0])
        alerts, right = int(is_within.sum()), int(judged.is_right[is_within].sum())
        money = float(labelled.amount[frauds].sum())
        rows.append({
            "alerts_a_day": budget,
            "alerts": alerts,
            "mean_alerts_a_day": alerts / days if days else 0.0,
            "precision": ratio(right, alerts - int(judged.is_immature[is_within].sum())),
            "fraud_recall": ratio(len(frauds), labelled.frauds_count),
            "money_found": money,
            "money_less_reviews": money - review_cost * alerts,
        })  # fmt: skip
        if alerts == len(is_within):
            break
    return tuple(rows)


def by_week(
    judged: Judged, labelled: LabelledEvents, events: Events, amount: str | None, span: int = 1
) -> tuple[dict[str, Any], ...]:
    """Count events, frauds, alerts and right alerts by week, with quantiles of the money of events. With `span` each
    row covers that many weeks and is named by the first. Cost: one pass over events, one over alerts."""
    arrived_rows = np.flatnonzero(events.time_ms <= labelled.as_of_ms)
    origin = int(events.time_ms[arrived_rows].min(initial=labelled.as_of_ms))
    numbers, week = np.unique(week_numbers(events.time_ms[arrived_rows], span, origin), return_inverse=True)
    counts = np.bincount(week, minlength=len(numbers))
    fraud_counts = np.bincount(week[labelled.fraud[arrived_rows] >= 0], minlength=len(numbers))
    mature_counts = np.bincount(week[labelled.is_mature[arrived_rows]], minlength=len(numbers))
    money = None if amount is None else _money(events.numbers(amount)[arrived_rows], week, len(numbers))
    alerts, right, mature = _alerts_by_week(judged, numbers, week_numbers(judged.detected_ms, span, origin))
    rows: list[dict[str, Any]] = []
    for index, number in enumerate(numbers.tolist()):
        row: dict[str, Any] = {
            "week": week_text(number),
            "events": int(counts[index]),
            "fraud_events": int(fraud_counts[index]),
            "mature_events": int(mature_counts[index]),
        }
        if money is not None:
            row["amount"] = money[index]
        row["rules"] = [
            {
                "rule": name,
                "alerts": int(alerts[index, rule]),
                "precision": ratio(int(right[index, rule]), int(mature[index, rule])).value,
            }
            for rule, name in enumerate(judged.names)
        ]
        rows.append(row)
    return tuple(rows)


def _money(values: NDArray[np.float64], week: NDArray[np.int64], count: int) -> list[list[float] | None]:
    order = np.argsort(week, kind="stable")
    parts = np.split(values[order], np.searchsorted(week[order], np.arange(1, count)))
    present = [part[~np.isnan(part)] for part in parts]
    return [[float(np.quantile(part, q)) for q in _QUANTILES] if len(part) else None for part in present]


def _alerts_by_week(
    judged: Judged, numbers: NDArray[np.int64], week: NDArray[np.int64]
) -> tuple[NDArray[np.int64], ...]:
    """Count the alerts, the right and the mature ones of each week and rule. Shapes: int64[weeks, rules] each."""
    rules = len(judged.names)
    inside = np.isin(week, numbers)
    place = np.searchsorted(numbers, week) * rules + judged.rule
    masks = (inside, inside & judged.is_right, inside & ~judged.is_immature)
    return tuple(
        np.bincount(place[mask], minlength=len(numbers) * rules).reshape(len(numbers), rules) for mask in masks
    )


def week_numbers(time_ms: NDArray[np.int64], span: int = 1, origin_ms: int | None = None) -> NDArray[np.int64]:
    """Return the number of each time's week; with `span`, of the first of so many weeks, from the week of the origin or
    of the earliest time on."""
    weeks: NDArray[np.int64] = (time_ms // DAY_MS + _MONDAY) // 7
    if span == 1 or not len(weeks):
        return weeks
    first = int(weeks.min()) if origin_ms is None else (origin_ms // DAY_MS + _MONDAY) // 7
    return first + (weeks - first) // span * span


def week_text(number: int) -> str:
    """Return the Monday on which a week begins, as a date."""
    return utc_text((number * 7 - _MONDAY) * DAY_MS)[:10]


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_VALUES = 5  # of a text: the most frequent ones of the whole time


@dataclass(frozen=True, slots=True)
class FieldDrift:
    """The values of a field week by week. `event_types` have the field, conditions of `rules` read it, and `values` are
    the frequent texts whose shares are given, empty for a number. A week has `events` of these types, `missing` of them
    without a value. A week of a number has its `quantiles` (QUANTILES); of a text `shares`, one for each of `values`,
    and `distinct`, the count of different texts."""

    field: str
    event_types: tuple[str, ...]
    rules: tuple[str, ...]
    values: tuple[str, ...]
    weeks: tuple[Mapping[str, Any], ...]


def fields_read(deployment: Deployment) -> dict[str, tuple[str, ...]]:
    """Return each field of source events that a condition reads, with the rules that read it."""
    schema = deployment.schema
    sources = [each for each in schema.event_types if not each.derived]
    fixed = {name for each in schema.event_types for name in (each.id_field, *each.times)}
    usable = {field.name for each in sources for field in each.fields if not field.type.protected} - fixed
    readers: dict[str, set[str]] = {}
    for rule in deployment.rulebook.deployed():
        for name in _read(rule.pattern) & usable:
            readers.setdefault(name, set()).add(rule.rule_id)
    return {name: tuple(sorted(readers[name])) for name in sorted(readers)}


def _read(pattern: PatternIR) -> set[str]:
    of_conditions = (node for variable in pattern.variables for node in nodes(variable.where))
    return {node.field for node in of_conditions if isinstance(node, CurrentField | VarField)}


def by_field(deployment: Deployment, events: Events, as_of_ms: int, span: int = 1) -> tuple[FieldDrift, ...]:
    """Describe the values of each field that rules read, in each week or in each `span` weeks, to show changes."""
    readers, schema = fields_read(deployment), deployment.schema
    event_type, time_ms, columns = events.event_type, events.time_ms, events.columns
    types = schema.columns()
    drifts = []
    for name, rules in readers.items():
        types_with_field = [
            (number, each.name) for number, each in enumerate(schema.event_types)
            if not each.derived and any(field.name == name for field in each.fields)
        ]  # fmt: skip
        chosen = np.flatnonzero(np.isin(event_type, [number for number, _ in types_with_field]) & (time_ms <= as_of_ms))
        weeks = week_numbers(time_ms[chosen], span)  # of each event
        texts: tuple[str, ...] = ()  # the most frequent values, if the field is a text
        if types[name].is_number:
            rows = _quantiles(events.numbers(name)[chosen], weeks)
        else:
            texts, rows = _texts(columns[name].take(pa.array(chosen)), types[name], weeks)
        if rows:
            drifts.append(FieldDrift(name, tuple(each for _, each in types_with_field), rules, texts, tuple(rows)))
    return tuple(drifts)


def _texts(column: pa.Array, type_: Type, weeks: NDArray[np.int64]) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """Return the texts with shares, and a row for each week; no rows for other types."""
    if type_.kind not in (Kind.STRING, Kind.ENUM, Kind.BOOL):
        return (), []
    numbered = encoded(column.cast(pa.large_string()))
    code = np.asarray(numbered.indices.fill_null(-1)).astype(np.int64)
    texts = [_shown(text, type_) for text in numbered.dictionary.to_pylist()]
    counts = np.bincount(code[code >= 0], minlength=len(texts))
    top = sorted(range(len(texts)), key=lambda number: (-int(counts[number]), texts[number]))[:_VALUES]
    return tuple(texts[number] for number in top), _shares(code, top, weeks)


def _shown(text: str, type_: Type) -> str:
    """Return a value of a text, an enum or a bool as people know it. Columns have an enum's symbols by number."""
    return type_.symbols[int(text)] if type_.kind is Kind.ENUM and text.isdigit() else text


def _quantiles(values: NDArray[np.float64], weeks: NDArray[np.int64]) -> list[dict[str, Any]]:
    def describe(present: NDArray[np.float64]) -> dict[str, Any]:
        return {"quantiles": [float(each) for each in np.quantile(present, QUANTILES)] if len(present) else None}

    return _by_week(values, ~np.isnan(values), weeks, describe)


def _shares(code: NDArray[np.int64], top: Sequence[int], weeks: NDArray[np.int64]) -> list[dict[str, Any]]:
    def describe(present: NDArray[np.int64]) -> dict[str, Any]:
        shares = [int((present == number).sum()) / len(present) for number in top] if len(present) else None
        return {"distinct": len(np.unique(present)), "shares": shares}

    return _by_week(code, code >= 0, weeks, describe)


def _by_week(
    values: NDArray[Any],
    has_value: NDArray[np.bool_],
    weeks: NDArray[np.int64],
    describe: Callable[[NDArray[Any]], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return a row for each week: counts of its events, and `describe` of their values that are not missing."""
    order = np.argsort(weeks, kind="stable")
    numbers, first = np.unique(weeks[order], return_index=True)
    rows = []
    for number, places in zip(numbers.tolist(), np.split(order, first[1:]), strict=False):  # no weeks: one empty part
        present = values[places[has_value[places]]]
        counts = {"events": len(places), "missing": len(places) - len(present)}
        rows.append({"week": week_text(number), **counts, **describe(present)})
    return rows
