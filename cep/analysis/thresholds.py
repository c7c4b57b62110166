"""Single rules and a history → their results with other values of their parameters.

Named rules are always replayed. Without a name, the rule with the most alerts that has numeric parameters is replayed,
if the history is small.
Tested by: tests/cli/test_quality.py, tests/api/test_features.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from cep.analysis.axes import Axis, numeric_axes
from cep.analysis.backtest import Backtest
from cep.analysis.curves import Curve, Pair, curves, pairs
from cep.analysis.labels import Labels
from cep.analysis.measure import Terms, measure
from cep.analysis.near import Line, lines
from cep.analysis.one_rule import OneRule
from cep.analysis.split import whole_time
from cep.analysis.sweep import Bench
from cep.base.errors import UsageError
from cep.base.limits import REPORT_REPLAYED_EVENTS_MAX, TUNE_REPLAYED_MAX
from cep.base.schema import Schema
from cep.sources.pieces import Pieces


@dataclass(frozen=True, slots=True)
class Drawn:
    """Curves, pairs and lines of one rule or several. `note` says why a rule is there, or why none is."""

    curves: tuple[Curve, ...] = ()
    pairs: tuple[Pair, ...] = ()
    lines: tuple[Line, ...] = ()
    note: str = ""


NOTHING = Drawn()


@dataclass(frozen=True, slots=True)
class Replays:
    """The inputs of replays of a single rule. `rule_of` returns it by its id, `labels_of` the labels of its events."""

    rule_of: Callable[[str], OneRule]
    pieces_of: Callable[[Schema], Pieces]
    labels_of: Callable[[Schema], Labels]
    terms: Terms
    console: Console


def drawn(replays: Replays, figures: Backtest, names: Sequence[str] | None) -> Drawn:
    """Draw the curves of the rules with these names, possibly none. If `names` is None, choose one rule.

    Raises: UsageError for a rule that is missing, that cannot be replayed alone, or without numbers to draw.
    """
    if names is not None:
        drawings = [_drawn(replays, rule, numeric_axes(rule.pattern, rule.record.params))
                for rule in map(replays.rule_of, dict.fromkeys(names))]  # fmt: skip
        return Drawn(
            tuple(each for one in drawings for each in one.curves),
            tuple(each for one in drawings for each in one.pairs),
            tuple(each for one in drawings for each in one.lines),
        )
    events = figures.about["events"]
    if events > REPORT_REPLAYED_EVENTS_MAX:
        return Drawn(note=f"Nothing was replayed, for the history has more than {REPORT_REPLAYED_EVENTS_MAX:,} events. "
                     "Name a rule to see what other values of its parameters would find.")  # fmt: skip
    return _by_default(replays, figures)


def _by_default(replays: Replays, figures: Backtest) -> Drawn:
    """Draw the rule with the most alerts, among the rules that can be replayed alone and have a numeric parameter."""
    for each in sorted(figures.rules, key=lambda each: (-each.alerts, each.rule)):
        try:
            rule = replays.rule_of(each.rule)
            axes = numeric_axes(rule.pattern, rule.record.params)
            if axes and sum(len(axis.values) for axis in axes) <= TUNE_REPLAYED_MAX:
                drawing = _drawn(replays, rule, axes)
                note = f"No rule was named, so this is the one with the most alerts that has numbers: {each.rule}."
                return Drawn(drawing.curves, drawing.pairs, drawing.lines, note)
        except UsageError:  # it cannot be replayed by itself, or has too many alerts with some value
            continue
    return Drawn(note="No rule has a parameter that is a number and can be replayed by itself.")


def _drawn(replays: Replays, rule: OneRule, axes: Sequence[Axis]) -> Drawn:
    """Replay the values of a rule's parameters, some two together, and those near its lines, over the whole history."""
    terms, labels = replays.terms, replays.labels_of(rule.deployment.schema)
    measured = measure(rule.deployment, replays.pieces_of, labels, replace(terms, warns=False), replays.console)
    whole = whole_time(measured.history.events, measured.marks)
    bench = Bench(
        rule.record, rule.lists, replays.pieces_of, measured.marks, (whole,), terms.cores, replays.console
    )  # fmt: skip
    single = curves(bench, axes, measured.figures.about["days"])
    return Drawn(single, pairs(bench, single), lines(bench, axes))
