"""What a job answers at /metrics → numbers by name, as the benchmarks read them while it runs."""

from __future__ import annotations

import re
import statistics
import threading
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ADDRESS = re.compile(r"/metrics and /health at (\S+)")
_PHASE = re.compile(r'cep_micro_batch_seconds\{phase="(\w+)"\}')


@dataclass
class Samples:
    """Values by name, in the order in which they were taken."""

    found: dict[str, list[float]] = field(default_factory=dict)

    def add(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.found.setdefault(name, []).append(value)

    def quarters(self, name: str) -> tuple[float, float]:
        """(median of the third quarter, median of the last)."""
        values = self.found[name]
        half, three = len(values) // 2, len(values) * 3 // 4
        return statistics.median(values[half:three] or values), statistics.median(values[three:] or values)

    def medians(self) -> dict[str, float]:
        """Of the last half."""
        return {name: statistics.median(values[len(values) // 2 :]) for name, values in self.found.items()}


def metrics(address: str) -> dict[str, float]:
    """All gauges and counters; labels are part of the name."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def phases_ms(found: Mapping[str, float]) -> dict[str, float]:
    """Milliseconds of the latest micro-batch by phase."""
    named = ((_PHASE.fullmatch(name), value) for name, value in found.items())
    return {match[1]: value * 1_000 for match, value in named if match is not None}


def watch(
    log: Path, every_s: float, done: threading.Event, samples: Samples, look: Callable[[str], Mapping[str, float]]
) -> None:
    """Add what `look` gives for the job's address until told to end; begins when the job has said where it listens."""
    while not done.wait(every_s):
        found = ADDRESS.search(log.read_text())
        if found is not None:
            samples.add(look(found[1]))
