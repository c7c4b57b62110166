"""Seeds → random scenarios that are small and crowded: the words that the peer's own generator seldom puts together.

Short patterns in which groups, absences, options, stop events, step times and ways to skip meet often, on a few events;
an `x` fits nothing. A difference shows on few events, and thousands of scenarios take a minute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

Json = Any

_LETTERS = "abcd"
_TIMES = ([1, None], [1, None], [2, None], [2, 2], [1, 2], [1, 2], [0, 2], [2, 3])
_SKIPS = ("to_next", "past_last", "past_last", "to_first", "to_last")


def small(seed: int, count: int) -> list[Json]:
    """Scenarios without answers; the same for the same seed."""
    return [_scenario(Random(f"{seed}/{number}"), f"small {seed}/{number}") for number in range(count)]


def _scenario(random: Random, name: str) -> Json:
    maker = _Maker(random, windowed=random.random() < 0.6)
    pattern = maker.chain(random.choice((2, 3, 3, 4)), 0)
    skip: Json = {"type": "no_skip"}
    if random.random() < 0.5:
        tops = [s["name"] for s in pattern if "name" in s and not s.get("link", "").startswith("not")]
        skip = {"type": random.choice(_SKIPS)}
        if skip["type"].startswith(("to_f", "to_l")):
            skip = {**skip, "stage": random.choice(tops)} if tops else {"type": "past_last"}
    within = None
    if maker.windowed:
        within = {"ms": random.randint(3, 12), "type": "prev_curr" if random.random() < 0.3 else "first_last"}
    found = {"name": name, "pattern": pattern, "skip": skip, "within": within, "events": _events(random, pattern)}
    return {**found, "watermarks": "per_event"} if random.random() < 0.15 else found


def _events(random: Random, pattern: Sequence[Json]) -> list[Json]:
    letters: list[str] = []
    size = random.randint(4, 9)
    while len(letters) < size:
        letters += _walk(random, pattern) if random.random() < 0.7 else [random.choice(_LETTERS + "x")]
    now_ms, found = 1, []
    for number, letter in enumerate(letters[:size]):
        now_ms += random.choice((0, 1, 1, 1, 1, 2, 2, 3, 7))
        found.append({"id": number, "key": "k", "ts": now_ms, "f": {"name": letter}})
    return found


def _walk(random: Random, stages: Sequence[Json]) -> Iterator[str]:
    """Letters that roughly follow the pattern, with others between."""
    for stage in stages:
        if random.random() < (0.75 if stage.get("link", "").startswith("not") else 0.4 * bool(stage.get("optional"))):
            continue
        low, high = stage.get("times", (1, 1))
        for _ in range(random.randint(max(low, 1), high or low + 1)):
            yield from _walk(random, stage["group"]) if "group" in stage else [stage["where"]["r"]]
            if random.random() < 0.25:
                yield random.choice(_LETTERS + "xx")


@dataclass
class _Maker:
    """Builds one pattern; `named` counts its stages."""

    random: Random
    windowed: bool
    named: list[str] = field(default_factory=list)

    def chain(self, size: int, depth: int) -> list[Json]:
        """Stages one after the other. Nothing optional comes directly before an absence: the library refuses it."""
        stages: list[Json] = []
        for number in range(size):
            may_end = number < size - 1 or (depth == 0 and self.windowed)
            after = bool(stages) and not stages[-1].get("optional") and may_end
            stages.append(self.stage(first=not number, absence=after, depth=depth))
        return stages

    def stage(self, *, first: bool, absence: bool, depth: int) -> Json:
        """A stage, an absence or a group."""
        random, made = self.random, dict[str, Json]()
        if not first:
            made["link"] = random.choice(("next", "followedBy", "followedBy", "followedByAny"))
        if absence and random.random() < 0.25:
            link = random.choice(("notNext", "notFollowedBy", "notFollowedBy"))
            return {**self._named(), "link": link}
        if depth < 2 and random.random() < (0.35, 0.15)[depth]:
            made["group"] = self.chain(random.choice((1, 1, 2, 2, 3)), depth + 1)
            return self._repeated(made)
        made = self._repeated({**made, **self._named()})
        if (depth == 0 or not first) and random.random() < 0.15:
            made["within"] = {"ms": random.randint(2, 6), "type": "prev_curr"}
        return made

    def _named(self) -> Json:
        """The first stage takes a, the second b, mostly."""
        number = len(self.named)
        letter = _LETTERS[number % 4] if self.random.random() < 0.7 else self.random.choice(_LETTERS)
        self.named.append(f"s{number + 1}")
        return {"name": self.named[-1], "where": {"op": "==", "l": {"f": "name"}, "r": letter}}

    def _repeated(self, stage: Json) -> Json:
        """With a quantifier, or none."""
        random = self.random
        if random.random() < 0.5:
            stage["times"] = random.choice(_TIMES)
            inner = random.random()
            if inner < 0.3:
                stage["inner"] = "consecutive" if inner < 0.15 else "combinations"
            if "group" not in stage and inner >= 0.15 and random.random() < 0.3:
                stage["greedy"] = True
            if stage["times"][1] is None and random.random() < 0.3:
                stage["until"] = {"op": "==", "l": {"f": "name"}, "r": random.choice(_LETTERS + "x")}
        if random.random() < 0.25:
            stage["optional"] = True
        return stage
