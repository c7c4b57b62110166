"""Random payments with frauds that come in episodes, three rules, and labels: as files and as tables."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cep.model.rule import UpsertRecord
from cep.rulebook.deploy import Deployment, deploy
from cep.sources.pieces import Pieces, read_pieces
from tests.bench.peer_data import upsert

START_MS = 1_772_323_200_000  # 2026-03-01
DAY_MS = 86_400_000
SOURCE = """
event pay {
  tx_id       id
  event_time  time
  card_id     string
  shop        string
  amount      decimal(2)
}
pattern small_large(large: decimal = 300.00) by card_id {
  seq    bait -> hit  within 2 h
  where  bait: pay  amount < 5.00
         hit:  pay  amount > large
  skip   past last
}
pattern large(large: decimal = 450.00) by card_id {
  seq    hit
  where  hit: pay  amount > large
}
pattern busy_shop(count: int = 3) by shop {
  seq    hit{3}  within 6 h
  where  hit: pay  amount > 200.00
  skip   past last
}
pattern never by card_id {
  seq    hit
  where  hit: pay  amount > 1000000.00
}
"""
NAMES = ("busy_shop", "large", "never", "small_large")


def rules(*names: str) -> list[UpsertRecord]:
    """Return rules of the source by name, or all if `names` is empty."""
    return [upsert(SOURCE, name) for name in names or NAMES]


def deployed(*names: str) -> Deployment:
    deployment = deploy(rules(*names))
    assert deployment.set_aside == (), deployment.set_aside
    return deployment


def events_table(rows: list[dict[str, Any]]) -> pa.Table:
    """Return rows as a table. Their `event_time` is in milliseconds."""
    table = pa.Table.from_pylist(rows)
    times = table["event_time"].cast(pa.timestamp("ms")).cast(pa.timestamp("ms", "UTC"))
    return table.set_column(table.column_names.index("event_time"), "event_time", times)


def payments(seed: int, count: int = 3_000, days: int = 20) -> tuple[pa.Table, pa.Table]:
    """Return (events, labels): one event in twenty belongs to an episode; its report comes up to ten days later."""
    draw = random.Random(seed)
    events, labels = [], []
    bad_cards = {f"c{n}": (f"e{n}", draw.randrange(days)) for n in range(0, 60, 4)}
    for number in range(count):
        card, time_ms = f"c{draw.randrange(60)}", START_MS + draw.randrange(days * DAY_MS)
        episode, day = bad_cards.get(card, ("", -9))
        is_bad = episode and abs((time_ms - START_MS) // DAY_MS - day) <= 1 and draw.random() < 0.8
        amount = draw.choice([2, 60, 250, 320, 500, 900] if is_bad else [1, 2, 30, 60, 60, 80, 120, 210, 320])
        row = {
            "tx_id": f"t{number}", "event_time": time_ms, "card_id": card, "shop": f"s{draw.randrange(12)}",
            "amount": amount + draw.randrange(100) / 100, "is_fraud": bool(is_bad),
        }  # fmt: skip
        events.append(row)
        if is_bad or draw.random() < 0.02:
            labels.append({
                "event_id": row["tx_id"], "label": bool(is_bad), "kind": "probe" if amount < 100 else "spree",
                "episode": episode if is_bad else None, "reported_at": time_ms + draw.randrange(10 * DAY_MS),
            })  # fmt: skip
    return events_table(events), pa.Table.from_pylist(labels)


def pieces_of(table: pa.Table, folder: Path) -> Pieces:
    path = folder / "events.parquet"
    pq.write_table(table, path)
    return read_pieces(path, deployed().schema)
