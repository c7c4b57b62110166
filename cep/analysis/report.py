"""A measured history → a report: one page of HTML, and its numbers as JSON. The same input gives the same bytes.

    measured ─┬─ figures, upset.py ────────────┐
              ├─ budget.py: budget, weeks      ├─▶ sections.py with tables and charts ─▶ page.py
              ├─ drift.py: values of fields    │
              ├─ cases.py: the funnel          │
    rules ────┼─ thresholds.py: curves, lines ─┤
              └─ timelines.py: examples ───────┘

The report contains neither its own date nor its duration. A page that is too large is made again with less detail, with
a note; the JSON has all numbers.
Tested by: tests/analysis/test_report.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import orjson

from cep.analysis import figure_charts as draw
from cep.analysis import sections as of
from cep.analysis.budget import by_budget, by_week
from cep.analysis.cases import walk_frauds
from cep.analysis.detail import LEVELS, Detail
from cep.analysis.drift import by_field
from cep.analysis.measure import Measured, state_bytes
from cep.analysis.page import Blocks, page, paragraph
from cep.analysis.sections import Parts
from cep.analysis.thresholds import NOTHING, Drawn
from cep.analysis.timelines import alert_timelines, missed_timelines
from cep.base.limits import REPORT_BYTES_MAX
from cep.base.progress import Show, ignore_progress
from cep.base.schema import Schema
from cep.sources.pieces import Pieces


@dataclass(frozen=True, slots=True)
class Report:
    """The page, and its numbers as JSON."""

    html: str
    numbers: bytes


def report(
    measured: Measured, pieces_of: Callable[[Schema], Pieces], against: Measured | None = None,
    review_cost: float = 0.0, thresholds: Drawn = NOTHING, progress: Show = ignore_progress,
) -> Report:  # fmt: skip
    """Make the report as a web page and as numbers. `pieces_of` reads the events again.

    `thresholds` belong to rules that may be changed. Raises: UsageError without the extra `charts`.
    """
    judged, marks, history = measured.judged, measured.marks, measured.history
    pieces_of = history.unique_pieces(pieces_of)
    funnels, endings = walk_frauds(measured, pieces_of, progress)
    progress("making the page", 0, None)
    parts = Parts(
        measured,
        against,
        thresholds,
        by_budget(judged, marks, measured.figures.about["days"], review_cost),
        by_week(judged, marks, history.events, measured.amount),
        by_field(history.deployment, history.events, marks.as_of_ms),
        funnels,
        alert_timelines(measured, pieces_of),
        missed_timelines(measured, pieces_of, endings),
        review_cost,
    )
    html = ""
    for level, detail in enumerate(LEVELS):
        html = _page(_with_detail(parts, detail), level)
        if len(html.encode()) < REPORT_BYTES_MAX:
            break
    return Report(html, _numbers(parts))


def _with_detail(parts: Parts, detail: Detail) -> Parts:
    """Return the parts to be shown in this detail, with several weeks in one where there are more than have room."""
    span = max(1, -(-len(parts.weeks) // detail.points))
    if span == 1:
        return replace(parts, detail=detail)
    measured = parts.measured
    weeks = by_week(measured.judged, measured.marks, measured.history.events, measured.amount, span)
    drift = by_field(measured.history.deployment, measured.history.events, measured.marks.as_of_ms, span)
    return replace(parts, detail=detail, span=span, weeks=weeks, drift=drift)


def _numbers(parts: Parts) -> bytes:
    """Return the numbers of the page as JSON. Examples are left out, because they are events."""
    drawn = parts.thresholds
    data = {
        **parts.measured.figures.to_json(),
        "against": None if parts.against is None else parts.against.figures.to_json(),
        "budget": [{**row, "precision": asdict(row["precision"]), "fraud_recall": asdict(row["fraud_recall"])}
                   for row in parts.budget],
        "thresholds_are": "in-sample",
        "thresholds": [asdict(curve) for curve in drawn.curves],
        "threshold_pairs": [asdict(pair) for pair in drawn.pairs],
        "near_thresholds": [
            {"rule": line.rule, "param": line.param, "unit": line.unit, "present": line.present,
             "further": line.further, "intervals": [asdict(interval) for interval in line.intervals]}
            for line in drawn.lines
        ],
        "weeks": parts.weeks,
        "fields": [asdict(each) for each in parts.drift],
        "funnel": [asdict(funnel) for funnel in parts.funnels],
        "state_bytes_of_a_key": state_bytes(parts.measured),
    }  # fmt: skip
    return orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _page(parts: Parts, level: int) -> str:
    """Write the page as HTML, section by section."""
    figures = parts.measured.figures
    names = draw.most_alerted(figures, parts.detail.rules)
    sections = [
        ("matched", "What was matched", _less(level) + of.matched(parts)),
        ("days", "Alerts by day", of.days(parts, names)),
        ("rules", "Rules", of.rules(parts)),
        ("budget", "Alert budget", of.budget(parts)),
        ("overlap", "What each rule adds", of.overlap(parts)),
        ("funnel", "How far frauds came", of.funnel(parts, names)),
        ("drift", "Week by week", of.drift(parts, names)),
        ("alerts", "Alerts, some of each kind", of.timelines(parts.alerts, parts)),
        ("misses", "Frauds that no rule finds", of.timelines(parts.misses, parts)),
    ]
    if parts.against is not None:
        sections.insert(3, ("against", "Beside the other rules", of.against(parts, parts.against)))
    if parts.thresholds != NOTHING:
        index = next(number for number, section in enumerate(sections) if section[0] == "overlap")
        sections.insert(index, ("thresholds", "Thresholds", of.thresholds(parts)))
        if parts.thresholds.curves:
            sections.insert(index + 1, ("near", "Just above and just below the line", of.near(parts)))
    title = f"{len(figures.rules)} rules over {figures.about['events']:,} events"
    return page(title, sections)


def _less(level: int) -> Blocks:
    """Say that the page shows less than it could."""
    if level == 0:
        return []
    return paragraph(
        "To stay below a megabyte this page shows less: longer periods in place of days and weeks, and fewer charts, "
        "rows and examples. The numbers beside it, as JSON, have all periods and rules."
    )
