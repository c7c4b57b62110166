"""`python -m tests.faults.soak`: an hour of `cep run` with all sinks on, in which each part around it fails once.

    python -m tests.faults.soak [--minutes 60] [--rate 100] [--keep FOLDER]

Payments come through an Apache Kafka at a steady rate, with every oddity; alerts go to a folder, Parquet, a Delta
table, a webhook, PostgreSQL where there is one, and a topic with the changelog. In the first half of the time the
process at work is killed twice; the standby takes over, and the killed one is started again to be the next standby. The
target of checkpoints, the webhook, PostgreSQL and the brokers go away for a while. Rules are changed all the time, in
right and wrong ways. The second half is quiet. At the end it prints whether memory and state were flat (the median of
the last quarter against the third), percentiles of the latency from event time to the webhook for each half, the
metrics of the page that have moved, and whether each sink has the alerts of the replay. It ends with 1 if a figure grew
by more than a tenth, a sink has other alerts, or a metric has not moved that other tests do not move (ELSEWHERE).
seen.json in the folder has the observations so far, each minute.
The input uses every feature: rules, payments at a rate, some with faults, and changes of rules.
Tested by: tests/faults/test_faults.py
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import deltalake
import numpy as np
import orjson
import psycopg
import pyarrow.parquet as pq
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from cep.base.kafka import WRITER_FIXED
from cep.base.text import utc_text
from cep.model.rule import Changes, HeartbeatRecord, PauseRecord, RetireRecord, UpsertRecord
from cep.rulebook.files import read_rules
from cep.rulebook.ledger import hash_of
from tests.bench.metrics import Samples, metrics, resident_bytes
from tests.bench.peer_data import show
from tests.real_kafka import RealKafka
from tests.real_postgres import IS_THERE, RealPostgres
from tests.rule_files import rule_text
from tests.webhook import Webhook, url_of

CARDS, DEVICES = 300, 40
PARTITIONS = 4  # of the payments
HUGE = 4_000_000_000_000_000_000
CROWD = 1_100  # more runs of a rule than one key may have
DAY_MS = 86_400_000
PATTERNS = """event payment {
  tx_id       id
  event_time  time
  card_id     string?
  amount      decimal(2)
  status      enum(approved, declined)
  country     string
  device_id   string
  whole       int
}

event burst {
  burst_id    id
  event_time  time
  card_id     string?
  total       decimal(2)
}

pattern testing by card_id {
  seq    probe{2,} greedy -> hit  within 60 s
  where  probe: payment  status == declined
         hit:   payment  status == approved and amount > 50.00
  skip   past last
  emit   probes = count(probe), probed = sum(probe.amount)
}

pattern silence by card_id {
  seq    large -> !other within 20 s
  where  large: payment  amount > 95.00
         other: payment  status == approved
  emit   amount = large.amount
}

pattern alone by card_id {
  seq    large -> larger within 20 s
  where  large:  payment  amount > 98.00
         larger: payment  amount > 99.00
  skip   past last
  emit   whole = large.whole
  on timeout
  emit   whole = large.whole
}

pattern spree by card_id {
  seq    now
  where  now: payment  amount > 1.2 * avg(payment.amount over previous 60 s)
                       and count(payment over 30 s) >= 3
                       and amount >= approx_percentile(payment.amount over 2 min, 60)
  emit   amount = now.amount
}

pattern elsewhere by card_id {
  seq    now
  where  now: payment  last(payment over previous 60 s by device_id).country != country and amount > 90.00
  emit   country = now.country
}

pattern bursts by card_id {
  seq      one -> two  within 20 s
  where    one: payment  amount > 60.00
           two: payment  amount > 60.00
  emit     card_id = two.card_id, total = one.amount + two.amount
  produce  burst
}

pattern twice by card_id {
  seq    first -> second  within 30 s
  where  first: burst
         second: burst  total > first.total
  skip   past last
  emit   total = second.total
}

pattern crowd by card_id {
  seq    one -> two  within 30 s
  where  one: payment  whole == 7
         two: payment  whole == 8
  skip   none
  emit   amount = two.amount
}

pattern vast by card_id {
  seq    x{3}  within 30 s
  where  x: payment  whole > 1000000000000
  skip   past last
  emit   total = sum(x.whole)
}
"""
_RULES = {"testing": {}, "silence": {}, "alone": {}, "spree": {"suppress": "20 s"}, "elsewhere": {}, "bursts": {},
          "twice": {}, "crowd": {}, "vast": {}}  # fmt: skip


def write_rules(
    folder: Path, patterns: str = PATTERNS, rules: Mapping[str, Mapping[str, str]] = MappingProxyType(_RULES)
) -> None:
    """Write the first files of the job: its patterns, and rules with further fields of their files."""
    folder.mkdir()
    (folder / "all.cep").write_text(patterns)
    for name, more in rules.items():
        (folder / f"{name}.toml").write_text(rule_text(name, "all.cep", message="{key}", **more))


@dataclass
class Payments:
    """Payments, each with a number; `history` has the ones that must count."""

    chance: Random
    history: Path
    number: int = 0
    lines: list[bytes] = field(default_factory=list)

    def payment(self, now_ms: int, **more: Any) -> bytes:
        """Return one more payment, in the form in which it is sent."""
        self.number += 1
        chance = self.chance
        event = {
            "tx_id": f"t{self.number}", "event_time": utc_text(now_ms), "card_id": f"c{chance.randrange(CARDS)}",
            "amount": round(chance.uniform(1, 100), 2), "status": chance.choice(("approved", "approved", "declined")),
            "country": chance.choice(("PT", "FR", "DE")), "device_id": f"d{chance.randrange(DEVICES)}", "whole": 0,
            **more,
        }  # fmt: skip
        line = orjson.dumps(event)
        self.lines.append(line)
        return line

    def odd(self, now_ms: int) -> list[bytes]:
        """Return faulty or rare payments: late, ahead, twice, unreadable, without a key, beyond a limit."""
        crowd = [self.payment(now_ms, card_id="crowd", whole=7) for _ in range(CROWD)]
        vast = [self.payment(now_ms, card_id="vast", whole=HUGE) for _ in range(3)]
        rare = [self.payment(now_ms, card_id=None), *crowd, self.payment(now_ms + 1, card_id="crowd", whole=8), *vast]
        twice = [self.payment(now_ms)] * 2
        wrong = [self.payment(now_ms - DAY_MS), self.payment(now_ms + DAY_MS)]
        return [*rare, *twice, *wrong, b"{", b"{}"]

    def write(self) -> None:
        """Append the payments so far to the file."""
        with self.history.open("ab") as file:
            file.writelines(line + b"\n" for line in self.lines)
        self.lines.clear()


@dataclass
class Publisher:
    """A publisher who changes rules, and makes every possible mistake. `records` are all records of the hour."""

    base: UpsertRecord
    version: int = 0
    records: list[bytes] = field(default_factory=list)
    _last: RetireRecord | None = None

    def changes(self, now_ms: int) -> list[bytes]:
        """Return control records: one that counts, and others that are refused, ignored, waiting or unreadable."""
        self.version += 2
        before = self._last
        changes = Changes() if before is None else Changes(version=before.version, hash=hash_of(before))
        fields = {"id": "temporary", "status": "shadow", "version": self.version - 1, "changes": changes}
        first = self.base.model_copy(update={**fields, "effective_at": utc_text(now_ms - 20_000)})
        other = first.model_copy(update={"severity": "high", "version": self.version})
        retired = RetireRecord(
            id="temporary", version=self.version, changes=Changes(version=first.version, hash=hash_of(first))
        )
        self._last = retired
        sent = [
            first.to_json(), first.to_json(), other.to_json(), b"{",
            PauseRecord(id="nobody", version=1).to_json(),
            HeartbeatRecord(event_time=utc_text(now_ms - 5_000)).to_json(),
            HeartbeatRecord(event_time=utc_text(now_ms + DAY_MS)).to_json(),
        ]  # fmt: skip
        self.records += sent
        return sent

    def end(self) -> list[bytes]:
        """Return the retirement of the rule that the last call has published, whose runs are open."""
        assert self._last is not None, "a change comes first"
        later = self._last.to_json()
        self.records.append(later)
        return [later]


ROOT = Path(__file__).parents[2]
GROWTH_MAX = 1.1
FLAT = ("cep_runs", "cep_state_bytes", "python_bytes", "process_open_fds")
SAMPLES_EVERY_S = 5.0
PERCENTILES = (50, 90, 95, 99, 99.9)
WAIT_S = 300.0
END_S = 900.0
_ROW = re.compile(r"^\| `(cep_\w+)")
SEEN_EVERY_S = 60.0
# Metrics that a job like this one cannot move: a warm start, a replay, signers, limits of millions of keys, or of a
# hundred thousand events of one key. cep_live is only 0 in a process that is stuck or about to end. Each has the test
# that moves it.
ELSEWHERE = {
    "cep_events_before_start_total": "tests/runners/handover/test_handover.py",
    "cep_events_after_end_total": "tests/step/test_step.py",
    "cep_control_unverified_total": "tests/step/test_step.py",
    "cep_fired_forgotten_total": "tests/step/test_step.py",
    "cep_histories_folded_total": "tests/histories/test_folds.py",
    "cep_history_values_dropped_total": "tests/histories/test_remembered.py",
    "cep_histories_cut_total": "tests/histories/test_remembered.py",
    "cep_origins_dropped_total": "tests/step/test_step.py",
    "cep_live": "tests/runners/test_observe.py",
}


@dataclass
class Member:
    """A process of the job, with its own folder."""

    name: str
    process: subprocess.Popen[bytes]
    folder: Path
    log: Path
    address: str
    ended_s: float | None = None

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def said(self, event: str) -> bool:
        return f'"event":"{event}"' in self.log.read_text()

    @classmethod
    def start(cls, name: str, folder: Path, log: Path, words: Sequence[str]) -> Member:
        """Start a process that continues in the folder, and listens at a free port."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        command = [sys.executable, "-c", "from cep.cli.main import entry; entry()", *words, "--listen", address]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with log.open("wb") as file:
            process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
        return cls(name, process, folder, log, address)


class Soak:
    """The surroundings and processes of the job, and the observations."""

    def __init__(self, folder: Path, stack: ExitStack, minutes: float, rate: float) -> None:
        self.folder, self.seconds, self.rate = folder, minutes * 60, rate
        self.kafka = stack.enter_context(RealKafka())
        self.postgres = RealPostgres() if IS_THERE else None
        if self.postgres is not None:
            stack.callback(self.postgres.close)
        self.webhook = Webhook()
        server = self.webhook.serve()
        stack.callback(server.shutdown)
        for topic, partitions in (("payments", PARTITIONS), ("rules", 1), ("alerts", 1)):
            self.kafka.create(topic, partitions)
        write_rules(folder / "rules")
        self.payments = Payments(Random(1), folder / "history.jsonl")
        self.sent: list[tuple[int, bytes]] = []  # payments with their partitions
        base = next(record for record in read_rules(folder / "rules")[0] if record.id == "testing")
        self.publisher = Publisher(base)
        self.producer = Producer(
            {**WRITER_FIXED, "bootstrap.servers": self.kafka.address, "log_level": 2, "linger.ms": 5}
        )
        self.samples, self.moved, self.first = Samples(), set[str](), dict[tuple[int, str], float]()
        self.quiet_from_s = 0.0
        self.sinks = [str(folder / "alerts"), f"parquet:{folder / 'parquet'}", f"delta:{folder / 'delta'}",
                      url_of(server)]  # fmt: skip
        self.sinks += [] if self.postgres is None else [self.postgres.address]
        self.sinks.append("kafka:alerts")  # last: it carries the changelog
        self.members: list[Member] = []
        self.struck: list[Member] = []  # the killed ones
        stack.callback(self.kill)

    def start(self, name: str) -> Member:
        """Start a process of the job, with its own folder."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        conf = folder / "cep.toml"
        conf.write_text('[output]\nwebhook = { "secret" = "of the soak, known to both" }\n')
        words = [
            "run", "--conf", str(conf), "--rules", str(self.folder / "rules"), "--bootstrap-servers",
            self.kafka.address, "--topic", "payments", "--control-topic", "rules", "--status-topic", "rules-status",
            "--checkpoint", str(folder / "job"), "--checkpoint-target", str(folder / "target"),
            "--checkpoint-interval", "20 s",
            "--changelog", "state", "--standby", "--lateness", "2 s", "--dedup", "1 min", "--key", "device_id",
            "--key-groups", "8", "--interval", "200 ms", "--log", "json",
        ]  # fmt: skip
        words += [word for sink in self.sinks for word in ("--alerts", sink)]
        self.members.append(Member.start(name, folder, folder / f"{len(self.members)}.log", words))
        return self.members[-1]

    def kill(self) -> None:
        for member in self.members:
            member.process.kill()

    @property
    def at_work(self) -> Member:
        """The working process: the living one that started first."""
        there = [member for member in self.members if member.is_alive]
        return next((member for member in there if member.said("started")), there[0])

    # ------------------------------------------------------------------------------------------------- while it runs

    def look(self) -> None:
        """Take a sample of each process that answers; the last working one is judged. Errors: all are gone."""
        is_there = any(member.is_alive for member in self.members)
        assert is_there, "\n".join(member.log.read_text()[-3_000:] for member in self.members)
        for place, member in enumerate(self.members):
            if not member.is_alive:
                continue
            try:
                values = metrics(member.address)
            except OSError:
                continue
            for name, value in values.items():
                if self.first.setdefault((place, name), 0.0 if "_total" in name else value) != value:
                    self.moved.add(name.partition("{")[0])
            if values.get("cep_standby") == 0.0:
                figures = {name: values[name] for name in FLAT if name in values}
                self.samples.add({**figures, **resident_bytes(member.process.pid)})

    def feed(self) -> None:
        """Send payments at the rate, oddities and changes each minute, and cause the faults, until the time is over."""
        begun_s, sent, minute = time.monotonic(), 0, -1
        pending, begun = self._plan(), time.time()
        looked_s = written_s = 0.0
        self.quiet_from_s = begun + self.seconds / 2
        while (passed_s := time.monotonic() - begun_s) < self.seconds:
            while pending and pending[0][0] * self.seconds <= passed_s:
                _, fault, act = pending.pop(0)
                print(f"{time.strftime('%H:%M:%S')} {passed_s / self.seconds:.0%}: {fault}", flush=True)
                act()
            if int(passed_s // 60) > minute:
                minute = int(passed_s // 60)
                self._minute(minute)
            while sent < passed_s * self.rate:
                self._send("payments", self.payments.payment(self._now_ms()))
                sent += 1
            self.producer.poll(0)
            if passed_s - looked_s > SAMPLES_EVERY_S:
                looked_s = passed_s
                self.look()
            if passed_s - written_s > SEEN_EVERY_S:
                written_s = passed_s
                self.write_seen()
            time.sleep(0.02)
        while pending:
            pending.pop(0)[2]()

    def _minute(self, minute: int) -> None:
        now_ms = self._now_ms()
        self.payments.write()
        for line in self.payments.odd(now_ms):
            self._send("payments", line)
        changes = self.publisher.changes(now_ms) if minute % 2 == 0 else self.publisher.end()
        for record in changes:
            self._send("rules", record)

    def _send(self, topic: str, value: bytes) -> None:
        """Partitions are drawn without keys, and control records have one partition."""
        number = 0 if topic == "rules" else self.payments.chance.randrange(PARTITIONS)
        if topic == "payments":
            self.sent.append((number, value))
        self.producer.produce(topic, value, partition=number)

    def _now_ms(self) -> int:
        return int(time.time() * 1_000)

    def _plan(self) -> list[tuple[float, str, Callable[[], object]]]:
        """Return the faults, by the share of the time at which they begin; the second half is quiet."""
        webhook, kafka, postgres = self.webhook, self.kafka, self.postgres
        struck, spoiled = self.struck, list[Member]()

        def kill() -> None:
            struck.append(self.at_work)
            struck[-1].process.kill()
            struck[-1].process.wait(WAIT_S)

        def spoil() -> None:
            spoiled.append(self.at_work)
            _spoil(spoiled[-1].folder / "target")

        plan: list[tuple[float, str, Callable[[], object]]] = [
            (0.05, "the process at work is killed", kill),
            (0.07, "it is started again, as the standby", lambda: self.start(struck[-1].name)),
            (0.22, "the process at work is killed, which was the standby", kill),
            (0.24, "it is started again, as the standby", lambda: self.start(struck[-1].name)),
            (0.27, "the target of checkpoints is a file", spoil),
            (0.30, "it is a folder again", lambda: _mend(spoiled[-1].folder / "target")),
            (0.14, "the webhook refuses", lambda: setattr(webhook, "is_away", True)),
            (0.18, "the webhook takes", lambda: setattr(webhook, "is_away", False)),
            (0.41, "the brokers end", kafka.stop),
            (0.44, "the brokers are back", kafka.start),
        ]
        if postgres is not None:
            plan += [(0.31, "PostgreSQL ends", postgres.stop), (0.37, "PostgreSQL is back", postgres.start)]
        return sorted(plan, key=lambda item: item[0])

    # ---------------------------------------------------------------------------------------------------- at the end

    def finish(self) -> None:
        """Let the job send all certain alerts, and end it."""
        self.producer.flush(WAIT_S)
        self.payments.write()
        self.look()
        arrived_count, since_s, begun_s = -1, time.monotonic(), time.monotonic()
        while time.monotonic() - since_s < 40:  # the longest window and more
            assert time.monotonic() - begun_s < END_S, self.at_work.log.read_text()[-3_000:]
            if len(self.webhook.arrived) != arrived_count or not self._is_idle():
                arrived_count, since_s = len(self.webhook.arrived), time.monotonic()
            self.look()
            self._send("rules", HeartbeatRecord(event_time=utc_text(self._now_ms())).to_json())
            self.producer.flush(WAIT_S)
            time.sleep(2)
        for member in self.members:
            if not member.is_alive and member not in self.struck:
                last = member.log.read_text().splitlines()[-1:]
                print(f"{member.log}: ended by itself with {member.process.returncode}: {last}")
        at_work = self.at_work
        for member in [member for member in self.members if member.is_alive and member is not at_work] + [at_work]:
            member.process.send_signal(signal.SIGTERM)
            code = member.process.wait(WAIT_S)
            assert code == 0, member.log.read_text()[-2_000:]

    def _is_idle(self) -> bool:
        """Return True if a working process has read all payments and its sinks have all alerts."""
        member = self.at_work
        if not member.said("started"):
            return False
        try:
            values = metrics(member.address)
        except OSError:
            return False
        lags = [value for name, value in values.items() if name.startswith("cep_lag_records{") and "payments" in name]
        return bool(lags) and not any(lags) and values.get("cep_undelivered_alerts") == 0

    def write_seen(self) -> None:
        """Write the observations so far; a reader sees the whole new file or the whole old one."""
        report = {"samples": self.samples.found, "moved": sorted(self.moved), "arrived": dict(self.webhook.arrived),
                "arrived_s": dict(self.webhook.arrived_s), "quiet_from_s": self.quiet_from_s}  # fmt: skip
        path = self.folder / "seen.json"
        path.with_suffix(".new").write_bytes(orjson.dumps(report))
        path.with_suffix(".new").replace(path)

    def latencies_s(self) -> dict[str, list[float]]:
        """Return the seconds from event time to the webhook, for the events of each half."""
        halves: dict[str, list[float]] = {"with outages": [], "quiet": []}
        for name, late_ms in self.webhook.arrived.items():
            happened_s = self.webhook.arrived_s[name] - late_ms / 1_000
            halves["quiet" if happened_s >= self.quiet_from_s else "with outages"].append(late_ms / 1_000)
        return halves

    def ids(self) -> dict[str, list[str]]:
        folder = self.folder
        lines = [line for path in (folder / "alerts").glob("*.jsonl") for line in path.read_bytes().splitlines()]
        by_sink = {
            "folder": [orjson.loads(line)["alert_id"] for line in lines],
            "Parquet": pq.read_table(folder / "parquet", columns=["alert_id"])["alert_id"].to_pylist(),
            "Delta Lake": deltalake.DeltaTable(str(folder / "delta"))
            .to_pyarrow_table(columns=["alert_id"])["alert_id"]
            .to_pylist(),
            "webhook": list(self.webhook.arrived),
            "topic": [orjson.loads(value)["alert_id"] for value in committed(self.kafka.address, "alerts")],
        }
        if self.postgres is not None:
            with psycopg.connect(self.postgres.address) as connection:
                by_sink["PostgreSQL"] = [row[0] for row in connection.execute("select alert_id from cep_alerts")]
        return by_sink


def replayed(folder: Path, jobs: Path, sent: Sequence[tuple[int, bytes]]) -> list[str]:
    """Return the ids of the replay of all payments that were not set aside (late ones, ones dated ahead).

    `sent` has the partition of each payment, in the order of sending. Events of one time are in the order of their
    partitions, so the history has a file for each. Windows close at its end: heartbeats are later than the payments.
    """
    aside = set[str]()
    for path in jobs.glob("*/job/dead_letters/*.jsonl"):
        aside |= {orjson.loads(line).get("event_id", "") for line in path.read_bytes().splitlines()}
    lines = (folder / "history.jsonl").read_bytes().splitlines()
    counted = {line for line in lines if orjson.loads(line)["tx_id"] not in aside}
    assert counted <= {line for _, line in sent}, "every payment was sent"
    history, out = folder / "counted", folder / "replayed.jsonl"
    history.mkdir()
    for number in sorted({number for number, _ in sent}):
        of_partition = (line + b"\n" for place, line in sent if place == number and line in counted)
        (history / f"{number}.jsonl").write_bytes(b"".join(of_partition))
    words = ["replay", "--rules", str(folder / "rules"), "--events", str(history), "--out", str(out), "--to-the-end"]
    command = [sys.executable, "-c", "from cep.cli.main import entry; entry()", *words]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    return [orjson.loads(line)["alert_id"] for line in out.read_bytes().splitlines()]


def _spoil(target: Path) -> None:
    if target.exists():
        target.rename(target.with_suffix(".away"))
    target.write_text("no folder")


def _mend(target: Path) -> None:
    target.unlink()
    if target.with_suffix(".away").exists():
        target.with_suffix(".away").rename(target)


def committed(address: str, topic: str) -> list[bytes]:
    """Return the committed values of a topic with one partition."""
    options = {"bootstrap.servers": address, "group.id": "soak", "enable.auto.commit": False,
               "enable.partition.eof": True, "isolation.level": "read_committed"}  # fmt: skip
    consumer, values, is_over = Consumer(options), list[bytes](), False
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    while not is_over:
        for message in consumer.consume(1_000, 0.5):
            error, value = message.error(), message.value()
            is_over = is_over or (error is not None and error.code() == KafkaError._PARTITION_EOF)
            if error is None and value is not None:
                values.append(value)
    consumer.close()
    return values


def page() -> list[str]:
    text = (ROOT / "cep" / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    return [match[1] for line in text.splitlines() if (match := _ROW.match(line))]


def judge_flat(samples: Samples) -> tuple[list[tuple[str, ...]], bool]:
    """Return a row for each value that must be flat, and whether all are."""
    rows: list[tuple[str, ...]] = []
    is_flat = True
    for name in samples.found:
        third, last = samples.quarters(name)
        is_flat = is_flat and (name not in FLAT or last <= third * GROWTH_MAX)
        rows.append((name, f"{third:,.0f}", f"{last:,.0f}", f"{last / third:.3f}" if third else "-"))
    return rows, is_flat


def judge_sinks(expected: Sequence[str], by_sink: dict[str, list[str]]) -> tuple[list[tuple[str, ...]], bool]:
    """Return a row for each sink, and whether all have the replay's alerts, each once."""
    rows: list[tuple[str, ...]] = []
    are_right = True
    for sink, ids in by_sink.items():
        lost, more = Counter(expected) - Counter(ids), Counter(ids) - Counter(expected)
        rows.append((sink, f"{len(ids):,}", f"{lost.total():,}", f"{more.total():,}"))
        are_right = are_right and not (lost or more)
    return rows, are_right


def judge_moved(moved: Collection[str]) -> tuple[list[str], bool]:
    """Return lines about the metrics of the page, and whether each has moved here or is moved by a test."""
    names = page()
    still = [name for name in names if not {name, f"{name}_count", f"{name}_sum"} & set(moved)]
    lines = [f"{len(names) - len(still)} of {len(names)} metrics have moved"]
    lines += [f"not {name}, which {ELSEWHERE[name]} moves" for name in still if name in ELSEWHERE]
    unexpected = [name for name in still if name not in ELSEWHERE]
    return [*lines, f"of these expected here: {', '.join(unexpected) or 'none'}"], not unexpected


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=100.0, help="payments a second")
    parser.add_argument("--keep", type=Path, help="an empty folder for all that is written, which stays")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and the processes that it has started end with it
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cep-soak-")))
        soak = Soak(folder, stack, options.minutes, options.rate)
        for name in ("one", "two"):
            soak.start(name)
        until_s = time.monotonic() + WAIT_S
        while not (any(m.said("started") for m in soak.members) and any(m.said("standby_ready") for m in soak.members)):
            assert time.monotonic() < until_s, [member.log.read_text()[-2_000:] for member in soak.members]
            soak.look()
            time.sleep(0.5)
        soak.feed()
        soak.finish()
        soak.write_seen()
        rows, is_flat = judge_flat(soak.samples)
        title = f"{options.minutes:g} minutes, {options.rate:g} payments/s"
        show(title, ("median of", "third quarter", "last quarter", "last ÷ third"), rows)
        rows = [
            (half, f"{len(late_s):,}", *(f"{np.percentile(late_s, q):.2f}" for q in PERCENTILES))
            for half, late_s in soak.latencies_s().items()
            if late_s
        ]
        show("seconds from event time to webhook, 2 s of lateness in it",
             ("half", "alerts", *(f"p{q:g}" for q in PERCENTILES)), rows)  # fmt: skip
        print(f"{soak.webhook.repeats} came again; with other bytes or another number: "
              f"{len(soak.webhook.changed) + len(soak.webhook.wrong_batches)}")  # fmt: skip
        rows, are_right = judge_sinks(replayed(soak.folder, soak.folder, soak.sent), soak.ids())
        show("alerts beside the replay", ("sink", "alerts", "missing", "too many"), rows)
        lines, have_moved = judge_moved(soak.moved)
        print("\n".join(lines))
        sys.exit(0 if is_flat and are_right and have_moved else 1)


if __name__ == "__main__":
    main()
