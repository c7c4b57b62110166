"""A scenario → the names of the features that it uses, to see that a run has covered them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = Any


def features(scenario: Json) -> set[str]:
    """What the pattern and the events use."""
    found = {f"skip-{scenario['skip']['type']}"}
    for stage in scenario["pattern"]:
        found.update(_of_stage(stage, 0))
    if scenario.get("within"):
        found.add(f"within-{scenario['within']['type']}")
    times = [event["ts"] for event in scenario["events"]]
    if times != sorted(times):
        found.add("disorder")
    if len(set(times)) < len(times):
        found.add("same-instant")
    if len({event["key"] for event in scenario["events"]}) > 1:
        found.add("keys")
    if "watermarks" in scenario:
        found.add("watermarks")
    return found


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
