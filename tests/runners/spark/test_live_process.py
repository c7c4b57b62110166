"""`cep live` as a process: killed in the middle and started again, it loses nothing and doubles nothing.

Spark cannot clean up: the whole process group is killed, Java too, and Python workers end with it. In a topic, a
partition falls silent, one is added, the topic is deleted and created again. Records may be Avro, Protobuf or framed
JSON with schemas of a registry, and brokers may want TLS with a password or a certificate.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from pyspark.sql import SparkSession

from cep.base.audit import is_audit
from cep.base.exits import Exit
from cep.runners.live_checkpoint import read_progress
from cep.runners.spark import daemon
from cep.sinks.files import read_alerts
from tests.base.test_durable import readable_by_others
from tests.bench.metrics import metrics, phases_ms
from tests.cli.monitored import missing
from tests.cli.test_outage import metrics as lines_of_metrics
from tests.cli.test_outage import secure, sent_in_parts, settings_file, shown, status, wait_for
from tests.cli.test_run import free_port
from tests.output_of import OutputOf
from tests.real_kafka import TIMEOUT_S, KafkaCluster, RealKafka, add_partitions
from tests.runners.embedded.cases import day, deployment, expected, morning
from tests.runners.embedded.test_run import consumed, written
from tests.runners.spark.live_cases import (
    ROOT,
    WAIT_S,
    make_job,
    payments,
    replayed,
    rows,
    rules,
    run_process,
    split,
    start_process,
    write_file,
)
from tests.runners.spark.live_kafka import send
from tests.secure_kafka import SecureKafka
from tests.sources.registry.registry_server import serve_registry
from tests.sources.registry.test_real_registry import apicurio, values_of

__all__ = ["apicurio", "secure"]

pytestmark = pytest.mark.spark


FILES = 8
_STARTED: list[int] = []


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """End the jobs of a failed test."""
    yield
    while _STARTED:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(_STARTED.pop(), signal.SIGKILL)


def start(folder: Path, *more: str, source: Sequence[str] = (), groups: int = 8) -> subprocess.Popen[bytes]:
    """Start the job. It reads a folder, or `source`."""
    folders = ("--events", folder / "events", "--max-files", 1, "--control", folder / "control")
    process = start_process(
        folder, "--rules", ROOT / "rules", *(source or folders), "--checkpoint", folder / "checkpoint",
        "--alerts", folder / "alerts", "--key-groups", groups, *more,
    )  # fmt: skip
    _STARTED.append(process.pid)
    return process


def wait_for_batch(process: subprocess.Popen[bytes], folder: Path, batch_id: int) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while read_progress(folder / "checkpoint")[0] < batch_id:
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline_s, (folder / "log").read_text()
        time.sleep(0.02)


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> int:
    os.killpg(process.pid, number)
    return process.wait(WAIT_S)


def assert_alerts_are_those_of_replay(spark: SparkSession, folder: Path) -> None:
    rules_by_id = rules()
    replay_result = replayed(spark, folder / "events", make_job(rules_by_id.values()), rules_by_id.values())
    alerts = [orjson.loads(line) for line in rows(replay_result.alerts)]
    assert sorted(map(orjson.dumps, read_alerts(folder / "alerts"))) == sorted(map(orjson.dumps, alerts))


@pytest.mark.slow
def test_kill_and_restart(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("events", "control"):
        (tmp_path / name).mkdir()
    lines = payments(31)
    for number, part in enumerate(split(lines, FILES)):
        write_file(tmp_path / "events" / f"{number:03}.jsonl", part, number)
    process = start(tmp_path)
    wait_for_batch(process, tmp_path, 2)
    assert end(process, signal.SIGKILL) == -signal.SIGKILL
    killed_at, _ = read_progress(tmp_path / "checkpoint")
    assert killed_at < FILES - 1, "it was not in the middle"
    process = start(tmp_path, "--available-now")
    assert process.wait(WAIT_S) == 0, (tmp_path / "log").read_text()
    assert_alerts_are_those_of_replay(spark, tmp_path)
    _, totals = read_progress(tmp_path / "checkpoint")
    assert totals["events"] == totals["records"] == len(lines), "totals go on over the restart"
    assert all(is_audit(line) for line in written(tmp_path / "checkpoint" / "dead_letters"))


@pytest.mark.slow
def test_a_job_sees_an_outage_of_brokers_and_outlives_it(tmp_path: Path) -> None:
    """Brokers that stop for less than its half minute make the job unhealthy, and it continues afterwards."""
    lines, port = list(morning()), free_port()
    with RealKafka() as kafka:
        kafka.create("payments", 2)
        kafka.send("payments", [{"value": line, "partition": 0} for line in lines[:500]])
        source = ("--bootstrap-servers", kafka.address, "--topic", "payments")
        process = start(tmp_path, "--listen", str(port), "--log", "json", source=source)
        wait_for(lambda: status(port, "/health") == 200 and "cep_events_total 500.0" in lines_of_metrics(port))
        assert kafka._process is not None
        kafka._process.send_signal(signal.SIGSTOP)
        wait_for(lambda: status(port, "/health") == 503)
        assert status(port, "/live") == 200
        assert 'cep_part_up{part="brokers"} 0.0' in lines_of_metrics(port)
        kafka._process.send_signal(signal.SIGCONT)
        wait_for(lambda: status(port, "/health") == 200)
        kafka.send("payments", [{"value": line, "partition": 1} for line in lines[500:]])
        wait_for(lambda: f"cep_events_total {len(lines)}.0" in lines_of_metrics(port))
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0, (tmp_path / "log").read_text()
    log_lines = [orjson.loads(line) for line in (tmp_path / "log").read_bytes().splitlines() if line.startswith(b"{")]
    assert [line["event"] for line in log_lines if line.get("part") == "brokers"] == ["unhealthy", "healthy"]


@pytest.mark.slow
def test_a_job_outlives_an_outage_that_is_longer_than_a_query_waits(tmp_path: Path) -> None:
    """The query ends after half a minute without brokers; the driver starts it again until they are back."""
    (before, between, behind), end = sent_in_parts(3)
    expected_alerts = expected([*before, *between, *behind, end], deployment(), tmp_path)
    port, log = free_port(), tmp_path / "log"
    with RealKafka() as kafka:
        kafka.create("payments", 2)
        kafka.send("payments", [{"value": line, "partition": 0} for line in before])
        kafka.send("payments", [{"value": before[0], "partition": 1}])
        source = ("--bootstrap-servers", kafka.address, "--topic", "payments")
        process = start(tmp_path, "--listen", str(port), "--log", "json", "--dedup", "1 d", source=source)
        is_read = f"cep_events_total {len(before) + 1}.0"
        wait_for(lambda: status(port, "/health") == 200 and is_read in lines_of_metrics(port))
        kafka.send("payments", [{"value": line, "partition": 0} for line in between])
        kafka.kill()
        wait_for(lambda: b"query_restarts" in log.read_bytes())
        assert process.poll() is None
        assert (status(port, "/live"), status(port, "/health")) == (200, 503)
        kafka.start()
        kafka._producer = None
        wait_for(lambda: status(port, "/health") == 200)
        kafka.send("payments", [{"value": line, "partition": n} for line in behind for n in (0, 1)])
        kafka.send("payments", [{"value": end, "partition": n} for n in (0, 1)])
        wait_for(lambda: len(alerts_in(tmp_path)) >= len(expected_alerts))
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0, log.read_text()
    ids = sorted(str(alert["alert_id"]) for alert in alerts_in(tmp_path))
    assert ids == sorted(orjson.loads(line)["alert_id"] for line in expected_alerts)


def alerts_in(folder: Path) -> list[dict[str, object]]:
    return list(read_alerts(folder / "alerts")) if (folder / "alerts").exists() else []


def workers() -> list[int]:
    """Return the Python processes of all live jobs, forked by our daemons."""
    words = ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="]
    process_list = subprocess.run(words, capture_output=True, check=True, text=True).stdout
    processes = [line.split(maxsplit=2) for line in process_list.splitlines()]
    loaded = {int(pid): int(parent) for pid, parent, args in processes if f"{daemon.MODULE} pyspark.worker" in args}
    return [pid for pid, parent in loaded.items() if parent in loaded]


@pytest.mark.slow
def test_a_worker_that_hangs_is_replaced(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("events", "control"):
        (tmp_path / name).mkdir()
    idle_s = 8
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[spark]\nconf = {{ "spark.python.worker.idleTimeoutSeconds" = "{idle_s}" }}\n')
    lines = payments(33)
    parts = split(lines, 2)
    write_file(tmp_path / "events" / "0.jsonl", parts[0], 0)
    before = workers()
    process = start(tmp_path, "--conf", str(settings))
    wait_for_batch(process, tmp_path, 0)
    hanging = [worker for worker in workers() if worker not in before]
    for worker in hanging:
        os.kill(worker, signal.SIGSTOP)
    write_file(tmp_path / "events" / "1.jsonl", parts[1], 1)
    time.sleep(1.5 * idle_s)
    for worker in hanging:  # a process that was asked to end in this time ends now
        os.kill(worker, signal.SIGCONT)
    wait_for_batch(process, tmp_path, 1)
    assert not set(hanging) <= set(workers())
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0, (tmp_path / "log").read_text()
    assert_alerts_are_those_of_replay(spark, tmp_path)


def test_what_a_job_tells_of_itself_a_clean_stop_and_no_other_job_in_its_place(tmp_path: Path) -> None:
    """Every metric of the runbook from a job that has late, repeated and broken records; the log has no payloads."""
    for name in ("events", "control"):
        (tmp_path / name).mkdir()
    lines = payments(32)
    late = orjson.dumps({**orjson.loads(lines[0]), "tx_id": "late", "event_time": "2020-01-01T00:00:00Z"})
    write_file(tmp_path / "events" / "0.jsonl", lines, 0)
    write_file(tmp_path / "events" / "1.jsonl", [*lines[-10:], late, b"{broken", b"[]"], 1)
    settings = ("--lateness", "1 min", "--dedup", "1 d")
    process = start(tmp_path, *settings, "--listen", "127.0.0.1:0", "--log", "json")
    wait_for_batch(process, tmp_path, 1)
    log_lines = [orjson.loads(line) for line in (tmp_path / "log").read_bytes().splitlines() if line.startswith(b"{")]
    (port,) = (line["port"] for line in log_lines if line["event"] == "started")
    deadline_s = time.monotonic() + WAIT_S
    values_by_name = metrics(f"127.0.0.1:{port}")
    while values_by_name["cep_micro_batch_id"] < 1 or "cep_state_bytes" not in values_by_name:
        assert time.monotonic() < deadline_s, values_by_name
        time.sleep(0.1)
        values_by_name = metrics(f"127.0.0.1:{port}")
    assert (values_by_name["cep_events_total"], values_by_name["cep_records_total"]) == (
        len(lines) + 11,
        len(lines) + 13,
    )
    assert (values_by_name["cep_late_events_total"], values_by_name["cep_duplicates_total"]) == (1, 10)
    assert sum(n for name, n in values_by_name.items() if name.startswith("cep_poison_total")) == 2
    alerts = Counter(f'{{rule="{a["rule_id"]}",version="{a["version"]}"}}' for a in read_alerts(tmp_path / "alerts"))
    assert alerts == {
        name.removeprefix("cep_alerts_total"): n for name, n in values_by_name.items() if "alerts_total" in name
    }
    for name in ("cep_runs", "cep_runs_expired_total", "cep_watermark_delay_seconds", "cep_state_bytes"):
        assert values_by_name[name] > 0, name
    phases = {"latestOffset", "addBatch", "walCommit", "commitOffsets", "matching", "sinks", "records"}
    assert phases <= phases_ms(values_by_name).keys()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as answer:
        assert missing(answer.read().decode(), is_embedded=False) == set(), "alert rules and the dashboard ask for it"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=WAIT_S) as answer:
        assert orjson.loads(answer.read())["healthy"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0, (tmp_path / "log").read_text()
    log = (tmp_path / "log").read_text()
    assert "ended" in {orjson.loads(line)["event"] for line in log.splitlines() if line.startswith("{")}
    assert "broken" not in log
    assert orjson.loads(lines[0])["card_id"] not in log
    assert not readable_by_others(tmp_path / "checkpoint", tmp_path / "alerts")
    process = start(tmp_path, "--lateness", "10 s")
    assert process.wait(WAIT_S) == 2
    assert "belongs to a job with other lateness" in (tmp_path / "log").read_text()


POLL_S = 0.05
SMALL, LARGE = 0.5, 700.0


def payment(card: str, clock: str, amount: float) -> bytes:
    event = {"tx_id": uuid.uuid4().hex, "event_time": f"2026-03-01T{clock}Z", "card_id": card, "account_id": "a1"}
    return orjson.dumps({**event, "amount": amount, "status": "approved", "channel": "ecom", "country": "FR"})


def pair(card: str, clock: str) -> list[bytes]:
    """Return a small and a large payment half a minute apart, and a later one of another card that releases them."""
    return [payment(card, f"{clock}:00", SMALL), payment(card, f"{clock}:30", LARGE), payment("z", f"{clock}:59", 20.0)]


def start_on_topic(folder: Path, kafka: KafkaCluster, topic: str, *more: str) -> subprocess.Popen[bytes]:
    source = ("--bootstrap-servers", kafka.address, "--topic", topic, "--control", str(folder / "control"))
    return start(folder, "--cores", "1", "--idle", "10 s", *more, source=source, groups=2)


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


@pytest.mark.slow
def test_the_life_of_a_topic(real_broker: RealKafka, tmp_path: Path) -> None:
    # the mock has fixed partitions and cannot delete topics
    (tmp_path / "control").mkdir()
    topic, log = f"life-{uuid.uuid4().hex}", tmp_path / "log"
    real_broker.create(topic, 2)
    admin = AdminClient({"bootstrap.servers": real_broker.address})

    def alerted() -> set[str]:
        folder = tmp_path / "alerts"
        return {alert["key"] for alert in read_alerts(folder)} if folder.exists() else set()

    # The second partition falls silent an hour before the pair. It sends no heartbeat and delays no alert.
    send(real_broker, topic, [(1, payment("q", "09:00:00", 20.0)), *((0, line) for line in pair("c1", "10:00"))])
    process = start_on_topic(tmp_path, real_broker, topic)
    wait_until(lambda: alerted() == {"c1"}, process, log)
    add_partitions(real_broker, topic, 3)
    send(real_broker, topic, [(2, line) for line in pair("c2", "10:05")])
    wait_until(lambda: alerted() == {"c1", "c2"}, process, log)
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    assert process.wait(WAIT_S) == 3, log.read_text()
    assert last_error(log).startswith(f"cep: Kafka topic {topic} cannot be read on")
    for _ in range(200):  # the name becomes free some moments after the answer
        with contextlib.suppress(KafkaException):
            real_broker.create(topic, 3)
            break
        time.sleep(POLL_S)
    send(real_broker, topic, [(0, line) for line in pair("c3", "10:10")])
    process = start_on_topic(tmp_path, real_broker, topic)
    assert process.wait(WAIT_S) == Exit.FINAL, log.read_text()
    message = last_error(log)
    assert message.startswith(f"cep: topic {topic} was deleted and created again")
    assert message.endswith("start with a new checkpoint directory")
    assert alerted() == {"c1", "c2"}


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


@pytest.mark.slow
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
        process = start_on_topic(
            tmp_path, kafka_broker, topic, "--conf", str(tmp_path / "cep.toml"), *words, "--available-now"
        )
        assert process.wait(WAIT_S) == 1, (tmp_path / "log").read_text()  # more records than the default allows
    assert [alert["key"] for alert in read_alerts(tmp_path / "alerts")] == ["c1"]
    lines = written(tmp_path / "checkpoint" / "dead_letters")
    assert [orjson.loads(line)["code"] for line in lines if not is_audit(line)] == ["unreadable"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["avro", "json"])
def test_a_job_over_a_real_registry(form: str, apicurio: str, kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    topic, lines = f"{form}-{uuid.uuid4().hex[:8]}", list(day())
    kafka_broker.create(topic)
    kafka_broker.send(topic, [{"value": value, "partition": 0} for value in values_of(form, apicurio, topic, lines)])
    (tmp_path / "cep.toml").write_text(f"[events.registry]\nurl = {json.dumps(apicurio)}\n")
    run_process(
        tmp_path, "--conf", tmp_path / "cep.toml", "--rules", ROOT / "rules", "--bootstrap-servers",
        kafka_broker.address, "--topic", topic, "--format", form, "--checkpoint", tmp_path / "job", "--alerts",
        tmp_path / "alerts", "--key-groups", 4, "--available-now",
    )  # fmt: skip
    assert sorted(written(tmp_path / "alerts")) == sorted(expected(lines, deployment(), tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("listener", ["login", "mutual"])
def test_a_job_over_tls(
    listener: str, secure: SecureKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    output_of: OutputOf,
) -> None:  # fmt: skip
    events, alerts = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("events", "alerts"))
    for topic in (events, alerts):
        secure.create(topic, 1)
    lines = list(morning())
    secure.send(events, [{"value": line, "partition": 0} for line in lines])
    client = secure.login_settings() if listener == "login" else secure.mutual_settings()
    conf = settings_file(tmp_path, client, monkeypatch)
    run_process(
        tmp_path, "--conf", conf, "--rules", ROOT / "rules", "--bootstrap-servers", getattr(secure, listener),
        "--topic", events, "--alerts", f"kafka:{alerts}", "--checkpoint", tmp_path / "job", "--key-groups", 4,
        "--available-now",
    )  # fmt: skip
    print((tmp_path / "log").read_text())
    shown(tmp_path, output_of)
    expected_alerts = sorted(expected(lines, deployment(), tmp_path))
    assert (
        sorted(consumed(secure.address, alerts, lambda values: len(values) >= len(expected_alerts))) == expected_alerts
    )
