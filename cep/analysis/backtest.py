"""A replay and its labels → figures by rule and for all rules together, the same for the same input; parts of its time.

    immature  the alert binds an event that is too recent for a report; it counts for neither side
    right     all its events are mature, and it binds one of a known fraud
    wrong     all its events are mature, and it binds none

A fraud is found if an alert binds one of its events. Intervals are Wilson's, for 95 %. Figures are of the alerts that
are sent, as `cep run` sends them with the same rules, and then of all matches.
Tested by: tests/analysis/test_backtest.py, tests/analysis/test_tune.py, tests/analysis/test_report.py
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.analysis.history import Events, History
from cep.analysis.labelled_events import LabelledEvents
from cep.base.errors import UsageError
from cep.base.limits import EVENT_TIME_MS_MAX, TIME_MS_MAX, TIME_MS_MIN
from cep.base.text import utc_text
from cep.columnar.batch import TEXT
from cep.columnar.decode import KeyDomain, route
from cep.columnar.texts import different_texts, encoded, rows_among
from cep.rulebook.suppression import Policies, suppress_alerts
from cep.step.rejections import set_aside_count

_Z = 1.959963984540054  # of the normal distribution 95 % lie within so many deviations
DAY_MS = 86_400_000
NEVER = np.iinfo(np.int64).max
_CASE_MS = DAY_MS  # alerts of a key that are at most so far apart are one case
ALL = "all rules"  # no rule has a name with a space
_COMBINATIONS_MAX = 30  # sets of rules that are listed in the overlap, those with the most frauds


@dataclass(frozen=True, slots=True)
class Ratio:
    """`part` of `whole`, with Wilson's interval; all None if `whole` is 0."""

    part: int
    whole: int
    value: float | None
    low: float | None
    high: float | None


def ratio(part: int, whole: int) -> Ratio:
    """Return a share with its 95 % interval (Wilson 1927)."""
    if not whole:
        return Ratio(part, whole, None, None, None)
    share, z_squared = part / whole, _Z * _Z
    middle = share + z_squared / (2 * whole)
    spread = _Z * sqrt(share * (1 - share) / whole + z_squared / (4 * whole * whole))
    width = 1 + z_squared / whole
    low, high = max(0.0, min(share, (middle - spread) / width)), min(1.0, max(share, (middle + spread) / width))
    return Ratio(part, whole, share, low, high)


@dataclass(frozen=True, slots=True)
class Figures:
    """The results of one rule in a backtest, or of all rules together.

    Alerts are `right` (they bind an event of a fraud), `wrong`, or `immature` (too recent to judge). Medians in
    seconds, None without a found fraud: `seconds_to_alert` from a fraud's first event to its first alert,
    `seconds_ahead` from its first alert to its last event. `lift`: the precision divided by the share of fraud among
    all mature events. `repeat_rate`: the share of alerts whose key has an earlier alert.

    `adds`: frauds that no other rule finds; None for all rules together. `share`: frauds, each divided among the rules
    that find it (Shapley's value). A case has the alerts of a key with at most a day between them; it is right if one
    alert is. `money_after_alert` is the part of `money_found` that comes with the first alert's event or later.
    """

    rule: str
    version: int | None
    status: str
    alerts: int
    alerts_per_day: float
    keys: int
    right: int
    wrong: int
    immature: int
    precision: Ratio
    key_precision: Ratio
    case_precision: Ratio
    event_recall: Ratio
    fraud_recall: Ratio
    key_recall: Ratio | None
    recall_by_kind: Mapping[str, Ratio]
    lift: float | None
    money_found: float
    money_after_alert: float
    money_missed: float
    repeat_rate: float | None
    seconds_to_alert: float | None
    seconds_ahead: float | None
    adds: int | None
    share: float


@dataclass(frozen=True, slots=True)
class Judged:
    """Alerts A and the frauds F that they find, in arrays. Rules R are in the order of `names`. Shapes: row int64[A],
    the alert's row in the replay's table; rule, detected_ms, score int64[A]; `key` of length A; key_number int64[A] is
    equal for equal keys of the same fields; is_right bool[A]: it binds an event of a fraud; is_immature bool[A]: it
    binds an event too recent to have its final label, so its verdict is open. Each bound event has its alert in
    `bound_event_alert` and its row among the events in `bound_event_row`. `first_alert_ms` int64[R, F] is when a rule
    found a fraud first, NEVER if it did not."""

    names: tuple[str, ...]
    row: NDArray[np.int64]
    rule: NDArray[np.int64]
    key: pa.Array
    key_number: NDArray[np.int64]
    detected_ms: NDArray[np.int64]
    score: NDArray[np.int64]
    is_right: NDArray[np.bool_]
    is_immature: NDArray[np.bool_]
    bound_event_alert: NDArray[np.int64]
    bound_event_row: NDArray[np.int64]
    first_alert_ms: NDArray[np.int64]

    @property
    def has_detected(self) -> NDArray[np.bool_]:
        """bool[R, F]: the rule finds the fraud."""
        hits: NDArray[np.bool_] = self.first_alert_ms != NEVER
        return hits


@dataclass(frozen=True, slots=True)
class Matches:
    """The figures of all matches: of shadow versions, and of alerts that rules suppress, too."""

    together: Figures
    rules: tuple[Figures, ...]


@dataclass(frozen=True, slots=True)
class Backtest:
    """Figures for sent alerts, of all rules `together` as if they were one, and of each rule. `all_matches` also counts
    alerts that suppression or a shadow version (which only records) keeps back. `overlap` counts the frauds that each
    set of rules finds, `days` the right, wrong and immature (too recent to judge) alerts by day and rule."""

    about: Mapping[str, Any]
    together: Figures
    rules: tuple[Figures, ...]
    all_matches: Matches
    overlap: tuple[Mapping[str, Any], ...]
    days: tuple[Mapping[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values: the same for the same input."""
        return asdict(self)


def alert_times_ms(history: History, labelled: LabelledEvents) -> NDArray[np.int64]:
    """Return the time of each alert of the history: int64[A]. A window that closes with the history ends with it."""
    at_ms = np.asarray(history.replayed.alerts["detected_at"].combine_chunks().cast(pa.int64()), np.int64)
    is_whole = labelled.as_of_ms >= history.events.time_ms.max(initial=TIME_MS_MIN)
    is_closed = history.replayed.watermark_ms == TIME_MS_MAX
    return np.minimum(at_ms, labelled.as_of_ms) if is_closed and is_whole else at_ms


@dataclass(frozen=True, slots=True)
class Detections:
    """The alerts of a replayed history before labels judge them: arrays with one value for each alert. `rule` is an
    index of `names`; equal keys of the same fields have the same `key_number`. Each bound event has its alert in
    `bound_event_alert` and its row in `bound_event_row`. `reason` is why an alert is not sent, "" if it is sent."""

    names: tuple[str, ...]
    rule: NDArray[np.int64]
    key: pa.Array
    key_number: NDArray[np.int64]
    score: NDArray[np.int64]
    bound_event_alert: NDArray[np.int64]
    bound_event_row: NDArray[np.int64]
    reason: NDArray[np.object_]

    @property
    def is_sent(self) -> NDArray[np.bool_]:
        sent: NDArray[np.bool_] = self.reason == ""
        return sent


def detections(history: History) -> Detections:
    """Collect the alerts of a replayed history as arrays, with the reason of each alert that suppression keeps back."""
    book, alerts = history.deployment.rulebook, history.replayed.alerts
    domains = {rule.rule_id: rule.pattern.key for rule in book.deployed() if rule.pattern.produces is None}
    names = tuple(sorted(domains))  # other rules have no alerts
    rule = np.asarray(
        pc.index_in(alerts["rule_id"].combine_chunks().cast(pa.string()), value_set=pa.array(names, pa.string()))
    )
    rule = rule.astype(np.int64)
    kinds = sorted(set(domains.values()))  # a domain is the fields of a key
    domain = np.array([kinds.index(domains[name]) for name in names], np.int64)[rule]
    key = alerts["key"].combine_chunks()
    code = np.asarray(encoded(key.cast(TEXT)).indices).astype(np.int64)
    key_number = domain * (int(code.max(initial=0)) + 1) + code  # equal texts in other fields are other keys
    event_alert, event_row = history.bound(alerts)
    suppression = suppress_alerts(alerts, Policies.of(book), {})
    reason = np.full(alerts.num_rows, "", object)
    reason_index = rows_among(alerts["alert_id"].combine_chunks().cast(TEXT),  # -1: not suppressed
                    suppression.suppressed["alert_id"].combine_chunks().cast(TEXT))  # fmt: skip
    reason[reason_index >= 0] = np.array([*suppression.reasons, ""], object)[reason_index[reason_index >= 0]]
    score = np.asarray(alerts["score"].combine_chunks(), np.int64)
    return Detections(
        names, rule, key, key_number, score, event_alert, event_row, reason
    )  # fmt: skip


def judge(
    history: History, labelled: LabelledEvents, all_alerts: Detections | None = None, *, is_sent_only: bool = False
) -> Judged:  # fmt: skip
    """Judge each alert up to `labelled.as_of_ms`, the date of the labels, and find when rules first detect a fraud. An
    alert is right if it binds an event of a fraud, but immature if it binds one too recent for a final label."""
    all_alerts = detections(history) if all_alerts is None else all_alerts
    at_ms = alert_times_ms(history, labelled)
    is_judged = at_ms <= labelled.as_of_ms
    if is_sent_only:  # without alerts that suppression or a shadow version keeps back
        is_judged &= all_alerts.is_sent
    is_of_judged = is_judged[all_alerts.bound_event_alert]
    bound_alert = (np.cumsum(is_judged) - 1)[all_alerts.bound_event_alert[is_of_judged]]  # among the judged
    bound_row = all_alerts.bound_event_row[is_of_judged]
    rule, detected_ms, count = all_alerts.rule[is_judged], at_ms[is_judged], int(is_judged.sum())
    is_right, is_immature = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    hits = np.flatnonzero(labelled.fraud[bound_row] >= 0)  # the bound events that are part of a fraud
    is_right[bound_alert[hits]] = True
    is_immature[bound_alert[~labelled.is_mature[bound_row]]] = True
    first_ms = np.full((len(all_alerts.names), labelled.frauds_count), NEVER, np.int64)  # by rule and fraud
    np.minimum.at(first_ms, (rule[bound_alert[hits]], labelled.fraud[bound_row[hits]]), detected_ms[bound_alert[hits]])
    return Judged(
        all_alerts.names, np.flatnonzero(is_judged), rule, all_alerts.key.filter(pa.array(is_judged)),
        all_alerts.key_number[is_judged], detected_ms, all_alerts.score[is_judged], is_right & ~is_immature,
        is_immature, bound_alert, bound_row, first_ms,
    )  # fmt: skip


def backtest(
    history: History, labelled: LabelledEvents, all_alerts: Detections, sent_alerts: Judged, all_matches: Judged
) -> Backtest:
    """Compute the figures of each rule and of all rules together, for `sent_alerts` and for `all_matches`, which also
    has alerts that suppression or a shadow version (it only records) keeps back. `all_alerts` are not judged yet."""
    all_rules = np.arange(len(sent_alerts.names))
    days = days_count(history.events, labelled)
    fraud_count = labelled.records_count(labelled.fraud >= 0)  # -1: an event without a fraud
    mature_count = labelled.records_count(labelled.is_mature)
    days_and_fraud_share = (days, fraud_count / max(1, mature_count))

    def figures_of(judged_alerts: Judged) -> Matches:
        return Matches(
            _figures(history, labelled, judged_alerts, (all_rules, ALL), days_and_fraud_share),
            tuple(
                _figures(history, labelled, judged_alerts, (np.array([rule]), name), days_and_fraud_share)
                for rule, name in enumerate(judged_alerts.names)
            ),
        )

    sent = figures_of(sent_alerts)
    about = _header_facts(history, labelled, days, all_alerts)
    matches = sent if all_matches is sent_alerts else figures_of(all_matches)
    return Backtest(about, sent.together, sent.rules, matches, _overlap(sent_alerts), _by_day(sent_alerts))


def _header_facts(history: History, labelled: LabelledEvents, period: int, all_alerts: Detections) -> dict[str, Any]:
    """Return the facts about the events, the labels and the rules with which a report begins."""
    events = history.events
    has_arrived = _has_arrived(events, labelled)
    fraud_count, count = labelled.records_count(labelled.fraud >= 0), labelled.records_count(labelled.is_mature)
    reasons, suppressed = np.unique(all_alerts.reason[~all_alerts.is_sent].astype(str), return_counts=True)
    times = (int(events.time_ms.min()), int(events.time_ms.max())) if len(events) else None
    counters = history.replayed.counters
    return {
        "events": int(has_arrived.sum()),
        "from": None if times is None else utc_text(times[0]),
        "to": None if times is None else utc_text(min(times[1], labelled.as_of_ms)),
        "days": period,
        "as_of": utc_text(labelled.as_of_ms) if len(events) else None,
        "maturity_seconds": labelled.maturity_ms / 1_000,
        "frauds": labelled.frauds_count,
        "fraud_events": fraud_count,
        "fraud_money": float(labelled.amount.sum()),
        "frauds_by_kind": {kind: labelled.kind.count(kind) for kind in sorted(set(labelled.kind))},
        "base_rate": fraud_count / count if count else None,
        "labels_without_event": labelled.unmatched_count,
        "labels_reported_later": labelled.later_count,
        "fraud_events_immature": labelled.immature_count,
        "matches_not_sent": dict(zip(reasons.tolist(), suppressed.tolist(), strict=True)),
        "records_set_aside": set_aside_count(counters),
        "rules": [
            {"rule": rule.rule_id, "version": rule.version, "status": rule.status, "content_hash": rule.content_hash}
            for rule in sorted(history.deployment.rulebook.deployed(), key=lambda rule: (rule.rule_id, rule.version))
        ],
    }


def _figures(
    history: History, labelled: LabelledEvents, judged: Judged, numbers_and_name: tuple[NDArray[np.int64], str],
    days_and_fraud_share: tuple[int, float],
) -> Figures:  # fmt: skip
    """Return the figures of the rules with these numbers, taken together under this name. The days are of the history,
    the share is of frauds among its events."""
    numbers, name = numbers_and_name
    period, fraud_share = days_and_fraud_share
    mask = np.isin(judged.rule, numbers)
    alerts, right = int(mask.sum()), int(judged.is_right[mask].sum())
    immature = int(judged.is_immature[mask].sum())
    keys = len(np.unique(judged.key_number[mask]))
    precision = ratio(right, alerts - immature)
    is_fraud = labelled.fraud >= 0
    bound = judged.bound_event_row[mask[judged.bound_event_alert]]
    found_records, fraud_records = labelled.records_count(bound[is_fraud[bound]]), labelled.records_count(is_fraud)
    first_ms = judged.first_alert_ms[numbers].min(axis=0, initial=NEVER)
    is_detected = first_ms != NEVER
    by_others = np.delete(judged.has_detected, numbers, axis=0).any(axis=0)
    shares = judged.has_detected / np.maximum(judged.has_detected.sum(axis=0), 1)
    is_later = is_fraud.copy()
    is_later[is_fraud] = history.events.time_ms[is_fraud] >= first_ms[labelled.fraud[is_fraud]]
    kinds = np.array(labelled.kind, dtype=object)
    deployed = {rule.rule_id: rule for rule in history.deployment.rulebook.deployed()}
    rule = deployed.get(name)
    domains = {deployed[judged.names[number]].pattern.key for number in numbers}
    return Figures(
        rule=name,
        version=None if rule is None else rule.version,
        status="" if rule is None else rule.status,
        alerts=alerts,
        alerts_per_day=alerts / period if period else 0.0,
        keys=keys,
        right=right,
        wrong=alerts - right - immature,
        immature=immature,
        precision=precision,
        key_precision=_group_precision(judged, mask, judged.key_number[mask]),
        case_precision=_group_precision(judged, mask, _cases(judged, mask)),
        event_recall=ratio(found_records, fraud_records),
        fraud_recall=ratio(int(is_detected.sum()), labelled.frauds_count),
        key_recall=_key_recall(history.events, labelled, judged, mask, domains.pop()) if len(domains) == 1 else None,
        recall_by_kind={
            kind: ratio(int(is_detected[kinds == kind].sum()), int((kinds == kind).sum()))
            for kind in sorted(set(labelled.kind))
        },
        lift=precision.value / fraud_share if precision.value is not None and fraud_share else None,
        money_found=float(labelled.amount[is_detected].sum()),
        money_after_alert=float(labelled.money[is_later].sum()),
        money_missed=float(labelled.amount[~is_detected].sum()),
        repeat_rate=1 - keys / alerts if alerts else None,
        seconds_to_alert=_median_s(first_ms[is_detected] - labelled.first_ms[is_detected]),
        seconds_ahead=_median_s(labelled.last_ms[is_detected] - first_ms[is_detected]),
        adds=None if name == ALL else int((is_detected & ~by_others).sum()),
        share=float(shares[numbers].sum()),
    )


def _key_recall(
    events: Events, labelled: LabelledEvents, judged: Judged, mask: NDArray[np.bool_], domain: KeyDomain
) -> Ratio | None:
    """Return how many of the keys with a fraud have a right alert; None if the events were read without the key."""
    if not set(domain) <= events.columns.keys():
        return None
    decoded = events.taken(np.flatnonzero(labelled.fraud >= 0))
    fraud_keys = different_texts(route(decoded, domain, events.schema.columns())[0].key)
    right = different_texts(judged.key.filter(pa.array(mask & judged.is_right)))
    return ratio(int((rows_among(right, fraud_keys) >= 0).sum()), len(fraud_keys))


def _median_s(values_ms: NDArray[np.int64]) -> float | None:
    return float(np.median(values_ms)) / 1_000 if len(values_ms) else None


def _cases(judged: Judged, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the number of the case of each of these alerts."""
    key, time_ms = judged.key_number[mask], judged.detected_ms[mask]
    order = np.lexsort((time_ms, key))
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (np.diff(key[order]) != 0) | (np.diff(time_ms[order]) > _CASE_MS)
    case = np.empty(len(order), np.int64)
    case[order] = np.cumsum(begins)
    return case


def _group_precision(judged: Judged, mask: NDArray[np.bool_], group: NDArray[np.int64]) -> Ratio:
    """Return the groups with a right alert, of all groups without an immature one."""
    _, place = np.unique(group, return_inverse=True)
    right, immature = (np.bincount(place, weights=values[mask]) > 0 for values in (judged.is_right, judged.is_immature))
    return ratio(int((right & ~immature).sum()), int((~immature).sum()))


def _has_arrived(events: Events, labelled: LabelledEvents) -> NDArray[np.bool_]:
    has_arrived: NDArray[np.bool_] = events.time_ms <= labelled.as_of_ms
    return has_arrived


def days_count(events: Events, labelled: LabelledEvents) -> int:
    """Return how many days of the calendar, in UTC, have events: an old event alone does not lengthen a history."""
    return distinct_days(events.time_ms[_has_arrived(events, labelled)])


def distinct_days(time_ms: NDArray[np.int64]) -> int:
    """Count the days of the calendar, in UTC, that these times are in. Cost: one pass, no sort."""
    if not len(time_ms):
        return 0
    days = time_ms // DAY_MS
    has_event = np.zeros(int(days.max() - days.min()) + 1, np.bool_)
    has_event[days - days.min()] = True
    return int(has_event.sum())


def _overlap(judged: Judged) -> tuple[dict[str, Any], ...]:
    """Return for each set of rules how many frauds exactly these find, the largest first."""
    sets, counts = np.unique(judged.has_detected.T, axis=0, return_counts=True)
    rows: list[dict[str, Any]] = [
        {"rules": [judged.names[rule] for rule in np.flatnonzero(members)], "frauds": int(count)}
        for members, count in zip(sets, counts, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: (-row["frauds"], row["rules"]))[:_COMBINATIONS_MAX])


def _by_day(judged: Judged) -> tuple[dict[str, Any], ...]:
    """Count the right, wrong and immature (too recent to judge) alerts by day and rule; only days with alerts."""
    kind = np.where(judged.is_right, 0, np.where(judged.is_immature, 2, 1))
    table = np.stack([judged.detected_ms // DAY_MS, judged.rule, kind], axis=1)
    groups, counts = np.unique(table, axis=0, return_counts=True)
    days: dict[tuple[int, int], dict[str, Any]] = {}
    for (day, rule, kind_number), count in zip(groups.tolist(), counts.tolist(), strict=True):
        row = days.setdefault(
            (day, rule),
            {"day": utc_text(day * DAY_MS)[:10], "rule": judged.names[rule], "right": 0, "wrong": 0, "immature": 0},
        )
        row[("right", "wrong", "immature")[kind_number]] = count
    return tuple(days[day_and_rule] for day_and_rule in sorted(days))


def f1(precision: Ratio, recall: Ratio) -> float:
    """Return the harmonic mean of precision and recall, 0 if one is undefined or both are 0."""
    one, other = precision.value or 0.0, recall.value or 0.0
    return 2 * one * other / (one + other) if one + other else 0.0


def with_interval(share: Ratio) -> str:
    """Return a share with its interval."""
    return "–" if share.value is None else f"{share.value:.3f} ({share.low:.3f}–{share.high:.3f})"


def percent(value: float | None) -> str:
    """Return a share in percent, with as many digits as a small one needs."""
    return "–" if value is None else f"{value:.1%}" if value >= 0.1 else f"{value:.3%}"


def time_text(seconds: float | None) -> str:
    """Return a time in the unit that suits: `45 s`, `12.5 min`, `3.2 h`, `8.1 d`."""
    if seconds is None:
        return "–"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if abs(seconds) >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


_PART_NAMES = ("train", "validation", "test")
_SHARES = (0.6, 0.8)  # of the time, where the parts end


@dataclass(frozen=True, slots=True)
class TimePart:
    """One part of the history's time, [from_ms, until_ms): parameters are chosen on one part and judged on a later one.
    `labelled` has the events with the frauds that were known at its end, or for the test part at the date of the
    labels. `frauds` bool[F] are the ones that begin in the part. An alert belongs to the part of its detection. `days`
    is its length, or the days with events if fewer."""

    name: str
    from_ms: int
    until_ms: int
    frauds: NDArray[np.bool_]
    labelled: LabelledEvents
    days: float

    def has(self, time_ms: NDArray[np.int64]) -> NDArray[np.bool_]:
        inside: NDArray[np.bool_] = (time_ms >= self.from_ms) & (time_ms < self.until_ms)
        return inside

    def alert_fraud_pairs(self, judged: Judged) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return an alert and its fraud, int64[H] each, for each event of the part's frauds that its alerts bind."""
        fraud = self.labelled.fraud[judged.bound_event_row]  # of each bound event, -1 for none
        rows = np.flatnonzero((fraud >= 0) & self.has(judged.detected_ms)[judged.bound_event_alert])
        rows = rows[self.frauds[fraud[rows]]]
        return judged.bound_event_alert[rows], fraud[rows].astype(np.int64)

    @property
    def title(self) -> str:
        # Without events, or with a huge gap, a part is later than any time that can be written.
        first, last = (utc_text(min(time_ms, EVENT_TIME_MS_MAX))[:10] for time_ms in (self.from_ms, self.until_ms))
        return f"{self.name} ({first} to {last}, n = {int(self.frauds.sum())} frauds)"


def parts_of_time(
    events: Events, labelled: LabelledEvents, gap_ms: int, labelled_at: Callable[[int], LabelledEvents] | None = None
) -> tuple[TimePart, ...]:
    """Divide the time into train, validation and test. A gap before the second and the third keeps matches in one part.
    `labelled_at` returns the events with the frauds known at a time, for the first two: a later report could not have
    influenced a choice. Test only measures, so it has all of `labelled`; without `labelled_at` each part has."""
    times = events.time_ms[events.time_ms <= labelled.as_of_ms]
    first = int(times.min(initial=labelled.as_of_ms))
    last = int(times.max(initial=first)) + 1
    labelled_then = labelled_at or (lambda _: labelled)
    edges = [first, *(int(first + share * (last - first)) for share in _SHARES), last]
    parts = []
    for index, (name, (low, high)) in enumerate(zip(_PART_NAMES, pairwise(edges), strict=True)):
        begin = low + (gap_ms if index else 0)
        part_labelled = labelled if name == _PART_NAMES[-1] else labelled_then(high - 1)  # the last ms
        parts.append(_time_part((name, begin, max(begin, high)), times, part_labelled))
    return tuple(parts)


def _time_part(span: tuple[str, int, int], times: NDArray[np.int64], labelled: LabelledEvents) -> TimePart:
    name, low, high = span
    times = times[(times >= low) & (times < high)]
    days = min((high - low) / DAY_MS, distinct_days(times))
    return TimePart(name, low, high, (labelled.first_ms >= low) & (labelled.first_ms < high), labelled, float(days))


def whole_time(events: Events, labelled: LabelledEvents) -> TimePart:
    """Return all of the time as one part, with all frauds."""
    first = int(events.time_ms.min(initial=labelled.as_of_ms))
    part = _time_part(("all", first, labelled.as_of_ms + 1), events.time_ms, labelled)
    return replace(part, frauds=np.ones(labelled.frauds_count, np.bool_))


def check_frauds(parts: Sequence[TimePart]) -> None:
    """Refuse a cut whose parts cannot be compared. Raises: UsageError with the number of frauds of each part."""
    if not len(parts[0].labelled.fraud):
        raise UsageError("the history has no events, so no part of it has a fraud; give a longer history")
    empty = [part for part in parts if not part.frauds.any()]
    if empty:
        raise UsageError(
            f"no fraud was known in {empty[0].name} when it ended: {', '.join(part.title for part in parts)}; give a "
            "longer history, a shorter --gap or --maturity, or shorter --episodes"
        )
