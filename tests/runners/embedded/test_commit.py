"""The commit protocol: for a crash in any step, however often, the alert stream is the uninterrupted one."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cep.base.errors import SinkError, StateCorruptError, StateFormatError, UsageError
from cep.base.limits import TIME_MS_MIN
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Stepped, Workers
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.run import Pace, Runner
from cep.sinks.base import AlertSink
from cep.sinks.files import FileSink
from cep.state.checkpoints import Checkpoints, Part, checkpoint_numbers
from cep.state.memory import MemoryStore
from cep.state.target import Target
from cep.step.job import Job
from tests.runners.embedded.cases import MINUTE_MS, day, deployment, expected, morning
from tests.runners.embedded.outside import Broker, BrokerSink, Crash, Lines, Steps
from tests.runners.spark.live_cases import END, disordered, rules
from tests.seeds import LATER
from tests.sinks.alerts import alert_table

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
    outlets = Outlets((sink,), None)
    sources = Sources(Lines(lines, random), None)
    commits: Commits | None = None
    engine: Engine | None = None
    try:
        commits = Commits(settings, steps, lambda step: steps(f"checkpoint {step}"))
        workers = Workers(int(random.integers(1, 4)), page_bytes_max=50_000 if backend == "rocksdb" else None)
        engine = Engine(JOB, INITIAL, commits.store, workers)
        runner = Runner(engine, sources, outlets, commits, Pace(interval_ms=0))
        runner.start()
        while not sources.events.ended:
            runner.cycle(0.0)
            if random.random() < 0.5:  # a slow delivery or a slow checkpoint, or none
                commits.finish(wait=True)
        stepped = engine.step([], (END,), {})
        commits.take(stepped)
        runner.finish()
    except (Crash, SinkError):
        return False
    finally:
        if engine is not None:
            engine.close()
        if commits is not None:
            commits.close()  # only so that the next life can open the store
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


@pytest.mark.slow
@pytest.mark.always
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
    assert not commits.begin(engine, Sources(Lines([], np.random.default_rng(0)), None), Outlets((), None))
    assert engine.watermark_ms == TIME_MS_MIN
    commits.close()


def test_a_stream_that_falls_silent_is_checkpointed_all_the_same(tmp_path: Path) -> None:
    """Commits since the last checkpoint reach the target when the next checkpoint is due, even without new records."""
    job = tmp_path / "job"
    commits = Commits(StoreSettings(job, "rocksdb", cache_bytes=8 << 20, checkpoint_ms=3_600_000))
    engine = Engine(JOB, INITIAL, commits.store, Workers(1))
    sources = Sources(Lines(list(morning()), np.random.default_rng(0)), None)
    runner = Runner(engine, sources, Outlets((), None), commits, Pace())
    runner.start()
    while not sources.events.ended:
        runner.cycle(0.0)
    commits.finish(wait=True)
    assert not checkpoint_numbers(Target(str(job / "checkpoints"))), "none was due so far"
    commits._settings = replace(commits._settings, checkpoint_ms=0)
    for _ in range(5):  # no record, and nothing to commit
        runner.cycle(0.0)
        commits.finish(wait=True)
    assert len(checkpoint_numbers(Target(str(job / "checkpoints")))) == 1, "one, as nothing has changed since"
    committed = commits.head
    engine.close()
    commits.close()
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
    for life, interval_ms in enumerate((0, 3_600_000, 3_600_000, 0)):
        # The second of the two ends before a checkpoint is due.
        commits = Commits(replace(settings, checkpoint_ms=3_600_000) if life == 2 else settings)
        engine = Engine(JOB, INITIAL, commits.store, Workers(1))
        # A life that waits reads little, and commits nothing.
        source = Lines(lines[:200] if interval_ms else lines, np.random.default_rng(life))
        outlets = Outlets((FileSink(alerts),), None)
        runner = Runner(engine, Sources(source, None), outlets, commits, Pace(interval_ms=interval_ms))
        runner.start()
        cycles = 0
        while cycles < 5 if interval_ms else not source.ended:
            runner.cycle(0.0)
            commits.finish(wait=True)
            cycles += 1
            if life == 0:  # one checkpoint, and deliveries after it
                commits._settings = replace(settings, checkpoint_ms=3_600_000)
        if life == 3:
            commits.take(engine.step([], (END,), {}))
            runner.finish()
        engine.close()
        commits.close()
        if life == 0:
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
                commits.take(Stepped(alerts, (), Counter()))
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
