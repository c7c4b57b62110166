"""A rule and settings of its parameters → the findings of each setting in each part of the time.

The exact way, for patterns that `is_divisible`: each value of a threshold is replayed once, with the other thresholds
at their loosest. An alert's level on an axis is the number of values that allow it; a setting allows the alerts whose
levels reach it. So one replay per value gives the figures of all combinations. If the levels are not nested, which
would contradict the direction of a threshold, or if limits dropped a match, the result is not used.

Other patterns: a setting changes the events that a run takes, so each setting is replayed.
Tested by: tests/analysis/test_tune.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from cep.analysis.axes import Axis, loosest
from cep.analysis.backtest import Detections, Judged, detections, judge
from cep.analysis.history import History, replay_history
from cep.analysis.marks import Marks
from cep.analysis.split import Part
from cep.base.errors import UsageError
from cep.base.limits import TUNE_ALERTS_MAX, TUNE_RULES_AT_ONCE
from cep.base.schema import Schema
from cep.lists.store import ListStore
from cep.model.rule import ControlRecord, ParamValue, UpsertRecord
from cep.rulebook.deploy import Deployment, deploy
from cep.sources.pieces import Pieces

Setting = Mapping[str, ParamValue]
_DROPS = ("matches_dropped", "runs_evicted")


@dataclass(frozen=True, slots=True)
class Scores:
    """The figures of S settings in one part: arrays of length S. `money` is the money of the found frauds.

    Alerts are counted as they are sent, with the rule's own `suppress`.
    """

    alerts: NDArray[np.int64]
    right: NDArray[np.int64]
    immature: NDArray[np.int64]
    frauds: NDArray[np.int64]
    money: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bench:
    """The inputs of replays of one rule with other parameters.

    `lists` are records of lists and their entries, as in the rule's folder. The frauds belong to a history that was
    read with only this rule's event types.
    """

    record: UpsertRecord
    lists: tuple[Sequence[ControlRecord], ListStore]
    pieces_of: Callable[[Schema], Pieces]
    marks: Marks
    parts: tuple[Part, ...]
    cores: int
    console: Console

    def deployment(self, settings: Sequence[Setting]) -> Deployment:
        """Deploy the rule once per setting, side by side. The number of a setting is in the id of its rule."""
        records = [
            self.record.model_copy(
                update={"id": f"s{number:06}", "params": {**self.record.params, **setting}, "version": 1,
                        "effective_at": None, "status": "live", "exclusive": None}
            )
            for number, setting in enumerate(settings)
        ]  # fmt: skip
        return deploy([*self.lists[0], *records], self.lists[1])

    def replayed(self, settings: Sequence[Setting]) -> tuple[History, Detections]:
        """Replay the rule once per setting, all in one replay.

        The number of a setting is the rule number of its alerts.
        """
        deployment = self.deployment(settings)
        if deployment.set_aside:
            aside = deployment.set_aside[0]
            raise UsageError(f"{self.record.id} with {dict(settings[int(aside.rule_id[1:])])}: {aside.reason}")
        history = replay_history(deployment, self.pieces_of, (), self.cores, self.console)
        return history, detections(history)

    def judged(self, settings: Sequence[Setting]) -> tuple[History, Judged]:
        """Replay the settings, and judge the sent alerts by all known labels."""
        history, all_alerts = self.replayed(settings)
        return history, judge(history, self.marks, all_alerts, is_sent_only=True)


def replayed_scores(bench: Bench, settings: Sequence[Setting], at_once: int = TUNE_RULES_AT_ONCE) -> tuple[Scores, ...]:
    """Return the scores of each part, for settings that are replayed together."""
    blocks = []
    for first in range(0, len(settings), at_once):
        some = settings[first : first + at_once]
        history, all_alerts = bench.replayed(some)
        blocks.append([
            _counted(judge(history, part.marks, all_alerts, is_sent_only=True), part, len(some)) for part in bench.parts
        ])  # fmt: skip
    return joined_scores(blocks)


def _counted(judged: Judged, part: Part, count: int) -> Scores:
    """Count the alerts and frauds of each setting in one part of the time."""
    inside, marks = part.has(judged.detected_ms), part.marks
    fraud = marks.fraud[judged.bound_row]
    hits = np.flatnonzero((fraud >= 0) & inside[judged.bound_alert])
    hits = hits[part.frauds[fraud[hits]]]
    pairs = np.unique(np.stack([judged.rule[judged.bound_alert[hits]], fraud[hits].astype(np.int64)], axis=1), axis=0)
    return Scores(
        np.bincount(judged.rule[inside], minlength=count),
        np.bincount(judged.rule[inside & judged.is_right], minlength=count),
        np.bincount(judged.rule[inside & judged.is_immature], minlength=count),
        np.bincount(pairs[:, 0], minlength=count),
        np.bincount(pairs[:, 0], weights=marks.amount[pairs[:, 1]], minlength=count).astype(np.float64),
    )


def joined_scores(blocks: Sequence[Sequence[Scores]]) -> tuple[Scores, ...]:
    """Join blocks of settings, each with the scores of every part."""
    return tuple(_joined([block[part] for block in blocks]) for part in range(len(blocks[0]))) if blocks else ()


def _joined(parts: Sequence[Scores]) -> Scores:
    return Scores(*(
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("alerts", "right", "immature", "frauds", "money")
    ))  # fmt: skip


# ------------------------------------------------------------------------------------------------- all combinations


@dataclass(frozen=True, slots=True)
class _Levels:
    """The alerts C of one setting of the other parameters: level[c, i] values of axis i allow alert c."""

    level: NDArray[np.int64]
    detected_ms: NDArray[np.int64]
    history: History
    all_alerts: Detections


def every_setting(axes: Sequence[Axis]) -> list[Setting]:
    """List all combinations, in the order in which `combined_scores` has them: the last axis changes fastest."""
    ordered = _ordered(axes)
    names = [axis.name for axis in ordered]
    return [dict(zip(names, values, strict=True)) for values in product(*(axis.values for axis in ordered))]


def _ordered(axes: Sequence[Axis]) -> list[Axis]:
    return sorted(axes, key=lambda axis: axis.is_threshold)


def combined_scores(bench: Bench, axes: Sequence[Axis]) -> tuple[tuple[Scores, ...], int] | None:
    """Score all combinations of parameter values without a replay for each combination.

    Return the scores by part and the number of replays; None if the settings cannot be combined. Raises: UsageError if
    the loosest setting has too many alerts.
    """
    others = [axis for axis in axes if not axis.is_threshold]
    thresholds = [axis for axis in axes if axis.is_threshold]
    blocks, count = [], 0
    for values in product(*(axis.values for axis in others)):
        fixed = dict(zip((axis.name for axis in others), values, strict=True))
        levels, replays = _levels(bench, fixed, thresholds)
        count += replays
        if levels is None:
            return None
        blocks.append([_combined(levels, part, thresholds) for part in bench.parts])
    return joined_scores(blocks), count


def _levels(bench: Bench, fixed: Setting, axes: Sequence[Axis]) -> tuple[_Levels | None, int]:
    """Replay each value of each threshold. Return the tightest values that each alert passes, or None.

    The result is None if a tighter value has alerts that a looser one lacks.
    """
    base = {**fixed, **loosest(axes)}
    first_history, all_alerts = bench.replayed([base])
    judged = judge(first_history, bench.marks, all_alerts)
    total = len(judged.detected_ms)
    if total > TUNE_ALERTS_MAX:
        raise UsageError(
            f"{bench.record.id} has {total:,} alerts with {base}, and the most is {TUNE_ALERTS_MAX:,}; begin with "
            "tighter values (--try)"
        )
    if _has_dropped(first_history):
        return None, 1
    names, width = _identities(judged, None)
    if width == 0 and total:
        return None, 1
    level = np.ones((total, len(axes)), np.int64)
    settings = [
        (axis_number, {**base, axis.name: value}) for axis_number, axis in enumerate(axes) for value in axis.values[1:]
    ]
    step = max(1, min(TUNE_RULES_AT_ONCE, TUNE_ALERTS_MAX // max(1, total)))
    previous: dict[int, NDArray[np.bool_]] = {axis_number: np.ones(total, np.bool_) for axis_number in range(len(axes))}
    for first in range(0, len(settings), step):
        chosen_settings = settings[first : first + step]
        history, variants = bench.judged([setting for _, setting in chosen_settings])
        if _has_dropped(history):
            return None, 1 + len(settings)
        rows, _ = _identities(variants, width)
        for number, (axis_number, _) in enumerate(chosen_settings):
            passes = _has_rows(names, rows[variants.rule == number])
            if passes is None or (passes & ~previous[axis_number]).any():
                return None, 1 + len(settings)
            level[:, axis_number] += passes
            previous[axis_number] = passes
    return _Levels(level, judged.detected_ms, first_history, all_alerts), 1 + len(settings)


def _has_dropped(history: History) -> bool:
    return any(history.replayed.counters[name] for name in _DROPS)


def _identities(judged: Judged, width: int | None) -> tuple[NDArray[np.int64], int]:
    """Return the bound events of each alert, int64[A, width]; width 0 if they differ in number."""
    total = len(judged.detected_ms)
    counts = np.bincount(judged.bound_alert, minlength=total)
    width = (int(counts[0]) if total else 0) if width is None else width
    if (counts != width).any():
        return np.empty((0, 0), np.int64), 0
    order = np.argsort(judged.bound_alert, kind="stable")
    return judged.bound_row[order].reshape(total, width), width


def _has_rows(all_rows: NDArray[np.int64], some: NDArray[np.int64]) -> NDArray[np.bool_] | None:
    """Say of each row whether it is among some; None if some are not among all."""
    both, number = np.unique(np.concatenate([all_rows, some]), axis=0, return_inverse=True)
    number = number.reshape(-1)
    mask = np.zeros(len(both), np.bool_)
    mask[number[len(all_rows) :]] = True
    passes: NDArray[np.bool_] = mask[number[: len(all_rows)]]
    return passes if int(passes.sum()) == len(some) else None


def _combined(levels: _Levels, part: Part, axes: Sequence[Axis]) -> Scores:
    """Count for every combination of values the alerts that pass all of them, by cumulative sums along each axis."""
    shape = tuple(len(axis.values) for axis in axes)
    judged = judge(levels.history, part.marks, levels.all_alerts)
    level = levels.level[levels.detected_ms <= part.marks.as_of_ms]
    assert len(level) == len(judged.detected_ms), "a part has the alerts up to its end"
    inside = part.has(judged.detected_ms)
    level_indexes = tuple(level.T - 1)

    def reaching(chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        counts = np.zeros(shape, np.int64)
        np.add.at(counts, tuple(axis[chosen] for axis in level_indexes), 1)
        for dimension in range(len(shape)):
            counts = np.flip(np.cumsum(np.flip(counts, dimension), dimension), dimension)
        return counts.reshape(-1)

    fraud = part.marks.fraud[judged.bound_row].astype(np.int64)
    hits = np.flatnonzero((fraud >= 0) & inside[judged.bound_alert])
    hits = hits[part.frauds[fraud[hits]]]
    frauds, money = _frauds_reaching(level[judged.bound_alert[hits]], fraud[hits], part.marks.amount, shape)
    right, immature = reaching(inside & judged.is_right), reaching(inside & judged.is_immature)
    return Scores(reaching(inside), right, immature, frauds, money)


def _frauds_reaching(
    level: NDArray[np.int64], fraud: NDArray[np.int64], amount: NDArray[np.float64], shape: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Count the frauds that each combination of values finds, and add up their money.

    For each combination of all axes but the last, the highest level of a fraud on the last axis decides.
    """
    frauds, fraud_index = np.unique(fraud, return_inverse=True)
    counts = np.zeros((int(np.prod(shape[:-1])), shape[-1]), np.int64)
    money = np.zeros(counts.shape)
    for number, levels_min in enumerate(np.ndindex(*shape[:-1])):
        passes = (level[:, :-1] > np.array(levels_min, np.int64)).all(axis=1)
        highest = np.zeros(len(frauds), np.int64)
        np.maximum.at(highest, fraud_index[passes], level[passes, -1])
        by_level = np.bincount(highest, minlength=shape[-1] + 1)[1:]
        counts[number] = np.flip(np.cumsum(np.flip(by_level)))
        by_money = np.bincount(highest, weights=amount[frauds], minlength=shape[-1] + 1)[1:]
        money[number] = np.flip(np.cumsum(np.flip(by_money)))
    return counts.reshape(-1), money.reshape(-1)
