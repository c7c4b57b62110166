"""A million labelled events → the time of a report as a multiple of the time of a backtest.

    python -m tests.bench.report_time [DAYS]

The events are payments after the Fraud Detection Handbook (`simulated_data.py`), so no data are needed. A report has
the figures of a backtest first, so the multiple is at least 1.
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console

from cep.analysis.labels import labels_of_table
from cep.analysis.measure import Terms, measure
from cep.analysis.report import report
from cep.rulebook.deploy import deploy
from cep.sources.pieces import read_pieces
from tests.bench.labelled import cards
from tests.bench.labelled import rule as rule_of
from tests.bench.peer_data import show
from tests.bench.simulated_data import simulated

_CUSTOMERS, _TERMINALS, _DAYS = 5_000, 10_000, 110  # a million payments
_TURNS = 3
_RULES = ("leaked_customer", "compromised_terminal")


def main() -> None:
    """Measure and print."""
    days = int(sys.argv[1]) if len(sys.argv) > 1 else _DAYS
    data = cards("simulated", simulated(1, _CUSTOMERS, _TERMINALS, days))
    deployment = deploy([rule_of("payments.cep", name, name, {}) for name in _RULES])
    labels = labels_of_table(data.labels.drop(["spell"]), deployment.schema, data.name)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.parquet"
        pq.write_table(data.events, path)
        pieces_of = partial(read_pieces, path)
        for _ in range(_TURNS):
            began, began_cpu = time.monotonic(), time.process_time()
            measured = measure(deployment, pieces_of, labels, Terms(), Console(quiet=True))
            backtest_s, backtest_cpu_s = time.monotonic() - began, time.process_time() - began_cpu
            made = report(measured, pieces_of)
            whole_s, whole_cpu_s = time.monotonic() - began, time.process_time() - began_cpu
            rows.append((
                f"{measured.figures.about['events']:,}", f"{measured.figures.together.alerts:,}",
                f"{len(made.html.encode()) / 1e3:,.0f} kB", f"{backtest_s:.1f} s", f"{whole_s:.1f} s",
                f"{whole_s / backtest_s:.2f}", f"{whole_cpu_s / backtest_cpu_s:.2f}",
            ))  # fmt: skip
    heads = ("events", "alerts", "size", "backtest", "report", "multiple", "of processor seconds")
    show("A report beside a backtest", heads, rows)


if __name__ == "__main__":
    main()
