"""A virtual clock for the threads of simulated processes: one thread runs at a time, and waits cost no real time.

    task    a real thread that runs only while it has the turn; it gives the turn away where it waits
    wait    until a condition is true or a time has come; with no task ready the clock jumps to the next such time

The order of turns depends on nothing but the tasks, so a seed repeats exactly. `Shims` has stand-ins for `time`,
`threading` and `concurrent.futures` that wait on the clock of the cell that runs.
Tested by: tests/faults/test_faults.py
"""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

_FOR_EVER_S = 1e12


class Ended(BaseException):
    """Ends a task whose process is gone. No code below catches it."""


@dataclass(eq=False)
class Process:
    """A simulated process: its tasks end with it, and do nothing while it is frozen."""

    name: str
    is_dead: bool = False
    code: int | None = None  # the exit code of a process that has ended by itself
    frozen_until_s: float = 0.0


@dataclass(eq=False)
class Task:
    """A thread of a process, and the event that it waits for."""

    process: Process
    name: str
    turn: threading.Lock = field(default_factory=threading.Lock)
    wake_s: float = 0.0
    ready: Callable[[], bool] | None = None
    is_over: bool = False
    waited_since: int = 0  # the number of the turn in which it began to wait
    failure: BaseException | None = None


class VirtualTime:
    """The clock of one cell and its tasks. The thread that makes it is the task of the world around the processes."""

    def __init__(self, begin_s: float) -> None:
        self.now_s = begin_s
        self.wrong_s = 0.0  # the error of the clock that processes read
        self.turns = 0
        self.world = Process("world")
        self.current = Task(self.world, "main")
        self.current.turn.acquire()
        self.tasks = [self.current]

    def spawn(self, process: Process, name: str, work: Callable[[], object]) -> Task:
        """Begin a task; it gets its first turn when another one waits."""
        task = Task(process, name, wake_s=self.now_s, waited_since=self.turns)
        task.turn.acquire()

        def run() -> None:
            task.turn.acquire()
            try:
                if not process.is_dead:
                    work()
            except Ended:
                pass
            except BaseException as error:  # noqa: BLE001 the world looks at it
                task.failure = error
            task.is_over = True
            self.tasks.remove(task)
            self._next().turn.release()

        self.tasks.append(task)
        threading.Thread(target=run, name=name, daemon=True).start()
        return task

    def pause(self, seconds: float | None = None, ready: Callable[[], bool] | None = None) -> bool:
        """Wait until `ready` or for so many seconds (None: for ever). Returns: whether it is ready. Raises: Ended."""
        task = self.current
        if task.process.is_dead:
            raise Ended
        if ready is not None and ready():
            return True
        task.wake_s = self.now_s + (_FOR_EVER_S if seconds is None else max(0.0, seconds))
        task.ready, task.waited_since = ready, self.turns
        following = self._next()
        if following is not task:
            following.turn.release()
            task.turn.acquire()
        if task.process.is_dead:
            raise Ended
        return ready is not None and ready()

    def kill(self, process: Process, code: int | None = None) -> None:
        """End a process: its tasks end at their next turn, which comes before all others."""
        if not process.is_dead:
            process.is_dead, process.code = True, code

    def settle(self, process: Process) -> None:
        """Let the tasks of a dead process end; from the world's task."""
        self.pause(None, lambda: not any(task.process is process for task in self.tasks))

    def _next(self) -> Task:
        """Choose the task with the next turn, and move the clock to it."""
        self.turns += 1
        best: tuple[float, int, int] | None = None
        chosen = self.current
        for place, task in enumerate(self.tasks):
            process = task.process
            at_s = task.wake_s
            if process.is_dead or (task.ready is not None and task.ready()):
                at_s = self.now_s
            if not process.is_dead and process.frozen_until_s > at_s:
                at_s = process.frozen_until_s
            key = (max(at_s, self.now_s), task.waited_since, place)
            if best is None or key < best:
                best, chosen = key, task
        assert best is not None, "the world's task never ends"
        assert best[0] - self.now_s < _FOR_EVER_S / 2, f"every task waits for ever: {[t.name for t in self.tasks]}"
        self.now_s, self.current = best[0], chosen
        return chosen


CLOCK: list[VirtualTime] = []  # of the cell that runs in this process


def clock() -> VirtualTime:
    """Return the clock of the cell that runs."""
    return CLOCK[-1]


class VirtualEvent:
    """Stands for threading.Event."""

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return clock().pause(timeout, self.is_set)


class VirtualThread:
    """Stands for threading.Thread, in the process of the task that makes it."""

    def __init__(
        self, target: Callable[..., object], name: str = "thread", args: tuple[Any, ...] = (), daemon: bool = True
    ) -> None:
        self._work, self._name, self._process = (lambda: target(*args)), name, clock().current.process
        self._task: Task | None = None

    def start(self) -> None:
        self._task = clock().spawn(self._process, self._name, self._work)

    def join(self, timeout: float | None = None) -> None:
        task = self._task
        if task is not None:
            clock().pause(timeout, lambda: task.is_over)


class VirtualCondition:
    """Stands for threading.Condition: one task runs at a time, so the lock of it needs no thought."""

    def __init__(self) -> None:
        self._notices = 0

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass

    def notify_all(self) -> None:
        self._notices += 1

    notify = notify_all

    def wait(self, timeout: float | None = None) -> bool:
        before = self._notices
        return clock().pause(timeout, lambda: self._notices != before)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        return clock().pause(timeout, predicate)


class VirtualFuture(Future[Any]):
    """A future whose result is waited for on the clock."""

    def result(self, timeout: float | None = None) -> Any:
        if not clock().pause(timeout, self.done):
            raise TimeoutError
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not clock().pause(timeout, self.done):
            raise TimeoutError
        return super().exception(0)


class VirtualExecutor:
    """Stands for ThreadPoolExecutor with one thread."""

    def __init__(self, _count: int = 1, name: str = "pool", **_: object) -> None:
        self._name, self._queue, self._is_busy = name, list[tuple[VirtualFuture, Callable[[], object]]](), False
        self._process = clock().current.process

    def submit(self, work: Callable[..., object], *args: object) -> VirtualFuture:
        future = VirtualFuture()
        self._queue.append((future, lambda: work(*args)))
        if not self._is_busy:
            self._is_busy = True
            clock().spawn(self._process, self._name, self._work)
        return future

    def _work(self) -> None:
        try:
            while self._queue:
                future, work = self._queue.pop(0)
                future.set_running_or_notify_cancel()
                try:
                    result = work()
                except Ended:
                    raise
                except BaseException as error:  # noqa: BLE001 the waiting task gets it
                    future.set_exception(error)
                else:
                    future.set_result(result)
        finally:
            self._is_busy = False

    def shutdown(self, wait: bool = True, **_: object) -> None:
        if wait:
            clock().pause(None, lambda: not self._is_busy)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class _Waited(NamedTuple):
    done: set[Any]
    not_done: set[Any]


def wait(futures: Iterable[Future[Any]], timeout: float | None = None, return_when: str = "ALL_COMPLETED") -> _Waited:
    """Stand for concurrent.futures.wait."""
    waited = list(futures)
    is_enough = any if return_when == "FIRST_COMPLETED" else all
    if waited:
        clock().pause(timeout, lambda: is_enough(future.done() for future in waited))
    elif timeout is not None and return_when == "FIRST_COMPLETED":
        clock().pause(0.0)
    finished = {future for future in waited if future.done()}
    return _Waited(finished, set(waited) - finished)


def now_s() -> float:
    """Stand for time.time: the clock of the machine, which may be wrong."""
    return clock().now_s + clock().wrong_s


def monotonic() -> float:
    """Stand for time.monotonic."""
    return clock().now_s


def sleep(seconds: float) -> None:
    """Stand for time.sleep."""
    clock().pause(seconds)


TIME = SimpleNamespace(time=now_s, monotonic=monotonic, perf_counter=monotonic, sleep=sleep)
THREADING = SimpleNamespace(
    Event=VirtualEvent, Thread=VirtualThread, Condition=VirtualCondition, Lock=threading.Lock, RLock=threading.RLock
)
