"""The outcomes of a campaign's inputs, part by part ↔ lines of a file; and the numbers that are left to do.

    {"seed": 1, "kinds": [], "start": 0, "stop": 812, "counts": [["JSON events", "accepted", 130, 0.21], …], …}

Parts are sums, so the lines of several seeds, processes and days make one tally.
Tested by: tests/hostile/test_campaign.py
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BAD = ("tracebacks", "hangs", "memory", "differences", "deaths")
OUTCOMES = ("accepted", "refused", *BAD)
MEMORY_MB = 1_024  # resident bytes that a worker may grow by
Numbers = list[range]


@dataclass(slots=True)
class Part:
    """The inputs `start` … `stop` - 1 of a seed, of some kinds or all: counts, seconds, failures."""

    seed: int
    kinds: tuple[str, ...]
    start: int
    stop: int
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    grown_mb: int = 0

    def add(self, kind: str, outcome: str, seconds: float, wrong: str) -> None:
        """Count one input, with the text of its failure in `wrong`."""
        self.counts[kind, outcome] += 1
        self.seconds[kind, outcome] += seconds  # type: ignore[assignment]  # a counter of floats
        if wrong:
            self.wrong.append(wrong)

    def to_json(self) -> str:
        """Return a line of a record."""
        counts = [[*key, count, round(self.seconds[key], 6)] for key, count in self.counts.items()]
        return json.dumps({
            "seed": self.seed, "kinds": self.kinds, "start": self.start, "stop": self.stop, "counts": counts,
            "wrong": self.wrong, "grown_mb": self.grown_mb,
        })  # fmt: skip

    @staticmethod
    def from_json(line: str) -> Part:
        """Read the result of `to_json`."""
        values = json.loads(line)
        counts = values.pop("counts")
        part = Part(**{**values, "kinds": tuple(values["kinds"])})
        for kind, outcome, count, seconds in counts:
            part.counts[kind, outcome] = count
            part.seconds[kind, outcome] = seconds
        return part


@dataclass(slots=True)
class Tally:
    """Sums over parts, by kind and outcome; and the failures."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    grown_mb: int = 0

    def take(self, part: Part) -> None:
        """Add a part."""
        self.counts.update(part.counts)
        self.seconds.update(part.seconds)
        self.wrong += part.wrong
        self.grown_mb = max(self.grown_mb, part.grown_mb)

    def of(self, outcome: str) -> int:
        """Return how many inputs had this outcome."""
        return sum(count for (_, name), count in self.counts.items() if name == outcome)

    @property
    def done(self) -> int:
        return sum(self.counts.values())

    @property
    def is_clean(self) -> bool:
        return not any(self.of(name) for name in BAD) and self.grown_mb < MEMORY_MB

    def line(self) -> str:
        """Return the last line of a campaign."""
        parts = [f"{self.of(name)} {name}" for name in OUTCOMES]
        return f"{self.done} inputs: {', '.join(parts)}; memory grew by {self.grown_mb} MB at most"

    def table(self) -> list[str]:
        """Return lines of counts by kind, with the processor milliseconds per input."""
        lines = []
        for kind in sorted({kind for kind, _ in self.counts}):
            counts = {outcome: self.counts[kind, outcome] for outcome in OUTCOMES}
            spent_ms = 1_000 * sum(self.seconds[kind, outcome] for outcome in OUTCOMES) / max(sum(counts.values()), 1)
            shown = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
            lines.append(f"{kind:<20} {sum(counts.values()):>8} {spent_ms:>8.2f} ms  {shown}")
        return lines


def read_record(path: Path) -> list[Part]:
    """Read a record. A truncated last line does not count: its inputs are done again."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    if lines[-1]:
        path.write_text("\n".join([*lines[:-1], ""]))
    return [Part.from_json(line) for line in lines[:-1]]


def left_to_do(numbers: range, parts: Iterable[Part]) -> Numbers:
    """Return the numbers that are in none of the parts."""
    spans, number = [], numbers.start
    for start, stop in sorted((part.start, part.stop) for part in parts):
        spans.append(range(number, min(start, numbers.stop)))
        number = max(number, stop)
    return [part for part in (*spans, range(number, numbers.stop)) if part]


def divided(numbers: Sequence[range], count: int) -> list[Numbers]:
    """Divide numbers among at most so many workers; each gets some."""
    total = sum(map(len, numbers))
    shares = []
    for n in range(count):
        low, high, start, share = total * n // count, total * (n + 1) // count, 0, []
        for span in numbers:
            share.append(span[max(low - start, 0) : max(high - start, 0)])
            start += len(span)
        shares.append([part for part in share if part])
    return [share for share in shares if share]
