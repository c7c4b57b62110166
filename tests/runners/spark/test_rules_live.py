"""The life of a rule in a Spark job that reads its events and its control records from a broker.

The rule is published, fires, goes into shadow, is promoted, rolled back and paused, with restarts in between. No alert
is lost or comes twice. A job whose changes two people sign refuses changes that are unsigned, self-approved, stripped,
replayed or rolled back. None of its output has a card number: its folder, its topics, the savepoint of its state, the
log of its driver. An erased key is gone, and all others have their alerts.
"""

import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cep.base.audit import is_audit
from cep.base.secrets import secret_keys
from cep.base.text import utc_text
from cep.cli.main import main
from cep.model.rule import (
    ControlRecord,
    HeartbeatRecord,
    PauseRecord,
    ResumeRecord,
    RollbackRecord,
    SnoozeRecord,
    UpsertRecord,
    topic_key,
)
from cep.rulebook.deploy import deploy
from cep.rulebook.files import read_rules
from cep.rulebook.kafka import StatusTopic, Topic
from cep.rulebook.meaning import content_hash
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.suppression import Policies, suppress_alerts
from cep.rulebook.trust import Signable, approve, digest_of, sign, unsigned, with_nonce
from cep.runners.control_topic import read_status
from cep.runners.embedded import replay as embedded
from cep.runners.live_checkpoint import open_checkpoint
from cep.runners.output import BatchReport, Replayed
from cep.runners.rule_output import AUDIT_FOLDER
from cep.runners.spark.live import LiveSettings
from cep.runners.spark.live_output import LiveOutput
from cep.runners.spark.replay import read_events, replay
from cep.runners.spark.savepoint import save_for_both
from cep.runners.spark.sources import TopicSource
from cep.sinks.files import DeadLetterFiles
from cep.sinks.kafka import KafkaDeadLetters, KafkaTarget, KafkaTransactionSink
from cep.sources.pieces import read_pieces
from cep.state.savepoints import read_entries
from cep.state.target import Target
from cep.step.job import Job
from tests.cli.test_erase import NUMBERS as ERASED_NUMBERS
from tests.cli.test_erase import assert_absent, events, last_event, records, rules, wrong
from tests.cli.test_outage import metrics, status
from tests.cli.test_run import free_port
from tests.columnar.protected import card_numbers
from tests.real_kafka import KafkaCluster
from tests.rulebook.people import ADA, BOB, EVE, RULE_SET, TRUST, by_two, signed_request, upsert_by_two
from tests.runners.embedded.test_run import written
from tests.runners.spark.live_cases import make_job, payments, rows, run_live, split, start_process, time_ms
from tests.runners.spark.live_cases import rules as live_rules
from tests.sinks.test_kafka import consumed

__all__ = ["rules"]

pytestmark = [pytest.mark.spark, pytest.mark.slow]


RULE = "small_then_large"


class Run:
    """One job on one broker, started again for each phase. Its events and changes come from topics."""

    def __init__(self, spark: SparkSession, kafka: KafkaCluster, folder: Path, name: str, job: Job) -> None:
        self.spark, self.kafka, self.folder, self.name, self.job = spark, kafka, folder, name, job
        self.initial: tuple[bytes, ...] = ()
        self.checkpoint = folder / "checkpoint"
        self.reports: list[BatchReport] = []
        for part in ("events", "control", "status", "dead", "alerts"):
            kafka.create(f"{name}-{part}", 1)
        self.status = StatusTopic(kafka.address, f"{name}-status")

    def phase(self, lines: Sequence[bytes], *changes: ControlRecord, bad: Sequence[bytes] = ()) -> dict[str, Any]:
        """Send records and changes, run to their end, and return the job's status of its rules."""
        control = Topic(self.kafka.address, f"{self.name}-control")
        control.send([(topic_key(record).encode(), record.to_json()) for record in changes])
        control.send([(b"bad", data) for data in bad])
        self.kafka.send(f"{self.name}-events", ({"value": line, "partition": 0} for line in lines))
        self.spark.conf.set("spark.sql.shuffle.partitions", "2")
        letters = KafkaDeadLetters(KafkaTarget(self.kafka.address, f"{self.name}-dead", self.checkpoint.name))
        alerts = KafkaTransactionSink(KafkaTarget(self.kafka.address, f"{self.name}-alerts", self.checkpoint.name))
        copy = DeadLetterFiles(self.checkpoint / AUDIT_FOLDER)
        output = LiveOutput(self.checkpoint, letters, [alerts], self.reports.append, audit=copy)
        events, changes_topic = (
            TopicSource(self.kafka.address, f"{self.name}-{part}") for part in ("events", "control")
        )
        settings = LiveSettings(
            self.job, self.initial, events, changes_topic, self.checkpoint / "query", status=self.status
        )
        run_live(self.spark, settings, output)
        output.drain(lambda: None)
        output.close()
        status = read_status(self.status)
        assert status is not None
        return status


class PlainRun(Run):
    """A job without signers, and the history of its control topic."""

    def __init__(self, spark: SparkSession, kafka: KafkaCluster, folder: Path, initial: list[UpsertRecord]) -> None:
        super().__init__(spark, kafka, folder, "life", make_job(live_rules().values()))
        self.initial = tuple(record.to_json() for record in initial)
        self.history: list[ControlRecord] = list(initial)

    def phase(self, lines: Sequence[bytes], *changes: ControlRecord, bad: Sequence[bytes] = ()) -> dict[str, Any]:
        self.history += [record for record in changes if not isinstance(record, HeartbeatRecord)]
        return super().phase(lines, *changes, bad=bad)

    def replayed(self, lines: list[bytes]) -> Replayed:
        """Return the replay of the events with the history of the control topic."""
        book = Rulebook(self.job.schema, self.job.domains)
        for record in self.history:
            assert book.apply(record, None).kind == "applied"
        (self.folder / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        replay_result = replay(self.job, book, read_events(self.spark, self.folder / "events.jsonl"), 2)
        return Replayed(
            suppress_alerts(replay_result.alerts, Policies.of(book), {}).alerts, (), replay_result.counters, 0.0
        )


def test_the_life_of_a_rule_over_restarts(spark: SparkSession, kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    rules_by_id = live_rules()
    parts = split(payments(41), 7)
    starts = [utc_text(time_ms(part[0])) for part in parts]
    first = rules_by_id[RULE].model_copy(update={"effective_at": starts[1]})
    stricter = {"params": {**first.params, "large": 700.0}}
    shadow = first.model_copy(update={"version": 2, "status": "shadow", "effective_at": starts[2], **stricter})
    promoted = first.model_copy(update={"version": 3, "effective_at": starts[3], **stricter})
    back = RollbackRecord(id=RULE, version=4, to_version=1, rule=first, effective_at=starts[4])
    run = PlainRun(spark, kafka_broker, tmp_path, [rule for name, rule in rules_by_id.items() if name != RULE])

    run.phase(parts[0])
    status = run.phase(parts[1], first)
    assert status["last_versions"][RULE] == 1
    run.phase(parts[2], shadow)
    status = run.phase(parts[3], promoted)
    assert status["last_versions"][RULE] == 3
    # Faulty records are set aside with the reason, and change nothing.
    broken = first.model_copy(
        update={"version": 9, "source": first.source.replace("card_id      string", "card string")}
    )
    assert broken.source != first.source
    rolled_back = run.phase([*parts[4], parts[0][0]], back, bad=[broken.to_json(), b"{nothing"])
    status = run.phase(parts[5], PauseRecord(id=RULE, version=1, effective_at=starts[5]))
    assert status["paused"] == [RULE]
    run.phase(parts[6], ResumeRecord(id=RULE, version=2, effective_at=starts[6]))
    status = run.phase([], HeartbeatRecord(event_time="2026-06-01T00:00:00Z"))
    assert (status["paused"], [refused["version"] for refused in status["refused"]]) == ([], [9])

    lines = [line for part in parts for line in part]
    alerts = pa.concat_tables([report.alerts for report in run.reports])
    replay_result = run.replayed(lines)
    assert rows(alerts) == rows(replay_result.alerts)
    versions = {alert["version"] for alert in alerts.to_pylist() if alert["rule_id"] == RULE}
    assert versions <= {1, 3, 4}
    assert 1 in versions
    held_alerts = [
        orjson.loads(line) for file in (tmp_path / "checkpoint" / "held").glob("*") for line in file.open("rb")
    ]
    assert {line["held"] for line in held_alerts} <= {"shadow"}
    # Each alert names a version by number and hash, and a published record has the same number and hash.
    hashes = {(r.id, r.version): content_hash(r) for r in [*rules_by_id.values(), first, promoted, back.as_upsert()]}
    for alert in alerts.to_pylist():
        assert alert["content_hash"] == hashes[alert["rule_id"], alert["version"]]
        assert 1 <= alert["epoch"] <= status["epoch"]
    letters = [orjson.loads(record.value() or b"") for record in consumed(kafka_broker, "life-dead", 3)]
    assert sorted({letter["code"] for letter in letters}) == ["control_refused", "control_unreadable", "late"]
    assert len([letter for letter in letters if letter["code"] != "late"]) == 2
    for letter in letters:
        assert (letter["epoch"], letter["rulebook"]) == (rolled_back["epoch"], rolled_back["content_hash"])
    (refused,) = (letter for letter in letters if letter["code"] == "control_refused")
    assert (refused["rule_id"], refused["version"], refused["content_hash"]) == (RULE, 9, content_hash(broken))
    assert refused["diagnostics"]
    totals = run.reports[-1].totals
    assert totals["events"] == len(lines) + 1
    assert (totals["late_events"], totals["control_refused"], totals["control_unreadable"]) == (1, 1, 1)
    assert totals["control_applied"] == 6
    assert totals["rule_late_ms"] == 0


ROOT = Path(__file__).parents[3]
WAIT_S = 600
NUMBERS = card_numbers(31, 12)
REFUSED = ("unsigned", "unsigned", "self_approved", "unknown_signer", "unsigned", "replayed", "superseded", "unsigned")


class SignedRun(Run):
    """A job whose changes two people sign, unless `is_signed` is false."""

    def __init__(
        self, spark: SparkSession, kafka: KafkaCluster, folder: Path, rules_folder: Path, *, is_signed: bool = True
    ) -> None:
        (record,), problems = read_rules(rules_folder)
        assert problems == []
        assert isinstance(record, UpsertRecord)
        self.first = upsert_by_two(record) if is_signed else record
        deployed, trust = deploy([self.first]), TRUST if is_signed else None
        job = Job(deployed.schema, deployed.key_domains, 8, dedup_ms=86_400_000, trust=trust, is_audited=not is_signed)
        super().__init__(spark, kafka, folder, f"trusted-{uuid.uuid4().hex[:8]}", job)
        self.checkpoint = folder / "job"
        self.restart()

    def restart(self) -> None:
        self.initial, _ = open_checkpoint(self.checkpoint, self.job, (self.first.to_json(),))

    def restore(self, savepoint: Path, checkpoint: Path) -> None:
        """Begin a folder with a savepoint and restart the job there."""
        self.checkpoint = checkpoint
        words = ["--from", str(savepoint), "--checkpoint", str(checkpoint), "--engine", "spark"]
        assert main(["job", "restore", *words]) == 0
        self.restart()

    def topic(self, part: str) -> list[bytes]:
        records_in_topic = consumed(self.kafka, f"{self.name}-{part}", 1)
        return [data for record in records_in_topic for data in (record.key(), record.value()) if data]

    def alerts(self) -> set[tuple[str, str]]:
        table = pa.concat_tables([report.alerts for report in self.reports])
        return set(zip(table["key"].to_pylist(), table["alert_id"].to_pylist(), strict=True))

    def expected(self, lines: Sequence[bytes]) -> set[tuple[str, str]]:
        """Return the sent alerts of a replay under the first version."""
        path = self.folder / "history.jsonl"
        path.write_bytes(b"\n".join(lines) + b"\n")
        deployed = deploy([self.first])
        # The live jobs of the tests get a watermark at the end of time, and so does the replay.
        job = replace(self.job, to_the_end=True)
        alerts = embedded.replay(job, deployed.rulebook, read_pieces(path, self.job.schema), 1).alerts
        sent = suppress_alerts(alerts, Policies.of(deployed.rulebook), {}).alerts
        return set(zip(sent["key"].to_pylist(), sent["alert_id"].to_pylist(), strict=True))


def attacks(first: UpsertRecord) -> list[Signable]:
    """Return changes that are all refused except two; the second of these restores the content of the first version."""
    stricter = first.model_copy(update={"version": 2, "severity": "high", "signed": None})
    by_ada: UpsertRecord = sign(stricter, ADA, RULE_SET, (1, digest_of(first)))
    second = approve(by_ada, BOB)
    back = RollbackRecord(id=first.id, version=3, to_version=1, rule=unsigned(first))
    stripped = second.model_copy(update={"version": 3, "signed": None})
    pause = PauseRecord(id=first.id, version=1)
    before: list[Signable] = [stricter, pause, approve(by_ada, ADA), approve(by_ada, EVE)]
    return [*before, second, stripped, first, by_two(back, first), back, by_two(back, second)]


def stored(savepoint: Path) -> Iterator[bytes]:
    """Yield the content of a portable savepoint; its texts are not compressed."""
    for path in savepoint.rglob("*"):
        if path.is_file():
            yield path.read_bytes()
            if path.suffix == ".cep":
                yield from (key + value for key, value in read_entries(path))


def test_signed_changes_and_card_numbers(
    spark: SparkSession, kafka_broker: KafkaCluster, rules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = SignedRun(spark, kafka_broker, tmp_path, rules)
    lines = records(5, NUMBERS)
    before = run.phase(lines[:150])
    assert before["last_versions"] == {"pairs": 1}
    status = run.phase(lines[150:300], *attacks(run.first))
    assert (status["last_versions"], status["paused"]) == ({"pairs": 3}, [])
    letters = [orjson.loads(data) for data in run.topic("dead") if not is_audit(data)]
    audit = [orjson.loads(data) for data in run.topic("dead") if is_audit(data)]
    assert [(line["what"], line["id"], line["by"]) for line in audit[:1]] == [("first", "pairs", ["Ada", "Bob"])]
    assert [line["what"] for line in audit[1:]] == ["change"] * len(attacks(run.first))
    kafka = ["--bootstrap-servers", kafka_broker.address, "--status-topic", run.status.name]
    assert main(["rules", "audit", "verify", "--dead-letter-topic", f"{run.name}-dead", *kafka]) == 0
    assert [orjson.loads(data) for data in written(run.checkpoint / AUDIT_FOLDER)] == audit, "it is in files as well"
    assert main(["rules", "audit", "verify", str(run.checkpoint / AUDIT_FOLDER), *kafka]) == 0
    assert sorted(letter["cause"] for letter in letters if letter["code"] == "control_refused") == sorted(REFUSED)

    searched = [*NUMBERS, *(wrong(number) for number in NUMBERS)]
    save_for_both(spark, run.checkpoint, Target(str(tmp_path / "saved")))
    assert_absent(searched, (path.read_bytes() for path in run.checkpoint.rglob("*") if path.is_file()))
    assert_absent(searched, iter([data for part in ("status", "dead", "alerts") for data in run.topic(part)]))
    assert_absent(searched, stored(tmp_path / "saved"))

    gone = secret_keys()[0].token("pan", NUMBERS[0].encode())
    assert any(gone.encode() in content for content in stored(tmp_path / "saved"))
    (tmp_path / "keys").write_text(f"card={NUMBERS[0]}\n")
    erase = ["job", "erase", "--keys-file", str(tmp_path / "keys"), "--savepoint", str(tmp_path / "saved")]
    assert main([*erase, *signed_request(erase, tmp_path, capsys)]) == 0
    assert_absent([gone], stored(tmp_path / "saved"))
    run.restore(tmp_path / "saved", tmp_path / "again")
    run.phase(lines[300:])
    others = {alert for alert in run.alerts() if alert[0] != gone}
    assert len(others) > 5
    assert {key for key, _ in others} == {key for key, _ in run.expected(lines) if key != gone}


def test_others_go_on_as_if_nothing_was_erased(
    spark: SparkSession, kafka_broker: KafkaCluster, rules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The alerts of all others equal a replay of everything, and a replay without the events of the key."""
    run = SignedRun(spark, kafka_broker, tmp_path, rules)
    lines = [*events(1, 0, 240).splitlines(), last_event()]
    gone = secret_keys()[0].token("pan", ERASED_NUMBERS[0].encode())
    run.phase(lines[:120])
    save_for_both(spark, run.checkpoint, Target(str(tmp_path / "saved")))
    assert any(gone.encode() in content for content in stored(tmp_path / "saved"))
    erase = ["job", "erase", "--key", f"card={gone}", "--savepoint", str(tmp_path / "saved")]
    assert main([*erase, *signed_request(erase, tmp_path, capsys)]) == 0
    assert_absent([gone], stored(tmp_path / "saved"))
    run.restore(tmp_path / "saved", tmp_path / "again")
    run.phase(lines[120:])
    others = {alert for alert in run.alerts() if alert[0] != gone}
    assert len(others) > 20
    assert others == {alert for alert in run.expected(lines) if alert[0] != gone}
    assert others == run.expected([line for line in lines if orjson.loads(line)["card"] != ERASED_NUMBERS[0]])


def test_changes_without_signers_are_written_down(
    spark: SparkSession, kafka_broker: KafkaCluster, rules: Path, tmp_path: Path
) -> None:
    """The trail of a job without signers, over restarts, an erasure and a new folder; built again it is the same."""
    run = SignedRun(spark, kafka_broker, tmp_path, rules, is_signed=False)
    lines, gone = records(5, NUMBERS), secret_keys()[0].token("pan", NUMBERS[0].encode())
    until, name = "2030-01-01T00:00:00Z", run.first.id
    snooze = SnoozeRecord(id=name, version=1, until=until, key=gone, by="Ada", reason=f"{gone} travels")
    first, second = (with_nonce(record) for record in (snooze, PauseRecord(id=name, version=1, by="Bob")))
    assert run.phase(lines[:100])["audit"]["count"] == 1
    run.phase(lines[100:200], first, first)
    run.restart()
    status = run.phase(lines[200:300], second, with_nonce(ResumeRecord(id=name, version=2, by="Bob")))
    trail = written(run.checkpoint / AUDIT_FOLDER)
    entries = [orjson.loads(line) for line in trail]
    assert [(entry["what"], entry["kind"], entry["outcome"]) for entry in entries] == [
        ("first", "upsert", "applied"), ("change", "snooze", "applied"), ("change", "snooze", "ignored"),
        ("change", "pause", "applied"), ("change", "resume", "applied"),
    ]  # fmt: skip
    assert {(*entry["by"], entry["signers_version"]) for entry in entries} == {(None,)}
    assert status["audit"] == {"count": 5, "hash": entries[-1]["hash"]}
    kafka = ["--bootstrap-servers", kafka_broker.address, "--status-topic", run.status.name]
    topic = ["rules", "audit", "verify", "--dead-letter-topic", f"{run.name}-dead", *kafka]
    assert main(topic) == 0
    assert main(["rules", "audit", "verify", str(run.checkpoint / AUDIT_FOLDER), *kafka]) == 0
    for other in (trail[:-1], [*trail[:2], *trail[3:]], [trail[1], trail[0], *trail[2:]]):
        (tmp_path / "other.jsonl").write_bytes(b"\n".join(other) + b"\n")
        assert main(["rules", "audit", "verify", str(tmp_path / "other.jsonl"), *kafka]) == 1

    whole = run.checkpoint
    run.checkpoint = tmp_path / "anew"
    run.restart()
    assert run.phase([])["audit"] == status["audit"]
    assert written(run.checkpoint / AUDIT_FOLDER) == trail
    assert main(topic) == 0

    save_for_both(spark, whole, Target(str(tmp_path / "saved")))
    erase = ["job", "erase", "--key", f"card={gone}", "--savepoint", str(tmp_path / "saved")]
    assert main([*erase, "--audit", str(whole / AUDIT_FOLDER)]) == 0
    assert_absent([gone], stored(tmp_path / "saved"))
    assert_absent([gone], iter(written(whole / AUDIT_FOLDER)))
    run.restore(tmp_path / "saved", tmp_path / "again")
    after = run.phase(lines[300:], with_nonce(PauseRecord(id=name, version=3, by="Bob")))
    assert after["audit"]["count"] == 7, "the erasure and the pause"


LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c: %m%n%ex
logger.spark.name = org.apache.spark
logger.spark.level = info
"""


def test_no_log_and_no_answer_of_spark_has_a_card_number(
    rules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logs of the driver, its tasks and the job, at Spark's own level as a cluster has it, and the port."""
    out, port = tmp_path / "out", free_port()
    (tmp_path / "events").mkdir()
    out.mkdir()
    (tmp_path / "log4j2.properties").write_text(LOGGING)
    monkeypatch.setenv("CEP_JAVA_OPTIONS", f"-Dlog4j2.configurationFile={(tmp_path / 'log4j2.properties').as_uri()}")
    planted = "5500005555555559"  # the driver logs the name of its application, so the search must find it
    (tmp_path / "cep.toml").write_text(f'[spark.conf]\n"spark.app.name" = "cep {planted}"\n')
    lines = records(7, NUMBERS)
    (tmp_path / "events" / "1.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    job = start_process(
        out, "--conf", tmp_path / "cep.toml", "--rules", rules, "--events", tmp_path / "events",
        "--checkpoint", out / "job", "--alerts", out / "alerts", "--key-groups", 4, "--dedup", "1 d",
        "--log", "json", "--rejected-max", 1, "--listen", f"127.0.0.1:{port}",
    )  # fmt: skip
    try:
        deadline_s = time.monotonic() + WAIT_S
        while job.poll() is None and not _has_read(port, len(lines)):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        answers = [b"".join(_answer(port, path)) for path in ("/metrics", "/health", "/ready", "/live", "/else")]
        job.terminate()
        assert job.wait(WAIT_S) == 0, (out / "log").read_bytes()[-5_000:]
    finally:
        job.kill()
    assert b'code="no_card_number"' in answers[0]
    log_text = (out / "log").read_bytes()
    for part in (b"INFO org.apache.spark.sql.execution.streaming", b"INFO org.apache.spark.scheduler"):
        assert part in log_text
    files = [path for path in out.rglob("*") if path.is_file()]
    assert any(path.parent.name == "alerts" for path in files)
    searched = [*NUMBERS, *(wrong(number) for number in NUMBERS)]
    with pytest.raises(AssertionError):
        assert_absent([planted], (path.read_bytes() for path in files))
    assert_absent(searched, (path.read_bytes() for path in files))
    assert_absent(searched, (str(path).encode() for path in files))
    assert_absent(searched, iter(answers))


def _has_read(port: int, count: int) -> bool:
    return status(port, "/live") == 200 and f"cep_records_total {count}.0" in metrics(port)


def _answer(port: int, path: str) -> tuple[bytes, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=WAIT_S) as answer:
            return bytes(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return bytes(error.headers), error.read()
