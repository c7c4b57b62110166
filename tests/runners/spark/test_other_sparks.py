"""Other Sparks: versions before the installed one, a standalone cluster, and the version that lake formats support.

A short set of tests runs on the oldest version with our streams, and `Rules.match` of a finite history on versions
without them. The slow part runs every test of Spark on each version. A query from a Delta table to an Iceberg table,
with `match_stream` between, is killed on its way.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

import cep
from cep.engine.alerts import ALERT_SCHEMA, sort_alerts
from cep.sinks.files import read_alerts
from cep.sinks.json_form import json_lines
from tests.api.frames import with_type
from tests.real_kafka import NoBrokerError, fetched
from tests.runners.spark.stream_cases import add_file, with_an_end, write_suppressing
from tests.spark_versions import OLDER, OLDEST, NoSparkError, on_spark, on_this_spark
from tests.tidy.source import ROOT

pytestmark = pytest.mark.spark


WAIT_S = 900.0
SHORT_SET = (
    "tests/runners/test_replay.py::test_replay_finds_what_the_oracle_finds[names1]",
    # Live against replay.
    "tests/runners/spark/test_live.py::test_a_mix_of_everything_gives_what_replay_finds[5-4-None-0]",
)


@cache
def older(version: str) -> dict[str, str] | None:
    """Return the environment of a process on this Spark, or None if it cannot be fetched."""
    try:
        return on_spark(version)
    except NoSparkError as error:
        print(error)
        return None


def needs_spark(version: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(f"older({version!r}) is None", reason=f"Spark {version} cannot be fetched by pip")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("version", [pytest.param(each, marks=needs_spark(each)) for each in OLDEST])
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
@needs_spark(OLDER[0])
def test_a_short_set_on_the_oldest_spark_with_streams(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'set'}"]
    environment = {**os.environ, "CEP_SPARK": OLDER[0]}
    process = subprocess.run(
        [*words, *SHORT_SET], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert process.returncode == 0, process.stdout[-5000:]
    assert f"{len(SHORT_SET)} passed" in process.stdout, process.stdout[-5000:]
    assert f"on Spark {OLDER[0]}" in process.stdout, process.stdout[-5000:]


@pytest.mark.spark
def test_a_process_that_a_test_starts_is_on_the_same_spark() -> None:
    words = [sys.executable, "-c", "import pyspark; print(pyspark.__version__)"]
    process = subprocess.run(words, env=on_this_spark(), capture_output=True, text=True, check=True)
    assert process.stdout.strip() == pyspark.__version__


COMMAND = "import sys; from cep.cli.main import main; sys.exit(main())"
HOME = Path(pyspark.__file__).parent


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a master with one worker of two cores."""
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    folder = tmp_path / "cluster"
    folder.mkdir()
    deploy = "org.apache.spark.deploy"
    places = ["--host", "127.0.0.1", "--webui-port", str(free_port())]
    parts = [
        [f"{deploy}.master.Master", *places, "--port", str(port)],
        [f"{deploy}.worker.Worker", *places, "--cores", "2", "--memory", "1g", "--work-dir", str(folder), address],
    ]
    environment = {**os.environ, "SPARK_HOME": str(HOME), "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC"}
    with contextlib.ExitStack() as running:
        log = running.enter_context((folder / "log.txt").open("wb"))
        for words in parts:
            process = subprocess.Popen(
                [str(HOME / "bin" / "spark-class"), *words], env=environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
            running.callback(process.wait)
            running.callback(os.killpg, process.pid, signal.SIGKILL)
        give_up_s = time.monotonic() + WAIT_S
        while b"Registering worker" not in (folder / "log.txt").read_bytes():
            assert time.monotonic() < give_up_s, (folder / "log.txt").read_text()[-3000:]
            time.sleep(0.1)
        yield address


def run(folder: Path, *words: str) -> None:
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.run(
            [sys.executable, *words], cwd=ROOT, stdout=log, stderr=log, check=False, timeout=WAIT_S
        )  # fmt: skip
    assert process.returncode == 0, (folder / "log.txt").read_text()[-5000:]


@pytest.mark.slow
def test_match_and_live_on_a_cluster(cluster: str, tmp_path: Path) -> None:
    rules = cep.load(write_suppressing(tmp_path / "rules"))
    table = with_an_end()
    expected = rules.match(table, cores=2).table
    micros = with_type(table, {"event_time": pa.timestamp("us", "UTC")})
    pq.write_table(micros, tmp_path / "payments.parquet")
    run(tmp_path, "-m", "tests.runners.spark.match_job", cluster, str(tmp_path))
    alerts = pq.read_table(tmp_path / "alerts.parquet").select(ALERT_SCHEMA.names).cast(ALERT_SCHEMA)
    assert sort_alerts(alerts).equals(expected)
    add_file(tmp_path / "events", 0, micros.slice(0, 120))
    add_file(tmp_path / "events", 1, micros.slice(120))
    settings = tmp_path / "cep.toml"
    settings.write_text(f'[spark]\nconf = {{ "spark.master" = "{cluster}", "spark.executor.memory" = "512m" }}\n')
    run(
        tmp_path, "-c", COMMAND, "live", "--conf", str(settings), "--rules", str(tmp_path / "rules"),
        "--events", str(tmp_path / "events"), "--max-files", "1", "--checkpoint", str(tmp_path / "job"),
        "--alerts", str(tmp_path / "out"), "--key-groups", "2", "--available-now",
    )  # fmt: skip
    by_id = {orjson.loads(line)["alert_id"]: orjson.loads(line) for line in json_lines(expected)}
    written = list(read_alerts(tmp_path / "out"))
    assert len(written) == len(by_id)
    assert {alert["alert_id"]: alert for alert in written} == by_id


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
