"""Alerts → charts: the number per day, and the distribution of the emitted values.

A chart has counts and no alert. A notebook draws its Vega-Lite, or its SVG if the extra `charts` is installed.

An SVG text, and possibly a chart in Vega-Lite → the output of a notebook.

Tested by: tests/api/test_alerts.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.analysis.charts import Chart, axis, colors, svg
from cep.base.errors import UsageError
from cep.columnar.batch import TEXT
from cep.columnar.numbers import different_count
from cep.columnar.texts import encoded

VEGA_LITE = "application/vnd.vegalite.v5+json"


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as SVG, its text for places without pictures, and its Vega-Lite if it is a chart."""

    svg: str
    text: str = ""
    spec: dict[str, Any] | None = None

    def __str__(self) -> str:
        return self.text or self.svg

    __repr__ = __str__

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        chart = {} if self.spec is None else {VEGA_LITE: self.spec}
        return {**chart, "image/svg+xml": self.svg, "text/plain": str(self)}


_BARS_MAX = 20


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart of counts: `spec` is its Vega-Lite, `svg` the picture, and the text describes it."""

    _chart: Chart

    @property
    def spec(self) -> dict[str, Any]:
        """The chart in Vega-Lite, to change or to save."""
        return self._chart.spec()

    @property
    def svg(self) -> str:
        """The chart as SVG. Raises: UsageError without the extra `charts`."""
        return svg(self._chart)

    def __str__(self) -> str:
        return self._chart.text

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        bundle = {VEGA_LITE: self.spec, "text/plain": str(self)}
        try:
            return {**bundle, "image/svg+xml": self.svg}
        except UsageError:
            return bundle


def by_day(alerts: pa.Table) -> Plot:
    """Draw the alerts of each calendar day, in UTC, by rule, for the rules with the most alerts."""
    counts = pc.value_counts(alerts["rule_id"]).to_pylist()
    rules = sorted(each["values"] for each in sorted(counts, key=lambda each: -each["counts"])[:_BARS_MAX])
    days = pc.strftime(alerts["detected_at"], "%Y-%m-%d")
    grouped = (
        pa.table({"day": days, "rule": alerts["rule_id"]}).group_by(["day", "rule"]).aggregate([([], "count_all")])
    )
    rows = [
        {"day": row["day"], "rule": row["rule"], "alerts": row["count_all"]}
        for row in grouped.sort_by([("day", "ascending"), ("rule", "ascending")]).to_pylist()
        if row["rule"] in rules
    ]
    drawing = {
        "mark": {"type": "bar", "width": {"band": 0.9}},
        "encoding": {
            "x": axis("day", "day (UTC)", "temporal", timeUnit="utcyearmonthdate"),
            "y": axis("alerts", "alerts a day", stack="zero"),
            "color": colors("rule", rules),
        },
    }
    shown = {row["day"] for row in rows}
    text = f"{sum(row['alerts'] for row in rows):,} alerts of {len(rules)} rules on {len(shown)} days"
    return Plot(Chart("Alerts a day", text, rows, drawing))


def spread(values: pa.ChunkedArray, rule_id: str, measure: str) -> Plot:
    """Draw how often which values came: numbers in ranges, others by value. Raises: UsageError."""
    measured = values.drop_null()
    type_ = measured.type
    is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    title = f"{rule_id}: {measure}"
    if is_number and different_count(np.asarray(measured.cast(pa.float64()))) > _BARS_MAX:
        return Plot(_ranges(measured, title, measure))
    return Plot(_values(measured, title, measure, ordered=is_number))


def _ranges(values: pa.ChunkedArray, title: str, measure: str) -> Chart:
    """Draw how many alerts have a value in each of some ranges."""
    numbers = np.asarray(values.cast(pa.float64()))
    try:
        counts, edges = np.histogram(numbers[np.isfinite(numbers)], bins=_BARS_MAX)
    except ValueError as error:
        raise UsageError(f"the values of `{measure}` are too far apart to be drawn") from error
    rows = [
        {"from": low, "to": high, "alerts": count}
        for low, high, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
    ]
    drawing = {
        "mark": {"type": "bar"},
        "encoding": {
            "x": axis("from", measure, bin={"binned": True}),
            "x2": {"field": "to"},
            "y": axis("alerts", "alerts"),
        },
    }
    median = float(np.median(numbers))
    return Chart(title, f"{title} of {len(numbers):,} alerts, half of them up to {median:g}", rows, drawing)


def _values(values: pa.ChunkedArray, title: str, measure: str, *, ordered: bool) -> Chart:
    """Draw how many alerts have each of the most frequent values."""
    if pa.types.is_large_string(values.type) or pa.types.is_string(values.type):  # a sender may have chosen these texts
        values = pa.chunked_array([encoded(values.combine_chunks().cast(TEXT))])
    counts = sorted(pc.value_counts(values).to_pylist(), key=lambda each: -each["counts"])
    chosen = counts[:_BARS_MAX]
    if ordered:
        chosen = sorted(chosen, key=lambda each: float(each["values"]))
    rows = [{"value": _text(each["values"]), "alerts": each["counts"]} for each in chosen]
    drawing = {
        "mark": {"type": "bar"},
        "encoding": {"x": axis("alerts", "alerts"), "y": axis("value", measure, "nominal", sort=None)},
    }
    shown = f"the {len(rows)} most frequent of {len(counts):,} values" if len(counts) > len(rows) else "all values"
    return Chart(title, f"{title} of {len(values):,} alerts: {shown}", rows, drawing, height=max(20 * len(rows), 40))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
