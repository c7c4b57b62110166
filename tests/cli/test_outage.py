"""Jobs on a real broker: outages, deleted records, a backlog, secure connections, and a standby."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from cep.base.exits import Exit
from cep.cli.main import main
from tests.cli.test_run import RULES, asked, free_port
from tests.output_of import OutputOf
from tests.real_kafka import TIMEOUT_S, KafkaCluster, NoBrokerError, RealKafka, SecondBroker
from tests.runners.embedded.cases import day, deployment, expected, morning
from tests.runners.embedded.test_run import ROOT, consumed, start
from tests.secure_kafka import PASSWORD, STORE_PASSWORD, SecureKafka
from tests.spark_versions import on_this_spark

# A broker is stopped, killed for longer than any wait, then accepts no alerts: the job sees it, and loses none.

OUTAGE_S = 40  # longer than a client waits for an answer
WAIT_S = 300  # on a machine that compiles the kernels first


def status(port: int, path: str) -> int:
    return asked(port, path)[0]


def metrics(port: int) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines: list[str] = answer.read().decode().splitlines()
        return lines


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@pytest.mark.slow
def test_a_job_that_starts_without_a_broker_says_so_and_goes_on_with_it(tmp_path: Path) -> None:
    """The job waits for half a minute; then it ends with the reason, and its platform starts it again."""
    lines, port = list(morning()), free_port()
    with RealKafka() as kafka:
        kafka.create("payments", 1)
        kafka.send("payments", [{"value": line, "partition": 0} for line in lines])
        kafka.stop()
        process = start(
            "--rules", str(ROOT / "rules"), "--bootstrap-servers", kafka.address, "--topic", "payments",
            "--alerts", str(tmp_path / "alerts"), "--checkpoint", str(tmp_path / "job"),
            "--listen", str(port), "--log", "json",
        )  # fmt: skip
        try:
            wait_for(lambda: status(port, "/health") == 503)
            assert (status(port, "/live"), status(port, "/ready")) == (200, 503)
            kafka.start()
            wait_for(lambda: status(port, "/health") == 200)
            wait_for(lambda: f"cep_events_total {len(lines)}.0" in metrics(port))
            wait_for(lambda: status(port, "/ready") == 200)  # the next look at the topic sees that it is read
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=WAIT_S)
            assert process.returncode == 0, log.decode()
            kafka.stop()
            again = start(
                "--rules", str(ROOT / "rules"), "--bootstrap-servers", kafka.address, "--topic", "payments",
                "--alerts", str(tmp_path / "alerts"), "--checkpoint", str(tmp_path / "job"),
            )  # fmt: skip
            _, complaint = again.communicate(timeout=WAIT_S)
            assert again.returncode == 3
            assert f"Kafka at {kafka.address} gave no" in complaint.decode()
        finally:
            process.kill()
    log_lines = [orjson.loads(line) for line in log.splitlines()]
    assert [line["event"] for line in log_lines if line.get("part") == "brokers"] == ["unhealthy", "healthy"]
    assert [line["event"] for line in log_lines][-1] == "ended"


def sent_in_parts(count: int) -> tuple[list[list[bytes]], bytes]:
    """Return the events of a day in parts, and a later event that releases waiting ones."""
    lines = list(day())
    end = orjson.dumps({**orjson.loads(lines[-1]), "tx_id": "end", "event_time": "2026-06-01T00:00:00Z"})
    bounds = [number * len(lines) // count for number in range(count + 1)]
    return [lines[first:last] for first, last in pairwise(bounds)], end


def wait_for_all_of(port: int, events: int) -> None:
    """Wait until a job has read so many events, and its sinks have their alerts."""
    wait_for(lambda: {f"cep_events_total {events}.0", "cep_undelivered_alerts 0.0"} <= set(metrics(port)))


def verify_end(
    process: subprocess.Popen[bytes], kafka: RealKafka, expected_alerts: list[bytes]
) -> dict[str, list[str]]:
    """Check that the job ends well and its topic has each alert once. Return the job's log events by part."""
    alerts = consumed(kafka.address, "alerts", lambda values: len(values) >= len(expected_alerts))
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, log.decode()
    assert sorted(alerts) == expected_alerts
    events_by_part: dict[str, list[str]] = {}
    for line in map(orjson.loads, log.splitlines()):
        events_by_part.setdefault(line.get("part", ""), []).append(line["event"])
    return events_by_part


@pytest.mark.slow
def test_a_job_sees_outages_and_outlives_them(tmp_path: Path) -> None:
    (before, between, behind), end = sent_in_parts(3)
    expected_alerts = sorted(expected([*before, *between, *behind, end], deployment(), tmp_path))
    port = free_port()
    with RealKafka() as kafka:
        for topic in ("payments", "alerts"):
            kafka.create(topic, 1)
        process = start_with_topics(kafka, tmp_path / "job", port)
        try:
            for number, part in enumerate((before, between)):
                kafka.send("payments", [{"value": line, "partition": 0} for line in part])
                wait_for(lambda: status(port, "/health") == 200)
                wait_for_all_of(port, len(before) + number * len(between))
                assert kafka._process is not None
                kafka._process.send_signal(signal.SIGSTOP) if number == 0 else kafka.kill()
                wait_for(lambda: status(port, "/health") == 503)
                threading.Event().wait(5 if number == 0 else OUTAGE_S)
                assert (status(port, "/live"), status(port, "/ready")) == (200, 200)
                if number == 0:
                    kafka._process.send_signal(signal.SIGCONT)
                else:
                    kafka.start()
                    kafka._producer = None
                wait_for(lambda: status(port, "/health") == 200)
            kafka.send("payments", [{"value": line, "partition": 0} for line in (*behind, end)])
            events_by_part = verify_end(process, kafka, expected_alerts)
        finally:
            process.kill()
    assert events_by_part["brokers"] == ["unhealthy", "healthy"] * 2


@pytest.mark.slow
def test_a_topic_that_takes_no_alerts_makes_a_job_unready(tmp_path: Path) -> None:
    (before, behind), end = sent_in_parts(2)
    expected_alerts = sorted(expected([*before, *behind, end], deployment(), tmp_path))
    port = free_port()
    with ExitStack() as brokers:
        kafka = brokers.enter_context(RealKafka())
        kafka.create("payments", 1)  # on the first broker, before the other starts
        second = brokers.enter_context(SecondBroker(kafka))
        second.create_on_both("alerts")
        process = start_with_topics(kafka, tmp_path / "job", port)
        try:
            kafka.send("payments", [{"value": line, "partition": 0} for line in before])
            wait_for(lambda: status(port, "/health") == 200)
            wait_for_all_of(port, len(before))
            second.stop()
            kafka.send("payments", [{"value": line, "partition": 0} for line in (*behind, end)])
            wait_for(lambda: status(port, "/ready") == 503)
            assert (status(port, "/live"), status(port, "/health")) == (200, 503)
            wait_for(lambda: "cep_deliveries_retried_total 1.0" in metrics(port))
            assert status(port, "/ready") == 503
            second.start()
            wait_for(lambda: (status(port, "/ready"), status(port, "/health")) == (200, 200))
            events_by_part = verify_end(process, kafka, expected_alerts)
        finally:
            process.kill()
    assert events_by_part["sinks"] == ["unhealthy", "healthy"]


def start_with_topics(kafka: RealKafka, checkpoint: Path, port: int) -> subprocess.Popen[bytes]:
    """Start a job from the topic `payments` into the topic `alerts`."""
    return start(
        "--rules", str(ROOT / "rules"), "--bootstrap-servers", kafka.address, "--topic", "payments",
        "--alerts", "kafka:alerts", "--checkpoint", str(checkpoint), "--listen", str(port), "--log", "json",
    )  # fmt: skip


# A topic that was created again, and records that its retention has deleted: both runners end with the final code.

RUNNERS = ["run", pytest.param("live", marks=[pytest.mark.spark, pytest.mark.slow])]


def work(verb: str, kafka: KafkaCluster, folder: Path, topic: str, *more: str) -> tuple[int, str]:
    """Let a job read the available events. Return its exit code and its output."""
    words = (
        verb, "--rules", str(ROOT / "rules"), "--bootstrap-servers", kafka.address, "--topic", topic,
        "--checkpoint", str(folder / "job"), "--alerts", str(folder / "alerts"), "--key-groups", "2",
        "--available-now", *more,
    )  # fmt: skip
    process = subprocess.run(
        [sys.executable, "-c", "import sys; from cep.cli.main import main; sys.exit(main())", *words],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=WAIT_S, env=on_this_spark(),
    )  # fmt: skip
    return process.returncode, process.stderr


def delete_records(kafka: KafkaCluster, topic: str, offset: int) -> None:
    """Delete the records before an offset, as the retention of the topic does."""
    admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 2})
    place = TopicPartition(topic, 0, offset)
    admin.delete_records([place])[place].result(TIMEOUT_S)


@pytest.mark.parametrize("verb", RUNNERS)
@pytest.mark.parametrize("fault", ["created again", "gone"])
def test_a_fault_that_a_restart_cannot_mend_has_a_code_of_its_own(
    verb: str, fault: str, real_broker: RealKafka, tmp_path: Path
) -> None:  # the mock cannot delete
    topic, lines = f"exits-{uuid.uuid4().hex[:8]}", morning()[:300]
    real_broker.create(topic, 1)
    real_broker.send(topic, [{"value": line} for line in lines[:100]])
    assert work(verb, real_broker, tmp_path, topic)[0] == Exit.CLEAN
    if fault == "created again":
        real_broker.create_again(topic, 1)
    real_broker.send(topic, [{"value": line} for line in lines[100:]])
    if fault == "gone":
        delete_records(real_broker, topic, 200)
    for _ in range(2):  # a restart ends in the same way
        code, printed = work(verb, real_broker, tmp_path, topic)
        assert code == Exit.FINAL, printed
        assert fault in printed
    if fault == "created again":
        return
    if verb == "live":
        code, printed = work(verb, real_broker, tmp_path, topic, "--accept-gap")
        assert (code, "cep job savepoint" in printed) == (Exit.USAGE, True), printed
        return
    # An operator decides to continue.
    code, printed = work(verb, real_broker, tmp_path, topic, "--accept-gap")
    assert code == Exit.CLEAN, printed
    totals = orjson.loads((tmp_path / "job" / "progress.json").read_bytes())["totals"]
    assert (totals["records_gone"], totals["records"]) == (100, 200)
    assert work(verb, real_broker, tmp_path, topic)[0] == Exit.CLEAN, "it is decided once"


# A job with a backlog: /ready and /health agree, and the lag is known.

STOP_S = 60


@pytest.mark.parametrize("runner", ["run", pytest.param("live", marks=[pytest.mark.spark, pytest.mark.slow])])
def test_a_job_with_a_backlog_is_not_ready_and_says_how_much_waits(
    runner: str, kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    """During the work on the backlog, every answer has the lag, and both pages agree."""
    topic, port, answers = f"backlog-{uuid.uuid4().hex[:8]}", free_port(), list[dict[str, Any]]()
    kafka_broker.create(topic, 1)
    lines = day()
    kafka_broker.send(topic, ({"value": line, "partition": 0} for line in lines))

    def ask(process: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert process.poll() is None, process.stderr.read() if process.stderr is not None else ""
        code, text = asked(port, "/health")
        return dict(json.loads(text)) if code else {"ready": False, "lag_records": None}  # it does not listen yet

    words = (
        "--rules", RULES, "--bootstrap-servers", kafka_broker.address, "--topic", topic,
        "--max-records", "20" if runner == "run" else str(len(lines) // 3),
        "--checkpoint", str(tmp_path / "job"), "--alerts", str(tmp_path / "alerts"), "--listen", str(port),
    )  # fmt: skip
    process = start(*words) if runner == "run" else start_live(*words)
    try:
        while not answers or not answers[-1]["ready"]:
            answers.append(ask(process))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=STOP_S)
    finally:
        process.kill()
    assert process.returncode == 0
    lags = [answer["lag_records"] for answer in answers if answer["lag_records"] is not None]
    assert lags[-1] == 0
    assert max(lags) > 0, "a backlog was seen"
    assert all(answer["lag_records"] is not None for answer in answers if answer["ready"])
    if runner == "live":
        first = [answer for answer in answers if answer.get("batch_id") == -1]
        assert any((answer["lag_records"] or 0) > 0 for answer in first), "known before the first micro-batch"
        assert not any(answer["ready"] for answer in first)


def start_live(*words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from cep.cli.main import entry; entry()", "live", *words]
    return subprocess.Popen(command, env={**on_this_spark(), "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE)


# TLS, a password, a client's certificate, on a real broker: wrong settings give a message without secrets.

SECRETS = ("sasl.password", "ssl.keystore.password")


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    try:
        with SecureKafka(tmp_path_factory.mktemp("certificates")) as kafka:
            yield kafka
    except NoBrokerError as error:
        raise pytest.skip.Exception(str(error)) from error


def settings_file(folder: Path, client: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a settings file whose secrets are in the environment."""
    lines = ["[kafka.client]"]
    for name, value in client.items():
        variable = name.upper().replace(".", "_")
        if name in SECRETS:
            monkeypatch.setenv(variable, value)
        lines.append(f'"{name}" = "{f"env:{variable}" if name in SECRETS else value}"')
    path = folder / "cep.toml"
    path.write_text("\n".join(lines))
    return path


def shown(folder: Path, output_of: OutputOf) -> str:
    """Return the job's messages; check that none of its files has a secret."""
    for path in folder.rglob("*"):
        if path.is_file():
            assert not any(secret.encode() in path.read_bytes() for secret in (PASSWORD, STORE_PASSWORD)), path
    printed = output_of.read()
    assert not any(secret in printed.out + printed.err for secret in (PASSWORD, STORE_PASSWORD, "wrong-5512"))
    return printed.err


@pytest.mark.parametrize("listener", ["login", "mutual"])
def test_a_job_over_tls(
    listener: str, secure: SecureKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    output_of: OutputOf,
) -> None:  # fmt: skip
    events, alerts, control = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("events", "alerts", "control"))
    for topic in (events, alerts):
        secure.create(topic, 1)
    lines = list(morning())
    secure.send(events, [{"value": line, "partition": 0} for line in lines])
    client = secure.login_settings() if listener == "login" else secure.mutual_settings()
    arguments = [
        "run", "--conf", str(settings_file(tmp_path, client, monkeypatch)), "--rules", str(ROOT / "rules"),
        "--bootstrap-servers", getattr(secure, listener), "--topic", events, "--alerts", f"kafka:{alerts}",
        "--control-topic", control, "--status-topic", f"{control}-status", "--changelog", f"{control}-state",
        "--checkpoint", str(tmp_path / "job"), "--available-now",
    ]  # fmt: skip
    assert main(arguments) == 0
    shown(tmp_path, output_of)
    expected_alerts = sorted(expected(lines, deployment(), tmp_path))
    assert expected_alerts
    assert (
        sorted(consumed(secure.address, alerts, lambda values: len(values) >= len(expected_alerts))) == expected_alerts
    )


@pytest.mark.parametrize(
    ("listener", "client", "reason"),
    [
        ("login", {"ssl.ca.location": "other-ca.pem"}, "certificate does not count: unable to get local issuer"),
        ("login", {"sasl.password": "wrong-5512"}, "invalid credentials with SASL mechanism SCRAM-SHA-512"),
        ("expired", {}, "the broker's certificate does not count: certificate has expired"),
        ("mutual", {"security.protocol": "SSL"}, "takes no client without a certificate that it trusts"),
        ("login", {"ssl.ca.location": "none.pem"}, "ssl.ca.location"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_at_once(
    listener: str, client: dict[str, str], reason: str, secure: SecureKafka, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, output_of: OutputOf,
) -> None:  # fmt: skip
    client_settings = {**secure.login_settings(), **client}
    client_settings["ssl.ca.location"] = str(secure.certificates / Path(client_settings["ssl.ca.location"]).name)
    conf = settings_file(tmp_path, client_settings, monkeypatch)
    fixed = ["--conf", str(conf), "--bootstrap-servers", getattr(secure, listener), "--control-topic", "control"]
    for verb in (["run", "--rules", str(ROOT / "rules"), "--topic", "events"], ["job", "heartbeat"]):
        assert main([*verb, *fixed]) == Exit.USAGE
        assert reason in shown(tmp_path, output_of)


# `cep run --standby`: one of two processes works. The other takes its place, and no alert is lost or doubled.

OPERATING_ERROR = 3
PARTITIONS = 1  # with more partitions, those without events would delay the watermark until they are idle


@dataclass
class Member:
    """A process of the job, on its own machine: it has only its folder."""

    process: subprocess.Popen[bytes]
    log: Path

    def lines(self) -> list[dict[str, Any]]:
        whole = self.log.read_bytes().rpartition(b"\n")[0].splitlines()
        return [orjson.loads(line) for line in whole if line.startswith(b"{")]

    def says(self, event: str) -> bool:
        return any(line["event"] == event for line in self.lines())

    def wait_for(self, event: str) -> None:
        """Wait until the process logs the event."""
        deadline_s = time.monotonic() + WAIT_S
        while not self.says(event):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline_s, self.log.read_text()
            time.sleep(0.05)

    def ended(self) -> int:
        return self.process.wait(WAIT_S)


@dataclass
class Job:
    """A job that several processes may work on."""

    kafka: KafkaCluster
    folder: Path
    events: str
    alerts: str
    state: str

    def start(self, name: str, *more: str) -> Member:
        arguments = [
            "run", "--rules", str(ROOT / "rules"), "--bootstrap-servers", self.kafka.address, "--topic", self.events,
            "--alerts", f"kafka:{self.alerts}", "--checkpoint", str(self.folder / name / "job"), "--changelog",
            self.state, "--standby", "--max-records", "100", "--key-groups", "8", "--log", "json", *more,
        ]  # fmt: skip
        log = self.folder / f"{name}-{uuid.uuid4().hex[:4]}.log"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with log.open("wb") as file:
            command = [sys.executable, "-c", "from cep.cli.main import entry; entry()"]
            return Member(subprocess.Popen([*command, *arguments], env=environment, stderr=file), log)

    def send(self, lines: list[bytes]) -> None:
        self.kafka.send(self.events, [{"value": line, "partition": 0} for line in lines])

    def committed(self) -> list[bytes]:
        """Return all alerts that a reader of committed records gets now, sorted."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka.address,
                "group.id": uuid.uuid4().hex,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([TopicPartition(self.alerts, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        values, ends = list[bytes](), 0
        while ends < PARTITIONS:
            for message in consumer.consume(1_000, 0.2):
                error, value = message.error(), message.value()
                ends += error is not None and error.code() == KafkaError._PARTITION_EOF
                if error is None and value is not None:
                    values.append(value)
        consumer.close()
        return sorted(values)

    def wait_for_alerts(self, least: int) -> None:
        wait_for(lambda: len(self.committed()) >= least)


def job_of(kafka: KafkaCluster, folder: Path) -> Job:
    events, alerts, state = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("events", "alerts", "state"))
    for topic in (events, alerts):
        kafka.create(topic, PARTITIONS)
    return Job(kafka, folder, events, alerts, state)


def test_a_standby_needs_a_changelog(output_of: OutputOf, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    arguments = ["--rules", str(ROOT / "rules"), "--events", str(tmp_path / "events"), "--checkpoint", str(tmp_path)]
    assert "--standby needs --changelog TOPIC" in output_of(main(["run", *arguments, "--standby"]), Exit.USAGE).err


def parted(members: Sequence[Member]) -> Sequence[Member]:
    """Return the two new processes: the one with the lease, which works, and the one that is ready to follow."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        for at_work, waits in (members, members[::-1]):
            if at_work.says("started") and waits.says("standby_ready"):
                return at_work, waits
        for member in members:
            assert member.process.poll() is None, member.log.read_text()
            assert time.monotonic() < deadline_s, member.log.read_text()
        time.sleep(0.05)


@pytest.mark.parametrize("ending", ["stopped", pytest.param("killed", marks=pytest.mark.slow)])
def test_a_standby_takes_over(ending: str, real_broker: RealKafka, tmp_path: Path) -> None:  # the mock has no fence
    """The first process is killed; or it is stopped in its work, and continues after another one has taken over."""
    job, lines = job_of(real_broker, tmp_path), list(day()[3_000:5_000])  # with many alerts
    job.send(lines[: len(lines) // 4])
    members = [job.start(name) for name in ("one", "two")]  # both at once, which saves a start
    try:
        expected_alerts = sorted(expected(lines, deployment(), tmp_path))
        at_work, waits = parted(members)
        job.send(lines[len(lines) // 4 :])
        job.wait_for_alerts(1)
        at_work.process.send_signal(signal.SIGSTOP if ending == "stopped" else signal.SIGKILL)
        began_s = time.monotonic()
        waits.wait_for("took_over")
        took_s = time.monotonic() - began_s
        job.wait_for_alerts(len(expected_alerts) - 1)
        print(f"{ending}: took over after {took_s:.1f} s, all alerts after {time.monotonic() - began_s:.1f} s")
        if ending == "stopped":
            at_work.process.send_signal(signal.SIGCONT)
            assert at_work.ended() == OPERATING_ERROR
            assert "another process" in at_work.log.read_text()
        waits.process.send_signal(signal.SIGTERM)
        assert waits.ended() == 0, waits.log.read_text()
    finally:
        for member in members:
            member.process.kill()
    assert job.committed() == expected_alerts


@pytest.mark.slow
def test_the_work_goes_back_and_forth(real_broker: RealKafka, tmp_path: Path) -> None:
    """Processes are killed, ended in order or stopped, each time with the other one ready, with an older store."""
    job, lines, parts = job_of(real_broker, tmp_path), list(day()), 6
    expected_alerts = sorted(expected(lines, deployment(), tmp_path))
    at_work = job.start("one")
    members = [at_work]
    try:
        at_work.wait_for("started")
        waits = job.start("two")
        members.append(waits)
        for part in range(parts):
            at_work.wait_for("started")
            waits.wait_for("standby_ready")
            job.send(lines[part * len(lines) // parts : (part + 1) * len(lines) // parts])
            time.sleep(0.3)
            at_work.process.send_signal((signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)[part % 3])
            waits.wait_for("took_over")
            at_work.process.send_signal(signal.SIGCONT)
            at_work.ended()
            name = at_work.log.name.split("-")[0]
            at_work, waits = waits, job.start(name)
            members.append(waits)
        at_work.wait_for("started")
        waits.wait_for("standby_ready")
        job.wait_for_alerts(len(expected_alerts))
        for member in (waits, at_work):
            member.process.send_signal(signal.SIGTERM)
            assert member.ended() == 0, member.log.read_text()
    finally:
        for member in members:
            member.process.kill()
    assert job.committed() == expected_alerts
