"""A job that waits for another machine ends on request, with 0. It sends its alerts after the next start."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue

import orjson
import psycopg
import pytest

from cep.sinks.postgres import _TABLE as TABLE
from tests.cli.test_refused_alerts import Judge
from tests.cli.test_run import RULES
from tests.real_postgres import IS_THERE, RealPostgres
from tests.runners.embedded.cases import deployment, expected, morning
from tests.runners.embedded.test_run import ROOT
from tests.webhook import url_of

WAIT_S = 300
GRACE_S = 15  # of the unit of systemd and the manifests: later they kill the job
CONF = """[job]
rules = {rules}
checkpoint = "{folder}/job"
[events]
{events}
[output]
alerts = [{alerts}]
webhook = {{ secret = "known" }}
[observe]
log = "json"
{more}
"""


class Silent:
    """A server that takes connections and never answers: `asked` gets an item for each."""

    def __init__(self, port: int = 0) -> None:
        self.asked: SimpleQueue[None] = SimpleQueue()
        self._listener = socket.create_server(("127.0.0.1", port))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._take, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def _take(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            self.asked.put(None)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # or `accept` holds the port
        for one in (self._listener, *self._open):
            one.close()


def begun(folder: Path, events: str, alerts: list[str], more: str = "", **environment: str) -> subprocess.Popen[bytes]:
    """Start a job of `cep run`."""
    folder.mkdir()
    text = CONF.format(
        rules=json.dumps(RULES), folder=folder, events=events, alerts=", ".join(map(json.dumps, alerts)), more=more
    )
    (folder / "cep.toml").write_text(text)
    return subprocess.Popen(
        [sys.executable, "-c", "from cep.cli.main import entry; entry()", "run", "--conf", str(folder / "cep.toml")],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stderr=subprocess.PIPE,
    )


@contextmanager
def locked(postgres: RealPostgres) -> Iterator[None]:
    """Hold a lock on the table until the end of the block."""
    with psycopg.connect(postgres.address) as connection:
        connection.execute(TABLE)
        connection.commit()
        connection.execute("lock table cep_alerts in access exclusive mode")
        yield


def wait_for_lock(postgres: RealPostgres) -> None:
    """Wait until a session of a job waits for the lock."""
    with psycopg.connect(postgres.address, autocommit=True) as connection:
        while not connection.execute("select 1 from pg_locks where not granted").fetchall():
            connection.execute("select pg_sleep(0.05)")


def verify_end(process: subprocess.Popen[bytes], log_path: Path | None = None) -> int:
    """Ask a job to stop; return how many alerts it leaves to the next start. Its lines go to `log_path`."""
    began_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(GRACE_S)
    print(f"ended after {time.monotonic() - began_s:.1f} s")
    _, log = process.communicate(timeout=WAIT_S)  # Spark's Java has the same standard error, and may end later
    assert process.returncode == 0, log.decode()
    if log_path is not None:
        log_path.write_bytes(log)
    lines = [orjson.loads(line) for line in log.splitlines() if line.startswith(b"{")]
    assert lines[-1]["event"] == "ended", log.decode()
    return next((int(line["count"]) for line in lines if line["event"] == "undelivered"), 0)


@pytest.mark.slow
@pytest.mark.always
def test_a_job_that_waits_ends_on_request(tmp_path: Path) -> None:
    """Jobs wait for a webhook that hangs or fails, for brokers, or for an object store."""
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(morning()))
    (tmp_path / "events").mkdir()
    events = f'folder = "{tmp_path}/events.jsonl"'
    hook, brokers, store = Silent(), Silent(), Silent()
    failed = threading.Event()

    def fail(_: list[str]) -> int:
        failed.set()
        return 500

    failing = Judge(fail)
    with ExitStack() as stack:
        for server in (hook, brokers, store):
            stack.callback(server.close)
        processes = {
            "hangs": begun(tmp_path / "hangs", events, [f"http://127.0.0.1:{hook.port}/"]),
            "fails": begun(tmp_path / "fails", events, [url_of(failing.server)]),
            "at_once": begun(
                tmp_path / "at_once", events, [f"http://127.0.0.1:{hook.port}/"],
                '[embedded]\ndelivery = "at-least-once"',
            ),
        }  # fmt: skip
        for process in processes.values():
            stack.callback(process.kill)
        for _ in ("hangs", "at_once"):
            hook.asked.get(timeout=WAIT_S)
        assert failed.wait(WAIT_S)
        counts = {name: verify_end(process) for name, process in processes.items()}
        # These two alone: a start gives up after half a minute without its brokers or its store.
        kafka = f'[kafka]\nbootstrap_servers = "127.0.0.1:{brokers.port}"'
        without_brokers = begun(tmp_path / "brokers", 'topic = "payments"', ["console"], kafka)
        stack.callback(without_brokers.kill)
        brokers.asked.get(timeout=WAIT_S)
        counts["brokers"] = verify_end(without_brokers)
        without_store = begun(
            tmp_path / "store", events, [str(tmp_path / "alerts")], '[embedded]\ntarget = "s3://bucket/job"',
            AWS_ENDPOINT_URL=f"http://127.0.0.1:{store.port}", AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="y",
        )  # fmt: skip
        stack.callback(without_store.kill)
        store.asked.get(timeout=WAIT_S)
        counts["store"] = verify_end(without_store)
        expected_alerts = sorted(expected(morning(), deployment(), tmp_path))
        # Alerts that wait for a watermark come later; all present alerts are left.
        assert 0 < counts["hangs"] == counts["fails"] <= len(expected_alerts)
        assert 0 < counts["at_once"] <= len(expected_alerts)
        assert counts["brokers"] == counts["store"] == 0
        failing.judge = lambda _: 204
        again = begun_again(tmp_path / "fails")
        assert again.wait(WAIT_S) == 0
        assert len(failing.taken) == len(set(failing.taken)) == len(expected_alerts)
    failing.server.shutdown()
    failing.server.server_close()


def begun_again(folder: Path) -> subprocess.Popen[bytes]:
    """Start the same job, to the end of the events."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from cep.cli.main import entry; entry()",
            "run",
            "--conf",
            str(folder / "cep.toml"),
            "--available-now",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.skipif(not IS_THERE, reason="no PostgreSQL on the path")
def test_a_job_that_waits_for_a_lock_ends_on_request(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(morning()))
    postgres = RealPostgres()
    with locked(postgres):
        process = begun(tmp_path / "locked", f'folder = "{tmp_path}/events.jsonl"', [postgres.address])
        wait_for_lock(postgres)
        assert verify_end(process) > 0
    postgres.close()
