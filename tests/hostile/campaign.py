"""Seeds → worker processes that are fed one hostile input after the other → counts, and every input that went wrong.

A worker has a limit on its address space. An alarm goes off after five seconds of the processor on one input, or thirty
of the clock. What an alarm cannot stop, as a loop in compiled code, the parent stops. It reads the number of the input
from shared memory, and goes on with the next one in a new process. So it does when a worker dies.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Empty
from random import Random
from typing import Any

ALARM_S = 5  # of the processor, for one input
_WAIT_S = 30  # of the clock: one that waits for what never comes; a shared machine may be slow
_STUCK_S = 60  # no alarm was heard: compiled code
_BEGIN_S = 300  # to import, and to compile kernels
_ADDRESSES = 3 << 30  # bytes above what a worker has when it begins
MEMORY_MB = 1_024  # resident bytes above that
_REPORT_S = 0.5
_LINES, _LINE_CHARS = 60, 300  # shown of what went wrong
BAD = ("tracebacks", "hangs", "memory", "differences", "deaths")


@dataclass(slots=True)
class Tally:
    """Counts by outcome and kind, and what went wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    by_kind: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    grown_mb: int = 0

    def add(self, outcome: str, kind: str, count: int = 1) -> None:
        self.counts[outcome] += count
        self.by_kind[kind, outcome] += count

    @property
    def done(self) -> int:
        return sum(self.counts.values())

    @property
    def is_clean(self) -> bool:
        return not any(self.counts[name] for name in BAD) and self.grown_mb < MEMORY_MB

    def line(self) -> str:
        """The last line of a campaign."""
        parts = [f"{self.counts[name]} {name}" for name in ("accepted", "refused", *BAD)]
        return f"{self.done} inputs: {', '.join(parts)}; memory grew by {self.grown_mb} MB at most"


class _AlarmError(BaseException):
    """An input took too long. No handler of `Exception` catches it."""


def _ring(*_: object) -> None:
    raise _AlarmError


def work(
    numbers: range, seed: int, module: str, names: tuple[str, ...], send: Callable[[Any], None], current: Any
) -> None:
    """Feed the inputs of these numbers, and end the process.

    `send` gets (outcome, kind, count, what went wrong), and ("done", "", megabytes grown, "") at the end.
    """
    from tests.hostile.kinds import ACCEPTED, DiffersError  # noqa: PLC0415 the parent does without

    warnings.simplefilter("ignore")
    os.environ["CEP_DEBUG"] = "1"
    kinds = [kind for kind in import_module(module).all_kinds() if not names or kind.name in names]
    signal.signal(signal.SIGALRM, _ring)
    signal.signal(signal.SIGPROF, _ring)
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        feeds = {}
        for place, kind in enumerate(kinds):
            (Path(folder) / str(place)).mkdir()
            feeds[kind.name] = kind.open(Path(folder) / str(place))
        for kind in kinds:  # compile and import what an input needs
            try:
                feeds[kind.name](Random(f"warm {kind.name}"))
            except Exception:  # noqa: BLE001 it is counted when its number comes
                continue
        gc.collect()
        gc.freeze()
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        _limit_addresses()
        send(("ready", "", 0, ""))
        weights = [kind.weight for kind in kinds]
        pending: Counter[tuple[str, str]] = Counter()
        reported_s = time.monotonic()
        for number in numbers:
            random = Random(f"{seed}/{number}")
            kind = random.choices(kinds, weights)[0]
            current.value = number
            outcome, wrong = ACCEPTED, ""
            signal.setitimer(signal.ITIMER_PROF, ALARM_S)
            signal.alarm(_WAIT_S)
            try:
                outcome = feeds[kind.name](random)
            except _AlarmError:
                outcome, wrong = "hangs", traceback.format_exc()
            except MemoryError:
                outcome, wrong = "memory", traceback.format_exc()
            except DiffersError as error:
                outcome, wrong = "differences", str(error)
            except (Exception, SystemExit):  # noqa: BLE001 all that is not foreseen
                outcome, wrong = "tracebacks", traceback.format_exc()
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.alarm(0)
            if wrong:
                send((outcome, kind.name, 1, f"{outcome} {seed}/{number} {kind.name}\n{_cut(wrong)}"))
                continue
            pending[outcome, kind.name] += 1
            if time.monotonic() - reported_s > _REPORT_S:
                reported_s = time.monotonic()
                _send_all(pending, send)
        _send_all(pending, send)
        grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
        send(("done", "", grown_kb // 1_024, ""))
    os._exit(0)  # servers have threads that would wait


def _cut(text: str) -> str:
    """Return the beginning of each line: a message may have the input in it."""
    return "\n".join(line[:_LINE_CHARS] for line in text.splitlines()[-_LINES:])


def _send_all(pending: Counter[tuple[str, str]], send: Callable[[Any], None]) -> None:
    for (outcome, kind), count in pending.items():
        send((outcome, kind, count, ""))
    pending.clear()


def _limit_addresses() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        limit = pages * resource.getpagesize() + _ADDRESSES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _process(numbers: range, seed: int, module: str, names: tuple[str, ...], pipe: Connection, current: Any) -> None:
    work(numbers, seed, module, names, pipe.send, current)


@dataclass(slots=True)
class _Worker:
    numbers: range
    process: BaseProcess
    pipe: Connection
    current: Any
    at: int = -1
    moved_s: float = field(default_factory=time.monotonic)
    is_ready: bool = False


def run(
    seed: int,
    numbers: range,
    workers: int = 1,
    names: tuple[str, ...] = (),
    show: Callable[[Tally], None] = lambda _: None,
    module: str = "tests.hostile.kinds",
) -> Tally:
    """Feed the inputs of these numbers in worker processes, of kinds from a module. `show` is called as it goes on."""
    context = multiprocessing.get_context("spawn")
    tally = Tally()

    def start(part: range) -> _Worker:
        ours, theirs = context.Pipe(duplex=False)
        current = context.Value("q", part.start - 1, lock=False)
        process = context.Process(target=_process, args=(part, seed, module, names, theirs, current))
        process.start()
        theirs.close()
        return _Worker(part, process, ours, current)

    bounds = [numbers.start + len(numbers) * n // workers for n in range(workers + 1)]
    running = [start(range(bounds[n], bounds[n + 1])) for n in range(workers) if bounds[n] < bounds[n + 1]]
    while running:
        for worker in list(running):
            if _listen(worker, tally):
                running.remove(worker)
                continue
            again = _watch(worker, tally, seed)
            if again is not None:
                running.remove(worker)
                if len(again):
                    running.append(start(again))
        show(tally)
        time.sleep(_REPORT_S / 5)
    return tally


def _listen(worker: _Worker, tally: Tally) -> bool:
    """Take what the worker has sent; says whether it is done."""
    try:
        while worker.pipe.poll():
            outcome, kind, count, wrong = worker.pipe.recv()
            if outcome == "ready":
                worker.is_ready = True
            elif outcome == "done":
                tally.grown_mb = max(tally.grown_mb, count)
                worker.process.join()
                return True
            else:
                tally.add(outcome, kind, count)
                if wrong:
                    tally.wrong.append(wrong)
    except (EOFError, OSError, Empty):
        pass
    return False


def _watch(worker: _Worker, tally: Tally, seed: int) -> range | None:
    """Return what is left to do for a worker that died or is stuck; None if all is well."""
    at = worker.current.value
    if at != worker.at or not worker.process.is_alive():
        worker.at, worker.moved_s = at, time.monotonic()
    is_stuck = time.monotonic() - worker.moved_s > (_STUCK_S if worker.is_ready else _BEGIN_S)
    if worker.process.is_alive() and not is_stuck:
        return None
    outcome = "hangs" if is_stuck else "deaths"
    if is_stuck:
        worker.process.kill()
    worker.process.join()
    if not worker.is_ready:
        raise RuntimeError(f"a worker has not begun, exit code {worker.process.exitcode}")
    tally.add(outcome, "a worker")
    tally.wrong.append(f"{outcome} {seed}/{at}: the process ended with {worker.process.exitcode}")
    return range(at + 1, worker.numbers.stop)
