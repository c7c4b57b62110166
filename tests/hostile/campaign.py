"""Seeds → worker processes that are fed one hostile input after the other → counts, and every input that went wrong.

A worker has a limit on its address space. An alarm rings after five seconds of processor time for one input, which do
not grow on a busy machine. An input that waits for ever takes no processor time, so another alarm rings after thirty
seconds of the clock. The time in which the worker was ready to run but other processes had the processor does not
count. An input that took more than five seconds of the clock is fed again, and is a hang if it takes as long again. An
alarm does not stop a loop in compiled code, but the parent does. It reads the number of the input from shared memory,
and continues with the next one in a new process. It does the same when a worker dies.

Each finished part is a line of a record (mutate.py), if there is one. An interrupted campaign continues from it.
Tested by: tests/hostile/test_campaign.py
"""

import gc
import multiprocessing
import os
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.mutate import Numbers, Part, Tally, divided

ALARM_S = 5  # of the processor, for one input; a module of kinds may have another limit
_WAIT_S = 30  # of the clock: for an input that waits for ever; a shared machine may be slow
_STUCK_S = 60  # an alarm was not heard: compiled code
_BEGIN_S = 300  # to import, and to compile kernels
_ADDRESSES = 3 << 30  # bytes above the size of a worker at its begin
_REPORT_S = 5
_FEW = 100  # inputs
_LOOK_S = 0.1
_LINES, _LINE_CHARS = 60, 300  # shown of a failure
_MEMORY_FOLDER = Path("/dev/shm")


def _starved_s(process: int | str) -> float:
    """Return how long the threads of a process, a number or "self", were ready to run and had to wait for a processor.

    It is 0 if the system does not measure it.
    """
    waited_ns = 0
    with suppress(OSError):  # the process has ended
        for thread in os.listdir(f"/proc/{process}/task"):  # noqa: PTH208 several times faster, for each input
            with suppress(OSError), open(f"/proc/{process}/task/{thread}/schedstat", "rb") as file:  # noqa: PTH123
                waited_ns += int(file.read().split()[1])
    return waited_ns / 1e9


class _AlarmError(BaseException):
    """An input took too long. No handler of `Exception` catches it."""


class Clock:
    """The seconds since its start, without the seconds in which a process had to wait for a processor."""

    def __init__(self, process: int | str = "self") -> None:
        self._process = process
        self._began_s, self._starved_s = time.monotonic(), _starved_s(process)

    def passed_s(self) -> float:
        """Return the seconds until now."""
        return time.monotonic() - self._began_s - max(0.0, _starved_s(self._process) - self._starved_s)

    def is_past(self, limit_s: float) -> bool:
        """Return True if more seconds than the limit have passed. The check is cheap before that."""
        return time.monotonic() - self._began_s > limit_s and self.passed_s() > limit_s


def _ring(*_: object) -> None:
    raise _AlarmError


def _ring_late(clock: Clock) -> None:
    """Ring, or set the alarm again if the process had to wait for a processor for part of the time."""
    left_s = _WAIT_S - clock.passed_s()
    if left_s <= 0:
        raise _AlarmError
    signal.setitimer(signal.ITIMER_REAL, max(left_s, 0.1))


def work(
    numbers: Numbers, seed: int, module: str, names: tuple[str, ...], send: Callable[[Part | None], None], current: Any
) -> None:
    """Feed the inputs of these numbers, and end the process.

    `send` gets the outcomes, part by part; first a part without inputs, and at the end None.
    """
    warnings.simplefilter("ignore")
    os.environ["CEP_DEBUG"] = "1"
    kinds_module = import_module(module)
    kinds = [kind for kind in kinds_module.all_kinds() if not names or kind.name in names]
    weights = [kind.weight for kind in kinds]
    drawn = {kind.name for kind in kinds}
    if sum(map(len, numbers)) <= _FEW:  # one input that is fed again does not wait for the kernels of others
        draws = (Random(f"{seed}/{number}") for span in numbers for number in span)
        drawn = {random.choices(kinds, weights)[0].name for random in draws}
    alarm_s = getattr(kinds_module, "ALARM_S", ALARM_S)
    signal.signal(signal.SIGPROF, _ring)
    with tempfile.TemporaryDirectory(prefix="hostile-", dir=_folder()) as folder:
        feeds = {}
        for place, kind in enumerate(kinds):
            if kind.name not in drawn:
                continue
            (Path(folder) / str(place)).mkdir()
            feeds[kind.name] = kind.open(Path(folder) / str(place))
        for name, feed in feeds.items():  # compile and import the modules that an input needs
            try:
                feed(Random(f"warm {name}"))
            except Exception:  # noqa: BLE001 it is counted when its number comes
                continue
        gc.collect()
        gc.freeze()
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        _limit_addresses()
        part = Part(seed, names, numbers[0].start, numbers[0].start)
        send(part)
        reported_s = time.monotonic()
        for span in numbers:
            part = Part(seed, names, span.start, span.start)
            for number in span:
                random = Random(f"{seed}/{number}")
                kind = random.choices(kinds, weights)[0]
                current.value = number
                before_s, state = time.process_time(), random.getstate()
                outcome, wrong, waited = _fed(feeds[kind.name], random, alarm_s)
                if not wrong and waited:
                    random.setstate(state)
                    outcome, wrong, waited = _fed(feeds[kind.name], random, alarm_s)
                    if not wrong and waited:
                        outcome, wrong = "hangs", f"it took more than {alarm_s} s of the clock, twice"
                failure = f"{outcome} {seed}/{number} {kind.name}\n{_cut(wrong)}" if wrong else ""
                part.add(kind.name, outcome, time.process_time() - before_s, failure)
                if wrong or number == span[-1] or time.monotonic() - reported_s > _REPORT_S:
                    reported_s = time.monotonic()
                    part.stop = number + 1
                    part.grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) // 1_024
                    send(part)
                    part = Part(seed, names, number + 1, number + 1)
        send(None)
    os._exit(0)  # otherwise threads of servers would keep the process alive


def _fed(feed: Callable[[Random], str], random: Random, alarm_s: float) -> tuple[str, str, bool]:
    """Feed an input while both alarms are set, the first after `alarm_s` seconds of processor time.

    Returns: (its outcome, an error's text, True if it took more seconds of the clock than that).
    """
    from tests.hostile.kinds import DiffersError, HangsError  # noqa: PLC0415 the parent does without

    wrong, clock = "", Clock()
    signal.signal(signal.SIGALRM, lambda *_: _ring_late(clock))
    signal.setitimer(signal.ITIMER_PROF, alarm_s)
    signal.setitimer(signal.ITIMER_REAL, _WAIT_S)
    try:
        outcome = feed(random)
    except (_AlarmError, HangsError):
        outcome, wrong = "hangs", traceback.format_exc()
    except MemoryError:
        outcome, wrong = "memory", traceback.format_exc()
    except DiffersError as error:
        outcome, wrong = "differences", str(error)
    except (Exception, SystemExit):  # noqa: BLE001 all that is not foreseen
        outcome, wrong = "tracebacks", traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return outcome, wrong, clock.is_past(alarm_s)


def _folder() -> Path | None:
    return _MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK) else None


def _cut(text: str) -> str:
    """Return the beginning of each line: a message may contain the input."""
    return "\n".join(line[:_LINE_CHARS] for line in text.splitlines()[-_LINES:])


def _limit_addresses() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        limit = pages * resource.getpagesize() + _ADDRESSES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _process(numbers: Numbers, seed: int, module: str, names: tuple[str, ...], pipe: Connection, current: Any) -> None:
    work(numbers, seed, module, names, pipe.send, current)


@dataclass(slots=True)
class _Worker:
    """A process, and the numbers that it has not reported yet."""

    numbers: Numbers
    process: BaseProcess
    pipe: Connection
    current: Any
    clock: Clock
    at: int = -1
    is_ready: bool = False

    def said(self, part: Part) -> None:
        """Take the outcomes of the first of the numbers."""
        self.is_ready = True
        first, *others = self.numbers
        self.numbers = [range(part.stop, first.stop), *others] if part.stop < first.stop else others


def run(
    seed: int,
    numbers: Sequence[range],
    workers: int = 1,
    names: tuple[str, ...] = (),
    show: Callable[[Tally, Part], None] = lambda *_: None,
    module: str = "tests.hostile.kinds",
    tally: Tally | None = None,
) -> Tally:
    """Feed the inputs of these numbers in worker processes, of kinds from a module.

    `show` is called with each finished part and the tally until then. `tally` has the counts of earlier runs.
    """
    context = multiprocessing.get_context("spawn")
    tally = Tally() if tally is None else tally

    def start(share: Numbers) -> _Worker:
        ours, theirs = context.Pipe(duplex=False)
        current = context.Value("q", share[0].start - 1, lock=False)
        process = context.Process(target=_process, args=(share, seed, module, names, theirs, current))
        process.start()
        theirs.close()
        return _Worker(share, process, ours, current, Clock(process.pid or "self"))

    def note(part: Part) -> None:
        tally.take(part)
        show(tally, part)

    running = [start(share) for share in divided(numbers, workers)]
    while running:
        for worker in list(running):
            if _listen(worker, note):
                running.remove(worker)
                continue
            number = _stopped(worker, note, seed, names)
            if number is not None:
                running.remove(worker)
                remaining = [part for share in worker.numbers for part in _without(share, number)]
                if remaining:
                    running.append(start(remaining))
        time.sleep(_LOOK_S)
    return tally


def _without(span: range, number: int) -> Numbers:
    if number not in span:
        return [span]
    return [part for part in (range(span.start, number), range(number + 1, span.stop)) if part]


def _listen(worker: _Worker, note: Callable[[Part], None]) -> bool:
    """Take the parts that the worker has sent; return whether it is done."""
    try:
        while worker.pipe.poll():
            part = worker.pipe.recv()
            if part is None:
                worker.process.join()
                return True
            worker.said(part)
            if part.stop > part.start:
                note(part)
    except (EOFError, OSError):
        pass
    return False


def _stopped(worker: _Worker, note: Callable[[Part], None], seed: int, names: tuple[str, ...]) -> int | None:
    """Return the number at which a worker died or is stuck; None if it works."""
    number = worker.current.value
    if number != worker.at or not worker.process.is_alive():
        worker.at, worker.clock = number, Clock(worker.process.pid or "self")
    is_stuck = worker.clock.is_past(_STUCK_S if worker.is_ready else _BEGIN_S)
    if worker.process.is_alive() and not is_stuck:
        return None
    outcome = "hangs" if is_stuck else "deaths"
    if is_stuck:
        worker.process.kill()
    worker.process.join()
    _listen(worker, note)  # the parts that it sent before it died
    if not worker.is_ready:
        raise RuntimeError(f"a worker has not begun, exit code {worker.process.exitcode}")
    part = Part(seed, names, number, number + 1)
    part.add("a worker", outcome, 0, f"{outcome} {seed}/{number}: the process ended with {worker.process.exitcode}")
    note(part)
    return int(number)
