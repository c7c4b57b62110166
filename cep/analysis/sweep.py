"""A rule and settings of its parameters → the values to try, and the findings of each setting in each part of the time.

    amount > large and count(… over back) >= known
             └ threshold: larger is tighter  └ threshold: larger is tighter; `back` is not one, it changes the count

The exact way, for patterns that `is_divisible`: each value of a threshold is replayed once, with the other thresholds
at their loosest. An alert's count on an axis is the number of values that let it pass; a setting allows the alerts with
counts that reach it. The result is not used if the alerts are not nested, which would contradict the direction of a
threshold, or if limits dropped a match. In other patterns a setting changes the events that a run takes, so each
setting is replayed.
Tested by: tests/analysis/test_tune.py
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from math import inf, isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from cep.analysis.backtest import Detections, Judged, TimePart, detections, judge
from cep.analysis.history import History, replay_history
from cep.analysis.labelled_events import LabelledEvents
from cep.base.errors import UsageError
from cep.base.limits import TUNE_ALERTS_MAX, TUNE_RULES_AT_ONCE
from cep.base.schema import Kind, Schema
from cep.lang.ir import Binary, Cast, Expr, Link, Param, ParamDecl, PatternIR, SkipKind, Unary
from cep.lang.show import written_duration
from cep.lang.walk import nodes
from cep.lists.store import ListStore
from cep.model.rule import ControlRecord, ParamValue, UpsertRecord
from cep.model.setting_types import duration_ms
from cep.nfa.positions import build
from cep.rulebook.deploy import Deployment, deploy
from cep.sources.pieces import Pieces
from cep.testing.journal import parts_of

_STEPS = 21  # values of a parameter for which none are given
_SPAN = 4.0  # values go from a quarter of the present one to four times as much
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))
_FACTORS = tuple(_SPAN ** (2 * step / (_STEPS - 1) - 1) for step in range(_STEPS))
_RANGE = re.compile(r"(-?\d+(?:\.\d+)?)\.\.(-?\d+(?:\.\d+)?)(?:/(\d{1,4}))?")


@dataclass(frozen=True, slots=True)
class Axis:
    """The values of one parameter. The values of a threshold go from the loosest to the tightest."""

    name: str
    values: tuple[ParamValue, ...]
    is_threshold: bool


def axes_of(pattern: PatternIR, present: Mapping[str, ParamValue], tries: Mapping[str, str]) -> tuple[Axis, ...]:
    """Return the parameters to tune, each with its values to try: the parameters that `tries` names, or all thresholds.
    `pattern` has its parameters, not their present values. Raises: UsageError for an unknown one, or invalid values."""
    declared = {param.name: param for param in pattern.params}
    unknown_names = [name for name in tries if name not in declared]
    if unknown_names:
        raise UsageError(f"--try {unknown_names[0]}: the pattern's parameters are {', '.join(declared) or 'none'}")
    directions = {name: _direction(pattern, name) for name in declared}
    names = tries or [name for name in declared if not _why_not_tried(declared[name], present, directions[name])]
    if not names:
        raise UsageError(f"{pattern.name} has no threshold that is a parameter; name what to try with --try")
    axes = []
    for name in names:
        param = declared[name]
        values = _parse_values(param, tries[name]) if name in tries else _values_around(param, present[name])
        if not values:
            raise UsageError(f"--try {name}={tries[name]}: no value is within the bounds of the parameter")
        axes.append(_axis(name, values, directions[name]))
    return tuple(axes)


def skipped_params(
    pattern: PatternIR, values: Mapping[str, ParamValue], axes: Sequence[Axis], tries: Mapping[str, str]
) -> dict[str, str]:
    """Return the parameters that are not tried, each with the reason."""
    tried = {axis.name for axis in axes}
    return {
        param.name: "--try names others" if tries else _why_not_tried(param, values, _direction(pattern, param.name))
        for param in pattern.params if param.name not in tried
    }  # fmt: skip


def _why_not_tried(param: ParamDecl, values: Mapping[str, ParamValue], sense: int) -> str:
    """Return why a parameter is not tried by default, "" for one that is."""
    value = values.get(param.name)
    if not param.type.is_number:
        return f"it is a {param.type.kind.value}: name its values with --try"
    if not sense:
        return "no comparison grows with it alone, so it is not a threshold: name its values with --try"
    if not isinstance(value, int | float) or value <= 0:
        return f"it is {value}, and values are tried around one above 0: name them with --try"
    return ""


def numeric_axes(pattern: PatternIR, present: Mapping[str, ParamValue]) -> tuple[Axis, ...]:
    """Return each positive parameter that is a number or a duration, with its present value and values around it."""
    axes = []
    for param in pattern.params:
        value = present.get(param.name)
        is_time = param.type.kind is Kind.DURATION
        if value is None or not (param.type.is_number or is_time) or number_of(value) <= 0:
            continue
        values_around = _durations_around(param, number_of(value)) if is_time else _values_around(param, value)
        values: dict[float, ParamValue] = {number_of(each): each for each in values_around if number_of(each) > 0}
        values[number_of(value)] = value  # as the rule's file writes it
        axes.append(_axis(param.name, [values[number] for number in sorted(values)], _direction(pattern, param.name)))
    return tuple(axes)


def _axis(name: str, values: list[ParamValue], sense: int) -> Axis:
    if sense:
        values.sort(key=number_of, reverse=sense < 0)
    return Axis(name, tuple(values), sense != 0)


def is_divisible(pattern: PatternIR, bound: PatternIR, axes: Sequence[Axis]) -> bool:
    """Return True if a match exists under a setting exactly if each threshold by itself lets it through. This holds if
    a match binds one event, or if each combination of events is a match. `bound` has the constants in place."""
    thresholds = {axis.name for axis in axes if axis.is_threshold}
    parts = [part for variable in pattern.variables for part in parts_of(variable.where)]
    together = [thresholds & {node.name for node in nodes(part) if isinstance(node, Param)} for part in parts]
    return all(len(names) <= 1 for names in together) and _binds_freely(bound)


def _binds_freely(pattern: PatternIR) -> bool:
    """Return True if no match of the pattern can prevent or replace another match, so that each setting's alerts can be
    taken from one replay at the loosest values."""
    if pattern.timeout_measures is not None or pattern.within_events is not None:
        return False
    positions = build(pattern.structure).positions
    waits = [wait for position in positions for wait in position.waits]  # a wait is a way to go on
    if any(position.loops for position in positions):  # another event would join the same run
        return False
    if any(wait.target is None or wait.guards or wait.untils for wait in waits):  # other events could forbid a match
        return False
    if len(positions) == 2:  # the start, and the one event
        return True
    later = [wait for position in positions[1:] for wait in position.waits]  # they must allow all combinations
    return pattern.skip.kind is SkipKind.NONE and all(wait.link is Link.FOLLOWED_BY_ANY for wait in later)


def _direction(pattern: PatternIR, name: str) -> int:
    """Return 1 if a larger value allows fewer matches, -1 if it allows more, 0 if it is not a threshold."""
    parts = [part for variable in pattern.variables for part in parts_of(variable.where)]
    everywhere = sum(isinstance(node, Param) and node.name == name for node in nodes(pattern))
    senses, in_parts = set(), 0
    for part in parts:
        count = sum(isinstance(node, Param) and node.name == name for node in nodes(part))
        in_parts += count
        if count:
            senses.add(_direction_of(part, name) if count == 1 else 0)
    return senses.pop() if len(senses) == 1 and in_parts == everywhere else 0


def _direction_of(part: Expr, name: str) -> int:
    if not isinstance(part, Binary) or part.op not in ("<", "<=", ">", ">="):
        return 0
    sign = _grows(part.right, name) - _grows(part.left, name)
    return sign if part.op in (">", ">=") else -sign


def _grows(expr: Expr, name: str) -> int:
    """Return 1 if an expression grows with a parameter, -1 if it shrinks, 0 if neither is certain. The parameter occurs
    once, in one of two operands. The other factors are assumed to be positive; `_count_passed_values` checks this."""
    match expr:
        case Param():
            return int(expr.name == name)
        case Cast():
            return _grows(expr.argument, name)
        case Unary() if expr.op == "neg":
            return -_grows(expr.argument, name)
        case Binary() if expr.op in ("+", "*"):
            return _grows(expr.left, name) or _grows(expr.right, name)
        case Binary() if expr.op in ("-", "/"):
            return _grows(expr.left, name) or -_grows(expr.right, name)
        case _:
            return 0


def number_of(value: ParamValue) -> float:
    """Return a number for comparing values by size: of a duration its milliseconds, 0 for other non-numbers."""
    if isinstance(value, str):
        try:
            return float(duration_ms(value))
        except ValueError:
            return 0.0
    return float(value) if isinstance(value, int | float) else 0.0


def unit_of(value: ParamValue) -> tuple[str, int]:
    """Return the unit in which values of a parameter are drawn, with its size in ms; ("", 1) of a plain number."""
    if not isinstance(value, str):
        return "", 1
    return next(((name, size) for name, size in _UNITS if number_of(value) >= size), _UNITS[-1])


def _durations_around(param: ParamDecl, present_ms: float) -> list[str]:
    """Return lengths of time from a quarter of the present one to four times that, with two digits each."""
    low, high = param.minimum, param.maximum
    times = set()
    for value in (present_ms * factor for factor in _FACTORS):
        size = next((size for _, size in _UNITS if value >= size), 1)
        ms = round(float(f"{value / size:.2g}") * size)
        if ms > 0 and (low is None or ms >= low) and (high is None or ms <= high):
            times.add(ms)
    return [written_duration(ms) for ms in sorted(times)]


def _values_around(param: ParamDecl, present: ParamValue) -> list[ParamValue]:
    """Return values from a quarter of the present one to four times that, each the same share above the last."""
    if not isinstance(present, int | float) or present <= 0:
        raise UsageError(f"{param.name} is {present}: say what to try, like --try {param.name}=1,2,5")
    return _round_values(param, [present, *(present * factor for factor in _FACTORS)])


def _parse_values(param: ParamDecl, text: str) -> list[ParamValue]:
    """Parse the values of `--try`: `1,2,5`, `100..500` or `100..500/9`. Raises: UsageError."""
    value_range = _RANGE.fullmatch(text.strip())
    if value_range is not None:
        low, high, count = float(value_range[1]), float(value_range[2]), int(value_range[3] or _STEPS)
        if count < 2 or not low < high < inf:
            raise UsageError(f"--try {param.name}={text}: write a range like 100..500, or 100..500/9 for nine values")
        steps = (low + (high - low) * step / (count - 1) for step in range(count))
        return _round_values(param, steps, digits=12)  # without the noise of binary fractions
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UsageError(f"--try {param.name}: give values, like {param.name}=1,2,5 or {param.name}=100..500")
    if param.type.kind is Kind.BOOL:
        return [{"true": True, "false": False}.get(part, part) for part in dict.fromkeys(parts)]
    if not param.type.is_number:
        return list(dict.fromkeys(parts))
    try:
        numbers = [float(part) for part in parts]
    except ValueError as error:
        raise UsageError(f"--try {param.name}={text}: {error}") from error
    if not all(map(isfinite, numbers)):
        raise UsageError(f"--try {param.name}={text}: write finite numbers")
    return _round_values(param, numbers, digits=17)  # as they are written


def _round_values(param: ParamDecl, values: Iterable[float], digits: int = 3) -> list[ParamValue]:
    """Round values to numbers that the parameter accepts, each once, ascending, without values out of its range. Floats
    have so many digits."""
    kind, scale = param.type.kind, param.type.scale
    unit = 10**scale if kind is Kind.DECIMAL else 1  # limits of a decimal are stored as whole numbers of this unit
    low, high = (None if limit is None else limit / unit for limit in (param.minimum, param.maximum))
    rounded: set[int | float] = set()
    for value in values:
        if kind is Kind.INT:
            number: int | float = round(value)
        elif kind is Kind.DECIMAL:
            number = float(round(Decimal(repr(value)), scale))
        else:
            number = float(f"{value:.{digits}g}")
        if (low is None or number >= low) and (high is None or number <= high):
            rounded.add(number)
    return sorted(rounded)


Setting = Mapping[str, ParamValue]
_DROPS = ("matches_dropped", "runs_evicted")


class Scores(NamedTuple):
    """The figures of S settings in one part: arrays of length S. `money` is the money of the found frauds. Alerts are
    counted as they are sent, with the rule's own `suppress`."""

    alerts: NDArray[np.int64]
    right: NDArray[np.int64]
    immature: NDArray[np.int64]
    frauds: NDArray[np.int64]
    money: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Replayer:
    """Replays one rule with several settings of its parameters side by side, and judges the alerts by known frauds.
    `lists` are records of lists and their entries. `pieces_of` returns the history, in pieces, for a schema. `labelled`
    has the fraud of each event of this rule's types, `parts` are the parts of the time in which alerts are counted."""

    record: UpsertRecord
    lists: tuple[Sequence[ControlRecord], ListStore]
    pieces_of: Callable[[Schema], Pieces]
    labelled: LabelledEvents
    parts: tuple[TimePart, ...]
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

    def refused_numbers(self, settings: Sequence[Setting]) -> set[int]:
        """Return the numbers of the settings with which the rule cannot be deployed."""
        return {int(record.rule_id[1:]) for record in self.deployment(settings).set_aside}  # the id is s and the number

    def replayed(self, settings: Sequence[Setting]) -> tuple[History, Detections]:
        """Replay the rule once per setting, all in one replay. A setting's number is the rule number of its alerts."""
        deployment = self.deployment(settings)
        if deployment.set_aside:
            refused = deployment.set_aside[0]  # the number of its setting is in the id
            raise UsageError(f"{self.record.id} with {dict(settings[int(refused.rule_id[1:])])}: {refused.reason}")
        history = replay_history(deployment, self.pieces_of, (), self.cores, self.console)
        return history, detections(history)

    def judged(self, settings: Sequence[Setting]) -> tuple[History, Judged]:
        """Replay the settings, and judge the sent alerts by all known labels."""
        history, all_alerts = self.replayed(settings)
        return history, judge(history, self.labelled, all_alerts, is_sent_only=True)


def replayed_scores(
    replayer: Replayer, settings: Sequence[Setting], at_once: int = TUNE_RULES_AT_ONCE
) -> tuple[Scores, ...]:
    """Return the scores of each part, for settings that are replayed together."""
    blocks = []
    for first in range(0, len(settings), at_once):
        some = settings[first : first + at_once]
        blocks.append(scores_of(replayer, *replayer.replayed(some), len(some)))
    return joined_scores(blocks)


def scores_of(replayer: Replayer, history: History, all_alerts: Detections, count: int) -> list[Scores]:
    """Count the results of a replay of `count` settings in each part, with the alerts that are sent."""
    return [
        _count(judge(history, part.labelled, all_alerts, is_sent_only=True), part, count) for part in replayer.parts
    ]


def _count(judged: Judged, part: TimePart, count: int) -> Scores:
    """Count the alerts and frauds of each setting, which was replayed as a rule, in one part of the time."""
    is_in_part = part.has(judged.detected_ms)
    alert, fraud = part.alert_fraud_pairs(judged)
    setting, found_fraud = np.unique(np.stack([judged.rule[alert], fraud], axis=1), axis=0).T
    return Scores(
        alerts=np.bincount(judged.rule[is_in_part], minlength=count),
        right=np.bincount(judged.rule[is_in_part & judged.is_right], minlength=count),
        immature=np.bincount(judged.rule[is_in_part & judged.is_immature], minlength=count),
        frauds=np.bincount(setting, minlength=count),
        money=np.bincount(setting, weights=part.labelled.amount[found_fraud], minlength=count).astype(np.float64),
    )


def joined_scores(blocks: Sequence[Sequence[Scores]]) -> tuple[Scores, ...]:
    """Join blocks of settings, each with the scores of every part."""
    parts = zip(*blocks, strict=True)
    return tuple(Scores(*(np.concatenate(arrays) for arrays in zip(*part, strict=True))) for part in parts)


@dataclass(frozen=True, slots=True)
class _PassedCounts:
    """The alerts C of one setting of the other parameters: counts[c, i] values of axis i let alert c pass."""

    counts: NDArray[np.int64]
    detected_ms: NDArray[np.int64]
    history: History
    all_alerts: Detections


def every_setting(axes: Sequence[Axis]) -> list[Setting]:
    """List all combinations, in the order in which `combined_scores` has them: the last axis changes fastest."""
    ordered = sorted(axes, key=lambda axis: axis.is_threshold)
    names = [axis.name for axis in ordered]
    return [dict(zip(names, values, strict=True)) for values in product(*(axis.values for axis in ordered))]


def combined_scores(replayer: Replayer, axes: Sequence[Axis]) -> tuple[tuple[Scores, ...], int] | None:
    """Score all combinations of the axes (parameters with values to try) without a replay for each. Count for each
    alert how many values of a threshold let it pass: of `amount >= 500`, `600` and `700`, an amount of 650 passes two.
    The counts give the alerts of a combination. Return the scores by part of the time, and the number of replays; None
    if counts are not valid. Raises: UsageError."""
    others = [axis for axis in axes if not axis.is_threshold]
    thresholds = [axis for axis in axes if axis.is_threshold]
    blocks, count = [], 0
    for values in product(*(axis.values for axis in others)):
        fixed = dict(zip((axis.name for axis in others), values, strict=True))
        passed, replays = _count_passed_values(replayer, fixed, thresholds)
        count += replays
        if passed is None:
            return None
        blocks.append([_score_combinations(passed, part, thresholds) for part in replayer.parts])
    return joined_scores(blocks), count


def _count_passed_values(replayer: Replayer, fixed: Setting, axes: Sequence[Axis]) -> tuple[_PassedCounts | None, int]:
    """Count for each alert how many values of each threshold (axis) let it pass. Each value is replayed alone, with the
    other thresholds at their loosest: an alert passes a combination if it passes each of its values. Return the counts
    and the number of replays; None for the counts if a replay dropped a match, or a tighter value adds an alert."""
    base = {**fixed, **{axis.name: axis.values[0] for axis in axes}}  # the loosest values
    first_history, all_alerts = replayer.replayed([base])
    judged = judge(first_history, replayer.labelled, all_alerts)
    total = len(judged.detected_ms)
    if total > TUNE_ALERTS_MAX:
        raise UsageError(
            f"{replayer.record.id} has {total:,} alerts with {base}, and the most is {TUNE_ALERTS_MAX:,}; begin with "
            "tighter values (--try)"
        )
    if _has_dropped(first_history):
        return None, 1
    alert_ids = identities(judged)  # by the bound events, so that alerts of several replays can be compared
    passed_counts = np.ones((total, len(axes)), np.int64)  # each alert passes the loosest value
    settings = [
        (axis_number, passed_count, {**base, axis.name: value})
        for axis_number, axis in enumerate(axes)
        for passed_count, value in enumerate(axis.values[1:], start=1)
    ]
    at_once = max(1, min(TUNE_RULES_AT_ONCE, TUNE_ALERTS_MAX // max(1, total)))  # their alerts are in memory
    for first in range(0, len(settings), at_once):
        chosen_settings = settings[first : first + at_once]
        history, variants = replayer.judged([setting for _, _, setting in chosen_settings])
        if _has_dropped(history):
            return None, 1 + len(settings)
        variant_ids = identities(variants)
        for number, (axis_number, passed_count, _) in enumerate(chosen_settings):
            chosen_ids = variant_ids[variants.rule == number]  # a setting is replayed as the rule with its number
            passes = np.isin(alert_ids, chosen_ids)  # these alerts must pass the loosest and all looser values, too
            if int(passes.sum()) != len(chosen_ids) or (passed_counts[passes, axis_number] < passed_count).any():
                return None, 1 + len(settings)
            passed_counts[:, axis_number] += passes
    return _PassedCounts(passed_counts, judged.detected_ms, first_history, all_alerts), 1 + len(settings)


def _has_dropped(history: History) -> bool:
    return any(history.replayed.counters[name] for name in _DROPS)


def identities(judged: Judged) -> NDArray[np.uint64]:
    """Return a number for the events that each alert binds, in 64 bits: the same for the same events."""
    mixed = judged.bound_event_row.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64 (Steele and others 2014)
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    identity = np.zeros(len(judged.rule), np.uint64)
    np.add.at(identity, judged.bound_event_alert, mixed)
    return identity


def _score_combinations(passed: _PassedCounts, part: TimePart, axes: Sequence[Axis]) -> Scores:
    """Count for every combination of values the alerts that pass all of them, in a part of the time: all, right, and
    immature ones (too recent to judge). An axis is a parameter with its values to try, loosest first. `passed` counts
    by alert and axis how many values let the alert pass."""
    shape = tuple(len(axis.values) for axis in axes)
    judged = judge(passed.history, part.labelled, passed.all_alerts)
    passed_counts = passed.counts[passed.detected_ms <= part.labelled.as_of_ms]
    assert len(passed_counts) == len(judged.detected_ms), "a part has the alerts up to its end"
    is_in_part = part.has(judged.detected_ms)
    tightest_indexes = tuple(passed_counts.T - 1)  # by axis, of the tightest value that an alert passes; 0: the loosest

    def count_passing(chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        counts = np.zeros(shape, np.int64)
        np.add.at(counts, tuple(indexes[chosen] for indexes in tightest_indexes), 1)
        for dimension in range(len(shape)):  # an alert that passes a value also passes all looser ones
            counts = np.flip(np.cumsum(np.flip(counts, dimension), dimension), dimension)
        return counts.reshape(-1)

    alert, fraud = part.alert_fraud_pairs(judged)
    frauds, money = _frauds_by_setting(passed_counts[alert], fraud, part.labelled.amount, shape)
    right, immature = count_passing(is_in_part & judged.is_right), count_passing(is_in_part & judged.is_immature)
    return Scores(count_passing(is_in_part), right, immature, frauds, money)


def _frauds_by_setting(
    passed_counts: NDArray[np.int64], fraud: NDArray[np.int64], amount: NDArray[np.float64], shape: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Count the frauds that each combination of values finds, and add up their money. Each row pairs an alert with its
    `fraud`; passed_counts int64[H, A] is how many values of each axis (a parameter, loosest value first) let the alert
    pass. With the other axes fixed, a fraud is found up to the highest count of its alerts on the last axis."""
    frauds, fraud_index = np.unique(fraud, return_inverse=True)
    counts = np.zeros((int(np.prod(shape[:-1])), shape[-1]), np.int64)
    money = np.zeros(counts.shape)
    for number, value_indexes in enumerate(np.ndindex(*shape[:-1])):
        passes = (passed_counts[:, :-1] > np.array(value_indexes, np.int64)).all(axis=1)  # index i: count > i
        highest = np.zeros(len(frauds), np.int64)
        np.maximum.at(highest, fraud_index[passes], passed_counts[passes, -1])
        by_count = np.bincount(highest, minlength=shape[-1] + 1)[1:]  # 0: no alert finds it
        counts[number] = np.flip(np.cumsum(np.flip(by_count)))  # of frauds with this count or a higher one
        by_money = np.bincount(highest, weights=amount[frauds], minlength=shape[-1] + 1)[1:]
        money[number] = np.flip(np.cumsum(np.flip(by_money)))
    return counts.reshape(-1), money.reshape(-1)
