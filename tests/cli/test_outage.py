"""A broker is stopped, killed for longer than any wait, then accepts no alerts: the job sees it, and loses none."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import orjson
import pytest

from tests.cli.test_run import free_port
from tests.real_kafka import RealKafka, SecondBroker
from tests.runners.embedded.cases import day, deployment, expected, morning
from tests.runners.embedded.test_run import ROOT, consumed, start

OUTAGE_S = 40  # longer than a client waits for an answer
WAIT_S = 300


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
def test_a_job_that_starts_without_a_broker_says_so_and_goes_on_with_it(tmp_path: Path) -> None:
    """The job waits for half a minute; then it ends with the reason, and its platform starts it again."""
    lines, port = list(morning()), free_port()
    with RealKafka() as kafka:
        kafka.create("payments", 1)
        kafka.send("payments", [{"value": line, "partition": 0} for line in lines])
        kafka.stop()
        process = start(
            "--rules", str(ROOT / "rules"), "--bootstrap-servers", kafka.address, "--topic", "payments",
            "--alerts", str(tmp_path / "alerts"), "--checkpoint", str(tmp_path / "job"),
            "--listen", str(port), "--log", "json",
        )  # fmt: skip
        try:
            wait_for(lambda: status(port, "/health") == 503)
            assert (status(port, "/live"), status(port, "/ready")) == (200, 503)
            kafka.start()
            wait_for(lambda: status(port, "/health") == 200)
            wait_for(lambda: f"cep_events_total {len(lines)}.0" in metrics(port))
            assert status(port, "/ready") == 200
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=WAIT_S)
            assert process.returncode == 0, log.decode()
            kafka.stop()
            again = start(
                "--rules", str(ROOT / "rules"), "--bootstrap-servers", kafka.address, "--topic", "payments",
                "--alerts", str(tmp_path / "alerts"), "--checkpoint", str(tmp_path / "job"),
            )  # fmt: skip
            _, complaint = again.communicate(timeout=WAIT_S)
            assert again.returncode == 3
            assert f"Kafka at {kafka.address} gave no" in complaint.decode()
        finally:
            process.kill()
    log_lines = [orjson.loads(line) for line in log.splitlines()]
    assert [line["event"] for line in log_lines if line.get("part") == "brokers"] == ["unhealthy", "healthy"]
    assert [line["event"] for line in log_lines][-1] == "ended"


def sent_in_parts(count: int) -> tuple[list[list[bytes]], bytes]:
    """Return the events of a day in parts, and a later event that releases waiting ones."""
    lines = list(day())
    end = orjson.dumps({**orjson.loads(lines[-1]), "tx_id": "end", "event_time": "2026-06-01T00:00:00Z"})
    bounds = [number * len(lines) // count for number in range(count + 1)]
    return [lines[first:last] for first, last in pairwise(bounds)], end


def wait_for_all_of(port: int, events: int) -> None:
    """Wait until a job has read so many events, and its sinks have their alerts."""
    wait_for(lambda: {f"cep_events_total {events}.0", "cep_undelivered_alerts 0.0"} <= set(metrics(port)))


def verify_end(
    process: subprocess.Popen[bytes], kafka: RealKafka, expected_alerts: list[bytes]
) -> dict[str, list[str]]:
    """Check that the job ends well and its topic has each alert once. Return the job's log events by part."""
    alerts = consumed(kafka.address, "alerts", lambda values: len(values) >= len(expected_alerts))
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, log.decode()
    assert sorted(alerts) == expected_alerts
    events_by_part: dict[str, list[str]] = {}
    for line in map(orjson.loads, log.splitlines()):
        events_by_part.setdefault(line.get("part", ""), []).append(line["event"])
    return events_by_part


@pytest.mark.slow
def test_a_job_sees_outages_and_outlives_them(tmp_path: Path) -> None:
    (before, between, behind), end = sent_in_parts(3)
    expected_alerts = sorted(expected([*before, *between, *behind, end], deployment(), tmp_path))
    port = free_port()
    with RealKafka() as kafka:
        for topic in ("payments", "alerts"):
            kafka.create(topic, 1)
        process = start_with_topics(kafka, tmp_path / "job", port)
        try:
            for number, part in enumerate((before, between)):
                kafka.send("payments", [{"value": line, "partition": 0} for line in part])
                wait_for(lambda: status(port, "/health") == 200)
                wait_for_all_of(port, len(before) + number * len(between))
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
            kafka.send("payments", [{"value": line, "partition": 0} for line in (*behind, end)])
            events_by_part = verify_end(process, kafka, expected_alerts)
        finally:
            process.kill()
    assert events_by_part["brokers"] == ["unhealthy", "healthy"] * 2


@pytest.mark.slow
def test_a_topic_that_takes_no_alerts_makes_a_job_unready(tmp_path: Path) -> None:
    (before, behind), end = sent_in_parts(2)
    expected_alerts = sorted(expected([*before, *behind, end], deployment(), tmp_path))
    port = free_port()
    with ExitStack() as brokers:
        kafka = brokers.enter_context(RealKafka())
        kafka.create("payments", 1)  # on the first broker, before the other starts
        second = brokers.enter_context(SecondBroker(kafka))
        second.create_on_both("alerts")
        process = start_with_topics(kafka, tmp_path / "job", port)
        try:
            kafka.send("payments", [{"value": line, "partition": 0} for line in before])
            wait_for(lambda: status(port, "/health") == 200)
            wait_for_all_of(port, len(before))
            second.stop()
            kafka.send("payments", [{"value": line, "partition": 0} for line in (*behind, end)])
            wait_for(lambda: status(port, "/ready") == 503)
            assert (status(port, "/live"), status(port, "/health")) == (200, 503)
            wait_for(lambda: "cep_deliveries_retried_total 1.0" in metrics(port))
            assert status(port, "/ready") == 503
            second.start()
            wait_for(lambda: status(port, "/ready") == 200)
            events_by_part = verify_end(process, kafka, expected_alerts)
        finally:
            process.kill()
    assert events_by_part["sinks"] == ["unhealthy", "healthy"]


def start_with_topics(kafka: RealKafka, checkpoint: Path, port: int) -> subprocess.Popen[bytes]:
    """Start a job from the topic `payments` into the topic `alerts`."""
    return start(
        "--rules", str(ROOT / "rules"), "--bootstrap-servers", kafka.address, "--topic", "payments",
        "--alerts", "kafka:alerts", "--checkpoint", str(checkpoint), "--listen", str(port), "--log", "json",
    )  # fmt: skip
