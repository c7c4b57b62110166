"""`python -m tests.faults.matrix`: cells of the fault matrix in one process, as a table.

    python -m tests.faults.matrix --cells 20000 [--first 0] [--processes 2] [--only "brokers"]

The first cells have each combination of fault, moment and runner once; later ones repeat them with other seeds. A cell
is repeated by its number: `--first NUMBER --cells 1 --log`. It prints a row for each fault: cells, the longest time
until the health named it, until the job had recovered, and until it had stopped; exit codes; wrong cells. It ends with
1 if a cell is wrong.
Tested by: tests/faults/test_faults.py
"""

import argparse
import multiprocessing
import sys
import time

from tests.bench.peer_data import show
from tests.faults.matrix.campaign import run_all, table
from tests.faults.matrix.cells import CELLS, FAULTS, MOMENTS, SHAPES, Result, cell_of

_CHUNK = 25


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", type=int, default=len(CELLS))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="a part of a fault, a moment or a runner")
    parser.add_argument("--log", action="store_true", help="print the log of each cell")
    options = parser.parse_args()
    numbers = [n for n in range(options.first, options.first + options.cells) if options.only in str(cell_of(n))]
    began_s, results = time.perf_counter(), list[tuple[int, Result]]()
    chunks = [numbers[start : start + _CHUNK] for start in range(0, len(numbers), _CHUNK)]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for chunk_results in pool.imap_unordered(run_all, chunks):
            results += chunk_results
            for number, result in chunk_results:
                if result.problem:
                    print(f"cell {number}, {result.cell}: {result.problem}", flush=True)
                if options.log:
                    print("\n".join(result.log))
    heads = ("fault", "cells", "named within", "recovered within", "stopped within", "exit codes", "wrong")
    show(f"{len(FAULTS)} faults, {len(MOMENTS)} moments, {len(SHAPES)} runners", heads, table(results))
    wrong = sorted(number for number, result in results if result.problem)
    missed = sum(not result.has_begun for _, result in results)
    seconds = time.perf_counter() - began_s
    print(f"{len(results)} cells in {seconds:.0f} s; without a fault: {missed}; wrong: {wrong or 'none'}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
