"""Apicurio's registry in place of the tests' own: Avro, Protobuf and framed JSON, decoded and in a job of `cep run`."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from cep.cli.main import main
from cep.sources.registry.form import RecordFormat
from cep.sources.registry.kafka import client_of
from tests.real_kafka import KafkaCluster, NoBrokerError
from tests.real_registry import open_registry
from tests.runners.embedded.cases import day, deployment, expected
from tests.runners.embedded.test_run import ROOT, written
from tests.sources.registry.test_registry import AVRO, EVENTS, avro, in_json, is_equal, protobuf, read

pytestmark = pytest.mark.slow
KINDS = {bool: "boolean", int: "long", float: "double", str: "string"}


@pytest.fixture(scope="module")
def apicurio() -> Iterator[str]:
    try:
        with open_registry() as url:
            yield url
    except NoBrokerError as error:
        raise pytest.skip.Exception(str(error)) from error


def test_avro_of_two_versions_and_ids_of_nobody(apicurio: str) -> None:
    settings = (("url", apicurio),)
    older = {**AVRO, "fields": [f for f in AVRO["fields"] if f["name"] != "took"]}
    values = [*avro(client_of(settings), EVENTS[:5], older), *avro(client_of(settings), EVENTS[5:])]
    nobody = b"\x00\x00\x0f\x42\x3f" + values[0][5:]
    decoded = read(RecordFormat("avro", settings), [*values, nobody])
    assert is_equal(decoded, in_json([*({**e, "took": None} for e in EVENTS[:5]), *EVENTS[5:]]))
    assert [poison.reason for poison in decoded.poison] == ["the schema registry has no schema 999999"]


def test_protobuf(apicurio: str, tmp_path: Path) -> None:
    settings = (("url", apicurio),)
    path = tmp_path / "payment.desc"
    values, events = protobuf(client_of(settings), path)
    decoded = read(RecordFormat("protobuf", settings, str(path), "shop.Payment"), values)
    assert decoded.poison == ()
    assert is_equal(decoded, in_json(events))


def values_of(form: str, url: str, topic: str, lines: list[bytes]) -> list[bytes]:
    """Return the events as written by a producer that registers its schema."""
    client, events = SchemaRegistryClient({"url": url}), [orjson.loads(line) for line in lines]
    if form == "json":
        text = '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'
        number = client.register_schema(f"{topic}-value", Schema(text, "JSON"))
        return [b"\x00" + number.to_bytes(4, "big") + line for line in lines]
    fields: dict[str, Any] = {name: value for event in events for name, value in event.items() if value is not None}
    shown = [{"name": n, "type": ["null", KINDS[type(v)]], "default": None} for n, v in fields.items()]
    serializer = AvroSerializer(client, json.dumps({"type": "record", "name": "Event", "fields": shown}))
    context = SerializationContext(topic, MessageField.VALUE)
    return [serializer(event, context) or b"" for event in events]


@pytest.mark.parametrize("form", ["avro", "json"])
def test_a_job_gives_the_alerts_of_the_replay(
    form: str, apicurio: str, kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    topic, lines = f"{form}-{uuid.uuid4().hex[:8]}", list(day())
    kafka_broker.create(topic)
    kafka_broker.send(topic, [{"value": value, "partition": 0} for value in values_of(form, apicurio, topic, lines)])
    (tmp_path / "cep.toml").write_text(f"[events.registry]\nurl = {json.dumps(apicurio)}\n")
    arguments = [
        "run", "--conf", str(tmp_path / "cep.toml"), "--rules", str(ROOT / "rules"), "--bootstrap-servers",
        kafka_broker.address, "--topic", topic, "--format", form, "--checkpoint", str(tmp_path / "job"), "--alerts",
        str(tmp_path / "alerts"), "--available-now",
    ]  # fmt: skip
    assert main(arguments) == 0
    assert sorted(written(tmp_path / "alerts")) == sorted(expected(lines, deployment(), tmp_path))
    assert written(tmp_path / "job" / "dead_letters") == []
