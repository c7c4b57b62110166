"""A scenario with the library's answer → a finding: what the comparison says, and whether it can be trusted.

Three guards stand behind "a known difference". The brute-force oracle must answer as the engine does, so that no bug of
the engine hides behind an explanation. Where a skip strategy chooses, the same pattern without one must agree with the
library or differ by the same numbers. And where both agree without it, the strategy must have had a choice among
matches with the same first and last event, or a window that releases matches in the order of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cep.testing.conformance.compare import Outcome, Verdict
from cep.testing.conformance.judge import judge
from cep.testing.conformance.names import EVENT_TYPE, STAMP
from cep.testing.conformance.run import Subject, answer, check_pattern, deliveries
from cep.testing.conformance.scenario import Answer, Bindings, Scenario, bindings_of, scenario_of
from tests.oracle.matcher import Event, Match, find_matches

Json = Any


@dataclass(frozen=True)
class Finding:
    """An outcome; `bug` says why the engine contradicts the oracle, `doubt` why an explanation does not convince."""

    outcome: Outcome
    bug: str = ""
    doubt: str = ""
    tie: bool = False

    @property
    def is_open(self) -> bool:
        """Whether somebody must look at it."""
        return bool(self.bug or self.doubt) or self.outcome.verdict is Verdict.FAIL


def examine(given: Json) -> Finding:
    """Judge a scenario; a difference is checked against the oracle."""
    outcome = judge(scenario_of(given, given["name"]))
    if not outcome.disagreement or outcome.written is None:
        return Finding(outcome)
    subject = check_pattern(outcome.written)
    ours, oracle = answer(subject, outcome.scenario), oracle_answer(subject, outcome.scenario)
    if ours != oracle:
        return Finding(outcome, bug=_contradiction(ours, oracle))
    return Finding(outcome)


def without_skip(given: Json) -> Json:
    """The same scenario with every match that there is, to be answered again."""
    return {**{n: v for n, v in given.items() if n not in ("expected", "tags")}, "skip": {"type": "no_skip"}}


def examine_skip(found: Finding, free: Json) -> Finding:
    """Look again at a finding whose scenario skips, knowing the library's answer without skipping."""
    free_outcome = judge(scenario_of(free, free["name"]))
    scenario, numbers = found.outcome.scenario, free_outcome.numbers
    if free_outcome.verdict is Verdict.FAIL:
        return replace(found, doubt="without skipping the answers differ, and it is not known why")
    if numbers:
        return replace(found, outcome=replace(found.outcome, verdict=Verdict.DIFFERS, numbers=numbers))
    if free_outcome.verdict is Verdict.PASS and scenario.expected is not None:
        free_answer = scenario_of(free, free["name"]).expected
        if free_answer is not None and (has_rivals(scenario, free_answer) or released_together(found.outcome)):
            return replace(found, outcome=replace(found.outcome, verdict=Verdict.PASS, numbers=()), tie=True)
        # A run that the library keeps alive withholds matches, though it never completes one itself.
        if found.outcome.verdict is Verdict.DIFFERS and not {2, 3, 4, 16, 17} & set(found.outcome.numbers):
            return replace(found, doubt=f"without skipping the answers agree; {found.outcome.numbers} cannot be it")
    return found


def examine_alone(found: Finding) -> Finding:
    """Look again at such a finding when the library cannot answer without skipping: there are too many matches."""
    scenario = found.outcome.scenario
    assert found.outcome.written is not None
    free = answer(check_pattern(found.outcome.written).without_skip(), scenario)
    if found.outcome.verdict is Verdict.FAIL and has_rivals(scenario, free):
        return replace(found, outcome=replace(found.outcome, verdict=Verdict.PASS), tie=True)
    return found


def has_rivals(scenario: Scenario, free: Answer) -> bool:
    """Whether some match that the library chose has a rival with the same first and last event."""
    order = {event.id: (event.time_ms, place) for place, event in enumerate(scenario.events)}

    def span(match: Bindings) -> tuple[int, int]:
        ids = [i for _, bound in match for i in bound]
        return min(ids, key=order.__getitem__), max(ids, key=order.__getitem__)

    assert scenario.expected is not None
    spans = [span(match) for match in free.bindings]
    return any(spans.count(span(match)) > 1 for match in scenario.expected.bindings)


def released_together(outcome: Outcome) -> bool:
    """Whether the two sides chose otherwise among matches that start alike and that one and the same event released:
    the library orders what it has withheld by start, and then by its internal queue."""
    scenario, found = outcome.scenario, outcome.disagreement
    if scenario.expected is None or outcome.written is None or not found.missing:
        return False
    ours = answer(check_pattern(outcome.written), scenario)
    order = {event.id: (event.time_ms, place) for place, event in enumerate(scenario.events)}

    def released(matches: Answer, chosen: frozenset[Bindings]) -> set[tuple[tuple[int, int], int]]:
        return {
            (min(order[i] for _, ids in match for i in ids), time_ms)
            for match, time_ms in matches.matches
            if match in chosen
        }

    return released(scenario.expected, found.missing) == released(ours, found.extra)


# ------------------------------------------------------------------------------------------------------ oracle


def oracle_answer(subject: Subject, scenario: Scenario) -> Answer:
    """What the brute-force oracle finds for the checked pattern on the same events."""
    by_key: dict[str, list[Event]] = {}
    ids: dict[int | str, int] = {}
    for released, _ in deliveries(scenario):
        for place, event in released:
            fields: Mapping[str, Json] = {subject.names.fields[n]: v for n, v in event.values.items()}
            ids[place] = event.id
            by_key.setdefault(event.key, []).append(
                Event(place, EVENT_TYPE, event.time_ms, place, {**fields, STAMP: float(event.time_ms)})
            )
    stage_of = subject.names.stage_of()

    def bound(match: Match) -> tuple[Bindings, int]:
        by_stage = {stage_of[v]: [ids[i] for i in places] for v, places in match.by_variable().items()}
        return bindings_of(by_stage), match.detected_ms

    matches: set[tuple[Bindings, int]] = set()
    timeouts: set[tuple[Bindings, int]] = set()
    for events in by_key.values():
        found = find_matches(subject.pattern, events)
        matches |= {bound(match) for match in found.matches}
        if subject.pattern.timeout_measures is not None:
            timeouts |= {bound(match) for match in found.timeouts}
    return Answer(frozenset(matches), frozenset(timeouts))


def _contradiction(ours: Answer, oracle: Answer) -> str:
    parts = {
        "matches of the engine alone": ours.matches - oracle.matches,
        "matches of the oracle alone": oracle.matches - ours.matches,
        "time-outs of the engine alone": ours.timeouts - oracle.timeouts,
        "time-outs of the oracle alone": oracle.timeouts - ours.timeouts,
    }
    return "; ".join(f"{name}: {sorted(found)[:3]}" for name, found in parts.items() if found)
