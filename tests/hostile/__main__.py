"""A campaign of hostile inputs against every door of the project: python -m tests.hostile --seed 1 --inputs 100000.

Prints failures and the counts by kind; the last line has all of them. Exit code 1 if there was a traceback, a hang, an
input that took the memory, a process that died, or an accepted input that does not behave as its twin.

With `--record FILE` each finished part becomes a line of the file, and the last line counts all of them, including
other seeds and earlier runs. An interrupted campaign continues where it was: run the same command again. Several
machines may each do some numbers (`--first`), with a record each; `--sum` adds records up.
"""

import argparse
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from tests.hostile.campaign import run
from tests.hostile.mutate import Part, Tally, left_to_do, read_record

_SHOWN = 40  # failures
_EACH_S = 60  # between two lines without a progress bar


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="how many inputs")
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="the number of the first input (0)")
    parser.add_argument("--seed", type=int, default=1, help="which inputs")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--kind", action="append", default=[], help="only this kind; repeat for more")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write down what is done, and go on from there")
    parser.add_argument("--sum", type=Path, nargs="+", metavar="FILE", help="only add records up")
    parser.add_argument(
        "--only", type=int, metavar="NUMBER", help="feed one input of the seed again, with the same kinds"
    )
    options = parser.parse_args()
    if options.sum:
        return _print(_tally([part for path in options.sum for part in read_record(path)]))
    numbers = range(options.first, options.first + options.inputs)
    if options.only is not None:
        numbers = range(options.only, options.only + 1)
    parts = read_record(options.record) if options.record is not None else []
    identity = (options.seed, tuple(options.kind))
    remaining = left_to_do(numbers, [part for part in parts if (part.seed, part.kinds) == identity])
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with ExitStack() as opened:
        progress = opened.enter_context(Progress(*columns, console=console, disable=not console.is_terminal))
        record = opened.enter_context(options.record.open("a")) if options.record is not None else None
        bar = progress.add_task("inputs", total=sum(map(len, remaining)))
        shown, next_s = 0, time.monotonic() + _EACH_S

        def show(tally: Tally, part: Part) -> None:
            nonlocal shown, next_s
            progress.advance(bar, part.counts.total())
            if record is not None:
                print(part.to_json(), file=record, flush=True)
            for wrong in part.wrong[: _SHOWN - shown]:
                print(wrong, flush=True)
            shown += len(part.wrong)
            if not console.is_terminal and time.monotonic() > next_s:
                next_s = time.monotonic() + _EACH_S
                print(tally.line(), flush=True)

        tally = run(*identity[:1], remaining, options.workers, identity[1], show, tally=_tally(parts))
    return _print(tally)


def _tally(parts: list[Part]) -> Tally:
    tally = Tally()
    for part in parts:
        tally.take(part)
    return tally


def _print(tally: Tally) -> int:
    for line in (*tally.table(), tally.line()):
        print(line)
    return 0 if tally.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
