"""Payments as files that come one by one, rules that use all stages, and a query over them that ends and continues."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cep.engine.alerts import ALERT_SCHEMA, sort_alerts
from tests.api.frames import EVENT, PATTERN, START, payments, write_rules

# A chain of two levels, a list and suppression.
CHAIN = """
list bad: string = ["FR"]
event hit { hit_id id  event_time time  card_id string  amount decimal(2) }
pattern big by card_id {
  seq p  where p: payment amount > 600.00  emit card_id = p.card_id, amount = p.amount  produce hit
}
pattern twice by card_id { seq a -> b within 30 min  where a: hit  b: hit amount > a.amount  emit n = b.amount }
"""


def write_suppressing(folder: Path) -> Path:
    write_rules(folder)
    file = folder / "small_then_large.toml"
    file.write_text(file.read_text().replace("owner", 'suppress = "20 min"\nowner'))
    return folder


def write_chain(folder: Path) -> Path:
    """Write rules of two levels that read a list and suppress."""
    rule = (write_suppressing(folder) / "small_then_large.toml").read_text()
    asking = PATTERN.replace("tries > 0", "tries > 0 and (country is null or country not in bad)")
    (folder / "patterns.cep").write_text(EVENT + CHAIN + asking)
    for name in ("big", "twice"):
        text = rule.replace("small_then_large", name).replace("{baits} baits, then {amount} in {country}", "m")
        (folder / f"{name}.toml").write_text(text)
    return folder


def with_an_end() -> pa.Table:
    """Return the payments, and one a day later that closes all windows."""
    table = payments()
    last = table.slice(0, 1).to_pydict()
    last |= {"tx_id": ["end"], "event_time": [START + timedelta(days=1)], "card_id": ["end"], "tries": [0]}
    return pa.concat_tables([table, pa.table(last, table.schema)])


def add_file(folder: Path, number: int, rows: pa.Table) -> None:
    """Add a file of a stream; Spark reads files in the order of their times."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{number:03}.parquet"
    pq.write_table(rows, path.with_name(f".{path.name}"))
    os.utime(path.with_name(f".{path.name}"), (1_000_000_000 + number,) * 2)
    path.with_name(f".{path.name}").rename(path)


def as_alerts(rows: Any) -> pa.Table:
    """Return the alerts of a Spark DataFrame, sorted, with the engine's types."""
    return sort_alerts(rows.toArrow().select(ALERT_SCHEMA.names).cast(ALERT_SCHEMA))
