"""Scenario file → scenarios: a pattern in the words of builder calls, events, watermarks, and the peer's answer.

A file is JSON, gzipped if its name says so: `{"scenarios": […]}` or the bare list. The writer of the text
(structure.py) checks the contents of patterns, conditions and expressions; this module checks that the rest is present.
Tested by: tests/conformance/test_conformance.py
"""

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cep.base.errors import UsageError

Json = Any
# The events bound to each stage, without empty stages: a match in a form for sets.
Bindings = tuple[tuple[str, tuple[int, ...]], ...]
SKIP_NONE = "no_skip"


@dataclass(frozen=True, slots=True)
class ScenarioEvent:
    """One event in the order of arrival. `values` are numbers as floats, text, bools or None."""

    id: int
    key: str
    time_ms: int
    values: Mapping[str, float | str | bool | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """Matches with their times, and partial matches whose time ran out, without duplicates."""

    matches: frozenset[tuple[Bindings, int]]
    timeouts: frozenset[tuple[Bindings, int]]

    @property
    def bindings(self) -> frozenset[Bindings]:
        """Return the matches without their times."""
        return frozenset(bindings for bindings, _ in self.matches)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One question and the peer's answer: `expected`, or `refusal`, the error that it gave instead.

    `watermarks` are pairs (events sent, watermark in ms); the stream's end closes every window.
    """

    name: str
    stages: Sequence[Json]
    skip: Mapping[str, Json]
    within: Mapping[str, Json] | None
    events: tuple[ScenarioEvent, ...]
    watermarks: tuple[tuple[int, int], ...]
    tags: frozenset[str]
    expected: Answer | None
    refusal: str = ""

    @property
    def skips(self) -> bool:
        """Whether a skip strategy chooses among matches."""
        return bool(self.skip.get("type", SKIP_NONE) != SKIP_NONE)


def read_scenarios(path: Path) -> list[Scenario]:
    """Read all scenarios of a file. Raises: UsageError if it is not a scenario file."""
    try:
        raw = path.read_bytes()
        content = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read as scenarios: {error}") from error
    listed = content.get("scenarios") if isinstance(content, dict) else content
    if not isinstance(listed, list):
        raise UsageError(f'{path} holds no scenarios: expected {{"scenarios": […]}} or a list')
    return [scenario_of(one, f"{path}, scenario {number}") for number, one in enumerate(listed, start=1)]


def scenario_of(raw: Json, where: str) -> Scenario:
    """Return one scenario. Raises: UsageError if a part is missing or of another shape."""
    try:
        expected, refusal = _expected(raw["expected"])
        events = tuple(_event(event) for event in raw["events"])
        if len({event.id for event in events}) < len(events):
            raise UsageError(f"{where}: two events have the same id")
        return Scenario(
            name=str(raw.get("name", where)),
            stages=list(raw["pattern"]),
            skip=dict(raw.get("skip") or {"type": SKIP_NONE}),
            within=raw.get("within"),
            events=events,
            watermarks=_watermarks(raw.get("watermarks"), events),
            tags=frozenset(raw.get("tags", ())),
            expected=expected,
            refusal=refusal,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{where}: {type(error).__name__}: {error}") from error


def _event(raw: Json) -> ScenarioEvent:
    values = {name: _value(value) for name, value in (raw.get("f") or {}).items()}
    return ScenarioEvent(int(raw["id"]), str(raw.get("key", "")), int(raw["ts"]), values)


def _value(raw: Json) -> float | str | bool | None:
    if raw is None or isinstance(raw, bool | str):
        return raw
    return float(raw)


def _watermarks(raw: Json, events: Sequence[ScenarioEvent]) -> tuple[tuple[int, int], ...]:
    if not raw:
        return ()
    if raw != "per_event":
        return tuple((int(sent), int(watermark_ms)) for sent, watermark_ms in raw)
    watermarks: list[tuple[int, int]] = []
    for sent, event in enumerate(events, start=1):
        latest_ms = event.time_ms - 1
        watermarks.append((sent, max(watermarks[-1][1], latest_ms) if watermarks else latest_ms))
    return tuple(watermarks)


def _expected(raw: Json) -> tuple[Answer | None, str]:
    if "error" in raw:
        return None, f"{raw['error']}: {raw.get('message', '')}".removesuffix(": ")
    times = raw.get("match_ts") or [0] * len(raw["matches"])
    matches = frozenset((bindings_of(m), int(t)) for m, t in zip(raw["matches"], times, strict=True))
    timeouts = frozenset((bindings_of(t["m"]), int(t["ts"])) for t in raw.get("timeouts", ()))
    return Answer(matches, timeouts), ""


def bindings_of(by_stage: Mapping[str, Sequence[int]]) -> Bindings:
    """Return event ids by stage as a value that sets can hold."""
    return tuple(sorted((stage, tuple(ids)) for stage, ids in by_stage.items() if ids))
