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
Tested by: tests/fuzz/test_strategy.py
"""

from __future__ import annotations

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


def beginnings(given: Json) -> list[Json]:
    """Return the questions for the library: each beginning of each key's events, without skipping."""
    keys = _by_key(scenario_of({**given, "expected": {"matches": []}}, given["name"]))
    return [_question(given, events[:size]) for events in keys.values() for size in range(1, len(events) + 1)]


def _question(given: Json, events: Sequence[ScenarioEvent]) -> Json:
    wanted, step_ms = {event.id for event in events}, Windows.of(given).last_step_ms
    # The library looks when every step to an absence is over, but before the window that the question adds.
    looks = step_ms > 0 and str(given["pattern"][-1].get("link")).startswith("not")
    return {
        **_windowed(given),
        **({"watermarks": [[len(events), events[-1].time_ms + step_ms]]} if looks else {}),
        "name": f"{given['name']}, {events[0].key}, from {events[0].id} to {events[-1].id}",
        "skip": {"type": SKIP_NONE},
        "events": [event for event in given["events"] if event["id"] in wanted],
    }


def prove(found: Finding, given: Json, answers: Sequence[Json], ask: Ask) -> Finding:
    """Return the finding with its reason, or with the doubt; `answers` are the answers to `beginnings`."""
    try:
        streams, looked = _answered_keys(found, given, answers, ask)
        _check_theirs(found, streams)
        numbers = tuple(sorted({number for one in looked for number in one.outcome.numbers}))
        if not numbers and not _is_ours(found, streams, by_time=False):
            numbers = (_ORDER_OF_TIME,)
            _check_ours(found, streams)
    except UnprovenError as error:
        return replace(found, doubt=str(error))
    verdict = Verdict.DIFFERS if numbers else Verdict.PASS
    return replace(found, outcome=replace(found.outcome, verdict=verdict, numbers=numbers), tie=not numbers)


def _answered_keys(
    found: Finding, given: Json, answers: Sequence[Json], ask: Ask
) -> tuple[list[KeyStream], list[Finding]]:
    """Return each key with an answer to every beginning, and how they compare with ours. Raises: UnprovenError."""
    streams, looked = [], []
    keys = _by_key(found.outcome.scenario)
    for events, several in zip(keys.values(), chunks(answers, [len(e) for e in keys.values()]), strict=True):
        own = _without_errors(found, given, events, list(several), ask)
        streams.append(_stream(given, events, own))
        looked += [_agreed(one) for one in own]
    return streams, looked


def _agreed(answered: Json) -> Finding:
    """Return how the answer to a beginning compares with ours. Raises: UnprovenError if that is open."""
    looked = examine(answered)
    if looked.is_open:
        raise UnprovenError(f"{looked.outcome.scenario.name}: {looked.bug or looked.outcome.verdict}")
    return looked


def _without_errors(
    found: Finding, given: Json, events: Sequence[ScenarioEvent], own: list[Json], ask: Ask
) -> list[Json]:
    """Return the answers for a key; ask again for missing ones, without the events before the floor reached by then."""
    floor = 0
    while failed := [at for at, one in enumerate(own) if "error" in one["expected"]]:
        reached = _floor_reached(found, _stream(given, events, own[: failed[0]]))
        if reached <= floor:
            first = own[failed[0]]
            raise UnprovenError(f"the library does not answer {first['name']}: {first['expected']['error']}")
        floor = reached
        for at, one in zip(failed, ask([_question(given, events[floor : at + 1]) for at in failed]), strict=True):
            own[at] = one
    return own


def _stream(given: Json, events: Sequence[ScenarioEvent], answers: Sequence[Json]) -> KeyStream:
    return KeyStream(events, [Cut.of(one) for one in answers], Windows.of(given))


def chunks(answers: Sequence[Json], sizes: Sequence[int]) -> Iterator[Sequence[Json]]:
    """Yield the answers to the questions of several findings, finding by finding."""
    at = 0
    for size in sizes:
        yield answers[at : at + size]
        at += size


def _by_key(scenario: Scenario) -> dict[str, list[ScenarioEvent]]:
    """Return the events that count by key, in the order in which they are taken."""
    found: dict[str, list[ScenarioEvent]] = {}
    for released, _ in deliveries(scenario):
        for _, event in released:
            found.setdefault(event.key, []).append(event)
    return found


def _closes(given: Json) -> bool:
    """Whether a window of the whole closes every run at the end of the stream."""
    return Windows.of(given).whole_ms > 0


def _windowed(given: Json) -> Json:
    """Return the scenario without its answer and watermarks, with a window of the whole."""
    kept = {name: part for name, part in given.items() if name not in ("expected", "tags", "watermarks")}
    if _closes(given):
        return kept
    window = {"ms": ASKED_MS, "type": "first_last"}
    if not given.get("within"):
        return {**kept, "within": window}
    stages = [dict(stage) for stage in given["pattern"]]
    free = next((stage for stage in stages if "within" not in stage), None)
    if free is None:
        return kept
    free["within"] = window
    return {**kept, "pattern": stages}


def _floor_reached(found: Finding, stream: KeyStream) -> int:
    """Return the floor of both sides at the end of the stream's cuts, or only the library's if ours is impossible."""
    scenario = found.outcome.scenario
    ways = [Strategy(scenario.skip, stream, side.bindings).answer(scenario) for side in (_theirs(found), _ours(found))]
    if ways[0] is None:
        raise UnprovenError("the strategy does not give the library's answer before the library gives none")
    return min(way.floor for way in ways if way is not None)


def _check_theirs(found: Finding, streams: Sequence[KeyStream]) -> None:
    """Check that the strategy gives the library's answer from the library's runs. Raises: UnprovenError."""
    for stream in streams:
        wanted = _of_key(_theirs(found), stream.place)
        way = Strategy(found.outcome.scenario.skip, stream, wanted[0]).answer(found.outcome.scenario)
        if way is None or (way.emitted, way.timeouts) != wanted:
            key = stream.events[0].key
            raise UnprovenError(f"{key}: the strategy does not give the library's answer from the library's runs")


def _check_ours(found: Finding, streams: Sequence[KeyStream]) -> None:
    """Check that the strategy gives our answer when windows close in the order of time. Raises: UnprovenError."""
    if not _is_ours(found, streams, by_time=True):
        raise UnprovenError("on every beginning the answers agree, and ours is no choice of the strategy")


def _is_ours(found: Finding, streams: Sequence[KeyStream], *, by_time: bool) -> bool:
    """Whether the strategy gives our answer from the library's runs."""
    for stream in streams:
        wanted = _of_key(_ours(found), stream.place)
        way = Strategy(found.outcome.scenario.skip, stream, wanted[0], by_time).answer(found.outcome.scenario)
        if way is None or (way.emitted, way.timeouts) != wanted:
            return False
    return True


def _theirs(found: Finding) -> Answer:
    assert found.outcome.scenario.expected is not None, "what is proven has been compared"
    return found.outcome.scenario.expected


def _ours(found: Finding) -> Answer:
    assert found.outcome.written is not None, "what is proven has been compared"
    return answer(check_pattern(found.outcome.written), found.outcome.scenario)


def _of_key(found: Answer, place: Mapping[int, int]) -> tuple[frozenset[Bindings], frozenset[Ended]]:
    def own(match: Bindings) -> bool:
        return match[0][1][0] in place

    return frozenset(filter(own, found.bindings)), frozenset(run for run in found.timeouts if own(run[0]))
