"""A report is below a megabyte for any input: with many rules, years and thresholds it shows less, and says so."""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from cep.analysis.detail import LEVELS, fitting
from cep.analysis.labels import Labels, labels_of_table
from cep.analysis.measure import Measured, Terms, measure
from cep.analysis.one_rule import OneRule, one_rule_of
from cep.analysis.report import Report, report
from cep.analysis.thresholds import Drawn, Replays, drawn
from cep.base.limits import REPORT_BYTES_MAX
from cep.base.schema import Schema
from cep.lists.store import ListStore
from cep.rulebook.deploy import deploy
from cep.sources.pieces import read_pieces
from tests.analysis.bench_data import DAY_MS, START_MS
from tests.bench.peer_data import upsert

SILENT = Console(quiet=True)
RULES, YEARS, PAYMENTS = 24, 6, 2_000
NAMES = tuple(f"over_a_limit_of_the_{number:02}th_shop_and_its_neighbours" for number in range(RULES))
EVENT = """
event pay {
  tx_id       id
  event_time  time
  card_id     string
  note        string
  amount      decimal(2)
}
"""
PATTERN = """
pattern NAME(large: decimal = LARGE.00, known: int = 1, recent: int = 1) by card_id {
  seq    hit
  where  hit: pay  amount > large and count(pay over 30 d) >= known and count(pay over 60 d) >= recent and note != ""
}
"""
SOURCE = EVENT + "".join(
    PATTERN.replace("NAME", name).replace("LARGE", str(100 + 10 * number)) for number, name in enumerate(NAMES)
)


def write_events(path: Path) -> pa.Table:
    """Write payments of years with long notes. Return labels, each of its own kind with a long name."""
    draw = random.Random(1)
    rows: list[dict[str, Any]] = [
        {"tx_id": f"t{number}", "event_time": START_MS + number * YEARS * 365 * DAY_MS // PAYMENTS,
         "card_id": f"c{number % 40}", "note": f"<{draw.randrange(10**6)}> " * 60,
         "amount": draw.randrange(60_000) / 100}
        for number in range(PAYMENTS)
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows)
    times = table["event_time"].cast(pa.timestamp("ms")).cast(pa.timestamp("ms", "UTC"))
    pq.write_table(table.set_column(1, "event_time", times), path)
    bad = [row["tx_id"] for row in rows if row["amount"] > 330 and draw.random() < 0.3]
    kinds = [f"kind {number} & {'so ' * 100}" for number in range(len(bad))]
    return pa.table({"event_id": bad, "label": [True] * len(bad), "kind": kinds})


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Measured, Path, Drawn]:
    path = tmp_path_factory.mktemp("size") / "events.parquet"
    labels = write_events(path)
    deployment = deploy([upsert(SOURCE, name) for name in NAMES])

    def labels_of(schema: Schema) -> Labels:
        return labels_of_table(labels, schema, "labels")

    def rule_of(name: str) -> OneRule:
        return one_rule_of(upsert(SOURCE, name), ([], ListStore()))

    measured = measure(deployment, partial(read_pieces, path), labels_of(deployment.schema), Terms(), SILENT)
    replays = Replays(rule_of, partial(read_pieces, path), labels_of, Terms(), SILENT)
    return measured, path, drawn(replays, measured.figures, NAMES[:3])


def report_of(inputs: tuple[Measured, Path, Drawn]) -> Report:
    measured, path, thresholds = inputs
    return report(measured, partial(read_pieces, path), measured, 5.0, thresholds)


def test_a_large_report_shows_less_and_says_so(
    inputs: tuple[Measured, Path, Drawn], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = report_of(inputs)
    assert len(small.html.encode()) < REPORT_BYTES_MAX
    assert "To stay below a megabyte this page shows less" in small.html
    assert f"{RULES} rules over {PAYMENTS:,} events" in small.html
    numbers = orjson.loads(small.numbers)
    assert len(numbers["rules"]) == RULES
    assert len(numbers["weeks"]) > 300
    assert {curve["rule"] for curve in numbers["thresholds"]} == set(NAMES[:3])
    monkeypatch.setattr("cep.analysis.report.REPORT_BYTES_MAX", 10**9)
    whole = report_of(inputs)
    assert len(whole.html.encode()) > REPORT_BYTES_MAX, "the input is large enough to need it"
    assert "To stay below a megabyte" not in whole.html
    assert whole.numbers == small.numbers


def test_the_last_level_has_room_to_spare(
    inputs: tuple[Measured, Path, Drawn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cep.analysis.report.LEVELS", LEVELS[-1:])
    html = report_of(inputs).html
    assert len(html.encode()) < REPORT_BYTES_MAX / 3
    assert "Left out: the page would be too large." in html
    assert "Not shown: " in html


def test_each_level_shows_no_more_than_the_one_before() -> None:
    for level, less in pairwise(LEVELS):
        sizes = [(getattr(level, name), getattr(less, name)) for name in level.__slots__]
        assert all(more >= fewer for more, fewer in sizes)
        assert any(more > fewer for more, fewer in sizes)


def test_a_long_text_is_cut() -> None:
    assert fitting("abc", 3) == "abc"
    assert fitting("abcd", 3) == "ab…"
