"""Kafka to Kafka, PostgreSQL and a webhook, killed: each gets all alerts of an uninterrupted run.

Readers of committed records and the table see each alert once. A webhook gets again the alerts of micro-batches that
were killed, under the same number and byte for byte, and no others. Without PostgreSQL its part is left out. Real
processes end by SIGKILL: the job with its Java, a Python worker, the broker.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import psycopg
import pytest
from confluent_kafka import OFFSET_END, Consumer, TopicPartition
from pyspark.sql import SparkSession

from cep.base.audit import Line, is_audit, verify
from cep.rulebook.files import read_rules
from cep.runners.live_checkpoint import read_progress
from tests.real_kafka import TIMEOUT_S, KafkaCluster, RealKafka
from tests.real_postgres import IS_THERE, RealPostgres
from tests.runners.spark.crash_job import OF_POSTGRES, PLACES
from tests.runners.spark.live_cases import END, ROOT, make_job, payments, replayed, rows, write_file
from tests.runners.spark.live_kafka import Mix, mix, send
from tests.spark_versions import on_this_spark
from tests.webhook import Webhook, url_of

pytestmark = pytest.mark.spark
WAIT_S = 900  # a shared machine may be slow
LATENESS_MS = 90_000
PARTITIONS = 3
EVENTS = 2_000
RECORDS_OF_KILLED = 50
MICRO_BATCH_S = 1.0  # about
POLL_S = 0.005
AFTER_THE_WEBHOOK = ("posted", "5", "6")  # steps after its delivery, before Spark knows of it
BEFORE_THE_SINKS = ("1", "2")  # from the third step on, each sink works independently, so the webhook may be ahead
# State, alerts and rows kill the job during that commit. The last victim is asked to end, and ends in order.
VICTIMS = ("driver", "worker", "broker", "state", "alerts", "rows", "stop")


def committed(kafka: KafkaCluster, topic: str) -> list[tuple[bytes | None, bytes]]:
    """Return (key, value) of all committed records of a topic."""
    settings = {"bootstrap.servers": kafka.address, "group.id": "reader", "log_level": 2, "enable.auto.commit": False}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    try:
        partitions = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        places = [TopicPartition(topic, partition, OFFSET_END) for partition in partitions]
        ends = {p.partition: p.offset for p in consumer.offsets_for_times(places, timeout=TIMEOUT_S)}
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        records: list[tuple[bytes | None, bytes]] = []
        give_up_s = time.monotonic() + TIMEOUT_S
        while any(place.offset < ends[place.partition] for place in consumer.position(places)):
            assert time.monotonic() < give_up_s, "the topic is not read to its end"
            records += [(m.key(), m.value() or b"") for m in consumer.consume(1_000, 0.2) if m.error() is None]
        return records
    finally:
        consumer.close()


def write_rules(folder: Path) -> None:
    """Write the rules of this repository, and one that fires in nearly every micro-batch."""
    folder.mkdir()
    shutil.copytree(ROOT / "patterns", folder.parent / "patterns")
    for path in (ROOT / "rules").glob("*.toml"):
        text = path.read_text()
        (folder / path.name).write_text(text)
        if path.stem == "small_then_large":
            chatty = text.replace('id = "small_then_large"', 'id = "chatty"').replace("1.00", "50.00")
            chatty = chatty.replace("500.00", "50.00").replace('"1 min"', '"2 h"')
            (folder / "chatty.toml").write_text(chatty)


@dataclass
class Deployed:
    """A job from topic to topics in its own folder; `records_max` bounds its micro-batches."""

    kafka: KafkaCluster
    folder: Path
    stream: Mix
    records_max: int
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)  # micro-batches that Spark repeats
    webhook: Webhook = field(default_factory=Webhook)

    def __post_init__(self) -> None:
        (self.folder / "control").mkdir(parents=True)
        write_rules(self.folder / "rules")
        # The last partition of a mix is quiet: after each start it would keep every event in time for as long as
        # --idle.
        for topic, count in (("events", PARTITIONS - 1), ("alerts", PARTITIONS), ("dead", PARTITIONS)):
            self.kafka.create(f"{topic}-{self.name}", count)
        send(self.kafka, f"events-{self.name}", [*self.stream.first, *self.stream.second])
        self.postgres = RealPostgres() if IS_THERE else None
        self.receiver = self.webhook.serve()
        (self.folder / "cep.toml").write_text('[output]\nwebhook = { "secret" = "of the test, known to both" }\n')

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def start(self, step: str = "0", batch_id: int = 0) -> subprocess.Popen[bytes]:
        """Start the job as the leader of a session and a process group that includes Spark's Java; see crash_job."""
        self.killed |= self.under_way
        words = (
            "live", "--conf", str(self.folder / "cep.toml"), "--rules", str(self.folder / "rules"),
            "--bootstrap-servers", self.kafka.address,
            "--topic", f"events-{self.name}", "--max-records", str(self.records_max),
            "--control", str(self.folder / "control"), "--checkpoint", str(self.checkpoint),
            *(word for sink in self.sinks for word in ("--alerts", sink)),
            "--dead-letter-topic", f"dead-{self.name}", "--key-groups", "8", "--lateness", "90 s", "--dedup", "1 d",
            "--available-now", "--rejected-max", "1",
            "--ahead-max", "off",  # otherwise the events of a backlog wait for its end, and the first alerts with them
        )  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.runners.spark.crash_job", step, str(batch_id), *words],
                start_new_session=True, cwd=ROOT, stdout=log, stderr=log, env=on_this_spark(),
            )  # fmt: skip
        self.started.append(process)
        return process

    def close(self) -> None:
        """End the remaining processes and servers."""
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        self.receiver.shutdown()
        self.receiver.server_close()
        if self.postgres is not None:
            self.postgres.close()

    @property
    def sinks(self) -> list[str]:
        """Return the sinks in the order in which a micro-batch reaches them."""
        table = [] if self.postgres is None else [self.postgres.address]
        return [f"kafka:alerts-{self.name}", *table, url_of(self.receiver)]

    @property
    def sent(self) -> int:
        return len(self.stream.first) + len(self.stream.second)

    @property
    def under_way(self) -> set[int]:
        """Return the micro-batch that Spark has planned and not ended (steps 1 to 7), if there is one."""
        query = self.checkpoint / "query"
        planned, ended = (
            max(map(version, (query / name).glob("[0-9]*")), default=-1) for name in ("offsets", "commits")
        )
        return {planned} if planned > ended else set()

    @property
    def is_at_work(self) -> bool:
        """Return whether the job is within a micro-batch."""
        return self.started[-1].poll() is None and bool(self.under_way)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def finish(self) -> None:
        """Run to the end, with a heartbeat that closes all windows: it counts once all records are read."""
        write_file(self.folder / "control" / "end.jsonl", [END], 0)
        assert self.start().wait(WAIT_S) == 0, self.log()

    def check(self, spark: SparkSession) -> None:
        """Check the topics: the alerts of the replay of the events that count, and every letter, each once."""
        rules_of_job, problems = read_rules(self.folder / "rules")
        assert problems == []
        clean = self.folder / "clean"
        clean.mkdir()
        write_file(clean / "events.jsonl", self.stream.clean, 0)
        replay_result = replayed(spark, clean, make_job(rules_of_job), rules_of_job)
        in_topic, expected_alerts = committed(self.kafka, f"alerts-{self.name}"), rows(replay_result.alerts)
        assert sorted(value for _, value in in_topic) == expected_alerts
        if self.postgres is not None:
            with psycopg.connect(self.postgres.address) as connection:
                table = connection.execute("select alert_id, alert::text from cep_alerts").fetchall()
            assert sorted(text.encode() for _, text in table) == expected_alerts
            assert [name for name, text in table if orjson.loads(text)["alert_id"] != name] == []
        assert sorted(self.webhook.lines.values()) == expected_alerts
        assert (self.webhook.changed, self.webhook.wrong_batches) == ([], [])
        assert self.webhook.again.keys() <= self.killed, "only what was killed comes again"
        assert [key for key, value in in_topic if orjson.loads(value)["alert_id"].encode() != key] == []
        lines = [value for _, value in committed(self.kafka, f"dead-{self.name}")]
        trail = sorted(line for line in lines if is_audit(line))
        assert len(trail) == len(set(trail)), "each line of the audit is there once"
        assert verify(Line("", line) for line in trail).problems == ()
        codes = Counter(orjson.loads(line)["code"] for line in lines if not is_audit(line))
        late = codes.pop("late", 0)
        assert codes.pop("reused_id", 0) == self.stream.wrong["reused_ids"]
        assert codes.total() == self.stream.wrong["poison"]
        _, totals = read_progress(self.checkpoint)
        assert totals["records"] == self.sent
        assert totals["duplicates"] == self.stream.wrong["duplicates"]
        assert totals["late_events"] == self.stream.wrong["late_events"]
        assert late >= totals["late_events"], "told once for each key"


def stream(seed: int) -> Mix:
    """Return the beginning of a stream with all faults."""
    return mix(payments(60 + seed)[:EVENTS], seed, PARTITIONS, LATENESS_MS)


def version(path: Path) -> int:
    """Return the number at the start of a file name in Spark's checkpoint directory; 0 for other files."""
    stem = path.name.split(".", maxsplit=1)[0].split("_", maxsplit=1)[0]
    return int(stem) if stem.isdigit() else 0


@pytest.fixture
def own_broker() -> Iterator[RealKafka]:
    with RealKafka() as kafka:
        yield kafka


def test_every_step_has_a_place_in_the_job() -> None:
    """Fast: a function that moves is missed here, not only by tests that take minutes."""
    assert [step for step, (_, owner, name) in PLACES.items() if not callable(getattr(owner, name))] == []


@pytest.mark.parametrize(
    "steps",
    [
        ("4", "posted"),
        pytest.param(("1", "2", "3", "4", "5", "6"), marks=pytest.mark.slow),
        pytest.param(("insert", "inserting", "inserted", "post", "posted"), marks=pytest.mark.slow),
    ],
)
def test_killed_between_two_steps_of_the_protocol(
    spark: SparkSession, real_broker: RealKafka, tmp_path: Path, steps: tuple[str, ...]
) -> None:  # others cannot see the mock's transactions
    """The job is killed at each step once, each time in a later micro-batch; some records remain at the end."""
    job = Deployed(real_broker, tmp_path / "job", stream(1), EVENTS // (len(steps) + 3))
    with contextlib.closing(job):
        for number, step in enumerate(steps):
            if step in OF_POSTGRES and job.postgres is None:
                continue
            process = job.start(step, number + 1)
            assert process.wait(WAIT_S) == -signal.SIGKILL, job.log()
        job.finish()
        job.check(spark)
        least = sum(step in AFTER_THE_WEBHOOK for step in steps)
        most = sum(step not in BEFORE_THE_SINKS for step in steps)
        assert least <= len(job.webhook.again) <= most, "a kill repeats the alerts that the webhook had taken"


def python_workers(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the processes of the job that are forks of Spark's Python daemon, which has its own process group."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        try:
            ours = folder.name.isdigit() and os.getsid(int(folder.name)) == process.pid
            if ours and b"cep.runners.spark.daemon" in (folder / "cmdline").read_bytes():
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ProcessLookupError):
            continue
    return [number for number, parent in parents.items() if parent in parents]


def wait_while(job: Deployed, is_so: Callable[[], bool]) -> None:
    """Wait until something is no longer so, or the job has ended."""
    give_up_s = time.monotonic() + WAIT_S
    while job.started[-1].poll() is None and is_so():
        assert time.monotonic() < give_up_s, job.log()
        time.sleep(POLL_S)


def is_between_states(job: Deployed) -> bool:
    """Return True until some partition has committed keyed state of an unfinished micro-batch."""
    query = job.checkpoint / "query"
    committed_batch = max(map(version, (query / "commits").glob("[0-9]*")), default=-1)
    state_version = max(map(version, (query / "state" / "0").glob("*/*.changelog")), default=0)
    return state_version <= committed_batch + 1  # state of micro-batch N has version N + 1


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole job, if it runs."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(WAIT_S)


def strike(victim: str, job: Deployed, chance: random.Random) -> bool:
    """Start the job, let it do some micro-batches, kill the victim; return whether that was within a micro-batch.

    Without a worker or a broker a job continues, or ends and says why; its remaining processes are killed a little
    later.
    """
    if victim in ("alerts", "rows"):  # a few milliseconds into the write of the topic or the table
        first = read_progress(job.checkpoint)[0] + chance.randint(2, 3)
        place = "3" if victim == "alerts" else "insert" if job.postgres is not None else "post"
        process = job.start(f"{place}+{chance.randint(1, 12)}", first)
        return process.wait(WAIT_S) == -signal.SIGKILL
    process = job.start()
    last = read_progress(job.checkpoint)[0] + chance.randint(1, 2)
    wait_while(job, lambda: read_progress(job.checkpoint)[0] < last)
    if victim == "state":
        wait_while(job, lambda: is_between_states(job))
    else:
        time.sleep(chance.uniform(0, MICRO_BATCH_S))
    if victim in ("worker", "stop"):  # between two micro-batches a kill cuts nothing off
        wait_while(job, lambda: not job.is_at_work)
    hits = job.is_at_work
    if victim == "worker":
        workers = python_workers(process)
        hits &= bool(workers)
        if workers:
            os.kill(chance.choice(workers), signal.SIGKILL)
    elif victim == "broker":
        assert isinstance(job.kafka, RealKafka)
        job.kafka.kill()
        time.sleep(chance.uniform(0, 3))
        job.kafka.start()
    elif victim == "stop":
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0, job.log()
    if victim in ("worker", "broker"):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0, 3))
    end(process)
    return hits


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_at_any_time(spark: SparkSession, own_broker: RealKafka, tmp_path: Path, seed: int) -> None:
    """Each victim once, and one more, in an order drawn from the seed."""
    chance = random.Random(seed)
    job = Deployed(own_broker, tmp_path / "job", stream(seed), RECORDS_OF_KILLED)
    victims = [*VICTIMS, chance.choice(VICTIMS)]
    chance.shuffle(victims)
    hits: Counter[str] = Counter()
    with contextlib.closing(job):
        for victim in victims:
            hits[victim] += strike(victim, job, chance)
            batch, totals = read_progress(job.checkpoint)
            print(
                f"seed {seed}: killed the {victim}, {dict(hits)} hit; micro-batch {batch} is done, {totals['records']}"
            )
            assert totals["records"] < job.sent, "the job had nothing left to do"
        assert hits.total() >= len(victims) - 2, "most kills come while records flow"
        job.finish()
        job.check(spark)
