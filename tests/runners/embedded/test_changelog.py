"""A job without its folder rebuilds its store from the changelog: it sends the alerts of an undisturbed job.

Entries with more bytes than a record of the changelog allows come in parts, and are whole in a new store. A store that
follows a changelog, with any pauses, equals the store of one whole reading of the changelog.
"""

import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from cep.base.errors import SourceError, StateCorruptError, StateFormatError, UsageError
from cep.base.exits import Exit
from cep.base.limits import CHANGELOG_PART_BYTES, CHANGELOG_RECORD_BYTES_MAX, STORE_KEY_BYTES_MAX
from cep.cli.main import main
from cep.histories.store import Block, StoredSegment
from cep.lists.store import ListStore
from cep.runners.embedded import changelog
from cep.runners.embedded import changelog as module
from cep.runners.embedded import run as run_module
from cep.runners.embedded.changelog import Changelog, Entry, _changed_entries, _pack_keys, _unpack_keys
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.commit_entries import HEAD
from cep.runners.embedded.engine import Workers
from cep.runners.embedded.job import stand_by
from cep.runners.embedded.opening import STORE_PART, StoreSettings, followed_folder, open_store
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.pages import history_pages
from cep.sinks.kafka import KafkaTarget, KafkaTransactionSink
from cep.sources.kafka import KafkaSettings, latest_offsets, read_range
from cep.sources.offsets import OffsetRange
from cep.state.memory import MemoryStore
from cep.state.past import decode_head
from cep.state.store import ALL_KEYS, DurableStore, KeyRange, WriteBatch, store_key
from cep.step.job import Job
from tests.output_of import OutputOf
from tests.real_kafka import KafkaCluster, RealKafka
from tests.runners.embedded.cases import MINUTE_MS, day, deployment, expected, morning
from tests.runners.embedded.outside import Crash, Lines, Process, Steps, Still
from tests.runners.embedded.test_run import consumed
from tests.runners.embedded.test_run import start as start_job
from tests.runners.embedded.test_simulation import Replayable
from tests.runners.spark.live_cases import disordered, rules
from tests.runners.spark.test_live import history_lines
from tests.runners.spark.test_live import records as history_rules
from tests.seeds import seeds

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
        changes = _changed_entries(batch, store)
        assert list(_unpack_keys(_pack_keys(changes))) == list(changes)
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
    output_of: OutputOf,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "events").mkdir()
    fixed = ("--rules", str(ROOT / "rules"), "--events", "events", "--bootstrap-servers", "127.0.0.1:1")
    assert message in output_of(main(["run", *fixed, "--changelog", "state", *arguments]), Exit.USAGE).err


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
def topics(real_broker: RealKafka) -> Topics:
    alerts, state = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("alerts", "state"))
    real_broker.create(alerts)
    real_broker.create(state, 1, cleanup_policy="compact", max_message_bytes="16777216")
    return Topics(real_broker, alerts, state)


def live(
    folder: Path, topics: Topics, lines: list[bytes], seed: int, steps: Steps, *, has_changelog: bool = True
) -> bool:
    """Run one life of the process; return whether it came to its end."""
    random = np.random.default_rng(seed)
    settings = StoreSettings(folder, "rocksdb", cache_bytes=8 << 20, checkpoint_ms=3_600_000)
    with closing(topics.sink()) as sink:
        try:
            commits = Commits(settings, steps, changelog=topics.of(sink) if has_changelog else None)
            workers = Workers(int(random.integers(1, 4)), page_bytes_max=50_000)
            sources, outlets = Sources(Lines(lines, random), None), Outlets((sink,), None)
            with Process(commits, JOB, INITIAL, sources, outlets, workers) as life:
                life.read_all(lambda: random.random() < 0.5)
                life.end()
        except Crash:
            return False
    return True


def alerts_of(topics: Topics, count: int) -> list[bytes]:
    return sorted(consumed(topics.kafka.address, topics.alerts, lambda values: len(values) >= count))


SEEDS = [pytest.param(seed, marks=[pytest.mark.always] if seed == 0 else []) for seed in range(12)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_lives_whose_folders_are_lost(seed: int, topics: Topics, tmp_path: Path) -> None:
    """The process crashes before any step, mostly on a new machine afterwards: no checkpoint helps."""
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

    def add_to_next_write(self, topic: str, entries: Sequence[Entry]) -> None:
        self.entries += entries

    def write_alone(self, topic: str, entries: Iterator[Entry]) -> None:
        self.entries += entries


def test_lists_come_along_in_parts_and_go_when_nothing_names_them(tmp_path: Path) -> None:
    folder = tmp_path / "lists"
    folder.mkdir()
    lists, store = ListStore(folder), MemoryStore()
    sets = {name: Random(name).randbytes(size) for name, size in (("a", 10), ("b", 2 * changelog._LIST_PART_BYTES + 7))}
    for name, data in sets.items():
        lists.path(name).write_bytes(data)
    carrier = InMemory()
    log = Changelog("t", KafkaSettings("nowhere"), carrier)
    log.collect(WriteBatch(), store, lists, 1)
    log.add_to_next_write(log.take_pending()[0])
    lists.path("a").unlink()
    log.collect(WriteBatch(), store, lists, 2)
    log.add_to_next_write(log.take_pending()[0])
    back = tmp_path / "back"
    for name_of_part, value in carrier.entries:
        if changelog._LISTS.begin <= name_of_part < changelog._LISTS.end:
            changelog._write_list_part(back, name_of_part, value)
    assert {path.name: path.read_bytes() for path in back.iterdir()} == {lists.path("b").name: sets["b"]}


class Unread(Changelog):
    """A changelog that assumes an empty topic, without a look at it."""

    def replay(self, store: DurableStore, lists_folder: Path) -> int | None:
        return None


@dataclass
class Slow(Still):
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


def test_an_entry_that_changes_again_waits_once() -> None:
    changelog = Changelog("t", KafkaSettings("nowhere"), InMemory())
    for value in (b"1", b"22", None, b"333"):
        changelog._add_pending({b"key": value, b"other": b"x"})
        assert changelog.pending_bytes == len(b"key" + b"other" + b"x" + (value or b""))


def test_what_waits_for_a_slow_topic_is_bounded_and_all_of_it_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_UNSENT_BYTES_MAX", 20_000)
    carrier = InMemory()
    commits = Commits(
        StoreSettings(tmp_path / "job", "rocksdb", cache_bytes=8 << 20, checkpoint_ms=3_600_000),
        changelog=Unread("t", KafkaSettings("nowhere"), carrier),
    )
    waiting: list[int] = []

    def look() -> None:
        """Count commits until changes wait: a reader far ahead of the engine would have seen all of them before."""
        waiting.append(commits.deliveries.unsent_bytes)
        before, until_s = commits.head, time.monotonic() + 0.2
        while max(waiting) == 0 and commits.head is before and time.monotonic() < until_s:
            time.sleep(0.001)

    source = Replayable(list(morning()), Random(1), before_poll=look)
    slow = Slow(np.random.default_rng(1), lambda: waiting[-1] > 0)  # the reader sees it, maybe late
    with Process(commits, JOB, INITIAL, Sources(source, None), Outlets((slow,), None)) as life:
        life.read_all()
        life.runner.finish()
    assert 0 < max(waiting) <= 20_000, "it had to wait, and has read nothing more meanwhile"
    arrived = {name: value for name, value in dict(carrier.entries).items() if value is not None}
    assert arrived == local(tmp_path / "job")


def _has_more(count: int, values: list[bytes]) -> bool:
    return len(values) > count


@pytest.mark.slow
def test_killed_without_notice_and_without_its_folder(real_broker: RealKafka, tmp_path: Path) -> None:
    # others cannot see the mock's transactions
    """`cep run --changelog`: the machine is lost, and its checkpoints too."""
    lines = list(day())
    events, alerts, state = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("events", "alerts", "state"))
    for topic in (events, alerts):
        real_broker.create(topic)
    arguments = [
        "--rules", str(ROOT / "rules"), "--bootstrap-servers", real_broker.address, "--topic", events,
        "--alerts", f"kafka:{alerts}", "--checkpoint", str(tmp_path / "job"), "--key-groups", "16",
        "--changelog", state, "--max-records", "200",
    ]  # fmt: skip
    expected_alerts = sorted(expected(lines, GIVEN, tmp_path))
    for number in range(3):
        before, third = (
            lines[: number * len(lines) // 3],
            lines[number * len(lines) // 3 : (number + 1) * len(lines) // 3],
        )
        real_broker.send(events, [{"value": line, "partition": 0} for line in third])
        process = start_job(*arguments)
        told_count = len(expected(before, GIVEN, tmp_path)) if before else 0  # further alerts are from this process
        consumed(real_broker.address, alerts, partial(_has_more, told_count))
        if number < 2:
            process.kill()
            process.communicate()
            shutil.rmtree(tmp_path / "job")
    alerts_found = consumed(real_broker.address, alerts, lambda values: len(values) >= len(expected_alerts) - 1)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, log.decode()
    assert b"the job goes on" in log
    assert f"state is read from topic {state}".encode() in log
    assert sorted(alerts_found) == expected_alerts


PART_BYTES, RECORD_BYTES = 10, 8_000


class Topic(InMemory):
    """A compacted topic. Carried changes come with the next write."""

    def read(self, _: object, offset_range: OffsetRange, rows_max: int = 7) -> Iterator[pa.Table]:
        """Read like `read_range`, some records at a time, without the older records of a key."""
        latest = {name: offset for offset, (name, _) in enumerate(self.entries)}
        offsets = [
            offset
            for offset in range(offset_range.start, offset_range.end)
            if latest[self.entries[offset][0]] == offset
        ]
        for start in range(0, len(offsets), rows_max):
            rows = offsets[start : start + rows_max]
            names, values = zip(*(self.entries[offset] for offset in rows), strict=True)
            times = [1_000 + offset for offset in rows]
            columns = {"key": pa.array(names, pa.binary()), "value": pa.array(values, pa.binary())}
            yield pa.table({**columns, "timestamp": times, "offset": rows})


class Log(Changelog):
    def __init__(self, topic: Topic) -> None:
        super().__init__("state", KafkaSettings("nowhere"), topic)
        self._entries = topic.entries

    def _topic_range(self) -> OffsetRange:
        return OffsetRange("state", 0, 0, len(self._entries))


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    fake_topic = Topic()
    monkeypatch.setattr(changelog, "CHANGELOG_PART_BYTES", PART_BYTES)
    monkeypatch.setattr(changelog, "read_range", fake_topic.read)
    return fake_topic


def test_a_part_fits_into_a_record_with_its_key() -> None:
    assert CHANGELOG_PART_BYTES + 2 * STORE_KEY_BYTES_MAX < CHANGELOG_RECORD_BYTES_MAX


@pytest.mark.parametrize("seed", range(30))
def test_what_is_read_back_is_what_was_written(seed: int, topic: Topic, tmp_path: Path) -> None:
    """Entries grow, shrink and go; the process is killed before or after a delivery, and at times loses its store."""
    chance, lists = Random(seed), ListStore(tmp_path)
    store: DurableStore = MemoryStore()
    if chance.random() < 0.3:  # a job that begins a changelog later
        store.put(HEAD, b"0")
        store.put(key(1), chance.randbytes(3 * PART_BYTES))
    log = Log(topic)
    if store.get(HEAD) is not None:
        log.resume(store, lists)
    for number in range(1, 30):
        batch = WriteBatch()
        batch.put(HEAD, b"%d" % number)
        for _ in range(chance.randrange(4)):
            one, other = sorted((key(chance.randrange(8)), key(chance.randrange(8))))
            if chance.random() < 0.7:
                batch.put(one, chance.randbytes(chance.choice((0, 3, PART_BYTES, PART_BYTES + 1, 27, 50))))
            elif chance.random() < 0.5:
                batch.delete(one)
            else:
                batch.delete_range(KeyRange(one, other))
        log.collect(batch, store, lists, number)
        store.write(batch)
        entries, commits = log.take_pending() if chance.random() < 0.6 else ([], ())
        log.add_to_next_write(entries)
        if chance.random() < 0.8:
            log.note_delivered(commits)
        if chance.random() < 0.3:
            log = Log(topic)
            log.resume(store, lists)
            if chance.random() < 0.3:
                log.add_to_next_write(log.take_pending()[0])
                store = read_back(topic, tmp_path)
                log = Log(topic)
                log.resume(store, lists)
    log.add_to_next_write(log.take_pending()[0])
    assert shown(read_back(topic, tmp_path)) == shown(store), f"seed {seed}"
    assert any(changelog._PARTS.begin <= name < changelog._PARTS.end for name, _ in topic.entries)
    latest = dict(topic.entries)
    marks = [value for value in latest.values() if value is not None and value.startswith(changelog._IN_PARTS)]
    parts = [value for name, value in latest.items() if value and changelog._PARTS.begin <= name < changelog._PARTS.end]
    assert len(parts) == sum(changelog._PARTS_VALUE.unpack(mark)[2] for mark in marks), "no part is left behind"
    assert max(map(len, parts), default=0) <= PART_BYTES


def read_back(topic: Topic, folder: Path) -> DurableStore:
    store = MemoryStore()
    assert Log(topic).replay(store, folder) is not None
    return store


def shown(store: DurableStore) -> dict[bytes, bytes]:
    """Return all entries without the changelog's own."""
    return {name: value for name, value in store.scan(ALL_KEYS) if not changelog._is_only_local(name)}


def test_parts_that_are_missing_or_of_another_build_are_refused(topic: Topic, tmp_path: Path) -> None:
    log, store, batch = Log(topic), MemoryStore(), WriteBatch()
    batch.put(HEAD, b"1")
    batch.put(key(1), bytes(range(25)))
    log.collect(batch, store, ListStore(tmp_path), 1)
    entries = log.take_pending()[0]
    for index, (name, value) in enumerate(entries):
        if changelog._PARTS.begin <= name < changelog._PARTS.end:
            topic.entries[:] = entries[:index] + entries[index + 1 :]
            with pytest.raises(StateCorruptError, match="topic state has 2 of the 3 parts of an entry"):
                Log(topic).replay(MemoryStore(), tmp_path)
        if value is not None and value.startswith(changelog._IN_PARTS):
            topic.entries[:] = [(name, changelog._PARTS_VALUE.pack(changelog._IN_PARTS, 2, 3))]
            with pytest.raises(StateFormatError, match=r"in parts of format 2, this build reads 1: start the job with"):
                Log(topic).replay(MemoryStore(), tmp_path)
            topic.entries[:] = [(name, changelog._IN_PARTS)]
            with pytest.raises(StateCorruptError, match="does not say how many"):
                Log(topic).replay(MemoryStore(), tmp_path)


class Narrow(Topics):
    """Topics whose client and broker accept no larger records."""

    def sink(self) -> KafkaTransactionSink:
        settings = {"message.max.bytes": str(RECORD_BYTES)}
        return KafkaTransactionSink(KafkaTarget(self.kafka.address, self.alerts, "job", settings))


@pytest.mark.parametrize("seed", seeds(2, inner=0))
def test_a_job_whose_panes_and_heads_are_larger_than_a_record(
    seed: int, real_broker: RealKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is lost midway."""
    part_bytes = RECORD_BYTES // 2
    monkeypatch.setattr(changelog, "CHANGELOG_PART_BYTES", part_bytes)
    monkeypatch.setattr("cep.nfa.histories.HISTORY_EVENTS_MAX", 12)
    deployed = deployment(history_rules())
    job = Job(deployed.schema, deployed.key_domains, JOB.groups_count, 1)
    monkeypatch.setattr("tests.runners.embedded.test_changelog.JOB", job)
    monkeypatch.setattr(
        "tests.runners.embedded.test_changelog.INITIAL", tuple(record.to_json() for record in history_rules())
    )
    alerts, state = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("alerts", "state"))
    real_broker.create(alerts)
    real_broker.create(state, 1, cleanup_policy="compact", max_message_bytes=str(RECORD_BYTES))
    topics, folder, lines = Narrow(real_broker, alerts, state), tmp_path / "job", history_lines()[:6_000]
    assert not live(folder, topics, lines, seed, Steps(5 + seed, "5"))
    shutil.rmtree(folder)
    assert live(folder, topics, lines, seed + 1, Steps(100_000))
    expected_alerts = sorted(expected(lines, deployed, tmp_path))
    assert alerts_of(topics, len(expected_alerts)) == expected_alerts
    with StoreSettings(folder).open(folder / "store" / "store") as store:
        heads, panes = largest(store, job)
    assert heads > RECORD_BYTES
    assert panes > RECORD_BYTES
    assert max(len(value) for value in stored(topics).values()) <= part_bytes


def largest(store: DurableStore, job: Job) -> tuple[int, int]:
    """Return the bytes of the largest head, and of the largest segment of panes."""
    heads, panes = [0], [0]
    for group in range(job.groups_count):
        for past in history_pages(store, group, job.domains, job.levels_count, with_segments=True):
            heads.append(len(past.head))
            panes += [s.stored.size for s in decode_head(past.head, _unread).segments if s.panes_number and s.stored]
    return max(heads), max(panes)


def _unread(stored: StoredSegment) -> Block:
    raise AssertionError(f"segment {stored.number} is not asked for")


RELEASE = (pytest.mark.slow,)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=RELEASE) for seed in range(1, 8))])
def test_a_follower_has_what_a_whole_reading_gives(
    seed: int, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHANGELOG_PART_BYTES", 700)  # many entries are in parts, and their number changes
    chance, lines = Random(seed), disordered(list(day()), LATENESS_MS, seed)
    sink = topics.sink()
    follower, folder = topics.of(sink), tmp_path / "standby"
    store = MemoryStore()
    for life in range(3):
        live(tmp_path / "job", topics, lines, seed * 100 + life, Steps(chance.randrange(20, 60)))
        follower.follow(store, folder)
    assert live(tmp_path / "job", topics, lines, seed * 100 + 99, Steps(1_000_000))
    assert follower.is_followed
    committed_ms = follower.replay(store, folder)
    whole = MemoryStore()
    assert topics.of(sink).replay(whole, tmp_path / "whole") == committed_ms
    assert dict(store.scan(ALL_KEYS)) == dict(whole.scan(ALL_KEYS))
    assert not follower.is_followed
    sink.close()
    assert stored(topics)
    assert local(tmp_path / "job").keys() <= dict(whole.scan(ALL_KEYS)).keys()


@pytest.mark.parametrize("lives", [(30, 40), (60, 6), (30, 90)])
def test_a_store_of_before_is_not_gone_on_with(lives: tuple[int, int], topics: Topics, tmp_path: Path) -> None:
    """One process is killed. The other takes over and is killed too, and the first is started again at once."""
    lines = disordered(list(day()), LATENESS_MS, 5)
    for number, steps in enumerate(lives):
        assert not live(tmp_path / f"{number}" / "job", topics, lines, number, Steps(steps))
    assert live(tmp_path / "0" / "job", topics, lines, 9, Steps(1_000_000))
    expected_alerts = sorted(expected(list(day()), GIVEN, tmp_path))
    assert alerts_of(topics, len(expected_alerts)) == expected_alerts


class Scripted(Changelog):
    """A changelog without entries, which reports scripted positions."""

    def __init__(self, script: list[int | Exception]) -> None:
        super().__init__("t", KafkaSettings("nowhere"), None)  # type: ignore[arg-type]  # nothing is written
        self.script = script

    def follow(self, store: object, lists_folder: Path) -> int:
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_standby_waits_through_an_outage_and_ends_with_the_lease(tmp_path: Path) -> None:
    log = Scripted([1, SourceError("no broker"), 7, 9])
    followed: list[int] = []
    folder, stop = tmp_path / "job", threading.Event()
    stand_by(StoreSettings(folder), folder, log, lambda: len(log.script) == 1, stop, followed.append)
    assert followed == [1, 7]
    assert (followed_folder(folder) / STORE_PART).is_dir()
    stop.set()
    stand_by(StoreSettings(folder), folder, log, lambda: False, stop, followed.append)
    assert log.script == [9]
    with pytest.raises(UsageError, match="another job"):
        stand_by(StoreSettings(folder), folder, Scripted([UsageError("another job")]), lambda: False, threading.Event())


def test_what_was_followed_counts_before_a_store_of_before(topics: Topics, tmp_path: Path) -> None:
    """A process that worked once has its own store, and another process has continued since."""
    lines, folder = list(day()), tmp_path / "job"
    assert not live(folder, topics, lines, 1, Steps(30))
    shutil.copytree(folder, tmp_path / "other", ignore=shutil.ignore_patterns("lock"))
    assert live(tmp_path / "other", topics, lines, 2, Steps(1_000_000))
    settings, sink = StoreSettings(folder, cache_bytes=8 << 20), topics.sink()
    log = topics.of(sink)
    with settings.open(followed_folder(folder) / STORE_PART) as store:
        log.follow(store, followed_folder(folder) / "beside")
    opened = open_store(settings, folder, log)
    other = StoreSettings(tmp_path / "other").open(tmp_path / "other" / "store" / "store")
    with opened.store, other:
        assert opened.replayed_ms is not None
        assert opened.head is not None
        mine, theirs = dict(opened.store.scan(ALL_KEYS)), dict(other.scan(ALL_KEYS))
    assert {name: value for name, value in theirs.items() if b"changed" not in name} == mine
    foreign = Changelog(topics.changelog, KafkaSettings(topics.kafka.address), sink, job="another")
    with pytest.raises(UsageError, match="whose folder is called ``, and this one is called `another`"):
        foreign.follow(MemoryStore(), tmp_path / "lists")
    sink.close()
