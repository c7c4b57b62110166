"""A measured history → a report: one page of HTML, and its numbers as JSON. The same input gives the same bytes.

    measured ─┬─ figures, figure_charts.py ──────────────┐
              ├─ weeks.py: budget, weeks, fields         ├─▶ report.py with tables and charts ─▶ page.py
              ├─ cases.py: the funnel, examples          │
    rules ────┴─ one_rule.py: curves, lines ─────────────┘

A page that is too large is made again with less detail, with a note; the JSON has all numbers.
Tested by: tests/analysis/test_report.py
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from cep import __version__
from cep.analysis import figure_charts as draw
from cep.analysis.backtest import Figures, percent, time_text, with_interval
from cep.analysis.cases import Funnel, Timeline, alert_timelines, missed_timelines, trace_frauds
from cep.analysis.curves import PAIRED_ALERTS_TIMES, Pair, in_unit
from cep.analysis.figure_charts import upset
from cep.analysis.measure import Measured, state_bytes
from cep.analysis.one_rule import NO_CHARTS, ReplayedCharts
from cep.analysis.page import (
    DETAIL_STEPS,
    FULL,
    Blocks,
    Cell,
    Detail,
    charts,
    details,
    fitting,
    heading,
    page,
    paragraph,
    table,
)
from cep.analysis.weeks import FieldDrift, by_budget, by_field, by_week
from cep.base.limits import REPORT_BYTES_MAX
from cep.base.schema import Schema
from cep.base.terminal import Show, ignore_progress
from cep.report.plan import size_text
from cep.rulebook.difference import compare
from cep.sources.pieces import Pieces

_HASH_CHARS = 12
_STOPPED_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ReportData:
    """The contents of a report, for the page and for the JSON. A row of `weeks` and of `drift` (how values of a field
    change) covers `span` weeks. `against` measures other rules, to compare with. `thresholds` has replays with other
    parameter values. A row of `budget` is for a limit on the alerts a day. `funnels` tell by rule how far frauds came
    in its steps; `alerts` and `misses` are examples. `detail` is how much the page shows at most."""

    measured: Measured
    against: Measured | None
    thresholds: ReplayedCharts
    budget: Sequence[Mapping[str, Any]]
    weeks: Sequence[Mapping[str, Any]]
    drift: Sequence[FieldDrift]
    funnels: Sequence[Funnel]
    alerts: Sequence[Timeline]
    misses: Sequence[Timeline]
    review_cost: float
    detail: Detail = FULL
    span: int = 1


def input_section(data: ReportData) -> Blocks:
    """Return the section about the input: period, events, labels and rules in force. Mature: old enough for a label."""
    about = data.measured.figures.about
    facts: list[tuple[str, Cell]] = [
        ("events", f"{about['events']:,}"),
        ("from", about["from"]),
        ("to", about["to"]),
        ("days", about["days"]),
        ("labels as of", about["as_of"]),
        ("an event is mature after", time_text(about["maturity_seconds"])),
        ("frauds", f"{about['frauds']:,}"),
        ("events of frauds", f"{about['fraud_events']:,}"),
        *([("a fraud is all", about["episodes"])] if about["episodes"] else []),
        ("share of fraud among mature events", percent(about["base_rate"])),
        ("money of frauds", f"{about['fraud_money']:,.2f}"),
        ("labels that are of no event", f"{about['labels_without_event']:,}"),
        ("labels reported after the date", f"{about['labels_reported_later']:,}"),
        ("records set aside", f"{about['records_set_aside']:,}"),
        ("cep", __version__),
    ]
    kinds = sorted(about["frauds_by_kind"].items(), key=lambda pair: (-pair[1], pair[0]))
    counts = [(kind or "not said", f"{n:,}") for kind, n in kinds]
    kinds_table = table(("kind of fraud", "frauds"), counts, detail=data.detail)
    others = [] if data.against is None else [("The other rules", data.against.figures.about)]
    return (
        table(("of the history", ""), facts, detail=data.detail)
        + [
            block
            for title, rule_figures in [("Rules in force", about), *others]
            for block in heading(title) + _in_force(rule_figures, data)
        ]
        + (heading("Kinds of fraud") + kinds_table if len(kinds) > 1 else [])
    )


def _in_force(about: Mapping[str, Any], data: ReportData) -> Blocks:
    rows = [(each["rule"], each["version"], each["status"], each["content_hash"][:_HASH_CHARS])
            for each in about["rules"]]  # fmt: skip
    return table(("rule", "version", "status", "content"), rows, detail=data.detail)


def days(data: ReportData, names: Sequence[str]) -> Blocks:
    """Return the charts of alerts by day."""
    text = (
        "An alert is right if it binds an event of a known fraud. It is immature if one of its events is too recent "
        "for a report; then it counts neither way, whatever is known."
    )
    more = len(data.measured.figures.rules) - len(names)
    note = paragraph(f"{more} rules with fewer alerts are not drawn.", is_note=True) if more > 0 else []
    return paragraph(text) + charts(draw.alerts_by_day(data.measured.figures, data.detail), data.detail) + note


Columns = dict[str, Callable[[Figures], Cell]]
_COLUMNS: Columns = {
    "rule": lambda each: each.rule,
    "status": lambda each: each.status,
    "alerts": lambda each: f"{each.alerts:,}",
    "a day": lambda each: f"{each.alerts_per_day:,.1f}",
    "keys": lambda each: f"{each.keys:,}",
    "precision": lambda each: with_interval(each.precision),
    "of keys right": lambda each: with_interval(each.key_precision),
    "of cases right": lambda each: with_interval(each.case_precision),
    "immature": lambda each: f"{each.immature:,}",
    "recall of frauds": lambda each: with_interval(each.fraud_recall),
    "of events": lambda each: with_interval(each.event_recall),
    "of keys": lambda each: None if each.key_recall is None else with_interval(each.key_recall),
    "lift": lambda each: None if each.lift is None else f"{each.lift:,.1f}",
    "money found": lambda each: f"{each.money_found:,.2f}",
    "from the alert on": lambda each: f"{each.money_after_alert:,.2f}",
    "money missed": lambda each: f"{each.money_missed:,.2f}",
}
_OTHER_COLUMNS: Columns = {
    "rule": lambda each: each.rule,
    "repeats": lambda each: percent(each.repeat_rate),
    "first event to alert": lambda each: time_text(each.seconds_to_alert),
    "alert to last event": lambda each: time_text(each.seconds_ahead),
}


def _cells(columns: Columns, rows: Sequence[Figures]) -> list[list[Cell]]:
    return [[cell_of(each) for cell_of in columns.values()] for each in rows]


def rules(data: ReportData) -> Blocks:
    """Return the section on rules: tables of the rules with the most alerts, a table of all matches if some are not
    sent, precision and recall as a chart, and recall by kind of fraud. `data.detail` limits rows and columns."""
    figures, sizes = data.measured.figures, state_bytes(data.measured)
    shown = {*draw.most_alerted(figures, data.detail.rows - 1)}
    shown_and_together = (*(each for each in figures.rules if each.rule in shown), figures.together)
    matches = figures.all_matches
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in figures.about["matches_not_sent"].items())
    all_rows = _cells(_COLUMNS, (*(each for each in matches.rules if each.rule in shown), matches.together))
    not_sent = "Every match is sent." if not reasons else f"Alerts that are not sent: {reasons}."
    unsent = heading("All matches") + table((*_COLUMNS,), all_rows, detail=data.detail) if reasons else []
    counts = figures.about["frauds_by_kind"]
    kinds = sorted(sorted(counts, key=lambda kind: (-counts[kind], kind))[: data.detail.columns])
    by_kind: Blocks = []
    if len(kinds) > 1:
        rows = [
            (each.rule, *(with_interval(each.recall_by_kind[kind]) for kind in kinds)) for each in shown_and_together
        ]
        by_kind = heading("Recall of frauds by kind") + table(
            ("rule", *(kind or "not said" for kind in kinds)), rows, detail=data.detail
        )
    state_column = {"state of a key": lambda each: size_text(sizes[each.rule]) if each.rule in sizes else None}
    other_columns: Columns = {**_OTHER_COLUMNS, **state_column}
    note = (
        "Intervals are Wilson's, for 95 %. Times are medians. Repeats are alerts that are not the first of their key. "
        "State is that of a key with a hundred events in the window."
    )
    more = len(figures.rules) - len(shown)
    note += f" {more} rules with fewer alerts are not shown." if more > 0 else ""
    return (
        paragraph(f"Figures are of the alerts as they are sent. {not_sent}")
        + table((*_COLUMNS,), _cells(_COLUMNS, shown_and_together), detail=data.detail)
        + table((*other_columns,), _cells(other_columns, shown_and_together), detail=data.detail)
        + paragraph(note, is_note=True)
        + unsent
        + charts(draw.rule_intervals(figures, data.detail), data.detail)
        + by_kind
    )


def budget(data: ReportData) -> Blocks:
    """Return the findings of a team with a daily budget of alerts."""
    text = "Of each day's alerts those with the highest score come first, and of equal ones the earlier."
    rows = [
        (row["alerts_a_day"], f"{row['alerts']:,}", with_interval(row["precision"]), with_interval(row["fraud_recall"]),
         f"{row['money_found']:,.2f}", f"{row['money_less_reviews']:,.2f}")
        for row in data.budget
    ]  # fmt: skip
    cost = f"money less {data.review_cost:,.2f} a review" if data.review_cost else "money less reviews (at no cost)"
    heads = ("alerts a day, at most", "alerts", "precision", "recall of frauds", "money found", cost)
    return paragraph(text) + charts(draw.budget_curve(data.budget), data.detail) + table(heads, rows)


def thresholds(data: ReportData) -> Blocks:
    """Return the section about thresholds: the results with other parameter values, or why nothing was replayed."""
    drawn, curves_max = data.thresholds, data.detail.thresholds
    if not drawn.curves:
        return paragraph(drawn.note or "The rule has no parameter that is a number above 0.")
    text = (
        "What a rule would have found with another value of one parameter, the others as they are. Each value was "
        "replayed over the whole history. A dashed line is the present value. These figures are in-sample: the value "
        "that is best here is chosen by the same frauds that judge it, so it will find less later. cep rules tune "
        "judges a value on time that did not choose it."
    )
    heads = ("value", "alerts", "a day", "precision", "recall of frauds", "money found")
    tables: Blocks = []
    for curve in drawn.curves[:curves_max]:
        rows = [
            (f"{point.value:,.12g}" + (" (present)" if point.value == curve.present else ""), f"{point.alerts:,}",
             f"{point.alerts_per_day:,.1f}", with_interval(point.precision), with_interval(point.fraud_recall),
             f"{point.money_found:,.2f}")
            for point in curve.points
        ]  # fmt: skip
        refused_values = ", ".join(f"{value:,.12g}" for value in curve.left_out)
        note = (
            paragraph(f"Values with which the rule cannot be in force: {refused_values}.", is_note=True)
            if refused_values
            else []
        )
        name = f"{curve.rule}: {in_unit(curve.param, curve.unit)}"
        tables += details(name, note + table(heads, rows, detail=data.detail))
    return (
        paragraph(text) + (paragraph(drawn.note, is_note=True) if drawn.note else [])
        + charts(draw.threshold_curves(drawn.curves[:curves_max]), data.detail) + tables
        + _more(len(drawn.curves) - curves_max, "parameters")
        + (heading("Two parameters together") + _pairs(drawn.pairs, data) if drawn.pairs else [])
    )  # fmt: skip


def _more(count: int, things: str) -> Blocks:
    return paragraph(f"{count} more {things} are in the numbers beside this page.", is_note=True) if count > 0 else []


def _pairs(pairs: Sequence[Pair], data: ReportData) -> Blocks:
    text = (
        "The darker, the better precision and recall together (F1). A ring is on the front: no other setting is better "
        "in precision or recall and as good in the other. The cross is the present setting. Values with more than "
        f"{PAIRED_ALERTS_TIMES} times the present alerts are left out."
    )
    tables: Blocks = []
    pairs_max = data.detail.thresholds
    for pair in pairs[:pairs_max]:
        front = [cell for cell in pair.cells if cell.is_on_front]
        rows = [
            (*(f"{value:,.12g}" for value in cell.values), f"{cell.alerts:,}", with_interval(cell.precision),
             with_interval(cell.fraud_recall), f"{cell.money_found:,.2f}")
            for cell in front
        ]  # fmt: skip
        heads = (*map(in_unit, pair.params, pair.units), "alerts", "precision", "recall of frauds", "money found")
        tables += details(f"{pair.rule}: the front of {' and '.join(pair.params)}",
                          table(heads, rows, detail=data.detail))  # fmt: skip
    return (
        paragraph(text) + charts(draw.threshold_pairs(pairs[:pairs_max]), data.detail) + tables
        + _more(len(pairs) - pairs_max, "pairs")
    )  # fmt: skip


def near(data: ReportData) -> Blocks:
    """Return the section about alerts just inside a threshold (`line`), and just outside: a looser value adds them."""
    lines, lines_max = data.thresholds.lines, data.detail.thresholds
    text = (
        "Each bar has the alerts that a value would just let through, and the next tighter one not. Those on one side "
        "of the dashed line are alerts of the rule; those on the other side a looser value would add. Two alerts are "
        "the same if they bind the same events."
    )
    tables: Blocks = []
    for line in lines[:lines_max]:
        heads = ("from", "to", "the rule's", "alerts", "right", "wrong", "immature")
        rows = [
            (f"{each.looser:,.12g}", f"{each.tighter:,.12g}", "yes" if each.is_inside else "no", f"{each.alerts:,}",
             f"{each.right:,}", f"{each.wrong:,}", f"{each.immature:,}")
            for each in line.intervals
        ]  # fmt: skip
        further = paragraph(f"{line.alerts_at_tightest:,} alerts are further inside than all of these.", is_note=True)
        shown = [
            ("just inside" if each.is_inside else "just outside", each.verdict, each.key, each.time,
             ", ".join(each.event_ids))
            for each in line.samples
        ]  # fmt: skip
        samples = table(
            ("side", "verdict", "key", "time (UTC)", "events, the last ones"), shown, (4,), detail=data.detail
        )
        name = in_unit(line.param, line.unit)
        tables += details(f"{line.rule}: {name}, with samples",
                          table(heads, rows, detail=data.detail) + further + samples)  # fmt: skip
    note = paragraph("The rule has no parameter that a comparison grows with.", is_note=True) if not lines else []
    return (
        paragraph(text) + note + charts(draw.near_lines(lines[:lines_max]), data.detail) + tables
        + _more(len(lines) - lines_max, "thresholds")
    )  # fmt: skip


def overlap(data: ReportData) -> Blocks:
    """Return the section about the frauds that each rule adds, and the sets of rules that find the same frauds."""
    figures = data.measured.figures
    text = (
        "A rule adds the frauds that no other rule finds. Its share counts each fraud that it finds, divided among the "
        "rules that find it: what it adds, averaged over all orders in which rules could have come (Shapley's value)."
    )
    rows = [(each.rule, f"{each.fraud_recall.part:,}", f"{each.adds or 0:,}", f"{each.share:,.1f}", f"{each.wrong:,}")
            for each in figures.rules]  # fmt: skip
    heads = ("rule", "frauds found", "it alone", "its share", "wrong alerts")
    sets = [(" + ".join(row["rules"]) or "no rule", f"{row['frauds']:,}") for row in figures.overlap]
    return (
        paragraph(text) + table(heads, rows, detail=data.detail) + charts(upset(figures), data.detail)
        + details("All sets of rules", table(("found by exactly", "frauds"), sets, detail=data.detail))
    )  # fmt: skip


def funnel(data: ReportData, names: Sequence[str]) -> Blocks:
    """Return the section about how far frauds came in each pattern, and the conditions that stopped them."""
    walked = max((each.walked for each in data.funnels), default=0)
    text = (
        f"{walked:,} frauds, evenly over all, were walked through each pattern. A bar has those that came so far or "
        "further."
    )
    rows: list[tuple[Cell, ...]] = []
    for rule_funnel in data.funnels:
        if rule_funnel.reason:
            rows.append((rule_funnel.rule, f"not walked: {rule_funnel.reason}", None))
        stopped = sorted(rule_funnel.stopped.items(), key=lambda pair: (-pair[1], pair[0]))[:_STOPPED_SHOWN]
        rows += [(rule_funnel.rule, condition, count) for condition, count in stopped]
        if rule_funnel.skipped:
            rows.append((rule_funnel.rule, "not walked: too many steps", rule_funnel.skipped))
    return (
        paragraph(text) + charts(draw.funnels(data.funnels, names), data.detail) + heading("What stopped them")
        + table(("rule", "the condition that did not hold, or the end", "frauds"), rows, (1,), detail=data.detail)
    )  # fmt: skip


def drift(data: ReportData, names: Sequence[str]) -> Blocks:
    """Return the section on changes from week to week: rates, precision, money, and the values of the fields that
    conditions read. `names` are the rules to draw, `data.detail` limits the fields."""
    field_drifts, fields_max = data.drift, data.detail.fields
    text = (
        "Each field that a condition of a rule reads. A number has quantiles; a text has the shares of its most "
        "frequent values. Ids, times and protected fields are left out."
    )
    rows: list[tuple[Cell, ...]] = [
        (each.field, ", ".join(each.event_types), ", ".join(each.rules), f"{sum(w['events'] for w in each.weeks):,}",
         f"{sum(w['missing'] for w in each.weeks):,}")
        for each in field_drifts
    ]  # fmt: skip
    heads = ("field", "of events", "read by", "events", "without a value")
    fields = (
        paragraph(text) + charts(draw.field_weeks(field_drifts[:fields_max], data.span), data.detail)
        + _more(len(field_drifts) - fields_max, "fields") + table(heads, rows, (1, 2), detail=data.detail)
    )  # fmt: skip
    return (
        charts(draw.weeks(data.weeks, names, data.span), data.detail)
        + (heading("Values that conditions read") + fields if field_drifts else [])
    )  # fmt: skip


def against(data: ReportData, other: Measured) -> Blocks:
    """Return the section that compares these rules with another rule set."""
    measured = data.measured
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
    return paragraph(text) + table(heads, rows, detail=data.detail)


def timelines(lines: Sequence[Timeline], data: ReportData) -> Blocks:
    """Return a time line for each of some alerts or misses: the events of their key."""
    blocks: Blocks = []
    heads = ("time (UTC)", "event", "type", "bound as", "fraud", "fields")
    for timeline in lines[: data.detail.examples]:
        rows = [(line.time, line.event_id, line.event_type, line.variable or None, "yes" if line.is_fraud else None,
                 line.fields) for line in timeline.lines]  # fmt: skip
        classes = [" ".join(("fraud",) * line.is_fraud + ("bound",) * bool(line.variable)) for line in timeline.lines]
        chars = data.detail.chars
        notes = [block for note in timeline.notes for block in paragraph(fitting(note, chars), is_note=True)]
        shown = table(heads, rows, (5,), classes, data.detail)
        blocks += details(fitting(timeline.title, chars), notes + shown)
    none = "Left out: the page would be too large." if lines else "There are none."
    return blocks or paragraph(none)


@dataclass(frozen=True, slots=True)
class Report:
    """The page, and its numbers as JSON."""

    html: str
    numbers: bytes


def report(
    measured: Measured, pieces_of: Callable[[Schema], Pieces], against: Measured | None = None,
    review_cost: float = 0.0, thresholds: ReplayedCharts = NO_CHARTS, progress: Show = ignore_progress,
) -> Report:  # fmt: skip
    """Make the report as a web page and as numbers. `pieces_of` reads the events again, in pieces, for examples and
    funnels. `thresholds` has replays of rules with other values. Raises: UsageError without the extra `charts`."""
    judged, labelled, history = measured.judged, measured.labelled, measured.history
    pieces_of = history.unique_pieces(pieces_of)  # without repeated events
    funnels, endings = trace_frauds(measured, pieces_of, progress)  # an ending: why a fraud came no further
    progress("making the page", 0, None)
    data = ReportData(
        measured,
        against,
        thresholds,
        by_budget(judged, labelled, measured.figures.about["days"], review_cost),
        by_week(judged, labelled, history.events, measured.amount),
        by_field(history.deployment, history.events, labelled.as_of_ms),
        funnels,
        alert_timelines(measured, pieces_of),
        missed_timelines(measured, pieces_of, endings),
        review_cost,
    )
    html = ""
    for reduction, detail in enumerate(DETAIL_STEPS):  # full detail first
        html = _page(_with_detail(data, detail), reduction)
        if len(html.encode()) < REPORT_BYTES_MAX:
            break
    return Report(html, _numbers(data))


def _with_detail(data: ReportData, detail: Detail) -> ReportData:
    """Return the parts to be shown in this detail, with several weeks in one where there are more than have room."""
    span = max(1, -(-len(data.weeks) // detail.points))
    if span == 1:
        return replace(data, detail=detail)
    measured = data.measured
    weeks = by_week(measured.judged, measured.labelled, measured.history.events, measured.amount, span)
    drift = by_field(measured.history.deployment, measured.history.events, measured.labelled.as_of_ms, span)
    return replace(data, detail=detail, span=span, weeks=weeks, drift=drift)


def _numbers(data: ReportData) -> bytes:
    """Return the numbers of the page as JSON. Examples are left out, because they are events."""
    drawn = data.thresholds
    numbers = {
        **data.measured.figures.to_json(),
        "against": None if data.against is None else data.against.figures,
        "budget": data.budget,
        "thresholds_are": "in-sample",
        "thresholds": drawn.curves,
        "threshold_pairs": drawn.pairs,
        "near_thresholds": [
            {"rule": line.rule, "param": line.param, "unit": line.unit, "present": line.present,
             "further": line.alerts_at_tightest, "intervals": line.intervals}
            for line in drawn.lines
        ],
        "weeks": data.weeks,
        "fields": data.drift,
        "funnel": data.funnels,
        "state_bytes_of_a_key": state_bytes(data.measured),
    }  # fmt: skip
    return orjson.dumps(numbers, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _page(data: ReportData, reduction: int) -> str:
    """Return the report as HTML, section by section. After a `reduction` to save bytes a note tells of less detail."""
    figures = data.measured.figures
    names = draw.most_alerted(figures, data.detail.rules)
    sections = [
        ("matched", "What was matched", _less(reduction) + input_section(data)),
        ("days", "Alerts by day", days(data, names)),
        ("rules", "Rules", rules(data)),
        *([("against", "Beside the other rules", against(data, data.against))] if data.against else []),
        ("budget", "Alert budget", budget(data)),
        *([("thresholds", "Thresholds", thresholds(data))] if data.thresholds != NO_CHARTS else []),
        *([("near", "Just above and just below the line", near(data))] if data.thresholds.curves else []),
        ("overlap", "What each rule adds", overlap(data)),
        ("funnel", "How far frauds came", funnel(data, names)),
        ("drift", "Week by week", drift(data, names)),
        ("alerts", "Alerts, some of each kind", timelines(data.alerts, data)),
        ("misses", "Frauds that no rule finds", timelines(data.misses, data)),
    ]
    title = f"{len(figures.rules)} rules over {figures.about['events']:,} events"
    return page(title, sections)


def _less(reduction: int) -> Blocks:
    if reduction == 0:
        return []
    return paragraph(
        "To stay below a megabyte this page shows less: longer periods in place of days and weeks, and fewer charts, "
        "rows and examples. The numbers beside it, as JSON, have all periods and rules."
    )
