"""A scenario with the library's answer → a finding: the verdict of the comparison, and whether it can be trusted.

Two guards check "a known difference". The brute-force oracle must answer as the engine does, so that an explanation
hides no bug of the engine; the oracle also answers where the library refuses the pattern. Where a skip strategy
chooses, the difference is proven from the runs that each side has without the strategy (strategy.py in this folder).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.conformance.compare import Outcome, Verdict
from tests.conformance.judge import judge
from tests.conformance.run import Subject, answer, check_pattern, deliveries
from tests.conformance.scenario import Answer, Bindings, Scenario, bindings_of, scenario_of
from tests.conformance.structure import EVENT_TYPE, STAMP
from tests.fuzz.peer import MATCHES_MAX
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
        """Whether a person must examine it. Refusals of the language either have a number, or are not accepted."""
        refused = self.outcome.verdict in (Verdict.FAIL, Verdict.UNSUPPORTED)
        return bool(self.bug or self.doubt) or refused

    @property
    def needs_proof(self) -> bool:
        """Whether a skip strategy chose, and the answers differ."""
        return bool(self.outcome.disagreement and self.outcome.scenario.skips and not self.bug)


def examine(raw: Json) -> Finding:
    """Judge a scenario; check a difference, or an answer that only we have, against the oracle."""
    outcome = judge(scenario_of(raw, raw["name"]))
    is_refused = outcome.verdict is Verdict.UNSUPPORTED or outcome.code
    is_compared = outcome.scenario.expected is not None and not outcome.disagreement
    if is_refused or is_compared or outcome.written is None:
        return Finding(outcome)
    subject = check_pattern(outcome.written)
    ours = answer(subject, outcome.scenario)
    if outcome.scenario.expected is None and len(ours.matches) > MATCHES_MAX:
        return Finding(outcome)  # the answers cannot be compared, and the oracle would take hours
    oracle = oracle_answer(subject, outcome.scenario)
    return Finding(outcome, bug="" if ours == oracle else _contradiction(ours, oracle))


# ------------------------------------------------------------------------------------------------------ oracle


def oracle_answer(subject: Subject, scenario: Scenario) -> Answer:
    """Return the brute-force oracle's answer for the checked pattern on the same events."""
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
        result = find_matches(subject.pattern, events)
        matches |= {bound(match) for match in result.matches}
        if subject.pattern.timeout_measures is not None:
            timeouts |= {bound(match) for match in result.timeouts}
    return Answer(frozenset(matches), frozenset(timeouts))


def _contradiction(ours: Answer, oracle: Answer) -> str:
    parts = {
        "matches of the engine alone": ours.matches - oracle.matches,
        "matches of the oracle alone": oracle.matches - ours.matches,
        "time-outs of the engine alone": ours.timeouts - oracle.timeouts,
        "time-outs of the oracle alone": oracle.timeouts - ours.timeouts,
    }
    return "; ".join(f"{name}: {sorted(differing)[:3]}" for name, differing in parts.items() if differing)
