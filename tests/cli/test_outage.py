"""A broker is stopped, then killed for longer than any wait: the job sees it and survives, and no alert is lost."""

from __future__ import annotations

import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from tests.cli.test_run import free_port
from tests.real_kafka import RealKafka
from tests.runners.embedded.cases import day, deployment, expected
from tests.runners.embedded.test_run import ROOT, consumed, start

OUTAGE_S = 40  # longer than a client waits for an answer
WAIT_S = 120


def status(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


def metrics(port: int) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines: list[str] = answer.read().decode().splitlines()
        return lines


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@pytest.mark.slow
def test_a_job_sees_outages_and_outlives_them(tmp_path: Path) -> None:
    lines = list(day())
    end = orjson.dumps({**orjson.loads(lines[-1]), "tx_id": "end", "event_time": "2026-06-01T00:00:00Z"})
    wanted = sorted(expected([*lines, end], deployment(), tmp_path))
    port = free_port()
    with RealKafka() as kafka:
        for topic in ("payments", "alerts"):
            kafka.create(topic, 1)
        process = start(
            "--rules", str(ROOT / "rules"), "--bootstrap-servers", kafka.address, "--topic", "payments",
            "--alerts", "kafka:alerts", "--checkpoint", str(tmp_path / "job"), "--listen", str(port), "--log", "json",
        )  # fmt: skip
        try:
            for number in range(3):
                third = lines[number * len(lines) // 3 : (number + 1) * len(lines) // 3]
                kafka.send("payments", [{"value": line, "partition": 0} for line in third])
                wait_for(lambda: status(port, "/health") == 200)
                read = f"cep_events_total {(number + 1) * len(lines) // 3}.0"
                # A delivery that is under way for longer than a client waits would end the job, as it is to.
                for _ in range(2):  # the gauge is of the second before
                    wait_for(lambda text=read: {text, "cep_undelivered_alerts 0.0"} <= set(metrics(port)))  # type: ignore[misc]
                    threading.Event().wait(3)
                if number == 2:
                    break
                assert kafka._process is not None
                kafka._process.send_signal(signal.SIGSTOP) if number == 0 else kafka.kill()
                wait_for(lambda: status(port, "/health") == 503)
                threading.Event().wait(5 if number == 0 else OUTAGE_S)
                assert (status(port, "/live"), status(port, "/ready")) == (200, 200)
                if number == 0:
                    kafka._process.send_signal(signal.SIGCONT)
                else:
                    kafka.start()
                    kafka._producer = None
                wait_for(lambda: status(port, "/health") == 200)
            kafka.send("payments", [{"value": end, "partition": 0}])
            found = consumed(kafka.address, "alerts", lambda values: len(values) >= len(wanted))
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert process.returncode == 0, said.decode()
    assert sorted(found) == wanted
    told = [orjson.loads(line) for line in said.splitlines()]
    changes = [line["event"] for line in told if line.get("part") == "brokers"]
    assert changes == ["unhealthy", "healthy"] * 2
