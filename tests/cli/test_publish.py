"""Publishing on a broker. The job's part is played by a rulebook of this process that reads the same topics; the test
with a job of Spark is tests/runners/spark/test_rules_live.py."""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import orjson
import pytest
from confluent_kafka.admin import AdminClient

from cep.cli.main import main
from cep.rulebook.deploy import schema_of
from cep.rulebook.files import read_rules
from cep.rulebook.kafka import StatusTopic, Topic
from cep.rulebook.rulebook import Rulebook
from cep.runners.control_topic import read_control_topic, read_status, wait_for_status
from cep.step.rule_status import rule_status
from tests.real_kafka import KafkaCluster

ROOT = Path(__file__).parents[2]
NUMBERS = itertools.count()


class Answering:
    """Applies what comes on a control topic and says so, like a job, until it is stopped."""

    def __init__(self, servers: str, name: str) -> None:
        self.control, self.status = Topic(servers, name), StatusTopic(servers, f"{name}-status")
        records, _ = read_rules(ROOT / "rules")
        self.book = Rulebook(schema_of(records), None)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._applied = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30.0)

    def _serve(self) -> None:
        while not self._stop.wait(0.05):
            places, _ = read_control_topic(self.control)
            for place in places[self._applied :]:
                self.book.apply(place.record, 1_000)
            if len(places) > self._applied:
                self._applied = len(places)
                self.status.publish(orjson.dumps(rule_status(self.book)))

    @property
    def flags(self) -> list[str]:
        return [
            "--bootstrap-servers", self.control.servers, "--control-topic", self.control.name,
            "--status-topic", self.status.name, "--at-once",
        ]  # fmt: skip


@pytest.fixture
def job(kafka_broker: KafkaCluster) -> Iterator[Answering]:
    name = f"publish-{next(NUMBERS)}"
    for topic in (name, f"{name}-status"):
        kafka_broker.create(topic, 1)
    with Answering(kafka_broker.address, name) as answering:
        yield answering


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("rules", "patterns"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path / "rules"


def changed(folder: Path, old: str, new: str, rule: str = "card_testing") -> None:
    path = folder / f"{rule}.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def versions(job: Answering) -> dict[str, int]:
    status = read_status(job.status)
    assert status is not None
    found: dict[str, int] = status["last_versions"]
    return found


def test_the_life_of_a_rule(job: Answering, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish = ["publish", "--rules", str(folder), *job.flags]
    assert main([*publish, "--dry-run"]) == 0
    assert read_control_topic(job.control) == ([], 0)
    assert main(publish) == 0
    assert set(versions(job).values()) == {1}
    assert main(publish) == 0
    assert "nothing to send" in capsys.readouterr().out
    changed(folder, "tries = 3", "tries = 4")
    assert main(publish) == 1
    assert "cep rules bump card_testing" in capsys.readouterr().out
    assert main(["rules", "bump", "card_testing", "--rules", str(folder)]) == 0
    capsys.readouterr()
    assert main([*publish, "--only", "card_testing"]) == 0
    assert "missing" not in capsys.readouterr().out, "the other rules have files, they are only not asked for"
    assert versions(job)["card_testing"] == 2
    assert main(["rollback", "card_testing", "--to", "1", "--rules", str(folder), *job.flags]) == 0
    assert "cep rules bump card_testing --above 3" in " ".join(capsys.readouterr().out.split())
    assert versions(job)["card_testing"] == 3
    record = job.book.record_of("card_testing", 3)
    assert record is not None
    assert record.params["tries"] == 3
    assert main(publish) == 1, "the file is behind what runs"
    assert main(["pause", "card_testing", "--reason", "floods", *job.flags]) == 0
    assert job.book.report().paused == ("card_testing",)
    assert main(["resume", "card_testing", *job.flags]) == 0
    assert job.book.report().paused == ()
    snooze = ["snooze", "card_testing", "--key", "c1", "--until", "2030-01-01T00:00:00Z", "--by", "ann", *job.flags]
    assert main(snooze) == 0
    assert [(s.rule_id, s.key) for s in job.book.report().snoozes] == [("card_testing", "c1")]
    (folder / "rising_amounts.toml").unlink()
    assert main(["rules", "bump", "card_testing", "--above", "3", "--rules", str(folder)]) == 0
    assert main([*publish, "--retire-missing"]) == 0
    assert versions(job)["rising_amounts"] == 2
    assert "rising_amounts" not in {rule.rule_id for rule in job.book.report().rules if rule.starts_until_ms > 2_000}


def test_what_the_job_refuses_is_told(job: Answering, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job.book.key_domains = (("account_id",),)
    assert main(["publish", "--rules", str(folder), "--only", "card_testing", *job.flags]) == 1
    assert "the job does not route events by (card_id)" in " ".join(capsys.readouterr().out.split())


def test_a_failing_test_and_a_finding_stop_a_publication(
    job: Answering, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pattern = folder.parent / "patterns" / "cards.cep"
    whole = pattern.read_text()
    publish = ["publish", "--rules", str(folder), "--only", "card_testing", *job.flags]
    pattern.write_text(whole.replace("expect none", "expect matches 7", 1))
    assert main(publish) == 1
    assert "test fails" in capsys.readouterr().out
    pattern.write_text(whole + '\nlist nobody_reads = ["a"]\n')
    assert main(publish) == 1
    assert "CEP702" in capsys.readouterr().out
    assert read_control_topic(job.control) == ([], 0)


def test_two_people_where_it_is_configured(
    job: Answering, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "cep.toml"
    conf.write_text("[publish]\ntwo_person = true\n")
    publish = ["publish", "--rules", str(folder), "--only", "card_testing", "--conf", str(conf), *job.flags]
    assert main(publish) == 1
    assert "two people must stand for a change" in " ".join(capsys.readouterr().out.split())
    changed(folder, 'owner = "card-fraud"', 'owner = "card-fraud"\nauthor = "ann"\napproved_by = "bob"')
    assert main(publish) == 0
    assert versions(job) == {"card_testing": 1}


def test_without_topics_it_says_what_is_missing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", "--rules", str(folder)]) == 2
    assert "--control-topic" in capsys.readouterr().err


def test_a_job_in_one_process_acknowledges(
    kafka_broker: KafkaCluster, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job may come first: it makes the topics that are missing."""
    name = f"publish-{next(NUMBERS)}"
    kafka_broker.create(f"{name}-events", 1)
    flags = ["--bootstrap-servers", kafka_broker.address, "--control-topic", name, "--status-topic", f"{name}-status"]
    command = [sys.executable, "-c", "import sys; from cep.cli.main import main; sys.exit(main(sys.argv[1:]))", "run"]
    given = ["--rules", str(folder), "--topic", f"{name}-events", "--alerts", str(tmp_path / "alerts")]
    job = subprocess.Popen([*command, *given, *flags, "--checkpoint", str(tmp_path / "checkpoint")])
    try:
        status = StatusTopic(kafka_broker.address, f"{name}-status")
        give_up_s = time.monotonic() + 120.0
        while not _is_there(kafka_broker, status.name) and time.monotonic() < give_up_s:
            time.sleep(0.2)
        first = wait_for_status(status, lambda found: bool(found["rules"]), 60.0)
        assert first is not None
        assert first["epoch"] == len(first["rules"])
        assert main(["pause", "card_testing", "--wait", "60", *flags]) == 0
        assert f"is paused; the job is at epoch {first['epoch'] + 1}" in " ".join(capsys.readouterr().out.split())
    finally:
        job.send_signal(signal.SIGTERM)
        assert job.wait(60.0) == 0


def _is_there(kafka: KafkaCluster, topic: str) -> bool:
    return topic in AdminClient({"bootstrap.servers": kafka.address}).list_topics(timeout=10.0).topics


def test_a_job_that_does_not_answer(
    kafka_broker: KafkaCluster, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"publish-{next(NUMBERS)}"
    for topic in (name, f"{name}-status"):
        kafka_broker.create(topic, 1)
    flags = ["--bootstrap-servers", kafka_broker.address, "--control-topic", name, "--status-topic", f"{name}-status"]
    assert main(["publish", "--rules", str(folder), "--wait", "0.1", *flags]) == 3
    assert "the job has not acknowledged" in capsys.readouterr().err
