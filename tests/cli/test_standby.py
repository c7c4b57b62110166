"""`cep run --standby`: one of two processes works. The other takes its place, and no alert is lost or doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from cep.base.exits import Exit
from cep.cli.main import main
from tests.real_kafka import KafkaCluster
from tests.runners.embedded.cases import day, deployment, expected
from tests.runners.embedded.test_run import ROOT

WAIT_S = 300  # on a machine that compiles the kernels first
OPERATING_ERROR = 3
PARTITIONS = 1  # with more partitions, those without events would delay the watermark until they are idle


@dataclass
class Member:
    """A process of the job, on its own machine: it has only its folder."""

    process: subprocess.Popen[bytes]
    log: Path

    def lines(self) -> list[dict[str, Any]]:
        whole = self.log.read_bytes().rpartition(b"\n")[0].splitlines()
        return [orjson.loads(line) for line in whole if line.startswith(b"{")]

    def says(self, event: str) -> bool:
        return any(line["event"] == event for line in self.lines())

    def wait_for(self, event: str) -> None:
        """Wait until the process logs the event."""
        deadline_s = time.monotonic() + WAIT_S
        while not self.says(event):
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
            self.state, "--standby", "--max-records", "100", "--key-groups", "8", "--log", "json", *more,
        ]  # fmt: skip
        log = self.folder / f"{name}-{uuid.uuid4().hex[:4]}.log"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with log.open("wb") as file:
            command = [sys.executable, "-c", "from cep.cli.main import entry; entry()"]
            return Member(subprocess.Popen([*command, *arguments], env=environment, stderr=file), log)

    def send(self, lines: list[bytes]) -> None:
        self.kafka.send(self.events, [{"value": line, "partition": 0} for line in lines])

    def committed(self) -> list[bytes]:
        """Return all alerts that a reader of committed records gets now, sorted."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka.address,
                "group.id": uuid.uuid4().hex,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([TopicPartition(self.alerts, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        values, ends = list[bytes](), 0
        while ends < PARTITIONS:
            for message in consumer.consume(1_000, 0.2):
                error, value = message.error(), message.value()
                ends += error is not None and error.code() == KafkaError._PARTITION_EOF
                if error is None and value is not None:
                    values.append(value)
        consumer.close()
        return sorted(values)

    def wait_for_alerts(self, least: int) -> None:
        """Wait for at least so many alerts."""
        deadline_s = time.monotonic() + WAIT_S
        while len(self.committed()) < least:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)


def job_of(kafka: KafkaCluster, folder: Path) -> Job:
    events, alerts, state = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("events", "alerts", "state"))
    for topic in (events, alerts):
        kafka.create(topic, PARTITIONS)
    return Job(kafka, folder, events, alerts, state)


def test_a_standby_needs_a_changelog(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    arguments = ["--rules", str(ROOT / "rules"), "--events", str(tmp_path / "events"), "--checkpoint", str(tmp_path)]
    assert main(["run", *arguments, "--standby"]) == Exit.USAGE
    assert "--standby needs --changelog TOPIC" in capsys.readouterr().err


def parted(members: Sequence[Member]) -> Sequence[Member]:
    """Return the two new processes: the one with the lease, which works, and the one that is ready to follow."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        for at_work, waits in (members, members[::-1]):
            if at_work.says("started") and waits.says("standby_ready"):
                return at_work, waits
        for member in members:
            assert member.process.poll() is None, member.log.read_text()
            assert time.monotonic() < deadline_s, member.log.read_text()
        time.sleep(0.05)


@pytest.mark.parametrize("ending", ["stopped", pytest.param("killed", marks=pytest.mark.slow)])
def test_a_standby_takes_over(ending: str, kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    """The first process is killed; or it is stopped in its work, and continues after another one has taken over."""
    if not kafka_broker.is_real:
        return  # the mock has no fence
    job, lines = job_of(kafka_broker, tmp_path), list(day()[3_000:5_000])  # with many alerts
    job.send(lines[: len(lines) // 4])
    members = [job.start(name) for name in ("one", "two")]  # both at once, which saves a start
    try:
        expected_alerts = sorted(expected(lines, deployment(), tmp_path))
        at_work, waits = parted(members)
        job.send(lines[len(lines) // 4 :])
        job.wait_for_alerts(1)
        at_work.process.send_signal(signal.SIGSTOP if ending == "stopped" else signal.SIGKILL)
        began_s = time.monotonic()
        waits.wait_for("took_over")
        took_s = time.monotonic() - began_s
        job.wait_for_alerts(len(expected_alerts) - 1)
        print(f"{ending}: took over after {took_s:.1f} s, all alerts after {time.monotonic() - began_s:.1f} s")
        if ending == "stopped":
            at_work.process.send_signal(signal.SIGCONT)
            assert at_work.ended() == OPERATING_ERROR
            assert "another process" in at_work.log.read_text()
        waits.process.send_signal(signal.SIGTERM)
        assert waits.ended() == 0, waits.log.read_text()
    finally:
        for member in members:
            member.process.kill()
    assert job.committed() == expected_alerts


@pytest.mark.slow
def test_the_work_goes_back_and_forth(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    """Processes are killed, ended in order or stopped, each time with the other one ready, with an older store."""
    if not kafka_broker.is_real:
        return
    job, lines, parts = job_of(kafka_broker, tmp_path), list(day()), 6
    expected_alerts = sorted(expected(lines, deployment(), tmp_path))
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
        job.wait_for_alerts(len(expected_alerts))
        for member in (waits, at_work):
            member.process.send_signal(signal.SIGTERM)
            assert member.ended() == 0, member.log.read_text()
    finally:
        for member in members:
            member.process.kill()
    assert job.committed() == expected_alerts
