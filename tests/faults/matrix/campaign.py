"""Numbers of cells → results, in a process of their own, and results → a table: parts of python -m tests.faults.matrix.

Tested by: tests/faults/test_faults.py
"""

import os
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.faults.matrix.cells import FAULTS, Result, cell_of, run_cell, world
from tests.faults.matrix.shims import simulated

_MEMORY = Path("/dev/shm")  # no state outlives a cell, so none needs a disk
os.environ.setdefault("CEP_MATRIX_SECRET", "secret")


def run_numbers(numbers: Iterable[int]) -> list[tuple[int, Result]]:
    results = []
    with simulated(world):
        for number in numbers:
            with TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
                results.append((number, run_cell(cell_of(number), Path(folder))))
    return results


def run_all(numbers: list[int]) -> list[tuple[int, Result]]:
    """Run cells for another process, which needs no log of a right cell."""
    results = run_numbers(numbers)
    for _, result in results:
        result.log = result.log if len(numbers) == 1 or result.problem else []
    return results


def table(results: list[tuple[int, Result]]) -> list[tuple[str, ...]]:
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
