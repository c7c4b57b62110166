"""A campaign of hostile inputs against every door of the project: python -m tests.hostile --seed 1 --inputs 100000.

Prints what went wrong and the counts by kind; the last line has all of them. Exit code 1 if there was a traceback, a
hang, an input that took the memory, a process that died, or an accepted input that does not behave as its twin.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from tests.hostile.campaign import BAD, Tally, run

_SHOWN = 40  # of what goes wrong
_EACH_S = 60  # between two lines where there is no bar


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="how many inputs")
    parser.add_argument("--seed", type=int, default=1, help="which inputs")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--kind", action="append", default=[], help="only this kind; repeat for more")
    parser.add_argument(
        "--only", type=int, metavar="NUMBER", help="feed one input of the seed again, with the same kinds"
    )
    options = parser.parse_args()
    numbers = range(options.inputs) if options.only is None else range(options.only, options.only + 1)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("inputs", total=len(numbers))

        shown, next_s = 0, time.monotonic() + _EACH_S

        def show(tally: Tally) -> None:
            nonlocal shown, next_s
            progress.update(bar, completed=tally.done)
            for wrong in tally.wrong[shown:_SHOWN]:
                print(wrong, flush=True)
            shown = len(tally.wrong)
            if not console.is_terminal and time.monotonic() > next_s:
                next_s += _EACH_S
                print(tally.line(), flush=True)

        tally = run(options.seed, numbers, options.workers, tuple(options.kind), show)
    for kind in sorted({kind for kind, _ in tally.by_kind}):
        counts = {outcome: count for (of, outcome), count in tally.by_kind.items() if of == kind}
        print(f"{kind:<20} " + ", ".join(f"{counts.get(name, 0)} {name}" for name in ("accepted", "refused", *BAD)))
    print(tally.line())
    return 0 if tally.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
