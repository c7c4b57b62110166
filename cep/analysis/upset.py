"""Sets of rules and the frauds that exactly these find → an UpSet chart (Lex and others 2014).

    frauds  █
            █  █
            █  █  ▄        a bar has the frauds that exactly the rules below it find
    a 5     ●  ●  ·
    b 3     ●  ·  ●        dots of one set are joined; a row has the frauds that its rule finds at all
    c 0     ·  ·  ·

Tested by: tests/analysis/test_report.py
"""

from __future__ import annotations

from typing import Any

from cep.analysis.backtest import Backtest
from cep.analysis.charts import WIDTH, Chart, axis

_SETS_MAX = 12
_RULES_MAX = 16  # rows of the matrix
_ROW_HEIGHT, _BARS_HEIGHT = 20, 110
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
    """Return the Vega-Lite drawing of the bars: the frauds of each set."""
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
    """Return the Vega-Lite drawing of the matrix: a dot for each rule of a set, and a line that joins them."""
    y = {"field": "rule", "type": "nominal", "title": None, "sort": names}
    column = _column("sets of rules, the largest first (after a rule: all that it finds)")
    dot = {"type": "circle", "size": 110, "opacity": 1}
    line = {"type": "rule", "strokeWidth": 3, "color": _MEMBER}
    return {
        "width": WIDTH,
        "height": _ROW_HEIGHT * len(names),
        "layer": [
            {"data": {"values": joined}, "mark": line,
             "encoding": {"x": column, "y": {**y, "field": "first"}, "y2": {"field": "last"}}},
            {"mark": dot, "encoding": {"x": column, "y": y, "color": {
                "condition": {"test": "datum.member", "value": _MEMBER}, "value": _OTHER}}},
        ],
    }  # fmt: skip
