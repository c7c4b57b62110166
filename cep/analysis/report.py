"""A measured history → a report: one page of HTML, and its numbers as JSON. The same input gives the same bytes.

    measured ─┬─ figures, overlap ────────┐
              ├─ budget.py: budget, weeks ├─▶ sections with tables and charts ─▶ page.py
              ├─ cases.py: the funnel     │
    a rule ───┼─ curves.py: thresholds    │
              ├─ near.py: near the line   │
              └─ timelines.py: examples ──┘

Nothing in it says when it was made, or how long that took.
Tested by: tests/analysis/test_report.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from cep import __version__
from cep.analysis import figure_charts as draw
from cep.analysis.backtest import Figures
from cep.analysis.budget import by_budget, by_week
from cep.analysis.cases import Funnel, walk_frauds
from cep.analysis.curves import PAIRED_ALERTS_TIMES, Curve, Pair, in_unit
from cep.analysis.measure import Measured, state_bytes
from cep.analysis.near import Line
from cep.analysis.page import Cell, charts, details, escape, page, paragraph, table
from cep.analysis.show import percent, time_text, with_interval
from cep.analysis.timelines import Timeline, alert_timelines, missed_timelines
from cep.base.schema import Schema
from cep.report.plan_text import size_text
from cep.rulebook.compare import compare
from cep.sources.pieces import Pieces

_HASH_CHARS = 12
_STOPPED_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Report:
    """The page, and its numbers as JSON."""

    html: str
    numbers: bytes


@dataclass(frozen=True, slots=True)
class Parts:
    """All that a report shows, computed once for the page and for the JSON."""

    measured: Measured
    against: Measured | None
    curves: Sequence[Curve]
    pairs: Sequence[Pair]
    lines: Sequence[Line]
    budget: Sequence[Mapping[str, Any]]
    weeks: Sequence[Mapping[str, Any]]
    funnels: Sequence[Funnel]
    alerts: Sequence[Timeline]
    misses: Sequence[Timeline]
    review_cost: float


def report(
    measured: Measured, pieces_of: Callable[[Schema], Pieces], against: Measured | None = None,
    review_cost: float = 0.0, curves: Sequence[Curve] = (),
    pairs: Sequence[Pair] = (), lines: Sequence[Line] = (),
) -> Report:  # fmt: skip
    """Make the report. `pieces_of` reads the events again; `curves`, `pairs` and `lines` are of a rule that is to be
    set anew.

    Raises: UsageError without the extra `charts`.
    """
    judged, marks = measured.judged, measured.marks
    funnels, endings = walk_frauds(measured, pieces_of)
    parts = Parts(
        measured,
        against,
        curves,
        pairs,
        lines,
        by_budget(judged, marks, measured.figures.about["days"], review_cost),
        by_week(judged, marks, measured.history.events, measured.amount),
        funnels,
        alert_timelines(measured, pieces_of),
        missed_timelines(measured, pieces_of, endings),
        review_cost,
    )
    return Report(_page(parts), _numbers(parts))


def _numbers(parts: Parts) -> bytes:
    """Return the numbers of the page. Examples are not among them: they are events."""
    data = {
        **parts.measured.figures.to_json(),
        "against": None if parts.against is None else parts.against.figures.to_json(),
        "budget": [{**row, "precision": asdict(row["precision"]), "fraud_recall": asdict(row["fraud_recall"])}
                   for row in parts.budget],
        "thresholds": [asdict(curve) for curve in parts.curves],
        "threshold_pairs": [asdict(pair) for pair in parts.pairs],
        "near_thresholds": [
            {"rule": line.rule, "param": line.param, "unit": line.unit, "present": line.present,
             "further": line.further, "intervals": [asdict(interval) for interval in line.intervals]}
            for line in parts.lines
        ],
        "weeks": parts.weeks,
        "funnel": [asdict(funnel) for funnel in parts.funnels],
        "state_bytes_of_a_key": state_bytes(parts.measured),
    }  # fmt: skip
    return orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _page(parts: Parts) -> str:
    figures = parts.measured.figures
    names = draw.most_alerted(figures)
    sections = [
        ("matched", "What was matched", _matched(parts.measured)),
        ("days", "Alerts by day", _days(parts, names)),
        ("rules", "Rules", _rules(parts)),
        ("budget", "Alert budget", _budget(parts)),
        ("overlap", "What each rule adds", _overlap(parts)),
        ("funnel", "How far frauds came", _funnel(parts, names)),
        ("drift", "Week by week", charts(draw.weeks(parts.weeks, names))),
        ("alerts", "Alerts, some of each kind", _timelines(parts.alerts)),
        ("misses", "Frauds that no rule finds", _timelines(parts.misses)),
    ]
    if parts.against is not None:
        sections.insert(3, ("against", "Beside the other rules", _against(parts.measured, parts.against)))
    if parts.curves:
        at = next(number for number, section in enumerate(sections) if section[0] == "overlap")
        sections.insert(at, ("thresholds", "Thresholds", _thresholds(parts.curves, parts.pairs)))
        sections.insert(at + 1, ("near", "Just above and just below the line", _near(parts.lines)))
    title = f"{len(figures.rules)} rules over {figures.about['events']:,} events"
    return page(title, sections)


def _matched(measured: Measured) -> str:
    about = measured.figures.about
    facts: list[tuple[str, Cell]] = [
        ("events", f"{about['events']:,}"),
        ("from", about["from"]),
        ("to", about["to"]),
        ("days", about["days"]),
        ("labels as of", about["as_of"]),
        ("an event is mature after", time_text(about["maturity_seconds"])),
        ("frauds", f"{about['frauds']:,}"),
        ("events of frauds", f"{about['fraud_events']:,}"),
        ("share of fraud among events", percent(about["base_rate"])),
        ("money of frauds", f"{about['fraud_money']:,.2f}"),
        ("labels that are of no event", f"{about['labels_without_event']:,}"),
        ("labels reported after the date", f"{about['labels_reported_later']:,}"),
        ("records set aside", f"{about['records_set_aside']:,}"),
        ("cep", __version__),
    ]
    rules = [(each["rule"], each["version"], each["status"], each["content_hash"][:_HASH_CHARS])
             for each in about["rules"]]  # fmt: skip
    kinds = sorted(about["frauds_by_kind"].items(), key=lambda pair: (-pair[1], pair[0]))
    shown = table(("kind of fraud", "frauds"), [(kind or "not said", f"{n:,}") for kind, n in kinds])
    return (
        table(("of the history", ""), facts)
        + "<h3>Rules in force</h3>"
        + table(("rule", "version", "status", "content"), rules)
        + ("<h3>Kinds of fraud</h3>" + shown if len(kinds) > 1 else "")
    )


def _days(parts: Parts, names: Sequence[str]) -> str:
    text = (
        "An alert is right if it binds an event of a known fraud. It is immature if it is not, and its events are too "
        "recent for anybody to know; then it counts neither way."
    )
    more = len(parts.measured.figures.rules) - len(names)
    note = paragraph(f"{more} rules with fewer alerts are not drawn.", is_note=True) if more > 0 else ""
    return paragraph(text) + charts(draw.alerts_by_day(parts.measured.figures)) + note


_COLUMNS: dict[str, Callable[[Figures], Cell]] = {
    "rule": lambda each: each.rule,
    "status": lambda each: each.status,
    "alerts": lambda each: f"{each.alerts:,}",
    "a day": lambda each: f"{each.alerts_per_day:,.1f}",
    "keys": lambda each: f"{each.keys:,}",
    "precision": lambda each: with_interval(each.precision),
    "immature": lambda each: f"{each.immature:,}",
    "recall of frauds": lambda each: with_interval(each.fraud_recall),
    "of events": lambda each: with_interval(each.event_recall),
    "of keys": lambda each: None if each.key_recall is None else with_interval(each.key_recall),
    "lift": lambda each: None if each.lift is None else f"{each.lift:,.1f}",
    "money found": lambda each: f"{each.money_found:,.2f}",
    "money missed": lambda each: f"{each.money_missed:,.2f}",
    "repeats": lambda each: percent(each.repeat_rate),
    "first event to alert": lambda each: time_text(each.seconds_to_alert),
    "alert to last event": lambda each: time_text(each.seconds_ahead),
    "run steps an event": lambda each: None if each.steps_per_event is None else f"{each.steps_per_event:.3f}",
}


def _rules(parts: Parts) -> str:
    figures, sizes = parts.measured.figures, state_bytes(parts.measured)
    every = (*figures.rules, figures.together)
    kinds = sorted(figures.together.recall_by_kind)
    by_kind = ""
    if len(kinds) > 1:
        rows = [(each.rule, *(with_interval(each.recall_by_kind[kind]) for kind in kinds)) for each in every]
        by_kind = "<h3>Recall of frauds by kind</h3>" + table(("rule", *(kind or "not said" for kind in kinds)), rows)
    worth: list[list[Cell]] = [
        [*(column(each) for column in _COLUMNS.values()), size_text(sizes[each.rule]) if each.rule in sizes else None]
        for each in every
    ]  # fmt: skip
    note = (
        "Intervals are Wilson's, for 95 %. Times are medians. Repeats are alerts that are not the first of their key. "
        "State is that of a key with a hundred events in the window."
    )
    return (
        table((*_COLUMNS, "state of a key"), worth)
        + paragraph(note, is_note=True)
        + charts(draw.rule_intervals(figures))
        + by_kind
    )


def _budget(parts: Parts) -> str:
    text = "Of each day's alerts those with the highest score come first, and of equal ones the earlier."
    rows = [
        (row["alerts_a_day"], f"{row['alerts']:,}", with_interval(row["precision"]), with_interval(row["fraud_recall"]),
         f"{row['money_found']:,.2f}", f"{row['money_less_reviews']:,.2f}")
        for row in parts.budget
    ]  # fmt: skip
    cost = f"money less {parts.review_cost:,.2f} a review" if parts.review_cost else "money less reviews (at no cost)"
    heads = ("alerts a day, at most", "alerts", "precision", "recall of frauds", "money found", cost)
    return paragraph(text) + charts(draw.budget_curve(parts.budget)) + table(heads, rows)


def _thresholds(curves: Sequence[Curve], pairs: Sequence[Pair]) -> str:
    text = (
        "What a rule would have found with another value of one parameter, the others as they are. Each value was "
        "replayed over the whole history. A dashed line is the present value."
    )
    heads = ("value", "alerts", "a day", "precision", "recall of frauds", "money found")
    tables = []
    for curve in curves:
        rows = [
            (f"{point.value:,.12g}" + (" (present)" if point.value == curve.present else ""), f"{point.alerts:,}",
             f"{point.alerts_per_day:,.1f}", with_interval(point.precision), with_interval(point.fraud_recall),
             f"{point.money_found:,.2f}")
            for point in curve.points
        ]  # fmt: skip
        aside = ", ".join(f"{value:,.12g}" for value in curve.left_out)
        note = paragraph(f"Values with which the rule cannot be in force: {aside}.", is_note=True) if aside else ""
        tables.append(details(f"{curve.rule}: {in_unit(curve.param, curve.unit)}", note + table(heads, rows)))
    return (
        paragraph(text) + charts(draw.threshold_curves(curves)) + "".join(tables)
        + ("<h3>Two parameters together</h3>" + _pairs(pairs) if pairs else "")
    )  # fmt: skip


def _pairs(pairs: Sequence[Pair]) -> str:
    text = (
        "The darker, the better precision and recall together (F1). A ring is on the front: no other setting is better "
        "in precision or recall and as good in the other. The cross is the present setting. Values with more than "
        f"{PAIRED_ALERTS_TIMES} times the present alerts are left out."
    )
    tables = []
    for pair in pairs:
        front = [cell for cell in pair.cells if cell.is_on_front]
        rows = [
            (*(f"{value:,.12g}" for value in cell.values), f"{cell.alerts:,}", with_interval(cell.precision),
             with_interval(cell.fraud_recall), f"{cell.money_found:,.2f}")
            for cell in front
        ]  # fmt: skip
        heads = (*map(in_unit, pair.params, pair.units), "alerts", "precision", "recall of frauds", "money found")
        tables.append(details(f"{pair.rule}: the front of {' and '.join(pair.params)}", table(heads, rows)))
    return paragraph(text) + charts(draw.threshold_pairs(pairs)) + "".join(tables)


def _near(lines: Sequence[Line]) -> str:
    text = (
        "Each bar has the alerts that a value would just let through, and the next tighter one not. Those on one side "
        "of the dashed line are alerts of the rule; those on the other side a looser value would add. Two alerts are "
        "the same if they bind the same events."
    )
    tables = []
    for line in lines:
        heads = ("from", "to", "the rule's", "alerts", "right", "wrong", "immature")
        rows = [
            (f"{each.looser:,.12g}", f"{each.tighter:,.12g}", "yes" if each.is_inside else "no", f"{each.alerts:,}",
             f"{each.right:,}", f"{each.wrong:,}", f"{each.immature:,}")
            for each in line.intervals
        ]  # fmt: skip
        further = paragraph(f"{line.further:,} alerts are further inside than all of these.", is_note=True)
        shown = [
            ("just inside" if each.is_inside else "just outside", each.verdict, each.key, each.time,
             ", ".join(each.event_ids))
            for each in line.samples
        ]  # fmt: skip
        samples = table(("side", "verdict", "key", "time (UTC)", "events, the last ones"), shown, (4,))
        name = in_unit(line.param, line.unit)
        tables.append(details(f"{line.rule}: {name}, with samples", table(heads, rows) + further + samples))
    note = paragraph("The rule has no parameter that a comparison grows with.", is_note=True) if not lines else ""
    return paragraph(text) + note + charts(draw.near_lines(lines)) + "".join(tables)


def _overlap(parts: Parts) -> str:
    figures = parts.measured.figures
    text = (
        "A rule adds the frauds that no other rule finds. Its share counts each fraud that it finds, divided among the "
        "rules that find it: what it adds, averaged over all orders in which rules could have come (Shapley's value)."
    )
    rows = [(each.rule, f"{each.fraud_recall.part:,}", f"{each.adds:,}", f"{each.share:,.1f}", f"{each.wrong:,}")
            for each in figures.rules]  # fmt: skip
    heads = ("rule", "frauds found", "it alone", "its share", "wrong alerts")
    sets = [(" + ".join(row["rules"]) or "no rule", f"{row['frauds']:,}") for row in figures.overlap]
    return (
        paragraph(text) + table(heads, rows) + charts(draw.overlap(figures))
        + details("All sets of rules", table(("found by exactly", "frauds"), sets))
    )  # fmt: skip


def _funnel(parts: Parts, names: Sequence[str]) -> str:
    walked = max((funnel.walked for funnel in parts.funnels), default=0)
    text = (
        f"{walked:,} frauds, evenly over all, were walked through each pattern. A bar has those that came so far or "
        "further."
    )
    rows: list[tuple[Cell, ...]] = []
    for funnel in parts.funnels:
        if funnel.reason:
            rows.append((funnel.rule, f"not walked: {funnel.reason}", None))
        stopped = sorted(funnel.stopped.items(), key=lambda pair: (-pair[1], pair[0]))[:_STOPPED_SHOWN]
        rows += [(funnel.rule, condition, count) for condition, count in stopped]
        if funnel.skipped:
            rows.append((funnel.rule, "not walked: too many steps", funnel.skipped))
    return (
        paragraph(text) + charts(draw.funnels(parts.funnels, names)) + "<h3>What stopped them</h3>"
        + table(("rule", "the condition that did not hold, or the end", "frauds"), rows, (1,))
    )  # fmt: skip


def _against(measured: Measured, other: Measured) -> str:
    old = {each.rule: each for each in (*other.figures.rules, other.figures.together)}
    new = {each.rule: each for each in (*measured.figures.rules, measured.figures.together)}
    rows: list[tuple[Cell, ...]] = []
    for name in dict.fromkeys((*old, *new)):
        pair = old.get(name), new.get(name)
        rows.append((
            name,
            *(None if each is None else f"{each.alerts:,}" for each in pair),
            *(None if each is None else with_interval(each.precision) for each in pair),
            *(None if each is None else with_interval(each.fraud_recall) for each in pair),
            *(None if each is None else f"{each.money_found:,.2f}" for each in pair),
        ))  # fmt: skip
    changes = compare(other.history.replayed.alerts, measured.history.replayed.alerts)
    text = (
        f"Of the alerts {changes.kept_count:,} stay, {len(changes.gained):,} are gained and {len(changes.lost):,} are "
        "lost. The first of two columns is of the other rules."
    )
    heads = ("rule", "alerts, other", "alerts", "precision, other", "precision", "recall of frauds, other",
             "recall of frauds", "money found, other", "money found")  # fmt: skip
    return paragraph(text) + table(heads, rows)


def _timelines(given: Sequence[Timeline]) -> str:
    blocks = []
    heads = ("time (UTC)", "event", "type", "bound as", "fraud", "fields")
    for timeline in given:
        rows = [(line.time, line.event_id, line.event_type, line.variable or None, "yes" if line.is_fraud else None,
                 line.fields) for line in timeline.lines]  # fmt: skip
        classes = [" ".join(("fraud",) * line.is_fraud + ("bound",) * bool(line.variable)) for line in timeline.lines]
        notes = "".join(f"<p class='note'>{escape(note)}</p>" for note in timeline.notes)
        blocks.append(details(timeline.title, notes + table(heads, rows, (5,), classes)))
    return "".join(blocks) if blocks else paragraph("There are none.")
