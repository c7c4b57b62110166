"""A scenario → the names of its features, to check the coverage of a run, and to choose scenarios by them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import log
from typing import Any

Json = Any


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
