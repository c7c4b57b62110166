"""`cep rules shadow report` over a job of `cep run` whose only sink is a topic; its dead letters also go to a topic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from cep.base.audit import is_audit
from cep.cli.main import main
from cep.runners.rule_output import STATUS_FILE, SUPPRESSED_FOLDER
from cep.sources.kafka import KafkaSettings, earliest_offsets, latest_offsets, read_range
from cep.sources.offsets import OffsetRange
from tests.mock_kafka import MockKafka
from tests.real_kafka import KafkaCluster
from tests.runners.embedded.cases import morning
from tests.runners.spark.live_cases import rules

ROOT = Path(__file__).parents[2]
RULES = str(ROOT / "rules")
FAILED = 3


def values(address: str, topic: str) -> list[bytes]:
    settings = KafkaSettings(address)
    begins, ends = (ask(settings, [topic])[topic] for ask in (earliest_offsets, latest_offsets))
    ranges = [OffsetRange(topic, partition, begins[partition], end) for partition, end in ends.items()]
    batches = (batch for offsets in ranges if offsets.start < offsets.end for batch in read_range(settings, offsets))
    return [value for batch in batches for value in batch["value"].to_pylist()]


def test_a_job_with_topics_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MockKafka() as kafka:
        for topic in ("alerts", "dead"):
            kafka.create(topic)
        job = TopicsJob(kafka.address, "alerts", "dead", ("--delivery", "at-least-once"))
        report_of_a_job(job, tmp_path, capsys)


def test_a_job_with_topics_alone_exactly_once(
    kafka_broker: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for topic in ("alerts", "dead"):
        kafka_broker.create(topic, 2)
    delivery = "exactly-once" if kafka_broker.is_real else "at-least-once"  # the mock damages transactions
    report_of_a_job(TopicsJob(kafka_broker.address, "alerts", "dead", ("--delivery", delivery)), tmp_path, capsys)


@pytest.mark.spark
@pytest.mark.slow
def test_a_job_on_spark_with_topics_alone(
    kafka_broker: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for topic in ("alerts-of-live", "dead-of-live"):
        kafka_broker.create(topic, 2)
    job = TopicsJob(kafka_broker.address, "alerts-of-live", "dead-of-live", verb="live")
    report_of_a_job(job, tmp_path, capsys)


@dataclass
class TopicsJob:
    """A job into topics. A job on Spark has a separate process, because its session would stay in this one."""

    address: str
    alerts: str
    dead: str
    flags: tuple[str, ...] = ()
    verb: str = "run"

    def run(self, *arguments: str) -> int:
        """Run the job over all records; return its exit code."""
        topics = ["--bootstrap-servers", self.address, "--alerts", f"kafka:{self.alerts}"]
        words = [self.verb, "--rules", RULES, *topics, "--dead-letter-topic", self.dead, *self.flags, *arguments]
        if self.verb == "run":
            return main(words)
        command = [sys.executable, "-c", "import sys; from cep.cli.main import main; sys.exit(main())", *words]
        process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        print(process.stderr, file=sys.stderr)
        return process.returncode


def report_of_a_job(topics: TopicsJob, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the job twice with a shadow of each rule, read its topics, and compare."""
    (folder / "events").mkdir()
    (folder / "control").mkdir()
    shadows = [rule.model_copy(update={"version": 9, "status": "shadow"}).to_json() for rule in rules().values()]
    (folder / "control" / "1.jsonl").write_bytes(b"\n".join(shadows))
    (folder / "events" / "1.jsonl").write_bytes(b"\n".join([*morning(), b"{", b'{"card_id": 5}']))
    job = folder / "job"
    source = ["--events", str(folder / "events"), "--control", str(folder / "control")]
    for _ in range(2):  # existing alerts are not sent again
        assert topics.run(*source, "--checkpoint", str(job), "--available-now") == 0
    sent = [json.loads(value) for value in values(topics.address, topics.alerts)]
    assert {alert["status"] for alert in sent} == {"live"}
    letters = values(topics.address, topics.dead)
    codes = sorted(json.loads(value)["code"] for value in letters if not is_audit(value))
    assert codes == ["missing_field", "unreadable"]
    assert not (job / "dead_letters").exists()
    count = Counter(alert["rule_id"] for alert in sent)["small_then_large"]
    assert count > 2
    report = [
        "rules",
        "shadow",
        "report",
        "small_then_large",
        "--checkpoint",
        str(job),
        "--bootstrap-servers",
        topics.address,
    ]
    capsys.readouterr()
    assert main([*report, "--alerts", f"kafka:{topics.alerts}"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"small_then_large: shadow version 9 {count} alerts, live {count}" in shown
    assert f"kept {count}, gained 0, lost 0" in shown
    assert "230584300" not in (job / STATUS_FILE).read_text(), "a time that is none is null"
    totals = orjson.loads((job / "progress.json").read_bytes())["totals"]
    assert totals["held[shadow@small_then_large]"] == totals["alerts[small_then_large@1]"] == count
    assert totals.get("alerts[small_then_large@9]", 0) == 0


def test_where_alerts_are_must_be_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = {"rules": [{"rule_id": "a", "version": 2, "status": "shadow", "from_ms": None}]}
    (tmp_path / STATUS_FILE).write_bytes(orjson.dumps(status))
    report = ["rules", "shadow", "report", "a", "--checkpoint", str(tmp_path), "--alerts"]
    assert main([*report, "kafka:alerts"]) == 2
    assert "needs --bootstrap-servers" in capsys.readouterr().err
    assert main([*report, str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "status", [b"", b"[]", b"{}", b'{"rules": 1}', b'{"rules": [1]}', b'{"rules": [{"rule_id": "a"}]}', b"\xff"]
)
def test_a_damaged_status_is_named(status: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / STATUS_FILE).write_bytes(status)
    (tmp_path / "alerts").mkdir()
    report = ["rules", "shadow", "report", "a", "--checkpoint", str(tmp_path), "--alerts", str(tmp_path / "alerts")]
    assert main(report) == FAILED
    printed = capsys.readouterr().err
    assert STATUS_FILE in printed
    assert "bug" not in printed


@pytest.mark.parametrize("folder", [SUPPRESSED_FOLDER, "alerts"])
def test_a_pipe_among_alerts_is_named(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = {"rules": [{"rule_id": "a", "version": 2, "status": "shadow", "from_ms": None}]}
    (tmp_path / STATUS_FILE).write_bytes(orjson.dumps(status))
    for name in (SUPPRESSED_FOLDER, "alerts"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / folder / "batch-1.jsonl")
    report = ["rules", "shadow", "report", "a", "--checkpoint", str(tmp_path), "--alerts", str(tmp_path / "alerts")]
    assert main(report) == FAILED
    printed = capsys.readouterr().err
    assert f"{folder}/batch-1.jsonl" in printed
    (tmp_path / STATUS_FILE).unlink()
    os.mkfifo(tmp_path / STATUS_FILE)
    assert main(report) == FAILED
    assert f"{STATUS_FILE} cannot be read (it is no regular file" in capsys.readouterr().err
    assert "it is no regular file" in printed


@pytest.mark.parametrize("line", [b"[]", b"{}", b'{"held": "shadow"}', b'{"held": "shadow", "alert": {}}', b"1", b"{"])
def test_damaged_alerts_are_named(line: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = {"rules": [{"rule_id": "a", "version": 2, "status": "shadow", "from_ms": None}]}
    (tmp_path / STATUS_FILE).write_bytes(orjson.dumps(status))
    suppressed, alerts = tmp_path / SUPPRESSED_FOLDER, tmp_path / "alerts"
    report = ["rules", "shadow", "report", "a", "--checkpoint", str(tmp_path), "--alerts", str(alerts)]
    for folder in (suppressed, alerts):
        folder.mkdir()
    (suppressed / "batch-1.jsonl").write_bytes(line)
    assert main(report) == FAILED
    printed = capsys.readouterr().err
    (suppressed / "batch-1.jsonl").unlink()
    (alerts / "batch-1.jsonl").write_bytes(line)
    assert main(report) == FAILED
    also_said = capsys.readouterr().err
    assert SUPPRESSED_FOLDER in printed
    assert str(alerts) in also_said
    assert "bug" not in printed + also_said


GOOD = {
    "rule_id": "a", "key": "c1", "message": "", "detected_at": "2026-03-01T10:00:00Z", "events": [], "version": 2,
    "match_start": "2026-03-01T10:00:00Z",
}  # fmt: skip


@pytest.mark.parametrize("of_shadow", [True, False])
@pytest.mark.parametrize(
    ("field", "value"),
    [("key", 1), ("message", []), ("detected_at", {}), ("events", None), ("events", [1]), ("match_start", "noon")],
)
def test_a_field_of_an_alert_that_is_damaged_is_named(
    field: str, value: object, of_shadow: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = {"rules": [{"rule_id": "a", "version": 2, "status": "shadow", "from_ms": None}]}
    (tmp_path / STATUS_FILE).write_bytes(orjson.dumps(status))
    suppressed, alerts = tmp_path / SUPPRESSED_FOLDER, tmp_path / "alerts"
    bad = {**GOOD, field: value}
    for folder, line in (
        (suppressed, {"held": "shadow", "alert": bad if of_shadow else GOOD}),
        (alerts, GOOD if of_shadow else bad),
    ):
        folder.mkdir()
        (folder / "batch-1.jsonl").write_bytes(orjson.dumps(line))
    assert main(["rules", "shadow", "report", "a", "--checkpoint", str(tmp_path), "--alerts", str(alerts)]) == FAILED
    printed = capsys.readouterr().err
    assert f"{suppressed if of_shadow else alerts} has a line that is no alert" in printed
    assert "noon" in printed if value == "noon" else f"`{field}`" in printed
    assert "bug" not in printed
