"""Tables, styled text and progress bars on a terminal, with the hidden characters of values shown as escapes.

Tested by: tests/base/test_visible.py
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, JustifyMethod, OverflowMethod, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from cep.base.text import HIDDEN, visible

_WIDTH_MAX = 10_000


def new_table(
    texts: Iterable[str], numbers: Iterable[str] = (), more: Iterable[str] = (), *, no_wrap: bool = False,
    overflow: OverflowMethod = "ellipsis",
) -> Table:  # fmt: skip
    """Return a table without lines by the titles of its columns: texts, numbers at the right, and more texts."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    columns: tuple[tuple[Iterable[str], JustifyMethod], ...] = ((texts, "left"), (numbers, "right"), (more, "left"))
    for titles, justify in columns:
        for title in titles:
            table.add_column(title, justify=justify, no_wrap=no_wrap, overflow=overflow)
    return table


def print_whole(table: Table, console: Console) -> None:
    """Print a table with whole cells, in long lines where the terminal is narrower."""
    wide = console.options.update(width=_WIDTH_MAX)
    console.width = max(console.width, Measurement.get(console, wide, table).maximum)
    console.print(table)


class Terminal(Console):
    """A console of rich that shows hidden characters of the printed text as escapes. Its own styles stay."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text of a string or of a cell of a table, escaped before its width is measured."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, each with visible text."""
        for segment in super().render(renderable, options):
            if segment.control or HIDDEN.search(segment.text) is None:
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)


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
