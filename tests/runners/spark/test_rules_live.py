"""The life of a rule in a Spark job that reads its events and its control records from a broker.

The rule is published, fires, goes into shadow, is promoted, rolled back and paused, with restarts in between. No alert
is lost or comes twice.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cep.base.utc import utc_text
from cep.model.rule import (
    ControlRecord,
    HeartbeatRecord,
    PauseRecord,
    ResumeRecord,
    RollbackRecord,
    UpsertRecord,
    topic_key,
)
from cep.rulebook.kafka import StatusTopic, Topic
from cep.rulebook.meaning import content_hash
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.suppression import Policies, suppress_alerts
from cep.runners.control_topic import read_status
from cep.runners.output import Replayed
from cep.runners.spark.live import LiveSettings, serve, start_live
from cep.runners.spark.live_output import BatchReport, LiveOutput
from cep.runners.spark.replay import read_events, replay
from cep.runners.spark.sources import TopicSource
from cep.sinks.kafka import KafkaDeadLetters
from cep.sinks.transactions.kafka import KafkaTarget
from tests.real_kafka import KafkaCluster
from tests.runners.spark.live_cases import make_job, payments, rows, rules, split, time_ms
from tests.sinks.test_kafka import consumed

pytestmark = [pytest.mark.spark, pytest.mark.slow]
RULE = "small_then_large"


class Run:
    """One job on one broker, started again for each phase."""

    def __init__(self, spark: SparkSession, kafka: KafkaCluster, folder: Path, initial: list[UpsertRecord]) -> None:
        self.spark, self.kafka, self.folder = spark, kafka, folder
        self.job = make_job(rules().values())
        self.initial = tuple(record.to_json() for record in initial)
        self.reports: list[BatchReport] = []
        self.history: list[ControlRecord] = list(initial)
        for topic in ("life-events", "life-control", "life-status", "life-dead"):
            kafka.create(topic, 1)
        self.control = Topic(kafka.address, "life-control")
        self.status = StatusTopic(kafka.address, "life-status")

    def phase(self, lines: list[bytes], *records: ControlRecord, bad: Sequence[bytes] = ()) -> dict[str, Any]:
        """Publish, send events, and let the job run until it has read everything; return the status of its rules."""
        self.control.send([(topic_key(record).encode(), record.to_json()) for record in records])
        self.control.send([(b"bad", data) for data in bad])
        self.history += [record for record in records if not isinstance(record, HeartbeatRecord)]
        self.kafka.send("life-events", ({"value": line, "partition": 0} for line in lines))
        self.spark.conf.set("spark.sql.shuffle.partitions", "2")
        output = LiveOutput(
            self.folder / "checkpoint", KafkaDeadLetters(KafkaTarget(self.kafka.address, "life-dead", "life")), [],
            self.reports.append,
        )  # fmt: skip
        settings = LiveSettings(
            self.job,
            self.initial,
            TopicSource(self.kafka.address, "life-events"),
            TopicSource(self.kafka.address, "life-control"),
            self.folder / "checkpoint" / "query",
            available_now=True,
            status=self.status,
        )
        serve(start_live(self.spark, settings, output), output, threading.Event())
        output.drain(lambda: None)
        output.close()
        status = read_status(self.status)
        assert status is not None
        return status

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
    rules_by_id = rules()
    parts = split(payments(41), 7)
    starts = [utc_text(time_ms(part[0])) for part in parts]
    first = rules_by_id[RULE].model_copy(update={"effective_at": starts[1]})
    stricter = {"params": {**first.params, "large": 700.0}}
    shadow = first.model_copy(update={"version": 2, "status": "shadow", "effective_at": starts[2], **stricter})
    promoted = first.model_copy(update={"version": 3, "effective_at": starts[3], **stricter})
    back = RollbackRecord(id=RULE, version=4, to_version=1, rule=first, effective_at=starts[4])
    run = Run(spark, kafka_broker, tmp_path, [rule for name, rule in rules_by_id.items() if name != RULE])

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
