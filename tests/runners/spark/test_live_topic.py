"""A topic that `cep live` reads: a partition falls silent, one is added, the topic is deleted and created again.

Its records may be Avro or Protobuf with schemas of a registry.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from cep.base.audit import is_audit
from cep.base.exits import Exit
from cep.sinks.files import read_alerts
from tests.real_kafka import TIMEOUT_S, KafkaCluster, add_partitions
from tests.runners.embedded.test_run import written
from tests.runners.spark.live_cases import ROOT
from tests.runners.spark.live_kafka import send
from tests.sources.registry.registry_server import serve_registry
from tests.spark_versions import on_this_spark

pytestmark = [pytest.mark.spark, pytest.mark.slow]
WAIT_S = 300
POLL_S = 0.05
SMALL, LARGE = 0.5, 700.0


def payment(card: str, clock: str, amount: float) -> bytes:
    event = {"tx_id": uuid.uuid4().hex, "event_time": f"2026-03-01T{clock}Z", "card_id": card, "account_id": "a1"}
    return orjson.dumps({**event, "amount": amount, "status": "approved", "channel": "ecom", "country": "FR"})


def pair(card: str, clock: str) -> list[bytes]:
    """Return a small and a large payment half a minute apart, and a later one of another card that releases them."""
    return [payment(card, f"{clock}:00", SMALL), payment(card, f"{clock}:30", LARGE), payment("z", f"{clock}:59", 20.0)]


def start(folder: Path, kafka: KafkaCluster, topic: str, *more: str) -> subprocess.Popen[bytes]:
    words = (
        "live", "--rules", str(ROOT / "rules"), "--bootstrap-servers", kafka.address, "--topic", topic,
        "--control", str(folder / "control"), "--checkpoint", str(folder / "checkpoint"),
        "--alerts", str(folder / "alerts"), "--key-groups", "2", "--cores", "1", "--idle", "10 s", *more,
    )  # fmt: skip
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", "import sys; from cep.cli.main import main; sys.exit(main())", *words],
            start_new_session=True, cwd=ROOT, stdout=log, stderr=log, env=on_this_spark(),
        )  # fmt: skip


def wait_until(is_so: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    give_up_s = time.monotonic() + WAIT_S
    while not is_so():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < give_up_s, log.read_text()
        time.sleep(POLL_S)


def last_error(log: Path) -> str:
    """The last line only says which page to read."""
    *_, message, page = log.read_text().splitlines()
    assert page.startswith("read on: "), page
    return message


def test_the_life_of_a_topic(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    if not kafka_broker.is_real:  # the mock has fixed partitions and cannot delete topics
        return
    (tmp_path / "control").mkdir()
    topic, log = f"life-{uuid.uuid4().hex}", tmp_path / "log"
    kafka_broker.create(topic, 2)
    admin = AdminClient({"bootstrap.servers": kafka_broker.address})

    def alerted() -> set[str]:
        folder = tmp_path / "alerts"
        return {alert["key"] for alert in read_alerts(folder)} if folder.exists() else set()

    # The second partition falls silent an hour before the pair. It sends no heartbeat and delays no alert.
    send(kafka_broker, topic, [(1, payment("q", "09:00:00", 20.0)), *((0, line) for line in pair("c1", "10:00"))])
    process = start(tmp_path, kafka_broker, topic)
    try:
        wait_until(lambda: alerted() == {"c1"}, process, log)
        add_partitions(kafka_broker, topic, 3)
        send(kafka_broker, topic, [(2, line) for line in pair("c2", "10:05")])
        wait_until(lambda: alerted() == {"c1", "c2"}, process, log)
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        assert process.wait(WAIT_S) == 3, log.read_text()
        assert last_error(log).startswith(f"cep: Kafka topic {topic} cannot be read on")
        for _ in range(200):  # the name becomes free some moments after the answer
            with contextlib.suppress(KafkaException):
                kafka_broker.create(topic, 3)
                break
            time.sleep(POLL_S)
        send(kafka_broker, topic, [(0, line) for line in pair("c3", "10:10")])
        process = start(tmp_path, kafka_broker, topic)
        assert process.wait(WAIT_S) == Exit.FINAL, log.read_text()
        message = last_error(log)
        assert message.startswith(f"cep: topic {topic} was deleted and created again")
        assert message.endswith("start with a new checkpoint directory")
        assert alerted() == {"c1", "c2"}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def avro_values(client: SchemaRegistryClient, topic: str, events: Sequence[Mapping[str, Any]]) -> list[bytes]:
    fields = [{"name": n, "type": "double" if isinstance(v, float) else "string"} for n, v in events[0].items()]
    serializer = AvroSerializer(client, json.dumps({"type": "record", "name": "Payment", "fields": fields}))
    return [serializer(event, SerializationContext(topic, MessageField.VALUE)) or b"" for event in events]


def protobuf_values(
    client: SchemaRegistryClient, topic: str, events: Sequence[Mapping[str, Any]], descriptors: Path
) -> list[bytes]:
    file = descriptor_pb2.FileDescriptorProto(name="payment.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Payment")
    for number, (name, value) in enumerate(events[0].items(), start=1):
        message.field.add(name=name, number=number, type=1 if isinstance(value, float) else 9, label=1)
    descriptors.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Payment"))
    serializer = ProtobufSerializer(kind, client, {"use.deprecated.format": False})
    return [serializer(kind(**event), SerializationContext(topic, MessageField.VALUE)) or b"" for event in events]


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_records_whose_schemas_a_registry_has(form: str, kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    """One record is broken; the others give the same alert as in JSON."""
    (tmp_path / "control").mkdir()
    topic, descriptors = f"{form}-{uuid.uuid4().hex}", tmp_path / "payment.desc"
    kafka_broker.create(topic)
    events = [orjson.loads(line) for line in pair("c1", "10:00")]
    with serve_registry() as (_, settings):
        client = SchemaRegistryClient(dict(settings))
        if form == "avro":
            values, words = avro_values(client, topic, events), ["--format", "avro"]
        else:
            values = protobuf_values(client, topic, events, descriptors)
            words = ["--format", "protobuf", "--schema-file", str(descriptors), "--message", "shop.Payment"]
        send(kafka_broker, topic, [(0, value) for value in [*values, b"\xff"]])
        toml_lines = "\n".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in settings)
        (tmp_path / "cep.toml").write_text(f"[events.registry]\n{toml_lines}\n")
        process = start(tmp_path, kafka_broker, topic, "--conf", str(tmp_path / "cep.toml"), *words, "--available-now")
        try:
            assert process.wait(WAIT_S) == 0, (tmp_path / "log").read_text()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert [alert["key"] for alert in read_alerts(tmp_path / "alerts")] == ["c1"]
    lines = written(tmp_path / "checkpoint" / "dead_letters")
    assert [orjson.loads(line)["code"] for line in lines if not is_audit(line)] == ["unreadable"]
