"""The first match after an installation → a moving line that explains the wait.

Tested by: tests/runners/test_compiling.py
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

from cep.kernels.own_numba import event

_EVENT = "numba:compile"
_MESSAGE = "compiling the matcher, once after an installation or a change"
_BETWEEN_S = 0.2  # two moves of the line, as parts begin
_TICK_S = 0.5  # and while one goes on


class _Compiling(event.Listener):
    """A line on stderr about the compiled kernels. It moves on a terminal or in a notebook; a log gets it once."""

    def __init__(self) -> None:
        self._is_interactive = sys.stderr.isatty() or "ipykernel" in type(sys.stderr).__module__
        self._kernels_count = self._compiling_count = self._width = 0  # all, the ones at this moment; the line's length
        self._began = self._shown = 0.0
        self._lock = threading.RLock()
        self._is_over = threading.Event()

    def on_start(self, _: event.Event) -> None:
        """Count a kernel that begins to compile, perhaps inside another one. Show the line; a thread then moves it."""
        with self._lock:
            now = time.monotonic()
            if self._kernels_count == 0:
                self._began = now
                if not self._is_interactive:  # a log gets one line
                    self._write(f"cep: {_MESSAGE}: up to half a minute\n")
            self._kernels_count += 1
            self._compiling_count += 1
            if self._is_interactive and now - self._shown > _BETWEEN_S:  # not too often
                self._show(now)
            if self._is_interactive and self._compiling_count == 1:  # not inside another kernel
                self._is_over = threading.Event()  # `on_end` sets it, which ends the thread
                threading.Thread(target=self._animate, args=(self._is_over,), name="cep-compiling", daemon=True).start()

    def on_end(self, _: event.Event) -> None:
        with self._lock:
            self._compiling_count -= 1
            if self._compiling_count == 0 and self._is_interactive:
                self._is_over.set()
                self._draw("")  # the next output begins on an empty line

    def _animate(self, over: threading.Event) -> None:
        """Move the line while a part goes on: the largest takes ten seconds and more."""
        while not over.wait(_TICK_S):
            with self._lock:
                if not over.is_set():
                    self._show(time.monotonic())

    def _show(self, now: float) -> None:
        self._shown = now
        self._draw(f"cep: {_MESSAGE}: {self._kernels_count} parts, {now - self._began:.0f} s")

    def _draw(self, text: str) -> None:
        self._write("\r" + text.ljust(self._width) + ("" if text else "\r"))
        self._width = len(text)

    def _write(self, text: str) -> None:
        with suppress(OSError):  # as for the log of a job
            sys.stderr.write(text)
            sys.stderr.flush()


_OURS: list[_Compiling] = []  # of a process that is ours


@contextmanager
def announced_compiling() -> Iterator[None]:
    """Print a line if a kernel is compiled in the block. Kernels that a user compiles elsewhere are ignored."""
    with nullcontext() if _OURS else event.install_listener(_EVENT, _Compiling()):
        yield


def announce_compiling() -> None:
    """Say it if a kernel is compiled in this process from now on: for a verb, whose process is ours."""
    if not _OURS:
        _OURS.append(_Compiling())
        event.register(_EVENT, _OURS[0])  # type: ignore[no-untyped-call]
