"""The cost of `Rules.match` relative to a replay of the same rows, by kind of frame, and its extra memory.

    python -m tests.bench.frames [ROWS ...]        2 000 000 by default

`replay` is `cep.runners.embedded.replay` over the columns as Arrow, the call that `cep replay --engine embedded` makes
after it has read its file. Each kind runs in its own process, and the least of three runs counts: wall-clock seconds,
processor seconds, and the peak memory less the memory before.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

import cep
from cep.api.replay import Terms, job_of
from cep.runners.embedded.replay import replay
from cep.sources.pieces import pieces_of_table
from tests.bench.peer_data import show

ROWS = 2_000_000
REPEATS = 3
RULES = """
event transaction {
  transaction_id id
  event_time time
  card_id string
  amount decimal(2)
  status enum(approved, declined)
  country string?
}
pattern card_testing by card_id {
  seq    probe{3,} greedy -> hit  within 10 min
  where  probe: transaction  status == declined and amount < 2.00
         hit:   transaction  status == approved and amount > 500.00
  skip   past last
  emit   probes = count(probe), probed = sum(probe.amount), amount = hit.amount, country = hit.country
}
"""
KINDS = ("replay", "Arrow", "polars", "DuckDB", "pandas, string of pyarrow", "pandas, ArrowDtype", "pandas, object")


def payments(rows: int) -> pa.Table:
    """Make payments, a hundred rows per card, 50 ms apart."""
    random = np.random.default_rng(3)
    cards = pa.array([f"C-{number}" for number in range(max(rows // 100, 1))])

    def chosen(values: list[str], share: float) -> pa.Array:
        return pa.array(values).take(pa.array((random.random(rows) < share).astype(np.int64)))

    return pa.table(
        {
            "transaction_id": pa.array(np.arange(rows)).cast(pa.string()),
            "event_time": pa.array(1_700_000_000_000 + np.arange(rows) * 50, pa.timestamp("ms", "UTC")),
            "card_id": cards.take(pa.array(random.integers(0, len(cards), rows))),
            "amount": pa.array(np.rint(random.random(rows) * 60_000) / 100),
            "status": chosen(["approved", "declined"], 0.1),
            "country": chosen(["DE", "FR"], 0.3),
        }
    )


def frame_of(kind: str, table: pa.Table) -> Any:
    """Return the payments as a frame of a kind."""
    if kind == "polars":
        return pl.from_arrow(table)
    if kind == "DuckDB":
        return duckdb.from_arrow(table)
    if kind.startswith("pandas"):
        if kind.endswith("ArrowDtype"):
            return table.to_pandas(types_mapper=pd.ArrowDtype)
        frame = table.to_pandas()
        texts = [field.name for field in table.schema if pa.types.is_string(field.type)]
        return frame.astype(dict.fromkeys(texts, "string[pyarrow]")) if kind.endswith("string of pyarrow") else frame
    return table


def work_of(kind: str, frame: Any) -> Callable[[], object]:
    """Return the call to measure: a match of the frame, or the replay of its columns."""
    rules = cep.parse(RULES)
    if kind != "replay":
        return lambda: rules.match(frame)
    deployment = rules._given.deployment
    job = job_of(deployment, Terms())
    return lambda: replay(job, deployment.rulebook, pieces_of_table(frame, job.schema, str), Terms().cores)


def memory(name: str) -> int:
    """Return a line of this process's status in bytes: VmRSS is the present memory, VmHWM the peak."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(name))


def measure(kind: str, rows: int) -> dict[str, float]:
    """Return the least wall-clock and processor seconds, and the memory without the frame itself."""
    work_of("Arrow", payments(1_000))()  # compiles the kernels, or loads them from the cache
    frame = frame_of(kind, payments(rows))
    work = work_of(kind, frame)
    clock, processor = [], []
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # reset the peak to the present memory
    before = memory("VmRSS")
    for _ in range(REPEATS):
        began = time.perf_counter(), time.process_time()
        work()
        clock.append(time.perf_counter() - began[0])
        processor.append(time.process_time() - began[1])
    return {"clock": min(clock), "processor": min(processor), "bytes": memory("VmHWM") - before}


def main(arguments: list[str]) -> None:
    """Print a table for each number of rows."""
    if len(arguments) == 3 and arguments[0] == "--one":
        print(json.dumps(measure(arguments[1], int(arguments[2]))))
        return
    for rows in [int(a) for a in arguments] or [ROWS]:
        lines: list[tuple[str, ...]] = []
        first: dict[str, float] = {}
        for kind in KINDS:
            words = [sys.executable, "-m", "tests.bench.frames", "--one", kind, str(rows)]
            result = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
            figures = json.loads(result.stdout)
            first = first or figures
            ratios = [f"{figures[name] / first[name]:.2f}" for name in ("clock", "processor")]
            lines.append((kind, f"{figures['clock']:.2f}", *ratios, f"{figures['bytes'] / rows:.0f}"))
        head = ("frame", "s", "time ÷ replay", "processor ÷ replay", "bytes a row")
        show(f"{rows:,} rows, one rule", head, lines)


if __name__ == "__main__":
    main(sys.argv[1:])
