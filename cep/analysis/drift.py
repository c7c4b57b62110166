"""The fields that conditions of rules read → how their values are spread, week by week.

A number has quantiles. A text or a yes and no has the shares of its most frequent values. Values of protected fields,
ids and times are left out. Events that patterns produce are in no file, so their fields are left out, too.
Tested by: tests/analysis/test_drift.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.analysis.budget import week_numbers, week_text
from cep.analysis.history import Events
from cep.base.schema import Kind, Type
from cep.columnar.texts import encoded
from cep.lang.ir import CurrentField, PatternIR, VarField
from cep.lang.walk import nodes
from cep.rulebook.deploy import Deployment

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_VALUES = 5  # of a text: the most frequent ones of the whole time


@dataclass(frozen=True, slots=True)
class FieldDrift:
    """The values of a field week by week. `values` are the texts with shares, empty for a number.

    A week has `events` of the types that have the field, `missing` ones without a value, and `quantiles` (see
    QUANTILES) or `shares` and `distinct`: None if no event has a value. Shares are of events with a value.
    """

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
    """Return for each field that rules read how its values change by week, or by `span` weeks.

    `events` have the columns of the fields.
    """
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
        weeks = week_numbers(time_ms[chosen], span)
        values, rows = _spread(columns[name].take(pa.array(chosen)), types[name], weeks)
        if rows:
            drifts.append(FieldDrift(name, tuple(each for _, each in types_with_field), rules, values, rows))
    return tuple(drifts)


def _spread(
    column: pa.Array, type_: Type, weeks: NDArray[np.int64]
) -> tuple[tuple[str, ...], tuple[Mapping[str, Any], ...]]:
    """Return the texts with shares, and a row for each week; no rows for a type other than numbers and texts."""
    if type_.is_number:
        return (), tuple(_quantiles(column, type_, weeks))
    if type_.kind not in (Kind.STRING, Kind.ENUM, Kind.BOOL):
        return (), ()
    numbered = encoded(column.cast(pa.large_string()))
    code = np.asarray(numbered.indices.fill_null(-1)).astype(np.int64)
    texts = [_shown(text, type_) for text in numbered.dictionary.to_pylist()]
    counts = np.bincount(code[code >= 0], minlength=len(texts))
    top = sorted(range(len(texts)), key=lambda number: (-int(counts[number]), texts[number]))[:_VALUES]
    return tuple(texts[number] for number in top), tuple(_shares(code, top, weeks))


def _shown(text: str, type_: Type) -> str:
    """Return a value of a text, an enum or a bool as people know it. Columns have an enum's symbols by number."""
    return type_.symbols[int(text)] if type_.kind is Kind.ENUM and text.isdigit() else text


def _quantiles(column: pa.Array, type_: Type, weeks: NDArray[np.int64]) -> list[dict[str, Any]]:
    values = np.asarray(column.cast(pa.float64()).fill_null(np.nan), np.float64)
    values = values / 10**type_.scale if type_.kind is Kind.DECIMAL else values
    rows = []
    for week, some in _by_week(values, weeks):
        present = some[~np.isnan(some)]
        row = {"week": week, "events": len(some), "missing": len(some) - len(present)}
        row["quantiles"] = [float(each) for each in np.quantile(present, QUANTILES)] if len(present) else None
        rows.append(row)
    return rows


def _shares(code: NDArray[np.int64], top: Sequence[int], weeks: NDArray[np.int64]) -> list[dict[str, Any]]:
    rows = []
    for week, some in _by_week(code, weeks):
        present = some[some >= 0]
        row: dict[str, Any] = {"week": week, "events": len(some), "missing": len(some) - len(present)}
        row["distinct"] = len(np.unique(present))
        row["shares"] = [int((present == number).sum()) / len(present) for number in top] if len(present) else None
        rows.append(row)
    return rows


def _by_week(values: NDArray[Any], weeks: NDArray[np.int64]) -> list[tuple[str, NDArray[Any]]]:
    order = np.argsort(weeks, kind="stable")
    numbers, first = np.unique(weeks[order], return_index=True)
    parts = np.split(values[order], first[1:]) if len(numbers) else []
    return [(week_text(int(number)), part) for number, part in zip(numbers, parts, strict=True)]
