"""The embedded live job: rules that come during the run, both ways of delivery, Kafka to Kafka and killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from confluent_kafka import Consumer

from cep.base.utc import utc_text
from cep.cli.main import main
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.run import BatchReport, Listener, Pace, Runner
from cep.sinks.dead_letters import DeadLetterFiles
from cep.sinks.files import FileSink
from cep.sources.live.files import FilesSource
from cep.step.job import Job
from tests.plain_avro import plain_avro
from tests.real_kafka import KafkaCluster, RealKafka
from tests.runners.embedded.cases import MINUTE_MS, day, deployment, expected
from tests.runners.spark.live_cases import END, disordered, rules, time_ms

ROOT = Path(__file__).parents[3]
GIVEN = deployment()
WAIT_S = 90


def written(folder: Path) -> list[bytes]:
    return [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


def place(folder: Path, name: str, lines: list[bytes]) -> None:
    """Write a file that appears whole."""
    folder.mkdir(exist_ok=True)
    (folder / f".{name}").write_bytes(b"\n".join(lines))
    (folder / f".{name}").rename(folder / name)


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize("at_once", [False, True])
def test_a_rule_that_is_published_while_the_job_runs(at_once: bool, tmp_path: Path) -> None:
    lines = list(day())
    noon_ms = time_ms(lines[len(lines) // 2])
    later = [line for line in lines if time_ms(line) >= noon_ms]
    first_rules = rules()
    late_rule = first_rules.pop("impossible_travel").model_copy(update={"effective_at": utc_text(noon_ms)})
    place(tmp_path / "events", "1.jsonl", lines[: len(lines) - len(later)])
    (tmp_path / "control").mkdir()
    job = Job(GIVEN.schema, GIVEN.key_domains, 8)
    commits = Commits(StoreSettings(tmp_path / "job", "rocksdb"))
    engine = Engine(job, tuple(r.to_json() for r in first_rules.values()), commits.store, Workers(2))
    sources = Sources(FilesSource(tmp_path / "events", follow=True), FilesSource(tmp_path / "control", follow=True))
    outlets = Outlets((FileSink(tmp_path / "alerts"),), DeadLetterFiles(tmp_path / "letters"))
    totals: Counter[str] = Counter()
    stop = threading.Event()

    def report(batch_report: BatchReport) -> None:
        """The next records depend on earlier reports, not on a clock."""
        totals.update(batch_report.counters)
        if batch_report.counters["control_applied"]:
            place(tmp_path / "events", "2.jsonl", later)
        elif totals["events"] == len(lines) and not totals["control_heartbeat"]:
            place(tmp_path / "control", "2.jsonl", [b"{", END])
        elif totals["events"] == len(lines) - len(later) and not totals["control_applied"]:
            place(tmp_path / "control", "1.jsonl", [late_rule.to_json()])
        if totals["control_heartbeat"]:
            stop.set()

    runner = Runner(engine, sources, outlets, commits, Pace(interval_ms=20, at_once=at_once), Listener(report))
    guard = threading.Timer(WAIT_S, stop.set)
    guard.start()
    runner.run(stop)
    guard.cancel()
    engine.close()
    commits.close()
    deployed = deployment([*first_rules.values(), late_rule])
    assert sorted(written(tmp_path / "alerts")) == sorted(expected(lines, deployed, tmp_path))
    assert [orjson.loads(line)["code"] for line in written(tmp_path / "letters")] == ["control_unreadable"]
    assert commits.totals.pop("alerts_delivered[sink 0]") == len(written(tmp_path / "alerts"))
    assert commits.totals == totals


def start(*arguments: str) -> subprocess.Popen[bytes]:
    script = "import sys; sys.modules['pyspark'] = None; from cep.cli.main import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", script, "run", *arguments], env=environment, stderr=subprocess.PIPE)


def consumed(address: str, topic: str, enough: Callable[[list[bytes]], bool]) -> list[bytes]:
    """Return the committed values of a topic, until there are enough."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    values: list[bytes] = []
    deadline_s = time.monotonic() + WAIT_S
    while not enough(values) and time.monotonic() < deadline_s:
        for message in consumer.consume(1_000, 0.2):
            value = message.value()
            if message.error() is None and value is not None:
                values.append(value)
    consumer.close()
    return values


def test_avro_from_a_topic(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    """The same module reads the values as for `cep live --format avro`."""
    events = [orjson.loads(line) for line in day()]
    fields = {name: value for event in events for name, value in event.items() if value is not None}
    kinds = {bool: "boolean", int: "long", float: "double", str: "string"}
    shown = [{"name": name, "type": ["null", kinds[type(value)]], "default": None} for name, value in fields.items()]
    schema = {"type": "record", "name": "Event", "fields": shown}
    (tmp_path / "event.avsc").write_bytes(orjson.dumps(schema))
    topic = f"avro-{uuid.uuid4().hex[:8]}"
    kafka_broker.create(topic)
    values = [*plain_avro(schema, events), b"\xff"]
    kafka_broker.send(topic, [{"value": value, "partition": 0} for value in values])
    arguments = [
        "run", "--rules", str(ROOT / "rules"), "--bootstrap-servers", kafka_broker.address, "--topic", topic,
        "--format", "avro", "--schema-file", str(tmp_path / "event.avsc"), "--checkpoint", str(tmp_path / "job"),
        "--alerts", str(tmp_path / "alerts"), "--available-now",
    ]  # fmt: skip
    assert main(arguments) == 0
    assert sorted(written(tmp_path / "alerts")) == sorted(expected(list(day()), GIVEN, tmp_path))
    (letter,) = written(tmp_path / "job" / "dead_letters")
    assert orjson.loads(letter)["code"] == "unreadable"


@pytest.mark.slow
def test_from_kafka_to_kafka_killed_at_any_time(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    """Processes of `cep run` are killed without notice; a reader of committed records sees every alert once."""
    lateness_ms = 10 * MINUTE_MS
    lines = disordered(list(day()), lateness_ms, seed=7)
    # A much later event in each partition, so that no alert waits for one.
    ends = [
        orjson.dumps({**orjson.loads(lines[-1]), "tx_id": f"end{n}", "event_time": "2026-06-01T00:00:00Z"})
        for n in range(4)
    ]
    events, alerts = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("events", "alerts"))
    for topic in (events, alerts):
        kafka_broker.create(topic)
    arguments = [
        "--rules", str(ROOT / "rules"), "--bootstrap-servers", kafka_broker.address, "--topic", events,
        "--alerts", f"kafka:{alerts}", "--checkpoint", str(tmp_path / "job"), "--lateness", f"{lateness_ms} ms",
        "--key-groups", "16", "--checkpoint-interval", "200 ms", "--max-records", "200",
    ]  # fmt: skip
    parts = [[*lines[lane::4], ends[lane]] for lane in range(4)]
    for number in range(4):
        # A quarter of each partition's records at a time.
        quarters = [part[number * len(part) // 4 : (number + 1) * len(part) // 4] for part in parts]
        kafka_broker.send(events, [{"value": v, "partition": p} for p, quarter in enumerate(quarters) for v in quarter])
        before = set((tmp_path / "job" / "checkpoints").glob("*.manifest"))
        process = start(*arguments)
        deadline_s = time.monotonic() + WAIT_S
        while number < 3 and time.monotonic() < deadline_s:
            if set((tmp_path / "job" / "checkpoints").glob("*.manifest")) - before:
                break
            time.sleep(0.02)
        if number < 3:
            process.kill()
            process.communicate()
    expected_alerts = sorted(expected([*day(), *ends], GIVEN, tmp_path))
    alerts_found = consumed(kafka_broker.address, alerts, lambda values: len(values) >= len(expected_alerts))
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, log.decode()
    assert b"the job goes on" in log
    if isinstance(kafka_broker, RealKafka):
        assert sorted(alerts_found) == expected_alerts
    else:  # the mock also shows uncommitted records
        assert sorted(set(alerts_found)) == expected_alerts


@pytest.mark.slow
def test_a_machine_that_is_lost_sends_no_alert_twice(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    """The job is killed after alerts that no checkpoint knows, and its folder is lost: the topic reports its alerts."""
    lines = list(day())
    events, alerts = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("events", "alerts"))
    for topic in (events, alerts):
        kafka_broker.create(topic)
    arguments = [
        "--rules", str(ROOT / "rules"), "--bootstrap-servers", kafka_broker.address, "--topic", events,
        "--alerts", f"kafka:{alerts}", "--checkpoint", str(tmp_path / "job"), "--key-groups", "16",
        "--checkpoint-target", str(tmp_path / "far"), "--checkpoint-interval", "1 h", "--max-records", "200",
    ]  # fmt: skip
    alerts_sent: list[bytes] = []
    for number in range(3):
        third = lines[number * len(lines) // 3 : (number + 1) * len(lines) // 3]
        kafka_broker.send(events, [{"value": line, "partition": 0} for line in third])
        if number > 0:
            process = start(*arguments)
            before = len(alerts_sent)
            alerts_sent = consumed(kafka_broker.address, alerts, lambda values, old=before: len(values) > old)  # type: ignore[misc]
            process.kill()
            process.communicate()
            assert len(alerts_sent) > before
            shutil.rmtree(tmp_path / "job")
        process = start(*arguments, "--available-now")
        _, log = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, log.decode()
        assert (b"the job goes on" in log) == (number > 0)
        alerts_sent = consumed(kafka_broker.address, alerts, lambda values: len(values) >= 5)
    expected_alerts = sorted(expected(lines, GIVEN, tmp_path))
    alerts_sent = consumed(kafka_broker.address, alerts, lambda values: len(values) >= len(expected_alerts))
    if kafka_broker.is_real:
        assert sorted(alerts_sent) == expected_alerts
