"""`python -m tests.faults.real`: faults by seeds on real brokers, `cep run` or `cep live`, compared with the replay.

    python -m tests.faults.real --runner run --seeds 60 [--first 0] [--keep FOLDER]

A seed draws one or two faults and when they begin, within eighteen seconds of payments, or thirty. With `cep run` each
seed is a job of its own; with `cep live` all are on one job, whose start takes long, and the faults come seed by seed.
Each sink must have the alerts of the replay of all events that were not set aside, each once; a topic that is created
again must be refused. The command prints for each fault the number of its seeds, the alarms that rang after its begin,
and after how many seconds: minutes of the alert rules are seconds here, and the job checks its surroundings every five.
It ends with 1 if a seed went wrong.

The job runs as processes: started, watched, killed, started again; its sinks are compared with the replay.

    payments, changes ─▶ Kafka ─▶ `cep run` or `cep live` ─▶ a folder, a topic, PostgreSQL where there is one
                                        │
                                        └─ /metrics, twice a second ─▶ alarms.py, whose minutes are seconds here

`look_after` restarts each process that has ended, as a platform does, except a process that refuses its topic.
Tested by: tests/faults/test_faults.py
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
import traceback
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import orjson
import psycopg
from confluent_kafka import Producer
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from cep.base.kafka import WRITER_FIXED
from cep.base.text import utc_text
from cep.model.rule import Changes, HeartbeatRecord
from cep.rulebook.files import read_rules
from cep.rulebook.ledger import hash_of
from tests.bench.peer_data import show
from tests.faults.alarms import Alarms
from tests.faults.soak import Member, committed, replayed, write_rules
from tests.real_kafka import TIMEOUT_S, RealKafka, add_partitions
from tests.real_postgres import IS_THERE, RealPostgres
from tests.small_disk import SmallDisk, small_disk

SCALE = 1 / 60
LATENESS_S = 2.0
AGAIN_S = 1.0  # how long a platform waits before it starts a process again
START_S, END_S = 240.0, 240.0
UNKNOWN_S = 32.0  # `cep run` looks for new partitions every 30 s, and has to ask the brokers
PARTITIONS = 2
RATE_S = 1 / 30  # between two payments
PATTERNS = """event payment {
  tx_id       id
  event_time  time
  card_id     string?
  amount      decimal(2)
  status      enum(approved, declined)
}

pattern testing by card_id {
  seq    probe{2,} greedy -> hit  within 5 s
  where  probe: payment  status == declined
         hit:   payment  status == approved and amount > 50.00
  skip   past last
  emit   probes = count(probe)
}

pattern silence by card_id {
  seq    large -> !other within 3 s
  where  large: payment  amount > 90.00
         other: payment  status == approved
  emit   amount = large.amount
}

pattern spree by card_id {
  seq    now
  where  now: payment  amount > 1.2 * avg(payment.amount over previous 5 s) and count(payment over 5 s) >= 2
  emit   amount = now.amount
}

pattern never by card_id {
  seq    one
  where  one: payment  amount > 1000000.00
}
"""


@dataclass
class RealJob:
    """A job with its inputs and outputs. `checkpoints` is the parent of the folders of its processes."""

    folder: Path
    kafka: RealKafka
    postgres: RealPostgres | None
    runner: str
    chance: Random
    checkpoints: Path
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    members: list[Member] = field(default_factory=list)
    alarms: Alarms = field(default_factory=lambda: Alarms(SCALE))
    waiting: list[bytes] = field(default_factory=list)  # payments of a burst that is still to come
    is_held: bool = False
    number: int = 0
    expects_refusal: bool = False
    unknown_until_s: float = 0.0  # until this time the job may not know the last partition
    extra_words: tuple[str, ...] = ()
    has_standby: bool = True  # of `cep run`
    sent: list[tuple[int, bytes]] = field(default_factory=list)  # payments with their partitions
    unknown: set[str] = field(default_factory=set)  # ids of payments sent to it until then, which may be late

    def __post_init__(self) -> None:
        self.topics = {kind: f"{kind}-{self.name}" for kind in ("payments", "rules", "alerts", "state", "status")}
        for kind, partitions in (("payments", PARTITIONS), ("rules", 1), ("alerts", 1)):
            self.kafka.create(self.topics[kind], partitions)
        write_rules(self.folder / "rules", PATTERNS, {name: {} for name in ("testing", "silence", "spree", "never")})
        self.partitions = PARTITIONS
        self.producer = Producer(
            {**WRITER_FIXED, "bootstrap.servers": self.kafka.address, "log_level": 2, "linger.ms": 5}
        )
        self.history = self.folder / "history.jsonl"
        self.database: str | None = None
        if self.postgres is not None:
            with psycopg.connect(self.postgres.address, autocommit=True) as connection:
                connection.execute(f"create database job_{self.name}".encode())
            self.database = f"{self.postgres.address.rpartition('/')[0]}/job_{self.name}"

    # ------------------------------------------------------------------------------------------------- processes

    def start(self, name: str = "one") -> Member:
        """Start a process with this name, which continues in its folder."""
        place = self.checkpoints / name
        place.mkdir(parents=True, exist_ok=True)
        words = [
            self.runner, "--rules", str(self.folder / "rules"), "--bootstrap-servers", self.kafka.address,
            "--topic", self.topics["payments"], "--control-topic", self.topics["rules"],
            "--status-topic", self.topics["status"], "--checkpoint", str(place / "job"),
            "--lateness", f"{LATENESS_S:.0f} s", "--idle", "3 s", "--dedup", "1 min", "--key-groups", "4",
            "--log", "json", "--alerts", str(self.folder / "alerts"), "--rejected-max", "1",
        ]  # fmt: skip
        if self.database is not None:
            words += ["--alerts", self.database]
        words += ["--alerts", f"kafka:{self.topics['alerts']}"]
        if self.runner == "run":
            words += ["--changelog", self.topics["state"], "--interval", "200 ms"]
            words += ["--standby"] if self.has_standby else []
        else:
            words += ["--trigger", "500 ms", "--cores", "2"]
        words += self.extra_words
        self.members.append(Member.start(name, place, self.folder / f"{len(self.members)}.log", words))
        return self.members[-1]

    def wait_until(self, event: str, member: Member) -> None:
        """Wait until a process has logged an event. Errors: AssertionError if it ends before, or after a while."""
        until_s = time.monotonic() + START_S
        while not member.said(event):
            is_in_time = member.is_alive and time.monotonic() < until_s
            assert is_in_time, member.log.read_text()[-2_000:]
            time.sleep(0.2)

    @property
    def at_work(self) -> Member | None:
        return next((member for member in self.members if member.is_alive and member.said("started")), None)

    def kill(self) -> None:
        """Kill the working process, and its children."""
        for member in [self.at_work] if self.at_work else [member for member in self.members if member.is_alive]:
            os.killpg(member.process.pid, signal.SIGKILL)
            member.process.wait()

    def look_after(self) -> None:
        """Start ended processes again."""
        for name in {member.name for member in self.members}:
            last = [member for member in self.members if member.name == name][-1]
            if last.is_alive or self.expects_refusal:
                continue
            last.ended_s = last.ended_s or time.monotonic()
            if time.monotonic() - last.ended_s > AGAIN_S:
                self.start(name)

    def close(self) -> None:
        for member in self.members:
            if member.is_alive:
                os.killpg(member.process.pid, signal.SIGKILL)
                member.process.wait()

    # ---------------------------------------------------------------------------------------------------- records

    def send(self, kind: str, value: bytes) -> None:
        """Produce a record; if the brokers are away, the producer sends it later."""
        partition = self.chance.randrange(self.partitions) if kind == "payments" else 0
        if partition == self.partitions - 1 and time.monotonic() < self.unknown_until_s:
            self.unknown.add(orjson.loads(value)["tx_id"])
        if kind == "payments":
            self.sent.append((partition, value))
        self.producer.produce(self.topics[kind], value, partition=partition)
        self.producer.poll(0)

    def add_partition(self) -> None:
        """Add a partition to the topic of payments. The producer refuses it until it has asked the brokers."""
        topic, self.partitions = self.topics["payments"], self.partitions + 1
        add_partitions(self.kafka, topic, self.partitions)
        assert len(self.producer.list_topics(topic, TIMEOUT_S).topics[topic].partitions) == self.partitions
        if self.runner == "run":  # the other runner asks for each micro-batch
            self.unknown_until_s = time.monotonic() + UNKNOWN_S

    def payment(self, ahead_ms: int = 0) -> None:
        """Make a payment of now, or so far ahead, and send it unless payments are held up."""
        chance, self.number = self.chance, self.number + 1
        event = {
            "tx_id": f"{'odd' if ahead_ms else 't'}{self.number}",
            "event_time": utc_text(now_ms() + ahead_ms),
            "card_id": f"c{chance.randrange(20)}",
            "amount": round(chance.uniform(1, 100), 2),
            "status": chance.choice(("approved", "declined")),
        }
        line = orjson.dumps(event)
        with self.history.open("ab") as file:
            file.write(line + b"\n")
        self.waiting.append(line)
        if not self.is_held:
            for waiting in self.waiting:
                self.send("payments", waiting)
            self.waiting.clear()

    def odd_payments(self, ahead_ms: int) -> None:
        """Send payments with wrong times; they count if the job does not set them aside."""
        for _ in range(5):
            self.payment(ahead_ms)

    def heartbeat(self, at_ms: int) -> None:
        self.send("rules", HeartbeatRecord(event_time=utc_text(at_ms)).to_json())

    # ---------------------------------------------------------------------------------------------------- watching

    def scrape(self) -> None:
        """Read the metrics of all processes, and evaluate the alarms."""
        self.alarms.scrape(now_ms(), list(self._metrics()))

    def _metrics(self) -> Iterator[Metric]:
        for name in {member.name for member in self.members}:
            member = [member for member in self.members if member.name == name][-1]
            up = GaugeMetricFamily("up", "up", labels=["instance"])
            try:
                with urllib.request.urlopen(f"http://{member.address}/metrics", timeout=5) as answer:
                    text = answer.read().decode()
            except OSError:
                up.add_metric([name], 0.0)
                yield up
                continue
            up.add_metric([name], 1.0)
            yield up
            for family in text_string_to_metric_families(text):
                family.samples = [
                    sample._replace(labels={**sample.labels, "instance": name}) for sample in family.samples
                ]
                yield family

    # -------------------------------------------------------------------------------------------------- at the end

    def settle(self) -> None:
        """Let the job read all records and send all certain alerts. Errors: AssertionError after a while."""
        self.is_held = False
        self.payment()
        assert self.producer.flush(END_S) == 0
        last_ms, until_s = now_ms(), time.monotonic() + END_S
        while not self._is_settled(last_ms + 8_000):  # the longest window, and the lateness
            assert time.monotonic() < until_s, [member.log.read_text()[-1_500:] for member in self.members[-2:]]
            self.look_after()
            self.heartbeat(now_ms())
            self.producer.flush(END_S)
            self.scrape()
            time.sleep(0.5)

    def _is_settled(self, watermark_ms: int) -> bool:
        """Return True if the working process has passed a time, read all, and its sinks have all alerts."""
        member = self.at_work
        if member is None or now_ms() < watermark_ms:
            return False
        now = self.alarms.samples[-1][1]
        mine = {
            name: [value for labels, value in samples.items() if ("instance", member.name) in labels]
            for name, samples in now.items()
        }
        delay_s = mine.get("cep_watermark_delay_seconds", [1e9])[0]
        lags, undelivered = mine.get("cep_lag_records", [1.0]), mine.get("cep_undelivered_alerts", [0.0])
        return now_ms() - delay_s * 1_000 > watermark_ms and not any(lags) and not any(undelivered)

    def stop(self) -> None:
        """End all processes in order. Errors: AssertionError if one ends in another way."""
        for member in [member for member in self.members if member.is_alive]:
            member.process.send_signal(signal.SIGTERM)
            code = member.process.wait(END_S)
            assert code == 0, member.log.read_text()[-2_000:]

    def ids(self) -> dict[str, list[str]]:
        paths = sorted((self.folder / "alerts").glob("**/*.jsonl"))
        lines = [line for path in paths for line in path.read_bytes().splitlines()]
        by_sink = {
            "folder": [orjson.loads(line)["alert_id"] for line in lines],
            "topic": [
                orjson.loads(value)["alert_id"] for value in committed(self.kafka.address, self.topics["alerts"])
            ],
        }
        if self.database is not None:
            with psycopg.connect(self.database) as connection:
                by_sink["PostgreSQL"] = [row[0] for row in connection.execute("select alert_id from cep_alerts")]
        return by_sink

    def replayed(self) -> list[str]:
        """Return the ids of the replay of all payments that were not set aside."""
        return replayed(self.folder, self.checkpoints, self.sent)

    def set_aside(self) -> int:
        """Return how many payments were set aside, without payments of a partition that the job could not know yet."""
        paths = self.checkpoints.glob("*/job/dead_letters/*.jsonl")
        lines = [orjson.loads(line) for path in paths for line in path.read_bytes().splitlines()]
        ids = [str(line.get("event_id", "")) for line in lines]
        return sum(name.startswith("t") and name not in self.unknown for name in ids)


def now_ms() -> int:
    return int(time.time() * 1_000)


SECONDS, RATE = 18.0, 30
SCRAPE_S = 0.5
SINK_LASTS_S = 24.0  # a job calls a delivery slow after fifteen seconds, and checks every five
LASTS_S = 12.0  # so long that a check every five seconds sees it, and an alarm that waits for a second rings
DISK_MB = 2_200  # more than the free space that a job requires
DAY_MS = 86_400_000
# Fault → the alarms that may report it, and whether one must; a harmless fault needs no alarm.
FAULTS: dict[str, tuple[tuple[str, ...], bool]] = {
    "two publishers": (("CepChangeRefused",), True),
    "burst": ((), False),
    "outage of brokers": (('CepPartInTrouble{part="brokers"}',), True),
    "outage of the sink": (('CepPartInTrouble{part="sinks"}', "CepJobGone", "CepProcessDown"), True),
    "old heartbeat": ((), False),
    "heartbeat of tomorrow": (("CepChangeRefused",), True),
    "event of tomorrow": (("CepEventsAhead",), True),
    "late events": (("CepEventsLate",), False),  # rings if a thousandth of the events is late for five seconds
    "partition added": ((), False),
    "topic recreated": (("CepJobGone", "CepProcessDown"), True),
    "disk full": (
        ('CepPartInTrouble{part="disk"}', "CepDiskFull", "CepJobGone", "CepProcessDown", "CepRestartsOften"),
        True,
    ),
    "killed": (("CepJobGone", "CepProcessDown"), False),
    "standby takes over": (("CepJobGone", "CepProcessDown", "CepNobodyWorks"), False),
}
OF_RUN = ("standby takes over",)  # the other runner has no standby


@dataclass
class Outcome:
    """The outcome of a seed. `after_s` has the seconds by fault and alarm."""

    seed: int
    faults: list[str]
    problem: str = ""
    alerts: int = 0
    after_s: dict[str, dict[str, float]] = field(default_factory=dict)
    took_over_s: float | None = None


@dataclass
class Trial:
    """A job, and one seed's faults on it."""

    job: RealJob
    disk: SmallDisk | None
    outcome: Outcome
    begun_ms: dict[str, int] = field(default_factory=dict)
    ends: list[tuple[float, Callable[[], object]]] = field(default_factory=list)

    def run(self, chance: Random) -> None:
        """Send payments while the faults come and go; then let the job settle. Raises: AssertionError."""
        job, outcome = self.job, self.outcome
        plan = sorted((chance.uniform(2, 5), name) for name in outcome.faults if name != "topic recreated")
        begun_s, sent, scraped_s = time.monotonic(), 0, 0.0
        while (passed_s := time.monotonic() - begun_s) < max([SECONDS, *(at_s + SCRAPE_S for at_s, _ in self.ends)]):
            while plan and plan[0][0] <= passed_s:
                self.begin(plan.pop(0)[1], passed_s)
            for end in [end for end in self.ends if end[0] <= passed_s]:
                self.ends.remove(end)
                end[1]()
            while sent < passed_s * RATE:
                job.payment()
                sent += 1
            if passed_s - scraped_s > SCRAPE_S:
                scraped_s = passed_s
                job.scrape()
                job.look_after()
            time.sleep(0.01)
        for _, finish in self.ends:
            finish()
        job.settle()

    def begin(self, name: str, passed_s: float) -> None:
        job = self.job
        self.begun_ms[name] = now_ms()
        if name == "two publishers":
            self._publish_twice()
        elif name == "burst":
            job.is_held = True
            self.ends.append((passed_s + LASTS_S, lambda: setattr(job, "is_held", False)))
        elif name == "outage of brokers":
            job.kafka.stop()
            self.ends.append((passed_s + LASTS_S, job.kafka.start))
        elif name == "outage of the sink" and job.postgres is not None:
            job.postgres.stop()
            self.ends.append((passed_s + SINK_LASTS_S, job.postgres.start))
        elif name == "old heartbeat":
            job.heartbeat(now_ms() - 60_000)
        elif name == "heartbeat of tomorrow":
            job.heartbeat(now_ms() + DAY_MS)
        elif name in ("event of tomorrow", "late events"):
            job.odd_payments(DAY_MS if name == "event of tomorrow" else -10 * int(LATENESS_S * 1_000))
        elif name == "partition added":
            if job.kafka.is_stopped:  # a partition cannot be added now
                self.ends.append((max(at_s for at_s, _ in self.ends), job.add_partition))
            else:
                job.add_partition()
        elif name == "disk full" and self.disk is not None:
            self.disk.fill(0)
            self.ends.append((passed_s + LASTS_S, self.disk.free))
        elif name in ("killed", "standby takes over"):
            job.kill()

    def _publish_twice(self) -> None:
        """Publish two different changes of the same version."""
        job = self.job
        base = next(record for record in read_rules(job.folder / "rules")[0] if record.id == "never")
        changes = Changes(version=1, hash=hash_of(base))
        for severity in ("high", "critical"):
            record = base.model_copy(update={"version": 2, "severity": severity, "changes": changes})
            job.send("rules", record.to_json())

    def refuse(self) -> None:
        """Create the topic of payments again. Errors: AssertionError if the job goes on."""
        job = self.job
        job.expects_refusal = True
        self.begun_ms["topic recreated"] = now_ms()
        job.kafka.create_again(job.topics["payments"], job.partitions)
        until_s = time.monotonic() + 60
        while any(member.is_alive and member.said("started") for member in job.members):
            assert time.monotonic() < until_s, "the job goes on with a topic that was created again"
            job.scrape()
            time.sleep(SCRAPE_S)
        logs = [member.log.read_text() for member in job.members if not member.is_alive]
        assert any("created again" in text for text in logs), logs[-1][-1_000:]
        for _ in range(16):
            job.scrape()
            time.sleep(SCRAPE_S)

    def judge(self) -> None:
        """Compare the alerts with the replay."""
        job, outcome = self.job, self.outcome
        expected = Counter(job.replayed())
        outcome.alerts = expected.total()
        for sink, ids in job.ids().items():
            lost, more = expected - Counter(ids), Counter(ids) - expected
            if lost or more:
                outcome.problem += f"{sink}: {lost.total()} missing, {more.total()} too many, of {expected.total()}; "
        if "late events" not in outcome.faults and (count := job.set_aside()):
            outcome.problem += f"{count} payments were set aside that should count; "

    def note_alarms(self) -> None:
        """Note the alarms that rang after the begin of each fault; a missing alarm that must ring is a problem."""
        for name, begun_ms in self.begun_ms.items():
            alarms, must_ring = FAULTS[name]
            rung = self.job.alarms.rung
            first = {
                alarm: next((rung_ms for rung_ms in rung.get(alarm, ()) if rung_ms >= begun_ms), None)
                for alarm in alarms
            }
            after = {alarm: (rung_ms - begun_ms) / 1_000 for alarm, rung_ms in first.items() if rung_ms is not None}
            self.outcome.after_s[name] = after
            if must_ring and not after:
                self.outcome.problem += f"{name} rang nothing; "


def chosen(chance: Random, runner: str, *, has_disk: bool) -> list[str]:
    """Draw the faults of a seed."""
    names = [name for name in FAULTS if runner == "run" or name not in OF_RUN]
    if not IS_THERE:
        names.remove("outage of the sink")
    if not has_disk:
        names.remove("disk full")
    if runner == "live":
        names.remove("topic recreated")  # all seeds share one job
    return chance.sample(names, chance.randrange(1, 3))


def run_each(seeds: range, kafka: RealKafka, postgres: RealPostgres | None, folder: Path) -> Iterator[Outcome]:
    for seed in seeds:
        chance, place = Random(seed), folder / str(seed)
        place.mkdir()
        outcome = Outcome(seed, chosen(chance, "run", has_disk=True))
        with ExitStack() as stack:
            disk = None
            if "disk full" in outcome.faults:
                disk = stack.enter_context(small_disk(place / "disk", DISK_MB))
            job = RealJob(place, kafka, postgres, "run", chance, place / "job" if disk is None else disk.folder)
            stack.callback(job.close)
            trial = Trial(job, disk, outcome)
            try:
                job.wait_until("started", job.start())
                if "standby takes over" in outcome.faults:
                    job.wait_until("standby_ready", job.start("two"))
                trial.run(chance)
                if "topic recreated" in outcome.faults:
                    trial.refuse()
                else:
                    job.stop()
                trial.judge()
                trial.note_alarms()
            except Exception:  # noqa: BLE001 a campaign goes on
                outcome.problem = traceback.format_exc(limit=-3)
                if kafka.is_stopped:
                    kafka.start()
        yield outcome


def run_all(seeds: range, kafka: RealKafka, postgres: RealPostgres | None, folder: Path) -> Iterator[Outcome]:
    """Run one job of `cep live` through all seeds."""
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(folder / "disk", DISK_MB))
        job = RealJob(folder, kafka, postgres, "live", Random(seeds.start), disk.folder)
        stack.callback(job.close)
        job.wait_until("started", job.start())
        for seed in seeds:
            chance = Random(seed)
            trial = Trial(job, disk, Outcome(seed, chosen(chance, "live", has_disk=disk.is_mounted)))
            try:
                trial.run(chance)
                trial.judge()
                trial.note_alarms()
            except Exception:  # noqa: BLE001 a campaign goes on
                trial.outcome.problem = traceback.format_exc(limit=-3)
                if kafka.is_stopped:
                    kafka.start()
            yield trial.outcome


def table(outcomes: list[Outcome]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for fault in FAULTS:
        having = [outcome for outcome in outcomes if fault in outcome.faults]
        after: dict[str, list[float]] = {}
        for outcome in having:
            for alarm, seconds in outcome.after_s.get(fault, {}).items():
                after.setdefault(alarm, []).append(seconds)
        shown = "; ".join(
            f"{alarm} in {len(seconds)}, after {statistics.median(seconds):.0f} ({max(seconds):.0f})"
            for alarm, seconds in after.items()
        )
        rows.append((fault, str(len(having)), shown or "-"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runner", choices=("run", "live"), default="run")
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="an empty folder for all that is written, which stays")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and the processes that it has started end with it
    outcomes: list[Outcome] = []
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cep-faults-")))
        kafka = stack.enter_context(RealKafka())
        postgres = RealPostgres() if IS_THERE else None
        if postgres is not None:
            stack.callback(postgres.close)
        seeds = range(options.first, options.first + options.seeds)
        run = run_each if options.runner == "run" else run_all
        for outcome in run(seeds, kafka, postgres, folder):
            outcomes.append(outcome)
            print(
                f"seed {outcome.seed}: {', '.join(outcome.faults)}: {outcome.alerts} alerts, "
                f"{outcome.problem or 'right'}", flush=True,
            )  # fmt: skip
    title = f"{options.seeds} seeds of cep {options.runner}"
    show(title, ("fault", "seeds", "alarms that rang, after seconds: median (most)"), table(outcomes))
    wrong = [outcome.seed for outcome in outcomes if outcome.problem]
    print(f"wrong: {wrong or 'none'}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
