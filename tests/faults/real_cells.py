"""`python -m tests.faults.real_cells`: cells of fault × moment on real parts, for `cep run` and `cep live`.

    python -m tests.faults.real_cells [--parallel 3] [--minutes 75] [--runner run] [--only TEXT] [--all]

A broker, a PostgreSQL where there is one, a webhook and a small disk are real, and so are the processes. Each cell is a
job of its own. It sends payments, lets the fault begin at its moment and end, and lets the job settle. Then each sink
must have the alerts of the replay, each once; a stop takes five seconds and ends with 0; other exit codes allow a
restart; and /health names the part within ten seconds.

Without flags it runs each fault at each moment on `cep run`, and each fault at half of the moments on `cep live`, which
starts more slowly. The first 36 cells have each fault and each moment on each runner. `--parallel` cells run at a time,
each with its own broker and PostgreSQL, because a cell mostly waits. After `--minutes` no other cell begins. The
simulation (tests/faults/matrix) has more faults and seeds. Ends with 1 if a cell is wrong.
Tested by: tests/faults/test_faults.py
"""

import argparse
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from itertools import product
from pathlib import Path
from queue import Empty
from random import Random
from typing import Any

import orjson
import psycopg

from cep.base.exits import MEANINGS, Exit
from cep.model.rule import Changes
from cep.rulebook.files import read_rules
from cep.rulebook.ledger import hash_of
from tests.bench.peer_data import show
from tests.faults.real import DISK_MB, RATE_S, RealJob, now_ms
from tests.faults.soak import Member
from tests.real_kafka import RealKafka
from tests.real_postgres import IS_THERE, RealPostgres
from tests.small_disk import SmallDisk, small_disk
from tests.webhook import Handler, serving, url_of

STEADY_S, NAMED_S = 4.0, 12.0
STOP_S = 8.0  # five seconds for a stop, and the end of Java on a busy machine
AFTER_S = 4.0  # payments go on for so long after the end of a fault
SECRET = "CEP_CELLS_SECRET"
# Fault → how long it lasts, and the part that /health names while it does.
FAULTS: dict[str, tuple[float, str]] = {
    "killed": (0, ""),
    "killed, away for 20 s": (20, ""),
    "frozen for 5 s": (5, ""),
    "frozen for 20 s": (20, ""),
    "asked to stop": (0, ""),
    "brokers down for 1 s": (1, ""),
    "brokers down for 20 s": (20, "brokers"),
    "brokers down for 45 s": (45, "brokers"),
    "brokers down for 90 s": (90, "brokers"),
    "brokers killed": (5, ""),
    "webhook hangs": (25, "sinks"),
    "webhook refuses": (25, "sinks"),
    "webhook is slow": (15, ""),
    "webhook breaks half-way": (15, ""),
    "PostgreSQL locked": (25, "sinks"),
    "PostgreSQL down": (25, "sinks"),
    "PostgreSQL table dropped": (0, ""),
    "disk full": (12, ""),
}
MOMENTS = (
    "start", "first micro-batch", "steady state", "rule change", "heartbeat", "commit", "take-over", "shutdown",
)  # fmt: skip
SEEN = ("steady state", "rule change", "heartbeat", "commit")  # at other moments no process may be there to ask
CELLS = tuple(product(("run", "live"), FAULTS, MOMENTS))
_LIVE_STEP = 2  # `cep live` has every second moment of a fault in the sample


def _step_of(number: int) -> int:
    """Return how far the moment of a cell is from the first moment of its fault; each fault begins with another one."""
    _, fault, moment = CELLS[number]
    return (MOMENTS.index(moment) - list(FAULTS).index(fault)) % len(MOMENTS)


ORDER = sorted(range(len(CELLS)), key=_step_of)
SAMPLE = [number for number in ORDER if CELLS[number][0] == "run" or _step_of(number) % _LIVE_STEP == 0]


@dataclass
class Outcome:
    """The outcome of a cell: its problem or "", and the seconds until the health named the part, and of its stops."""

    problem: str = ""
    named_s: float | None = None
    stop_s: float = 0.0


@dataclass
class Receiver:
    """A webhook. `state` is "", hangs, refuses, slow or breaks."""

    state: str = ""
    taken: set[str] = field(default_factory=set)

    def serve(self) -> ThreadingHTTPServer:
        """Return a server; its thread ends with it."""
        receiver = self

        class Troubled(Handler):
            def status_of(self, body: bytes) -> int:
                ends_s = time.monotonic() + {"hangs": 60.0, "slow": 2.0}.get(receiver.state, 0.0)
                while time.monotonic() < ends_s and receiver.state:
                    time.sleep(0.05)
                if receiver.state == "refuses":
                    return 401
                receiver.taken |= {orjson.loads(line)["alert_id"] for line in body.splitlines()}
                return 204

            def answer(self, status: int) -> None:
                if receiver.state == "breaks":
                    self.connection.close()
                else:
                    super().answer(status)

        return serving(Troubled)


@dataclass
class Cell:
    """One cell on its job."""

    runner: str
    fault: str
    moment: str
    job: RealJob
    receiver: Receiver
    disk: SmallDisk | None
    began_s: float | None = None
    ended_s: float | None = None
    ends: Callable[[], object] | None = None
    named_s: float | None = None
    frozen: list[int] = field(default_factory=list)
    away_until_s: float = 0.0
    stop_s: float = 0.0
    problems: list[str] = field(default_factory=list)

    def run(self) -> Outcome:
        job = self.job
        if self.moment == "start":
            self.begin()
        job.start()
        if self.runner == "run" and self.moment == "take-over":
            self._pass(lambda: job.at_work is not None)
            job.start("two")
            self._pass(lambda: job.members[-1].said("standby_ready"))
        self._pass(lambda: job.at_work is not None, 240)
        if self.moment == "first micro-batch":
            self.begin()
        elif self.moment != "start":
            self._pass(lambda: any(member.said("micro_batch") or member.said("progress") for member in job.members))
        self._pass(lambda: False, STEADY_S)
        self._reach()
        self._pass(lambda: self.ended_s is not None and time.monotonic() > self.ended_s + AFTER_S, 240)
        job.settle()
        self.stop([member for member in job.members if member.is_alive])
        self._judge()
        return Outcome("; ".join(self.problems), self.named_s, self.stop_s)

    def _reach(self) -> None:
        """Begin the fault at its moment, if that is not over yet."""
        job = self.job
        if self.moment == "rule change":
            base = next(record for record in read_rules(job.folder / "rules")[0] if record.id == "never")
            changes = Changes(version=1, hash=hash_of(base))
            job.send("rules", base.model_copy(update={"version": 2, "severity": "high", "changes": changes}).to_json())
        elif self.moment == "heartbeat":
            job.heartbeat(now_ms() - 3_000)
        elif self.moment == "commit":
            time.sleep(job.chance.random() * 0.5)
        elif self.moment == "take-over":
            job.kill()
            before = len(job.members)
            self._pass(lambda: job.at_work is not None or len(job.members) > before, 60)
        if self.began_s is None:
            self.begin()
        if self.moment == "shutdown":
            time.sleep(0.5)
            self.stop([member for member in job.members if member.is_alive])

    def _pass(self, ready: Callable[[], bool], wait_s: float = 120.0) -> None:
        """Send payments, look after the processes and the health until something is ready, or the time is over."""
        until_s = time.monotonic() + wait_s
        while not ready() and time.monotonic() < until_s:
            self.job.payment()
            if time.monotonic() > self.away_until_s:
                self.job.look_after()
            if self.began_s is not None and self.ended_s is not None and time.monotonic() >= self.ended_s:
                self.end()
            self._look()
            time.sleep(RATE_S)

    # -------------------------------------------------------------------------------------------------------- faults

    def begin(self) -> None:
        job, name = self.job, self.fault
        lasts_s = FAULTS[name][0]
        self.began_s = time.monotonic()
        self.ended_s = self.began_s + lasts_s
        if name.startswith("killed"):
            self.away_until_s = self.ended_s
            job.kill()
        elif name.startswith("frozen"):
            self._freeze()
        elif name == "asked to stop":
            self.stop([member for member in job.members if member.is_alive])
        elif name.startswith("brokers"):
            (job.kafka.kill if "killed" in name else job.kafka.stop)()
            self.ends = job.kafka.start
        elif name.startswith("webhook"):
            self.receiver.state = name.removeprefix("webhook ").removeprefix("is ").removesuffix(" half-way")
            self.ends = lambda: setattr(self.receiver, "state", "")
        elif name == "PostgreSQL down" and job.postgres is not None:
            job.postgres.stop()
            self.ends = job.postgres.start
        elif name.startswith("PostgreSQL") and job.database is not None:
            self._trouble_table(job.database, name)
        elif name == "disk full" and self.disk is not None:
            self.disk.fill(0)
            self.ends = self.disk.free
        self.began_s = time.monotonic()  # brokers take a while to stop
        self.ended_s = self.began_s + lasts_s

    def end(self) -> None:
        ends, self.ends = self.ends, None
        if ends is not None:
            ends()

    def _freeze(self) -> None:
        self.frozen = [member.process.pid for member in self.job.members if member.is_alive]
        for group in self.frozen:
            os.killpg(group, signal.SIGSTOP)

        def wake() -> None:
            for group in self.frozen:
                os.killpg(group, signal.SIGCONT)

        self.ends = wake

    def _trouble_table(self, database: str, name: str) -> None:
        connection = psycopg.connect(database)
        if name.endswith("dropped"):
            connection.execute("alter table if exists cep_alerts rename to kept")
            connection.commit()
            connection.close()
            return
        with connection.cursor() as cursor:
            cursor.execute("select to_regclass('cep_alerts')")
            if cursor.fetchone() != (None,):
                cursor.execute("lock table cep_alerts in access exclusive mode")
        self.ends = connection.close

    # ------------------------------------------------------------------------------------------------------- judging

    def _look(self) -> None:
        """See if /health of the process at work names the part."""
        part, member = FAULTS[self.fault][1], self.job.at_work
        if not part or self.began_s is None or self.named_s is not None or member is None:
            return
        try:
            with urllib.request.urlopen(f"http://{member.address}/health", timeout=2):
                return
        except urllib.error.HTTPError as error:
            with error:
                answer = orjson.loads(error.read())
        except OSError:
            return
        if answer.get("parts", {}).get(part, "well") != "well":
            self.named_s = time.monotonic() - self.began_s

    def stop(self, members: list[Member]) -> None:
        """Ask processes to stop, and see that they do in time."""
        asked_s = time.monotonic()
        for member in members:
            member.process.send_signal(signal.SIGTERM)
        for member in members:
            frozen_s = max(0.0, (self.ended_s or 0.0) - time.monotonic()) if member.process.pid in self.frozen else 0.0
            if frozen_s and self.ends is not None:
                self.end()
            code = member.process.wait(60)
            stop_s = time.monotonic() - asked_s - frozen_s
            self.stop_s = max(self.stop_s, stop_s)
            if stop_s > STOP_S:
                self.problems.append(f"stopped after {stop_s:.1f} s: {member.log.read_text()[-400:]}")
            if code not in (0, -signal.SIGTERM, -signal.SIGKILL) and self.fault != "disk full":
                self.problems.append(f"exit {code} after the request to stop: {member.log.read_text()[-400:]}")

    def _judge(self) -> None:
        wanted = Counter(self.job.replayed())
        by_sink = {**self.job.ids(), "webhook": sorted(self.receiver.taken)}
        if self.fault.endswith("dropped") and self.job.database is not None:
            with psycopg.connect(self.job.database) as connection:
                if connection.execute("select to_regclass('kept')").fetchone() != (None,):
                    by_sink["PostgreSQL"] += [row[0] for row in connection.execute("select alert_id from kept")]
                    by_sink["PostgreSQL"] = sorted(set(by_sink["PostgreSQL"]))
        for sink, ids in by_sink.items():
            lost, more = wanted - Counter(ids), Counter(ids) - wanted
            if lost or more:
                self.problems.append(f"{sink}: {lost.total()} missing, {more.total()} too many, of {wanted.total()}")
        for member in self.job.members:
            code = member.process.returncode
            if code is not None and code > 0 and MEANINGS[Exit(code)].restart is not True:
                self.problems.append(f"exit {code}: {member.log.read_text()[-400:]}")
        lasts_s, part = FAULTS[self.fault]
        if part and self.moment in SEEN and lasts_s > NAMED_S and (self.named_s is None or self.named_s > NAMED_S):
            self.problems.append(f"/health named {part} after {self.named_s} s")


def run_cell(
    cell: tuple[str, str, str], number: int, parts: tuple[RealKafka, RealPostgres | None], folder: Path
) -> Outcome:  # fmt: skip
    runner, fault, moment = cell
    kafka, postgres = parts
    place = folder / f"{number}"
    place.mkdir()
    receiver = Receiver()
    with ExitStack() as stack:
        server = receiver.serve()
        stack.callback(server.shutdown)
        disk = stack.enter_context(small_disk(place / "disk", DISK_MB)) if fault == "disk full" else None
        (place / "cep.toml").write_text(f'[output.webhook]\nsecret = "env:{SECRET}"\n')
        job = RealJob(
            place, kafka, postgres, runner, Random(number), place / "job" if disk is None else disk.folder,
            extra_words=("--conf", str(place / "cep.toml"), "--alerts", url_of(server)),
            has_standby=runner == "run" and moment == "take-over",
        )  # fmt: skip
        stack.callback(job.close)
        made = Cell(runner, fault, moment, job, receiver, disk)
        try:
            return made.run()
        except Exception:  # noqa: BLE001 a campaign goes on
            return Outcome(traceback.format_exc(limit=-3))
        finally:
            made.end()


def work(numbers: Any, outcomes: Any, end_s: float) -> None:
    """Run cells of a queue of numbers, with a broker and a PostgreSQL of this process, until the queue is empty."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and what it has started ends with it
    os.environ.setdefault(SECRET, "secret")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cep-cells-")))
        kafka = stack.enter_context(RealKafka())
        postgres = RealPostgres() if IS_THERE else None
        if postgres is not None:
            stack.callback(postgres.close)
        while time.time() < end_s:
            try:
                number = numbers.get_nowait()
            except Empty:
                break
            outcomes.put((number, run_cell(CELLS[number], number, (kafka, postgres), folder)))
        outcomes.put(None)


def run_cells(numbers: list[int], parallel: int, end_s: float) -> dict[int, Outcome]:
    """Run cells in processes, and print each outcome as it comes."""
    context = multiprocessing.get_context("spawn")
    manager = context.Manager()
    waiting, done = manager.Queue(), manager.Queue()
    for number in numbers:
        waiting.put(number)
    workers = [context.Process(target=work, args=(waiting, done, end_s)) for _ in range(parallel)]
    outcomes: dict[int, Outcome] = {}
    try:
        for worker in workers:
            worker.start()
        ended = 0
        while ended < parallel:
            try:
                said = done.get(timeout=1)
            except Empty:
                if not any(worker.is_alive() for worker in workers):
                    break
                continue
            if said is None:
                ended += 1
                continue
            number, outcome = said
            outcomes[number] = outcome
            about = outcome.problem or f"right, stopped in {outcome.stop_s:.1f} s"
            print(f"{len(outcomes)}: {number} {', '.join(CELLS[number])}: {about}", flush=True)
    finally:
        for worker in workers:
            if worker.is_alive() and len(outcomes) < len(numbers) and time.time() < end_s:
                worker.terminate()
            worker.join()
    return outcomes


def table(outcomes: dict[int, Outcome]) -> list[tuple[str, ...]]:
    rows = []
    for fault in FAULTS:
        numbers = [number for number in outcomes if CELLS[number][1] == fault]
        judged = (number for number in numbers if CELLS[number][2] in SEEN)
        named = [seconds for number in judged if (seconds := outcomes[number].named_s) is not None]
        rows.append((
            fault, *(str(sum(CELLS[number][0] == runner for number in numbers)) for runner in ("run", "live")),
            str(len({CELLS[number][2] for number in numbers})), f"{max(named):.0f} s" if named else "-",
            f"{max((outcomes[number].stop_s for number in numbers), default=0.0):.1f} s",
            str(sum(bool(outcomes[number].problem) for number in numbers)),
        ))  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runner", action="append", choices=("run", "live"))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cells", type=int, default=len(CELLS))
    parser.add_argument("--only", default="", help="a part of a fault or of a moment")
    parser.add_argument("--all", action="store_true", help="each fault at each moment on `cep live`, too")
    parser.add_argument("--number", action="append", type=int, help="the cells of these numbers alone")
    parser.add_argument("--parallel", type=int, default=1, help="cells at a time")
    parser.add_argument("--minutes", type=float, default=1e6, help="the time after which no other cell begins")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    runners = options.runner or ["run", "live"]
    numbers = [
        number
        for number in options.number or (ORDER if options.all or options.only else SAMPLE)
        if CELLS[number][0] in runners
        and options.only in ", ".join(CELLS[number])
        and (IS_THERE or "PostgreSQL" not in CELLS[number][1])
    ][options.first :][: options.cells]
    outcomes = run_cells(numbers, options.parallel, time.time() + options.minutes * 60)
    heads = ("fault", "cep run", "cep live", "moments", "named within", "stopped within", "wrong")
    show(f"{len(outcomes)} cells on real parts", heads, table(outcomes))
    moments = Counter((CELLS[number][2], CELLS[number][0]) for number in outcomes)
    rows = [(moment, *(str(moments[moment, runner]) for runner in ("run", "live"))) for moment in MOMENTS]
    show("moments", ("moment", "cells of cep run", "cells of cep live"), rows)
    wrong = sorted(number for number in outcomes if outcomes[number].problem)
    print(f"wrong: {wrong or 'none'}")
    sys.exit(1 if wrong or not outcomes else 0)


if __name__ == "__main__":
    main()
