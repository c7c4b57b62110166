"""Rules, events and labels → a measured history, and warnings about fields that leak the labels.

A rule that reads the label finds each fraud, and nothing in production, where the label comes weeks later. A field that
separates frauds by itself is mostly a label in disguise. In a history in which most events are fraud, honest words were
probably taken for fraud.
Tested by: tests/analysis/test_backtest.py, tests/analysis/test_labels.py
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from cep.analysis.backtest import DAY_MS, Backtest, Judged, backtest, detections, judge
from cep.analysis.conditions import values_if_few
from cep.analysis.history import Events, History, replay_history
from cep.analysis.labelled_events import Episodes, LabelledEvents, key_field, label_events
from cep.analysis.labels import Labels, read_labels
from cep.analysis.weeks import fields_read
from cep.base.errors import UsageError
from cep.base.schema import Kind, Schema
from cep.columnar.batch import TEXT
from cep.columnar.decode import KeyDomain
from cep.columnar.texts import rows_among
from cep.lang.field_names import Role, role_of
from cep.lang.ir import CurrentField, VarField
from cep.lang.show import show_value
from cep.lang.walk import nodes
from cep.model.setting_types import duration_ms
from cep.report.plan import plan
from cep.rulebook.deploy import Deployment
from cep.sources.inputs import Records
from cep.sources.pieces import ALWAYS, Period, Pieces

_FRAUDS_MIN = 10  # fewer frauds say nothing
_F1_MIN = 0.98  # F1 of one condition on one field
_VALUES_MAX = 30  # of a field whose values are tried one by one
_NUMBERS = (Kind.INT, Kind.FLOAT, Kind.DECIMAL)
_WORDS = (Kind.STRING, Kind.ENUM, Kind.BOOL)


def check_unread(deployment: Deployment, labels: Labels) -> None:
    """Refuse rules that read the column of the labels. Raises: UsageError with the rule and the field."""
    hidden = set(labels.fields)
    if not hidden:
        return
    for rule in deployment.rulebook.deployed():
        read = {node.field for node in nodes(rule.pattern) if isinstance(node, CurrentField | VarField)}
        read = (read | set(rule.pattern.key)) & hidden
        if read:
            raise UsageError(
                f"the rule {rule.rule_id} reads `{min(read)}`, the column of the labels, so its figures would only "
                "repeat the labels; leave the field out of the rule, or allow it with --allow-label"
            )


def warnings_of(events: Events, labelled: LabelledEvents, names: Iterable[str], labels: Labels) -> Iterator[str]:
    """Yield a warning for each field that alone separates frauds from other events, and if most events are fraud, or if
    a label belongs to several events."""
    is_fraud = labelled.fraud >= 0
    if labels.field is None and not labels.views:
        rows = events.rows_of(labels.keys)
        others = int((rows_among(events.event_id.cast(TEXT), labels.keys.cast(TEXT)) >= 0).sum())
        others -= len(np.unique(rows[rows >= 0]))
        if others:
            yield (
                f"{others:,} events have the id of an earlier event with a label, which counts for that one alone: the "
                "ids of labels should be unique over all event types"
            )
    if is_fraud.sum() * 2 > len(events) > 0:
        yield (
            f"{int(is_fraud.sum()):,} of {len(events):,} events are fraud by {labels.name or 'the labels'}: look at "
            "its values, and say with --label-words which of them mean honest"
        )
        return
    for name in dict.fromkeys(names):
        condition = separating_condition(events, is_fraud, name, labelled.is_mature)
        if condition:
            yield (
                f"`{condition}` alone separates nearly all frauds from other events: if `{name}` is set after an event "
                "is known to be fraud, no rule may read it"
            )


def separating_condition(
    events: Events, is_fraud: NDArray[np.bool_], name: str, is_mature: NDArray[np.bool_]
) -> str:  # fmt: skip
    """Return the condition on one field that separates nearly all frauds, as a leaked label does; "" if none does. Only
    mature events count: the fraud of a recent one may be unknown."""
    type_ = events.schema.columns()[name]
    column = events.columns[name]
    has_value = np.asarray(column.is_valid()) & is_mature
    fraud_count = int(is_fraud.sum())
    if fraud_count < _FRAUDS_MIN or not has_value.any():
        return ""
    conditions = [("is not null", has_value), ("is null", is_mature & ~has_value)]
    if type_.kind in _WORDS and not type_.protected:
        conditions += [(f"== {value}", holds & is_mature) for value, holds in values_if_few(column, type_, _VALUES_MAX)]
    for condition, holds in conditions:  # F1 is 2 · found frauds / (events for which it holds + frauds)
        if 2 * int((holds & is_fraud).sum()) >= _F1_MIN * (int(holds.sum()) + fraud_count):
            return f"{name} {condition}"
    if type_.kind in _NUMBERS:
        values = np.asarray(column.fill_null(0)).astype(np.float64)[has_value]
        limit = _best_limit(values, is_fraud[has_value], fraud_count)
        if limit is None:
            return ""
        value = limit[1] if type_.is_float else int(limit[1])
        return f"{name} {limit[0]} {show_value(value, type_)}"
    return ""


def _best_limit(values: NDArray[np.float64], is_fraud: NDArray[np.bool_], frauds: int) -> tuple[str, float] | None:
    """Return the comparison and the limit with F1 >= _F1_MIN, or None. `frauds` has frauds without a value, too."""
    for sign, op in ((-1, ">="), (1, "<=")):
        order = np.argsort(sign * values, kind="stable")
        ordered = values[order]
        is_last = np.append(ordered[1:] != ordered[:-1], True)
        hits, count = np.cumsum(is_fraud[order])[is_last], np.flatnonzero(is_last) + 1
        f1 = 2 * hits / (count + frauds)
        best = int(np.argmax(f1))
        if f1[best] >= _F1_MIN:
            return op, float(ordered[is_last][best])
    return None


_AMOUNT = "amount"  # the field that is the money of an event unless another one is named


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings of a backtest. `amount` is the field of an event's money. Events outside of `period` do not count;
    neither do labels from their column. `label_words` is True for a word that means fraud. With `allow_label` rules may
    read the column of the labels. Labels of a column that are at most `episode_gap_ms` apart on a key are one fraud; 0:
    each is a fraud by itself. The key is `episode_key`, or the rules' key if all have the same. `warns`: warn about
    fields that leak labels."""

    amount: str | None = None
    as_of_ms: int | None = None
    maturity_ms: int | None = None
    cores: int = 2
    period: Period = ALWAYS
    label_words: Mapping[str, bool] = field(default_factory=dict)
    allow_label: bool = False
    episode_gap_ms: int = DAY_MS
    episode_key: str | None = None
    warns: bool = True


@dataclass(frozen=True, slots=True)
class Measured:
    """A history with its known frauds, judged alerts that are sent, and figures. `amount` is the field of an event's
    money. `labelled_at(time_ms)` has the frauds that were known at a time. `warnings` are about the labels."""

    amount: str | None
    history: History
    labelled: LabelledEvents
    judged: Judged
    figures: Backtest
    labelled_at: Callable[[int], LabelledEvents]
    warnings: tuple[str, ...] = ()


def measure_files(
    deployment: Deployment, events: Records | Path, labels: str, terms: Terms, console: Console
) -> Measured:
    """Measure the rules on files. `labels` is a file or a column of the events. Raises: UsageError, SourceError."""
    read = read_labels(labels, events, deployment.schema, terms.label_words)
    records = Records.of(events)
    return measure(deployment, terms.period.reader(records), read, terms, console)


def measure(
    deployment: Deployment, pieces_of: Callable[[Schema], Pieces], labels: Labels, terms: Terms, console: Console,
    more: Sequence[str] = (),
) -> Measured:  # fmt: skip
    """Replay a history once, judge the alerts by the labels known at `terms.as_of_ms`, compute the figures, and print
    warnings about the labels. `pieces_of` reads the events of the period, `more` are additional columns to keep. An
    episode is the labelled events of a key that are one fraud. Figures are of sent alerts and of all matches, also the
    suppressed. Raises: SourceError; UsageError, also for a rule that reads the column of the labels."""
    schema, domains = deployment.schema, deployment.key_domains
    if not terms.allow_label:
        check_unread(deployment, labels)
    amount, field = amount_field(schema, terms.amount), key_field(labels, domains)
    in_conditions = fields_read(deployment)
    fields = [*more, *in_conditions, *(name for domain in domains for name in domain)] + [
        name for name in (amount, field, terms.episode_key) if name is not None
    ]
    if terms.episode_key is not None and terms.episode_key not in schema.columns():
        raise UsageError(f"--episodes {terms.episode_key}: the rules' events have these fields: "
                         f"{', '.join(schema.columns())}")  # fmt: skip
    history = replay_history(deployment, pieces_of, tuple(dict.fromkeys(fields)), terms.cores, console)
    if labels.is_column and not terms.period.cuts_nothing:  # labels of events outside of the period do not count
        labels = labels.taken(np.flatnonzero(history.events.rows_of(labels.keys) >= 0))
    episodes = _episodes(labels, domains, terms)
    labelled = label_events(history.events, labels, field, amount, terms.as_of_ms, terms.maturity_ms, episodes)
    warnings = (*warnings_of(history.events, labelled, [*more, *in_conditions], labels),) if terms.warns else ()
    for warning in warnings:
        console.print(f"warning: {warning}", markup=False)
    all_alerts = detections(history)
    sent_alerts = judge(history, labelled, all_alerts, is_sent_only=True)
    all_matches = sent_alerts if all_alerts.is_sent.all() else judge(history, labelled, all_alerts)

    def labelled_at(time_ms: int) -> LabelledEvents:  # with the frauds known then, to choose parameters
        if time_ms >= labelled.as_of_ms or not (labels.has_reports or labelled.maturity_ms):
            return labelled
        return label_events(history.events, labels, field, amount, time_ms, labelled.maturity_ms, episodes)

    figures = backtest(history, labelled, all_alerts, sent_alerts, all_matches)
    figures = replace(figures, about={**figures.about, "episodes": None if episodes is None else episodes.text})
    return Measured(amount, history, labelled, sent_alerts, figures, labelled_at, warnings)


def _episodes(labels: Labels, domains: Sequence[KeyDomain], terms: Terms) -> Episodes | None:
    """Return how labels of a column become frauds; None if each label, or its own episode, is a fraud."""
    if not labels.is_column or not terms.episode_gap_ms or labels.views:
        return None
    if terms.episode_key is not None:
        return Episodes((terms.episode_key,), terms.episode_gap_ms)
    return Episodes(domains[0], terms.episode_gap_ms) if len(domains) == 1 else None


def episodes_of(name: str, text: str) -> tuple[str | None, int]:
    """Read the key and the gap of episodes, like `card_id:12h`. Raises: UsageError, with the name of the setting."""
    key, _, gap = text.rpartition(":")
    try:
        return key or None, duration_ms(gap)
    except ValueError as error:
        raise UsageError(f"{name} {text}: {error}; write it like 1d or card_id:12h") from error


def state_bytes(measured: Measured) -> dict[str, int]:
    """Return the state of each rule for a key with a hundred events in its window, as `cep plan` estimates it."""
    deployment = measured.history.deployment
    return {
        rule.rule_id: planned.state_bytes
        for rule in deployment.rulebook.deployed()
        for planned in plan([rule.pattern], deployment.schema, {}).patterns
    }


def amount_field(schema: Schema, name: str | None) -> str | None:
    """Return the field of an event's money: `name`, otherwise `amount`, otherwise the only field whose name says money.
    Raises: UsageError if `name` is not a numeric field."""
    type_ = schema.columns().get(name or _AMOUNT)
    if name is None and type_ is None:
        money = [field for field, type_ in schema.columns().items() if type_.is_number and role_of(field) is Role.MONEY]
        return money[0] if len(money) == 1 else None
    is_number = type_ is not None and type_.is_number
    if name is not None and not is_number:
        numbers = ", ".join(field for field, type_ in schema.columns().items() if type_.is_number)
        raise UsageError(f"--amount {name} is no field of numbers that the rules' events have; these are: {numbers}")
    return (name or _AMOUNT) if is_number else None
