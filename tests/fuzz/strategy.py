"""A difference under a skip strategy → a proof from the answers of both sides without one.

A strategy withholds a match while a run with an earlier start is alive, and drops runs and matches that start before a
floor, which each match raises. A run that never matches can therefore decide which matches are emitted, and comparing
the matches without skipping does not show it. The library gets the key's first event, the first two, and so on, without
skipping and with a window that every run fits into: its time-outs are the runs that are alive by then. From these

1. the strategy, carried out in library.py, must give the library's answer, for some choice among matches that start
   alike;
2. on each of these beginnings both sides must agree, or have a known difference: that difference is the reason;
3. where they agree on all of them, the strategy must give our answer from the same runs: by another choice (a tie), or
   with windows that close in the order of time, not when the library looks.

Some beginnings have too many matches for the library, though the strategy keeps few of them. A run does not depend on
events before its first event, so the library gets the beginning again without the events before the floor reached so
far. Any other difference is open.
Tested by: tests/fuzz/test_drafts.py
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.conformance.compare import Verdict
from tests.conformance.run import answer, check_pattern, deliveries
from tests.conformance.scenario import SKIP_NONE, Answer, Bindings, Scenario, ScenarioEvent, scenario_of
from tests.fuzz.examine import Finding, examine
from tests.fuzz.library import ASKED_MS, Cut, Ended, KeyStream, Strategy, Windows

Json = Any
Ask = Callable[[Sequence[Json]], Sequence[Json]]

# The library gives up on a beginning with more matches than this.
MATCHES_MAX = 3_000
_ORDER_OF_TIME = 2


class UnprovenError(Exception):
    """The message names the missing part of the proof."""


def beginnings(raw: Json) -> list[Json]:
    """Return the questions for the library: each beginning of each key's events, without skipping."""
    keys = _by_key(scenario_of({**raw, "expected": {"matches": []}}, raw["name"]))
    return [_question(raw, events[:size]) for events in keys.values() for size in range(1, len(events) + 1)]


def _question(raw: Json, events: Sequence[ScenarioEvent]) -> Json:
    ids, step_ms = {event.id for event in events}, Windows.of(raw).last_step_ms
    # The library looks when every step to an absence is over, but before the window that the question adds.
    looks = step_ms > 0 and str(raw["pattern"][-1].get("link")).startswith("not")
    return {
        **_windowed(raw),
        **({"watermarks": [[len(events), events[-1].time_ms + step_ms]]} if looks else {}),
        "name": f"{raw['name']}, {events[0].key}, from {events[0].id} to {events[-1].id}",
        "skip": {"type": SKIP_NONE},
        "events": [event for event in raw["events"] if event["id"] in ids],
    }


def prove(finding: Finding, raw: Json, answers: Sequence[Json], ask: Ask) -> Finding:
    """Return the finding with its reason, or with the doubt; `answers` are the answers to `beginnings`."""
    try:
        streams, looked = _answered_keys(finding, raw, answers, ask)
        _check_theirs(finding, streams)
        numbers = tuple(sorted({number for one in looked for number in one.outcome.numbers}))
        if not numbers and not _is_ours(finding, streams, by_time=False):
            numbers = (_ORDER_OF_TIME,)
            _check_ours(finding, streams)
    except UnprovenError as error:
        return replace(finding, doubt=str(error))
    verdict = Verdict.DIFFERS if numbers else Verdict.PASS
    return replace(finding, outcome=replace(finding.outcome, verdict=verdict, numbers=numbers), tie=not numbers)


def _answered_keys(
    finding: Finding, raw: Json, answers: Sequence[Json], ask: Ask
) -> tuple[list[KeyStream], list[Finding]]:
    """Return each key with an answer to every beginning, and how they compare with ours. Raises: UnprovenError."""
    streams, looked = [], []
    keys = _by_key(finding.outcome.scenario)
    for events, several in zip(keys.values(), chunks(answers, [len(e) for e in keys.values()]), strict=True):
        answered = _without_errors(finding, raw, events, list(several), ask)
        streams.append(_stream(raw, events, answered))
        looked += [_agreed(one) for one in answered]
    return streams, looked


def _agreed(answered: Json) -> Finding:
    """Return how the answer to a beginning compares with ours. Raises: UnprovenError if that is open."""
    looked = examine(answered)
    if looked.is_open:
        raise UnprovenError(f"{looked.outcome.scenario.name}: {looked.bug or looked.outcome.verdict}")
    return looked


def _without_errors(
    finding: Finding, raw: Json, events: Sequence[ScenarioEvent], answers: list[Json], ask: Ask
) -> list[Json]:
    """Return the answers for a key; ask again for missing ones, without the events before the floor reached by then."""
    floor = 0
    while failed := [number for number, one in enumerate(answers) if "error" in one["expected"]]:
        reached = _floor_reached(finding, _stream(raw, events, answers[: failed[0]]))
        if reached <= floor:
            first = answers[failed[0]]
            raise UnprovenError(f"the library does not answer {first['name']}: {first['expected']['error']}")
        floor = reached
        for number, one in zip(
            failed, ask([_question(raw, events[floor : number + 1]) for number in failed]), strict=True
        ):
            answers[number] = one
    return answers


def _stream(raw: Json, events: Sequence[ScenarioEvent], answers: Sequence[Json]) -> KeyStream:
    return KeyStream(events, [Cut.of(one) for one in answers], Windows.of(raw))


def chunks(answers: Sequence[Json], sizes: Sequence[int]) -> Iterator[Sequence[Json]]:
    """Yield the answers to the questions of several findings, finding by finding."""
    start = 0
    for size in sizes:
        yield answers[start : start + size]
        start += size


def _by_key(scenario: Scenario) -> dict[str, list[ScenarioEvent]]:
    """Return the events that count by key, in the order in which they are taken."""
    by_key: dict[str, list[ScenarioEvent]] = {}
    for released, _ in deliveries(scenario):
        for _, event in released:
            by_key.setdefault(event.key, []).append(event)
    return by_key


def _windowed(raw: Json) -> Json:
    """Return the scenario without its answer and watermarks, with a window of the whole."""
    parts = {name: part for name, part in raw.items() if name not in ("expected", "tags", "watermarks")}
    if Windows.of(raw).whole_ms > 0:  # it closes every run at the end of the stream
        return parts
    window = {"ms": ASKED_MS, "type": "first_last"}
    if not raw.get("within"):
        return {**parts, "within": window}
    stages = [dict(stage) for stage in raw["pattern"]]
    free = next((stage for stage in stages if "within" not in stage), None)
    if free is None:
        return parts
    free["within"] = window
    return {**parts, "pattern": stages}


def _floor_reached(finding: Finding, stream: KeyStream) -> int:
    """Return the floor of both sides at the end of the stream's cuts, or only the library's if ours is impossible."""
    scenario = finding.outcome.scenario
    ways = [
        Strategy(scenario.skip, stream, side.bindings).answer(scenario) for side in (_theirs(finding), _ours(finding))
    ]
    if ways[0] is None:
        raise UnprovenError("the strategy does not give the library's answer before the library gives none")
    return min(way.floor for way in ways if way is not None)


def _check_theirs(finding: Finding, streams: Sequence[KeyStream]) -> None:
    """Check that the strategy gives the library's answer from the library's runs. Raises: UnprovenError."""
    for stream in streams:
        expected = _of_key(_theirs(finding), stream.place)
        way = Strategy(finding.outcome.scenario.skip, stream, expected[0]).answer(finding.outcome.scenario)
        if way is None or (way.emitted, way.timeouts) != expected:
            key = stream.events[0].key
            raise UnprovenError(f"{key}: the strategy does not give the library's answer from the library's runs")


def _check_ours(finding: Finding, streams: Sequence[KeyStream]) -> None:
    """Check that the strategy gives our answer when windows close in the order of time. Raises: UnprovenError."""
    if not _is_ours(finding, streams, by_time=True):
        raise UnprovenError("on every beginning the answers agree, and ours is no choice of the strategy")


def _is_ours(finding: Finding, streams: Sequence[KeyStream], *, by_time: bool) -> bool:
    """Whether the strategy gives our answer from the library's runs."""
    for stream in streams:
        expected = _of_key(_ours(finding), stream.place)
        way = Strategy(finding.outcome.scenario.skip, stream, expected[0], by_time).answer(finding.outcome.scenario)
        if way is None or (way.emitted, way.timeouts) != expected:
            return False
    return True


def _theirs(finding: Finding) -> Answer:
    assert finding.outcome.scenario.expected is not None, "what is proven has been compared"
    return finding.outcome.scenario.expected


def _ours(finding: Finding) -> Answer:
    assert finding.outcome.written is not None, "what is proven has been compared"
    return answer(check_pattern(finding.outcome.written), finding.outcome.scenario)


def _of_key(answers: Answer, place: Mapping[int, int]) -> tuple[frozenset[Bindings], frozenset[Ended]]:
    def is_inside(match: Bindings) -> bool:
        return match[0][1][0] in place

    return frozenset(filter(is_inside, answers.bindings)), frozenset(
        run for run in answers.timeouts if is_inside(run[0])
    )
