"""The commit protocol: for a crash in any step, however often, the alert stream is the uninterrupted one.

The start of a job leaves a store that it cannot judge as it is, and asks sinks for the alerts sent since. The ids of
topics are stored with positions: another topic of the same name ends a job, for both of its topics.
"""

import errno
import os
import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import fsspec
import numpy as np
import orjson
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from cep.base.errors import SinkError, StateCorruptError, StateFormatError, StoreError, UsageError
from cep.base.exits import Exit
from cep.base.limits import TIME_MS_MIN
from cep.cli.main import main
from cep.runners.embedded.commit import DELIVERED, Commits, Sources
from cep.runners.embedded.commit_entries import HEAD, Head, read_head
from cep.runners.embedded.engine import Engine, Stepped, Workers
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.run import Pace
from cep.runners.handover.payload import payload_in
from cep.sinks.base import AlertSink
from cep.sinks.files import FileSink
from cep.state.checkpoints import Checkpoints, Part, checkpoint_numbers
from cep.state.memory import MemoryStore
from cep.state.savepoints import open_savepoint
from cep.state.store import WriteBatch
from cep.state.target import Target
from cep.step.job import Job
from tests.real_kafka import KafkaCluster, RealKafka
from tests.runners.embedded.cases import MINUTE_MS, day, decoded, deployment, expected, latest_ms, morning
from tests.runners.embedded.outside import Broker, BrokerSink, Crash, Lines, Steps
from tests.runners.embedded.outside import Process as Life
from tests.runners.spark.live_cases import disordered, rules
from tests.seeds import LATER
from tests.sinks.alerts import alert_table
from tests.small_disk import small_disk

GIVEN = deployment()
INITIAL = tuple(record.to_json() for record in rules().values())
LATENESS_MS = 5 * MINUTE_MS
# Without `ahead_ms`, events do not wait for the end of the backlog, so there are deliveries from the start.
JOB = Job(GIVEN.schema, GIVEN.key_domains, 8, 2, LATENESS_MS, dedup_ms=2 * LATENESS_MS, ahead_ms=None)


@dataclass
class Gated:
    """A sink that waits at a gate, for half a minute at most."""

    sink: AlertSink
    gate: threading.Event

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        assert self.gate.wait(30)
        self.sink.write(alerts, batch_id)

    def close(self) -> None:
        self.sink.close()


def run(folder: Path, sink: AlertSink, lines: list[bytes], seed: int, steps: Steps, backend: str = "memory") -> bool:
    """Run one life of the process; return whether it came to its end."""
    random = np.random.default_rng(seed)
    checkpoint_ms = 0 if random.random() < 0.5 else 10_000
    settings = StoreSettings(folder, backend, kept_count=2, cache_bytes=8 << 20, checkpoint_ms=checkpoint_ms)
    sources = Sources(Lines(lines, random), None)
    try:
        commits = Commits(settings, steps, lambda step: steps(f"checkpoint {step}"))
        workers = Workers(int(random.integers(1, 4)), page_bytes_max=50_000 if backend == "rocksdb" else None)
        with Life(commits, JOB, INITIAL, sources, Outlets((sink,), None), workers, Pace(interval_ms=0)) as life:
            life.read_all(lambda: random.random() < 0.5)  # a slow delivery or a slow checkpoint, or none
            life.end()
    except (Crash, SinkError):
        return False
    return True


@pytest.mark.parametrize("backend", ["memory", pytest.param("rocksdb", marks=LATER)])
@pytest.mark.parametrize("step", ["R1", "1", "2", "3", "4", "5", "R2", "R4"])
def test_a_crash_in_each_step(step: str, backend: str, tmp_path: Path) -> None:
    """Every second life dies in the step, the others in step 5, so that there is a commit to continue from."""
    lines = disordered(list(morning()), LATENESS_MS, seed=1)
    broker, deaths = Broker(), 0
    for life in range(100):
        name = step if life % 2 else "5"
        steps = Steps(1 if name.startswith("R") else 1 + life // 2, name)
        if run(tmp_path / "job", BrokerSink(broker, np.random.default_rng(life), 0.0), lines, life, steps, backend):
            break
        deaths += name == step
    assert deaths > 0
    assert sorted(broker.all()) == sorted(expected(list(morning()), GIVEN, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "backend"),
    [
        pytest.param(1, "memory", marks=pytest.mark.always),
        pytest.param(2, "rocksdb", marks=pytest.mark.always),
        (3, "rocksdb"),
    ],
)
def test_crashes_redelivery_and_a_sink_that_refuses(seed: int, backend: str, tmp_path: Path) -> None:
    """Random lives; a failure names its seed by its parameter."""
    random = np.random.default_rng(seed)
    original = disordered(list(morning()), LATENESS_MS, seed)
    lines = list(original)
    for position in sorted(random.integers(200, len(lines), 10).tolist(), reverse=True):
        lines[position:position] = lines[position - 30 : position]  # the source itself delivers twice
    broker = Broker()
    for life in range(300):
        sink = BrokerSink(broker, np.random.default_rng([seed, life]), 0.03)
        if run(
            tmp_path / "job", sink, lines, seed * 1_000 + life, Steps(int(random.integers(3, 25)) + life // 3), backend
        ):
            break
    else:
        pytest.fail(f"it never came to its end, seed {seed}")
    assert sorted(broker.all()) == sorted(expected(list(morning()), GIVEN, tmp_path))
    assert life > 2


def test_files_hold_each_alert_once(tmp_path: Path) -> None:
    lines = disordered(list(morning()), LATENESS_MS, seed=5)
    for life in range(100):
        if run(tmp_path / "job", FileSink(tmp_path / "alerts"), lines, life, Steps(9 + 4 * life)):
            break
    lines_of_files = [
        line for path in sorted((tmp_path / "alerts").iterdir()) for line in path.read_bytes().splitlines()
    ]
    assert sorted(lines_of_files) == sorted(expected(list(morning()), GIVEN, tmp_path))


@pytest.mark.parametrize("harm", ["lost", "damaged"])
def test_without_its_store_a_job_goes_on_from_the_checkpoint_and_sends_nothing_again(harm: str, tmp_path: Path) -> None:
    """Commits after the checkpoint have delivered alerts that the checkpoint does not know. The sink knows them."""
    lines = disordered(list(day()), LATENESS_MS, seed=5)
    alerts, job, harmed = tmp_path / "alerts", tmp_path / "job", 0
    for life in range(100):
        if run(job, FileSink(alerts), lines, life, Steps(4 + life // 10, "2"), "rocksdb"):
            break
        store = job / "store" / "store"
        if life % 2 and list((job / "checkpoints").glob("*.manifest")):
            harmed += 1
            if harm == "lost":
                shutil.rmtree(job / "store")
            else:
                (store / (store / "CURRENT").read_text().strip()).write_bytes(b"torn")
    assert harmed > 0
    lines_of_files = [line for path in sorted(alerts.iterdir()) for line in path.read_bytes().splitlines()]
    assert sorted(lines_of_files) == sorted(expected(list(day()), GIVEN, tmp_path))


def test_a_store_that_is_behind_another_process_is_not_gone_on_with(tmp_path: Path) -> None:
    """The store belongs to a job that continued elsewhere from the same checkpoints."""
    settings = StoreSettings(tmp_path / "a", "rocksdb", str(tmp_path / "target"), cache_bytes=8 << 20, checkpoint_ms=0)
    sources, outlets = Sources(Lines([], np.random.default_rng(0)), None), Outlets((), None)
    lineages = []
    for folder in ("a", "a", "b", "a"):
        commits = Commits(replace(settings, folder=tmp_path / folder))
        engine = Engine(JOB, INITIAL, commits.store, Workers(1))
        commits.resume(engine, sources, outlets)
        commits.begin(engine, sources, outlets)
        commits.finish(wait=True)
        assert commits.head is not None
        lineages.append(commits.head.lineage)
        engine.close()
        commits.close()
    assert lineages[0] == lineages[1]
    assert len(set(lineages)) == 3, "b has a store of its own, and a takes b's checkpoint"


def test_a_damaged_checkpoint_is_passed_over_and_damage_everywhere_is_told(tmp_path: Path) -> None:
    lines = list(morning())
    broker = Broker()
    assert not run(tmp_path / "job", BrokerSink(broker, np.random.default_rng(0), 0.0), lines, 0, Steps(2, "5"))
    target = tmp_path / "job" / "checkpoints"
    newest = max(target.glob("checkpoint-*"))
    newest.write_bytes(newest.read_bytes()[:-10])
    commits = Commits(StoreSettings(tmp_path / "job", "memory"))
    assert commits.head is not None
    assert len(commits.refused) == 1
    commits.close()
    for manifest in target.glob("checkpoint-*"):
        manifest.write_bytes(b"torn")
    with pytest.raises(StateCorruptError, match="no checkpoint"):
        Commits(StoreSettings(tmp_path / "job", "memory"))


def test_a_folder_of_another_format_is_refused_by_name(tmp_path: Path) -> None:
    target, store = Target(str(tmp_path / "job" / "checkpoints")), MemoryStore()
    with Checkpoints(target, tmp_path / "links") as writer:
        copying = writer.begin((Part("store", store, 0, 8),), b'{"format": 1}', 0)
        assert copying is not None
        copying.result()
    with pytest.raises(StateFormatError, match="format 1, this build reads 4"):
        Commits(StoreSettings(tmp_path / "job", "memory"))


def test_without_a_folder_nothing_is_kept() -> None:
    commits = Commits(StoreSettings(None))
    engine = Engine(JOB, INITIAL, commits.store, Workers(1))
    assert engine.watermark_ms == TIME_MS_MIN
    lines = list(morning())[:200]
    engine.step(decoded(JOB, lines), (), {"p": (latest_ms(lines), False)})
    engine._last_alerts.put({("rule", "key"): (0, 1, 2, 0.0)})
    assert not commits.begin(engine, Sources(Lines([], np.random.default_rng(0)), None), Outlets((), None))
    assert engine._last_alerts.changed() == {}
    assert not any(share.waiting._unsaved for share in engine._shares.all)
    assert any(share.waiting._waiting for share in engine._shares.all)
    commits.close()


def test_a_stream_that_falls_silent_is_checkpointed_all_the_same(tmp_path: Path) -> None:
    """Commits since the last checkpoint reach the target when the next checkpoint is due, even without new records."""
    job = tmp_path / "job"
    commits = Commits(StoreSettings(job, "rocksdb", cache_bytes=8 << 20, checkpoint_ms=3_600_000))
    sources = Sources(Lines(list(morning()), np.random.default_rng(0)), None)
    with Life(commits, JOB, INITIAL, sources) as life:
        life.read_all()
        commits.finish(wait=True)
        assert not checkpoint_numbers(Target(str(job / "checkpoints"))), "none was due so far"
        assert commits.checkpoints is not None
        commits.checkpoints.interval_s = 0
        for _ in range(5):  # no record, and nothing to commit
            life.runner.cycle(0.0)
            commits.finish(wait=True)
        assert len(checkpoint_numbers(Target(str(job / "checkpoints")))) == 1, "one, as nothing has changed since"
        committed = commits.head
    shutil.rmtree(job / "store")  # the disk is lost, without an orderly end
    again = Commits(StoreSettings(job, "rocksdb", cache_bytes=8 << 20))
    assert committed is not None
    assert again.head is not None
    assert again.head.positions == committed.positions
    assert again.head.batch_id == committed.batch_id > 0, "micro-batches are counted on"
    again.close()


def test_a_store_that_was_brought_back_is_not_checkpointed_before_it_has_a_commit(tmp_path: Path) -> None:
    """Two lives without a commit come after the loss of the disk. The next life still asks the sinks."""
    job, alerts = tmp_path / "job", tmp_path / "alerts"
    settings = StoreSettings(job, "rocksdb", cache_bytes=8 << 20, checkpoint_ms=0)
    lines = disordered(list(morning()), LATENESS_MS, seed=1)
    for number, interval_ms in enumerate((0, 3_600_000, 3_600_000, 0)):
        # The second of the two ends before a checkpoint is due.
        commits = Commits(replace(settings, checkpoint_ms=3_600_000) if number == 2 else settings)
        # A life that waits reads little, and commits nothing.
        source = Lines(lines[:200] if interval_ms else lines, np.random.default_rng(number))
        outlets, pace = Outlets((FileSink(alerts),), None), Pace(interval_ms=interval_ms)
        with Life(commits, JOB, INITIAL, Sources(source, None), outlets, pace=pace) as life:
            life.runner.start()
            cycles = 0
            while cycles < 5 if interval_ms else not source.ended:
                life.runner.cycle(0.0)
                commits.finish(wait=True)
                cycles += 1
                if number == 0:  # one checkpoint, and deliveries after it
                    assert commits.checkpoints is not None
                    commits.checkpoints.interval_s = 3_600
            if number == 3:
                life.end()
        if number == 0:
            assert len(checkpoint_numbers(Target(str(job / "checkpoints")))) == 1
            assert len(list(alerts.iterdir())) > 1
            shutil.rmtree(job / "store")
    lines_of_files = [line for path in sorted(alerts.iterdir()) for line in path.read_bytes().splitlines()]
    assert sorted(lines_of_files) == sorted(expected(list(morning()), GIVEN, tmp_path))


def test_a_folder_belongs_to_one_process(tmp_path: Path) -> None:
    first = Commits(StoreSettings(tmp_path / "job", "memory"))
    with pytest.raises(UsageError, match="in use by process"):
        Commits(StoreSettings(tmp_path / "job", "memory"))
    first.close()
    Commits(StoreSettings(tmp_path / "job", "memory")).close()


def test_a_delivery_that_a_commit_without_alerts_began_comes_again_under_its_own_number(tmp_path: Path) -> None:
    """Commits continue during the delivery; the next life repeats it under its number, not under the alerts' commit."""
    broker, gate = Broker(), threading.Event()
    settings = StoreSettings(tmp_path / "job", "rocksdb", cache_bytes=8 << 20)
    for life in range(2):
        sink = BrokerSink(broker, np.random.default_rng(0), 0.0)
        outlets = Outlets((Gated(sink, gate) if life == 0 else sink,), None)
        commits = Commits(settings)
        engine = Engine(JOB, INITIAL, commits.store, Workers(1))
        sources = Sources(Lines([], np.random.default_rng(0)), None)
        commits.resume(engine, sources, outlets)
        if life == 0:
            for alerts in (alert_table(0, 1), alert_table(1, 1)):  # the second waits for the first one's delivery
                commits.deliveries.take(Stepped(alerts, (), Counter()))
                commits.begin(engine, sources, outlets)
            gate.set()
            commits.finish(wait=True)
            gate.clear()
            for _ in range(2):  # the first cycle delivers the waiting alerts, the second sees them on their way
                commits.begin(engine, sources, outlets)
            gate.set()
        engine.close()
        commits.close()
    assert sorted(broker.delivered) == [1, 3]
    assert broker.redelivered == 1


class Remote(MemoryFileSystem):  # type: ignore[misc] # fsspec publishes no types
    """An object store that may be unreachable."""

    protocol = "remote"
    is_away = False

    def _reach(self) -> None:
        if self.is_away:
            raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self._reach()
        return super().ls(path, detail, **options)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self._reach()
        super().pipe_file(path, value, **options)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())


@pytest.fixture
def remote() -> Iterator[str]:
    fsspec.register_implementation("remote", Remote, clobber=True)
    yield f"remote://{uuid4()}"
    Remote.is_away = False


@dataclass
class Process:
    """A job that reads no records and commits on request."""

    settings: StoreSettings
    failed: list[StoreError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.commits = Commits(self.settings, on_failed=self.failed.append)
        self._engine = Engine(JOB, INITIAL, self.commits.store, Workers(1))
        self._ends = Sources(Lines([], np.random.default_rng(0)), None), Outlets((), None)
        self.commits.resume(self._engine, *self._ends)

    def commit(self) -> int:
        assert self.commits.begin(self._engine, *self._ends)
        self.commits.finish(wait=True)
        return self.number

    def commit_until_refused(self) -> None:
        """A full disk refuses at once; a limit on files refuses after the log has grown to it."""
        for _ in range(1_000):
            self.commit()

    def settle(self) -> None:
        self.commits.settle(self._engine, *self._ends)

    @property
    def number(self) -> int:
        """Return the number of the last commit; 0 for a new job."""
        return 0 if self.commits.head is None else self.commits.head.number

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()
        self.commits.close()


def settings_of(folder: Path, target: str | None = None, checkpoint_ms: int = 0) -> StoreSettings:
    return StoreSettings(folder, "rocksdb", target, cache_bytes=8 << 20, checkpoint_ms=checkpoint_ms)


def test_a_target_out_of_reach_stops_no_job_that_runs_and_costs_no_store(remote: str, tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "job", remote)
    with Process(settings) as job:
        job.commit()
        Remote.is_away = True
        assert [job.commit() for _ in range(3)] == [2, 3, 4]
        job.settle()
        assert len(job.failed) == job.commits.totals["checkpoints_failed"] == 5, "one for each commit, one at the end"
        assert "No route to host" in str(job.failed[0])
        assert not (tmp_path / "job" / DELIVERED).exists(), "the newest checkpoint is not of the end"
    with pytest.raises(StoreError, match="No route to host"):
        Commits(settings)
    Remote.is_away = False
    with Process(settings) as job:
        assert job.number == 5, "which only this disk has"
        assert job.commits.totals["checkpoints_failed"] == 3, "as the last commit knew"
        job.settle()
        assert not job.failed
    assert (tmp_path / "job" / DELIVERED).exists()


def test_in_memory_a_commit_is_its_checkpoint_and_a_target_out_of_reach_ends_the_job(
    remote: str, tmp_path: Path
) -> None:
    with Process(StoreSettings(tmp_path / "job", "memory", remote)) as job:
        job.commit()
        Remote.is_away = True
        with pytest.raises(StoreError, match="No route to host"):
            job.commit()
        assert not job.failed


def test_a_full_disk_costs_no_store_and_the_job_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16) as disk:
        settings = settings_of(disk.folder / "job", checkpoint_ms=3_600_000)
        with Process(settings) as job:
            job.commit()
            disk.fill(0)
            with pytest.raises(StoreError, match="make room on the disk, then start again"):
                job.commit_until_refused()
            last = job.number
        with pytest.raises(StoreError, match="make room"):
            Process(settings)
        disk.free()
        with Process(settings) as job:
            assert job.number == last, "and nothing was gone back to"
            job.commit()


@pytest.mark.parametrize("harm", ["damaged", "marked"])
def test_a_damaged_store_without_a_checkpoint_is_told_and_stays(harm: str, tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "job", checkpoint_ms=3_600_000)
    store = tmp_path / "job" / "store" / "store"
    with Process(settings) as job:
        job.commit()
        if harm == "marked":
            job.commits.distrust()
    if harm == "damaged":
        (store / "CURRENT").write_text("MANIFEST-000099\n")
    with pytest.raises(StateCorruptError, match=r"no checkpoint in .* to go back to: restore a savepoint"):
        Commits(settings)
    assert (store / "CURRENT").exists()


def test_what_was_brought_back_asks_again_until_a_commit_keeps_the_answer(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "job", checkpoint_ms=3_600_000)
    with Process(replace(settings, checkpoint_ms=0)) as job:
        job.commit()
    shutil.rmtree(tmp_path / "job" / "store")
    from_checkpoint = []
    for _ in range(2):  # each of them ends before its first commit
        with Process(settings) as job:
            from_checkpoint.append(job.commits.from_checkpoint_ms is not None)
    with Process(settings) as job:
        from_checkpoint.append(job.commits.from_checkpoint_ms is not None)
        job.commit()
    with Process(settings) as job:
        assert job.number == 2
        from_checkpoint.append(job.commits.from_checkpoint_ms is not None)
    assert from_checkpoint == [True, True, True, False], (
        "the last one goes on here, though no checkpoint has its commit"
    )


ROOT = Path(__file__).parents[3]


def run_on_topics(kafka: KafkaCluster, folder: Path, events: str, control: str) -> int:
    """Run one life of a job, to the end of the records."""
    topics = ["--bootstrap-servers", kafka.address, "--topic", events, "--control-topic", control]
    return main(["run", "--rules", str(ROOT / "rules"), *topics, "--checkpoint", str(folder), "--available-now"])


@pytest.mark.parametrize("number", [0, 1], ids=["events", "control"])
def test_a_topic_that_was_created_again_ends_the_job(
    number: int, real_broker: RealKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # the mock cannot delete topics
    topics = [f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("events", "control")]
    for topic in topics:
        real_broker.create(topic, 1)
    heartbeat = orjson.dumps({"kind": "heartbeat", "event_time_ms": 0})
    records = [[{"value": line} for line in morning()[:200]], [{"value": heartbeat}]]
    for topic, sent in zip(topics, records, strict=True):
        real_broker.send(topic, sent)
    assert run_on_topics(real_broker, tmp_path / "job", *topics) == 0
    assert run_on_topics(real_broker, tmp_path / "job", *topics) == 0, "the same topics are read on"
    saved = tmp_path / "saved"
    assert main(["job", "savepoint", "--checkpoint", str(tmp_path / "job"), "--to", str(saved)]) == 0
    assert set(payload_in(open_savepoint(Target(str(saved)), tmp_path / "work")).topic_ids) == set(topics)
    real_broker.create_again(topics[number], 1)
    real_broker.send(topics[number], records[number] * 2)  # all offsets of the old topic exist in the new one
    capsys.readouterr()
    assert run_on_topics(real_broker, tmp_path / "job", *topics) == Exit.FINAL
    message = capsys.readouterr().err
    assert f"cep: topic {topics[number]} was deleted and created again" in message
    assert "start with a new checkpoint" in message
    restore = ["job", "restore", "--from", str(saved), "--checkpoint"]
    assert main([*restore, str(tmp_path / "restored")]) == 0
    assert run_on_topics(real_broker, tmp_path / "restored", *topics) == Exit.FINAL
    assert run_on_topics(real_broker, tmp_path / "new", *topics) == 0
    totals = orjson.loads((tmp_path / "new" / "progress.json").read_bytes())["totals"]
    assert totals["events"] == (400 if number == 0 else 200)


def test_a_commit_of_a_build_without_ids_is_read() -> None:
    store, batch = MemoryStore(), WriteBatch()
    Head(3, 0, "a", range(8), {}, {"events": {"t[0]": 5}, "control": {}}, topic_ids={"t": "id"}).save(batch)
    store.write(batch)
    head = read_head(store)
    assert head is not None
    assert head.topic_ids == {"t": "id"}
    fields = orjson.loads(store.get(HEAD) or b"")
    del fields["topic_ids"]
    older = WriteBatch()
    older.put(HEAD, orjson.dumps(fields))
    store.write(older)
    head = read_head(store)
    assert head is not None
    assert head.topic_ids == {}
    assert head.positions["events"] == {"t[0]": 5}
