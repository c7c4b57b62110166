"""Rows of figures → a chart as SVG, drawn locally by Vega (the extra `charts`), without scripts.

A chart has a title, units on its axes, and a text that describes it. Colours are those of Okabe and Ito, which
colour-blind people can distinguish. The same rows give the same bytes.
Tested by: tests/analysis/test_report.py
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import ceil
from typing import Any

from cep.base.errors import UsageError

Rows = Sequence[Mapping[str, Any]]
# Okabe and Ito 2008, the darkest first.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
WIDTH, HEIGHT = 360, 150
_LANGUAGE = "5.20"  # of Vega-Lite: another one may draw another picture
# A browser's letters may be wider than Vega's, by this share: DejaVu Sans compared with Liberation Sans. Without this
# margin long names would be cut off or overlap.
WIDER = 0.14
_LABEL_MAX, _LEGEND_MAX = 230, 160  # pixels of a name at an axis, and in a legend
_PADDING = {"left": ceil(WIDER * _LABEL_MAX), "right": 12, "top": 5, "bottom": 5}
_CONFIG = {
    "font": "Liberation Sans, Arial, Helvetica, sans-serif",
    "axis": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelLimit": _LABEL_MAX},
    "legend": {
        "labelFontSize": 12, "title": None, "orient": "bottom", "columns": 2, "labelLimit": _LEGEND_MAX,
        "columnPadding": 10 + ceil(WIDER * _LEGEND_MAX),
    },
    "title": {"fontSize": 14, "anchor": "start", "frame": "group"},
    "range": {"category": COLORS},
    "view": {"stroke": "#ddd"},
    "aria": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: its title, its description, its rows, and the marks and encodings of Vega-Lite that draw them."""

    title: str
    text: str
    rows: Rows
    drawing: Mapping[str, Any]
    height: int = HEIGHT

    def spec(self) -> dict[str, Any]:
        """Return the complete Vega-Lite specification, which notebooks can show as it is."""
        return {
            "$schema": f"https://vega.github.io/schema/vega-lite/v{_LANGUAGE[0]}.json",
            "title": self.title,
            "description": self.text,
            **({} if "vconcat" in self.drawing else {"width": WIDTH, "height": self.height}),
            "padding": _PADDING,
            "data": {"values": [dict(row) for row in self.rows]},
            "config": _CONFIG,
            **self.drawing,
        }


def package(name: str) -> Any:
    """Import a package of the extra `charts`. Raises: UsageError where it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError("reports need packages that are not here; run: pip install 'cep[charts]'") from error


def svg(chart: Chart) -> str:
    """Draw a chart. Raises: UsageError where the extra `charts` is not installed."""
    vega = package("vl_convert")
    drawn: str = vega.vegalite_to_svg(chart.spec(), vl_version=_LANGUAGE)
    return drawn


def image(chart: Chart) -> tuple[str, str]:
    """Return a chart as the address of an image that holds all of it, and the text that stands for it."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg(chart).encode()).decode(), chart.text


def axis(field: str, title: str, kind: str = "quantitative", **more: Any) -> dict[str, Any]:
    """Return one encoding with its title."""
    return {"field": field, "title": title, "type": kind, **more}


def day_axis(field: str) -> dict[str, Any]:
    """Return an axis of days of the calendar, in UTC."""
    ticks = {"format": "%d %b %y", "tickCount": 5}
    return axis(field, "day (UTC)", "temporal", scale={"type": "utc"}, axis=ticks)


def colors(field: str, order: Sequence[str]) -> dict[str, Any]:
    """Return one colour for each name, in this order."""
    scale = {"domain": list(order), "range": [COLORS[index % len(COLORS)] for index in range(len(order))]}
    return {"field": field, "type": "nominal", "sort": list(order), "scale": scale}
