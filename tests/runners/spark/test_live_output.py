"""Rows of a micro-batch end in the same place if the micro-batch is repeated."""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from cep.base.errors import SinkAwayError, SinkError, UsageError
from cep.rulebook.meaning import content_hash
from cep.runners.live_checkpoint import read_progress
from cep.runners.output import encode_alerts
from cep.runners.patience import Patience
from cep.runners.rule_output import RuleOutput
from cep.runners.spark.live_output import BatchReport, LiveOutput
from cep.runners.spark.packed import ALERTS, COUNTERS, DEAD, LATE, REFUSED, STATUS
from cep.runners.spark.sink_queue import FOLDER, digest_of, refuse_waiting
from cep.sinks.base import AlertSink, RefusedAlerts
from cep.sinks.files import DeadLetterFiles, FileSink, read_alerts
from cep.sinks.kafka import KafkaDeadLetters
from cep.sinks.transactions.kafka import KafkaTarget
from cep.sinks.webhook import WebhookSink, WebhookTarget
from cep.step.rules import apply_records, rule_status
from tests.cli.test_run import Judge
from tests.real_kafka import KafkaCluster
from tests.rulebook.records import SOURCE, new_book, upsert
from tests.sinks.alerts import alert_table
from tests.sinks.test_kafka import consumed
from tests.webhook import url_of


def micro_batch(first: int) -> pa.Table:
    """Return two alerts from two tasks, a dead letter, two late events, and counters."""
    kinds_and_payloads = [
        (ALERTS, encode_alerts(alert_table(first + 1, 1))),
        (COUNTERS, b'{"events": 5, "alerts[x@1]": 1}'),
        (LATE, json.dumps([{"event_id": "b"}, {"event_id": "a"}]).encode()),
        (DEAD, b'{"code": "unreadable"}'),
        (ALERTS, encode_alerts(alert_table(first, 1))),
        (COUNTERS, b'{"events": 2}'),
    ]
    kinds, payloads = zip(*kinds_and_payloads, strict=True)
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
    assert read_progress(tmp_path) == (1, {"events": 14, "alerts[x@1]": 2, "alerts_delivered[sink 0]": 4})
    assert reports[-1].counters == {"events": 7, "alerts[x@1]": 1, "alerts_delivered[sink 0]": 2}
    assert len(list(read_alerts(tmp_path / "alerts"))) == 4
    letters = [orjson.loads(line) for line in (tmp_path / "letters" / f"batch-{1:019}.jsonl").read_bytes().splitlines()]
    assert letters == [{"code": "unreadable"}, {"code": "late", "event_id": "a"}, {"code": "late", "event_id": "b"}]


def test_a_bad_control_record_goes_to_a_topic_with_its_diagnostics(tmp_path: Path, kafka_broker: KafkaCluster) -> None:
    """The letters include the rules: epoch and hash explain an event or a record that was set aside."""
    topic = f"letters-{uuid.uuid4().hex}"
    kafka_broker.create(topic, 1)
    book = new_book()
    broken = upsert(2, source=SOURCE.replace("card_id     string", "card         string"))
    letters, _, _ = apply_records(book, (upsert(1).to_json(), broken.to_json(), b"{nothing"), None)
    rows = [(STATUS, orjson.dumps(rule_status(book))), *((REFUSED, letter) for letter in letters)]
    rows.append((LATE, json.dumps([{"event_id": "a"}]).encode()))
    kinds, payloads = zip(*rows, strict=True)
    table = pa.table({"kind": pa.array(kinds), "payload": pa.array(payloads, pa.binary())})
    for _ in range(2):  # a repeated micro-batch brings no letter a second time
        output = LiveOutput(tmp_path, KafkaDeadLetters(KafkaTarget(kafka_broker.address, topic, "job")), [])
        output.rules = RuleOutput(tmp_path, rule_status(new_book()))
        output.take_table(table, 7)
        output.close()
    letters_in_topic = [orjson.loads(record.value() or b"") for record in consumed(kafka_broker, topic, 3)]
    letters_by_code = {letter["code"]: letter for letter in letters_in_topic}
    assert sorted(letter["code"] for letter in letters_in_topic) == ["control_refused", "control_unreadable", "late"]
    refused = letters_by_code["control_refused"]
    assert (refused["rule_id"], refused["version"], refused["content_hash"]) == ("r", 2, content_hash(broken))
    assert [diagnostic["code"] for diagnostic in refused["diagnostics"]] == ["CEP417"]
    assert {(letter["epoch"], letter["rulebook"]) for letter in letters_by_code.values()} == {(1, book.content_hash)}


def test_a_micro_batch_without_rows(tmp_path: Path) -> None:
    rows = pa.table({"kind": pa.array([], pa.string()), "payload": pa.array([], pa.binary())})
    LiveOutput(tmp_path, DeadLetterFiles(tmp_path / "letters"), []).take_table(rows, 3)
    assert read_progress(tmp_path) == (3, {})
    assert not (tmp_path / "letters").exists()


def test_a_sink_that_is_away_delays_no_micro_batch_and_gets_all_in_their_order(tmp_path: Path) -> None:
    """A webhook refuses access, then one alert. A folder gets the alerts at once; a stop leaves the rest in files."""
    reports: list[tuple[str, str]] = []
    is_back, is_away_again = threading.Event(), threading.Event()
    receiver = Judge(lambda names: 403 if not is_back.is_set() else 422 if "a1" in names else 204)
    url, letters = url_of(receiver.server), DeadLetterFiles(tmp_path / "letters", "refused")

    def away(name: str, error: SinkAwayError | None) -> None:
        reports.append((name, "" if error is None else error.reason))
        if error is not None and is_back.is_set():
            is_away_again.set()

    def output() -> LiveOutput:
        hook = WebhookSink(WebhookTarget(url, b"secret"), RefusedAlerts("hook", letters))
        sinks: list[AlertSink] = [hook, FileSink(tmp_path / "alerts")]
        patience = Patience(threading.Event(), away, 0.01, refusals=(hook.refused,))
        letters_sink = DeadLetterFiles(tmp_path / "letters")
        return LiveOutput(tmp_path, letters_sink, sinks, patience=patience, names=("hook", "file"))

    first = output()
    assert first.totals == {"alerts_refused[hook]": 0}, "the metric is there before the first refusal"
    for number in range(3):
        first.take_table(micro_batch(2 * number), number)
    assert len(list(read_alerts(tmp_path / "alerts"))) == 6
    assert read_progress(tmp_path)[0] == 2, "no micro-batch waits for the webhook"
    assert receiver.taken == []
    (count, since_ms), others = first.backlogs["hook"], first.backlogs["file"]
    assert (count, others) == (6, (0, None))
    assert since_ms is not None
    assert first.undelivered_count == 6
    assert first.totals["alerts_delivered[file]"] == 6
    with pytest.raises(UsageError, match="3 micro-batches wait for hook"):
        refuse_waiting(tmp_path)
    is_back.set()
    first.drain(lambda: None)
    assert receiver.taken == ["a0", "a2", "a3", "a4", "a5"]
    assert first.totals["alerts_refused[hook]"] == 1
    assert first.totals["alerts_delivered[hook]"] == 6
    assert (reports[0], reports[-1]) == (("hook", "access"), ("hook", ""))
    (letter,) = [
        orjson.loads(line) for line in (tmp_path / "letters" / f"refused-{0:019}.jsonl").read_bytes().splitlines()
    ]
    assert orjson.loads(letter["record"])["alert_id"] == "a1"
    receiver.judge = lambda _: 403
    first.take_table(micro_batch(6), 3)
    assert is_away_again.wait(30)
    first._patience.stop.set()
    first.drain(lambda: None)
    first.close()
    receiver.judge = lambda _: 204
    second = output()
    second.take_table(micro_batch(6), 3)  # as after a crash
    second.take_table(micro_batch(8), 4)
    second.drain(lambda: None)
    second.close()
    refuse_waiting(tmp_path)
    assert receiver.taken == ["a0", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"]
    receiver.server.shutdown()
    receiver.server.server_close()


def test_the_alerts_of_a_sink_that_is_gone_go_to_a_new_one_or_are_told(tmp_path: Path) -> None:
    def output(*names: str) -> LiveOutput:
        sinks = [FileSink(tmp_path / name) for name in names]
        return LiveOutput(tmp_path, DeadLetterFiles(tmp_path / "letters"), sinks, names=names)

    class Away(FileSink):
        def write(self, alerts: pa.Table, batch_id: int) -> None:
            raise SinkAwayError("nobody answers")

    first = LiveOutput(tmp_path, DeadLetterFiles(tmp_path / "letters"), [Away(tmp_path / "old")], names=("old",))
    first.take_table(micro_batch(0), 0)
    first._patience.stop.set()
    first.close()
    second = output("new")
    assert second.abandoned == {}
    second.drain(lambda: None)
    second.close()
    assert [alert["alert_id"] for alert in read_alerts(tmp_path / "new")] == ["a0", "a1"]
    third = LiveOutput(tmp_path, DeadLetterFiles(tmp_path / "letters"), [Away(tmp_path / "old")], names=("new",))
    third.take_table(micro_batch(2), 1)
    third._patience.stop.set()
    third.close()
    (tmp_path / FOLDER / digest_of("other")).mkdir()
    assert output("other").abandoned == {"new": 2}


def test_a_disk_that_takes_no_file_ends_the_micro_batch(tmp_path: Path) -> None:
    class Broken(FileSink):
        def write(self, alerts: pa.Table, batch_id: int) -> None:
            raise SinkError("no space")

    output = LiveOutput(tmp_path, DeadLetterFiles(tmp_path / "letters"), [Broken(tmp_path / "alerts")])
    for _ in range(2):
        with pytest.raises(SinkError, match="no space"):
            output.take_table(micro_batch(0), 0)
    assert read_progress(tmp_path)[0] == -1
