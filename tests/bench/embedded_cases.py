"""Shared parts of the benchmarks of the embedded runner: the peer's patterns as a job, and payments of its shape.

Used by bench/embedded.py.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cep.rulebook.deploy import deploy
from tests.bench.peer_data import NAMES, SOURCE, records, upsert

RECORDS = records(NAMES)
GIVEN = deploy(RECORDS)
INITIAL = tuple(record.to_json() for record in RECORDS)
# The same four patterns as a fraud team would write them: they match as much, and one event in sixty gives an alert. In
# their original form they give several alerts an event, once a key has had a few.
_SELDOM = """
pattern p3 by account {
  seq    here ->> there  within 30 min
  where  here:  tx
         there: tx  country != here.country and amount > 900.00
  skip   none
}
pattern p4 by account {
  seq    up{8}  within 1 h
  where  up: tx  up.amount is null or amount > up.amount
  skip   none
}
"""
SELDOM = tuple(
    record.to_json()
    for record in (
        upsert(SOURCE, "p1", large="2500.00"),
        upsert(SOURCE, "p2", large="1200.00"),
        *records(("p3", "p4"), SOURCE[: SOURCE.index("pattern p1")] + _SELDOM),
    )
)
START_MS = 1_700_000_000_000
WORKERS = 2


def payments(count: int, keys: int, seed: int, first_ms: int, in_order: bool = False, first: int = 0) -> pa.Array:
    """Return events of the peer's shape as JSON values; with `in_order` each key in turn, from `first` on."""
    random = np.random.default_rng(seed)
    account = (first + np.arange(count)) % keys if in_order else random.integers(0, keys, count)
    amount = np.round(random.gamma(0.4, 250.0, count), 2)
    columns = zip(
        range(count), (first_ms + np.arange(count) // 10).tolist(), account.tolist(), amount.tolist(),
        random.integers(0, 30, count).tolist(), (random.random(count) < 0.8).astype(int).tolist(), strict=True,
    )  # fmt: skip
    lines = [
        b'{"seq_no":"%d-%d","event_time":%d,"account":"%d","amount":%.2f,"merchant":1,"country":%d,"channel":1,'
        b'"success":%d}' % (seed, number, ms, key, value, country, success)
        for number, ms, key, value, country, success in columns
    ]
    return pa.array(lines, pa.large_binary())
