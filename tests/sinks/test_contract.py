"""One contract for every sink: a batch that comes twice ends as if it had come once."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from cep.sinks.base import AlertSink
from cep.sinks.console import ConsoleSink
from cep.sinks.files import FileSink, read_alerts
from cep.sinks.kafka import KafkaTransactionSink
from cep.sinks.lake import LakeSink
from cep.sinks.postgres import PostgresSink
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


@pytest.mark.slow
@pytest.mark.always
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
