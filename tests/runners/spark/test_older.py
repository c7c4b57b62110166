"""Versions of Spark before the installed one.

A short set of tests runs on the oldest version with our streams, and `Rules.match` of a finite history on versions
without them. The slow part runs every test of Spark on each version. test_lake.py, killed on the way from Delta to
Iceberg, also runs on the oldest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

import cep
from cep.engine.alerts import ALERT_SCHEMA, sort_alerts
from tests.api.frames import with_type
from tests.runners.spark.stream_cases import with_an_end, write_suppressing
from tests.spark_versions import OLDER, OLDEST, NoSparkError, on_spark, on_this_spark
from tests.tidy.source import ROOT

WAIT_S = 900.0
SHORT_SET = (
    "test_replay.py::test_replay_finds_what_the_oracle_finds[names1]",
    "test_live_kafka.py::test_a_mix_of_everything_gives_what_replay_finds[5-4-None-0]",  # live against replay
)


@cache
def older(version: str) -> dict[str, str] | None:
    """Return the environment of a process on this Spark, or None if it cannot be fetched."""
    try:
        return on_spark(version)
    except NoSparkError as error:
        print(error)
        return None


def fetched(version: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(f"older({version!r}) is None", reason=f"Spark {version} cannot be fetched by pip")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("version", [pytest.param(each, marks=fetched(each)) for each in OLDEST])
def test_match_on_an_older_spark(version: str, tmp_path: Path) -> None:
    environment = older(version)
    assert environment is not None
    rules = cep.load(write_suppressing(tmp_path / "rules"))
    table = with_type(with_an_end(), {"event_time": pa.timestamp("us", "UTC")})
    pq.write_table(table, tmp_path / "payments.parquet")
    words = [sys.executable, "-m", "tests.runners.spark.match_job", "local[2]", str(tmp_path)]
    process = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert process.returncode == 0, process.stderr[-5000:]
    alerts = pq.read_table(tmp_path / "alerts.parquet").select(ALERT_SCHEMA.names).cast(ALERT_SCHEMA)
    assert alerts.num_rows > 0
    assert sort_alerts(alerts).equals(rules.match(table, cores=2).table)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.always
@pytest.mark.skipif(os.environ.get("CEP_SPARK") is not None, reason="all tests run on another Spark than the installed")
@fetched(OLDER[0])
def test_a_short_set_on_the_oldest_spark_with_streams(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'set'}"]
    files = [f"tests/runners/spark/{name}" for name in SHORT_SET]
    environment = {**os.environ, "CEP_SPARK": OLDER[0]}
    process = subprocess.run(
        [*words, *files], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert process.returncode == 0, process.stdout[-5000:]
    assert f"{len(SHORT_SET)} passed" in process.stdout, process.stdout[-5000:]
    assert f"on Spark {OLDER[0]}" in process.stdout, process.stdout[-5000:]


@pytest.mark.spark
def test_a_process_that_a_test_starts_is_on_the_same_spark() -> None:
    words = [sys.executable, "-c", "import pyspark; print(pyspark.__version__)"]
    process = subprocess.run(words, env=on_this_spark(), capture_output=True, text=True, check=True)
    assert process.stdout.strip() == pyspark.__version__
