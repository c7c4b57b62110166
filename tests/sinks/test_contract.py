"""What sinks share: one contract, and the table of their kinds; the view of the terminal."""

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from cep.base.errors import UsageError
from cep.model.settings import Settings, read_settings
from cep.sinks.base import AlertSink
from cep.sinks.console import ConsoleSink
from cep.sinks.files import FileSink, read_alerts
from cep.sinks.kafka import KafkaSink, KafkaTransactionSink
from cep.sinks.kinds import KINDS, SinkJob, kind_of, open_sinks, sink_addresses, sink_names
from cep.sinks.lake import LakeSink
from cep.sinks.postgres import PostgresSink
from cep.sinks.webhook import WebhookSink
from tests.real_kafka import KafkaCluster
from tests.real_postgres import IS_THERE, RealPostgres
from tests.sinks.alerts import alert_table
from tests.sinks.test_kafka import consumed, target


@dataclass
class Subject:
    sink: AlertSink
    delivered: Callable[[], list[str]]


def _console(_: Path) -> Iterator[Subject]:
    output = io.StringIO()
    sink = ConsoleSink(Console(file=output, width=200, highlight=False))
    yield Subject(sink, lambda: re.findall(r"alert (a\d+)", output.getvalue()))


def _jsonl(folder: Path) -> Iterator[Subject]:
    yield Subject(FileSink(folder), lambda: [alert["alert_id"] for alert in read_alerts(folder)])


def _parquet(folder: Path) -> Iterator[Subject]:
    sink = FileSink(folder, "parquet")
    yield Subject(sink, lambda: [str(name) for name in pq.read_table(folder).column("alert_id").to_pylist()])


def _lake(folder: Path) -> Iterator[Subject]:
    deltalake = pytest.importorskip("deltalake")
    sink = LakeSink(str(folder), "job")

    def delivered() -> list[str]:
        return sorted(deltalake.DeltaTable(str(folder)).to_pyarrow_table()["alert_id"].to_pylist())

    yield Subject(sink, delivered)


def _postgres(_: Path) -> Iterator[Subject]:
    server = RealPostgres()

    def delivered() -> list[str]:
        with psycopg.connect(server.address) as connection:
            rows = connection.execute("select alert_id from cep_alerts order by detected_at").fetchall()
        return [str(row[0]) for row in rows]

    yield Subject(PostgresSink(server.address), delivered)
    server.close()


def _kafka(kafka: KafkaCluster) -> Iterator[Subject]:
    to = target(kafka)

    def delivered() -> list[str]:
        keys = [record.key() for record in consumed(kafka, to.topic, 6)]
        alert_ids = sorted(str(key, "ascii") for key in keys if key)
        return alert_ids if kafka.is_real else sorted(set(alert_ids))  # the mock forgets the alerts of a micro-batch

    yield Subject(KafkaTransactionSink(to), delivered)


NO_POSTGRES = pytest.mark.skipif(not IS_THERE, reason="no PostgreSQL on the path")


@pytest.fixture(params=[_console, _jsonl, _parquet, _lake, pytest.param(_postgres, marks=NO_POSTGRES), _kafka])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    yield from request.param(request.getfixturevalue("kafka_broker") if request.param is _kafka else tmp_path)


def test_redelivery_of_the_last_batch_changes_nothing(subject: Subject) -> None:
    batches = {
        number: alert_table(3 * number, 3).set_column(10, "message", [[f"alert a{3 * number + i}" for i in range(3)]])
        for number in range(2)
    }
    subject.sink.write(batches[0], 0)
    subject.sink.write(batches[1], 1)
    subject.sink.write(batches[1], 1)
    subject.sink.write(alert_table(0, 0), 2)
    subject.sink.close()
    assert subject.delivered() == ["a0", "a1", "a2", "a3", "a4", "a5"]


def shown(**alert: str) -> str:
    output = io.StringIO()
    ConsoleSink(Console(file=output, width=200, highlight=False, soft_wrap=True)).write(alert_table(1, 1, **alert), 0)
    return output.getvalue()


def test_one_line_an_alert() -> None:
    assert shown() == "2026-03-01 00:00:01 high     card_testing v2  Card c1: 3 probes\n"


def test_a_shadow_alert_says_so() -> None:
    assert "card_testing v2 (shadow)" in shown(status="shadow")


def test_text_of_events_is_shown_as_text() -> None:
    text = shown(message="[bold]x[/bold] \x1b[2J\n")
    assert "[bold]x[/bold]" in text
    assert "\x1b" not in text
    assert text.count("\n") == 1


# A text → the class of its sink, and its name if that is another one.
TEXTS: dict[str, tuple[type[AlertSink], str]] = {
    "console": (ConsoleSink, ""),
    "kafka:alerts": (KafkaTransactionSink, ""),
    "https://there/alerts?token=secret": (WebhookSink, "https://there/alerts?…"),
    "postgresql://me@there/db": (PostgresSink, "postgresql://…@there/db"),
    "parquet:{folder}/p": (FileSink, ""),
    "{folder}/jsonl": (FileSink, ""),
}


def settings_with(folder: Path, *alerts: str) -> Settings:
    output = {"alerts": alerts, "webhook": {"secret": "known"}}
    return read_settings(
        None,
        {"job": {"checkpoint": str(folder / "job")}, "output": output, "kafka": {"bootstrap_servers": "127.0.0.1:1"}},
    )


def job_of(settings: Settings, *, at_once: bool = False) -> SinkJob:
    return SinkJob(settings, lambda *_: None, None if at_once else lambda topic: f"job-{topic}", {})


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_opens_its_kind_under_a_name_without_secrets(text: str, tmp_path: Path) -> None:
    where, (kind, name) = text.format(folder=tmp_path), TEXTS[text]
    settings = settings_with(tmp_path, where)
    assert sink_names(settings) == {name or where: where}
    sinks = open_sinks(job_of(settings))
    assert {each: type(sink) for each, sink in sinks.items()} == {name or where: kind}
    assert "dead letters" in sink_addresses(settings)
    for sink in sinks.values():
        sink.close()


def test_a_topic_at_once_needs_no_name_of_the_job(tmp_path: Path) -> None:
    (sink,) = open_sinks(job_of(settings_with(tmp_path, "kafka:alerts"), at_once=True)).values()
    assert isinstance(sink, KafkaSink)
    sink.close()


def test_each_beginning_has_one_kind_and_other_texts_are_folders() -> None:
    beginnings = [beginning for kind in KINDS for beginning in kind.beginnings]
    assert len(set(beginnings)) == len(beginnings)
    for kind in KINDS:
        assert all(kind_of(beginning) is kind for beginning in kind.beginnings)
    assert not {kind_of(text) for text in ("consoles", "kafka", "alerts", "./console", "https")} & set(KINDS)


def test_two_sinks_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two sinks of alerts are"):
        sink_names(settings_with(tmp_path, "https://there/a?x=1", "https://there/a?x=2"))
