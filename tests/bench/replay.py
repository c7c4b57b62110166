"""Replay from files to alerts: the peer's four patterns together, and three patterns on public card transactions.

    [FLINK_VENV=ENV] python -m tests.bench.replay [CORES]

Spark is started before the clock; reading, decoding, routing, the shuffle, matching and building alerts are inside.
With FLINK_VENV the peer runs its four patterns in memory on 300 000 events of the same kind, a task for each core.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from cep.model.rule import UpsertRecord
from cep.rulebook.deploy import deploy
from cep.runners.output import Replayed
from cep.runners.spark.replay import read_events, replay
from cep.runners.spark.session import create_session
from cep.step.job import Job
from tests.bench.peer import run_peer, write_events
from tests.bench.peer_data import GENERATED, NAMES, ULB, median_seconds, peer_columns, records, show, upsert
from tests.runners.spark.transactions import BY_CUSTOMER
from tests.runners.spark.transactions import SOURCE as CARD_PATTERNS

PEER_EVENTS = 300_000


def run(spark: SparkSession, path: Path, rules: list[UpsertRecord], cores: int) -> Replayed:
    """Replay a file once."""
    deployment = deploy(rules)
    job = Job(deployment.schema, deployment.key_domains)
    return replay(job, deployment.rulebook, read_events(spark, path), cores)


def measured(spark: SparkSession, title: str, path: Path, rules: list[UpsertRecord], cores: int) -> tuple[str, ...]:
    """Return one line of the table."""
    last: list[Replayed] = []
    seconds = median_seconds(lambda: last.append(run(spark, path, rules, cores)))
    events = last[-1].counters["events"]
    return title, f"{events:,}", f"{events / seconds:,.0f}", f"{seconds:.1f}", f"{last[-1].alerts.num_rows:,}"


def peer_rate(cores: int, folder: Path) -> float:
    """Return events a second of the peer's four patterns together, in memory: a warm run after an uncounted one."""
    write_events(peer_columns(PEER_EVENTS), folder / "events.csv")
    figures = run_peer(folder / "events.csv", cores, "--patterns", "all", "--warmup", "1", "--runs", "1")
    return float(figures["all"]["events_per_s"])


def main() -> None:
    """Measure and print."""
    cores = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    columns = peer_columns(GENERATED)
    spark = create_session("bench", cores)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.parquet"
        times = pa.array(np.asarray(columns.pop("ts")), pa.timestamp("ms", "UTC"))
        columns["seq_no"] = columns.pop("seq")
        pq.write_table(pa.table({"event_time": times, **columns}), path, row_group_size=250_000)
        rows = [measured(spark, "the peer's four patterns", path, records(NAMES), cores)]
        if ULB.exists():
            rules = [upsert(CARD_PATTERNS, name) for name in BY_CUSTOMER]
            rows.append(measured(spark, "card transactions, three patterns", ULB, rules, cores))
        else:
            print(f"the public card transactions are not at {ULB}; left out")
        spark.stop()
        show(f"replay on {cores} cores, medians of 3", ("what", "events", "events/s", "seconds", "alerts"), rows)
        if os.environ.get("FLINK_VENV"):
            peer = peer_rate(cores, Path(folder))
            ours = float(rows[0][2].replace(",", ""))
            print(f"Flink CEP in memory, {cores} tasks: {peer:,.0f} events/s; ours ÷ Flink: {ours / peer:.1f}")


if __name__ == "__main__":
    main()
