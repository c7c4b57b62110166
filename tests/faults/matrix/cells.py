"""A cell → what came of it: a fault at a moment of a job, from its first start to its last stop.

    sender       sends the records of a stream by the clock; while no broker answers it waits
    supervisor   starts the processes again, as the table of exit codes says (base/exits.py)
    fault        begins at its moment, lasts, ends
    judge        asks for the health every second, then compares the sinks with the replay, and stops the job

The oracle: each sink has the alerts of the replay, each once; the job recovers without help; a stop takes five seconds
at most; within ten seconds the health names the part and the reason; each exit code is the one of the table.
Tested by: tests/faults/test_faults.py
"""

from __future__ import annotations

import errno
import re
import shutil
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Self, cast

import orjson

from cep.base.errors import CepError
from cep.base.exits import MEANINGS, Exit, exit_of
from cep.base.limits import KAFKA_WAIT_MS_MAX, STOP_MS_MAX
from cep.cli import live, run
from cep.cli.main import parser_of
from cep.cli.verbs import VERBS
from cep.runners.embedded.commit import Commits
from cep.runners.stopping import Stopping
from cep.sinks.base import TAKEN_OVER
from tests.faults.matrix import stream
from tests.faults.matrix.shims import forget_clients
from tests.faults.matrix.virtual_kafka import CLUSTER, Cluster, Entry
from tests.faults.matrix.virtual_parts import DISK, Bucket, Database, Disk, Query, Registry, SparkFolder, Webhook
from tests.faults.matrix.virtual_time import CLOCK, Ended, Process, VirtualEvent, VirtualTime

URL, POSTGRES = "http://127.0.0.1:9/hook", "postgresql://db.example/cep"
STREAMS = 6
STEADY_S, TAKE_OVER_S = 31.0, 29.0
RESTART_S = 2.0  # of the supervisor, after an exit
NAMED_S, RECOVERY_S, STOP_S = 10.0, 150.0, 5.0


@dataclass(frozen=True)
class Fault:
    """A fault: how long it lasts, and the part and the pattern of the reason that the health must name."""

    lasts_s: float
    part: str = ""
    reason: str = ""
    sinks: tuple[str, ...] = ()  # sinks that the job needs in addition to its topic
    needs_copy: bool = False  # the state is lost, so only a job with a changelog or a bucket has it


FAULTS = {
    "killed": Fault(0),
    "killed, away for 30 s": Fault(30),
    "frozen for 5 s": Fault(5),
    "frozen for 30 s": Fault(30),
    "asked to stop": Fault(0),
    "brokers down for 1 s": Fault(1),
    "brokers down for 20 s": Fault(20, "brokers", "no answer since"),
    "brokers down for 45 s": Fault(45, "brokers", "no answer since"),
    "brokers down for 90 s": Fault(90, "brokers", "no answer since"),
    "brokers restart one by one": Fault(30),
    "webhook hangs": Fault(40, "sinks", "9/hook: (it has not answered|nobody answers)", (URL,)),
    "webhook refuses": Fault(
        40, "sinks", "9/hook: (it refuses access|it is not at this address|it answers that it cannot)", (URL,)
    ),
    "webhook refuses alerts": Fault(20, sinks=(URL,)),
    "webhook is slow": Fault(40, sinks=(URL,)),
    "webhook breaks half-way": Fault(25, "sinks", "9/hook: nobody answers", (URL,)),
    "PostgreSQL locked": Fault(40, "sinks", "db.example.*: another session locks", (POSTGRES,)),
    "PostgreSQL down": Fault(40, "sinks", "db.example.*: nobody answers", (POSTGRES,)),
    "PostgreSQL table dropped": Fault(0, sinks=(POSTGRES,)),
    "S3 answers 503": Fault(40, "checkpoints", "the last one failed"),
    "S3 is slow": Fault(40),
    "disk full": Fault(30),
    "disk read-only": Fault(30),
    "disk lost": Fault(10, needs_copy=True),
    "registry down": Fault(40, "registry", "no answer since"),
    "clock 30 s ahead": Fault(40),
    "clock 30 s behind": Fault(40),
}
MOMENTS = (
    "start", "first micro-batch", "steady state", "rule change", "heartbeat", "commit", "take-over", "shutdown",
)  # fmt: skip
SHAPES = ("run", "run --store memory", "run --changelog", "run --standby", "live")


@dataclass(frozen=True)
class Cell:
    """A fault at a moment of a runner; the seed chooses the stream and the details."""

    fault: str
    moment: str
    shape: str
    seed: int = 0

    @property
    def is_possible(self) -> bool:
        """True if the state survives the fault, and the part is there."""
        if self.shape == "live" and self.fault.startswith("S3"):
            return False
        has_copy = self.shape in ("run --changelog", "run --standby") or self.fault.startswith("S3")
        return has_copy or not FAULTS[self.fault].needs_copy


CELLS = tuple(cell for cell in (Cell(*parts) for parts in product(FAULTS, MOMENTS, SHAPES)) if cell.is_possible)


def cell_of(number: int) -> Cell:
    """Return the cell of a number: first each combination once, then each again with another seed."""
    cell = CELLS[number % len(CELLS)]
    return Cell(cell.fault, cell.moment, cell.shape, number // len(CELLS))


@dataclass
class Result:
    cell: Cell
    problem: str = ""
    exits: list[int | None] = field(default_factory=list)
    named_s: float | None = None
    stop_s: float = 0.0
    recovery_s: float | None = None
    has_begun: bool = False
    log: list[str] = field(default_factory=list)


class Stop(Stopping):
    """Stopping without signals: the request comes from the world."""

    def __init__(self, process: JobProcess, report: Callable[[], None]) -> None:
        super().__init__(report, event=cast("Any", VirtualEvent()))
        self._process = process

    def __enter__(self) -> Self:
        self._process.stop = self
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def listen(self) -> None:
        pass

    def ask(self) -> None:
        """Do what the handler of a signal does."""
        self._ask()


@dataclass(eq=False)
class JobProcess(Process):
    folder: Path = Path()
    observed: Any = None
    stop: Stop | None = None
    commits: Commits | None = None
    log_parts: list[str] = field(default_factory=list)
    error: str = ""
    began_s: float = 0.0


WORLD: list[World] = []


def world() -> World:
    return WORLD[-1]


class World:
    """Everything around the processes of one cell."""

    def __init__(self, cell: Cell, folder: Path) -> None:
        self.cell, self.fault, self.folder, self.result = cell, FAULTS[cell.fault], folder, Result(cell)
        self.chance = Random(f"{cell}")
        self.number = self.chance.randrange(STREAMS)
        self.time = VirtualTime(stream.BEGIN_MS / 1_000 - 5.0)
        self.begin_s = stream.BEGIN_MS / 1_000
        self.cluster = Cluster(self.chance)
        self.webhook, self.database, self.disk, self.registry = Webhook(), Database(), Disk(), Registry()
        self.cluster.create("payments", 2)
        for topic in ("alerts", "letters"):
            self.cluster.create(topic, 1)
        self.commit_step = self.chance.choice(("2", "3", "4", "5"))
        self.began_s = self.ended_s = float("inf")
        self.target: JobProcess | None = None  # of a fault that concerns a process
        self.processes: list[JobProcess] = []
        self.working: list[JobProcess | None] = [None] * (2 if cell.shape == "run --standby" else 1)
        self.away_until_s = 0.0
        self.is_over = False  # nothing is started any more
        self.take_over_from: JobProcess | None = None
        self.sent = 0
        self.spark: dict[Path, SparkFolder] = {}
        Bucket.store.clear()
        Bucket.state, Bucket.first_trouble_s = "", None
        self.cluster.on_commit = lambda: self._reach("commit") if self.commit_step == "4" else None

    # -------------------------------------------------------------------------------------------- for the stand-ins

    def process(self) -> JobProcess:
        """The process whose task runs."""
        process = self.time.current.process
        assert isinstance(process, JobProcess)
        return process

    @contextmanager
    def serve(self, observed: Any) -> Iterator[tuple[str, int]]:
        """Stand for the server of health and metrics."""
        process = self.process()
        process.observed = observed
        observed._alive_s = self.time.now_s
        yield "simulated", 0

    def stopping(self, report: Callable[[], None]) -> Stop:
        """Stand for the handler of signals."""
        return Stop(self.process(), report)

    def said(self, text: str) -> None:
        """Take a part of a line of the log."""
        process = self.time.current.process
        if isinstance(process, JobProcess):
            process.log_parts.append(text)

    def commits(self, *given: Any, **named: Any) -> Commits:
        """Make the commits of a process, which stop at the steps of their protocol."""
        process = self.process()
        self._step("R1")
        commits = process.commits = Commits(*given, **{**named, "on_step": self._step})
        return commits

    def spark_folder(self, directory: Path) -> SparkFolder:
        return self.spark.setdefault(directory, SparkFolder())

    def query(self, settings: Any, output: Any) -> Query:
        """Start a query of `cep live`."""
        self._step("R1")
        return Query(settings, output, self)

    def spark_step(self, name: str) -> None:
        """Stand before a step of a micro-batch of `cep live`."""
        self._step(name)

    def _step(self, name: str) -> None:
        if name == self.commit_step:
            self._reach("commit")
        if name == "R1" and self.take_over_from is not None and self.process() is not self.take_over_from:
            self._reach("take-over")
        if self.time.current.process.is_dead:
            raise Ended

    def read(self, topic: str, entry: Entry) -> None:
        """Notice that a record was read."""
        if topic == "payments":
            self._reach("first micro-batch")
        elif topic == "control" and entry.value is not None and b"heartbeat" in entry.value:
            self._reach("heartbeat")
        elif topic == "control":
            self._reach("rule change")
        if self.time.current.process.is_dead:
            raise Ended

    # ------------------------------------------------------------------------------------------------------- faults

    def _reach(self, moment: str) -> None:
        if moment == self.cell.moment and self.began_s == float("inf"):
            if moment == "commit" and self.time.now_s < self.begin_s + 20:
                return
            current = self.time.current.process
            self.begin(current if isinstance(current, JobProcess) else None)

    def begin(self, target: JobProcess | None) -> None:
        name, now_s = self.cell.fault, self.time.now_s
        self.began_s, self.ended_s, self.target = now_s, now_s + self.fault.lasts_s, target
        self.result.has_begun = True
        target = target or next((process for process in self.working if process is not None), None)
        if name.startswith("killed"):
            self.away_until_s = self.ended_s
            if target is not None:
                self.time.kill(target)
        elif name.startswith("frozen") and target is not None:
            target.frozen_until_s = self.ended_s
        elif name == "asked to stop" and target is not None:
            self.ask_to_stop(target)
        elif name.startswith("brokers"):
            self.cluster.state = "down" if "down" in name else "rolling"
            self.cluster.loses_answer = self.chance.random() < 0.3
        elif name.startswith("webhook"):
            state = name.removeprefix("webhook ").removeprefix("is ").removesuffix(" half-way")
            self.webhook.state = state
            self.webhook.status = 400 if "alerts" in state else self.chance.choice((401, 302, 404, 503))
        elif name == "PostgreSQL table dropped":
            self.database.has_table = False
        elif name.startswith("PostgreSQL"):
            self.database.state = name.rpartition(" ")[2]
        elif name.startswith("registry"):
            self.registry.is_away = True
        elif name.startswith("S3"):
            Bucket.state = "failing" if "503" in name else "slow"
        elif name.startswith("disk"):
            self.disk.code = {"full": errno.ENOSPC, "only": errno.EROFS, "lost": errno.EIO}[re.split("[ -]", name)[-1]]
        elif name.startswith("clock"):
            self.time.wrong_s = 30.0 if "ahead" in name else -30.0
        self.time.spawn(self.time.world, "end of the fault", self._end)

    def _end(self) -> None:
        self.time.pause(self.fault.lasts_s)
        self.cluster.state, self.webhook.state, self.database.state, Bucket.state = "up", "", "", ""
        self.registry.is_away = False
        self.time.wrong_s = 0.0
        if self.disk.code and self.cell.fault == "disk lost":
            for process in self.processes:
                self.time.kill(process)
            self.time.pause(1.0)
            for place in range(len(self.working)):
                shutil.rmtree(self._folder(place), ignore_errors=True)
        self.disk.code = 0

    # ---------------------------------------------------------------------------------------------------- processes

    def _folder(self, place: int) -> Path:
        return self.folder / str(place) / "job"

    def _words(self, place: int) -> list[str]:
        words = [
            "--conf", str(self.folder / "cep.toml"), "--rules", str(self.folder / "rules"),
            "--bootstrap-servers", "brokers:9092", "--topic", "payments", "--control-topic", "control",
            "--checkpoint", str(self._folder(place)), "--dead-letter-topic", "letters", "--key-groups", "2",
            "--lateness", "5 s", "--alerts", "kafka:alerts", "--log", "json",
        ]  # fmt: skip
        if self.cell.shape != "live":
            words += ["--workers", "1", "--cache-mb", "16"]
        for sink in self.fault.sinks:
            words += ["--alerts", sink]
        if self.cell.fault.startswith("S3"):
            words += ["--checkpoint-target", "bucket://jobs/cep", "--checkpoint-interval", "5 s"]
        if self.cell.shape in ("run --changelog", "run --standby"):
            words += ["--changelog", "state"]
        if self.cell.shape == "run --standby":
            words.append("--standby")
        if self.cell.shape == "run --store memory":
            words += ["--store", "memory"]
        return words

    def _work(self, process: JobProcess, place: int) -> None:
        code: int
        try:
            verb = live if self.cell.shape == "live" else run
            code = verb.run(_options(verb is live, self._words(place)))
        except Ended:
            raise
        except CepError as error:
            process.error, code = str(error), exit_of(error)
        except BaseException:  # noqa: BLE001 a bug of the job, which the cell reports
            process.error, code = traceback.format_exc(limit=-4), Exit.FAILED
            self.problem(f"bug: {process.error}")
        if not process.is_dead:
            self.time.kill(process, int(code))

    def supervise(self, place: int) -> None:
        """Start a process at a place again and again, for as long as its exit codes allow it."""
        while not self.is_over:
            if self.time.now_s < self.away_until_s:
                self.time.pause(self.away_until_s - self.time.now_s)
            process = JobProcess(f"process {len(self.processes)}", folder=self._folder(place))
            process.began_s = self.time.now_s
            self.processes.append(process)
            self.working[place] = process
            self.time.spawn(process, f"main {len(self.processes)}", partial(self._work, process, place))
            self.time.pause(None, partial(getattr, process, "is_dead"))
            self.working[place] = None
            self.time.settle(process)
            self._release(process)
            self.result.exits.append(process.code)
            self._judge_exit(process)
            self.time.pause(RESTART_S, lambda: self.is_over)

    def _judge_exit(self, process: JobProcess) -> None:
        code = process.code
        if code is not None and MEANINGS[Exit(code)].restart is False:
            self.problem(f"exit {code}, after which nobody starts it again: {process.error}")
        is_start = process.observed is None or not process.observed.has_begun
        excused = ("brokers", "disk", "S3", "frozen", *(["registry"] if is_start else []))
        if code == Exit.FAILED and not self.cell.fault.startswith(excused):
            self.problem(f"exit {code}: {process.error}")
        has_run = process.observed is not None and process.observed.has_begun
        if TAKEN_OVER in process.error:
            return
        lived_s = self.time.now_s - process.began_s
        if code == Exit.FAILED and self.cell.fault.startswith("brokers") and lived_s < KAFKA_WAIT_MS_MAX / 1_000 - 1:
            self.problem(f"a start ended after {lived_s:.1f} s instead of waiting: {process.error}")
        if code == Exit.FAILED and self.cell.fault.startswith("brokers") and has_run:
            self.problem(f"a job that had run ended instead of waiting: {process.error}")

    @staticmethod
    def _release(process: JobProcess) -> None:
        """Let go of what the operating system closes for a process that is gone."""
        commits = process.commits
        if commits is not None:
            with suppress(Exception):
                commits.store.close()
            with suppress(Exception):
                commits._lock.close()

    def ask_to_stop(self, process: JobProcess) -> None:
        """Send SIGTERM. A process that does not end in time ends itself (runners/stopping.py)."""
        if process.stop is None:
            self.time.kill(process, -15)
            return
        process.stop.ask()

        def end() -> None:
            if not self.time.pause(STOP_MS_MAX / 1_000, lambda: process.is_dead):
                self.time.kill(process, 0)

        self.time.spawn(self.time.world, "stop in time", end)

    # -------------------------------------------------------------------------------------------------------- world

    def send(self) -> None:
        """Send the records of the stream by the clock."""
        after_s, topic = -1.0, ""
        for sending in stream.sendings(self.number):
            if (wait_s := self.begin_s + sending.after_s - self.time.now_s) > 0:  # records of one time come together
                self.time.pause(wait_s)
            elif sending.after_s > after_s:  # what has waited comes in its order, and no faster than a job reads
                self.time.pause(1.5 if topic == "control" else 0.1)
            self.time.pause(None, lambda: self.cluster.state != "down")
            after_s, topic = sending.after_s, sending.topic
            entry = Entry(None, sending.value, [], int(self.time.now_s * 1_000))
            self.cluster.append(sending.topic, sending.partition, entry)
            self.sent += 1

    def problem(self, text: str) -> None:
        """Note the first problem."""
        self.result.problem = self.result.problem or text

    def run(self) -> Result:
        stream.write_rules(self.folder / "rules")
        (self.folder / "cep.toml").write_text(
            '[output.webhook]\nsecret = "env:CEP_MATRIX_SECRET"\n'
            + ('[events.registry]\nurl = "http://registry:8081"\n' if self.cell.fault.startswith("registry") else "")
        )
        if self.cell.moment == "start":
            self.begin(None)
        self.time.spawn(self.time.world, "sender", self.send)
        for place in range(len(self.working)):
            self.time.spawn(self.time.world, f"supervisor {place}", partial(self.supervise, place))
            self.time.pause(3.0)  # so that the first one has the lease
        self._watch_until(lambda: self.time.now_s >= self.begin_s + TAKE_OVER_S)
        if self.cell.moment == "take-over" and self.working[0] is not None:
            self.take_over_from = self.working[0]
            self.time.kill(self.working[0])
        self._watch_until(lambda: self.time.now_s >= self.begin_s + STEADY_S)
        if self.cell.moment == "steady state":
            self.begin(self.working[0])
        self._watch_until(lambda: self.time.now_s >= self.begin_s + stream.END_S - 10)
        if self.cell.moment == "shutdown":
            self._shut_down()
        whole = len(stream.sendings(self.number))
        self._watch_until(lambda: self.sent == whole and (not self.result.has_begun or self.time.now_s >= self.ended_s))
        since_s = self.time.now_s
        if not self._watch_until(self._has_all, RECOVERY_S):
            self.problem(f"{RECOVERY_S:.0f} s after the fault the sinks lack alerts: {self._compare()}")
        self.result.recovery_s = self.time.now_s - since_s
        self._stop_all()
        self.problem(self._compare())
        self.problem(self._unnamed())
        self.result.log = [f"{p.name}: exit {p.code}: {p.error}\n{''.join(p.log_parts)}" for p in self.processes]
        return self.result

    def _watch_until(self, ready: Callable[[], bool], wait_s: float = 1_000.0) -> bool:
        """Look at the health once a second until the world is ready."""
        until_s = self.time.now_s + wait_s
        while not ready():
            if self.time.now_s >= until_s:
                return False
            self.time.pause(1.0)
            self._look()
        return True

    def _look(self) -> None:
        """See if the health names the fault."""
        first_s = self._trouble_s()
        if not self.fault.part or self.result.named_s is not None or first_s is None:
            return
        for process in self.working:
            if process is None or process.observed is None or process.frozen_until_s > self.time.now_s:
                continue
            is_healthy, answer = process.observed.health()
            trouble = answer["parts"].get(self.fault.part, "well")
            if not is_healthy and re.search(self.fault.reason, trouble):
                self.result.named_s = self.time.now_s - max(first_s, process.began_s)

    def _trouble_s(self) -> float | None:
        """Return when the job first met the fault."""
        parts: dict[str, Any] = {"web": self.webhook, "Pos": self.database, "S3 ": Bucket}
        if (part := parts.get(self.cell.fault[:3])) is not None:
            met_s: float | None = part.first_trouble_s
            return met_s
        return self.began_s if self.began_s < float("inf") else None

    def _unnamed(self) -> str:
        """Return a problem if a fault that lasted was not named in time."""
        first_s = self._trouble_s()
        if not self.fault.part or first_s is None or self.fault.lasts_s < 2 * NAMED_S:
            return ""
        is_start = self.cell.shape == "run --store memory" or self.cell.moment == "take-over"
        if is_start and self.cell.fault.startswith("S3"):
            return ""  # commits in memory are checkpoints, and a start needs the newest one: it ends with the reason
        lives = [p for p in self.processes if p.observed is not None]
        if self.cell.moment in ("start", "shutdown") or not lives or first_s > self.ended_s - NAMED_S - 2:
            return ""  # the process was not there for so long
        named_s = self.result.named_s
        if named_s is None or named_s > NAMED_S + 1:
            return f"health named {self.fault.part} after {named_s} s"
        return ""

    def _shut_down(self) -> None:
        """Ask the job to stop a moment after the fault has begun; it starts again once that is over."""
        self.begin(self.working[0])
        self.time.pause(0.5)
        stopped = [process for process in self.working if process is not None]
        self.away_until_s = self.ended_s
        self._stop(stopped)

    def _stop(self, processes: list[JobProcess]) -> None:
        """Ask processes to stop. One must end within five seconds, with 0 unless its disk is in trouble."""
        asked_s = self.time.now_s
        frozen_s = max((p.frozen_until_s - asked_s for p in processes), default=0.0)
        for process in processes:
            self.ask_to_stop(process)
        limit_s = STOP_S + max(0.0, frozen_s)
        if not self.time.pause(limit_s, lambda: all(p.is_dead for p in processes)):
            names = [task.name for task in self.time.tasks]
            self.problem(f"{limit_s:.0f} s after the request to stop a process runs: {names}")
            for process in processes:
                self.time.kill(process)
        self.result.stop_s = max(self.result.stop_s, self.time.now_s - asked_s - max(0.0, frozen_s))
        for process in processes:
            # Commits of a store in memory are checkpoints, so the bucket is its disk.
            is_bad_disk = self.disk.code or (self.cell.shape == "run --store memory" and Bucket.state)
            is_bad_disk = is_bad_disk and process.code == Exit.FAILED
            was_killed = self.cell.fault.startswith("killed") and process.code is None
            if process.code not in (0, -15) and not (is_bad_disk or was_killed):
                self.problem(f"exit {process.code} after the request to stop: {process.error}")

    def _stop_all(self) -> None:
        self.is_over = True
        self._stop([process for process in self.working if process is not None])
        self.time.pause(None, lambda: not any(self.working))

    # ------------------------------------------------------------------------------------------------------- judging

    def _letters(self) -> list[dict[str, Any]]:
        return [dict(orjson.loads(value)) for value in self.cluster.values("letters")]

    def _wanted(self) -> dict[str, bytes]:
        aside = frozenset(letter["event_id"] for letter in self._letters() if "event_id" in letter)
        return stream.expected(self.number, aside)

    def _found(self) -> dict[str, Counter[str]]:
        """Return the ids of the alerts by sink."""
        alerts = Counter(orjson.loads(value)["alert_id"] for value in self.cluster.values("alerts"))
        by_sink = {"kafka:alerts": alerts}
        if URL in self.fault.sinks:
            refused = {
                orjson.loads(letter["record"])["alert_id"]
                for letter in self._letters() if letter.get("code") == "alert_refused"
            }  # fmt: skip
            by_sink[URL] = Counter({*self.webhook.taken, *refused})  # receivers tell repeats by the id
        if POSTGRES in self.fault.sinks:
            by_sink[POSTGRES] = Counter(self.database.taken.keys())
        return by_sink

    def _has_all(self) -> bool:
        expected_counts = Counter(self._wanted().keys())
        if self._may_be_late and self._late_change_ms():
            return all(delivered.total() for delivered in self._found().values())
        return all(not expected_counts - delivered for delivered in self._found().values())

    @property
    def _may_be_late(self) -> bool:
        """True for a process that wakes up behind a change and the events after it, and may see these first."""
        return self.cell.shape == "live" or self.cell.fault.startswith("frozen")

    def _late_change_ms(self) -> int:
        """Return for how long events were matched without a change that applies to them, as the job counts it."""
        totals = [p.observed.totals for p in self.processes if p.observed is not None]
        return max((int(each["rule_late_ms"]) for each in totals), default=0)

    def _compare(self) -> str:
        if self._may_be_late and self._late_change_ms():
            return ""  # events of that time were matched before the change, which the job counts
        expected = self._wanted()
        for sink, delivered in self._found().items():
            lost, more = Counter(expected.keys()) - delivered, delivered - Counter(expected.keys())
            if lost or more:
                return f"{sink}: {lost.total()} alerts are missing, {more.total()} are too many, of {len(expected)}"
        bodies = {orjson.loads(value)["alert_id"]: value for value in self.cluster.values("alerts")}
        if bodies != expected:
            return "alerts have other bodies than those of the replay"
        aside = [letter for letter in self._letters() if "event_id" in letter]
        if aside and not self.cell.fault.startswith("clock"):
            return f"{len(aside)} events were set aside that should count: {aside[0]}"
        return ""


@cache
def _parser_of(verb: str) -> Any:
    return parser_of(verb, VERBS[verb])


def _options(is_live: bool, words: Sequence[str]) -> Any:
    verb = "live" if is_live else "run"
    return _parser_of(verb).parse_args(words)


def run_cell(cell: Cell, folder: Path) -> Result:
    """Run a cell; the stand-ins of shims.py are in place."""
    world = World(cell, folder)
    forget_clients()
    world.cluster.on_read = world.read
    for stack, item in ((CLOCK, world.time), (CLUSTER, world.cluster), (DISK, world.disk), (WORLD, world)):
        stack[:] = [item]  # type: ignore[list-item]
    try:
        world.run()
    except BaseException:  # noqa: BLE001 a campaign goes on
        world.problem(traceback.format_exc(limit=-5))
    finally:
        world.is_over = True
        for process in world.processes:
            world.time.kill(process)
        world.time.kill(world.time.world)
    return world.result
