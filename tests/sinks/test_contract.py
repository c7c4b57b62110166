"""One contract for every sink: a batch that comes twice ends as if it had come once."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from cep.sinks.base import AlertSink
from cep.sinks.console import ConsoleSink
from cep.sinks.jsonl import JsonLinesSink, read_alerts
from cep.sinks.kafka import KafkaSink, KafkaTransactionSink
from tests.mock_kafka import MockKafka
from tests.sinks.alerts import alert_table
from tests.sinks.test_kafka import consumed


@dataclass
class Subject:
    sink: AlertSink
    delivered: Callable[[], list[str]]


def _console(_: Path) -> Iterator[Subject]:
    output = io.StringIO()
    sink = ConsoleSink(Console(file=output, width=200, highlight=False))
    yield Subject(sink, lambda: re.findall(r"alert (a\d+)", output.getvalue()))


def _jsonl(folder: Path) -> Iterator[Subject]:
    yield Subject(JsonLinesSink(folder), lambda: [alert["alert_id"] for alert in read_alerts(folder)])


def _kafka(_: Path) -> Iterator[Subject]:
    with MockKafka() as kafka:

        def delivered() -> list[str]:
            keys = [record.key() for record in consumed(kafka, "contract", 9)]
            return sorted({str(key, "ascii") for key in keys if key})  # as a compacted topic would

        yield Subject(KafkaSink(kafka.address, "contract"), delivered)


def _kafka_transactions(_: Path) -> Iterator[Subject]:
    with MockKafka() as kafka:
        kafka.create("contract")

        def delivered() -> list[str]:
            # Each record is there once: a batch that comes again is not sent again.
            return sorted(str(key, "ascii") for record in consumed(kafka, "contract", 9) if (key := record.key()))

        yield Subject(KafkaTransactionSink(kafka.address, "contract", "job"), delivered)


@pytest.fixture(params=[_console, _jsonl, _kafka, _kafka_transactions])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    yield from request.param(tmp_path)


def test_redelivery_of_the_last_batch_changes_nothing(subject: Subject) -> None:
    batches = {
        number: alert_table(3 * number, 3).set_column(9, "message", [[f"alert a{3 * number + i}" for i in range(3)]])
        for number in range(2)
    }
    subject.sink.write(batches[0], 0)
    subject.sink.write(batches[1], 1)
    subject.sink.write(batches[1], 1)
    subject.sink.write(alert_table(0, 0), 2)
    subject.sink.close()
    assert subject.delivered() == ["a0", "a1", "a2", "a3", "a4", "a5"]
