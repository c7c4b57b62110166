"""`cep live` as a process: killed in the middle and started again it has lost nothing and doubled nothing.

Spark gets no chance to tidy up: the whole process group is killed, Java and Python workers too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson
import pytest
from pyspark.sql import SparkSession

from cep.runners.live_progress import read_progress
from cep.sinks.files import read_alerts
from tests.runners.spark.live_cases import ROOT, make_job, payments, replayed, rows, rules, split, write_file

pytestmark = pytest.mark.spark
WAIT_S = 300
FILES = 8
_STARTED: list[int] = []


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """A test that fails leaves no job behind."""
    yield
    while _STARTED:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(_STARTED.pop(), signal.SIGKILL)


def start(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """The job, as the leader of a process group that has Spark's Java and Python workers in it."""
    command = "import sys; from cep.cli.main import main; sys.exit(main())"
    words: Sequence[str] = (
        "live", "--rules", str(ROOT / "rules"), "--events", str(folder / "events"), "--max-files", "1",
        "--control", str(folder / "control"), "--checkpoint", str(folder / "checkpoint"),
        "--alerts", str(folder / "alerts"), "--key-groups", "8", *more,
    )  # fmt: skip
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", command, *words],
            start_new_session=True,
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    _STARTED.append(process.pid)
    return process


def wait_for_batch(process: subprocess.Popen[bytes], folder: Path, batch_id: int) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while read_progress(folder / "checkpoint")[0] < batch_id:
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline_s, (folder / "log").read_text()
        time.sleep(0.02)


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> int:
    os.killpg(process.pid, number)
    return process.wait(WAIT_S)


def test_kill_and_restart(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("events", "control"):
        (tmp_path / name).mkdir()
    lines = payments(31)
    for number, part in enumerate(split(lines, FILES)):
        write_file(tmp_path / "events" / f"{number:03}.jsonl", part, number)
    process = start(tmp_path)
    wait_for_batch(process, tmp_path, 2)
    assert end(process, signal.SIGKILL) == -signal.SIGKILL
    killed_at, _ = read_progress(tmp_path / "checkpoint")
    assert killed_at < FILES - 1, "it was not in the middle"
    process = start(tmp_path, "--available-now")
    assert process.wait(WAIT_S) == 0, (tmp_path / "log").read_text()
    given = rules()
    found = replayed(spark, tmp_path / "events", make_job(given.values()), given.values())
    alerts = [orjson.loads(line) for line in rows(found.alerts)]
    assert sorted(map(orjson.dumps, read_alerts(tmp_path / "alerts"))) == sorted(map(orjson.dumps, alerts))
    _, totals = read_progress(tmp_path / "checkpoint")
    assert totals["events"] == totals["records"] == len(lines), "totals go on over the restart"
    assert not (tmp_path / "checkpoint" / "dead_letters").exists()


def test_a_stop_is_clean_and_another_job_may_not_take_the_checkpoint(tmp_path: Path) -> None:
    for name in ("events", "control"):
        (tmp_path / name).mkdir()
    write_file(tmp_path / "events" / "0.jsonl", payments(32), 0)
    process = start(tmp_path)
    wait_for_batch(process, tmp_path, 0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0, (tmp_path / "log").read_text()
    assert "events" in (tmp_path / "log").read_text()
    process = start(tmp_path, "--lateness", "10 s")
    assert process.wait(WAIT_S) == 2
    assert "belongs to a job with other lateness" in (tmp_path / "log").read_text()
