"""Blocks and charts of a report → one page of HTML, which needs no script, no network and no other file.

report.html, a template of Jinja, has the markup. A chart is an image inside the page, drawn as SVG by Vega on this
machine (the extra `charts`). It has a title, units on its axes, and a text that describes it. Colours are those of
Okabe and Ito, which colour-blind people can distinguish. The same rows give the same bytes.
Tested by: tests/analysis/test_report.py
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
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


@dataclass(frozen=True, slots=True)
class Detail:
    """How much a report's page shows at most.

    `bars` are in a chart by day; in a longer history each stands for a week, a month or a year. `points` are in a line
    by week; in a longer history each stands for several weeks. `rules`, `fields` and `thresholds` have charts. `rows`
    and `columns` are in a table, `examples` are alerts and missed frauds, and `chars` are in a cell or a caption.
    """

    bars: int
    points: int
    rules: int
    fields: int
    rows: int
    columns: int
    thresholds: int
    examples: int
    chars: int


DETAIL_STEPS = (
    Detail(120, 160, 8, 12, 200, 16, 24, 10, 400),
    Detail(60, 60, 8, 6, 100, 12, 12, 10, 300),
    Detail(30, 30, 4, 3, 50, 8, 6, 5, 200),
    Detail(12, 12, 2, 0, 20, 5, 2, 0, 80),
)
FULL = DETAIL_STEPS[0]


def fitting(text: object, chars: int) -> str:
    """Return a text with so many characters at most."""
    whole = str(text)
    return whole if len(whole) <= chars else whole[: chars - 1] + "…"


_COLUMNS_MIN = 18  # for the tables with fixed columns; only tables of kinds of fraud have more
_CAPTION_TIMES = 5  # as long as a cell may be the words under a chart
Cell = str | int | float | None


Blocks = list[Mapping[str, Any]]  # of `report.html`: the kind of each block, and its parts


def page(title: str, sections: Sequence[tuple[str, str, Blocks]]) -> str:
    """Return the whole page. A section is an anchor, a heading, and its blocks. No text of a block is markup. Raises:
    UsageError without the extra `charts`."""
    jinja2 = package("jinja2")
    settings = {"autoescape": True, "undefined": jinja2.StrictUndefined, "keep_trailing_newline": True}
    template = files("cep.analysis").joinpath("report.html").read_text(encoding="utf-8")
    whole: str = jinja2.Environment(**settings).from_string(template).render(title=title, sections=sections)
    return whole


def heading(text: str) -> Blocks:
    """Return a heading inside of a section."""
    return [{"kind": "heading", "text": text}]


def paragraph(text: str, *, is_note: bool = False) -> Blocks:
    """Return a paragraph of plain text. A note is printed smaller."""
    return [{"kind": "paragraph", "text": text, "is_note": is_note}]


def table(
    heads: Sequence[str], rows: Iterable[Sequence[Cell]], texts: Iterable[int] = (), classes: Sequence[str] = (),
    detail: Detail = FULL,
) -> Blocks:  # fmt: skip
    """Return a table with at most the rows and columns of `detail`, and a note about the others. Columns in `texts` are
    prose; `classes` has one for each row, or is empty."""
    all_rows = list(rows)
    width = min(len(heads), max(detail.columns, _COLUMNS_MIN))
    shown = [
        ["–" if cell is None else fitting(cell, detail.chars) for cell in row[:width]]
        for row in all_rows[: detail.rows]
    ]
    if not shown:
        return paragraph("Nothing.", is_note=True)
    names = [fitting(name, detail.chars) for name in heads[:width]]
    more = [
        f"{count:,} more {name}"
        for count, name in ((len(all_rows) - len(shown), "rows"), (len(heads) - width, "columns")) if count > 0
    ]  # fmt: skip
    note = paragraph(f"Not shown: {' and '.join(more)}.", is_note=True) if more else []
    whole = {"kind": "table", "heads": names, "rows": shown, "texts": frozenset(texts), "classes": classes}
    return [whole, *note]


def charts(page_charts: Iterable[Chart], detail: Detail = FULL) -> Blocks:
    """Return charts side by side, as many as the screen has room for: the address and the text of each."""
    images = [image(chart) for chart in page_charts]
    if not images:
        return paragraph("Nothing to draw.", is_note=True)
    captioned = [(address, fitting(text, _CAPTION_TIMES * detail.chars)) for address, text in images]
    return [{"kind": "charts", "images": captioned}]


def details(summary: str, blocks: Blocks) -> Blocks:
    """Return a part that opens by itself, without a script."""
    return [{"kind": "details", "summary": summary, "blocks": blocks}]
