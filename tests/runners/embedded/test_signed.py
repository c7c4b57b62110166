"""Signed changes end to end: a job on a broker accepts changes that two people signed, and reports others.

A job that is built again from the topic, and a replay of its records, come to the same rules. A job without signers
writes an audit trail when its rules change, up to an erasure; built again from the same records it writes the same
trail. A job whose rules never change writes none.
"""

import shutil
import uuid
from pathlib import Path
from typing import Any

import orjson
import pytest

from cep.base.audit import is_audit
from cep.base.exits import Exit
from cep.cli.main import main
from cep.model.rule import PauseRecord, ResumeRecord, RollbackRecord, SnoozeRecord, UpsertRecord, topic_key
from cep.rulebook.files import change_path, read_rules, write_change
from cep.rulebook.kafka import StatusTopic, Topic
from cep.rulebook.trust import Signable, approve, digest_of, sign, unsigned, with_nonce
from cep.runners.control_topic import read_control_topic, read_status
from cep.runners.handover.erase import ways_to_write
from tests.real_kafka import KafkaCluster
from tests.rulebook.people import ADA, BOB, EVE, ROOT, RULE_SET, by_two, signed_request, upsert_by_two, write_signers
from tests.runners.embedded.cases import day, morning
from tests.runners.embedded.test_run import place, written
from tests.sinks.test_kafka import consumed

CHECKOUT = Path(__file__).parents[3]
RULE = "card_testing"


class SignedJob:
    """A job of `cep run` that requires signatures, its topics and its folder of rules."""

    def __init__(self, kafka: KafkaCluster, folder: Path) -> None:
        self.folder, name = folder, f"signed-{uuid.uuid4().hex[:8]}"
        for part in ("rules", "patterns"):
            shutil.copytree(CHECKOUT / part, folder / part)
        self.records = {record.id: record for record in read_rules(folder / "rules")[0]}
        for record in self.records.values():
            signed = by_two(record)
            write_change(change_path(folder / "rules", signed), [signed])
        self.first = upsert_by_two(self.records[RULE])
        signers = write_signers(folder / "rules" / "signed" / "signers.toml")
        self.trust = ["--signers", str(signers), "--root-key", ROOT.public]
        for topic in (name, f"{name}-control", f"{name}-status"):
            kafka.create(topic, 1)
        kafka.send(name, [{"value": line, "partition": 0} for line in day()])
        self.control = Topic(kafka.address, f"{name}-control")
        self.status = StatusTopic(kafka.address, f"{name}-status")
        self.flags = [
            "--rules", str(folder / "rules"), "--bootstrap-servers", kafka.address, "--topic", name,
            "--control-topic", self.control.name, "--status-topic", self.status.name, "--available-now",
        ]  # fmt: skip

    def run(self, checkpoint: str = "job", *trust: str) -> int:
        place = self.folder / checkpoint
        flags = [*self.flags, "--checkpoint", str(place), "--alerts", str(place / "alerts")]
        return main(["run", *flags, *(trust or self.trust)])

    def send(self, *records: Signable) -> None:
        self.control.send([(topic_key(record).encode(), record.to_json()) for record in records])

    def letters(self, checkpoint: str = "job") -> list[dict[str, Any]]:
        letters = [orjson.loads(line) for line in written(self.folder / checkpoint / "dead_letters")]
        return [letter for letter in letters if letter["code"] != "audit"]

    def audit(self, checkpoint: str = "job") -> list[bytes]:
        return [line for line in written(self.folder / checkpoint / "dead_letters") if is_audit(line)]

    def verify(self, path: Path, *flags: str) -> int:
        kafka = ["--bootstrap-servers", self.status.servers, "--status-topic", self.status.name]
        return main(["rules", "audit", "verify", str(path), *(flags or kafka)])

    def causes(self, checkpoint: str = "job") -> list[str]:
        return sorted(letter["cause"] for letter in self.letters(checkpoint))

    def rules(self) -> dict[str, Any]:
        status = read_status(self.status)
        assert status is not None
        return {name: status[name] for name in ("content_hash", "last_versions", "paused")}


def test_only_what_two_people_have_signed_changes_a_job(
    kafka_broker: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = SignedJob(kafka_broker, tmp_path)
    assert job.run() == 0
    assert job.rules()["last_versions"] == dict.fromkeys(job.records, 1)
    before = job.rules()
    stricter = job.records[RULE].model_copy(update={"version": 2, "params": {**job.records[RULE].params, "tries": 5}})
    by_ada: UpsertRecord = sign(stricter, ADA, RULE_SET, (1, digest_of(job.first)))
    pause = PauseRecord(id=RULE, version=1)
    refused: dict[str, list[Signable]] = {
        "unsigned": [stricter, by_ada, pause],
        "self_approved": [approve(by_ada, ADA)],
        "unknown_signer": [approve(by_ada, EVE)],
        "forged": [pause.model_copy(update={"signed": job.first.signed})],
    }
    job.send(*(record for records in refused.values() for record in records))
    assert job.run() == 0
    assert job.rules() == before
    causes = [letter["cause"] for letter in job.letters()]
    assert sorted(causes) == sorted(cause for cause, records in refused.items() for _ in records)

    second = approve(by_ada, BOB)
    back = RollbackRecord(id=RULE, version=3, to_version=1, rule=unsigned(job.first))
    job.send(second)
    assert job.run() == 0
    assert job.rules()["last_versions"][RULE] == 2
    stripped = second.model_copy(update={"version": 3, "signed": None})
    job.send(stripped, job.first, second, back, by_two(back, job.first), by_two(back, second), by_two(pause))
    assert job.run() == 0
    # The copy of `second` repeats the current rule and changes nothing. A rollback counts only with its own signature.
    later = [letter["cause"] for letter in job.letters()][len(causes) :]
    assert sorted(later) == ["replayed", "superseded", "unsigned", "unsigned"]
    after = job.rules()
    assert (after["last_versions"][RULE], after["paused"]) == (3, [RULE])
    assert all(letter["code"] == "control_refused" and letter["reason"] for letter in job.letters())

    # Without signatures the job does not continue, and a new job comes to the same rules.
    capsys.readouterr()
    plain = ["--log", "text"]
    assert job.run("job", *plain) == 2
    assert "takes signed changes only" in capsys.readouterr().err
    assert job.run("anew") == 0
    assert job.rules() == after
    assert job.causes("anew") == job.causes()
    verify_audit(job)
    verify_topic(kafka_broker, job, capsys)
    replay(job)


def verify_audit(job: SignedJob) -> None:
    """The trail has every change and refusal, the same in both jobs, and the head that the job reports."""
    lines = job.audit()
    assert lines == job.audit("anew")
    entries = [orjson.loads(line) for line in lines]
    assert sorted(entry["cause"] for entry in entries if entry["cause"]) == job.causes()
    first = [entry for entry in entries if entry["what"] == "first"]
    assert entries[: len(first)] == first
    assert [(entry["id"], entry["outcome"], entry["by"]) for entry in first] == [
        (name, "applied", ["Ada", "Bob"]) for name in job.records
    ]
    later = entries[len(first) :]
    assert [entry["by"] for entry in later if entry["outcome"] == "applied"] == [["Ada", "Bob"]] * 3
    assert job.verify(job.folder / "job" / "dead_letters") == 0
    path = job.folder / "audit.jsonl"
    for changed in (lines[:-1], lines[1:], lines[::-1], [line.replace(b"Bob", b"Eve") for line in lines]):
        path.write_bytes(b"\n".join(changed) + b"\n")
        assert job.verify(path) == 1
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert job.verify(path) == 0
    assert job.verify(path, "--head", f"{len(lines)}:{entries[-1]['hash']}") == 0
    assert job.verify(path, "--head", f"{len(lines) + 1}:{entries[-1]['hash']}") == 1
    assert main(["rules", "audit", "show", str(path)]) == 0


def verify_topic(kafka: KafkaCluster, job: SignedJob, capsys: pytest.CaptureFixture[str]) -> None:
    """A topic of dead letters has partitions without a common order. Its trail equals the trail of the folder."""
    name = f"{job.control.name}-dead"
    kafka.create(name, 2)
    assert job.run("topic", *job.trust, "--dead-letter-topic", name) == 0
    broker = ["--bootstrap-servers", job.status.servers]
    verify = ["rules", "audit", "verify", "--dead-letter-topic", name, *broker]
    assert main([*verify, "--status-topic", job.status.name]) == 0
    assert main(["rules", "audit", "verify", *broker]) == 2, "it has no topic"
    copy = job.folder / "topic" / "audit"
    assert written(copy) == job.audit(), "the trail is in files as well"
    assert job.verify(copy) == 0
    last = orjson.loads(job.audit()[-1])
    assert main([*verify, "--head", f"{int(last['number'])}:{last['hash']}"]) == 0
    capsys.readouterr()
    assert main(["rules", "audit", "show", "--dead-letter-topic", name, *broker]) == 0
    printed = capsys.readouterr().out
    assert printed.count("first ") == len(job.records)
    numbers = [line.split()[0] for line in printed.splitlines() if line[0] != " "]
    assert numbers == ["line", *map(str, range(1, len(job.audit()) + 1))]
    verify_erasure(kafka, job, name, capsys)
    kafka.send(name, [{"value": job.audit()[1].replace(b"Bob", b"Eve"), "partition": 1}])
    assert main(verify) == 1


def verify_erasure(kafka: KafkaCluster, job: SignedJob, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The trail in a topic includes the erasure: `cep job erase` writes the line there, or the operator has to."""
    broker = ["--bootstrap-servers", job.status.servers]
    erase = ["job", "erase", "--key", "card_id=c-without-payments", "--checkpoint", str(job.folder / "topic")]
    verify = ["rules", "audit", "verify", "--dead-letter-topic", name, *broker]
    count = len(job.audit())
    erase += signed_request(erase, job.folder, capsys)
    assert main(erase) == 0
    (line,) = (line.encode() for line in capsys.readouterr().out.splitlines() if line.startswith("{"))
    assert not (job.folder / "topic" / "dead_letters").exists(), "the trail is elsewhere"
    copy, head = job.folder / "topic" / "audit", orjson.loads(line)
    assert written(copy) == [*job.audit(), line]
    assert job.verify(copy, "--head", f"{count + 1}:{head['hash']}") == 0
    assert (head["what"], int(head["number"])) == ("erasure", count + 1)
    assert main([*verify, "--head", f"{count + 1}:{head['hash']}"]) == 1, "the line is not there yet"
    kafka.send(name, [{"value": line, "partition": 0}])
    assert main([*verify, "--head", f"{count + 1}:{head['hash']}"]) == 0
    assert main([*erase, "--dead-letter-topic", name]) == Exit.USAGE, "where is it?"
    capsys.readouterr()
    away = [*erase, "--dead-letter-topic", name, "--bootstrap-servers", "127.0.0.1:1"]
    quick = job.folder / "quick.toml"
    quick.write_text('[kafka.client]\n"message.timeout.ms" = "500"\n')
    assert main([*away, "--conf", str(quick)]) == Exit.FINDINGS
    printed = capsys.readouterr().out
    assert "NOT WRITTEN" in printed
    (line,) = (line.encode() for line in printed.splitlines() if line.startswith("{"))
    kafka.send(name, [{"value": line, "partition": 0}])
    assert main([*erase, "--dead-letter-topic", name, *broker]) == 0
    assert '"erasure"' not in capsys.readouterr().out
    assert job.run("topic", *job.trust, "--dead-letter-topic", name) == 0
    assert main([*verify, "--status-topic", job.status.name]) == 0, "the job knows all of them"
    assert job.verify(copy) == 0
    assert len(written(copy)) == count + 3
    printed = capsys.readouterr().out
    assert f"{count + 3} line(s)" in printed


def replay(job: SignedJob) -> None:
    """Check that a replay with the records of the topic refuses the same records."""
    places, _ = read_control_topic(job.control)
    control, events = job.folder / "control.jsonl", job.folder / "events.jsonl"
    control.write_bytes(b"".join(place.record.to_json() + b"\n" for place in places))
    events.write_bytes(b"\n".join(day()))
    out = job.folder / "replayed.jsonl"
    arguments = [
        "replay", "--rules", str(job.folder / "rules"), "--control", str(control), "--events", str(events),
        "--out", str(out), "--engine", "embedded", *job.trust,
    ]  # fmt: skip
    assert main(arguments) == 1
    letters = [orjson.loads(line) for line in (job.folder / "replayed.jsonl.dead.jsonl").read_bytes().splitlines()]
    assert sorted(letter["cause"] for letter in letters) == job.causes()
    assert letters[-1]["rulebook"]


KEY = "card-æ7"
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
    snooze = ["rules", "snooze", RULE, "--until", "2030-01-01T00:00:00Z", "--key", KEY, "--why", f"{KEY} travels"]
    for verb in (
        [*snooze, *quick],
        ["rules", "pause", RULE, *quick],
        ["lists", "add", "blocked", "c9", "--of", "string", *quick],
    ):
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
