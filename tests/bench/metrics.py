"""A job's /metrics page and the system's figures of its processes → numbers by name, while it runs."""

import os
import re
import statistics
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ADDRESS = re.compile(r"/metrics and /health at (\S+)")
_TICKS = os.sysconf("SC_CLK_TCK")
_PHASE = re.compile(r'cep_micro_batch_seconds\{phase="(\w+)"\}')


@dataclass
class Samples:
    """Values by name, in the order in which they were taken."""

    found: dict[str, list[float]] = field(default_factory=dict)

    def add(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.found.setdefault(name, []).append(value)

    def quarters(self, name: str) -> tuple[float, float]:
        """Return (median of the third quarter, median of the last)."""
        values = self.found[name]
        half, three = len(values) // 2, len(values) * 3 // 4
        return statistics.median(values[half:three] or values), statistics.median(values[three:] or values)

    def medians(self) -> dict[str, float]:
        """Return the medians of the last half."""
        return {name: statistics.median(values[len(values) // 2 :]) for name, values in self.found.items()}


def metrics(address: str) -> dict[str, float]:
    """Return all gauges and counters; labels are part of the name."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def phases_ms(values: Mapping[str, float]) -> dict[str, float]:
    """Return the milliseconds of the latest micro-batch by phase."""
    named = ((_PHASE.fullmatch(name), value) for name, value in values.items())
    return {match[1]: value * 1_000 for match, value in named if match is not None}


def processes(leader: int) -> Iterator[tuple[str, Path]]:
    """Yield (java or python, folder in /proc) of each process of the session that a job leads."""
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and os.getsid(int(folder.name)) == leader:
                yield "java" if (folder / "comm").read_text().strip() == "java" else "python", folder
        except OSError:
            continue  # it has ended since


def resident_bytes(leader: int) -> dict[str, float]:
    """Return the resident memory by program: Java, and Python (the driver and the workers); shared pages count once."""
    sizes = {"java_bytes": 0.0, "python_bytes": 0.0}
    for program, folder in processes(leader):
        try:
            lines = (folder / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        kilobytes = (int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        sizes[f"{program}_bytes"] += next(kilobytes, 0) * 1_024
    return sizes


def processor_ms(leader: int) -> dict[str, float]:
    """Return the processor time so far of the living processes."""
    times_ms = {"java": 0.0, "python": 0.0}
    for program, folder in processes(leader):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        times_ms[program] += (int(fields[11]) + int(fields[12])) * 1_000 / _TICKS
    return times_ms


def watch(
    log: Path, every_s: float, ended: threading.Event, samples: Samples, look: Callable[[str], Mapping[str, float]]
) -> None:
    """Add the result of `look` for the job's address until `ended`; start once the log names the address."""
    while not ended.wait(every_s):
        match = ADDRESS.search(log.read_text())
        if match is not None:
            samples.add(look(match[1]))
