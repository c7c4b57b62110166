"""A job over many short lives with a fault in each: its alerts equal the alerts of one life without faults.

The fault is drawn from a seed: an end before any step of a commit, a checkpoint or a start, with the disk as it is at
that moment; a log torn after its last sync, as by a power cut, or changed before it; a store that is lost or damaged; a
checkpoint with a torn, changed or missing file; a full disk; a source that gives records again; a wall clock that
jumps; a sink that is slow or refuses.

A job that was cut off halfway finds files of a later format or with a changed byte: it names the file or repairs it.
"""

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pyarrow as pa
import pytest

from cep.base.errors import CepError, SinkError, StateCorruptError, StateFormatError
from cep.runners.embedded import run as run_module
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.commit_entries import HEAD
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import STORE_PART, StoreSettings, store_folder
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.run import Pace, Runner
from cep.runners.embedded.waiting import ADDED_WAITING
from cep.runners.handover.group_entries import PAGES, PAST, SEGMENTS
from cep.sinks.base import Recalled
from cep.sinks.files import FileSink
from cep.sources.live.base import Chunk, Positions
from cep.state.checkpoints import PAYLOAD, checkpoint_numbers, read_manifest
from cep.state.manifest import FOLDER, Manifest, fetch
from cep.state.rocks import RocksStore
from cep.state.store import ALL_KEYS, STORE_GROUP, split_key, store_key
from cep.state.target import Target
from cep.step.job import Job
from tests.runners.embedded.cases import MINUTE_MS, deployment, expected, morning, suppressing
from tests.runners.embedded.outside import Crash, Process, TwoLanes
from tests.runners.spark.live_cases import END, disordered
from tests.seeds import LATER, RELEASE, seeds
from tests.small_disk import SmallDisk, small_disk

GIVEN = deployment(suppressing())
INITIAL = tuple(record.to_json() for record in suppressing())
LATENESS_MS = 5 * MINUTE_MS
JOB = Job(GIVEN.schema, GIVEN.key_domains, 8, 2, LATENESS_MS, dedup_ms=2 * LATENESS_MS)
POLL_MAX = 60  # records: a life that comes to its end has about fifty micro-batches
HELD_MAX = 40
LIVES_MAX = 120
DISK_MB = 64
SLOW_S = 0.02
# Records that a source gives again are counted again. Some counts depend on the cuts into micro-batches; the heartbeat
# comes again in a life that continues after the last commit.
SOURCE_COUNTERS = {"records", "events"}
CUT_COUNTERS = {"runs_expired", "control_heartbeat"}
# The faults of one life, besides its end at some step.
MEMORY_FAULTS = ("none", "torn checkpoint", "full disk", "again", "clock", "slow", "refuses")
FAULTS = (*MEMORY_FAULTS, "torn log", "changed log", "lost", "damaged")
COPIES_MAX = 100  # of a store that a thread may still write


@dataclass
class Replayable(TwoLanes):
    """After a seek the source may go back further than requested; its positions count by how much."""

    chance: Random
    further: int = 0
    before_poll: Callable[[], None] = lambda: None
    again: int = 0

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        self.before_poll()
        return self.give(self.chance.randrange(POLL_MAX))

    def positions(self) -> Positions:
        return {"all": self.at, "again": self.again}

    def seek(self, positions: Mapping[str, int]) -> None:
        self.at = max(0, positions["all"] - self.further)
        self.again = positions["again"] + positions["all"] - self.at


@dataclass
class Hampered:
    """The folder of alerts with a connection that is slow, or fails before or after the write."""

    sink: FileSink
    chance: Random
    fault: str

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        if self.fault == "slow":
            time.sleep(SLOW_S * self.chance.random())
        refusal = self.chance.random() if self.fault == "refuses" else 1.0
        if refusal < 0.1:
            raise SinkError("no way there")
        self.sink.write(alerts, batch_id)
        if refusal < 0.2:
            raise SinkError("no way back")

    def place(self) -> str:
        return self.sink.place()

    def recall(self, after: int, since_ms: int, places: Sequence[str] = ()) -> Recalled:
        return self.sink.recall(after, since_ms, places)

    def close(self) -> None:
        self.sink.close()


@dataclass
class World:
    """The state that stays from one life to the next."""

    seed: int
    backend: str
    disk: SmallDisk
    alerts: Path
    lines: list[bytes]
    chance: Random
    clock_s: float = 0.0  # the error of the wall clock
    torn: set[int] = field(default_factory=set)  # damaged checkpoints
    met: Counter[str] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    again: int = 0

    @property
    def job(self) -> Path:
        return self.disk.folder / "job"

    @property
    def store(self) -> Path:
        return self.job / "store" / "store"

    @property
    def target(self) -> Target:
        return Target(str(self.job / "checkpoints"))

    def whole(self) -> list[int]:
        """Return the checkpoints without damage."""
        return [number for number in checkpoint_numbers(self.target) if number not in self.torn]

    @property
    def image(self) -> Path:
        """Return the store as the end of a life has left it."""
        return self.alerts.with_name("image")

    def logs(self) -> dict[str, int]:
        """Return the bytes of the store's logs."""
        return {path.name: size for path, (size, _) in _files(self.store, "*.log").items()}

    def take_image(self) -> None:
        """Copy the disk of a dead process; closing the store would write more."""
        for _ in range(COPIES_MAX if self.store.exists() else 0):
            shutil.rmtree(self.image, ignore_errors=True)
            before = _files(self.store)
            with suppress(shutil.Error, FileNotFoundError):  # RocksDB has removed a file during the copy
                shutil.copytree(self.store, self.image)
                if _files(self.store) == before:
                    return
        assert not self.store.exists(), "the store does not hold still"

    def put_image(self) -> None:
        """Restore the disk from the copy."""
        if self.image.exists():
            shutil.rmtree(self.store)
            shutil.move(self.image, self.store)
            self.met["cut off"] += 1


@dataclass
class Life:
    """One process: its fault, and the step before which it ends. Afterwards none of its threads begins another step.

    `is_unsynced`: it has ended before the sync of the last commit; `synced` are the bytes of logs that were on the disk
    before that commit.
    """

    world: World
    fault: str
    steps_left: int
    is_unsynced: bool = False
    synced: dict[str, int] = field(default_factory=dict)
    is_gone: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def on_step(self, step: object) -> None:
        with self.lock:
            self._on_step(str(step))

    def _on_step(self, step: str) -> None:
        world = self.world
        if step == "2":  # the last commit is on the disk, and nothing was written since
            self.synced = world.logs()
        self.steps_left -= 1
        if self.steps_left == 0 and self.fault == "full disk" and not self.is_gone:
            world.disk.fill(world.chance.randrange(16_000))
        elif self.steps_left == 0:
            world.met[f"end at {step}"] += 1
            self.is_gone = True
        if self.is_gone:
            self.is_unsynced = self.is_unsynced or step == "3"
            raise Crash(step)

    def _end(self) -> None:
        """End the life, for any fault."""
        with self.lock:
            self.is_gone = True
            self.world.disk.free()

    def is_over(self) -> bool:
        """Live; return whether the life came to the end of the stream."""
        world, chance = self.world, self.world.chance
        settings = StoreSettings(
            world.job, world.backend, kept_count=3, cache_bytes=8 << 20, checkpoint_ms=chance.choice((0, 0, 10_000))
        )
        source = Replayable(world.lines, chance, chance.randrange(300) if self.fault == "again" else 0)
        sink = Hampered(FileSink(world.alerts), Random(chance.getrandbits(32)), self.fault)  # in a thread of its own
        outlets = Outlets((sink,), None)
        engine, commits = None, None
        try:
            commits = Commits(settings, self.on_step, lambda step: self.on_step(f"checkpoint {step}"))
            workers = Workers(chance.randrange(1, 4), page_bytes_max=50_000 if world.backend == "rocksdb" else None)
            engine = Engine(JOB, INITIAL, commits.store, workers)
            runner = Runner(engine, Sources(source, None), outlets, commits, Pace(chance.choice((0, 0, 3_600_000))))
            current_commits = commits

            def before_poll() -> None:
                waiting = current_commits.deliveries.undelivered_count
                assert waiting <= HELD_MAX, "nothing is read for a sink that does not take"

            source.before_poll = before_poll
            self._work(runner, source, commits, engine)
        except Crash:
            if world.backend == "rocksdb":
                world.take_image()
            return False
        except CepError as error:
            is_reason_told = {"full disk": "make room", "refuses": "no way"}.get(self.fault, "?") in str(error)
            if not is_reason_told:
                raise
            self.world.met[self.fault] += 1
            return False
        finally:
            self._end()
            if engine is not None:
                engine.close()
            if commits is not None:
                commits.close()  # only so that the next life can open the store
            world.put_image()
        world.totals, world.again = commits.totals, source.again
        return True

    def _work(self, runner: Runner, source: Replayable, commits: Commits, engine: Engine) -> None:
        chance = self.world.chance
        runner.start()
        while not source.ended:
            if self.fault == "clock" and chance.random() < 0.1:
                self.world.clock_s += chance.choice((-86_400, -3, 3, 86_400))
            runner.cycle(0.0)
            if chance.random() < 0.3:  # a slow delivery or a slow checkpoint, or none
                commits.finish(wait=True)
        stepped = engine.step([], (END,), {})
        commits.deliveries.take(stepped)
        commits.totals.update(stepped.counters)
        runner.finish()

    def harm(self) -> None:
        """Damage the disk after a life has ended."""
        world, chance = self.world, self.world.chance
        if self.fault == "torn log" and self.is_unsynced:
            world.met["torn log"] += _torn(world.store, self.synced, chance)
        if self.fault == "changed log" and world.whole():
            world.met["changed log"] += _changed(world.store, self.synced, chance)
        if self.fault == "torn checkpoint":
            self._tear_checkpoint()
        if self.fault in ("lost", "damaged", "torn checkpoint") and world.store.exists() and world.whole():
            world.met[self.fault] += 1
            if self.fault == "damaged":
                name = chance.choice(("CURRENT", (world.store / "CURRENT").read_text().strip()))
                (world.store / name).write_bytes(b"torn")
            else:
                shutil.rmtree(world.job / "store")

    def _tear_checkpoint(self) -> None:
        """Damage the manifest of the newest checkpoint, or a file that only the newest checkpoint has."""
        world, chance = self.world, self.world.chance
        numbers = checkpoint_numbers(world.target)
        if len(world.whole()) < 2 or numbers[-1] in world.torn:
            return
        files = {n: {f.sha256 for f in read_manifest(world.target, n).files} for n in numbers if n not in world.torn}
        others = set[str]().union(*(files[number] for number in files if number != numbers[-1]))
        folder = world.job / "checkpoints"
        own_files = [folder / FOLDER / name for name in sorted(files[numbers[-1]] - others)]
        path = chance.choice([*own_files, folder / f"checkpoint-{numbers[-1]:08}.manifest"])
        good = path.read_bytes()
        path.unlink()  # the store may have the same file under another name
        if chance.random() < 0.7 or path.parent == folder:
            position = chance.randrange(len(good)) if good else 0
            changed = bytes([good[position] ^ 255]) + good[position + 1 :] if good and chance.random() < 0.5 else b""
            path.write_bytes(good[:position] + changed)
        world.torn.add(numbers[-1])


def _torn(store: Path, synced: Mapping[str, int], chance: Random) -> bool:
    """Lose a part of the log after its last sync, as if it was never written."""
    for path in sorted(store.glob("*.log")):
        data = path.read_bytes()
        synced_bytes = synced.get(path.name, len(data))
        if synced_bytes < len(data):
            position = chance.randrange(synced_bytes, len(data))
            path.write_bytes(
                data[:position] if chance.random() < 0.5 else data[:position] + bytes(len(data) - position)
            )
            return True
    return False


def _changed(store: Path, synced: Mapping[str, int], chance: Random) -> bool:
    """Change a byte of the synced part of a log."""
    for path in sorted(store.glob("*.log")):
        data = bytearray(path.read_bytes())
        if synced.get(path.name):
            data[chance.randrange(synced[path.name])] ^= 1 << chance.randrange(8)
            path.write_bytes(data)
            return True
    return False


def _files(folder: Path, pattern: str = "*") -> dict[Path, tuple[int, int]]:
    """Return size and time of change of each file; RocksDB may remove files at the same time."""
    size_and_time: dict[Path, tuple[int, int]] = {}
    for path in folder.glob(pattern):
        with suppress(FileNotFoundError):
            about = path.stat()
            size_and_time[path] = about.st_size, about.st_mtime_ns
    return size_and_time


def test_a_log_that_goes_while_it_is_looked_at_has_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "1.log").write_bytes(b"abc")
    (tmp_path / "2.log").symlink_to(tmp_path / "gone")  # in the folder, but gone when it is opened
    assert {path.name: size for path, (size, _) in _files(tmp_path, "*.log").items()} == {"1.log": 3}


def lived(world: World, monkeypatch: pytest.MonkeyPatch) -> int:
    """Live until one life comes to the end of the stream; return the number of lives."""
    wall_clock = time.time
    monkeypatch.setattr(time, "time", lambda: wall_clock() + world.clock_s)
    monkeypatch.setattr(run_module, "UNDELIVERED_MAX", HELD_MAX - 30)
    for number in range(LIVES_MAX):
        life = Life(
            world,
            world.chance.choice(FAULTS if world.backend == "rocksdb" else MEMORY_FAULTS),
            world.chance.randrange(2, 40) + number,
        )

        def fetched(*arguments: Any, own: Life = life) -> None:
            own.on_step("R1 fetch")
            fetch(*arguments)

        monkeypatch.setattr("cep.state.checkpoints.fetch", fetched)
        world.met[life.fault] += life.fault in ("again", "clock", "slow")
        if life.is_over():
            return number + 1
        life.harm()
    pytest.fail(f"it never came to its end, seed {world.seed}: {world.met}")


def uninterrupted(lines: list[bytes]) -> Counter[str]:
    """Return the totals of one life without faults."""
    sources = Sources(Replayable(lines, Random(0)), None)
    with Process(Commits(StoreSettings(None)), JOB, INITIAL, sources, pace=Pace(sends_at_once=True)) as life:
        life.read_all()
        life.commits.totals.update(life.engine.step([], (END,), {}).counters)
    return life.commits.totals


SEEDS = [pytest.param(seed, marks=LATER if seed == 0 else RELEASE) for seed in range(40)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_over_many_lives(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = disordered(list(morning()), LATENESS_MS, seed)
    backend = "memory" if seed % 3 == 2 else "rocksdb"
    # A third of the seeds keep their state in memory.
    with small_disk(tmp_path / "disk", DISK_MB) as disk:
        world = World(seed, backend, disk, tmp_path / "alerts", lines, Random(seed))
        lives = lived(world, monkeypatch)
    alerts = [line for path in sorted(world.alerts.iterdir()) for line in path.read_bytes().splitlines()]
    assert sorted(alerts) == sorted(expected(list(morning()), GIVEN, tmp_path)), f"seed {seed}: {world.met}"
    assert lives > 3, f"seed {seed}: {world.met}"
    expected_totals, totals, again = uninterrupted(lines), world.totals, world.again
    assert totals["records"] == len(lines) + again, f"seed {seed}"
    assert totals["duplicates"] + totals["late_events"] == again, f"seed {seed}"
    for name in expected_totals.keys() - CUT_COUNTERS:
        assert totals[name] - again * (name in SOURCE_COUNTERS) == expected_totals[name], f"seed {seed}: {name}"


SEED = 1
BUSY = """
pattern busy by card_id {
  seq    one
  where  one: transaction  amount > 20.00 and count(transaction over 1 h) > 3
}
"""
_OTHERS = suppressing()
_BUSY = {"id": "busy", "pattern": "busy", "source": _OTHERS[-1].source + BUSY, "suppress": None, "escalate": None}
RULES = [*_OTHERS, _OTHERS[-1].model_copy(update=_BUSY)]
DAMAGED_GIVEN = deployment(RULES)
assert not DAMAGED_GIVEN.rulebook.ledger.refusals, "all rules are in force"
DAMAGED_INITIAL = tuple(record.to_json() for record in RULES)
DAMAGED_JOB = Job(
    DAMAGED_GIVEN.schema, DAMAGED_GIVEN.key_domains, 8, 2, LATENESS_MS, dedup_ms=2 * LATENESS_MS, ahead_ms=None
)


@cache
def lines() -> tuple[bytes, ...]:
    return tuple(disordered(list(morning()), LATENESS_MS, SEED))


@dataclass(frozen=True)
class Halfway:
    """The places where a job is cut off: a checkpoint after one share of its lines, and an end after another."""

    checkpoint: float = 0.3
    end: float = 0.6


def live(folder: Path, cut_off: Halfway | None = None) -> None:
    """Run one life of the job in the folder, to the end of its lines or until it is cut off.

    A life that is cut off leaves the disk as a dead process does.

    Raises: CepError.
    """
    settings = StoreSettings(folder / "job", "rocksdb", kept_count=2, cache_bytes=8 << 20, checkpoint_ms=3_600_000)
    outlets = Outlets((FileSink(folder / "alerts"),), None)
    source = Replayable(list(lines()), Random(SEED))
    commits, workers = Commits(settings), Workers(1, page_bytes_max=50_000)
    with Process(commits, DAMAGED_JOB, DAMAGED_INITIAL, Sources(source, None), outlets, workers) as life:
        try:
            life.runner.start()
            while not source.ended and (cut_off is None or source.at < cut_off.end * len(lines())):
                before = source.at
                life.runner.cycle(0.0)
                if cut_off is not None and before < cut_off.checkpoint * len(lines()) <= source.at:
                    commits.checkpoint(life.engine)
                commits.finish(wait=True)
            if cut_off is not None:
                shutil.copytree(folder, folder.with_name(folder.name + "-left"))
                return
            life.end()
        except StateCorruptError:
            commits.distrust()
            raise


def cut_off(folder: Path, halfway: Halfway) -> Path:
    live(folder, halfway)
    return folder.with_name(folder.name + "-left")


def alerts(folder: Path) -> list[bytes]:
    return [line for path in sorted((folder / "alerts").iterdir()) for line in path.read_bytes().splitlines()]


REPAIRS_MAX = 3
RULEBOOK = store_key(STORE_GROUP, b"", b"engine", b"rulebook")


@pytest.fixture(scope="module")
def expected_alerts(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return sorted(expected(list(morning()), DAMAGED_GIVEN, tmp_path_factory.mktemp("expected")))


@pytest.fixture(scope="module")
def cut_off_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cut_off(tmp_path_factory.mktemp("left") / "with", Halfway())


@pytest.fixture
def folder(cut_off_job: Path, tmp_path: Path) -> Path:
    """Return a copy of the job's folder for one test."""
    return shutil.copytree(cut_off_job, tmp_path / "own")


def test_what_was_cut_off_is_gone_on_with(folder: Path, expected_alerts: list[bytes]) -> None:
    assert 0 < len(alerts(folder)) < len(expected_alerts)
    live(folder)
    assert sorted(alerts(folder)) == expected_alerts


# ------------------------------------------------------------------------------------------------------ a later format


def byte_at(index: int) -> Callable[[bytes], bytes]:
    """Return a change of a format that is one byte."""
    return lambda data: data[:index] + b"\x09" + data[index + 1 :]


def in_json(data: bytes) -> bytes:
    return orjson.dumps(orjson.loads(data) | {"format": 99})


def in_index(data: bytes) -> bytes:
    """Apply the change to a rulebook, whose index is JSON in JSON."""
    fields = orjson.loads(data)
    return orjson.dumps(fields | {"index": in_json(fields["index"].encode()).decode()})


BY_NAMESPACE = {PAGES: byte_at(3), PAST: byte_at(3), SEGMENTS: byte_at(3), ADDED_WAITING: byte_at(8 + 3)}
BY_KEY = {HEAD: in_json, RULEBOOK: in_index}
# Other entries of the store share the format of the head, which is read first.


@pytest.mark.parametrize(
    "format_key", [pytest.param(entry, marks=() if entry == PAGES else LATER) for entry in (*BY_NAMESPACE, *BY_KEY)]
)
def test_a_later_format_in_the_store_is_named_and_nothing_is_lost(
    format_key: bytes, folder: Path, expected_alerts: list[bytes]
) -> None:
    before: dict[bytes, bytes] = {}
    with RocksStore(store_folder(folder / "job") / STORE_PART) as store:
        for key, data in list(store.scan(ALL_KEYS)):
            change = BY_KEY.get(key) if format_key in BY_KEY else BY_NAMESPACE.get(split_key(key).namespace)
            if change is not None and format_key in (key, split_key(key).namespace):
                before[key] = data
                store.put(key, change(data))
        store.sync()
    assert before, "the job has some"
    for _ in range(2):
        with pytest.raises(StateFormatError, match=r"format \d+, this build reads \d.*build that wrote it"):
            live(folder)
    with RocksStore(store_folder(folder / "job") / STORE_PART) as store:
        for key, data in before.items():
            store.put(key, data)
        store.sync()
    live(folder)
    assert sorted(alerts(folder)) == expected_alerts


@pytest.mark.parametrize("is_lost", [pytest.param(False, marks=LATER), True])
@pytest.mark.parametrize("case", ["manifest", "payload"])
def test_a_checkpoint_of_a_later_format_is_named_and_stays(
    case: str, is_lost: bool, folder: Path, expected_alerts: list[bytes]
) -> None:
    """The result is the same with and without the store: its writer may have continued from the checkpoint."""
    (path,) = (folder / "job" / "checkpoints").glob("*.manifest")
    good = path.read_bytes()
    if case == "manifest":
        body = in_json(good.partition(b"\n")[2])
        path.write_bytes(sha256(body).hexdigest().encode() + b"\n" + body)
    else:
        manifest = Manifest.from_bytes(good, path.name)
        (file,) = (file for file in manifest.files if file.name == PAYLOAD)
        body = in_json((path.parent / FOLDER / file.sha256).read_bytes())
        other = replace(file, size=len(body), sha256=sha256(body).hexdigest())
        (path.parent / FOLDER / other.sha256).write_bytes(body)
        path.write_bytes(
            replace(
                manifest, files=tuple(other if old_file == file else old_file for old_file in manifest.files)
            ).to_bytes()
        )
    if is_lost:
        shutil.rmtree(store_folder(folder / "job"))
    for _ in range(2):
        with pytest.raises(StateFormatError, match=r"format 99, this build reads \d.*the build that wrote it"):
            live(folder)
    path.write_bytes(good)
    live(folder)
    assert sorted(alerts(folder)) == expected_alerts


# ------------------------------------------------------------------------------------------------------- a changed byte


def change_a_byte(path: Path, random: Random) -> None:
    data = bytearray(path.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)


def files_of(job: Path) -> list[Path]:
    return [path for path in sorted(job.rglob("*")) if path.is_file() and path.stat().st_size and path.name != "LOG"]


@pytest.mark.parametrize("kind", ["log", "sst", "any"])
@pytest.mark.parametrize("seed", seeds(4, inner=0))
def test_a_changed_byte_is_made_good_by_the_checkpoint(
    seed: int, kind: str, folder: Path, expected_alerts: list[bytes]
) -> None:
    random = Random(seed)
    changed = random.choice([path for path in files_of(folder / "job") if kind in ("any", path.suffix[1:])])
    change_a_byte(changed, random)
    for _ in range(REPAIRS_MAX):
        try:
            live(folder)
        except StateCorruptError:  # found during the run: the next start does not use the store
            continue
        break
    assert sorted(alerts(folder)) == expected_alerts, f"{changed.relative_to(folder)}"


@pytest.mark.parametrize("kind", ["log", "any"])
@pytest.mark.parametrize("seed", seeds(3, inner=0))
def test_without_a_checkpoint_a_changed_byte_is_told_if_it_matters(
    seed: int, kind: str, folder: Path, expected_alerts: list[bytes]
) -> None:
    random = Random(seed)
    shutil.rmtree(folder / "job" / "checkpoints")
    changed = random.choice([path for path in files_of(folder / "job") if kind in ("any", path.suffix[1:])])
    change_a_byte(changed, random)
    sent = alerts(folder)
    try:
        live(folder)
    except StateCorruptError:
        assert Counter(alerts(folder)) <= Counter(expected_alerts)
        assert Counter(sent) <= Counter(alerts(folder))
    else:
        assert sorted(alerts(folder)) == expected_alerts, f"{changed.relative_to(folder)}"
