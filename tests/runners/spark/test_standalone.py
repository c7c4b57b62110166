"""On a standalone cluster of this machine, `Rules.match` and `cep live` give the alerts of the replay."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
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
from tests.runners.spark.stream_cases import add_file, with_an_end, write_suppressing
from tests.tidy.source import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]
WAIT_S = 900.0
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
