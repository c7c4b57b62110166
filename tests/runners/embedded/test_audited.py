"""A job without signers writes an audit trail when its rules change, up to an erasure.

A job that is built again from the same records writes the same trail. A job whose rules never change writes none.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import orjson
import pytest

from cep.base.audit import is_audit
from cep.base.exits import Exit
from cep.cli.main import main
from cep.model.rule import PauseRecord, ResumeRecord, SnoozeRecord
from cep.rulebook.kafka import Topic
from cep.rulebook.statement import Signable, with_nonce
from cep.runners.control_topic import read_control_topic, read_status
from cep.runners.handover.erase import ways_to_write
from tests.real_kafka import KafkaCluster
from tests.runners.embedded.cases import morning
from tests.runners.embedded.test_run import place, written
from tests.sinks.test_kafka import consumed

CHECKOUT = Path(__file__).parents[3]
RULE, KEY = "card_testing", "card-æ7"
SNOOZE = SnoozeRecord(id=RULE, version=1, until="2030-01-01T00:00:00Z", key=KEY, by="Ada", reason=f"{KEY} travels")
PAUSE = PauseRecord(id=RULE, version=1, by="Bob")


class Plain:
    """A job of `cep run` without signers, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in ("rules", "patterns"):
            shutil.copytree(CHECKOUT / part, folder / part)
        for part in ("events", "control"):
            (folder / part).mkdir()
        self.rules = sorted(path.stem for path in (folder / "rules").glob("*.toml"))
        place(folder / "events", "1.jsonl", list(morning()))

    def send(self, name: str, *records: Signable | bytes) -> None:
        lines = [record if isinstance(record, bytes) else record.to_json() for record in records]
        place(self.folder / "control", name, lines)

    def run(self, checkpoint: str = "job", *more: str) -> int:
        job_folder = self.folder / checkpoint
        return main([
            "run", "--rules", str(self.folder / "rules"), "--events", str(self.folder / "events"), "--checkpoint",
            str(job_folder), "--alerts", str(job_folder / "alerts"), "--available-now", *more,
        ])  # fmt: skip

    @property
    def control(self) -> list[str]:
        return ["--control", str(self.folder / "control")]

    def trail(self, checkpoint: str = "job") -> list[bytes]:
        return [line for line in written(self.folder / checkpoint / "dead_letters") if is_audit(line)]


def head_of(lines: list[bytes]) -> str:
    last = orjson.loads(lines[-1])
    return f"{int(last['number'])}:{last['hash']}"


def test_a_trail_without_signers_goes_on_over_restarts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    job = Plain(tmp_path)
    changes: list[Signable] = [with_nonce(SNOOZE), with_nonce(PAUSE)]
    later: list[Signable | bytes] = [with_nonce(PAUSE), b"{no record", with_nonce(ResumeRecord(id=RULE, version=2))]
    job.send("1.jsonl", *changes)
    assert job.run("job", *job.control) == 0
    count = len(job.trail())
    assert count == len(job.rules) + 2
    assert job.run("job", *job.control) == 0
    assert len(job.trail()) == count, "nothing has changed"
    job.send("2.jsonl", *later)
    assert job.run("job", *job.control) == 0
    lines = job.trail()
    entries = [orjson.loads(line) for line in lines]
    assert [(entry["what"], entry.get("id")) for entry in entries] == [
        *(("first", rule) for rule in job.rules), *(("change", RULE),) * 3, ("unreadable", None), ("change", RULE),
    ]  # fmt: skip
    assert [entry["outcome"] for entry in entries[count - 2 :]] == [
        "applied", "applied", "ignored", "refused", "applied",
    ]  # fmt: skip
    assert {entry["signers_version"] for entry in entries} == {None}
    assert all(entry.get("by", []) == [] for entry in entries)
    letters = [line for line in written(job.folder / "job" / "dead_letters") if not is_audit(line)]
    assert [orjson.loads(letter)["code"] for letter in letters] == ["control_unreadable"]

    # A job that is built again from the same records writes the same trail.
    assert job.run("anew", *job.control) == 0
    assert job.trail("anew") == lines
    folder = job.folder / "job" / "dead_letters"
    assert main(["rules", "audit", "verify", str(folder), "--head", head_of(lines)]) == 0
    capsys.readouterr()
    assert main(["rules", "audit", "show", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "Ada (not signed)" in printed
    assert f"{RULE}/snooze/{KEY}" in printed
    path = job.folder / "audit.jsonl"
    for wrong in (
        lines[:-1], lines[1:], [*lines[:4], *lines[5:]], [*lines[:4], lines[5], lines[4], *lines[6:]],
        [line.replace(b"Ada", b"Eve") for line in lines],
        [line.replace(b'"signers_version":null', b'"signers_version":1') for line in lines],
    ):  # fmt: skip
        path.write_bytes(b"\n".join(wrong) + b"\n")
        assert main(["rules", "audit", "verify", str(path), "--head", head_of(lines)]) == Exit.FINDINGS


def test_a_job_whose_rules_never_change_writes_none_until_they_may(tmp_path: Path) -> None:
    """A job of an earlier build has no trail of its changes either: its chain begins where the new build continues."""
    job = Plain(tmp_path)
    assert job.run() == 0
    assert not (job.folder / "job" / "dead_letters").exists()
    job.send("1.jsonl", with_nonce(SNOOZE))
    assert job.run("job", *job.control) == 0
    lines = job.trail()
    assert len(lines) == len(job.rules) + 1
    assert job.run() == 0, "without the folder nothing changes"
    assert job.trail() == lines
    job.send("2.jsonl", with_nonce(PAUSE))
    assert job.run("job", *job.control) == 0
    later = [orjson.loads(line) for line in job.trail()[len(lines) :]]
    # A job that was started without the folder reads its files again.
    assert [(entry["kind"], entry["outcome"]) for entry in later] == [("snooze", "ignored"), ("pause", "applied")]
    folder = job.folder / "job" / "dead_letters"
    assert main(["rules", "audit", "verify", str(folder), "--head", head_of(job.trail())]) == 0


@pytest.mark.parametrize("is_stopped_for_good", [False, True])
def test_an_erased_key_leaves_no_byte_and_the_trail_is_whole(tmp_path: Path, is_stopped_for_good: bool) -> None:
    job = Plain(tmp_path)
    job.send("1.jsonl", with_nonce(SNOOZE), with_nonce(PAUSE))
    assert job.run("job", *job.control) == 0
    if is_stopped_for_good:
        assert job.run() == 0, "its rules no longer change, and its trail is still there"
    job_folder, count = job.folder / "job", len(job.trail())
    ways = ways_to_write([KEY])
    assert any(way in line for way in ways for line in job.trail())
    assert main(["job", "erase", "--key", f"card_id={KEY}", "--checkpoint", str(job_folder)]) == 0
    assert not [
        path for path in job_folder.rglob("*") if path.is_file() and any(way in path.read_bytes() for way in ways)
    ]
    lines = job.trail()
    entry = orjson.loads(lines[-1])
    assert (entry["what"], entry["keys"], entry["lines"]) == ("erasure", {"card_id": 1}, [count - 1])
    assert entry["signers_version"] is None
    assert main(["rules", "audit", "verify", str(job_folder / "dead_letters"), "--head", head_of(lines)]) == 0
    shutil.rmtree(job.folder / "control")  # the records name the key
    job.send("2.jsonl", with_nonce(ResumeRecord(id=RULE, version=2)))
    assert job.run("job", *job.control) == 0
    assert job.trail()[:-1] == lines
    assert main(["rules", "audit", "verify", str(job_folder / "dead_letters"), "--head", head_of(job.trail())]) == 0


def test_a_trail_in_a_topic_and_in_files(
    kafka_broker: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each record of a verb has a nonce. The job reports its head, and `cep job erase` writes into the topic."""
    job, name = Plain(tmp_path), f"audited-{uuid.uuid4().hex[:8]}"
    broker, dead = ["--bootstrap-servers", kafka_broker.address], f"{name}-dead"
    topics = [*broker, "--control-topic", f"{name}-control", "--status-topic", f"{name}-status"]
    kafka_broker.create(dead, 2)
    verify = ["rules", "audit", "verify", "--dead-letter-topic", dead, *broker]
    status = ["--status-topic", f"{name}-status"]
    run: list[Any] = ["job", *topics, "--dead-letter-topic", dead]
    assert job.run(*run) == 0
    quick = [*topics, "--wait", "0", "--at-once", "--by", "Ada"]
    snooze = [
        "rules",
        "snooze",
        RULE,
        "--until",
        "2030-01-01T00:00:00Z",
        "--key",
        KEY,
        "--why",
        f"{KEY} travels",
        *quick,
    ]
    for verb in (snooze, ["rules", "pause", RULE, *quick], ["lists", "add", "blocked", "c9", "--of", "string", *quick]):
        assert main(verb) == 0
    sent = [place.record for place in read_control_topic(Topic(kafka_broker.address, f"{name}-control"))[0]]
    assert len({getattr(record, "nonce", None) for record in sent} - {None}) == len(sent) == 3
    assert job.run(*run) == 0
    copy = job.folder / "job" / "audit"
    lines = written(copy)
    assert len(lines) == len(job.rules) + 3
    assert main([*verify, *status]) == 0
    assert main(["rules", "audit", "verify", str(copy), *broker, *status]) == 0

    erase = ["job", "erase", "--key", f"card_id={KEY}", "--checkpoint", str(job.folder / "job")]
    assert main([*erase, "--dead-letter-topic", dead, *broker]) == 0
    after = written(copy)
    assert len(after) == len(lines) + 1
    assert after[-1] in [record.value() for record in consumed(kafka_broker, dead, 2)]
    assert not any(way in line for line in after for way in ways_to_write([KEY]))
    assert job.run(*run) == 0
    assert main(["rules", "audit", "verify", str(copy), *broker, *status]) == 0
    assert main([*verify, *status]) == 0
    job_status = read_status(Topic(kafka_broker.address, f"{name}-status"))
    assert job_status is not None
    assert job_status["audit"] == {"count": len(after), "hash": orjson.loads(after[-1])["hash"]}

    # Without both the job cannot report a head.
    other = [*broker, "--status-topic", f"{name}-other"]
    assert job.run("other", *other) == 0
    capsys.readouterr()
    assert main(["rules", "audit", "verify", str(copy), *other]) == Exit.USAGE
    assert "rules can change" in " ".join(capsys.readouterr().err.split())
