"""A job without its folder rebuilds its store from the changelog: it sends the alerts of an undisturbed job."""

from __future__ import annotations

import shutil
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from cep.base.errors import UsageError
from cep.base.exits import Exit
from cep.cli.main import main
from cep.lists.store import ListStore
from cep.runners.embedded import changelog
from cep.runners.embedded import run as run_module
from cep.runners.embedded.changelog import Changelog, Entry, _changes, _packed, _unpacked
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.run import Pace, Runner
from cep.sinks.kafka import KafkaTransactionSink
from cep.sinks.transactions.kafka import KafkaTarget
from cep.sources.kafka import KafkaSettings, latest_offsets, read_range
from cep.sources.offsets import OffsetRange
from cep.state.keys import ALL_KEYS, KeyRange, store_key
from cep.state.memory import MemoryStore
from cep.state.store import DurableStore, WriteBatch
from cep.step.job import Job
from tests.real_kafka import KafkaCluster
from tests.runners.embedded.cases import MINUTE_MS, day, deployment, expected, morning
from tests.runners.embedded.outside import Crash, Lines, Steps
from tests.runners.embedded.test_run import consumed, start
from tests.runners.embedded.test_simulation import Replayable
from tests.runners.spark.live_cases import END, disordered, rules

ROOT = Path(__file__).parents[3]
GIVEN = deployment()
INITIAL = tuple(record.to_json() for record in rules().values())
LATENESS_MS = 5 * MINUTE_MS
# Without `ahead_ms`, events do not wait for the end of the backlog, so there are deliveries from the start.
JOB = Job(GIVEN.schema, GIVEN.key_domains, 8, 2, LATENESS_MS, dedup_ms=2 * LATENESS_MS, ahead_ms=None)
WAIT_S = 90


def key(number: int) -> bytes:
    return store_key(number % 3, b"%d" % number, b"n", b"")


@pytest.mark.parametrize("seed", range(20))
def test_what_a_write_batch_leaves_behind_is_named_key_by_key(seed: int) -> None:
    chance, store = Random(seed), MemoryStore()
    copy: dict[bytes, bytes] = {}
    for _ in range(20):
        batch = WriteBatch()
        for _ in range(chance.randrange(12)):
            one, other = sorted((key(chance.randrange(30)), key(chance.randrange(30))))
            kind = chance.random()
            if kind < 0.6:
                batch.put(one, chance.randbytes(3))
            elif kind < 0.8:
                batch.delete(one)
            else:
                batch.delete_range(KeyRange(one, other))
        changes = _changes(batch, store)
        assert list(_unpacked(_packed(changes))) == list(changes)
        for changed, value in changes.items():
            if value is None:
                copy.pop(changed, None)
            else:
                copy[changed] = value
        store.write(batch)
        assert copy == dict(store.scan(ALL_KEYS)), f"seed {seed}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--alerts", "kafka:alerts"), "--changelog needs --checkpoint"),
        (("--alerts", "kafka:alerts", "--checkpoint", "job", "--store", "memory"), "--store rocksdb"),
        (("--alerts", "alerts", "--checkpoint", "job"), "--changelog needs --alerts kafka:TOPIC"),
        (("--alerts", "kafka:a", "--checkpoint", "job", "--delivery", "at-least-once"), "exactly once"),
    ],
)
def test_what_a_changelog_needs(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "events").mkdir()
    fixed = ("--rules", str(ROOT / "rules"), "--events", "events", "--bootstrap-servers", "127.0.0.1:1")
    assert main(["run", *fixed, "--changelog", "state", *arguments]) == Exit.USAGE
    assert message in capsys.readouterr().err


@dataclass
class Topics:
    """The topics of the job's alerts and its changelog."""

    kafka: KafkaCluster
    alerts: str
    changelog: str

    def sink(self) -> KafkaTransactionSink:
        settings = {"message.max.bytes": "16777216"}
        return KafkaTransactionSink(KafkaTarget(self.kafka.address, self.alerts, "job", settings))

    def of(self, sink: KafkaTransactionSink) -> Changelog:
        return Changelog(self.changelog, KafkaSettings(self.kafka.address), sink)

    def end(self) -> int:
        return latest_offsets(KafkaSettings(self.kafka.address), [self.changelog])[self.changelog][0]


@pytest.fixture
def topics(kafka_broker: KafkaCluster) -> Topics:
    alerts, state = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("alerts", "state"))
    kafka_broker.create(alerts)
    kafka_broker.create(state, 1, cleanup_policy="compact", max_message_bytes="16777216")
    return Topics(kafka_broker, alerts, state)


def live(
    folder: Path, topics: Topics, lines: list[bytes], seed: int, steps: Steps, *, has_changelog: bool = True
) -> bool:
    """Run one life of the process; return whether it came to its end."""
    random = np.random.default_rng(seed)
    sink = topics.sink()
    commits, engine = None, None
    try:
        settings = StoreSettings(folder, "rocksdb", cache_bytes=8 << 20, checkpoint_ms=3_600_000)
        commits = Commits(settings, steps, changelog=topics.of(sink) if has_changelog else None)
        engine = Engine(
            JOB, INITIAL, commits.store, Workers(int(random.integers(1, 4)), page_bytes_max=50_000), commits.lists
        )
        source = Lines(lines, random)
        runner = Runner(engine, Sources(source, None), Outlets((sink,), None), commits, Pace())
        runner.start()
        while not source.ended:
            runner.cycle(0.0)
            if random.random() < 0.5:
                commits.finish(wait=True)
        commits.take(engine.step([], (END,), {}))
        runner.finish()
    except Crash:
        return False
    finally:
        if engine is not None:
            engine.close()
        if commits is not None:
            commits.close()
        sink.close()
    return True


def alerts_of(topics: Topics, count: int) -> list[bytes]:
    return sorted(consumed(topics.kafka.address, topics.alerts, lambda values: len(values) >= count))


SEEDS = [pytest.param(seed, marks=[pytest.mark.always] if seed == 0 else []) for seed in range(12)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_lives_whose_folders_are_lost(seed: int, topics: Topics, tmp_path: Path) -> None:
    """The process crashes before any step, mostly on a new machine afterwards: no checkpoint helps."""
    if not topics.kafka.is_real:
        return
    chance = Random(seed)
    lines = disordered(list(day()), LATENESS_MS, seed)
    folder, lost = tmp_path / "job", 0
    for life in range(100):
        if live(folder, topics, lines, seed * 1_000 + life, Steps(chance.randrange(3, 40) + 2 * life)):
            break
        if lost < 2 or chance.random() < 0.7:
            lost += 1
            shutil.rmtree(folder)
    else:
        pytest.fail(f"it never came to its end, seed {seed}")
    expected_alerts = sorted(expected(list(day()), GIVEN, tmp_path))
    assert alerts_of(topics, len(expected_alerts)) == expected_alerts, f"seed {seed}"
    assert lost > 0, f"seed {seed}"
    assert stored(topics) == local(folder), "the topic has what the store has"


def stored(topics: Topics) -> dict[bytes, bytes]:
    entries: dict[bytes, bytes] = {}
    offsets = OffsetRange(topics.changelog, 0, 0, topics.end())
    for records in read_range(KafkaSettings(topics.kafka.address), offsets):
        for name, value in zip(records.column("key").to_pylist(), records.column("value").to_pylist(), strict=True):
            entries.pop(name, None)
            if value is not None:
                entries[name] = value
    return entries


def local(folder: Path) -> dict[bytes, bytes]:
    """Return all entries without the local store's own."""
    with StoreSettings(folder).open(folder / "store" / "store") as store:
        return {name: value for name, value in store.scan(ALL_KEYS) if b"changed" not in name}


def test_a_changelog_that_begins_late_and_a_topic_of_others(topics: Topics, tmp_path: Path) -> None:
    if not topics.kafka.is_real:
        return
    lines = disordered(list(day()), LATENESS_MS, 1)
    folder = tmp_path / "job"
    assert not live(folder, topics, lines, 1, Steps(8, "5"), has_changelog=False)
    assert not live(folder, topics, lines, 2, Steps(3, "2"))
    assert topics.end() > 0
    shutil.rmtree(folder)
    assert live(folder, topics, lines, 3, Steps(100_000))
    expected_alerts = sorted(expected(list(day()), GIVEN, tmp_path))
    assert alerts_of(topics, len(expected_alerts)) == expected_alerts
    topics.kafka.send(topics.alerts, [{"value": b"{}", "partition": 0}])
    foreign = Topics(topics.kafka, topics.alerts, f"foreign-{uuid.uuid4().hex[:8]}")
    topics.kafka.create(foreign.changelog, 1)
    topics.kafka.send(foreign.changelog, [{"value": b"{}", "partition": 0}])
    for where in (folder, tmp_path / "new"):
        with pytest.raises(UsageError, match="is no changelog of this job; give an empty one"):
            live(where, foreign, lines, 4, Steps(100_000))
    several = Topics(topics.kafka, topics.alerts, topics.alerts)
    with pytest.raises(UsageError, match="has 4 partitions; a changelog has one"):
        live(folder, several, lines, 4, Steps(100_000))


class InMemory:
    """A topic in a list."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def open(self) -> None:
        pass

    def carry(self, topic: str, entries: Sequence[Entry]) -> None:
        self.entries += entries

    def bring(self, topic: str, entries: Iterator[Entry]) -> None:
        self.entries += entries


def test_lists_come_along_in_parts_and_go_when_nothing_names_them(tmp_path: Path) -> None:
    folder = tmp_path / "lists"
    folder.mkdir()
    lists, store = ListStore(folder), MemoryStore()
    sets = {name: Random(name).randbytes(size) for name, size in (("a", 10), ("b", 2 * changelog._PART_BYTES + 7))}
    for name, data in sets.items():
        lists.path(name).write_bytes(data)
    carrier = InMemory()
    log = Changelog("t", KafkaSettings("nowhere"), carrier)
    log.take(WriteBatch(), store, lists, 1)
    log.carry(log.hand_over()[0])
    lists.path("a").unlink()
    log.take(WriteBatch(), store, lists, 2)
    log.carry(log.hand_over()[0])
    back = tmp_path / "back"
    for name_of_part, value in carrier.entries:
        if changelog._LISTS.begin <= name_of_part < changelog._LISTS.end:
            changelog._write_part(back, name_of_part, value)
    assert {path.name: path.read_bytes() for path in back.iterdir()} == {lists.path("b").name: sets["b"]}


class Unread(Changelog):
    """A changelog that assumes an empty topic, without a look at it."""

    def replay(self, store: DurableStore, lists_folder: Path) -> int | None:
        return None


@dataclass
class Slow:
    """Writes alerts and carried changes a little later, the first time only when more changes already wait."""

    random: np.random.Generator
    more_waits: Callable[[], bool]
    has_waited: bool = False

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        time.sleep(0.02 * self.random.random())
        deadline_s = time.monotonic() + 10
        while not self.has_waited and time.monotonic() < deadline_s:
            time.sleep(0.001)
            self.has_waited = self.more_waits()

    def close(self) -> None:
        pass


def test_what_waits_for_a_slow_topic_is_bounded_and_all_of_it_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_UNSENT_BYTES_MAX", 20_000)
    carrier = InMemory()
    commits = Commits(
        StoreSettings(tmp_path / "job", "rocksdb", cache_bytes=8 << 20, checkpoint_ms=3_600_000),
        changelog=Unread("t", KafkaSettings("nowhere"), carrier),
    )
    engine = Engine(JOB, INITIAL, commits.store, Workers(1))
    waiting: list[int] = []

    def look() -> None:
        """Count commits until changes wait: a reader far ahead of the engine would have seen all of them before."""
        waiting.append(commits.unsent_bytes)
        before, until_s = commits.head, time.monotonic() + 0.2
        while max(waiting) == 0 and commits.head is before and time.monotonic() < until_s:
            time.sleep(0.001)

    source = Replayable(list(morning()), Random(1), before_poll=look)
    slow = Slow(np.random.default_rng(1), lambda: waiting[-1] > 0)  # the reader sees it, maybe late
    runner = Runner(engine, Sources(source, None), Outlets((slow,), None), commits, Pace())
    runner.start()
    while not source.ended:
        runner.cycle(0.0)
    runner.finish()
    engine.close()
    commits.close()
    assert 0 < max(waiting) <= 20_000, "it had to wait, and has read nothing more meanwhile"
    arrived = {name: value for name, value in dict(carrier.entries).items() if value is not None}
    assert arrived == local(tmp_path / "job")


def _has_more(count: int, values: list[bytes]) -> bool:
    return len(values) > count


@pytest.mark.slow
def test_killed_without_notice_and_without_its_folder(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    """`cep run --changelog`: the machine is lost, and its checkpoints too."""
    if not kafka_broker.is_real:
        return  # others cannot see the mock's transactions
    lines = list(day())
    events, alerts, state = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("events", "alerts", "state"))
    for topic in (events, alerts):
        kafka_broker.create(topic)
    arguments = [
        "--rules", str(ROOT / "rules"), "--bootstrap-servers", kafka_broker.address, "--topic", events,
        "--alerts", f"kafka:{alerts}", "--checkpoint", str(tmp_path / "job"), "--key-groups", "16",
        "--changelog", state, "--max-records", "200",
    ]  # fmt: skip
    expected_alerts = sorted(expected(lines, GIVEN, tmp_path))
    for number in range(3):
        before, third = (
            lines[: number * len(lines) // 3],
            lines[number * len(lines) // 3 : (number + 1) * len(lines) // 3],
        )
        kafka_broker.send(events, [{"value": line, "partition": 0} for line in third])
        process = start(*arguments)
        told_count = len(expected(before, GIVEN, tmp_path)) if before else 0  # further alerts are from this process
        consumed(kafka_broker.address, alerts, partial(_has_more, told_count))
        if number < 2:
            process.kill()
            process.communicate()
            shutil.rmtree(tmp_path / "job")
    alerts_found = consumed(kafka_broker.address, alerts, lambda values: len(values) >= len(expected_alerts) - 1)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, log.decode()
    assert b"the job goes on" in log
    assert f"state is read from topic {state}".encode() in log
    assert sorted(alerts_found) == expected_alerts
