"""Two sets of rules, or rules and labels → the differences, or the quality of the rules, as a notebook shows it.

Tested by: tests/api/test_features.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cep.analysis.backtest import Backtest, Figures, with_interval
from cep.analysis.measure import Measured
from cep.analysis.one_rule import ReplayedCharts
from cep.analysis.prune import Pruned, prune
from cep.analysis.report import report
from cep.api.alerts import in_columns
from cep.api.frames import ToFrame
from cep.base.errors import SinkError, UsageError
from cep.base.files import replace_file
from cep.base.schema import Schema
from cep.rulebook.difference import compare
from cep.rulebook.suppression import SHADOW
from cep.sources.pieces import Pieces


@dataclass(frozen=True)
class Difference:
    """The alerts that only the new rules give (`gained`), only those before (`lost`), and how many both give."""

    gained: Any  # a frame of the caller's package
    lost: Any
    kept_count: int
    _text: str

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__


def difference_of(before: pa.Table, after: pa.Table, to_frame: ToFrame) -> Difference:
    """Compare two sets of alerts."""
    comparison = compare(before, after)
    gained = _chosen(after, [alert["alert_id"] for alert in comparison.gained])
    lost = _chosen(before, [alert["alert_id"] for alert in comparison.lost])
    lines = [f"kept {comparison.kept_count:,}, gained {gained.num_rows:,}, lost {lost.num_rows:,}"]
    for title, table in (("gained", gained), ("lost", lost)):
        counts = pc.value_counts(table["rule_id"]).to_pylist()
        lines += [f"{title} {each['counts']:,} of {each['values']}" for each in counts]
    return Difference(to_frame(gained), to_frame(lost), comparison.kept_count, "\n".join(lines))


def _chosen(alerts: pa.Table, ids: list[str]) -> pa.Table:
    return alerts.filter(pc.is_in(alerts["alert_id"], value_set=pa.array(ids, pa.string())))


@dataclass(frozen=True, slots=True)
class Quality:
    """The outcome of a backtest: `figures.rules` has the figures of each rule, `figures.together` of all."""

    _measured: Measured
    _pieces_of: Callable[[Schema], Pieces]
    _thresholds_of: Callable[[Backtest, Sequence[str] | None], ReplayedCharts]

    @property
    def figures(self) -> Backtest:
        """The figures of each rule, and of all together."""
        return self._measured.figures

    def report(
        self, path: str | Path, *, against: Quality | None = None, review_cost: float = 0.0,
        thresholds: Sequence[str] | None = None,
    ) -> Path:  # fmt: skip
        """Write a report as a page of HTML, with its numbers as JSON, as `cep report` does. Return the path.

        `against` is a backtest of other rules on the same events. `thresholds` names the rules that are replayed
        with other values of their parameters: no rule if it is empty; None lets the report choose one rule. Raises:
        UsageError without the extra `charts`, SinkError.
        """
        page = Path(path)
        if page.suffix.lower() not in (".html", ".htm"):
            raise UsageError(f"{page}: name the report *.html; its numbers get the same name with .json")
        charts = self._thresholds_of(self.figures, thresholds)
        compared = None if against is None else self._measured_by(against)
        finished = report(self._measured, self._pieces_of, compared, review_cost, charts)
        try:
            for to, data in ((page.with_suffix(".json"), finished.numbers), (page, finished.html.encode())):
                replace_file(to, data)
        except OSError as error:
            raise SinkError(f"{page} cannot be written: {error}; make room or name another file") from error
        return page

    def prune(
        self, *, tolerance: float = 0.0, budget: float | None = None, alert_cost: float | None = None
    ) -> Pruned:  # fmt: skip
        """Say which rules could go without losing more than this share of the frauds, as `cep rules prune` does.

        With a `budget` the rules that stay have at most so many alerts a day together. `alert_cost` is the cost of an
        alert in frauds. Raises: UsageError.
        """
        if not 0 <= tolerance < 1:
            raise UsageError(f"tolerance {tolerance}: a share of the frauds, like 0.01")
        if budget is not None and not budget >= 0:
            raise UsageError(f"budget {budget}: a number of alerts a day, like 50")
        alerts_max = None if budget is None else budget * self.figures.about["days"]
        if alert_cost is not None and not alert_cost >= 0:
            raise UsageError(f"alert_cost {alert_cost}: a number of frauds for an alert, like 0.01")
        spared = [each.rule for each in self.figures.rules if each.status == SHADOW]  # they send no alerts
        return prune(self._measured.judged, self._measured.labelled, tolerance, alerts_max, alert_cost, spared)

    def _measured_by(self, other: Quality) -> Measured:
        return other._measured

    def to_json(self) -> dict[str, Any]:
        """Return all figures, as `cep backtest --json` writes them."""
        return self.figures.to_json()

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            ("rule", "alerts", "precision", "recall of frauds", "money found"),
            *(_row(each) for each in (*self.figures.rules, self.figures.together)),
        ]

    def __str__(self) -> str:
        return "\n".join(in_columns(self._rows()))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in self._rows())
        return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _row(each: Figures) -> tuple[str, ...]:
    return (
        each.rule,
        f"{each.alerts:,}",
        with_interval(each.precision),
        with_interval(each.fraud_recall),
        f"{each.money_found:,.2f}",
    )
