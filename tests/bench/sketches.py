"""Approximate against exact functions over 90 days, in micro-batches of 10 000 events, keyed state as bytes in between.

    python -m tests.bench.sketches [EVENTS]

Public card payments, with some hundreds per customer in 90 days; and as many payments of 4 keys, the case that panes
are for. For each function it prints µs an event, approximate ÷ exact, and bytes of keyed state a key at the end.
"""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.columnar.batch import TEXT, EventBatch
from tests.bench.history import live, program_of, read
from tests.bench.peer_data import ULB, show

_WINDOW = "90 d"
_DAY_MS, _DAYS, _KEYS = 86_400_000, 120, 4
_EXACT = ("percentile(payment.amount over {}, 95)", "distinct(payment.terminal_id over {})")


def busy(count: int) -> EventBatch:
    """Return payments of few keys over some months: each has thousands in 90 days."""
    random = np.random.default_rng(1)
    numbers = {"t": np.arange(count), "c": random.integers(0, _KEYS, count), "m": random.zipf(1.2, count) % 50_000}
    texts = [pa.array([f"{name}{number}" for number in values.tolist()], TEXT) for name, values in numbers.items()]
    amounts = np.rint(np.exp(random.normal(8, 1.5, count))).astype(np.int64)
    fields = {"tx_id": texts[0], "customer_id": texts[1], "terminal_id": texts[2], "amount": pa.array(amounts)}
    times = 1_700_000_000_000 + np.sort(random.integers(0, _DAYS * _DAY_MS, count))
    return EventBatch(texts[1], texts[0], np.zeros(count, np.int16), times, fields)


def measured(batch: EventBatch, written: str) -> tuple[float, float]:
    """Return (µs an event, bytes of keyed state a key)."""
    seconds, stored = live(program_of([_WINDOW], [written]), batch)
    size = sum(map(len, stored.heads.values())) + sum(map(len, stored.segments.values()))
    return 1e6 * seconds / len(batch), size / pc.count_distinct(batch.key).as_py()


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
    cases = {f"{_KEYS} busy keys": busy(count)}
    if ULB.exists():
        cases |= {"public card payments": read(count)}
    rows = []
    for name, batch in cases.items():
        for exact in _EXACT:
            warm = batch.take(np.arange(min(count, 20_000)))
            for each in (exact, f"approx_{exact}"):
                measured(warm, each)
            (theirs, large), (ours, small) = measured(batch, exact), measured(batch, f"approx_{exact}")
            rows.append((name, exact.split("(")[0], f"{theirs:.2f}", f"{ours:.2f}", f"{ours / theirs:.2f}",
                         f"{large:,.0f}", f"{small:,.0f}", f"{small / large:.2f}"))  # fmt: skip
    head = ("events", "function", "exact µs", "approx µs", "approx ÷ exact", "exact bytes a key", "approx", "÷ exact")
    show(f"{count:,} events, {_WINDOW}, live", head, rows)


if __name__ == "__main__":
    main()
