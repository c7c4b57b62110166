"""Publishing on a broker. A rulebook of this process, which reads the same topics, replaces the job.

The test with a Spark job is tests/runners/spark/test_rules_live.py.
"""

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
from typing import Any, Self

import orjson
import pytest
from confluent_kafka.admin import AdminClient

from cep.cli.main import main
from cep.cli.topics import send
from cep.model.rule import HeartbeatRecord
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
    """Applies the records of a control topic and reports it, like a job, until it is stopped."""

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
    last_versions: dict[str, int] = status["last_versions"]
    return last_versions


def test_the_life_of_a_rule(job: Answering, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish = ["rules", "publish", "--rules", str(folder), *job.flags]
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
    assert main([*publish, "--dry-run"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "params.tries 3 → 4" in printed
    drained = "the runs of version 1 are drained: `on_update` is `drain`"
    assert drained in printed
    assert main([*publish, "--only", "card_testing"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert drained in printed
    assert "missing" not in printed, "the other rules have files, they are only not asked for"
    assert versions(job)["card_testing"] == 2
    assert main(["rules", "rollback", "card_testing", "--to", "1", "--rules", str(folder), *job.flags]) == 0
    assert "cep rules bump card_testing --above 3" in " ".join(capsys.readouterr().out.split())
    assert versions(job)["card_testing"] == 3
    record = job.book.record_of("card_testing", 3)
    assert record is not None
    assert record.params["tries"] == 3
    assert main(publish) == 1, "the file is behind what runs"
    assert main(["rules", "pause", "card_testing", "--reason", "floods", "--by", "ann", *job.flags]) == 0
    assert job.book.report().paused == ("card_testing",)
    (pause_change,) = job.book.report().taken["card_testing/pause"]
    assert (pause_change["by"], pause_change["reason"]) == ("ann", "floods")
    assert main(["rules", "resume", "card_testing", *job.flags]) == 0
    assert job.book.report().paused == ()
    snooze = [
        "rules",
        "snooze",
        "card_testing",
        "--key",
        "c1",
        "--until",
        "2030-01-01T00:00:00Z",
        "--by",
        "ann",
        *job.flags,
    ]
    assert main(snooze) == 0
    assert [(s.rule_id, s.key) for s in job.book.report().snoozes] == [("card_testing", "c1")]
    (folder / "rising_amounts.toml").unlink()
    assert main(["rules", "bump", "card_testing", "--above", "3", "--rules", str(folder)]) == 0
    assert main([*publish, "--retire-missing"]) == 0
    assert versions(job)["rising_amounts"] == 2
    assert "rising_amounts" not in {rule.rule_id for rule in job.book.report().rules if rule.starts_until_ms > 2_000}
    sent = [place.record for place in read_control_topic(job.control)[0]]
    nonces = {record.nonce for record in sent if not isinstance(record, HeartbeatRecord)}
    assert None not in nonces
    assert len(nonces) == len(sent), "nobody signs, so each record has a nonce of its own"


def test_what_the_job_refuses_is_told(job: Answering, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job.book.key_domains = (("account_id",),)
    assert main(["rules", "publish", "--rules", str(folder), "--only", "card_testing", *job.flags]) == 1
    assert "the job does not route events by (card_id)" in " ".join(capsys.readouterr().out.split())


def test_a_failing_test_and_a_finding_stop_a_publication(
    job: Answering, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pattern = folder.parent / "patterns" / "cards.cep"
    whole = pattern.read_text()
    publish = ["rules", "publish", "--rules", str(folder), "--only", "card_testing", *job.flags]
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
    publish = ["rules", "publish", "--rules", str(folder), "--only", "card_testing", "--conf", str(conf), *job.flags]
    assert main(publish) == 1
    assert "two people must stand for a change" in " ".join(capsys.readouterr().out.split())
    changed(folder, 'owner = "card-fraud"', 'owner = "card-fraud"\nauthor = "ann"\napproved_by = "bob"')
    assert main(publish) == 0
    assert versions(job) == {"card_testing": 1}


def test_without_topics_it_says_what_is_missing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "publish", "--rules", str(folder)]) == 2
    assert "--control-topic" in capsys.readouterr().err


def test_two_publishers_at_once_and_a_job_that_is_built_anew(
    kafka_broker: KafkaCluster, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A real job creates the missing topics. One of two publishers is told that the other was first."""
    name = f"publish-{next(NUMBERS)}"
    kafka_broker.create(f"{name}-events", 1)
    flags = ["--bootstrap-servers", kafka_broker.address, "--control-topic", name, "--status-topic", f"{name}-status"]
    command = [sys.executable, "-c", "import sys; from cep.cli.main import main; sys.exit(main(sys.argv[1:]))", "run"]
    arguments = ["--rules", str(shutil.copytree(folder.parent, tmp_path / "first") / "rules")]
    arguments += ["--topic", f"{name}-events", "--alerts", str(tmp_path / "alerts"), *flags]
    log = tmp_path / "log"
    with log.open("wb") as errors:
        job = subprocess.Popen([*command, *arguments, "--checkpoint", str(tmp_path / "checkpoint")], stderr=errors)
    try:
        status = StatusTopic(kafka_broker.address, f"{name}-status")
        give_up_s = time.monotonic() + 120.0
        while not _is_there(kafka_broker, status.name) and time.monotonic() < give_up_s:
            time.sleep(0.2)
        first = wait_for_status(status, lambda job_status: bool(job_status["rules"]), 60.0)
        assert first is not None
        assert first["epoch"] == len(first["rules"])
        assert main(["rules", "pause", "card_testing", "--wait", "60", *flags]) == 0
        assert f"is paused; the job is at epoch {first['epoch'] + 1}" in " ".join(capsys.readouterr().out.split())
        both = [shutil.copytree(folder.parent, tmp_path / person) / "rules" for person in ("ann", "bob")]
        for tries, rules in enumerate(both, start=4):
            changed(rules, "tries = 3", f"tries = {tries}")
            assert main(["rules", "bump", "card_testing", "--rules", str(rules)]) == 0
        codes = _publish_at_once(both, flags, monkeypatch)
        assert sorted(codes.values()) == [0, 1]
        winner, loser = sorted(codes, key=lambda person: codes[person])
        printed = " ".join(capsys.readouterr().out.split())
        assert f"by {winner}: a change of {winner} was first" in printed
        assert f"by {loser}: a change of {loser}" in printed
        assert "params.tries 4 → 5" in printed or "params.tries 5 → 4" in printed
        last_status = wait_for_status(
            status, lambda job_status: bool(job_status["refused"]), 60.0
        )  # the loser's refusal, which comes later
        assert last_status is not None
        assert last_status["taken"]["card_testing"][-1]["by"] == winner
    finally:
        job.send_signal(signal.SIGTERM)
        assert job.wait(60.0) == 0
    assert f"by {winner}: a change of {winner}" in log.read_text()
    # Compaction removes no record that still counts.
    places, _ = read_control_topic(Topic(kafka_broker.address, name))
    assert len({place.key for place in places}) == len(places) == 3
    assert main(["run", *arguments, "--checkpoint", str(tmp_path / "anew"), "--available-now"]) == 0
    anew = read_status(status)
    assert anew is not None
    for part in ("content_hash", "taken", "paused", "last_versions", "refused", "audit"):
        assert anew[part] == last_status[part]


def _publish_at_once(folders: list[Path], flags: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Publish from all folders; every sender waits until all have compared. Return the exit codes by person."""
    barrier, codes = threading.Barrier(len(folders)), dict[str, int]()

    def sent(*given: Any) -> None:
        barrier.wait(60.0)
        send(*given)

    def publish(rules: Path) -> None:
        who = rules.parent.name
        person = ["--by", who, "--why", f"a change of {who}"]
        codes[who] = main(
            ["rules", "publish", "--rules", str(rules), "--only", "card_testing", "--at-once", *person, *flags]
        )

    monkeypatch.setattr("cep.cli.publish.send", sent)
    threads = [threading.Thread(target=publish, args=(rules,)) for rules in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
    return codes


def test_a_heartbeat(kafka_broker: KafkaCluster) -> None:
    name = f"publish-{next(NUMBERS)}"
    flags = ["--bootstrap-servers", kafka_broker.address, "--control-topic", name]
    assert main(["job", "heartbeat", "--event-time", "2026-01-01T00:00:00+01:00", *flags]) == 0
    assert main(["job", "heartbeat", *flags]) == 0
    first, second = read_control_topic(Topic(kafka_broker.address, name))[0]
    assert first.record == HeartbeatRecord(event_time="2025-12-31T23:00:00Z")
    assert isinstance(second.record, HeartbeatRecord)
    assert abs(second.record.event_time_ms - time.time() * 1_000) < 60_000
    assert first.key == second.key, "compaction needs the last one only"
    assert main(["job", "heartbeat", "--event-time", "soon", *flags]) == 2


def _is_there(kafka: KafkaCluster, topic: str) -> bool:
    return topic in AdminClient({"bootstrap.servers": kafka.address}).list_topics(timeout=10.0).topics


def test_a_job_that_does_not_answer(
    kafka_broker: KafkaCluster, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"publish-{next(NUMBERS)}"
    for topic in (name, f"{name}-status"):
        kafka_broker.create(topic, 1)
    flags = ["--bootstrap-servers", kafka_broker.address, "--control-topic", name, "--status-topic", f"{name}-status"]
    assert main(["rules", "publish", "--rules", str(folder), "--wait", "0.1", *flags]) == 3
    assert "the job has not acknowledged" in capsys.readouterr().err
