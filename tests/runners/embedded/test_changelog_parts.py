"""Entries with more bytes than a record of the changelog allows come in parts, and are whole in a new store."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from cep.base.errors import StateCorruptError, StateFormatError
from cep.base.limits import CHANGELOG_PART_BYTES, CHANGELOG_RECORD_BYTES_MAX, STORE_KEY_BYTES_MAX
from cep.histories.rows import Block
from cep.histories.store import StoredSegment
from cep.lists.store import ListStore
from cep.runners.embedded import changelog
from cep.runners.embedded.changelog import Changelog
from cep.runners.embedded.commit_entries import HEAD
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.pasts import pasts_of_group
from cep.sinks.kafka import KafkaTransactionSink
from cep.sinks.transactions.kafka import KafkaTarget
from cep.sources.kafka import KafkaSettings
from cep.sources.offsets import OffsetRange
from cep.state.keys import ALL_KEYS, KeyRange
from cep.state.memory import MemoryStore
from cep.state.past import decode_head
from cep.state.store import DurableStore, WriteBatch
from cep.step.job import Job
from tests.real_kafka import KafkaCluster
from tests.runners.embedded.cases import deployment, expected
from tests.runners.embedded.outside import Steps
from tests.runners.embedded.test_changelog import JOB, InMemory, Topics, alerts_of, key, live, stored
from tests.runners.spark.test_live_history import history_lines, records
from tests.seeds import seeds

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
    """A changelog in such a topic."""

    def __init__(self, topic: Topic) -> None:
        super().__init__("state", KafkaSettings("nowhere"), topic)
        self._entries = topic.entries

    def _range(self) -> OffsetRange:
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
        log.take(batch, store, lists, number)
        store.write(batch)
        entries, commits = log.hand_over() if chance.random() < 0.6 else ([], ())
        log.carry(entries)
        if chance.random() < 0.8:
            log.settle(commits)
        if chance.random() < 0.3:
            log = Log(topic)
            log.resume(store, lists)
            if chance.random() < 0.3:
                log.carry(log.hand_over()[0])
                store = read_back(topic, tmp_path)
                log = Log(topic)
                log.resume(store, lists)
    log.carry(log.hand_over()[0])
    assert shown(read_back(topic, tmp_path)) == shown(store), f"seed {seed}"
    assert any(changelog._PARTS.begin <= name < changelog._PARTS.end for name, _ in topic.entries)
    latest = dict(topic.entries)
    marks = [value for value in latest.values() if value is not None and value.startswith(changelog._MARK)]
    parts = [value for name, value in latest.items() if value and changelog._PARTS.begin <= name < changelog._PARTS.end]
    assert len(parts) == sum(changelog._MARKED.unpack(mark)[2] for mark in marks), "no part is left behind"
    assert max(map(len, parts), default=0) <= PART_BYTES


def read_back(topic: Topic, folder: Path) -> DurableStore:
    store = MemoryStore()
    assert Log(topic).replay(store, folder) is not None
    return store


def shown(store: DurableStore) -> dict[bytes, bytes]:
    """Return all entries without the changelog's own."""
    return {name: value for name, value in store.scan(ALL_KEYS) if not changelog._is_of_changelog(name)}


def test_parts_that_are_missing_or_of_another_build_are_refused(topic: Topic, tmp_path: Path) -> None:
    log, store, batch = Log(topic), MemoryStore(), WriteBatch()
    batch.put(HEAD, b"1")
    batch.put(key(1), bytes(range(25)))
    log.take(batch, store, ListStore(tmp_path), 1)
    entries = log.hand_over()[0]
    for index, (name, value) in enumerate(entries):
        if changelog._PARTS.begin <= name < changelog._PARTS.end:
            topic.entries[:] = entries[:index] + entries[index + 1 :]
            with pytest.raises(StateCorruptError, match="topic state has 2 of the 3 parts of an entry"):
                Log(topic).replay(MemoryStore(), tmp_path)
        if value is not None and value.startswith(changelog._MARK):
            topic.entries[:] = [(name, changelog._MARKED.pack(changelog._MARK, 2, 3))]
            with pytest.raises(StateFormatError, match=r"in parts of format 2, this build reads 1: start the job with"):
                Log(topic).replay(MemoryStore(), tmp_path)
            topic.entries[:] = [(name, changelog._MARK)]
            with pytest.raises(StateCorruptError, match="does not say how many"):
                Log(topic).replay(MemoryStore(), tmp_path)


class Narrow(Topics):
    """Topics whose client and broker accept no larger records."""

    def sink(self) -> KafkaTransactionSink:
        settings = {"message.max.bytes": str(RECORD_BYTES)}
        return KafkaTransactionSink(KafkaTarget(self.kafka.address, self.alerts, "job", settings))


@pytest.mark.parametrize("seed", seeds(2, inner=0))
def test_a_job_whose_panes_and_heads_are_larger_than_a_record(
    seed: int, kafka_broker: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is lost midway."""
    if not kafka_broker.is_real:
        return
    part_bytes = RECORD_BYTES // 2
    monkeypatch.setattr(changelog, "CHANGELOG_PART_BYTES", part_bytes)
    monkeypatch.setattr("cep.nfa.histories.HISTORY_EVENTS_MAX", 12)
    deployed = deployment(records())
    job = Job(deployed.schema, deployed.key_domains, JOB.groups_count, 1)
    monkeypatch.setattr("tests.runners.embedded.test_changelog.JOB", job)
    monkeypatch.setattr(
        "tests.runners.embedded.test_changelog.INITIAL", tuple(record.to_json() for record in records())
    )
    alerts, state = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("alerts", "state"))
    kafka_broker.create(alerts)
    kafka_broker.create(state, 1, cleanup_policy="compact", max_message_bytes=str(RECORD_BYTES))
    topics, folder, lines = Narrow(kafka_broker, alerts, state), tmp_path / "job", history_lines()[:6_000]
    assert not live(folder, topics, lines, seed, Steps(12 + seed, "5"))
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
        for past in pasts_of_group(store, group, job.domains, job.levels_count, whole=True):
            heads.append(len(past.head))
            panes += [s.stored.size for s in decode_head(past.head, _unread).segments if s.panes and s.stored]
    return max(heads), max(panes)


def _unread(stored: StoredSegment) -> Block:
    raise AssertionError(f"segment {stored.number} is not asked for")
