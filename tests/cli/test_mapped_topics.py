"""Topics whose records have other names and forms: `cep run` and `cep live` give the alerts of plain records."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from cep.cli import main as cli
from tests.cli.test_mapping import MAPPING, PAYMENTS, alert_ids, envelope, lines, make_place, replay
from tests.plain_avro import plain_avro
from tests.real_kafka import KafkaCluster

LATER = {**PAYMENTS[0], "id": "later", "event_time": "2026-03-01T10:59:00Z"}  # moves the watermark past the others
# A Debezium envelope with the card in a header of the record.
HEADED = [word.replace("card=payload.after.card.no", "card=header:card") for word in MAPPING]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return make_place(tmp_path)


def produce(kafka: KafkaCluster) -> str:
    topic = f"mapped-{uuid.uuid4().hex[:8]}"
    kafka.create(topic, 1)
    records: list[dict[str, Any]] = []
    for payment in (*PAYMENTS, LATER):
        record = envelope(payment)
        del record["payload"]["after"]["card"]
        headers = [("card", payment["card"].encode()), ("other", None)]
        records.append({"value": json.dumps(record).encode(), "partition": 0, "headers": headers})
    records.append({"value": b"deleted: no JSON", "partition": 0})
    kafka.send(topic, records)
    return topic


def flags(place: Path, kafka: KafkaCluster, topic: str, out: str) -> list[str]:
    job = ["--rules", str(place / "rules"), "--bootstrap-servers", kafka.address, "--topic", topic]
    return [*job, "--alerts", str(place / out), "--available-now", "--rejected-max", "1", *HEADED]


def ids_in(folder: Path) -> list[str]:
    return alert_ids(b"".join(file.read_bytes() for file in sorted(folder.glob("*.jsonl"))))


def test_one_process_reads_envelopes_and_headers(place: Path, kafka_broker: KafkaCluster) -> None:
    plain = replay(place, "--events", str(place / "plain.jsonl"))
    assert cli.main(["run", *flags(place, kafka_broker, produce(kafka_broker), "out")]) == 0
    assert ids_in(place / "out") == alert_ids(plain)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_spark_reads_envelopes_and_headers(place: Path, kafka_broker: KafkaCluster) -> None:
    plain = replay(place, "--events", str(place / "plain.jsonl"))
    checkpoint = ["--checkpoint", str(place / "checkpoint")]
    assert cli.main(["live", *flags(place, kafka_broker, produce(kafka_broker), "out"), *checkpoint]) == 0
    assert ids_in(place / "out") == alert_ids(plain)


def in_avro(folder: Path) -> tuple[list[str], list[bytes]]:
    """Write the schema of the envelopes; return the flags that name it, and the envelopes as Avro."""

    def record(name: str, **fields: Any) -> dict[str, Any]:
        return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}

    card = record("Card", no="string")
    after = record("After", pk="string", card=card, ts="long", cents="long", status="string")
    shape = record("Envelope", payload=record("Payload", op="string", after=after))
    (folder / "envelope.avsc").write_text(json.dumps(shape), encoding="utf-8")
    values = plain_avro(shape, map(envelope, (*PAYMENTS, LATER)))
    return ["--format", "avro", "--schema-file", str(folder / "envelope.avsc")], values


@pytest.mark.parametrize("verb", ["run", pytest.param("live", marks=[pytest.mark.spark, pytest.mark.slow])])
def test_envelopes_of_avro_are_mapped(verb: str, place: Path, kafka_broker: KafkaCluster) -> None:
    plain = replay(place, "--events", str(place / "plain.jsonl"))
    form, values = in_avro(place)
    topic = f"mapped-{uuid.uuid4().hex[:8]}"
    kafka_broker.create(topic, 1)
    kafka_broker.send(topic, [{"value": value, "partition": 0} for value in [*values, b"no avro"]])
    arguments = [word for word in flags(place, kafka_broker, topic, "out") if word not in HEADED]
    checkpoint = ["--checkpoint", str(place / "checkpoint")]
    assert cli.main([verb, *arguments, *MAPPING, *form, *checkpoint]) == 0
    assert ids_in(place / "out") == alert_ids(plain)


def test_records_without_their_header_are_set_aside(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file has no headers: the mapping reads a member of this name there."""
    headed = [{**p, "header:card": p["card"]} for p in PAYMENTS]
    (place / "letters.jsonl").write_bytes(lines(headed))
    plain = replay(place, "--events", str(place / "plain.jsonl"))
    assert replay(place, "--events", str(place / "letters.jsonl"), "--columns", "card=header:card") == plain
    assert cli.main(["replay", "--rules", str(place / "rules"), "--events", str(place / "plain.jsonl"), "--out",
                     str(place / "none.jsonl"), "--columns", "card=header:card"]) == 2  # fmt: skip
    assert "no record has header:card" in capsys.readouterr().err
