"""Real bytes, texts and JSON → hostile ones, by a random generator: the same seed gives the same input.

The outcomes of a campaign's inputs are lines of a file, part by part, with the numbers that are left to do:

    {"seed": 1, "kinds": [], "start": 0, "stop": 812, "counts": [["JSON events", "accepted", 130, 0.21], …], …}

Parts are sums, so the lines of several seeds, processes and days make one tally.
Tested by: tests/hostile/test_campaign.py
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from cep.lang.parse.lexer import DECLARATIONS

ODD_BYTES = [
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xe2\x80\xae", b"\n", b"\r\n", b'"', b"\\", b"'",
    b"\x1b[2J", b"[" * 5_000, b"{" * 3_000, b'{"a":' * 3_000, b"9" * 5_000, b"1e999", b"-0", b"NaN",
    b"\\ud800", b"\\u0000", b"../" * 9, b"/etc/passwd", b"a." * 2_000, b"%s%n", b"A" * 20_000,
]  # fmt: skip
ODD_TEXTS = ["", "\0", "\ud7ff", "💳" * 9, "x" * 9_999, "../../etc/passwd", "/dev/zero", "env:HOME", "NaN", "1e999",
             "9" * 4_999, "2026-13-45T99:99:99Z", "9999-12-31T23:59:59.999Z", "0001-01-01T00:00:00Z", "{key}", "{",
             "a" * 64, "\u202e", "-1", "null", "[1]"]  # fmt: skip
ODD_VALUES: list[Any] = [
    None, True, False, 0, -1, 1.5, 2**31, 2**63, -(2**63) - 1, 2**64, 10**30, 1e308, -0.0, [], {}, [[]], {"": None},
    [None] * 50, {"a": {"b": {"c": [1]}}}, *ODD_TEXTS,
]  # fmt: skip
_LONG = 1_000
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|#[^\n]*|\w+|\s+|.')
TOML_TRICKS = (
    "a = " + "[" * 9_000, "\n" + ".".join("a" * 9_000) + " = 1\n", "version = " + "9" * 5_000, 'file = "a\\u0000b"',
    'file = "/etc/passwd"', 'file = "../../../../etc/passwd"', "[params]\n" * 2, "[[params]]", "tries = 1e400\n",
    "tries = " + "9" * 4_000, "params = {a = {a = {a = 1}}}", 'message = "{"', "score = -0.0",
    "review_date = 0001-01-01",
)  # fmt: skip


def broken_bytes(data: bytes, random: Random) -> bytes:
    """Change bytes: drop, repeat, exchange, flip, insert odd ones, or cut off."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        place = random.randrange(len(out) + 1)
        size = random.choice((1, 1, 2, 4, 8, 40))
        match random.randrange(7):
            case 0:
                del out[place : place + size]
            case 1:
                out[place:place] = out[place : place + size] * random.choice((1, 1, 3, 50))
            case 2:
                other = random.randrange(len(out) + 1)
                out[place : place + size] = out[other : other + size]
            case 3 if place < len(out):
                out[place] ^= 1 << random.randrange(8)
            case 4:
                out[place:place] = random.choice(ODD_BYTES)
            case 5:
                out[place : place + size] = random.randbytes(size)
            case 6 if random.random() < 0.2:
                del out[place:]
            case _:
                out[place : place + size] = bytes(random.choice(b'0123456789-."[]{},:=eE \n') for _ in range(size))
    return bytes(out)


def broken_text(text: str, random: Random) -> str:
    """Change the bytes of a text; bytes that are not UTF-8 are replaced."""
    return broken_bytes(text.encode(), random).decode("utf-8", "replace")


def broken_source(text: str, random: Random) -> str:
    """Change a pattern file between its tokens: drop, repeat or exchange some, or break off a declaration."""
    tokens = _TOKEN.findall(text)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        place = random.randrange(len(tokens) + 1)
        size = random.choice((1, 1, 2, 3, 9))
        other = random.randrange(len(tokens) + 1)
        match random.randrange(5):
            case 0:
                del tokens[place : place + size]
            case 1:
                tokens[place:place] = tokens[place : place + size] * random.choice((1, 1, 30))
            case 2:
                tokens[place : place + size] = tokens[other : other + size]
            case 3:
                tokens[place:place] = tokens[other : other + size]
            case _:
                ends = (n for n in range(place, len(tokens)) if tokens[n] in DECLARATIONS)
                tokens[place : next(ends, len(tokens))] = ["\n"]
    return "".join(tokens)


def broken_value(value: Any, random: Random, others: list[Any] | None = None) -> Any:
    """Change a tree of dicts and lists: leave out, repeat, rename, or put other values at random places."""
    tree = copy.deepcopy(value)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        tree = _broken_once(tree, random, others or [])
    return tree


def _broken_once(tree: Any, random: Random, others: list[Any]) -> Any:
    places = list(_places(tree))
    if not places:
        return random.choice(ODD_VALUES)
    inside, name = random.choice(places)
    match random.randrange(6):
        case 0:
            del inside[name]
        case 1 if isinstance(inside, dict):
            inside[random.choice([*ODD_TEXTS, str(name).upper(), f"{name}s"])] = inside.pop(name)
        case 1:
            times = random.choice((1, 20))
            inside.extend(inside[:] * (times if len(inside) < _LONG else 1))  # four times as many take half a gigabyte
        case 2 if isinstance(inside[name], str):
            inside[name] = broken_text(inside[name], random)
        case 2 if isinstance(inside[name], int) and not isinstance(inside[name], bool):
            inside[name] += random.choice((-1, 1, 2**31, -(2**31), 2**62, -(2**62)))
        case 3:
            inside[name] = [inside[name]] if random.random() < 0.5 else {"x": inside[name]}
        case 4:
            other_inside, other_name = random.choice(places)
            inside[name] = copy.deepcopy(other_inside[other_name])
        case _:
            inside[name] = copy.deepcopy(random.choice([*ODD_VALUES, *others]))
    return tree


def _places(tree: Any) -> Any:
    """Yield (container, name) of every value below the top."""
    if isinstance(tree, dict):
        for name in list(tree):
            yield tree, name
            yield from _places(tree[name])
    elif isinstance(tree, list):
        for number in range(len(tree)):
            yield tree, number
            yield from _places(tree[number])


def deep(random: Random) -> str:
    """Return JSON that is nested very deep."""
    opening, closing = random.choice((("[", "]"), ('{"a":', "}")))
    depth = random.choice((100, 1_000, 20_000))
    return opening * depth + "1" + closing * depth


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
