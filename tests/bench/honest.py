"""Honest events of several seeds → the alerts of the library per million events: all of these are false.

    python -m tests.bench.honest [--seeds N]

Card payments of a simulated day without its frauds, two months of a bank, and the firms around it (`tests/testing`).
For each event type it prints the events of all seeds, the alerts of all patterns together, the alerts of the quietest
and of the loudest seed, and the pattern with most alerts.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from cep.demo.stream import build
from tests.bench.peer_data import show
from tests.testing.honest import honest_months
from tests.testing.honest_firms import honest_firms
from tests.testing.library import rules_for
from tests.testing.test_honest import alerts_by_pattern

_BANK = ("money", "account_event", "login")
_HEAD = (
    "events of", "seeds", "patterns", "events", "alerts", "a million", "in the best seed", "in the worst",
    "the most of one pattern",
)  # fmt: skip


def sets_of(seed: int) -> Iterator[tuple[str, set[str], pa.Table]]:
    """Yield (name, event types, events) of one seed."""
    day = build(seed)
    planted = pa.array([tx_id for case in day.planted for tx_id in case.tx_ids])
    honest = day.payments.filter(pc.invert(pc.is_in(day.payments["tx_id"], planted)))
    yield "cards", {"transaction"}, honest.append_column("event_type", pa.array(["transaction"] * honest.num_rows))
    months = honest_months(seed)
    for name in _BANK:
        yield name, {name}, months.filter(pc.equal(months["event_type"], name))
    firms = honest_firms(seed)
    yield "firms", {*firms["event_type"].to_pylist()}, firms


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    alerts, events, patterns = dict[str, list[Counter[str]]](), dict[str, list[int]](), dict[str, int]()
    for seed in range(1, seeds + 1):
        for name, event_types, table in sets_of(seed):
            rules = rules_for(event_types)
            with tempfile.TemporaryDirectory() as folder:
                alerts.setdefault(name, []).append(alerts_by_pattern(table, rules, Path(folder)))
            events.setdefault(name, []).append(table.num_rows)
            patterns[name] = len(rules)
    rows = []
    for name, of_seeds in alerts.items():
        total, whole = sum(of_seeds, Counter[str]()), sum(events[name])
        rates = [each.total() / count * 1e6 for each, count in zip(of_seeds, events[name], strict=True)]
        most = max(total.items(), key=lambda each: (each[1], each[0]), default=("–", 0))
        rows.append((
            name, str(seeds), str(patterns[name]), f"{whole:,}", str(total.total()),
            f"{total.total() / whole * 1e6:.0f}",
            f"{min(rates):.0f}", f"{max(rates):.0f}", f"{most[0]} {most[1] / whole * 1e6:.0f}",
        ))  # fmt: skip
    show("False alerts of the library on honest events, by a million events", _HEAD, rows)


if __name__ == "__main__":
    main()
