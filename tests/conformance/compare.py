"""Our answer and the peer's → how they compare.

Matches are compared as sets of bindings. Where a skip strategy had the choice among matches with the same first and
last event (`skip-tie`), any of them counts as right. A match that becomes certain by time alone has that time in our
answer; the peer gives it the next time at which it looks.
Tested by: tests/conformance/test_conformance.py
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from tests.conformance.run import RefusedError, Subject, answer, answer_without_limits, check_pattern
from tests.conformance.scenario import Answer, Bindings, Scenario
from tests.conformance.structure import PatternText, UntranslatableError, pattern_text

TIE = "skip-tie"
# The peer's watermark at the end of the stream.
_FOREVER_MS = 2**63 - 1


class Verdict(StrEnum):
    """The verdict on a scenario, the best first."""

    PASS = "pass"
    DIFFERS = "differs"  # by known differences
    BOUND = "bound"  # we limit the matches of one event, and agree without that limit
    NO_ANSWER = "no answer"  # the peer refuses a pattern that we answer, so answers cannot be compared
    UNSUPPORTED = "unsupported"  # the language cannot express the pattern, or refuses it
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Answers that only one side has, and matches with two times: (bindings, the peer's time, ours)."""

    missing: frozenset[Bindings] = frozenset()
    extra: frozenset[Bindings] = frozenset()
    missing_timeouts: frozenset[tuple[Bindings, int]] = frozenset()
    extra_timeouts: frozenset[tuple[Bindings, int]] = frozenset()
    times: frozenset[tuple[Bindings, int, int]] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.missing_timeouts or self.extra_timeouts or self.times)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A scenario's verdict with its reason, the pattern text if it could be written, and the disagreement if any.

    `code` is the code of the mistake for which the language refuses the pattern; `numbers` are the known differences.
    """

    scenario: Scenario
    verdict: Verdict
    reason: str = ""
    written: PatternText | None = None
    disagreement: Disagreement = Disagreement()
    code: str = ""
    numbers: tuple[int, ...] = ()


def run_scenario(scenario: Scenario) -> Outcome:
    """Write, check, run and compare one scenario; a disagreement is a FAIL here, known or not."""
    written: PatternText | None = None
    try:
        written = pattern_text(scenario)
        subject = check_pattern(written)
        ours = answer(subject, scenario)
    except UntranslatableError as error:
        return _without_answer(scenario, f"no word for {error}", written)
    except RefusedError as error:
        return _without_answer(scenario, f"refused: {error}", written, error.code)
    if scenario.expected is None:
        return Outcome(scenario, Verdict.NO_ANSWER, f"the peer refuses it: {scenario.refusal}", written)
    result = disagreement(scenario, subject, scenario.expected, ours)
    return Outcome(scenario, Verdict.FAIL if result else Verdict.PASS, "", written, result)


def is_bound(outcome: Outcome) -> bool:
    """Return True if the two sides only differ because the engine limits the matches that one event completes."""
    scenario, difference = outcome.scenario, outcome.disagreement
    if scenario.expected is None or outcome.written is None or not difference.missing:
        return False
    subject = check_pattern(outcome.written)
    return not disagreement(scenario, subject, scenario.expected, answer_without_limits(subject, scenario))


def _without_answer(scenario: Scenario, reason: str, written: PatternText | None, code: str = "") -> Outcome:
    if scenario.expected is None:
        return Outcome(scenario, Verdict.PASS, f"both refuse it ({reason})", written, code=code)
    return Outcome(scenario, Verdict.UNSUPPORTED, reason, written, code=code)


def disagreement(
    scenario: Scenario,
    subject: Subject,
    expected: Answer,
    ours: Answer,
    solve: Callable[[Subject, Scenario], Answer] = answer,
) -> Disagreement:
    """Return the differences between the two answers; empty where a tie was resolved otherwise.

    `solve` gave our answer.
    """
    missing, extra = expected.bindings - ours.bindings, ours.bindings - expected.bindings
    is_tie = TIE in scenario.tags and set(spans(scenario, expected.bindings)) == set(spans(scenario, ours.bindings))
    if (missing or extra) and is_tie:
        free = solve(subject.without_skip(), scenario)
        if ours.bindings <= free.bindings:
            missing = extra = frozenset()
    return Disagreement(
        missing,
        extra,
        expected.timeouts - ours.timeouts,
        ours.timeouts - expected.timeouts,
        frozenset(_other_times(scenario, expected, ours)),
    )


def is_tie(outcome: Outcome) -> bool:
    """Whether the two sides only chose different matches with the same start, released at the same moment.

    The peer withholds matches by start, and then in the order of its internal queue.
    """
    scenario, difference = outcome.scenario, outcome.disagreement
    chose = Disagreement(missing=difference.missing, extra=difference.extra)
    if scenario.expected is None or outcome.written is None or not scenario.skips or difference != chose:
        return False
    subject = check_pattern(outcome.written)
    theirs, ours = scenario.expected, answer(subject, scenario)
    if _released(scenario, theirs, difference.missing) != _released(scenario, ours, difference.extra):
        return False
    return difference.missing <= answer(subject.without_skip(), scenario).bindings


def _released(scenario: Scenario, side: Answer, chosen: Iterable[Bindings]) -> list[tuple[int, int]]:
    """Return the place of the first event and the time of each of the chosen matches."""
    times_ms = dict(side.matches)
    return sorted((spans(scenario, [match])[0][0], times_ms[match]) for match in chosen)


def spans(scenario: Scenario, matches: Iterable[Bindings]) -> list[tuple[int, int]]:
    """Return the places of each match's first and last event among the events by (time, arrival), sorted."""
    order = sorted(range(len(scenario.events)), key=lambda place: (scenario.events[place].time_ms, place))
    rank = {scenario.events[place].id: number for number, place in enumerate(order)}
    places: list[tuple[int, int]] = []
    for match in matches:
        ranks = [rank[i] for _, ids in match for i in ids]
        places.append((min(ranks), max(ranks)))
    return sorted(places)


def _other_times(scenario: Scenario, expected: Answer, ours: Answer) -> list[tuple[Bindings, int, int]]:
    """Return matches of both sides with different times."""
    # If a match was emitted more than once, its first time remains.
    theirs = dict(sorted(expected.matches, key=lambda match: -match[1]))
    key_of = {event.id: event.key for event in scenario.events}
    differing: list[tuple[Bindings, int, int]] = []
    for bindings, time_ms in ours.matches:
        their_ms = theirs.get(bindings, time_ms)
        if their_ms != time_ms and their_ms not in _next_looks(scenario, key_of[bindings[0][1][0]], time_ms):
            differing.append((bindings, their_ms, time_ms))
    return differing


def _next_looks(scenario: Scenario, key: str, time_ms: int) -> set[int]:
    """Return the times at which the peer may first notice a time: at the key's next event, or at the next watermark."""
    events = [event.time_ms for event in scenario.events if event.key == key and event.time_ms >= time_ms]
    watermarks = [watermark_ms for _, watermark_ms in scenario.watermarks if watermark_ms >= time_ms]
    return {min(events, default=_FOREVER_MS), min(watermarks, default=_FOREVER_MS)}
