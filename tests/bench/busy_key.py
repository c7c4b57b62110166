"""One key with ever more events in its windows, live: the size of its state, once older events are folded.

    python -m tests.bench.busy_key [EVENTS] [TERMINALS]

For each number of events it prints the bytes of keyed state, next to the bytes for a tenth of the limit, and µs an
event. Windows hold all events; the events come from fifty terminals by default. The rules include sums by terminal,
spreads of floats, units of the calendar and first events.
"""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa

from cep.base.limits import HISTORY_EVENTS_MAX
from cep.columnar.batch import TEXT, EventBatch
from tests.bench.history import live, program_of
from tests.bench.peer_data import show

_WINDOW = "90 d"
_WRITTEN = (
    "count(payment over {} by terminal_id)",
    "sum(payment.amount over {} by terminal_id)",
    "stddev(payment.weight over {})",
    "median(payment.amount over {})",
    "first(payment over {} by terminal_id).amount",
    "max(payment.amount over year)",
)
_SPAN_MS = 60 * 86_400_000  # from the first event to the last: two months of one year


def of_one_key(count: int, terminals_count: int) -> EventBatch:
    """Return payments of one customer."""
    random = np.random.default_rng(1)
    ids = pa.array([f"t{number:08}" for number in range(count)], TEXT)
    customers = pa.repeat(pa.scalar("c", TEXT), count)
    terminals = pa.array([f"m{number}" for number in random.integers(0, terminals_count, count).tolist()], TEXT)
    amounts = np.rint(np.exp(random.normal(8, 1.5, count))).astype(np.int64)
    fields = {"tx_id": ids, "customer_id": customers, "terminal_id": terminals, "amount": pa.array(amounts)}
    times = 1_740_000_000_000 + np.sort(random.integers(0, _SPAN_MS, count))
    fields["weight"] = pa.array(random.normal(50, 20, count))
    return EventBatch(customers, ids, np.zeros(count, np.int16), times, fields)


def main() -> None:
    """Measure and print."""
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 10 * HISTORY_EVENTS_MAX
    terminals_count = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    counts = [HISTORY_EVENTS_MAX // 10, HISTORY_EVENTS_MAX, most]
    program = program_of([_WINDOW], _WRITTEN)
    rows: list[tuple[str, ...]] = []
    least = 0
    for count in counts:
        batch = of_one_key(count, terminals_count)
        seconds, stored = live(program, batch)
        size = sum(map(len, stored.heads.values())) + sum(map(len, stored.segments.values()))
        least = least or size
        rows.append((f"{count:,}", f"{size:,}", f"{size / least:.1f}", f"{1e6 * seconds / count:.2f}"))
    head = ("events of the key", "bytes kept", "÷ those of the first", "µs an event")
    about = f"one key, {_WINDOW} and a year, {terminals_count:,} terminals, live"
    show(f"{about}; {HISTORY_EVENTS_MAX:,} events stay one by one", head, rows)


if __name__ == "__main__":
    main()
