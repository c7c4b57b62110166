"""Every fault of the simulation: the job's alerts equal the replay, and the expected alarms ring."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.campaign import table
from tests.faults.simulation import FAULTS, Simulation
from tests.seeds import seeds


@pytest.mark.parametrize("seed", seeds(30, 2))
def test_a_seed(seed: int, tmp_path: Path) -> None:
    outcome = Simulation(seed, tmp_path).run()
    assert outcome.problem == "", f"seed {seed}: {outcome.begun_ms}"


@pytest.mark.parametrize("half", [0, 1])
def test_every_fault_is_survived_and_seen(half: int, tmp_path: Path) -> None:
    named = [name for name in FAULTS if not name.startswith("clock")]
    outcome = Simulation(100 + half, tmp_path, named[half::2]).run()
    assert outcome.problem == ""
    assert set(outcome.begun_ms) == set(named[half::2])
    assert {row[0] for row in table([outcome]) if row[1] == "1"} == set(named[half::2])


def test_nothing_rings_in_a_quiet_hour(tmp_path: Path) -> None:
    outcome = Simulation(7, tmp_path, ["old heartbeat"]).run()
    assert outcome.problem == ""
    assert outcome.rung == {}
