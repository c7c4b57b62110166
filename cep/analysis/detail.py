"""The level of detail of a report, from everything that a reader may want to a small fixed size.

A page is made with the first level; one that is too large is made with the next. The numbers as JSON are always
complete.
Tested by: tests/analysis/test_report.py
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Detail:
    """How much a page shows at most.

    `bars` of a chart by day: of a longer history each is a week, a month or a year. `points` of a line by week: of a
    longer history each covers several weeks. `rules` and `fields` are drawn. `rows` and `columns` are of a table.
    `thresholds` are parameters that are shown. `examples` are alerts and misses. `chars` are of a cell or a caption.
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


LEVELS = (
    Detail(120, 160, 8, 12, 200, 16, 24, 10, 400),
    Detail(60, 60, 8, 6, 100, 12, 12, 10, 300),
    Detail(30, 30, 4, 3, 50, 8, 6, 5, 200),
    Detail(12, 12, 2, 0, 20, 5, 2, 0, 80),
)
FULL = LEVELS[0]


def fitting(text: object, chars: int) -> str:
    """Return a text with so many characters at most."""
    whole = str(text)
    return whole if len(whole) <= chars else whole[: chars - 1] + "…"
