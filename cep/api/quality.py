"""Two sets of rules, or rules and labels → what changes, and how good the rules are, as a notebook shows it.

Tested by: tests/api/test_quality.py
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cep.analysis.backtest import Backtest, Figures
from cep.analysis.show import with_interval
from cep.api.frames import Like
from cep.rulebook.compare import compare


@dataclass(frozen=True)
class Difference:
    """The alerts that only the new rules give (`gained`), only those before (`lost`), and how many both give."""

    gained: Any
    lost: Any
    kept_count: int
    _text: str

    @staticmethod
    def of(before: pa.Table, after: pa.Table, like: Like) -> Difference:
        """Compare two sets of alerts."""
        comparison = compare(before, after)
        gained = _chosen(after, [alert["alert_id"] for alert in comparison.gained])
        lost = _chosen(before, [alert["alert_id"] for alert in comparison.lost])
        lines = [f"kept {comparison.kept_count:,}, gained {gained.num_rows:,}, lost {lost.num_rows:,}"]
        for title, table in (("gained", gained), ("lost", lost)):
            counts = pc.value_counts(table["rule_id"]).to_pylist()
            lines += [f"{title} {each['counts']:,} of {each['values']}" for each in counts]
        return Difference(like(gained), like(lost), comparison.kept_count, "\n".join(lines))

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__


def _chosen(alerts: pa.Table, ids: list[str]) -> pa.Table:
    return alerts.filter(pc.is_in(alerts["alert_id"], value_set=pa.array(ids, pa.string())))


@dataclass(frozen=True, slots=True)
class Quality:
    """The figures of a backtest: `figures.rules` has those of each rule, `figures.together` those of all."""

    figures: Backtest

    def to_json(self) -> dict[str, Any]:
        """Return all figures, as `cep backtest --json` writes them."""
        return self.figures.to_json()

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            ("rule", "alerts", "precision", "recall of frauds", "money found"),
            *(_row(each) for each in (*self.figures.rules, self.figures.together)),
        ]

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )

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
