"""The corpus: `*.toml` in this folder → cases: a pattern, a few events, and the matches that every engine must give.

README.md in this folder describes the form of a case.
Tested by: tests/corpus/test_corpus.py
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from cep.base.limits import TIME_MS_MAX

FOLDER = Path(__file__).parent
EVENT = """event e {
  id          id
  event_time  time
  key         string
  kind        enum(a, b, c, d, x)
  v           int?
}
"""
KINDS = "abcdx"
_KEYS = {"name", "pattern", "events", "matches", "where", "any", "skip", "emit", "timeouts", "watermark"}
_ID_DIGITS = 3
_VARIABLE = re.compile(r"\b[abcd]\b")
_WORDS_IN_PARENTHESES = re.compile(r"until \([^)]*\)")


@dataclass(frozen=True, slots=True)
class CaseEvent:
    """One event. Ids sort as the events do, so that events of equal time stay in order. An engine may prefix ids."""

    id: str
    name: str
    time_ms: int
    value: int | None


@dataclass(frozen=True, order=True)
class CaseMatch:
    """A match or a time-out: (variable, event name) in the order of binding, its time, and the emitted values."""

    bindings: tuple[tuple[str, str], ...]
    detected_ms: int
    measures: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        names = [name if name[0] == variable else f"{variable}={name}" for variable, name in self.bindings]
        return " ".join([*names, f"@{self.detected_ms}", *(f"{name}={value}" for name, value in self.measures)])


@dataclass(frozen=True)
class Case:
    """One case of a file. `topic` is the file's name."""

    topic: str
    given: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.topic}: {self.given['name']}"

    @property
    def id(self) -> str:
        """Return a name that patterns and rules may have."""
        return re.sub(r"[^a-z0-9]+", "_", self.name.lower())[:60].strip("_")

    @property
    def watermark_ms(self) -> int:
        return int(self.given.get("watermark", TIME_MS_MAX))

    @property
    def ends(self) -> bool:
        """Return True if the stream ends at the end of time, as in a replay."""
        return "watermark" not in self.given

    @cached_property
    def events(self) -> tuple[CaseEvent, ...]:
        events: list[CaseEvent] = []
        for order, word in enumerate(self.given["events"].split()):
            head, _, time = word.partition("@")
            name, _, value = head.partition(":")
            assert name not in {event.name for event in events}, f"{self.name}: two events {name}"
            time_ms = int(time) if time else (events[-1].time_ms + 1 if events else 0)
            events.append(CaseEvent(f"{order:0{_ID_DIGITS}}", name, time_ms, int(value) if value else None))
        return tuple(events)

    @property
    def matches(self) -> list[CaseMatch]:
        return [_match(text) for text in self.given["matches"]]

    @property
    def timeouts(self) -> list[CaseMatch]:
        return [_match(text) for text in self.given.get("timeouts", ())]

    def pattern_text(self) -> str:
        """Write the pattern, named by the case's id, without the event type."""
        raw = self.given
        variables = sorted(set(_VARIABLE.findall(_WORDS_IN_PARENTHESES.sub("", raw["pattern"]))))
        where = []
        for name in variables:
            conditions = [] if name in raw.get("any", ()) else [f"kind == {name}"]
            conditions += [f"({raw['where'][name]})"] if name in raw.get("where", {}) else []
            where.append(f"         {name}: e {' and '.join(conditions)}")
        emit = raw.get("emit", "matched = 1")
        lines = [f"  seq    {raw['pattern']}", "  where", *where, f"  skip   {raw.get('skip', 'none')}"]
        lines += [f"  emit   {emit}", *(["  on timeout emit unfinished = 1"] if "timeouts" in raw else [])]
        return "\n".join([f"pattern {self.id} by key {{", *lines, "}"]) + "\n"

    def records(self) -> Iterator[bytes]:
        """Write the events as JSON, the case's id as their key."""
        for event in self.events:
            fields = {"id": f"{self.id}.{event.id}", "event_time": event.time_ms, "key": self.id, "kind": event.name[0]}
            yield orjson.dumps(fields | {"v": event.value})

    def match_of(self, bound: Iterable[tuple[str, str]], detected_ms: int, measures: Mapping[str, Any]) -> CaseMatch:
        """Return the match of the case from an engine's variables and event ids.

        Measures are left out where the case lacks `emit`.
        """
        names = {event.id: (place, event.name) for place, event in enumerate(self.events)}
        places = [(variable, *names[event_id[-_ID_DIGITS:]]) for variable, event_id in bound]
        bindings = sorted((place, variable, name) for variable, place, name in places)
        values = tuple(sorted((name, int(value)) for name, value in measures.items())) if "emit" in self.given else ()
        return CaseMatch(tuple((variable, name) for _, variable, name in bindings), detected_ms, values)


def _match(text: str) -> CaseMatch:
    words, _, rest = text.partition("@")
    time, *measures = rest.split()
    bindings = [word.partition("=")[::2] if "=" in word else (word[0], word) for word in words.split()]
    values = [measure.partition("=")[::2] for measure in measures]
    return CaseMatch(
        tuple((variable, name) for variable, name in bindings),
        int(time),
        tuple(sorted((name, int(value)) for name, value in values)),
    )


def read_cases() -> list[Case]:
    """Read every case of every file. An unknown key and a repeated name are mistakes."""
    cases = []
    for path in sorted(FOLDER.glob("*.toml")):
        for raw in tomllib.loads(path.read_text(encoding="utf-8"))["case"]:
            assert set(raw) <= _KEYS, f"{path.name}: {raw['name']}: {set(raw) - _KEYS}"
            cases.append(Case(path.stem, raw))
    assert len({case.id for case in cases}) == len(cases), "two cases have one name"
    return cases
