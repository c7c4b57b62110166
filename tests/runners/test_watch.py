"""The watch reports when brokers are away and when they are back, the lag, waiting events, and a slow sink."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cep.engine.alerts import NO_ALERTS
from cep.runners import observe as observe_module
from cep.runners import watch as watch_module
from cep.runners.observe import Observed
from cep.runners.watch import Watch, Watched
from cep.sources.kafka import KafkaSettings
from tests.mock_kafka import MockKafka
from tests.sources.registry.registry_server import serve_registry

LOOKS_MAX = 100


def watched(address: str, folder: Path | None = None) -> Watched:
    return Watched(KafkaSettings(address), "payments", "payments", folder)


def test_a_broker_that_is_stopped_and_one_that_is_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.mock_kafka"]
    broker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    observed = Observed(60_000)
    watch = Watch(watched(broker.stdout.readline().strip(), tmp_path), observed, 500)
    try:
        watch.look()
        assert observed.health()[1]["parts"]["brokers"] == "well"
        assert observed.gauges["disk_free_bytes"] > 0
        broker.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, broker.pid, os.WSTOPPED)
        watch.look()
        assert not observed.health()[0]
        since = observed.troubles["brokers"]
        watch.look()
        assert observed.troubles["brokers"] == since, "it says since when"
        broker.send_signal(signal.SIGCONT)
        for _ in range(LOOKS_MAX):
            watch.look()
            if not observed.troubles:
                break
        assert observed.health()[0]
        broker.kill()
        broker.wait()
        watch.look()
        assert list(observed.troubles) == ["brokers"]
    finally:
        broker.kill()
        broker.wait()
    with watch:
        pass
    observed.note("brokers", None)
    watch.look()
    assert observed.troubles == {}, "a job that has ended says nothing more"


def test_lag_and_events_that_nobody_reads() -> None:
    with MockKafka() as kafka:
        kafka.send("payments", ({"value": b"{}", "partition": n % 2} for n in range(10)))
        observed = Observed(0)  # no waiting is allowed
        watch = Watch(watched(kafka.address), observed, 2_000)
        observed.positions = {"payments[0]": 2, "payments[1]": 5}
        watch.look()
        assert observed.lags == {"payments[0]": 3, "payments[1]": 0, "payments[2]": 0, "payments[3]": 0}
        assert observed.troubles["events"].startswith("3 records wait")
        assert observed.health()[1]["lag_records"] == 3
        observed.stalled_ms = 3_600_000
        observed.positions = {"payments[0]": 5, "payments[1]": 5}
        watch.look()
        assert (sum(observed.lags.values()), observed.troubles) == (0, {})


def test_a_registry_that_gives_no_answer() -> None:
    with serve_registry() as (server, registry):
        observed = Observed(60_000)
        watch = Watch(Watched(registry=registry), observed, 1_000)
        watch.look()
        assert observed.health()[1]["parts"]["registry"] == "well"
        server.failures_left = 1_000
        watch.look()
        assert observed.troubles["registry"].startswith("no answer since 20")
        assert not observed.health()[0]
        server.failures_left = 0
        watch.look()
        assert observed.health()[0]


def test_a_job_is_ready_once_it_has_caught_up_with_its_topic() -> None:
    with MockKafka() as kafka:
        kafka.send("payments", ({"value": b"{}", "partition": 0} for _ in range(100)))
        observed = Observed(3_600_000, ready_lag_ms=10_000)
        watch = Watch(replace(watched(kafka.address), first_positions=lambda: {"payments[0]": 20}), observed, 2_000)
        observed.begin()
        assert observed.ready() == (False, {**observed.ready()[1], "ready": False, "lag_records": None})
        watch.look()  # the job has not reported yet
        for position, is_ready in ((None, False), (60, False), (100, True)):
            if position is not None:
                observed.positions = {"payments[0]": position}
                watch.look()
            report = observed.ready()[1]
            assert report["lag_records"] == (80 if position is None else 100 - position)
            assert report["ready"] == observed.health()[1]["ready"] == is_ready
        kafka.send("payments", ({"value": b"{}", "partition": 0} for _ in range(50)))
        watch.look()
        assert (observed.ready()[0], sum(observed.lags.values())) == (True, 50), "a later lag is for alarms"


def test_as_many_events_may_wait_as_arrive_in_the_time_of_the_setting() -> None:
    observed = Observed(3_600_000, ready_lag_ms=10_000)
    observed.begin()
    for waiting, is_ready in ((2_001, False), (2_000, True)):
        observed.lagging({"payments[0]": waiting - 1, "payments[1]": 1}, arriving_per_s=200.0)
        assert observed.ready()[0] == is_ready
    standby = Observed(3_600_000, ready_lag_ms=10_000)
    standby.begin()
    standby.measured({"standby": 1.0}, {})
    assert standby.ready()[0], "a process that stands by reads no topic of events"
    standby.measured({"standby": 0.0}, {})
    assert not standby.ready()[0]


def test_a_folder_that_goes_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observed, usage = Observed(60_000), shutil.disk_usage
    (tmp_path / "job").mkdir()

    def late(folder: Path) -> object:
        folder.rmdir()
        return usage(folder)

    monkeypatch.setattr("cep.runners.watch.shutil.disk_usage", late)
    Watch(Watched(folder=tmp_path / "job"), observed, 1_000).look()
    assert "disk_free_bytes" not in observed.gauges


def test_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observed = Observed(60_000)
    watch = Watch(Watched(folder=tmp_path / "job"), observed, 1_000)
    watch.look()
    assert "disk_free_bytes" not in observed.gauges, "the job has not made its folder yet"
    (tmp_path / "job").mkdir()
    monkeypatch.setattr(watch_module, "DISK_FREE_BYTES_MIN", 1 << 62)
    watch.look()
    assert "MB are left" in observed.troubles["disk"]
    monkeypatch.undo()
    monkeypatch.setattr(watch_module, "DISK_FREE_BYTES_MIN", 1)
    watch.look()
    assert observed.health()[0]


def test_a_delivery_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    observed = Observed(60_000)
    watch = Watch(Watched(), observed, 1_000)
    with observed.sending("alerts", NO_ALERTS):
        watch.look()
        assert observed.health()[0]
        monkeypatch.setattr(observe_module, "SENDING_MS_MAX", 0)
        is_healthy, answer = observed.health()
        assert not is_healthy
        assert answer["parts"]["sinks"].startswith("alerts: it has not answered a delivery"), "without a look before"
    monkeypatch.undo()
    watch.look()
    assert observed.health()[0]
