"""Card transactions for the tests of replay: a sample of a public data set if available, otherwise generated ones.

Both have the columns tx_id, event_time, customer_id, terminal_id, amount (a double of cents).
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cep.lang.check.bind import bind
from cep.lang.ir import PatternIR
from cep.lang.load import load_text
from cep.model.rule import UpsertRecord
from tests.oracle.matcher import Event, find_matches

# Kept next to the repository, shared with other projects.
PUBLIC = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "ulb_handbook_transactions.parquet"
COLUMNS = ("tx_id", "event_time", "customer_id", "terminal_id", "amount")
CUSTOMERS = 150
DAYS = 60
DAY_MS = 86_400_000

EVENT = """
event payment {
  tx_id        id
  event_time   time
  customer_id  string
  terminal_id  string
  amount       decimal(2)
}
"""
SOURCE = (
    EVENT
    + """\
pattern rising(times: int = 3, window: duration = 2 d) by customer_id {
  seq    up{times}  within window
  where  up: payment  up.amount is null or amount > 1.5 * up.amount
  skip   past last
  emit   first_amount = first(up).amount, amount = up.amount
}
pattern small_then_large by customer_id {
  seq    small -> large  within 12 h
  where  small: payment  amount < 5.00
         large: payment  amount > 60.00
  emit   amount = large.amount, terminal = large.terminal_id
}
pattern burst by customer_id {
  seq    a{2,} -> b  within 3 h
  where  a: payment  amount > 10.00
         b: payment  amount > 40.00 and sum(a.amount) > 60.00
  skip   past last
  emit   payments = count(a), total = sum(a.amount), amount = b.amount
}
pattern terminal_rising by terminal_id {
  seq    up{3}  within 7 d
  where  up: payment  up.amount is null or amount > 1.5 * up.amount
  skip   to next
  emit   amount = up.amount
}
pattern terminal_quiet by terminal_id {
  seq    large -> !any_payment  within 4 d
  where  large: payment  amount > 80.00
         any_payment: payment
  emit   amount = large.amount
}
pattern terminal_many by terminal_id {
  seq    a ->> b  within 6 h
  where  a: payment  amount > 30.00
         b: payment  amount > a.amount and customer_id != a.customer_id
  skip   none
  emit   customer = b.customer_id, amount = b.amount
}
"""
)
BY_CUSTOMER = ("rising", "small_then_large", "burst")
BY_TERMINAL = ("terminal_rising", "terminal_quiet", "terminal_many")


def transactions() -> pa.Table:
    """Return all transactions of some customers in the first days."""
    table = everything()
    first = pc.min(table["event_time"]).cast(pa.int64()).as_py()
    early = pc.less(table["event_time"].cast(pa.int64()), first + DAYS * DAY_MS)
    return table.filter(pc.and_(early, pc.less(table["customer_id"], CUSTOMERS))).combine_chunks()


def everything() -> pa.Table:
    table = pq.read_table(PUBLIC, columns=list(COLUMNS)) if PUBLIC.exists() else _generated()
    return table.cast(table.schema.set(1, pa.field("event_time", pa.timestamp("ms", "UTC"))), safe=False)


def _generated() -> pa.Table:
    """Return payments of customers who are often at terminals near them, and sometimes anywhere."""
    random = np.random.default_rng(5)
    count = CUSTOMERS * 120
    start_ms = 1_522_540_800_000
    times = start_ms + np.sort(random.integers(0, DAYS * DAY_MS, count))
    customer_id = random.integers(0, CUSTOMERS, count)
    near = customer_id * 7 + random.integers(0, 20, count)
    return pa.table(
        {
            "tx_id": np.arange(count),
            "event_time": pa.array(times, pa.timestamp("ms", "UTC")),
            "customer_id": customer_id,
            "terminal_id": np.where(random.random(count) < 0.8, near, random.integers(0, 10_000, count)),
            "amount": np.round(random.gamma(1.5, 35.0, count), 2),
        }
    )


def records(*names: str) -> list[UpsertRecord]:
    """Return the records that deploy patterns of SOURCE."""
    fields = {"version": 1, "status": "live", "severity": "low", "owner": "o", "message": "{amount} on {key}"}
    return [UpsertRecord.model_validate({**fields, "id": name, "pattern": name, "source": SOURCE}) for name in names]


def oracle_alerts(table: pa.Table, *names: str) -> set[tuple[str, str, tuple[str, ...], int]]:
    """Return the oracle's alerts: rule, key, ids of the bound events, time of detection."""
    checked = load_text(SOURCE)
    alerts = set()
    for name in names:
        pattern, _ = bind(checked.patterns[name], {})
        assert pattern is not None
        for key, events in _events_by_key(table, pattern).items():
            for match in find_matches(pattern, events).matches:
                alerts.add((name, key, tuple(str(i) for _, i in match.bindings), match.detected_ms))
    return alerts


def _events_by_key(table: pa.Table, pattern: PatternIR) -> dict[str, list[Event]]:
    (field,) = pattern.key
    stamped = table.set_column(1, "event_time", table["event_time"].cast(pa.int64()))
    rows = sorted(stamped.to_pylist(), key=lambda row: (row["event_time"], row["tx_id"]))
    events_by_key: dict[str, list[Event]] = {}
    for order, row in enumerate(rows):
        fields = {
            "tx_id": str(row["tx_id"]),
            "customer_id": str(row["customer_id"]),
            "terminal_id": str(row["terminal_id"]),
            "amount": round(row["amount"] * 100),
            "event_time": row["event_time"],
        }
        event = Event(fields["tx_id"], "payment", row["event_time"], order, fields)
        events_by_key.setdefault(fields[field], []).append(event)
    return events_by_key
