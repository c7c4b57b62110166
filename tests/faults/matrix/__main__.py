"""`python -m tests.faults.matrix`: cells of the fault matrix in one process, as a table.

    python -m tests.faults.matrix --cells 20000 [--first 0] [--processes 2] [--only "brokers"]

The first cells have each combination of fault, moment and runner once; later ones repeat them with other seeds. A cell
is repeated by its number: `--first NUMBER --cells 1 --log`. It prints a row for each fault: cells, the longest time
until the health named it, until the job had recovered, and until it had stopped; exit codes; wrong cells. It ends with
1 if a cell is wrong.
Tested by: tests/faults/test_matrix.py
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.peer_data import show
from tests.faults.matrix.cells import CELLS, FAULTS, MOMENTS, SHAPES, Result, cell_of, run_cell, world
from tests.faults.matrix.shims import simulated

_MEMORY = Path("/dev/shm")  # no state outlives a cell, so none needs a disk
_CHUNK = 25
os.environ.setdefault("CEP_MATRIX_SECRET", "secret")


def run_numbers(numbers: Iterable[int]) -> list[tuple[int, Result]]:
    """Run the cells of these numbers."""
    results = []
    with simulated(world):
        for number in numbers:
            with TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
                results.append((number, run_cell(cell_of(number), Path(folder))))
    return results


def _run_all(numbers: list[int]) -> list[tuple[int, Result]]:
    results = run_numbers(numbers)
    for _, result in results:
        result.log = result.log if len(numbers) == 1 else []
    return results


def table(results: list[tuple[int, Result]]) -> list[tuple[str, ...]]:
    """Return a row for each fault."""
    rows = []
    for fault in FAULTS:
        of_fault = [result for _, result in results if result.cell.fault == fault]
        named = [result.named_s for result in of_fault if result.named_s is not None]
        recovered = [result.recovery_s for result in of_fault if result.recovery_s is not None]
        codes = sorted({str(code) for result in of_fault for code in result.exits})
        wrong = sum(bool(result.problem) for result in of_fault)
        longest = (f"{max(values):.0f} s" if values else "-" for values in (named, recovered))
        stop_s = max((result.stop_s for result in of_fault), default=0.0)
        rows.append((fault, str(len(of_fault)), *longest, f"{stop_s:.1f} s", " ".join(codes), str(wrong)))
    return rows


def main() -> None:
    """Run, print, judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", type=int, default=len(CELLS))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="a part of a fault, a moment or a runner")
    parser.add_argument("--log", action="store_true", help="print the log of each cell")
    options = parser.parse_args()
    numbers = [n for n in range(options.first, options.first + options.cells) if options.only in str(cell_of(n))]
    began_s, results = time.perf_counter(), list[tuple[int, Result]]()
    chunks = [numbers[at : at + _CHUNK] for at in range(0, len(numbers), _CHUNK)]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for done in pool.imap_unordered(_run_all, chunks):
            results += done
            for number, result in done:
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
