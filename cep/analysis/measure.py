"""Rules, events and labels → a measured history, for the verbs and for Python.

Tested by: tests/analysis/test_backtest.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from cep.analysis.backtest import DAY_MS, Backtest, Judged, backtest, detections, judge
from cep.analysis.drift import fields_read
from cep.analysis.history import History, replay_history
from cep.analysis.labels import Labels, read_labels
from cep.analysis.leaks import check_unread, warnings_of
from cep.analysis.marks import Episodes, Marks, key_field, mark_events
from cep.base.errors import UsageError
from cep.base.schema import Schema
from cep.columnar.route import KeyDomain
from cep.lang.field_names import Role, role_of
from cep.model.setting_types import duration_ms
from cep.report.plan import plan
from cep.rulebook.deploy import Deployment
from cep.sources.inputs import Records
from cep.sources.period import ALWAYS, Period
from cep.sources.pieces import Pieces

_AMOUNT = "amount"  # the field that is the money of an event unless another one is named


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings of a backtest.

    `amount` is the field of an event's money; the date and the maturity as in `Marks`. Events outside of `period` do
    not count; neither do labels from their column. `label_words` is True for a word that means fraud. With
    `allow_label` rules may read the column of the labels. Labels of a column that are at most `episode_gap_ms` apart on
    a key are one fraud; 0: each is a fraud by itself. The key is `episode_key`, or the rules' key if all have the same.
    `warns`: print warnings about labels and fields that leak them.
    """

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
    """A history with its known frauds, judged alerts and figures. `amount` is the field of an event's money.

    `judged` are the alerts that are sent. `marks_at(time_ms)` has the frauds that were known at a time.
    """

    amount: str | None
    history: History
    marks: Marks
    judged: Judged
    figures: Backtest
    marks_at: Callable[[int], Marks]


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
    """Replay a history once, compare the alerts with the labels, and compute the figures.

    Print warnings about the labels.

    `more` are additional columns of the events. `pieces_of` returns only the events of the period. Raises: UsageError,
    also for a rule that reads the column of the labels; SourceError.
    """
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
    if labels.is_column and not terms.period.cuts_nothing:
        labels = labels.taken(np.flatnonzero(history.events.rows_of(labels.keys) >= 0))
    episodes = _episodes(labels, domains, terms)
    marks = mark_events(history.events, labels, field, amount, terms.as_of_ms, terms.maturity_ms, episodes)
    for warning in warnings_of(history.events, marks, [*more, *in_conditions], labels) if terms.warns else ():
        console.print(f"warning: {warning}", markup=False)
    all_alerts = detections(history)
    judged = judge(history, marks, all_alerts, is_sent_only=True)
    matched = judged if all_alerts.is_sent.all() else judge(history, marks, all_alerts)

    def marks_at(time_ms: int) -> Marks:
        if time_ms >= marks.as_of_ms or not (labels.has_reports or marks.maturity_ms):
            return marks
        return mark_events(history.events, labels, field, amount, time_ms, marks.maturity_ms, episodes)

    figures = backtest(history, marks, all_alerts, judged, matched)
    figures = replace(figures, about={**figures.about, "episodes": None if episodes is None else episodes.text})
    return Measured(amount, history, marks, judged, figures, marks_at)


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
    bytes_by_rule = {}
    for rule in deployment.rulebook.deployed():
        planned = plan([rule.pattern], deployment.schema, {}).patterns
        if planned:
            bytes_by_rule[rule.rule_id] = planned[0].state_bytes
    return bytes_by_rule


def amount_field(schema: Schema, name: str | None) -> str | None:
    """Return the field of an event's money: `name`, otherwise `amount`, otherwise the only field whose name says money.

    Raises: UsageError if `name` is not a numeric field.
    """
    type_ = schema.columns().get(name or _AMOUNT)
    if name is None and type_ is None:
        money = [field for field, type_ in schema.columns().items() if type_.is_number and role_of(field) is Role.MONEY]
        return money[0] if len(money) == 1 else None
    is_number = type_ is not None and type_.is_number
    if name is not None and not is_number:
        numbers = ", ".join(field for field, type_ in schema.columns().items() if type_.is_number)
        raise UsageError(f"--amount {name} is no field of numbers that the rules' events have; these are: {numbers}")
    return (name or _AMOUNT) if is_number else None
