"""Faults on a real broker: two seeds of each runner, and the faults and lines of the campaign."""

from __future__ import annotations

import subprocess
import sys
from random import Random

import pytest

from tests.faults.real import FAULTS, OF_RUN, Outcome, chosen, table
from tests.faults.real_cells import CELLS, MOMENTS
from tests.faults.real_cells import FAULTS as CELL_FAULTS
from tests.faults.soak import ROOT
from tests.real_postgres import IS_THERE


def drawn(runner: str, *, has_disk: bool) -> set[str]:
    return {name for seed in range(300) for name in chosen(Random(seed), runner, has_disk=has_disk)}


def test_every_fault_is_drawn_where_it_can_be() -> None:
    there = set(FAULTS) - ({"outage of the sink"} if not IS_THERE else set())
    assert drawn("run", has_disk=True) == there
    assert drawn("live", has_disk=False) == there - {*OF_RUN, "topic recreated", "disk full"}


def test_the_table_has_what_rang_and_after_how_long() -> None:
    outcomes = [Outcome(0, ["killed"], after_s={"killed": {"CepJobGone": seconds}}) for seconds in (4.0, 6.0, 11.0)]
    rows = {row[0]: row[1:] for row in table(outcomes)}
    assert rows["killed"] == ("3", "CepJobGone in 3, after 6 (11)")
    assert rows["burst"] == ("0", "-")


def test_each_fault_is_at_each_moment_of_each_runner() -> None:
    assert len(set(CELLS)) == len(CELLS) == 2 * len(CELL_FAULTS) * len(MOMENTS)
    assert len(CELLS) >= 200


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["run", pytest.param("live", marks=pytest.mark.spark)])
def test_a_cell(runner: str) -> None:
    words = ["-m", "tests.faults.real_cells", "--runner", runner, "--only", "killed, steady state", "--cells", "1"]
    process = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=ROOT)
    assert process.stdout.splitlines()[-1:] == ["wrong: none"], process.stdout + process.stderr


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["run", pytest.param("live", marks=pytest.mark.spark)])
def test_two_seeds(runner: str) -> None:
    words = [sys.executable, "-m", "tests.faults.real", "--seeds", "2", "--runner", runner]
    result = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.stdout.splitlines()[-1:] == ["wrong: none"], result.stdout + result.stderr
    assert result.returncode == 0
