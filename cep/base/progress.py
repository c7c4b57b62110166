"""A long task → a bar on a terminal that shows how far it is; nothing anywhere else.

Tested by: tests/base/test_visible.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

Show = Callable[[str, int, int | None], None]  # the task, how much of it is done, and the total if it is known


def ignore_progress(_name: str, _count: int, _total: int | None) -> None:
    """Ignore the progress."""


def progress_bar(console: Console) -> Progress:
    """Return a bar that disappears when its block ends."""
    return Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
        console=console, transient=True,
    )  # fmt: skip


@contextmanager
def shown_progress(console: Console, description: str, total: int | None) -> Iterator[Show]:
    """Show a bar until the block ends. Yield a function that takes the description, the count and the total."""
    if not console.is_terminal:
        yield ignore_progress
        return
    with progress_bar(console) as bar:
        task = bar.add_task(description, total=total)
        yield lambda text, count, total: bar.update(task, description=text, completed=count, total=total)
