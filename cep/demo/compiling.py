"""The first call of every kernel → a line that moves while numba compiles.

Compiling takes up to half a minute after an installation or a change, and is read from a cache on disk from then on.
Tested by: tests/demo/test_compiling.py
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_EVENT = "numba:compile"


class _Compilations(event.Listener):
    """The kernels that this process compiles, told as each begins and ends. A kernel may compile those it calls."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("reading the compiled matcher", total=None)
        self._names: list[str] = []
        self._done_count = 0

    def on_start(self, event_: Any) -> None:
        if not self._names and not self._done_count and not self._progress.console.is_terminal:
            self._progress.console.print("compiling the matcher, once after an installation: up to half a minute")
        self._names.append(event_.data["dispatcher"].py_func.__name__.strip("_"))
        self._show()

    def on_end(self, event_: Any) -> None:
        self._names.pop()
        self._done_count += 1
        self._show()

    def _show(self) -> None:
        name = self._names[-1].replace("_", " ") if self._names else ""
        text = f"compiling the matcher, once after an installation: {self._done_count} parts done  [dim]{name}[/dim]"
        self._progress.update(self._task, description=text)


@contextmanager
def compiling_shown(console: Console) -> Iterator[None]:
    """Show what numba compiles while the block runs, with a clock that moves. On no terminal it is one line."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        listener = _Compilations(progress)
        event.register(_EVENT, listener)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            event.unregister(_EVENT, listener)  # type: ignore[no-untyped-call]
