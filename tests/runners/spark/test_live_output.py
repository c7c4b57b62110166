"""Rows of a micro-batch end in the same place, however often the micro-batch comes."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import orjson
import pyarrow as pa

from cep.rulebook.meaning import content_hash
from cep.runners.live_progress import read_progress
from cep.runners.output import encode_alerts
from cep.runners.rule_output import RuleOutput
from cep.runners.spark.live_output import BatchReport, LiveOutput
from cep.runners.spark.packed import ALERTS, COUNTERS, DEAD, LATE, REFUSED, STATUS
from cep.sinks.dead_letters import DeadLetterFiles
from cep.sinks.files import FileSink, read_alerts
from cep.sinks.kafka import KafkaDeadLetters
from cep.sinks.transactions.kafka import KafkaTarget
from cep.step.rule_status import rule_status
from cep.step.rules import apply_records
from tests.real_kafka import KafkaCluster
from tests.rulebook.records import SOURCE, new_book, upsert
from tests.sinks.alerts import alert_table
from tests.sinks.test_kafka import consumed


def micro_batch(first: int) -> pa.Table:
    """Two alerts from two tasks, a dead letter, two late events, counters."""
    found = [
        (ALERTS, encode_alerts(alert_table(first + 1, 1))),
        (COUNTERS, b'{"events": 5, "alerts[x@1]": 1}'),
        (LATE, json.dumps([{"event_id": "b"}, {"event_id": "a"}]).encode()),
        (DEAD, b'{"code": "unreadable"}'),
        (ALERTS, encode_alerts(alert_table(first, 1))),
        (COUNTERS, b'{"events": 2}'),
    ]
    kinds, payloads = zip(*found, strict=True)
    return pa.table({"kind": pa.array(kinds), "payload": pa.array(payloads, pa.binary())})


def test_a_micro_batch_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    reports: list[BatchReport] = []

    def output() -> LiveOutput:
        return LiveOutput(
            tmp_path, DeadLetterFiles(tmp_path / "letters"), [FileSink(tmp_path / "alerts")], reports.append
        )

    assert read_progress(tmp_path)[0] == -1
    output().take_table(micro_batch(0), 0)
    second = output()
    second.take_table(micro_batch(10), 1)
    second.take_table(micro_batch(10), 1)
    third = output()
    third.take_table(micro_batch(10), 1)
    third.close()
    assert read_progress(tmp_path) == (1, {"events": 14, "alerts[x@1]": 2})
    assert reports[-1].counters == {"events": 7, "alerts[x@1]": 1}
    assert len(list(read_alerts(tmp_path / "alerts"))) == 4
    letters = [orjson.loads(line) for line in (tmp_path / "letters" / f"batch-{1:019}.jsonl").read_bytes().splitlines()]
    assert letters == [{"code": "unreadable"}, {"code": "late", "event_id": "a"}, {"code": "late", "event_id": "b"}]


def test_a_bad_control_record_goes_to_a_topic_with_its_diagnostics(tmp_path: Path, kafka_broker: KafkaCluster) -> None:
    """And with what the rules were: an event or a record that was set aside is explained by epoch and hash too."""
    topic = f"letters-{uuid.uuid4().hex}"
    kafka_broker.create(topic, 1)
    book = new_book()
    broken = upsert(2, source=SOURCE.replace("card_id     string", "card         string"))
    letters, _, _ = apply_records(book, (upsert(1).to_json(), broken.to_json(), b"{nothing"), None)
    rows = [(STATUS, orjson.dumps(rule_status(book))), *((REFUSED, letter) for letter in letters)]
    rows.append((LATE, json.dumps([{"event_id": "a"}]).encode()))
    kinds, payloads = zip(*rows, strict=True)
    table = pa.table({"kind": pa.array(kinds), "payload": pa.array(payloads, pa.binary())})
    for _ in range(2):  # a micro-batch that is done again brings no letter a second time
        output = LiveOutput(tmp_path, KafkaDeadLetters(KafkaTarget(kafka_broker.address, topic, "job")), [])
        output.rules = RuleOutput(tmp_path, rule_status(new_book()))
        output.take_table(table, 7)
        output.close()
    told = [orjson.loads(record.value() or b"") for record in consumed(kafka_broker, topic, 3)]
    found = {letter["code"]: letter for letter in told}
    assert sorted(letter["code"] for letter in told) == ["control_refused", "control_unreadable", "late"]
    refused = found["control_refused"]
    assert (refused["rule_id"], refused["version"], refused["content_hash"]) == ("r", 2, content_hash(broken))
    assert [diagnostic["code"] for diagnostic in refused["diagnostics"]] == ["CEP417"]
    assert {(letter["epoch"], letter["rulebook"]) for letter in found.values()} == {(1, book.content_hash)}


def test_a_micro_batch_without_rows(tmp_path: Path) -> None:
    rows = pa.table({"kind": pa.array([], pa.string()), "payload": pa.array([], pa.binary())})
    LiveOutput(tmp_path, DeadLetterFiles(tmp_path / "letters"), []).take_table(rows, 3)
    assert read_progress(tmp_path) == (3, {})
    assert not (tmp_path / "letters").exists()
