"""Seeds → random scenarios that are small and crowded: words that the peer's own generator seldom combines.

In short patterns, groups, absences, options, stop events, step times and ways to skip meet often, on a few events; an
`x` fits none of the conditions. A difference shows on few events, and thousands of scenarios take a minute. `nested`
scenarios have groups that repeat inside groups that repeat, before a stage that takes almost anything, so that open
rounds of both groups matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import log
from random import Random
from typing import Any, ClassVar

Json = Any

_LETTERS = "abcd"
_TIMES = ([1, None], [1, None], [2, None], [2, 2], [1, 2], [1, 2], [0, 2], [2, 3])
_ROUNDS = ([1, None], [1, None], [1, None], [1, 2], [1, 3], [2, None], [2, 3])
_SKIPS = ("to_next", "past_last", "past_last", "to_first", "to_last")


def small(seed: int, count: int) -> list[Json]:
    """Return scenarios without answers; the same for the same seed."""
    return [_scenario(Random(f"{seed}/{number}"), f"small {seed}/{number}", _Maker) for number in range(count)]


def nested(seed: int, count: int) -> list[Json]:
    """Return scenarios with groups that repeat inside groups that repeat."""
    names = [f"nested {seed}/{number}" for number in range(count)]
    return [_scenario(Random(name), name, _NestedMaker) for name in names]


def _scenario(random: Random, name: str, makes: type[_Maker]) -> Json:
    maker = makes(random, windowed=random.random() < 0.6)
    pattern = maker.chain(random.choice((2, 3, 3, 4)), 0)
    skip: Json = {"type": "no_skip"}
    if random.random() < maker.skips:
        tops = [s["name"] for s in pattern if "name" in s and not s.get("link", "").startswith("not")]
        skip = {"type": random.choice(_SKIPS)}
        if skip["type"].startswith(("to_f", "to_l")):
            skip = {**skip, "stage": random.choice(tops)} if tops else {"type": "past_last"}
    within = None
    if maker.windowed:
        within = {
            "ms": random.randint(*maker.window_ms),
            "type": "prev_curr" if random.random() < 0.3 else "first_last",
        }
    scenario = {
        "name": name,
        "pattern": pattern,
        "skip": skip,
        "within": within,
        "events": _events(random, maker, pattern),
    }
    return {**scenario, "watermarks": "per_event"} if random.random() < 0.15 else scenario


def _events(random: Random, maker: _Maker, pattern: Sequence[Json]) -> list[Json]:
    letters: list[str] = []
    size = random.randint(4, 9)
    while len(letters) < size:
        letters += _walk(random, pattern) if random.random() < maker.walks else [random.choice(maker.others)]
    now_ms, events = 1, []
    for number, letter in enumerate(letters[:size]):
        now_ms += random.choice((0, 1, 1, 1, 1, 2, 2, 3, 7))
        events.append({"id": number, "key": "k", "ts": now_ms, "f": {"name": letter}})
    return events


def _walk(random: Random, stages: Sequence[Json]) -> Iterator[str]:
    """Yield letters that roughly follow the pattern, with others between."""
    for stage in stages:
        if random.random() < (0.75 if stage.get("link", "").startswith("not") else 0.4 * bool(stage.get("optional"))):
            continue
        low, high = stage.get("times", (1, 1))
        for _ in range(random.randint(max(low, 1), high or low + 1)):
            yield from _walk(random, stage["group"]) if "group" in stage else [_letter(random, stage["where"])]
            if random.random() < 0.25:
                yield random.choice(_LETTERS + "xx")


def _letter(random: Random, where: Json) -> str:
    return str(where["r"] if where["op"] == "==" else random.choice([one for one in _LETTERS if one != where["r"]]))


@dataclass
class _Maker:
    """Builds one pattern; `named` counts its stages."""

    skips: ClassVar = 0.5  # how often a pattern has a skip strategy, and how often events follow the pattern
    walks: ClassVar = 0.7
    window_ms: ClassVar = (3, 12)
    others: ClassVar = _LETTERS + "x"

    random: Random
    windowed: bool
    named: list[str] = field(default_factory=list)

    def chain(self, size: int, depth: int) -> list[Json]:
        """Return stages one after the other. The library refuses an optional one directly before an absence."""
        stages: list[Json] = []
        for number in range(size):
            may_end = number < size - 1 or (depth == 0 and self.windowed)
            after = bool(stages) and not stages[-1].get("optional") and may_end
            stages.append(self.stage(first=not number, absence=after, depth=depth))
        return stages

    def stage(self, *, first: bool, absence: bool, depth: int) -> Json:
        """Return a stage, an absence or a group."""
        random, stage = self.random, dict[str, Json]()
        if not first:
            stage["link"] = random.choice(("next", "followedBy", "followedBy", "followedByAny"))
        if absence and random.random() < 0.25:
            link = random.choice(("notNext", "notFollowedBy", "notFollowedBy"))
            return {**self._named(), "link": link}
        if depth < 2 and random.random() < (0.35, 0.15)[depth]:
            stage["group"] = self.chain(random.choice((1, 1, 2, 2, 3)), depth + 1)
            return self._repeated(stage)
        stage = self._repeated({**stage, **self._named()})
        if (depth == 0 or not first) and random.random() < 0.15:
            stage["within"] = {"ms": random.randint(2, 6), "type": "prev_curr"}
        return stage

    def _named(self) -> Json:
        """Return a stage; mostly the first one takes a, and the second b."""
        number = len(self.named)
        letter = _LETTERS[number % 4] if self.random.random() < 0.7 else self.random.choice(_LETTERS)
        self.named.append(f"s{number + 1}")
        return {"name": self.named[-1], "where": {"op": "==", "l": {"f": "name"}, "r": letter}}

    def _repeated(self, stage: Json) -> Json:
        """Return the stage with or without a quantifier."""
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


class _NestedMaker(_Maker):
    """Builds a group with groups in it, and the stages after it.

    Most stages are plain, of few letters and with `->` between them: the wait of a run after other runs have begun a
    round depends on each event.
    """

    skips: ClassVar = 0.2
    walks: ClassVar = 0.5
    window_ms: ClassVar = (6, 30)
    others: ClassVar = "aaabbbcx"

    def chain(self, size: int, depth: int) -> list[Json]:
        """Return stages: at the top perhaps a stage, then the group and the broad stage; inside, stages and groups."""
        random = self.random
        if depth:
            size = random.choice((1, 2, 2))
            return [self._inside(first=not number, is_last=number == size - 1, depth=depth) for number in range(size)]
        begun = [self._plain(first=True)] if random.random() < 0.2 else []
        ends = [self._plain(first=False)]
        ends[0]["where"] = {"op": "!=", "l": {"f": "name"}, "r": random.choice(_LETTERS + "x")}
        if random.random() < 0.15:
            ends.append(self.stage(first=False, absence=self.windowed, depth=2))
        return [*begun, self._rounds(first=not begun, depth=1), *ends]

    def _inside(self, *, first: bool, is_last: bool, depth: int) -> Json:
        if depth < 3 and self.random.random() < (0.9 if is_last else 0.3) / depth**2:
            return self._rounds(first=first, depth=depth + 1)
        return self._plain(first=first)

    def _plain(self, *, first: bool) -> Json:
        """Return a stage that takes mostly one of two letters, otherwise any."""
        if self.random.random() < 0.2:
            return self.stage(first=first, absence=False, depth=2)
        stage = {**self._linked(first=first), **self._named()}
        stage["where"]["r"] = self.random.choice("aabbc")
        if not first and self.random.random() < 0.15:
            stage["within"] = {"ms": self.random.randint(2, 6), "type": "prev_curr"}
        return stage

    def _rounds(self, *, first: bool, depth: int) -> Json:
        random = self.random
        stage = {**self._linked(first=first), "group": self.chain(0, depth), "times": random.choice(_ROUNDS)}
        if random.random() < 0.1:
            stage["inner"] = random.choice(("consecutive", "combinations"))
        if stage["times"][1] is None and random.random() < 0.1:
            stage["until"] = {"op": "==", "l": {"f": "name"}, "r": random.choice(_LETTERS + "x")}
        if random.random() < 0.1:
            stage["optional"] = True
        return stage

    def _linked(self, *, first: bool) -> Json:
        links = ("followedBy", "followedBy", "followedBy", "followedBy", "followedByAny", "next")
        return {} if first else {"link": self.random.choice(links)}


def features(scenario: Json) -> set[str]:
    """Return the features that the pattern and the events use."""
    names = {f"skip-{scenario['skip']['type']}"}
    for stage in scenario["pattern"]:
        names.update(_of_stage(stage, 0))
    if scenario.get("within"):
        names.add(f"within-{scenario['within']['type']}")
    times = [event["ts"] for event in scenario["events"]]
    if times != sorted(times):
        names.add("disorder")
    if len(set(times)) < len(times):
        names.add("same-instant")
    if len({event["key"] for event in scenario["events"]}) > 1:
        names.add("keys")
    if "watermarks" in scenario:
        names.add("watermarks")
    return names


def richest(drafted: Sequence[Json], count: int) -> list[Json]:
    """Return the scenarios with the rarest combinations of features, in the order of the draft."""
    named = [features(scenario) for scenario in drafted]
    often = Counter(feature for one in named for feature in one)
    weight = [-sum(log(often[feature] / len(drafted)) for feature in sorted(one)) for one in named]
    chosen = sorted(range(len(drafted)), key=lambda place: -weight[place])[:count]
    return [drafted[place] for place in sorted(chosen)]


def _of_stage(stage: Json, depth: int) -> Iterator[str]:
    if "link" in stage:
        yield stage["link"]
    if "group" in stage:
        yield "nested-group" if depth else "group"
        for inner in stage["group"]:
            yield from _of_stage(inner, depth + 1)
    if "times" in stage:
        low, high = stage["times"]
        yield "times-or-more" if high is None else "times" if low == high else "times-range"
    yield from (word for word in ("optional", "greedy", "until", "gap_ms") if stage.get(word))
    if "inner" in stage:
        yield stage["inner"]
    if "within" in stage:
        yield f"stage-within-{stage['within']['type']}"
    if '"agg"' in str(stage).replace("'", '"'):
        yield "iterative"
