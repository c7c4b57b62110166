"""`cep run --standby`: of two processes one works; the other one takes its place, and no alert is lost or doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from cep.cli.main import USAGE, main
from tests.real_kafka import KafkaCluster
from tests.runners.embedded.cases import day, deployment, expected
from tests.runners.embedded.test_run import ROOT, consumed

WAIT_S = 300  # where the kernels are compiled first
OPERATING_ERROR = 3


@dataclass
class Member:
    """A process of the job, on a machine of its own: it has nothing but its folder."""

    process: subprocess.Popen[bytes]
    log: Path

    def lines(self) -> list[dict[str, Any]]:
        whole = self.log.read_bytes().rpartition(b"\n")[0].splitlines()
        return [orjson.loads(line) for line in whole if line.startswith(b"{")]

    def wait_for(self, event: str) -> None:
        """Until it says so."""
        deadline_s = time.monotonic() + WAIT_S
        while not any(line["event"] == event for line in self.lines()):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline_s, self.log.read_text()
            time.sleep(0.05)

    def ended(self) -> int:
        return self.process.wait(WAIT_S)


@dataclass
class Job:
    """A job that several processes may work on."""

    kafka: KafkaCluster
    folder: Path
    events: str
    alerts: str
    state: str

    def start(self, name: str, *more: str) -> Member:
        arguments = [
            "run", "--rules", str(ROOT / "rules"), "--bootstrap-servers", self.kafka.address, "--topic", self.events,
            "--alerts", f"kafka:{self.alerts}", "--checkpoint", str(self.folder / name / "job"), "--changelog",
            self.state, "--standby", "--max-records", "50", "--key-groups", "8", "--log", "json", *more,
        ]  # fmt: skip
        log = self.folder / f"{name}-{uuid.uuid4().hex[:4]}.log"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with log.open("wb") as file:
            command = [sys.executable, "-c", "import cep.cli.main as m, sys; sys.exit(m.main(sys.argv[1:]))"]
            return Member(subprocess.Popen([*command, *arguments], env=environment, stderr=file), log)

    def send(self, lines: list[bytes]) -> None:
        self.kafka.send(self.events, [{"value": line, "partition": 0} for line in lines])

    def sent(self, enough: Callable[[list[bytes]], bool]) -> list[bytes]:
        deadline_s, found = time.monotonic() + WAIT_S, list[bytes]()
        while not enough(found) and time.monotonic() < deadline_s:
            found = consumed(self.kafka.address, self.alerts, enough)
        return sorted(found)


def job_of(kafka: KafkaCluster, folder: Path) -> Job:
    events, alerts, state = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("events", "alerts", "state"))
    for topic in (events, alerts):
        kafka.create(topic)
    return Job(kafka, folder, events, alerts, state)


def test_a_standby_needs_a_changelog(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    arguments = ["--rules", str(ROOT / "rules"), "--events", str(tmp_path / "events"), "--checkpoint", str(tmp_path)]
    assert main(["run", *arguments, "--standby"]) == USAGE
    assert "--standby needs --changelog TOPIC" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["stopped", pytest.param("killed", marks=pytest.mark.slow)])
def test_a_standby_takes_over(ending: str, kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    """The one before is killed; or it is stopped in the middle of its work, and goes on when another one works."""
    if not kafka_broker.is_real:
        return  # the mock has no fence
    job, lines = job_of(kafka_broker, tmp_path), list(day())
    wanted = sorted(expected(lines, deployment(), tmp_path))
    job.send(lines[: len(lines) // 2])
    members = [job.start("one")]
    try:
        members[0].wait_for("started")
        members.append(job.start("two"))
        members[1].wait_for("standby_ready")
        job.send(lines[len(lines) // 2 :])
        job.sent(lambda values: len(values) > 0)
        members[0].process.send_signal(signal.SIGSTOP if ending == "stopped" else signal.SIGKILL)
        began_s = time.monotonic()
        members[1].wait_for("took_over")
        took_s = time.monotonic() - began_s
        job.sent(lambda values: len(values) >= len(wanted) - 1)
        print(f"{ending}: took over after {took_s:.1f} s, all alerts after {time.monotonic() - began_s:.1f} s")
        if ending == "stopped":
            members[0].process.send_signal(signal.SIGCONT)
            assert members[0].ended() == OPERATING_ERROR
            assert "another process" in members[0].log.read_text()
        members[1].process.send_signal(signal.SIGTERM)
        assert members[1].ended() == 0, members[1].log.read_text()
    finally:
        for member in members:
            member.process.kill()
    assert job.sent(lambda values: len(values) >= len(wanted)) == wanted


@pytest.mark.slow
def test_the_work_goes_back_and_forth(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    """Killed, ended in order, stopped, each time with the other one ready, which has an older store of its own."""
    if not kafka_broker.is_real:
        return
    job, lines, parts = job_of(kafka_broker, tmp_path), list(day()), 6
    wanted = sorted(expected(lines, deployment(), tmp_path))
    at_work = job.start("one")
    members = [at_work]
    try:
        at_work.wait_for("started")
        waits = job.start("two")
        members.append(waits)
        for part in range(parts):
            at_work.wait_for("started")
            waits.wait_for("standby_ready")
            job.send(lines[part * len(lines) // parts : (part + 1) * len(lines) // parts])
            time.sleep(0.3)
            at_work.process.send_signal((signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)[part % 3])
            waits.wait_for("took_over")
            at_work.process.send_signal(signal.SIGCONT)
            at_work.ended()
            name = at_work.log.name.split("-")[0]
            at_work, waits = waits, job.start(name)
            members.append(waits)
        at_work.wait_for("started")
        waits.wait_for("standby_ready")
        found = job.sent(lambda values: len(values) >= len(wanted))
        for member in (waits, at_work):
            member.process.send_signal(signal.SIGTERM)
            assert member.ended() == 0, member.log.read_text()
    finally:
        for member in members:
            member.process.kill()
    assert found == wanted
    assert job.sent(lambda values: len(values) >= len(wanted)) == wanted
