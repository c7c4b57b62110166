"""A sample of the fault matrix, and what its table and its oracle say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.faults.matrix import cells
from tests.faults.matrix.campaign import run_numbers, table
from tests.faults.matrix.cells import CELLS, FAULTS, MOMENTS, SHAPES, Cell, run_cell, world
from tests.faults.matrix.shims import simulated
from tests.seeds import seeds

STEP = 97  # coprime to the number of cells: a few neighbours differ in fault, moment and runner


@pytest.mark.parametrize("seed", seeds(400, 10))
def test_a_cell_keeps_the_promises(seed: int) -> None:
    ((number, result),) = run_numbers([seed * STEP])
    assert result.problem == "", f"cell {number}, {result.cell}\n" + "\n".join(result.log)
    assert result.has_begun


def test_the_first_cells_have_each_combination_once() -> None:
    assert len(set(CELLS)) == len(CELLS)
    assert {cell.fault for cell in CELLS} == set(FAULTS)
    for fault in FAULTS:
        assert {cell.moment for cell in CELLS if cell.fault == fault} == set(MOMENTS)
        assert {cell.shape for cell in CELLS if cell.fault == fault} <= set(SHAPES)


def test_a_cell_repeats_exactly() -> None:
    (_, first), (_, second) = run_numbers([STEP, STEP])
    assert (first.exits, first.named_s, first.recovery_s, first.stop_s) == (
        second.exits, second.named_s, second.recovery_s, second.stop_s,
    )  # fmt: skip


def test_a_lost_alert_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle sees a receiver that forgets an alert, and the table counts the cell."""
    whole = cells.World._found

    def found(self: cells.World) -> dict[str, Counter[str]]:
        alerts = whole(self)
        alerts["kafka:alerts"].popitem()
        return alerts

    monkeypatch.setattr(cells.World, "_found", found)
    with simulated(world):
        result = run_cell(Cell("killed", "steady state", "run"), tmp_path)
    assert "1 alerts are missing" in result.problem
    assert next(row for row in table([(0, result)]) if row[0] == "killed")[-1] == "1"


@pytest.mark.parametrize("seed", seeds(40, 2))
def test_a_stop_while_brokers_restart_is_no_failure(seed: int, tmp_path: Path) -> None:
    """The last transaction has no alert but the changes of the state, and fails: the next start brings them."""
    with simulated(world):
        result = run_cell(Cell("brokers restart one by one", "shutdown", "run --changelog", seed), tmp_path)
    assert result.problem == ""
    assert set(result.exits) == {0}
