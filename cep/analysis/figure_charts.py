"""The figures of a report → charts: of days, rules, budgets, thresholds, funnels and weeks, and an UpSet chart.

The UpSet chart (Lex and others 2014) shows which rules find the same frauds:

    frauds  █
            █  █
            █  █  ▄        a bar has the frauds that exactly the rules below it find
    a 5     ●  ●  ·
    b 3     ●  ·  ●        dots of one set are joined; a row has the frauds that its rule finds at all
    c 0     ·  ·  ·

Tested by: tests/analysis/test_report.py
"""

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from cep.analysis.backtest import Backtest, Ratio, f1
from cep.analysis.cases import Funnel
from cep.analysis.curves import Cell, Curve, Line, Pair, in_unit
from cep.analysis.page import FULL, WIDTH, Chart, Detail, Rows, axis, colors, day_axis, fitting
from cep.analysis.weeks import QUANTILES, FieldDrift

_VERDICTS = ("right", "wrong", "immature")
_ROW_HEIGHT = 22
_NAME_CHARS = 24  # of a value in a legend
_QUANTILE_NAMES = tuple("median" if share == 0.5 else f"{100 * share:.0f} of 100 below" for share in QUANTILES)
_UNITS = (("day", 1), ("week", 7), ("month", 30), ("year", 365))  # of a bar, with its days
_STEPS = {"day": "utcyearmonthdate", "week": "utcyearweek", "month": "utcyearmonth", "year": "utcyear"}


def most_alerted(figures: Backtest, count: int = FULL.rules) -> list[str]:
    """Return so many rules, those with the most alerts, in the order of their names."""
    by_count = sorted(figures.rules, key=lambda each: (-each.alerts, each.rule))
    return sorted(each.rule for each in by_count[:count])


def alerts_by_day(figures: Backtest, detail: Detail = FULL) -> list[Chart]:
    """Draw for each rule the alerts of each day, by verdict; for a long history, of each week, month or year."""
    charts = []
    unit = next((unit for unit, days in _UNITS if figures.about["days"] <= detail.bars * days), _UNITS[-1][0])
    for rule in most_alerted(figures, detail.rules):
        days = [day for day in figures.days if day["rule"] == rule]
        if not days:
            continue
        bars = days if unit == "day" else _added_up(days, unit)
        steps = _STEPS[unit]
        rows = [{"day": bar["day"], "verdict": name, "alerts": bar[name]} for bar in bars for name in _VERDICTS]
        counts = ", ".join(f"{sum(bar[name] for bar in bars):,} {name}" for name in _VERDICTS)
        busiest = max(bars, key=lambda bar: sum(bar[name] for name in _VERDICTS))
        text = f"Alerts of {rule} by {unit}: {counts}. The busiest {unit} begins {busiest['day']}."
        bar_width = {"type": "bar", "width": {"band": 0.9}}
        charts.append(Chart(f"{rule}: alerts a {unit}", text, rows, {
            "mark": bar_width,
            "encoding": {
                "x": axis("day", f"{unit} (UTC)", "temporal", timeUnit=steps,
                          axis={"format": "%d %b %y", "tickCount": 4, "labelOverlap": "greedy", "labelSeparation": 12}),
                "y": axis("alerts", f"alerts a {unit}", stack="zero"),
                "color": colors("verdict", _VERDICTS),
            },
        }))  # fmt: skip
    return charts


def _added_up(days: Rows, unit: str) -> list[dict[str, Any]]:
    """Add up days by week, month or year, which is named by its first day, such as a Monday."""
    periods: dict[date, dict[str, Any]] = {}
    for day in days:
        when = date.fromisoformat(day["day"])
        monday = when - timedelta(days=when.weekday())
        first = {"week": monday, "month": when.replace(day=1), "year": when.replace(month=1, day=1)}[unit]
        period = periods.setdefault(first, {"day": first.isoformat(), **dict.fromkeys(_VERDICTS, 0)})
        for name in _VERDICTS:
            period[name] += day[name]
    return list(periods.values())


def rule_intervals(figures: Backtest, detail: Detail = FULL) -> list[Chart]:
    """Draw precision and recall of each rule with their intervals."""
    rows = []
    drawn = most_alerted(figures, detail.rules)
    chosen = [*(each for each in figures.rules if each.rule in drawn), figures.together]
    for each in chosen:
        for name, share in (("precision", each.precision), ("recall of frauds", each.fraud_recall)):
            if share.value is not None:
                rows.append({"rule": each.rule, "figure": name, "value": share.value, "low": share.low,
                             "high": share.high})  # fmt: skip
    if not rows:
        return []
    text = "Precision and recall with 95 % intervals. " + "; ".join(
        f"{each.rule} {_share(each.precision)} and {_share(each.fraud_recall)}" for each in chosen
    ) + "."  # fmt: skip
    names = ("precision", "recall of frauds")
    y = {"field": "rule", "type": "nominal", "title": None, "sort": [each.rule for each in chosen]}
    layers = [
        {"mark": "rule", "encoding": {"x": axis("low", "share", scale={"domain": [0, 1]}), "x2": {"field": "high"}}},
        {"mark": {"type": "point", "filled": True, "size": 60}, "encoding": {"x": axis("value", "share")}},
    ]
    drawing = {"encoding": {"y": y, "color": colors("figure", names), "yOffset": {"field": "figure"}}, "layer": layers}
    return [Chart("Precision and recall", text, rows, drawing, max(60, 2 * _ROW_HEIGHT * len(chosen)))]


def _share(share: Ratio) -> str:
    return "–" if share.value is None else f"{share.value:.2f}"


def budget_curve(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Draw precision and recall against the number of alerts that a team reviews in a day."""
    points = [
        {"budget": row["alerts_a_day"], "figure": name, "value": row[key].value}
        for row in rows
        for name, key in (("precision", "precision"), ("recall of frauds", "fraud_recall"))
        if row[key].value is not None
    ]
    if not points:
        return []
    shown = [row for row in rows if row["precision"].value is not None]
    text = "By alerts looked at in a day: " + "; ".join(
        f"{row['alerts_a_day']}: precision {_share(row['precision'])}, recall {_share(row['fraud_recall'])}"
        for row in shown
    ) + "."  # fmt: skip
    drawing = {
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": axis("budget", "alerts looked at a day (most)", scale={"type": "log"},
                      axis={"values": [row["alerts_a_day"] for row in rows], "labelOverlap": True}),
            "y": axis("value", "share", scale={"domain": [0, 1]}),
            "color": colors("figure", ("precision", "recall of frauds")),
            "strokeDash": {"field": "figure", "type": "nominal", "legend": None},
        },
    }  # fmt: skip
    return [Chart("Precision and recall by budget", text, points, drawing)]


def threshold_curves(curves: Sequence[Curve]) -> list[Chart]:
    """Draw precision and recall of a rule against the values of each parameter, with a line at the present value."""
    charts = []
    names = ("precision", "recall of frauds")
    for curve in curves:
        rows = [
            {"at": point.value, "figure": name, "value": share.value}
            for point in curve.points
            for name, share in zip(names, (point.precision, point.fraud_recall), strict=True)
            if share.value is not None
        ]
        ends = (0, len(curve.points) - 1)
        named = [point for n, point in enumerate(curve.points) if n in ends or point.value == curve.present]
        name = in_unit(curve.param, curve.unit)
        text = f"Precision and recall of {curve.rule} by {name}, which is {curve.present:.12g}. " + "; ".join(
            f"{point.value:.12g}: {_share(point.precision)} and {_share(point.fraud_recall)}" for point in named
        ) + "."  # fmt: skip
        lines = {
            "mark": {"type": "line", "point": True},
            "encoding": {
                "x": axis(
                    "at",
                    f"{curve.param} ({curve.unit + ', ' if curve.unit else ''}logarithmic)",
                    scale={"type": "log", "nice": False},
                    axis={"labelOverlap": True},
                ),
                "y": axis("value", "share", scale={"domain": [0, 1]}),
                "color": colors("figure", names),
            },
        }
        current_line = {
            "mark": {"type": "rule", "strokeDash": [4, 3]},
            "encoding": {"x": {"datum": curve.present, "type": "quantitative"}},
        }
        if rows:
            charts.append(Chart(f"{curve.rule} by {curve.param}", text, rows, {"layer": [lines, current_line]}))
    return charts


def threshold_pairs(pairs: Sequence[Pair]) -> list[Chart]:
    """Draw the F1 of each pair of values of two parameters, and mark the best trade-offs and the present pair."""
    charts = []
    for pair in pairs:
        rows = [
            {"x": cell.values[0], "y": cell.values[1], "f1": _f1(cell), "front": cell.is_on_front,
             "present": cell.values == pair.present}
            for cell in pair.cells
        ]  # fmt: skip
        best_count = sum(cell.is_on_front for cell in pair.cells)
        best = max(pair.cells, key=_f1)
        text = (
            f"F1 of {pair.rule} by {pair.params[0]} and {pair.params[1]}: {len(rows)} settings, {best_count} on the "
            f"front. The best is {_f1(best):.2f} at {best.values[0]:.12g} and {best.values[1]:.12g}."
        )
        first, second = map(in_unit, pair.params, pair.units)
        y = axis("y", second, "ordinal", sort="descending")
        color = {"field": "f1", "type": "quantitative", "scale": {"scheme": "blues", "domain": [0, 1]}, "legend": None}
        marks = [
            {"mark": "rect", "encoding": {"color": color}},
            {"transform": [{"filter": "datum.front"}],
             "mark": {"type": "point", "color": "#D55E00", "size": 70, "strokeWidth": 2}},
            {"transform": [{"filter": "datum.present"}],
             "mark": {"type": "point", "shape": "cross", "color": "#000000", "filled": True, "size": 40}},
        ]  # fmt: skip
        drawing = {"encoding": {"x": axis("x", first, "ordinal"), "y": y}, "layer": marks}
        charts.append(Chart(f"{pair.rule}: {pair.params[0]} and {pair.params[1]}", text, rows, drawing))
    return charts


def near_lines(lines: Sequence[Line]) -> list[Chart]:
    """Draw for each threshold the alerts that a value lets pass and the next tighter one not, and the present value."""
    charts = []
    for line in lines:
        rows = []
        for interval in line.intervals:
            low, high = sorted((interval.looser, interval.tighter))  # the looser value may be the higher one
            below = 0
            for name in _VERDICTS:
                count = getattr(interval, name)
                rows.append({"from": low, "to": high, "verdict": name, "below": below, "above": below + count})
                below += count
        name = in_unit(line.param, line.unit)
        inside = sum(each.alerts for each in line.intervals if each.is_inside)  # alerts of the rule as it is
        outside = sum(each.alerts for each in line.intervals) - inside  # alerts that only a looser value has
        text = (
            f"Alerts of {line.rule} by the value that decides over {name}, which is {line.present:.12g}: {inside:,} "
            f"are on this side of the line, {outside:,} beyond it, and {line.alerts_at_tightest:,} further inside."
        )
        bars = {
            "mark": {"type": "bar", "stroke": "#ffffff", "strokeWidth": 1},
            "encoding": {
                "x": axis("from", f"{name} that would just let it through", scale={"zero": False, "nice": False}),
                "x2": {"field": "to"},
                "y": axis("below", "alerts", axis={"tickCount": 4}),
                "y2": {"field": "above"},
                "color": colors("verdict", _VERDICTS),
            },
        }
        current_line = {
            "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 2},
            "encoding": {"x": {"datum": line.present, "type": "quantitative"}},
        }
        if any(interval.alerts for interval in line.intervals):
            charts.append(Chart(f"{line.rule}: near {line.param}", text, rows, {"layer": [bars, current_line]}))
    return charts


def _f1(cell: Cell) -> float:
    return f1(cell.precision, cell.fraud_recall)


def funnels(rule_funnels: Sequence[Funnel], names: Sequence[str]) -> list[Chart]:
    """Draw for each rule how many frauds reached each step. A funnel counts each fraud at the last step it reached."""
    charts = []
    for funnel in rule_funnels:
        if funnel.rule not in names or not funnel.walked:
            continue
        steps = list(funnel.steps)  # the first one stands for frauds that no run took
        reached = {step: sum(funnel.steps[later] for later in steps[index:]) for index, step in enumerate(steps)}
        rows = [{"step": "frauds looked at" if index == 0 else step, "frauds": reached[step]}
                for index, step in enumerate(steps)]  # fmt: skip
        text = f"Frauds that came so far in {funnel.rule}: " + "; ".join(
            f"{row['step']} {row['frauds']}" for row in rows
        ) + "."  # fmt: skip
        drawing = {
            "mark": "bar",
            "encoding": {
                "y": {"field": "step", "type": "nominal", "title": None, "sort": [row["step"] for row in rows]},
                "x": axis("frauds", "frauds that came so far", axis={"tickCount": 4, "format": "d"}),
            },
        }
        charts.append(Chart(f"{funnel.rule}: how far frauds came", text, rows, drawing, _ROW_HEIGHT * len(rows)))
    return charts


def weeks(by_week: Sequence[Mapping[str, Any]], names: Sequence[str], span: int = 1) -> list[Chart]:
    """Draw by week, or by `span` weeks: alert rate and precision of each rule, share of fraud, and money of events."""
    rate = [
        {"day": week["week"], "rule": of_rule["rule"], "value": 1_000 * of_rule["alerts"] / week["events"]}
        for week in by_week for of_rule in week["rules"] if of_rule["rule"] in names and week["events"]
    ]  # fmt: skip
    precision = [
        {"day": week["week"], "rule": of_rule["rule"], "value": of_rule["precision"]}
        for week in by_week for of_rule in week["rules"]
        if of_rule["rule"] in names and of_rule["precision"] is not None
    ]  # fmt: skip
    fraud = [  # of events that are old enough for a report
        {"day": week["week"], "value": 1_000 * week["fraud_events"] / week["mature_events"]}
        for week in by_week if week["mature_events"]
    ]  # fmt: skip
    money = [
        {"day": week["week"], "quantile": name, "value": week["amount"][index]}
        for week in by_week if week.get("amount") for index, name in enumerate(("median", "95 of 100 below"))
    ]  # fmt: skip
    week_text = _by(span)
    charts = [
        _lines(("Alerts by 1 000 events", week_text), "alerts by 1 000 events", rate, ("rule", names)),
        _lines(("Precision " + week_text, ""), "share", precision, ("rule", names)),
        _lines(("Fraud by 1 000 mature events", week_text), "events of frauds by 1 000", fraud, None),
        _lines(("Money of an event", week_text), "amount", money, ("quantile", ("median", "95 of 100 below"))),
    ]
    return [chart for chart in charts if chart.rows]


def field_weeks(drifts: Sequence[FieldDrift], span: int = 1) -> list[Chart]:
    """Draw the values of each field by week: quantiles of a number, or shares of the most frequent texts."""
    charts = []
    for drift in drifts:
        names, key = (drift.values, "shares") if drift.values else (_QUANTILE_NAMES, "quantiles")
        rows = [
            {"day": week["week"], "line": fitting(name, _NAME_CHARS), "value": value}
            for week in drift.weeks if week[key] is not None for name, value in zip(names, week[key], strict=True)
        ]  # fmt: skip
        if rows:
            unit = "share of events with a value" if drift.values else drift.field
            title = (f"{drift.field}: {'most frequent values' if drift.values else 'values'}", _by(span))
            charts.append(_lines(title, unit, rows, ("line", [fitting(name, _NAME_CHARS) for name in names])))
    return charts


def _by(span: int) -> str:
    return "by week" if span == 1 else f"by {span} weeks"


def _lines(title: tuple[str, str], unit: str, rows: Rows, color: tuple[str, Sequence[str]] | None) -> Chart:
    """Draw lines over days. A title has the drawn figure and the kind of time."""
    values = [row["value"] for row in rows]
    shown = f"between {min(values):.3g} and {max(values):.3g}" if values else "no values"
    encoding: dict[str, Any] = {"x": day_axis("day"), "y": axis("value", unit, axis={"tickCount": 4})}
    if color is not None:
        encoding["color"] = colors(*color)
    name, by = title
    text = f"{name}{', ' + by if by else ''}: {shown}."
    return Chart(name, text, rows, {"mark": {"type": "line", "point": True}, "encoding": encoding})


_SETS_MAX = 12
_RULES_MAX = 16  # rows of the matrix
_ROW_PX, _BARS_HEIGHT = 20, 110
_MEMBER, _OTHER = "#0072B2", "#d5d9df"


def upset(figures: Backtest) -> list[Chart]:
    """Draw the largest sets of rules that find the same frauds: a matrix of rules, with bars of frauds above."""
    sets = figures.overlap[:_SETS_MAX]
    totals = {each.rule: each.fraud_recall.part for each in figures.rules}
    inside = {rule for row in sets for rule in row["rules"]}
    names = sorted(inside, key=lambda rule: (-totals[rule], rule))[:_RULES_MAX]
    if not sets or not names:
        return []
    summary = "; ".join(f"{' and '.join(row['rules']) or 'no rule'}: {row['frauds']:,}" for row in sets)
    text = f"Frauds that exactly these rules find. {summary}."
    if len(inside) > len(names):
        text += f" {len(inside) - len(names)} rules with fewer frauds have no row."
    labels = {rule: f"{rule} ({totals[rule]:,})" for rule in names}
    rows = [
        {"set": index, "frauds": row["frauds"] if number == 0 else None, "rule": labels[rule],
         "member": rule in row["rules"]}
        for index, row in enumerate(sets) for number, rule in enumerate(names)
    ]  # fmt: skip
    joined = [
        {"set": index, "first": labels[members[0]], "last": labels[members[-1]]}
        for index, row in enumerate(sets) if len(members := [rule for rule in names if rule in row["rules"]]) > 1
    ]  # fmt: skip
    title = "Frauds by the rules that find them"
    return [Chart(title, text, rows, {"vconcat": [_bars(), _matrix([labels[rule] for rule in names], joined)],
                                      "spacing": 4})]  # fmt: skip


def _column(count_title: str | None = None) -> dict[str, Any]:
    """Return the axis of sets, which both parts have, each with its own title."""
    ticks = {"labels": False, "ticks": False, "domain": False, "grid": False}
    return axis("set", count_title or "", "ordinal", axis=ticks, scale={"paddingInner": 0.3, "paddingOuter": 0.2})


def _bars() -> dict[str, Any]:
    """Return the Vega-Lite drawing of the bars above the matrix: the number of frauds of each set of rules."""
    height = axis("frauds", "frauds", axis={"tickCount": 3, "format": "d"})
    return {
        "width": WIDTH,
        "height": _BARS_HEIGHT,
        "transform": [{"filter": "datum.frauds !== null"}],
        "encoding": {"x": _column(), "y": height},
        "layer": [
            {"mark": {"type": "bar", "color": _MEMBER}},
            {"mark": {"type": "text", "dy": -6, "fontSize": 11},
             "encoding": {"text": {"field": "frauds", "type": "quantitative", "format": ",d"}}},
        ],
    }  # fmt: skip


def _matrix(names: list[str], joined: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a Vega-Lite dot matrix: a column per set of rules, a dot per rule, a line from its first to its last."""
    y = {"field": "rule", "type": "nominal", "title": None, "sort": names}
    column = _column("sets of rules, the largest first (after a rule: all that it finds)")
    dot = {"type": "circle", "size": 110, "opacity": 1}
    line = {"type": "rule", "strokeWidth": 3, "color": _MEMBER}
    return {
        "width": WIDTH,
        "height": _ROW_PX * len(names),
        "layer": [
            {"data": {"values": joined}, "mark": line,
             "encoding": {"x": column, "y": {**y, "field": "first"}, "y2": {"field": "last"}}},
            {"mark": dot, "encoding": {"x": column, "y": y, "color": {
                "condition": {"test": "datum.member", "value": _MEMBER}, "value": _OTHER}}},  # blue, or grey
        ],
    }  # fmt: skip
