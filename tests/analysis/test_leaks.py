"""Rules that read the label are refused; fields that reveal it, and histories of frauds alone, are named."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from cep.analysis.labels import labels_of_column
from cep.analysis.leaks import check_unread, warnings_of
from cep.analysis.measure import Measured, Terms, measure
from cep.base.errors import UsageError
from cep.rulebook.deploy import deploy
from cep.sources.pieces import read_pieces
from tests.analysis.bench_data import DAY_MS, START_MS
from tests.bench.peer_data import upsert

SOURCE = """
event pay {
  tx_id       id
  event_time  time
  card_id     string
  amount      decimal(2)
  verdict     enum(clear, blocked)
  reason      string?
  is_fraud    bool
}
pattern large by card_id { seq hit where hit: pay amount > 100.00 }
pattern sure by card_id { seq hit where hit: pay is_fraud }
"""


def history(frauds: int, count: int = 200) -> pa.Table:
    """Return a history: frauds have amounts from 500.00 on, a reason, and mostly a verdict that was changed later."""
    return pa.table({
        "tx_id": [f"t{number}" for number in range(count)],
        "event_time": pa.array([START_MS + n * DAY_MS // 20 for n in range(count)], pa.timestamp("ms", "UTC")),
        "card_id": [f"c{number % 7}" for number in range(count)],
        "amount": [500.0 + number if number < frauds else 1.0 + number / 2 for number in range(count)],
        "verdict": ["blocked" if number < frauds - 1 else "clear" for number in range(count)],
        "reason": [f"note {number}" if number < frauds else None for number in range(count)],
        "is_fraud": [number < frauds for number in range(count)],
    })  # fmt: skip


def measured(table: pa.Table, folder: Path, rule: str, terms: Terms, console: Console) -> Measured:
    pq.write_table(table, folder / "events.parquet")
    deployment = deploy([upsert(SOURCE, rule)])
    labels = labels_of_column([table], "is_fraud", deployment.schema)
    pieces_of = partial(read_pieces, folder / "events.parquet")
    return measure(deployment, pieces_of, labels, terms, console, ("amount", "verdict", "reason"))


def test_a_rule_that_reads_the_label_is_refused_until_it_is_allowed(tmp_path: Path) -> None:
    table, quiet = history(20), Console(quiet=True)
    with pytest.raises(UsageError, match=r"rule sure reads `is_fraud`, the column of the labels.*--allow-label"):
        measured(table, tmp_path, "sure", Terms(), quiet)
    allowed = measured(table, tmp_path, "sure", Terms(allow_label=True), quiet)
    assert allowed.figures.together.precision.value == 1.0
    labels = labels_of_column([table], "is_fraud", allowed.history.deployment.schema)
    check_unread(allowed.history.deployment, replace(labels, fields=()))


def test_fields_that_separate_frauds_are_named(tmp_path: Path) -> None:
    errors = Console(record=True, width=300, file=(tmp_path / "errors").open("w"))
    measurement = measured(history(60), tmp_path, "large", Terms(), errors)
    printed = errors.export_text()
    assert "warning: `amount >= 500.00` alone separates nearly all frauds" in printed
    assert "warning: `verdict == blocked` alone separates" in printed
    assert "warning: `reason is not null` alone separates" in printed
    few = measured(history(9), tmp_path, "large", Terms(), Console(quiet=True))
    labels = labels_of_column([history(9)], "is_fraud", few.history.deployment.schema)
    assert list(warnings_of(few.history.events, few.marks, ("amount",), labels)) == []
    turned = measurement.marks.fraud * 0
    (line,) = warnings_of(measurement.history.events, replace(measurement.marks, fraud=turned), ("amount",), labels)
    assert line.startswith("200 of 200 events are fraud by the column is_fraud")
