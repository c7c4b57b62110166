"""A rule and one of its thresholds → the alerts just inside of it and just outside, by the deciding value.

    values, loosest first    v0      v1      v2 = present      v3      v4
    alerts with v0, not v1   ├──────┤        │
    alerts with v1, not v2           ├───────┤ just outside: a looser value would add them
    alerts with v2, not v3                   ├────────────────┤ just inside: a tighter value would lose them

Each value is replayed. If v1 gives an alert and v2 does not, a value between the two decided it; two alerts are the
same if they bind the same events. So the result is exact for every pattern, even if a threshold changes the bound
events.
Tested by: tests/analysis/test_backtest.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.analysis.backtest import Judged
from cep.analysis.curves import settings_at_once
from cep.analysis.history import History
from cep.analysis.sweep import Axis, Bench, Setting, number_of, unit_of
from cep.analysis.timelines import shown_key
from cep.columnar.order import rows_in_order
from cep.lang.show import show_time

_STEPS = 6  # values on each side of the present one
_SAMPLES = 3  # right ones and as many others, on each side of the line
_EVENTS_SHOWN = 5  # of a sample


@dataclass(frozen=True, slots=True)
class Interval:
    """The alerts that are lost when a threshold moves from the looser to the tighter value.

    `is_inside`: the rule has these alerts with its present value.
    """

    looser: float
    tighter: float
    is_inside: bool
    right: int
    wrong: int
    immature: int

    @property
    def alerts(self) -> int:
        return self.right + self.wrong + self.immature


@dataclass(frozen=True, slots=True)
class Sample:
    """One alert close to the threshold, with its last events."""

    is_inside: bool
    verdict: str
    looser: float
    tighter: float
    key: str
    time: str
    event_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A threshold with its intervals, loosest first; `further` alerts stand against the tightest value, too."""

    rule: str
    param: str
    unit: str
    present: float
    intervals: tuple[Interval, ...]
    further: int
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class _Seen:
    """The alerts of one value: who they are, uint64[A], their verdicts, and their places among all judged ones."""

    history: History
    judged: Judged
    place: NDArray[np.int64]
    identity: NDArray[np.uint64]


def lines(bench: Bench, axes: Sequence[Axis]) -> tuple[Line, ...]:
    """Replay some values around the present one of each threshold. `bench` has the whole time as its only part.

    Raises: UsageError if there are too many alerts with one of them.
    """
    return tuple(line for axis in axes if axis.is_threshold if (line := _line(bench, axis)) is not None)


def _line(bench: Bench, axis: Axis) -> Line | None:
    """Replay the values next to the present value of a parameter. Return the alerts between each two values."""
    present = bench.record.params[axis.name]
    current_index = next(
        (current_index for current_index, value in enumerate(axis.values) if number_of(value) == number_of(present)),
        None,
    )
    if current_index is None:
        return None
    nearby_values = axis.values[max(0, current_index - _STEPS) : current_index + _STEPS + 1]
    settings: list[Setting] = [{axis.name: value} for value in nearby_values]
    refused_numbers = {int(each.rule_id[1:]) for each in bench.deployment(settings).set_aside}
    settings = [setting for number, setting in enumerate(settings) if number not in refused_numbers]
    unit, size = unit_of(present)
    values = [number_of(setting[axis.name]) / size for setting in settings]
    current_place = values.index(number_of(present) / size)
    intervals, samples, previous_alerts = [], list[Sample](), None
    step = settings_at_once(bench, [settings[0], settings[-1]])
    for number, alerts in enumerate(_seen(bench, settings, step)):
        if previous_alerts is not None:
            lost = np.flatnonzero(~np.isin(previous_alerts.identity, alerts.identity))
            limits = (values[number - 1], values[number], number > current_place)
            intervals.append(Interval(*limits, *_verdicts(previous_alerts, lost)))
            if number in (current_place, current_place + 1):
                samples += _samples(previous_alerts, lost, limits)
        previous_alerts = alerts
    assert previous_alerts is not None, "the present value is among them"
    further = len(previous_alerts.identity)
    return Line(bench.record.id, axis.name, unit, values[current_place], tuple(intervals), further, tuple(samples))


def _seen(bench: Bench, settings: Sequence[Setting], step: int) -> list[_Seen]:
    """Replay the settings and return the alerts of each."""
    all_seen = []
    for first in range(0, len(settings), step):
        history, judged = bench.judged(settings[first : first + step])
        identity = _identities(judged)
        for number in range(len(settings[first : first + step])):
            place = np.flatnonzero(judged.rule == number)
            all_seen.append(_Seen(history, judged, place, identity[place]))
    return all_seen


def _identities(judged: Judged) -> NDArray[np.uint64]:
    """Return a number for the events that each alert binds, in 64 bits: the same for the same events."""
    mixed = judged.bound_row.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64 (Steele and others 2014)
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    identity = np.zeros(len(judged.rule), np.uint64)
    np.add.at(identity, judged.bound_alert, mixed)
    return identity


def _verdicts(alerts: _Seen, some: NDArray[np.int64]) -> tuple[int, int, int]:
    right, immature = alerts.judged.is_right[alerts.place[some]], alerts.judged.is_immature[alerts.place[some]]
    return int(right.sum()), int((~right & ~immature).sum()), int(immature.sum())


def _samples(alerts: _Seen, alert_numbers: NDArray[np.int64], limits: tuple[float, float, bool]) -> list[Sample]:
    """Show some right alerts and some other alerts near a threshold, the earliest of each."""
    judged, history = alerts.judged, alerts.history
    (rule,) = {rule.pattern.key for rule in history.deployment.rulebook.deployed()}
    places = alerts.place[alert_numbers]
    is_right = judged.is_right[places]
    chosen = [*places[is_right][:_SAMPLES], *places[~is_right][:_SAMPLES]]
    samples = []
    for place in chosen:
        bound = history.events.batch(judged.bound_row[judged.bound_alert == place])
        ids = bound.event_id.take(pa.array(rows_in_order(bound))).to_pylist()
        verdict = "right" if judged.is_right[place] else "immature" if judged.is_immature[place] else "wrong"
        key = shown_key(judged.key[int(place)].as_py(), rule, history.events.schema)
        samples.append(
            Sample(
                limits[2],
                verdict,
                limits[0],
                limits[1],
                key,
                show_time(int(judged.detected_ms[place])),
                tuple(ids[-_EVENTS_SHOWN:]),
            )
        )
    return samples
