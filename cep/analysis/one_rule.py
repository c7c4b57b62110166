"""A rule of a folder, or of records → the single rule with its lists; its results with other values of its parameters.

Named rules are always replayed. Without a name, the rule with the most alerts that has numeric parameters is replayed,
if the history is small.
Tested by: tests/cli/test_quality.py, tests/api/test_features.py
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from cep.analysis.backtest import DAY_MS, Backtest, TimePart, whole_time
from cep.analysis.curves import Curve, Line, Pair, curves, lines, pairs
from cep.analysis.labels import Labels, read_labels
from cep.analysis.measure import Measured, Terms, measure
from cep.analysis.sweep import Axis, Replayer, numeric_axes
from cep.base.errors import UsageError
from cep.base.limits import REPORT_REPLAYED_EVENTS_MAX, TUNE_REPLAYED_MAX
from cep.base.schema import Schema
from cep.lang.ir import PatternIR
from cep.lang.load import load_text
from cep.lang.show import written_duration
from cep.lists.store import ListStore
from cep.model.rule import ListRecord, UpsertRecord
from cep.rulebook.deploy import Deployment, deploy
from cep.rulebook.files import read_lists, read_rules
from cep.sources.inputs import Records
from cep.sources.pieces import Pieces


@dataclass(frozen=True, slots=True)
class OneRule:
    """One rule to be tuned, with the records and the entries of its lists. `record` has the values of all parameters;
    `pattern` has parameters as variables, `bound` has their values instead."""

    record: UpsertRecord
    lists: tuple[list[ListRecord], ListStore]
    deployment: Deployment
    pattern: PatternIR
    bound: PatternIR

    def measure(self, records: Records, labels: str, terms: Terms, errors: Console) -> Measured:
        """Measure the rule with its present parameters. Raises: UsageError, SourceError."""
        read = read_labels(labels, records, self.deployment.schema, terms.label_words)
        return measure(self.deployment, terms.period.reader(records), read, terms, errors)

    def replayer(
        self, records: Records, measured: Measured, parts: Sequence[TimePart], terms: Terms, errors: Console
    ) -> Replayer:
        """Return the object that replays the rule with other parameter values, for these parts of the time."""
        pieces_of = terms.period.reader(records)
        return Replayer(self.record, self.lists, pieces_of, measured.labelled, tuple(parts), terms.cores, errors)

    @property
    def gap_ms(self) -> int:
        """The time between parts of a history, so that no match spans two: the window; at least a day for one
        variable, which may be a loop."""
        within = self.bound.within_ms
        if not isinstance(within, int) or (len(self.bound.variables) == 1 and within < DAY_MS):
            return DAY_MS
        return within


def one_rule(folder: Path, rule_id: str) -> OneRule:
    """Read a rule of a folder. Raises: UsageError for a rule that is not there, or cannot be tuned by itself."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder of rules")
    records, problems = read_rules(folder)
    store = ListStore()
    list_records, _ = read_lists(folder, store)
    record = next((each for each in records if each.id == rule_id), None)
    if record is None:
        reasons = [problem for problem in problems if rule_id in problem]
        raise UsageError(reasons[0] if reasons else f"{folder} has no rule {rule_id}")
    return one_rule_of(record, (list_records, store))


def one_rule_of(record: UpsertRecord, lists: tuple[list[ListRecord], ListStore]) -> OneRule:
    """Deploy a rule by itself. Raises: UsageError for one that cannot be in force or tuned by itself."""
    deployment = deploy([*lists[0], record], lists[1])
    pattern, bound = _patterns(record, deployment)
    record = record.model_copy(update={"params": {**_defaults(pattern), **record.params}})
    return OneRule(record, lists, deployment, pattern, bound)


def _patterns(record: UpsertRecord, deployment: Deployment) -> tuple[PatternIR, PatternIR]:
    """Return the rule's pattern with open parameters, and with the rule's values in place. Raises: UsageError."""
    if deployment.set_aside:
        raise UsageError(f"{record.id} cannot be in force: {deployment.set_aside[0].reason}")
    pattern = load_text(record.source, record.id).patterns[record.pattern]
    schema = deployment.schema
    derived = [e.name for e in schema.event_types if e.derived and e.name in pattern.event_types]
    if derived or pattern.produces is not None:
        raise UsageError(f"{record.id} is part of a chain of patterns ({', '.join(derived) or pattern.produces}); tune "
                         "rules that read events of a source and give alerts")  # fmt: skip
    (rule,) = deployment.rulebook.deployed()
    return pattern, rule.pattern


def _defaults(pattern: PatternIR) -> dict[str, object]:
    """Return the defaults of the pattern's parameters, as a rule file writes them."""
    values: dict[str, object] = {}
    for param in pattern.params:
        if param.default is None:
            continue
        if param.type.kind.value == "decimal":
            values[param.name] = param.default / 10**param.type.scale
        elif param.type.kind.value == "duration":
            values[param.name] = written_duration(int(param.default))
        elif param.type.kind.value == "enum":
            values[param.name] = param.type.symbols[int(param.default)]
        else:
            values[param.name] = param.default
    return values


@dataclass(frozen=True, slots=True)
class ReplayedCharts:
    """Curves, pairs and lines to plot, of one rule or several. `note` says why a rule is there, or why none is."""

    curves: tuple[Curve, ...] = ()
    pairs: tuple[Pair, ...] = ()
    lines: tuple[Line, ...] = ()
    note: str = ""


NO_CHARTS = ReplayedCharts()


@dataclass(frozen=True, slots=True)
class Replays:
    """The inputs of replays of a single rule. `rule_of` returns it by its id, `labels_of` the labels of its events."""

    rule_of: Callable[[str], OneRule]
    pieces_of: Callable[[Schema], Pieces]
    labels_of: Callable[[Schema], Labels]
    terms: Terms
    console: Console


def replay_for_charts(replays: Replays, figures: Backtest, names: Sequence[str] | None) -> ReplayedCharts:
    """Replay rules with other values of their parameters, for charts. `curves` have the figures by the value of one
    parameter, `pairs` by the values of two, and `lines` the alerts that a slightly different threshold changes. If
    `names` is None, choose a rule. Raises: UsageError for a rule that is missing, without a number, or in a chain."""
    if names is not None:
        drawings = [_replay_charts(replays, rule, numeric_axes(rule.pattern, rule.record.params))
                    for rule in map(replays.rule_of, dict.fromkeys(names))]  # fmt: skip
        return ReplayedCharts(
            tuple(each for one in drawings for each in one.curves),
            tuple(each for one in drawings for each in one.pairs),
            tuple(each for one in drawings for each in one.lines),
        )
    events = figures.about["events"]
    if events > REPORT_REPLAYED_EVENTS_MAX:
        return ReplayedCharts(note="Nothing was replayed, for the history has more than "
            f"{REPORT_REPLAYED_EVENTS_MAX:,} events. Name a rule to see what other values of its parameters would find."
        )  # fmt: skip
    return _by_default(replays, figures)


def _by_default(replays: Replays, figures: Backtest) -> ReplayedCharts:
    """Return charts of one rule: in the backtest `figures` it has most alerts of all that are quick to replay alone."""
    for each in sorted(figures.rules, key=lambda each: (-each.alerts, each.rule)):
        try:
            rule = replays.rule_of(each.rule)
            axes = numeric_axes(rule.pattern, rule.record.params)
            if axes and sum(len(axis.values) for axis in axes) <= TUNE_REPLAYED_MAX:  # a replay for each value
                note = f"No rule was named, so this is the one with the most alerts that has numbers: {each.rule}."
                return replace(_replay_charts(replays, rule, axes), note=note)
        except UsageError:  # it cannot be replayed by itself, or has too many alerts with some value
            continue
    return ReplayedCharts(note="No rule has a parameter that is a number and can be replayed by itself.")


def _replay_charts(replays: Replays, rule: OneRule, axes: Sequence[Axis]) -> ReplayedCharts:
    """Replay the values of a rule's parameters, some two together, and those near its lines, over the whole history."""
    terms, labels = replays.terms, replays.labels_of(rule.deployment.schema)
    measured = measure(rule.deployment, replays.pieces_of, labels, replace(terms, warns=False), replays.console)
    whole = whole_time(measured.history.events, measured.labelled)
    replayer = Replayer(
        rule.record, rule.lists, replays.pieces_of, measured.labelled, (whole,), terms.cores, replays.console
    )  # fmt: skip
    single = curves(replayer, axes, measured.figures.about["days"])
    return ReplayedCharts(single, pairs(replayer, single), lines(replayer, axes))
