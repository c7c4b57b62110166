"""Labels of source events, and alerts of patterns that read the derived events of other patterns."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from cep.analysis.measure import Measured, Terms, measure_files
from cep.rulebook.deploy import deploy
from tests.runners.laundering import circles, records, transfers


def first_ids(table: pa.Table) -> set[str]:
    """Return the ids of the transfers that a circle may begin with, from all pairs that pass money on."""
    rows = [{**row, "ms": round(row["event_time"].timestamp() * 1_000)} for row in table.to_pylist()]
    begun = {(origin, via, target) for origin, via, target, _ in circles(table)}
    ids = set()
    for one, two in product(rows, repeat=2):
        passed_on = (one["payer"], one["payee"], two["payee"]) in begun and one["payee"] == two["payer"]
        if passed_on and one["amount"] >= two["amount"] and 0 < two["ms"] - one["ms"] < 600_000:
            ids.add(one["tx_id"])
    return ids


def measured(folder: Path, ids: set[str]) -> Measured:
    table = transfers(1, 120)
    pq.write_table(table, folder / "transfers.parquet")
    pcsv.write_csv(pa.table({"event_id": sorted(ids)}), folder / "labels.csv")
    return measure_files(
        deploy(records()), folder / "transfers.parquet", str(folder / "labels.csv"), Terms(), Console(quiet=True)
    )


def test_an_alert_of_a_chain_finds_the_frauds_it_begins_with(tmp_path: Path) -> None:
    """The first transfer completes no produced event of the alert. It is only one of the events below them."""
    ids = first_ids(transfers(1, 120))
    measurement = measured(tmp_path, ids)
    figures = measurement.figures.together
    assert measurement.judged.names == ("circle",)
    assert measurement.judged.is_right.all()
    assert len(measurement.judged.is_right) > 0
    assert figures.precision.value == pytest.approx(1.0)
    rows = {measurement.history.events.event_id[row].as_py() for row in measurement.judged.bound_row.tolist()}
    assert rows & ids
    assert all(not event_id.count("~") for event_id in rows)


def test_an_alert_of_a_chain_is_wrong_where_nothing_behind_it_is_bad(tmp_path: Path) -> None:
    table = transfers(1, 120)
    events = set(table["tx_id"].to_pylist())
    everything = measured(tmp_path, first_ids(table))
    bound = {everything.history.events.event_id[row].as_py() for row in everything.judged.bound_row.tolist()}
    others = events - bound
    assert others
    assert not measured(tmp_path, others).judged.is_right.any()
