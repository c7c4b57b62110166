"""The embedded live job: rules that come during the run, both ways of delivery, Kafka to Kafka and killed.

Records out of order, twice, late or broken, in several partitions, give the replay of the good events; the same check
on Spark and Kafka has the same streams. A job keeps its state when fields of its events are added, dropped or become
nullable. One process of several has the lease; another one gets it if the owner gives it back or falls silent.
"""

import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import orjson
import pyarrow as pa
import pytest
from confluent_kafka import Consumer

from cep.base.errors import SinkError
from cep.base.limits import LEASE_MS
from cep.base.process import Closing
from cep.base.text import utc_text
from cep.cli.main import main
from cep.model.settings import Settings
from cep.rulebook.deploy import deploy
from cep.rulebook.rulebook import Rulebook
from cep.runners.embedded import job as embedded_job
from cep.runners.embedded import replay as embedded
from cep.runners.embedded.changelog import Changelog
from cep.runners.embedded.commit import DELIVERED, Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.kafka import Lease
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.run import Listener, Pace, Runner
from cep.runners.live_checkpoint import open_checkpoint
from cep.runners.observe import Log, Observed
from cep.runners.output import BatchReport
from cep.sinks.base import TAKEN_OVER
from cep.sinks.files import DeadLetterFiles, FileSink
from cep.sinks.json_form import json_lines
from cep.sources.kafka import KafkaSettings
from cep.sources.live.base import Chunk, Positions
from cep.sources.live.files import FilesSource
from cep.sources.pieces import read_pieces
from cep.step.job import Job
from tests.plain_avro import plain_avro
from tests.real_kafka import KafkaCluster, NoBrokerError, RealKafka, new_topic
from tests.runners.embedded.cases import MINUTE_MS, day, deployment, expected, morning
from tests.runners.embedded.outside import Still, run_once
from tests.runners.spark import live_cases
from tests.runners.spark.live_kafka import mix
from tests.seeds import LATER, RELEASE

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


@pytest.mark.parametrize("at_once", [False, True])
def test_a_rule_that_is_published_while_the_job_runs(at_once: bool, tmp_path: Path) -> None:
    lines = list(day())
    noon_ms = live_cases.time_ms(lines[len(lines) // 2])
    later = [line for line in lines if live_cases.time_ms(line) >= noon_ms]
    first_rules = live_cases.rules()
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
            place(tmp_path / "control", "2.jsonl", [b"{", live_cases.END])
        elif totals["events"] == len(lines) - len(later) and not totals["control_applied"]:
            place(tmp_path / "control", "1.jsonl", [late_rule.to_json()])
        if totals["control_heartbeat"]:
            stop.set()

    runner = Runner(engine, sources, outlets, commits, Pace(interval_ms=20, sends_at_once=at_once), Listener(report))
    guard = threading.Timer(WAIT_S, stop.set)
    guard.start()
    runner.run(stop)
    guard.cancel()
    engine.close()
    commits.close()
    deployed = deployment([*first_rules.values(), late_rule])
    assert sorted(written(tmp_path / "alerts")) == sorted(expected(lines, deployed, tmp_path))
    assert (tmp_path / "job" / DELIVERED).exists(), "it has stopped in order, so a savepoint can be made"
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
    topic = new_topic(kafka_broker)
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
    lines = live_cases.disordered(list(day()), lateness_ms, seed=7)
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


LATENESS_MS = 90_000
DEDUP_MS = 86_400_000  # neighbouring records may be hours apart in event time


class Lanes(Still):
    """Partitions of a topic as lists; each poll gives some records of some of them."""

    def __init__(self, records: list[tuple[int, bytes]], partitions: int, random: np.random.Generator) -> None:
        self._lanes = {f"t[{p}]": [value for partition, value in records if partition == p] for p in range(partitions)}
        self._at: Positions = dict.fromkeys(self._lanes, 0)
        self._random = random

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        chunks = []
        for lane, values in self._lanes.items():
            position = self._at[lane]
            lane_values = values[position : position + int(self._random.integers(0, records_max))]
            if lane_values:
                chunks.append(Chunk(lane, pa.array(lane_values, pa.large_binary())))
                self._at[lane] += len(lane_values)
        return chunks

    def positions(self) -> Positions:
        return dict(self._at)

    def seek(self, positions: Mapping[str, int]) -> None:
        self._at.update(positions)

    def behind(self) -> dict[str, bool]:
        return {lane: self._at[lane] < len(values) for lane, values in self._lanes.items()}

    @property
    def ended(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("seed", "partitions", "lateness_ms"),
    [
        pytest.param(1, 4, LATENESS_MS, marks=LATER),
        pytest.param(2, 3, 0, marks=LATER),
        *(
            pytest.param(seed, 1 + seed % 4, LATENESS_MS * (seed % 2), marks=LATER if seed < 5 else RELEASE)
            for seed in range(3, 15)
        ),
    ],
)  # fmt: skip
def test_a_mix_of_everything_gives_what_replay_finds(
    seed: int, partitions: int, lateness_ms: int, tmp_path: Path
) -> None:
    random = np.random.default_rng(seed)
    lines = live_cases.payments(40 + seed)
    stream = mix(lines, seed, partitions, lateness_ms)
    rules_by_id = live_cases.rules()
    job = replace(live_cases.make_job(rules_by_id.values(), lateness_ms), dedup_ms=DEDUP_MS)
    initial = tuple(record.to_json() for record in rules_by_id.values())
    (tmp_path / "control").mkdir()
    for number in range(3):  # the second start and later ones have already read the records of the first phase
        sent = stream.first if number == 0 else [*stream.first, *stream.second]
        if number == 2:
            live_cases.write_file(tmp_path / "control" / "end.jsonl", [live_cases.END], 0)
        workers, pace = Workers(int(random.integers(1, 4))), Pace(records_max=int(random.integers(20, 800)))
        totals, _ = run_once(tmp_path, job, initial, workers, pace, events=Lanes(sent, partitions, random))
    alerts = [line for path in (tmp_path / "alerts").iterdir() for line in path.read_bytes().splitlines()]
    assert sorted(alerts) == sorted(expected(stream.clean, deployment(rules_by_id.values()), tmp_path))
    wrong = stream.wrong
    assert (totals["duplicates"], totals["late_events"]) == (wrong["duplicates"], wrong["late_events"])
    assert sum(n for name, n in totals.items() if name.startswith("poison[")) == wrong["poison"]
    bad = sum(wrong[name] for name in ("duplicates", "late_events", "reused_ids"))
    assert totals["events"] == len(stream.clean) + bad
    assert totals["reused_ids"] == wrong["reused_ids"]
    letters = [
        orjson.loads(line) for path in (tmp_path / "letters").iterdir() for line in path.read_bytes().splitlines()
    ]
    late = {letter["event_id"] for letter in letters if letter["code"] == "late"}
    assert len(late) == wrong["late_ids"]


NAMES = ("card_testing", "small_then_large", "rising_amounts")


def run(folder: Path, job: Job, initial: tuple[bytes, ...]) -> None:
    assert open_checkpoint(folder / "job", job, initial)[0] == initial
    totals, _ = run_once(folder, job, initial, Workers(2), Pace(records_max=300), backend="rocksdb")
    assert not any(name.startswith(("poison[", "runs_orphaned")) for name in totals)


def test_state_is_kept(tmp_path: Path) -> None:
    rules_of_test = list(live_cases.rules(*NAMES).values())
    initial = tuple(record.to_json() for record in rules_of_test)
    deployment = deploy(rules_of_test)
    job = Job(deployment.schema, deployment.key_domains, 8, lateness_ms=LATENESS_MS)
    for name in ("events", "control"):
        (tmp_path / name).mkdir()
    lines = live_cases.disordered(morning(), LATENESS_MS, 5)
    half = len(lines) // 2
    for number in range(half, len(lines), 9):
        lines[number] = orjson.dumps({**orjson.loads(lines[number]), "amount": None, "device": "d"})
    live_cases.write_file(tmp_path / "events" / "0.jsonl", lines[:half], 0)
    run(tmp_path, job, initial)
    after = replace(job, schema=live_cases.changed_schema(job.schema))
    live_cases.write_file(tmp_path / "events" / "1.jsonl", lines[half:], 1)
    run(tmp_path, after, initial)
    alerts = [line for path in (tmp_path / "alerts").iterdir() for line in path.read_bytes().splitlines()]

    path = tmp_path / "history.jsonl"
    path.write_bytes(b"\n".join(lines))
    book = Rulebook(after.schema, after.domains)
    assert all(book.apply(record, None).kind == "applied" for record in rules_of_test)
    replayed = embedded.replay(replace(after, lateness_ms=0), book, read_pieces(path, after.schema), 1)
    assert not any(name.startswith("poison[") for name in replayed.counters)
    assert sorted(alerts) == sorted(json_lines(replayed.alerts))
    assert alerts


LEASE_WAIT_S = 60


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LEASE_WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_one_has_it_and_a_newcomer_does_not_take_it(real_broker: RealKafka) -> None:
    topic, is_lost = f"lease-{uuid.uuid4().hex[:8]}", threading.Event()
    real_broker.create(topic, 1, cleanup_policy="compact")
    settings = KafkaSettings(real_broker.address)
    first = Lease(settings, topic, is_lost.set)
    wait_for(first.is_here)
    with Lease(settings, topic) as second:
        threads = [thread for thread in threading.enumerate() if thread.name == "cep-lease"]
        assert len(threads) == 2
        time.sleep(2)  # the group admits the newcomer in this time
        assert first.is_here()
        assert not second.is_here()
        first.close()
        wait_for(second.is_here)
        assert not first.is_here()
        assert not is_lost.is_set()
        # As after a silence: by its own clock it is not sure, and the number shows that another process took the lease.
        second._valid_until_s = 0.0
        assert second._number is not None
        second._number -= 1
        wait_for(lambda: second._is_taken)
        with pytest.raises(SinkError, match="another process has taken over this job"):
            second.is_here()


class TakenLease(Closing):
    """A lease that stops its process, because another one has it, or does not."""

    def __init__(self, settings: object, topic: str, on_taken: Callable[[], None]) -> None:
        self.is_elsewhere, self.on_taken, self.is_taken = False, on_taken, False

    def is_here(self) -> bool:
        if self.is_taken:
            raise SinkError(TAKEN_OVER)
        return True

    def close(self) -> None:
        pass


def test_the_end_of_a_process_that_the_lease_stops_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Even if it has nothing to send any more, so that nothing asks the lease."""
    monkeypatch.setattr(embedded_job, "Lease", TakenLease)
    monkeypatch.setattr("cep.runners.embedded.job.source_kinds.kafka_client", lambda _: None)
    settings = cast("Settings", SimpleNamespace(embedded=SimpleNamespace(standby=True)))
    changelog, stop = cast("Changelog", SimpleNamespace(topic="state")), threading.Event()

    def work(is_taken: bool) -> None:
        store, log = StoreSettings(tmp_path), Log("json", io.StringIO())
        with embedded_job.wait_for_turn(settings, store, changelog, Observed(0), log, stop) as may_send:
            assert may_send()
            lease: TakenLease = cast("Any", may_send).__self__
            if is_taken:
                lease.is_taken = True
                lease.on_taken()

    work(is_taken=False)
    with pytest.raises(SinkError, match=TAKEN_OVER):
        work(is_taken=True)
    assert stop.is_set()


@pytest.mark.slow
def test_an_outage_longer_than_the_lease_takes_it_from_nobody() -> None:
    """No process is sure of the lease during the outage. Afterwards the owner continues."""
    try:
        kafka = RealKafka()
    except NoBrokerError as error:
        raise pytest.skip.Exception(str(error)) from error
    with kafka:
        kafka.create("lease", 1, cleanup_policy="compact")
        is_lost = threading.Event()
        with Lease(KafkaSettings(kafka.address), "lease", is_lost.set) as lease:
            wait_for(lease.is_here)
            for end in (kafka.kill, kafka.stop):
                end()
                wait_for(lambda: not lease.is_here())
                time.sleep(LEASE_MS / 1_000 + 3)
                assert not lease.is_here()
                kafka.start()
                wait_for(lease.is_here)
            assert not is_lost.is_set()
