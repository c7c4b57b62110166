"""Replay from files to alerts: the peer's four patterns together, and three patterns on public card transactions.

    python -m tests.bench.replay [CORES]

Spark is started before the clock; reading, decoding, routing, the shuffle, matching and building alerts are inside.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from cep.model.rule import UpsertRecord
from cep.rulebook.deploy import deploy
from cep.runners.job import Job
from cep.runners.spark.replay import Replayed, read_events, replay
from cep.runners.spark.session import create_session
from tests.bench.peer_data import GENERATED, NAMES, ULB, median_seconds, peer_columns, records, show, upsert
from tests.runners.spark.transactions import BY_CUSTOMER
from tests.runners.spark.transactions import SOURCE as CARD_PATTERNS


def run(spark: SparkSession, path: Path, given: list[UpsertRecord], cores: int) -> Replayed:
    """One replay of a file."""
    deployment = deploy(given)
    job = Job(deployment.schema, deployment.key_domains)
    return replay(job, deployment.rulebook, *read_events(spark, path), cores)


def measured(spark: SparkSession, title: str, path: Path, given: list[UpsertRecord], cores: int) -> tuple[str, ...]:
    """One line of the table."""
    last: list[Replayed] = []
    seconds = median_seconds(lambda: last.append(run(spark, path, given, cores)))
    events = last[-1].counters["events"]
    return title, f"{events:,}", f"{events / seconds:,.0f}", f"{seconds:.1f}", f"{last[-1].alerts.num_rows:,}"


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
            given = [upsert(CARD_PATTERNS, name) for name in BY_CUSTOMER]
            rows.append(measured(spark, "card transactions, three patterns", ULB, given, cores))
        else:
            print(f"the public card transactions are not at {ULB}; left out")
    show(f"replay on {cores} cores, medians of 3", ("what", "events", "events/s", "seconds", "alerts"), rows)
    spark.stop()


if __name__ == "__main__":
    main()
