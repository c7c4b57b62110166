"""From a Delta table to an Iceberg table, with `match_stream` between, on the Spark that both have releases for."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import cep
from cep.engine.alerts import ALERT_SCHEMA, sort_alerts
from tests.real_kafka import NoBrokerError, fetched
from tests.runners.spark.stream_cases import with_an_end, write_suppressing
from tests.spark_versions import NoSparkError, on_spark
from tests.tidy.source import ROOT

SPARK, DELTA, ICEBERG = "4.1.4", "4.3.1", "1.12.0"
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>cep.tests</groupId><artifactId>lake</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>io.delta</groupId><artifactId>delta-spark_4.1_2.13</artifactId><version>{DELTA}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.iceberg</groupId><artifactId>iceberg-spark-runtime-4.1_2.13</artifactId>
      <version>{ICEBERG}</version>
    </dependency>
  </dependencies>
</project>
"""
WAIT_S = 900.0
COMMITS = 4  # to the table of payments: each commit is a micro-batch of the query
_STARTED: list[int] = []


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """End the queries of a failed test."""
    yield
    while _STARTED:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(_STARTED.pop(), signal.SIGKILL)


def start(folder: Path, jars: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start the query in its own process group."""
    words = [sys.executable, "-m", "tests.runners.spark.lake_job", str(folder), str(jars)]
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
    _STARTED.append(process.pid)
    return process


def write_payments(folder: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    table = with_an_end()
    size = -(-table.num_rows // COMMITS)
    for start in range(0, table.num_rows, size):
        deltalake.write_deltalake(str(folder), table.slice(start, size), mode="append")


def wait_for(path: Path, process: subprocess.Popen[bytes], folder: Path) -> None:
    give_up_s = time.monotonic() + WAIT_S
    while not path.exists():
        assert process.poll() is None, (folder / "log.txt").read_text()[-5000:]
        assert time.monotonic() < give_up_s, f"no {path} after {WAIT_S:.0f} s"
        time.sleep(0.02)


@cache
def lake() -> tuple[Path, dict[str, str]] | None:
    """Return the jars of both formats, and the environment of a process on their Spark, or None if they are missing."""
    try:
        return fetched(f"lake-{DELTA}-{ICEBERG}", POM), on_spark(SPARK)
    except (NoBrokerError, NoSparkError) as error:
        print(error)
        return None


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif("lake() is None", reason=f"Delta, Iceberg or Spark {SPARK} cannot be fetched by Maven and pip")
@pytest.mark.parametrize(
    "killed", [pytest.param((), marks=pytest.mark.always), (2,), (1, 2)], ids=["never", "once", "twice"]
)
def test_killed_and_started_again_it_has_the_alerts_of_the_replay_once(killed: tuple[int, ...], tmp_path: Path) -> None:
    """`killed` names micro-batches."""
    there = lake()
    assert there is not None
    jars, environment = there
    rules = cep.load(write_suppressing(tmp_path / "rules"))
    expected = rules.match(with_an_end(), cores=2)
    assert len(expected) > 5
    assert expected.suppressed.num_rows > 0
    write_payments(tmp_path / "payments")
    rng = random.Random(5)
    for batch_id in killed:
        process = start(tmp_path, jars, environment)
        # Planned and not finished: somewhere between the tasks, the commit of the table and the end of the micro-batch.
        wait_for(tmp_path / "checkpoint" / "offsets" / str(batch_id), process, tmp_path)
        time.sleep(rng.random() * 1.5)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert not (tmp_path / "alerts.parquet").exists(), "it was killed on its way"
    process = start(tmp_path, jars, environment)
    assert process.wait(WAIT_S) == 0, (tmp_path / "log.txt").read_text()[-5000:]
    alerts = pq.read_table(tmp_path / "alerts.parquet").select(ALERT_SCHEMA.names).cast(ALERT_SCHEMA)
    assert sort_alerts(alerts).equals(expected.table)
