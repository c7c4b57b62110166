"""A folder of rules, a pattern file or a text → rules that match, compare and measure any frame.

Tested by: tests/api/test_match.py, tests/api/test_features.py
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from cep.analysis.backtest import DAY_MS, parts_of_time
from cep.analysis.labels import Labels, label_words, labels_of_table, read_labels
from cep.analysis.measure import Measured, episodes_of, measure
from cep.analysis.measure import Terms as MeasureTerms
from cep.analysis.one_rule import OneRule, Replays, one_rule_of, replay_for_charts
from cep.analysis.suggest import Suggested, Wanted, check_wanted, fields_of, key_fields, left_out_fields, suggest
from cep.analysis.sweep import Replayer, axes_of, skipped_params
from cep.analysis.tune import Aim, Objective, Tuned, tune
from cep.api.alerts import Alerts, Picture
from cep.api.events import HistoryForms, ReplayForms, Source, open_source, split_forms, warn_of, warn_of_replay
from cep.api.frames import Forms, Naming, open_frame, texts_for_mixed
from cep.api.quality import Difference, Quality, difference_of
from cep.api.replay import GivenRules, Terms, matches, replay
from cep.api.spark import StreamTerms, aside_spark, forms_of, is_spark, match_spark, match_stream_spark
from cep.api.why import Why, explain_not
from cep.base.errors import PatternError, UsageError
from cep.base.limits import PLAN_EVENTS_PER_KEY
from cep.base.process import processors_count
from cep.base.schema import Schema
from cep.base.terminal import Terminal
from cep.lang.diagnostics import Diagnostic
from cep.lang.explain.render import render_text, to_json
from cep.lang.load import Checked, bundle_source, load_files, load_text
from cep.model.rule import ListRecord
from cep.model.setting_types import OFF, length_ms, moment_ms
from cep.nfa.deployed import DeployedRule
from cep.nfa.lists import given_lists
from cep.report.picture import picture
from cep.report.plan import plan, plan_text
from cep.rulebook.files import folder_at
from cep.sources.pieces import Period


class Measuring(ReplayForms, total=False):
    """The keyword arguments of `Rules.backtest`: the flags of `cep backtest`, with underscores."""

    amount: str | None  # the field of an event's money
    as_of: str | None  # only events and labels from before this time count
    maturity: str | None  # the age at which an event without a report counts as honest
    label_words: Mapping[str, str]  # a word of the labels: "fraud" or "honest"
    allow_label: bool  # rules may read the column of the labels
    episodes: str | None  # labelled events of a key so close, such as "1d", are one fraud
    columns: Mapping[str, str] | None  # a field: its column
    tz: str | None  # the zone of times without one
    cores: int | None


_ONLY_MEASURING = ("amount", "as_of", "maturity", "label_words", "allow_label", "episodes", "columns", "tz", "cores")


def source_and_terms(events: Any, arguments: Measuring) -> tuple[Source, MeasureTerms]:
    """Return the events of the period, and the settings of the measurement. Raises: UsageError, SourceError."""
    as_of, maturity = arguments.get("as_of"), arguments.get("maturity")
    forms: ReplayForms = {name: value for name, value in arguments.items() if name not in _ONLY_MEASURING}  # type: ignore[assignment]
    value_forms, period = split_forms(forms)
    as_of_ms = None if as_of is None else moment_ms("as_of", as_of)
    maturity_ms = None if maturity is None else length_ms("maturity", maturity)
    words = label_words(  # checks them like the flag of the command line
        [f"{word}={verdict}" for word, verdict in arguments.get("label_words", {}).items()], "label_words"
    )
    episodes = arguments.get("episodes")  # such as "card_id:1d"; by default a day, by the rules' key
    key, gap_ms = (None, DAY_MS) if episodes is None else episodes_of("episodes", episodes)
    terms = MeasureTerms(
        arguments.get("amount"), as_of_ms, maturity_ms, arguments.get("cores") or processors_count(), period, words,
        allow_label=arguments.get("allow_label", False), episode_gap_ms=gap_ms, episode_key=key,
    )  # fmt: skip
    return open_source(events, Naming(arguments.get("columns"), arguments.get("tz"), value_forms)).within(period), terms


class Rule:
    """One version of a rule in force."""

    def __init__(self, loaded: GivenRules, deployed: DeployedRule) -> None:
        self._given, self._deployed = loaded, deployed

    @property
    def id(self) -> str:
        """The name of the rule."""
        return self._deployed.rule_id

    @property
    def version(self) -> int:
        """The number of the version."""
        return self._deployed.version

    @property
    def key(self) -> tuple[str, ...]:
        """The fields that the events of a match have in common."""
        return self._deployed.pattern.key

    def plan(self, events: int = PLAN_EVENTS_PER_KEY) -> Picture:
        """Draw the automaton; the text also has the cost of a key with this many events in a window."""
        planned = plan([self._deployed.pattern], self._given.deployment.schema, {}, events)
        return Picture(picture(planned.patterns[0]), plan_text(planned))

    def __repr__(self) -> str:
        rule = self._deployed
        return f"{rule.rule_id} version {rule.version} ({rule.status}, {rule.severity}) by {', '.join(self.key)}"


class Rules:
    """Rules in force, to match frames with. `problems` has the rejected rules, with the reasons."""

    def __init__(self, loaded: GivenRules) -> None:
        self._given = loaded
        set_aside = loaded.deployment.set_aside
        self.problems: tuple[str, ...] = (
            *loaded.problems,
            *(f"{rule.rule_id} version {rule.version} is set aside: {rule.reason}" for rule in set_aside),
        )

    def match(
        self, events: Any, *, columns: Mapping[str, str] | None = None, tz: str | None = None,
        ahead_max: str = "1 min", cores: int | None = None, partitions: int | None = None,
        **forms: Unpack[ReplayForms],
    ) -> Alerts:  # fmt: skip
        """Match a history and return its alerts, which equal the alerts of `cep replay`, byte for byte.

        `events` is a frame of pandas, polars, Arrow or DuckDB, or paths: one, a list, or a wildcard. `columns` names
        the column of each field whose name differs, like {"card_id": "cc_num"}. `tz` is the zone of times without one.

        `fixed` gives fields one value in every row, `minor` names decimals in whole cents; `time_unit` ("s", "ms",
        "us", "ns") and `time_form` (as in strptime) describe the form of times. `since` and `until` leave out events
        before the first time, and from the second on. A window that is open at the end gives no alert; with
        `to_the_end` it does, and the alert is `unconfirmed`.

        An event that comes again within `dedup` ("10 min") counts once. The other arguments are the flags of
        `cep replay`.

        A RejectedRecordsWarning names the most frequent reason if records are rejected: they are set aside, or have an
        unreadable value. With `strict` that is a RejectedRecordsError.

        For a Spark DataFrame it returns another one with the alerts, unordered: a part of the user's query, which Spark
        plans and runs in `partitions` tasks when rows are requested.

        Raises: UsageError for invalid events, before anything runs; SourceError for files.

        >>> rules = cep.load("rules")
        >>> alerts = rules.match("payments.parquet")
        >>> alerts.table.num_rows
        44
        """
        written, period = split_forms(forms)
        terms = Terms(cores or processors_count(), ahead_ms=_limit_ms(ahead_max), period=period)
        naming = Naming(columns, tz, written)
        if is_spark(events):
            if forms.get("strict"):
                raise UsageError(
                    "nothing of a Spark DataFrame is read yet, so `strict` cannot hold; count the records of "
                    "`set_aside(events)`"
                )
            spark_alerts: Alerts = match_spark(self._given, events, naming, terms, partitions)
            return spark_alerts
        source = open_source(events, naming)
        outcome = replay(self._given, source.pieces, terms)
        warn_of_replay(outcome.replayed, forms)
        return Alerts(self._given, outcome, replace(source.within(period), ahead_ms=terms.ahead_ms))

    def match_stream(
        self, events: Any, *, control: Any = None, folder: str | Path | None = None,
        columns: Mapping[str, str] | None = None, tz: str | None = None, metrics: str = "cep",
        **terms: Unpack[StreamTerms],
    ) -> Any:  # fmt: skip
        """Match a streaming Spark DataFrame: return a streaming DataFrame of its alerts.

        It is `cep live` as a part of your query, with your session, sources, sinks and checkpoint. `terms` are its
        settings: `lateness`, `order`, `dedup`, `ahead_max`, `keys`, `key_groups`, `levels`, `pages`. `columns`, `tz`,
        `fixed`, `minor`, `time_unit` and `time_form` are as in `match`. The counters of a micro-batch are in
        `query.lastProgress.observedMetrics[metrics]`.

        With `control`, a stream of control records, rules change while the query runs. It then needs a `folder` that
        all machines see. Without it, the rules never change, and a checkpoint continues only with the same rules.

        Raises: UsageError for an impossible request, before anything runs.
        """
        if not is_spark(events):
            raise UsageError("`match_stream` takes a streaming DataFrame of Spark; `match` takes any other frame")
        if "strict" in terms:
            raise UsageError(
                "a stream has no end at which `strict` could hold: send the records of `set_aside(events)` to a query "
                "of their own, or set an alarm on the counters of rejected records in `observedMetrics`"
            )
        forms, others = forms_of(terms)
        return match_stream_spark(self._given, events, control, folder, Naming(columns, tz, forms), others, metrics)

    def set_aside(
        self, events: Any, *, columns: Mapping[str, str] | None = None, tz: str | None = None,
        ahead_max: str = "1 min", **forms: Unpack[Forms],
    ) -> Any:  # fmt: skip
        """Return the records of a Spark DataFrame that `match` rejects, as a DataFrame of JSON texts.

        The result for a stream is a stream: start a query of its own. An event more than `ahead_max` later than now is
        rejected. A reused id is not, as no ids are kept. Other frames: `match(…).set_aside`. Raises: UsageError.
        """
        if not is_spark(events):
            raise UsageError("only a Spark DataFrame is asked apart; of another frame, see `match(…).set_aside`")
        terms = Terms(ahead_ms=_limit_ms(ahead_max), period=Period(dedup_ms=0))  # 0: no ids are kept
        return aside_spark(self._given, events, Naming(columns, tz, forms), terms)

    def why_not(
        self, rule_id: str, key: str | int | Sequence[str | int], events: Any, *, at: str | None = None,
        columns: Mapping[str, str] | None = None, tz: str | None = None, **forms: Unpack[HistoryForms],
    ) -> Why:  # fmt: skip
        """Say why a rule gives no alert for a key, around the time `at` if that is given.

        A key of several fields is a list of its values. `columns`, `tz`, `since`, `until`, `dedup` and how values are
        written are as in `match`. Raises: UsageError, SourceError.
        """
        written, period = split_forms(forms)
        source = open_source(events, Naming(columns, tz, written)).within(period)
        values = list(map(str, [key] if isinstance(key, str | int) else key))
        answer = explain_not(self._given, rule_id, values, source, at)
        warn_of(answer.rejections, forms)
        return answer

    def diff(
        self, other: Rules, events: Any, *, columns: Mapping[str, str] | None = None, tz: str | None = None,
        cores: int | None = None, **forms: Unpack[ReplayForms],
    ) -> Difference:  # fmt: skip
        """Compare the findings of these rules with the findings of earlier rules. All matches count, including
        suppressed alerts.

        `columns`, `tz`, `since`, `until`, `to_the_end`, `dedup` and the forms of values are as in `match`. Raises:
        UsageError, SourceError.
        """
        value_forms, period = split_forms(forms)
        terms = Terms(cores or processors_count(), period=Period(until_ms=period.until_ms))  # open windows end then
        source = open_source(events, Naming(columns, tz, value_forms)).within(period)  # without later events
        rule_sets = (other._given, self._given)
        before, after = (matches(rules, source.pieces, terms) for rules in rule_sets)
        warn_of_replay(after, forms)
        return difference_of(before.alerts, after.alerts, source.to_frame)

    def backtest(self, events: Any, labels: Any, **given: Unpack[Measuring]) -> Quality:
        """Measure the findings of each rule by labels, as `cep backtest` does: precision and recall with intervals,
        money, lead times.

        `labels` is a column of the events, the path of a file, or a frame. `label_words` says what their words mean,
        like `{"review": "honest", "*": "fraud"}`. With `allow_label` rules may read the column of the labels. Labelled
        events of a key are one fraud if they are at most so far apart as `episodes` says, like `"1d"` or
        `"card_id:12h"`.

        Other keyword arguments: `amount`, the field of money; `as_of`, the time at which labels count as reported;
        `maturity`, the age at which an event without a report counts as honest, like `"30 d"`; and `columns`, `tz`,
        `cores`, `since`, `until`, `to_the_end`, `dedup` and the forms of values, as in `match`. Raises: UsageError,
        SourceError.
        """
        source, terms = source_and_terms(events, given)
        labels_of, console = partial(_labels, source, labels, terms), Terminal(quiet=True)
        deployment = self._given.deployment
        measured = measure(deployment, source.pieces, labels_of(deployment.schema), terms, console)
        warn_of_replay(measured.history.replayed, given)
        _warn_of_labels(measured)
        replays = Replays(self._one_rule, source.pieces, labels_of, terms, console)
        return Quality(measured, source.pieces, partial(replay_for_charts, replays))

    def suggest(
        self, events: Any, labels: Any, key: str, *, steps: int = 3, count: int = 5, precision: float = 0.8,
        exclude: Sequence[str] = (), use: Sequence[str] = (), **given: Unpack[Measuring],
    ) -> Suggested:  # fmt: skip
        """Find sequences of a key that labelled frauds have and other events lack, as `cep rules suggest` does.

        `text` of the result is a pattern file with tests. It is "" if no sequence is precise enough on later events.
        `steps` is the maximum length of a sequence, `count` the maximum number of patterns. No condition reads a field
        of `exclude`. Fields of `use` are read although they are left out by default. Hours and weekdays are in the zone
        `tz`. Other arguments: see `backtest`. Raises: UsageError, SourceError.
        """
        source, terms = source_and_terms(events, given)
        terms = replace(terms, episode_gap_ms=0)  # each labelled event is a fraud of its own
        check_wanted(search := Wanted(steps, count, precision, tuple(exclude), tuple(use), given.get("tz") or "UTC"))
        schema = self._given.deployment.schema
        labelled = _labels(source, labels, terms, schema)
        search = replace(search, label_fields=labelled.fields)
        left_out = left_out_fields(schema, key, search)  # fields that no condition may read
        fields = [*key_fields(key, fields_of(schema), schema), *(f for f in fields_of(schema) if f not in left_out)]
        measured = measure(self._given.deployment, source.pieces, labelled, terms, Terminal(quiet=True), fields)
        warn_of_replay(measured.history.replayed, given)
        _warn_of_labels(measured)
        detected_now = np.asarray(measured.judged.has_detected.any(axis=0))  # the frauds that present rules find
        events, frauds = measured.history.events, measured.labelled
        return suggest(events, frauds, source.pieces, key, search, detected_now, measured.labelled_at)

    def tune(
        self, rule_id: str, events: Any, labels: Any, *, objective: Objective = "f1",
        tries: Mapping[str, str] | None = None, budget: float | None = None, review_cost: float = 0.0,
        gap: str | None = None, **given: Unpack[Measuring],
    ) -> Tuned:  # fmt: skip
        """Find the best parameters of a rule, as `cep rules tune` does.

        `proposed` of the result is the present setting, unless another setting is better on the last part of the time,
        which the search does not use; see `outcome`.

        `tries` has the values to try, by parameter: `{"large": "100..900/17"}` means 17 values from 100 to 900.
        `budget` is the most alerts a day, `review_cost` the cost of an alert. `gap` is the time between two parts of
        the history, like `2 d`. See `backtest` for the rest. Nothing is written. Raises: UsageError, SourceError.
        """
        source, terms = source_and_terms(events, given)
        rule = self._one_rule(rule_id)
        tries = {name: str(values) for name, values in (tries or {}).items()}  # a number is one value
        axes = axes_of(rule.pattern, rule.record.params, tries)  # parameters with values to try
        gap_ms = rule.gap_ms if gap is None else length_ms("gap", gap)
        console = Terminal(quiet=True)
        labelled = _labels(source, labels, terms, rule.deployment.schema)
        measured = measure(rule.deployment, source.pieces, labelled, terms, console)
        warn_of_replay(measured.history.replayed, given)
        _warn_of_labels(measured)
        # The search uses the first part of the time, the choice the second; the third tests it. A gap separates them.
        parts = parts_of_time(measured.history.events, measured.labelled, gap_ms, measured.labelled_at)
        replayer = Replayer(rule.record, rule.lists, source.pieces, measured.labelled, parts, terms.cores, console)
        skipped = skipped_params(rule.pattern, rule.record.params, axes, tries)
        return tune(replayer, rule.pattern, rule.bound, axes, Aim(objective, budget, review_cost), skipped)

    def _one_rule(self, rule_id: str) -> OneRule:
        rules = self._given
        lists = [each for each in rules.records if isinstance(each, ListRecord)]
        return one_rule_of(rules.newest(rule_id), (lists, rules.lists))

    def __getitem__(self, rule_id: str) -> Rule:
        """Return the newest version of a rule. Raises: KeyError with the reason why it is not in force."""
        versions = self._given.versions(rule_id)
        if versions:
            return Rule(self._given, versions[-1])
        try:
            reason = self._given.reason_against(rule_id)
        except UsageError as error:
            reason = str(error)
        raise KeyError(reason)

    def __iter__(self) -> Iterator[Rule]:
        """Return every version in force, in the order in which alerts of one event come out."""
        return (Rule(self._given, rule) for rule in self._given.deployment.rulebook.deployed())

    def __len__(self) -> int:
        return len(self._given.deployment.rulebook.deployed())

    def __repr__(self) -> str:
        return "\n".join([*(repr(rule) for rule in self), *self.problems])


def _limit_ms(text: str) -> int | None:
    """Read how far ahead of the clock an event may be dated; None for any time. Raises: UsageError."""
    return None if text == OFF else length_ms("ahead_max", text)


def _warn_of_labels(measured: Measured) -> None:
    for line in measured.warnings:
        warnings.warn(line, UserWarning, stacklevel=3)


def _labels(source: Source, labels: Any, terms: MeasureTerms, schema: Schema) -> Labels:
    """Read labels: a frame, the path of a file, or a column of the events. Raises: UsageError, SourceError."""
    if not isinstance(labels, str | Path):
        read = labels_of_table(
            texts_for_mixed(open_frame(labels).whole()), schema, "the frame of labels", terms.label_words
        )
    elif Path(labels).is_file():
        read = read_labels(str(labels), Path(), schema, terms.label_words)
    else:
        read = source.labels(schema, str(labels), terms.label_words)
    return replace(read, views=source.views(schema))


def load(rules: str | Path, *, control: str | Path | None = None) -> Rules:
    """Load rules: a folder of rule files, or one pattern file, in which each pattern is a rule. `rules@HEAD~1` is the
    folder in a git commit.

    `control` has control records that came after the rules, as for `cep replay --control`. Invalid ones are left out
    with a warning. Raises: UsageError if no rule is in force.

    >>> rules = cep.load("rules")
    >>> sorted(rule.id for rule in rules)
    ['card_testing', 'dormant_then_large', 'impossible_travel', 'rising_amounts', 'small_then_large']
    """
    path = Path(rules)
    directory, separator, commit = str(rules).rpartition("@")
    control_path = None if control is None else Path(control)
    if separator and not path.exists():
        with folder_at(Path(directory), commit) as folder:
            if folder is None:
                raise UsageError(f"{rules}: there is no commit {commit} of a git repository that has {directory}")
            return _in_force(replace(GivenRules.read(folder, control_path), display_name=str(rules)))
    if path.suffix == ".cep":
        if control is not None:
            raise UsageError(f"control records change rules, and {path} has patterns; give the folder of the rules")
        return _of_patterns(load_files([path]), lambda: bundle_source(path), str(path))
    return _in_force(GivenRules.read(path, control_path))


def parse(text: str) -> Rules:
    """Read patterns from a text; each one is a rule. Raises: PatternError with all mistakes, each with its line.

    >>> rules = cep.parse('''
    ... event transaction { tx_id id  event_time time  card_id string  amount decimal(2) }
    ... pattern large by card_id { seq t  where t: transaction amount > 500.00  emit amount = t.amount }
    ... ''')
    >>> rules["large"].key
    ('card_id',)
    """
    return _of_patterns(load_text(text), lambda: text, "text")


def _of_patterns(checked: Checked, source: Any, shown: str) -> Rules:
    if not checked.ok:
        errors = [diagnostic for diagnostic in checked.diagnostics if diagnostic.is_error]
        raise _mistakes("patterns", errors, checked.sources)
    lists = given_lists(checked)
    wrong = [diagnostic for diagnostic in lists.diagnostics if diagnostic.is_error]
    if wrong:
        raise _mistakes("lists", wrong, checked.sources)
    return _in_force(GivenRules.of_patterns(source(), shown, tuple(lists.lists.values())))


def _mistakes(subject: str, mistakes: Sequence[Diagnostic], sources: Mapping[str, str]) -> PatternError:
    message = f"the {subject} have mistakes:\n{render_text(mistakes, sources)}"
    return PatternError(message, [to_json(mistake, sources) for mistake in mistakes])


def _in_force(loaded: GivenRules) -> Rules:
    rules = Rules(loaded)
    if not len(rules):
        raise UsageError("\n".join([f"{loaded.display_name} has no rule that can be in force", *rules.problems]))
    for problem in rules.problems:
        warnings.warn(problem, UserWarning, stacklevel=3)
    return rules
