"""Parts of a report → one page of HTML, which needs no script, no network and no other file.

A table that is wider than the screen is scrolled by itself. A chart is an image inside the page, with its text.
Tested by: tests/analysis/test_report.py
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from cep.analysis.charts import Chart, image
from cep.analysis.detail import FULL, Detail, fitting

_STYLE = """\
:root { color-scheme: light }
body { margin: 0 auto; max-width: 84rem; padding: 1rem; font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a }
h1 { font-size: 1.6rem; line-height: 1.2 } h2 { margin-top: 2.5rem; border-bottom: 2px solid #0072b2 }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem } p, li { max-width: 60rem }
nav ol { columns: 18rem; padding-left: 1.4rem } a { color: #005a8d }
.scroll { overflow-x: auto; border: 1px solid #d5d9df }
table { border-collapse: collapse; font-size: .9rem; width: 100% }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #e3e6ea; text-align: right; white-space: nowrap;
  vertical-align: top }
th { background: #f2f5f8 } th:first-child, td:first-child, td.text, th.text { text-align: left }
td.text { white-space: normal; min-width: 9rem }
tr.fraud td { background: #fdeee3 } tr.bound td:first-child { font-weight: 700 }
.charts { display: grid; gap: 1rem; margin: .8rem 0;
  grid-template-columns: repeat(auto-fill, minmax(min(25rem, 100%), 1fr)) }
figure { margin: 0 } figure img { width: 100%; max-width: 30rem; height: auto }
figcaption { font-size: .8rem; color: #444 } .note { color: #444; font-size: .9rem } code { font-size: .9em }
details { margin: .6rem 0; border: 1px solid #d5d9df; padding: .4rem .8rem }
summary { cursor: pointer; font-weight: 600 }
@media (max-width: 40rem) { td:first-child { white-space: normal } }
@media print { details > * { display: block } }
"""
_COLUMNS_MIN = 18  # for the tables with fixed columns; only tables of kinds of fraud have more
_CAPTION_TIMES = 5  # as long as a cell may be the words under a chart
Cell = str | int | float | None


def escape(text: object) -> str:
    """Return a text in which nothing is markup."""
    return html.escape(str(text))


def page(title: str, sections: Sequence[tuple[str, str, str]]) -> str:
    """Return the whole page. A section is an anchor, a heading, and its HTML."""
    contents = "".join(f'<li><a href="#{anchor}">{escape(heading)}</a></li>' for anchor, heading, _ in sections)
    body = "".join(
        f'<section id="{anchor}"><h2>{number}. {escape(heading)}</h2>{inner}</section>\n'
        for number, (anchor, heading, inner) in enumerate(sections, start=1)
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        f"style-src 'unsafe-inline'\">\n<style>\n{_STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1><nav><ol>{contents}</ol></nav>\n{body}</body></html>\n"
    )


def paragraph(text: str, *, is_note: bool = False) -> str:
    """Return a paragraph of plain text."""
    return f'<p class="note">{escape(text)}</p>' if is_note else f"<p>{escape(text)}</p>"


def table(
    heads: Sequence[str], rows: Iterable[Sequence[Cell]], texts: Iterable[int] = (), classes: Sequence[str] = (),
    detail: Detail = FULL,
) -> str:  # fmt: skip
    """Return a table. Columns in `texts` are prose; `classes` has one for each row, or is empty.

    It has at most the rows and columns of `detail`, and a note with the number of the others.
    """
    prose, every = {*texts}, list(rows)
    width = min(len(heads), max(detail.columns, _COLUMNS_MIN))
    mark = [' class="text"' if column in prose else "" for column in range(width)]
    head = "".join(
        f'<th scope="col"{mark[column]}>{escape(fitting(name, detail.chars))}</th>'
        for column, name in enumerate(heads[:width])
    )
    lines = []
    for number, row in enumerate(every[: detail.rows]):
        cells = "".join(
            f"<td{mark[column]}>{escape('–' if cell is None else fitting(cell, detail.chars))}</td>"
            for column, cell in enumerate(row[:width])
        )
        class_ = f' class="{classes[number]}"' if classes and classes[number] else ""
        lines.append(f"<tr{class_}>{cells}</tr>")
    if not lines:
        return paragraph("Nothing.", is_note=True)
    inner = f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    more = [
        f"{count:,} more {name}"
        for count, name in ((len(every) - len(lines), "rows"), (len(heads) - width, "columns")) if count > 0
    ]  # fmt: skip
    note = paragraph(f"Not shown: {' and '.join(more)}.", is_note=True) if more else ""
    return f'<div class="scroll" tabindex="0"><table>{inner}</table></div>{note}'


def charts(page_charts: Iterable[Chart], detail: Detail = FULL) -> str:
    """Return charts side by side, as many as the screen has room for."""
    figures = []
    for chart in page_charts:
        address, whole = image(chart)
        text = escape(fitting(whole, _CAPTION_TIMES * detail.chars))
        figures.append(f'<figure><img src="{address}" alt="{text}"><figcaption>{text}</figcaption></figure>')
    return f'<div class="charts">{"".join(figures)}</div>' if figures else paragraph("Nothing to draw.", is_note=True)


def details(summary: str, inner: str) -> str:
    """Return a part that opens by itself, without a script."""
    return f"<details><summary>{escape(summary)}</summary>{inner}</details>"
