"""The report of the simulated day: the rules find exactly the planted frauds."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow.parquet as pq
from rich.console import Console

from cep.demo.day import SIZES
from cep.demo.labels import report_day, write_labels
from cep.demo.stream import build


def test_the_days_rules_find_what_was_planted(tmp_path: Path) -> None:
    stream = build(7, SIZES["small"])
    pq.write_table(stream.payments, tmp_path / "payments.parquet")
    labels = write_labels(stream, tmp_path)
    page_and_numbers = report_day(tmp_path / "payments.parquet", labels, 2, Console(quiet=True))
    numbers = orjson.loads(page_and_numbers.numbers)
    together = numbers["together"]
    planted = sum(case.fires for case in stream.planted)
    assert numbers["about"]["frauds"] == planted
    assert (together["precision"]["value"], together["fraud_recall"]["part"]) == (1.0, planted)
    assert together["recall_by_kind"].keys() == {case.rule_id for case in stream.planted if case.fires}
    assert "Frauds that no rule finds" in page_and_numbers.html
