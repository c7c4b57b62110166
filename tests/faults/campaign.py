"""Seeds → outcomes, and outcomes → a table of the alarms: the parts of python -m tests.faults.

Tested by: tests/faults/test_faults.py
"""

from __future__ import annotations

import statistics
import tempfile
import traceback
from collections.abc import Iterable
from pathlib import Path

from tests.faults.simulation import FAULTS, Outcome, Simulation

_MEMORY = Path("/dev/shm")  # the files need not survive, so they need no disk


def run(seed: int) -> Outcome:
    """Run one seed; an exception becomes its problem."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as name:
        simulation = Simulation(seed, Path(name))
        try:
            return simulation.run()
        except Exception:  # noqa: BLE001 a campaign goes on
            simulation.outcome.problem = traceback.format_exc(limit=-3)
            return simulation.outcome


def table(outcomes: Iterable[Outcome]) -> list[tuple[str, ...]]:
    """Return a row for each fault."""
    rows: list[tuple[str, ...]] = []
    listed = list(outcomes)
    for fault, alarms in FAULTS.items():
        having = [outcome for outcome in listed if fault in outcome.begun_ms]
        rang: dict[str, list[int]] = {}
        for outcome in having if alarms else ():
            for alarm, minutes in outcome.rang(fault).items():
                rang.setdefault(alarm, []).append(minutes)
        shown = "; ".join(
            f"{alarm} in {len(minutes)}, after {statistics.median(minutes):.0f} ({max(minutes):.0f})"
            for alarm, minutes in rang.items()
        )
        rows.append((fault, str(len(having)), shown or "-"))
    return rows
