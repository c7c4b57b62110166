"""The values of the fields that conditions read, by week: exact quantiles and shares."""

from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from cep.analysis.figure_charts import field_weeks
from cep.analysis.history import Events, replay_history
from cep.analysis.weeks import FieldDrift, by_field, fields_read
from cep.rulebook.deploy import Deployment, deploy
from cep.sources.pieces import read_pieces
from tests.analysis.bench_data import events_table
from tests.bench.peer_data import upsert
from tests.columnar.protected import keys as keys  # noqa: PLC0414 a fixture

pytestmark = pytest.mark.usefixtures("keys")
DAY_MS = 86_400_000
MONDAY_MS = 1_772_409_600_000  # 2026-03-02
SOURCE = """
event pay {
  tx_id       id
  event_time  time
  card_id     string
  card        string sensitive
  country     string?
  amount      decimal(2)
  online      bool
  note        string?
}
event login {
  tx_id       id
  event_time  time
  card_id     string
  tries       int
}
pattern abroad by card_id {
  seq    a -> b  within 1 h
  where  a: pay  country == "XX" and online
         b: pay  amount > a.amount and card == a.card
}
pattern much by card_id {
  seq    hit
  where  hit: login  tries > 3 and sum(pay.amount over 1 d) > 100.00
}
"""


def deployment() -> Deployment:
    deployed = deploy([upsert(SOURCE, "abroad"), upsert(SOURCE, "much")])
    assert deployed.set_aside == (), deployed.set_aside
    return deployed


def events_of(path: Path) -> Events:
    deployed = deployment()
    read = fields_read(deployed)
    return replay_history(deployed, partial(read_pieces, path), tuple(read), 1, Console(quiet=True)).events


@pytest.fixture
def drifts(tmp_path: Path) -> dict[str, FieldDrift]:
    """Four payments of one week, a fifth two weeks later, one past the date, and two logins."""
    rows = [
        (0, "pay", "XX", 1.00, True, None), (1, "pay", "NL", 2.00, True, None), (2, "pay", "NL", 3.00, False, None),
        (3, "pay", None, 5.00, True, None), (14, "pay", None, 9.50, False, None), (20, "pay", "DE", 7.00, True, None),
        (5, "login", None, None, None, 4), (5, "login", None, None, None, 6),
    ]  # fmt: skip
    table = events_table([
        {"tx_id": f"t{number}", "event_type": kind, "event_time": MONDAY_MS + day * DAY_MS, "card_id": "c", "card": "2",
         "country": country, "amount": amount, "online": online, "tries": tries, "note": "n"}
        for number, (day, kind, country, amount, online, tries) in enumerate(rows)
    ])  # fmt: skip
    path = tmp_path / "events.parquet"
    pq.write_table(table, path)
    drift = by_field(deployment(), events_of(path), MONDAY_MS + 15 * DAY_MS)
    return {each.field: each for each in drift}


def test_the_fields_are_those_that_conditions_read() -> None:
    """The fields leave out the id, the time, protected fields, and fields that no condition reads."""
    assert fields_read(deployment()) == {
        "amount": ("abroad", "much"), "country": ("abroad",), "online": ("abroad",), "tries": ("much",),
    }  # fmt: skip


def test_a_number_has_quantiles(drifts: dict[str, FieldDrift]) -> None:
    amount = drifts["amount"]
    assert (amount.event_types, amount.values) == (("pay",), ())
    first, second = amount.weeks
    assert first["quantiles"] == pytest.approx([1.15, 1.75, 2.5, 3.5, 4.7])
    assert (first["week"], first["events"], first["missing"]) == ("2026-03-02", 4, 0)
    assert second == {"week": "2026-03-16", "events": 1, "missing": 0, "quantiles": [9.5] * 5}
    assert drifts["tries"].weeks == (
        {"week": "2026-03-02", "events": 2, "missing": 0, "quantiles": pytest.approx([4.1, 4.5, 5.0, 5.5, 5.9])},
    )


def test_a_text_has_shares_of_events_with_a_value(drifts: dict[str, FieldDrift]) -> None:
    """A week without a value has null shares."""
    country = drifts["country"]
    assert country.values == ("NL", "XX")
    assert country.weeks == (
        {"week": "2026-03-02", "events": 4, "missing": 1, "distinct": 2, "shares": [2 / 3, 1 / 3]},
        {"week": "2026-03-16", "events": 1, "missing": 1, "distinct": 0, "shares": None},
    )
    assert drifts["online"].values == ("true", "false")
    assert [week["shares"] for week in drifts["online"].weeks] == [[0.75, 0.25], [0.0, 1.0]]


def test_each_field_is_a_chart_with_its_lines(drifts: dict[str, FieldDrift]) -> None:
    charts = {chart.title: chart for chart in field_weeks(list(drifts.values()))}
    assert set(charts) == {
        "amount: values", "country: most frequent values", "online: most frequent values", "tries: values",
    }  # fmt: skip
    rows = charts["amount: values"].rows
    assert {row["line"] for row in rows} == {f"{share} of 100 below" for share in (5, 25, 75, 95)} | {"median"}
    assert len(charts["country: most frequent values"].rows) == 2, "a week without values has no point"


def test_several_weeks_in_one(tmp_path: Path) -> None:
    table = pa.table({
        "tx_id": [f"t{number}" for number in range(6)], "event_type": ["login"] * 6, "card_id": ["c"] * 6,
        "event_time": pa.array([MONDAY_MS + 7 * DAY_MS * week for week in range(6)]).cast(pa.timestamp("ms", "UTC")),
        "tries": list(range(6)),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "e.parquet")
    drift = by_field(deployment(), events_of(tmp_path / "e.parquet"), 2**62, span=4)
    weeks = next(each for each in drift if each.field == "tries").weeks
    assert [(week["week"], week["events"]) for week in weeks] == [("2026-03-02", 4), ("2026-03-30", 2)]


def test_an_enum_is_shown_by_its_symbols(tmp_path: Path) -> None:
    source = """
event pay {
  tx_id       id
  event_time  time
  card_id     string
  kind        enum(chip, "3DS", online)
}
pattern online by card_id {
  seq    hit
  where  hit: pay  kind == online
}
"""
    deployed = deploy([upsert(source, "online")])
    rows = [{"tx_id": f"t{number}", "event_time": MONDAY_MS + number, "card_id": "c", "kind": kind}
            for number, kind in enumerate(["online", "3DS", "online", "chip", "online", "3DS"])]  # fmt: skip
    pq.write_table(events_table(rows), tmp_path / "e.parquet")
    events = replay_history(
        deployed, partial(read_pieces, tmp_path / "e.parquet"), ("kind",), 1, Console(quiet=True)
    ).events
    (kind,) = by_field(deployed, events, 2**62)
    assert kind.values == ("online", "3DS", "chip")
    assert kind.weeks[0]["shares"] == [3 / 6, 2 / 6, 1 / 6]
