"""Events as columns, known frauds and parts of time → alerts of plain models, to compare with the alerts of rules.

A model is trained on the first part; its limit is the one with the best F1 on the second; the third gives the figures.
An event above the limit is an alert. `figures` judges the alerts of rules and of models in the same way. For a set of
labelled data and rules, the module gives their alerts there and the parameters that `cep rules tune` proposes.
Tested by: tests/bench/test_baselines.py
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from rich.console import Console

from cep.analysis.backtest import Judged, TimePart, parts_of_time
from cep.analysis.labelled_events import LabelledEvents
from cep.analysis.labels import labels_of_table
from cep.analysis.measure import Measured, Terms, measure
from cep.analysis.sweep import Replayer, axes_of
from cep.analysis.tune import Aim, tune
from cep.base.errors import UsageError
from cep.base.schema import Kind
from cep.lang.ir import ParamDecl
from cep.lang.load import load_text
from cep.lang.show import show_duration
from cep.lists.store import ListStore
from cep.model.rule import ParamValue, UpsertRecord
from cep.rulebook.deploy import deploy
from cep.sources.pieces import read_pieces
from tests.bench.labelled import Given

_DAY_MS = 86_400_000
_SILENT = Console(quiet=True)


def measured_on(
    data: Given, rules: list[UpsertRecord], path: Path, fields: tuple[str, ...] = (), as_of_ms: int | None = None
) -> Measured:
    """Replay some rules over the set. With a date, only the frauds that were known on it count."""
    deployment = deploy(rules)
    assert deployment.set_aside == (), deployment.set_aside
    labels = labels_of_table(data.labels.drop(["spell"]), deployment.schema, data.name)
    return measure(deployment, partial(read_pieces, path), labels, Terms(as_of_ms=as_of_ms), _SILENT, fields)


def tuned(data: Given, record: UpsertRecord, path: Path, until_ms: int) -> UpsertRecord | None:
    """Return the rule with the parameters that `cep rules tune` proposes to an analyst who knows the time before
    `until_ms`.

    Tune cuts that time into its own three parts, so the time from `until_ms` on does not influence the proposal. Return
    None if tune keeps the present setting, or has too few frauds to compare settings.
    """
    measured = measured_on(data, [record], path, as_of_ms=until_ms - 1)
    parts = parts_of_time(measured.history.events, measured.labelled, data.gap_days * _DAY_MS, measured.labelled_at)
    pattern = load_text(record.source, record.pattern).patterns[record.pattern]
    (rule,) = measured.history.deployment.rulebook.deployed()
    present = {param.name: _written(param) for param in pattern.params if param.name in data.tries[record.id]}
    open_record = record.model_copy(update={"params": present})
    bench = Replayer(open_record, ((), ListStore()), partial(read_pieces, path), measured.labelled, parts, 2, _SILENT)
    axes = axes_of(pattern, open_record.params, data.tries[record.id])
    try:
        best = tune(bench, pattern, rule.pattern, axes, Aim("f1"))
    except UsageError:  # a part without a fraud
        return None
    if best.proposed == best.present:
        return None
    return record.model_copy(update={"id": f"{record.id}, tuned", "params": {**dict(best.proposed)}})


def _written(param: ParamDecl) -> ParamValue:
    """Return the default of a numeric parameter in the form of a rule file."""
    value = param.default
    assert isinstance(value, int | float), param.name
    match param.type.kind:
        case Kind.DURATION:
            return show_duration(int(value))
        case Kind.DECIMAL:
            return float(value / 10**param.type.scale)
        case _:
            return value


_LIMITS = 400  # how many values of a score are tried as the limit of a model


@dataclass(frozen=True, slots=True)
class Alerts:
    """The A alerts and the events that they bind: detected_ms int64[A], is_right bool[A]; alert and row per binding."""

    detected_ms: NDArray[np.int64]
    is_right: NDArray[np.bool_]
    bound_event_alert: NDArray[np.int64]
    bound_event_row: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Value:
    """The worth of alerts in a part of the time.

    `days_ahead` is the median time from the first alert of a spell of fraud to its last event.
    """

    alerts: int
    precision: float
    recall: float
    f1: float
    by_kind: dict[str, float]
    days_ahead: float | None


def of_rules(judged: Judged, names: Sequence[str]) -> Alerts:
    chosen = np.isin(judged.rule, [judged.names.index(name) for name in names])
    place = np.cumsum(chosen) - 1
    of_chosen = chosen[judged.bound_event_alert]
    return Alerts(
        judged.detected_ms[chosen], judged.is_right[chosen], place[judged.bound_event_alert[of_chosen]],
        judged.bound_event_row[of_chosen],
    )  # fmt: skip


def of_events(rows: NDArray[np.int64], time_ms: NDArray[np.int64], labelled: LabelledEvents) -> Alerts:
    return Alerts(time_ms[rows], labelled.fraud[rows] >= 0, np.arange(len(rows)), rows)


def figures(
    alerts: Alerts, labelled: LabelledEvents, part: TimePart, spell: NDArray[np.int64], time_ms: NDArray[np.int64]
) -> Value:
    """Judge the alerts of a part. `spell` int64[N] is the spell of fraud of each event, or -1."""
    inside = part.has(alerts.detected_ms)
    count = int(inside.sum())
    bound = inside[alerts.bound_event_alert]
    fraud = labelled.fraud[alerts.bound_event_row[bound]]
    hits = np.unique(fraud[(fraud >= 0) & part.frauds[fraud]])
    is_detected = np.zeros(labelled.frauds_count, np.bool_)
    is_detected[hits] = True
    precision, recall = int(alerts.is_right[inside].sum()) / max(1, count), len(hits) / max(1, int(part.frauds.sum()))
    kinds = np.array(labelled.kind, dtype=object)
    by_kind = {
        kind: float(is_detected[(kinds == kind) & part.frauds].mean())
        for kind in sorted({*kinds[part.frauds].tolist()})
    }
    return Value(
        count, precision, recall, 2 * precision * recall / max(precision + recall, 1e-12), by_kind,
        _days_ahead(alerts, bound, spell, time_ms),
    )  # fmt: skip


def _days_ahead(
    alerts: Alerts, bound: NDArray[np.bool_], spell: NDArray[np.int64], time_ms: NDArray[np.int64]
) -> float | None:
    bound_spells = spell[alerts.bound_event_row[bound]]
    if not (bound_spells >= 0).any():
        return None
    last, first = np.full(spell.max() + 1, -1), np.full(spell.max() + 1, np.iinfo(np.int64).max)
    np.maximum.at(last, spell[spell >= 0], time_ms[spell >= 0])
    np.minimum.at(
        first, bound_spells[bound_spells >= 0], alerts.detected_ms[alerts.bound_event_alert[bound]][bound_spells >= 0]
    )
    some = np.unique(bound_spells[bound_spells >= 0])
    return float(np.median(last[some] - first[some])) / 86_400_000


def lacking(parts: Sequence[TimePart], time_ms: NDArray[np.int64]) -> list[str]:
    """Return the names of the parts without an event or without a fraud; they cannot be used to choose or to judge."""
    return [part.name for part in parts if not (part.has(time_ms).any() and part.frauds.any())]


def matrix(columns: Sequence[pa.ChunkedArray | pa.Array]) -> NDArray[np.float64]:
    """Return columns side by side as numbers: texts as their alphabetical rank, nulls as NaN."""
    arrays = []
    for column in columns:
        values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            ordered = pc.unique(values.drop_null()).sort()
            values = pc.index_in(values, value_set=ordered)
        elif pa.types.is_timestamp(values.type):
            day = pc.day_of_week(values)
            arrays.append(np.asarray(day, np.float64))
            values = pc.hour(values)
        arrays.append(values.cast(pa.float64()).to_numpy(zero_copy_only=False))
    return np.stack(arrays, axis=1)


def best_limit(
    score: NDArray[np.float64],
    rows: NDArray[np.int64],
    labelled: LabelledEvents,
    part: TimePart,
    time_ms: NDArray[np.int64],
) -> float:
    """Return the limit with the best F1 in a part. `score` belongs to the events in `rows`."""
    inside = part.has(time_ms[rows])
    assert inside.any(), part.name
    ordered = np.sort(score[inside])[::-1]
    steps = np.unique(np.geomspace(1, len(ordered), _LIMITS).astype(int)) - 1
    spell = np.full(len(time_ms), -1)
    limits = np.unique(ordered[steps])
    values = [
        figures(of_events(rows[score >= limit], time_ms, labelled), labelled, part, spell, time_ms).f1
        for limit in limits
    ]
    return float(limits[int(np.argmax(values))])


def card_precision(
    day: NDArray[np.float64], customer: NDArray[np.float64], bad: NDArray[np.bool_], score: NDArray[np.float64],
    looked_at: int = 100,
) -> tuple[float, float]:  # fmt: skip
    """Return the mean daily share of compromised cards among the highest scores, and the highest possible share."""
    right: set[float] = set()
    shares, possible = [], []
    for each in np.unique(day):
        rows = np.flatnonzero((day == each) & ~np.isin(customer, [*right]))
        cards, place = np.unique(customer[rows], return_inverse=True)
        highest, is_bad = np.full(len(cards), -np.inf), np.zeros(len(cards), np.bool_)
        np.maximum.at(highest, place, score[rows])
        np.logical_or.at(is_bad, place, bad[rows])
        first = np.argsort(-highest, kind="stable")[:looked_at]
        right |= set(cards[first][is_bad[first]].tolist())
        shares.append(is_bad[first].sum() / looked_at)
        possible.append(min(looked_at, is_bad.sum()) / looked_at)
    return float(np.mean(shares)), float(np.mean(possible))
