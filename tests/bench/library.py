"""What the library costs beside the replay of the same rows, in one run.

    python -m tests.bench.library [ROWS]        10 000 000 if left out

The rows are the payments of the simulated day, again and again with other cards. The replay reads them from a Parquet
file; the library has them in memory, as a table of Arrow, in pandas and in polars. Seconds are the best of three, and
`memory` is how much the process has grown at most, beside the frame.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import cep
from cep.demo.stream import StreamSize, build

ROOT = Path(__file__).parents[2]
REPEATS = 3
CORES = 2


def payments(rows: int) -> pa.Table:
    """Repeat a day of payments until there are so many rows; each time its cards, accounts and ids are others."""
    day = build(11, StreamSize(cards_count=3_000, payments_per_card=20)).payments
    parts = []
    for number in range(-(-rows // day.num_rows)):
        part = day
        for name in ("tx_id", "card_id", "account_id"):
            texts = pc.binary_join_element_wise(day[name], f"-{number}", "")
            part = part.set_column(part.column_names.index(name), name, texts)
        parts.append(part)
    return pa.concat_tables(parts).slice(0, rows).combine_chunks()


def best(work: Callable[[], Any]) -> tuple[float, int, float]:
    """Return (the least seconds, alerts, megabytes that the process has grown at most)."""
    seconds, alerts = [], 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(REPEATS):
        started = time.perf_counter()
        alerts = len(work())
        seconds.append(time.perf_counter() - started)
    return min(seconds), alerts, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main(arguments: list[str]) -> None:
    """Print a line for each kind of frame."""
    rows = int(arguments[0]) if arguments else 10_000_000
    table = payments(rows)
    rules = cep.load(ROOT / "rules")
    rules.match(table.slice(0, 1_000))  # what is compiled or loaded once
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "payments.parquet"
        pq.write_table(table, path)
        frames = {
            "Parquet file (replay)": path,
            "Arrow": table,
            "polars": pl.DataFrame(table),
            "pandas": table.to_pandas(),
        }
        print(f"{'frame':<22} {'seconds':>8} {'beside replay':>14} {'alerts':>8} {'memory MB':>10}")
        base = 0.0
        for name, frame in frames.items():
            seconds, alerts, memory = best(lambda frame=frame: rules.match(frame, cores=CORES))  # type: ignore[misc]
            base = base or seconds
            print(f"{name:<22} {seconds:8.2f} {seconds / base:14.2f} {alerts:8} {memory:10.0f}")


if __name__ == "__main__":
    main(sys.argv[1:])
