"""Rows of a micro-batch end in the same place, however often the micro-batch comes."""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from cep.base.errors import SinkAwayError
from cep.rulebook.meaning import content_hash
from cep.runners.live_progress import read_progress
from cep.runners.output import encode_alerts
from cep.runners.patience import Patience
from cep.runners.rule_output import RuleOutput
from cep.runners.spark.live_output import BatchReport, LiveOutput
from cep.runners.spark.packed import ALERTS, COUNTERS, DEAD, LATE, REFUSED, STATUS
from cep.sinks.dead_letters import DeadLetterFiles
from cep.sinks.files import FileSink, read_alerts
from cep.sinks.kafka import KafkaDeadLetters
from cep.sinks.refused import RefusedAlerts
from cep.sinks.transactions.kafka import KafkaTarget
from cep.sinks.webhook import WebhookSink, WebhookTarget
from cep.step.rule_status import rule_status
from cep.step.rules import apply_records
from tests.cli.test_refused_alerts import Judge
from tests.real_kafka import KafkaCluster
from tests.rulebook.records import SOURCE, new_book, upsert
from tests.sinks.alerts import alert_table
from tests.sinks.test_kafka import consumed
from tests.webhook import url_of


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


def test_a_sink_that_is_away_is_waited_for_and_refused_alerts_are_counted(tmp_path: Path) -> None:
    """A webhook refuses access, then one alert: the micro-batch ends once it has taken or judged both alerts."""
    said: list[tuple[str, str]] = []
    receiver = Judge(lambda names: 403 if not said else 422 if "a1" in names else 204)
    url, letters = url_of(receiver.server), DeadLetterFiles(tmp_path / "letters", "refused")
    sink = WebhookSink(WebhookTarget(url, b"secret"), RefusedAlerts("hook", letters))

    def away(name: str, error: SinkAwayError | None) -> None:
        said.append((name, "" if error is None else error.reason))

    patience = Patience(threading.Event(), away, 0.0, refusals=(sink.refused,))
    reports: list[BatchReport] = []
    output = LiveOutput(
        tmp_path, DeadLetterFiles(tmp_path / "letters"), [sink], reports.append, patience=patience, names=("hook",)
    )  # fmt: skip
    output.take_table(micro_batch(0), 0)
    receiver.judge = lambda _: 403
    patience.stop.set()
    with pytest.raises(SinkAwayError, match="it answered 403"):
        output.take_table(micro_batch(2), 1)
    output.close()
    receiver.server.shutdown()
    receiver.server.server_close()
    assert said == [("hook", "access"), ("hook", ""), ("hook", "access")]
    assert receiver.taken == ["a0"]
    assert reports[0].totals["alerts_refused[hook]"] == 1
    assert reports[0].totals["deliveries_retried"] == 1
    assert read_progress(tmp_path)[0] == 0, "the second micro-batch comes again"
    (letter,) = [
        orjson.loads(line) for line in (tmp_path / "letters" / f"refused-{0:019}.jsonl").read_bytes().splitlines()
    ]
    assert orjson.loads(letter["record"])["alert_id"] == "a1"
