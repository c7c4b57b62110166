"""Money that comes back: patterns that feed each other over three keys, and the brute-force result for them."""

from itertools import product
from random import Random

import pyarrow as pa

from cep.model.rule import UpsertRecord

SOURCE = """
event transfer {
  tx_id       id
  event_time  time
  payer       string
  payee       string
  amount      decimal(2)
}
event credit {
  credit_id   id
  event_time  time
  account     string
  other       string
  amount      decimal(2)
}
event debit {
  debit_id    id
  event_time  time
  account     string
  other       string
  amount      decimal(2)
}
event hop {
  hop_id      id
  event_time  time
  origin      string
  via         string
  target      string
  amount      decimal(2)
}
event back {
  back_id     id
  event_time  time
  origin      string
  target      string
  amount      decimal(2)
}
pattern incoming by payee {
  seq      t
  where    t: transfer
  skip     none
  emit     account = t.payee, other = t.payer, amount = t.amount
  produce  credit
}
pattern outgoing by payer {
  seq      t
  where    t: transfer
  skip     none
  emit     account = t.payer, other = t.payee, amount = t.amount
  produce  debit
}
pattern passed_on by account {
  seq      c ->> d  within 10 min
  where    c: credit
           d: debit  amount <= c.amount and other != c.other
  skip     none
  emit     origin = c.other, via = d.account, target = d.other, amount = d.amount
  produce  hop
}
pattern closing by payer {
  seq      t
  where    t: transfer
  skip     none
  emit     origin = t.payee, target = t.payer, amount = t.amount
  produce  back
}
## Money leaves an account and is back within half an hour, over two others.
pattern circle by (origin, target) {
  seq      h ->> b  within 20 min
  where    h: hop
           b: back  amount <= h.amount
  skip     none
  emit     via = h.via, amount = b.amount
}
"""
NAMES = ("incoming", "outgoing", "passed_on", "closing", "circle")
TEN_MINUTES_MS = 600_000


def records(*names: str) -> list[UpsertRecord]:
    """Return the records that deploy these patterns, or all patterns if `names` is empty."""
    return [
        UpsertRecord(
            id=name, version=1, pattern=name, status="live", severity="high", owner="test", message="m", source=SOURCE
        )
        for name in names or NAMES
    ]


def transfers(seed: int, count: int) -> pa.Table:
    """Return random transfers among few accounts, all at different times."""
    random = Random(seed)
    time_ms, rows = 1_700_000_000_000, []
    for number in range(count):
        time_ms += random.randint(1, 180_000)
        payer, payee = random.sample("abcdef", 2)
        rows.append((f"t{number:04d}", time_ms, payer, payee, random.randint(1, 400) / 4))
    names = ("tx_id", "event_time", "payer", "payee", "amount")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    columns["event_time"] = pa.array(columns["event_time"], pa.timestamp("ms", "UTC"))
    return pa.table(columns)


def circles(table: pa.Table) -> set[tuple[str, str, str, int]]:
    """Return (origin, via, target, time of the closing transfer) of every circle of three, from all triples."""
    rows = [{**row, "ms": round(row["event_time"].timestamp() * 1_000)} for row in table.to_pylist()]
    matches = set()
    for one, two in product(rows, repeat=2):
        passed_on = one["payee"] == two["payer"] and one["payer"] != two["payee"] and one["amount"] >= two["amount"]
        if not (passed_on and 0 < two["ms"] - one["ms"] < TEN_MINUTES_MS):
            continue
        for three in rows:
            comes_back = two["payee"] == three["payer"] and three["payee"] == one["payer"]
            timely = 0 < three["ms"] - two["ms"] < 2 * TEN_MINUTES_MS
            if comes_back and timely and two["amount"] >= three["amount"]:
                matches.add((one["payer"], two["payer"], three["payer"], three["ms"]))
    return matches
