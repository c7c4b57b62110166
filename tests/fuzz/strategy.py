"""A difference under a skip strategy → a proof from what each side finds without one.

A strategy withholds a match while a run with an earlier start is alive, and drops what starts before a floor that each
match raises. So a run that never matches can decide which matches come out, and comparing the matches without skipping
does not show it. The library is asked for the key's first event, the first two, and so on, without skipping and with a
window that no run outlives: its time-outs are the runs that are alive by then. From these

1. the strategy, carried out here, must give the library's answer, for some choice among matches that start alike;
2. on each of these beginnings both sides must agree, or differ as is known: that difference is the reason;
3. where they agree on all of them, ours must be another choice (a tie), or the windows of runs close in another order.

Anything else is open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cep.testing.conformance.compare import Verdict
from cep.testing.conformance.run import answer, check_pattern, deliveries
from cep.testing.conformance.scenario import SKIP_NONE, Answer, Bindings, Scenario, ScenarioEvent, scenario_of
from tests.fuzz.examine import Finding, examine

Json = Any

# More matches than this leave a beginning unanswered.
MATCHES_MAX = 3_000
# Longer than any stream.
_WINDOW_MS = 10_000_000
_END_MS = 2**63 - 1
_ORDER_OF_TIME = 2


class UnprovenError(Exception):
    """The message says what is missing."""


class _NoChoiceError(Exception):
    """The strategy emits a match that is not wanted, or must not emit all that are."""


def beginnings(given: Json) -> list[Json]:
    """What the library is asked: each beginning of each key's events, without skipping, with what is alive shown."""
    by_id = {event["id"]: event for event in given["events"]}
    keys = _by_key(scenario_of({**given, "expected": {"matches": []}}, given["name"]))
    return [
        {
            **_windowed(given),
            "name": f"{given['name']}, {key}, the first {size}",
            "skip": {"type": SKIP_NONE},
            "events": [by_id[event.id] for event in events[:size]],
        }
        for key, events in keys.items()
        for size in range(1, len(events) + 1)
    ]


def prove(found: Finding, given: Json, answers: Sequence[Json]) -> Finding:
    """The finding with its reason, or with what is in doubt; `answers` are those to `beginnings`."""
    looked = []
    for one in answers:
        if "error" in one["expected"]:
            return replace(found, doubt=f"the library does not answer {one['name']}: {one['expected']['error']}")
        looked.append(examine(one))
    wrong = next((one for one in looked if one.is_open), None)
    if wrong is not None:
        return replace(found, doubt=f"{wrong.outcome.scenario.name}: {wrong.bug or wrong.outcome.verdict}")
    try:
        is_choice = _is_another_choice(found, given, [one.outcome.scenario for one in looked])
    except UnprovenError as error:
        return replace(found, doubt=str(error))
    numbers = tuple(sorted({number for one in looked for number in one.outcome.numbers}))
    if not numbers and not is_choice:
        if not _closes(given):
            return replace(found, doubt="on every beginning the answers agree, and ours is no choice of the strategy")
        numbers = (_ORDER_OF_TIME,)
    verdict = Verdict.DIFFERS if numbers else Verdict.PASS
    return replace(found, outcome=replace(found.outcome, verdict=verdict, numbers=numbers), tie=not numbers)


# ------------------------------------------------------------------------------------------------- the questions


def _by_key(scenario: Scenario) -> dict[str, list[ScenarioEvent]]:
    """The events that count, in the order in which they are looked at, by key."""
    found: dict[str, list[ScenarioEvent]] = {}
    for released, _ in deliveries(scenario):
        for _, event in released:
            found.setdefault(event.key, []).append(event)
    return found


def _closes(given: Json) -> bool:
    """Whether a window of the whole closes every run at the end of the stream."""
    windows = [given.get("within") or {}, *(stage.get("within", {}) for stage in given["pattern"])]
    return any(window.get("type") == "first_last" and window["ms"] > 0 for window in windows)


def _last_look_ms(given: Json, scenario: Scenario, last: ScenarioEvent) -> int:
    """Which windows of a key the library sees close at the end: all if there is a timer for the whole; those of steps
    if the end of the stream releases the key's last event; else none."""
    if _closes(given):
        return _END_MS
    *_, (released, _) = deliveries(scenario)
    return _WINDOW_MS if any(event is last for _, event in released) else 0


def _windowed(given: Json) -> Json:
    """The scenario without its answer and watermarks, with a window of the whole."""
    kept = {name: part for name, part in given.items() if name not in ("expected", "tags", "watermarks")}
    if _closes(given):
        return kept
    window = {"ms": _WINDOW_MS, "type": "first_last"}
    if not given.get("within"):
        return {**kept, "within": window}
    stages = [dict(stage) for stage in given["pattern"]]
    free = next((stage for stage in stages if "within" not in stage), None)
    if free is None:
        return kept
    free["within"] = window
    return {**kept, "pattern": stages}


# -------------------------------------------------------------------------------------------------- the strategy


@dataclass(frozen=True)
class _Beginning:
    """What the library has found after some events: matches, those that wait for a window to close, and runs with the
    time at which they end."""

    matches: frozenset[Bindings] = frozenset()
    pending: frozenset[Bindings] = frozenset()
    runs: frozenset[tuple[Bindings, int]] = frozenset()

    def ended(self, now_ms: int) -> frozenset[tuple[Bindings, int]]:
        return frozenset(run for run in self.runs if run[1] <= now_ms)

    @staticmethod
    def of(expected: Answer) -> _Beginning:
        matches = frozenset(m for m, time_ms in expected.matches if time_ms != _END_MS)
        return _Beginning(matches, expected.bindings - matches, expected.timeouts)


@dataclass(frozen=True)
class _Way:
    """How far the strategy has gone on: nothing that starts before `floor` is alive."""

    floor: int = 0
    withheld: frozenset[Bindings] = frozenset()
    emitted: frozenset[Bindings] = frozenset()
    timeouts: frozenset[tuple[Bindings, int]] = frozenset()


@dataclass(frozen=True)
class _Strategy:
    """A skip strategy on the events of one key, that chooses `wanted` where it has a choice. `place` is the position of
    each event among them."""

    skip: Mapping[str, Json]
    place: Mapping[int, int]
    wanted: frozenset[Bindings]

    def start(self, match: Bindings) -> int:
        return min(self.place[i] for _, ids in match for i in ids)

    def floor(self, match: Bindings) -> int:
        """Where a run must start to outlive a match."""
        kind = self.skip["type"]
        if kind == "to_next":
            return self.start(match) + 1
        if kind == "past_last":
            return max(self.place[i] for _, ids in match for i in ids) + 1
        bound = [self.place[i] for i in dict(match).get(self.skip["stage"], ())]
        return bound[0 if kind == "to_first" else -1] if bound else 0

    def passed(
        self, way: _Way, new: frozenset[Bindings], alive: set[int], ended: frozenset[tuple[Bindings, int]]
    ) -> _Way:
        """The way on when matches have come, runs have ended, and runs with the starts `alive` are alive."""
        way = replace(
            way,
            withheld=way.withheld | {m for m in new if self.start(m) >= way.floor},
            timeouts=way.timeouts | {run for run in ended if self.start(run[0]) >= way.floor},
        )
        while way.withheld:
            first = min(self.start(m) for m in way.withheld)
            if any(way.floor <= start < first for start in alive):
                break
            way = self._emitted(way, first)
        return way

    def _emitted(self, way: _Way, first: int) -> _Way:
        """Matches that start alike come in any order; the one that raises the floor above their start ends them all."""
        alike = frozenset(m for m in way.withheld if self.start(m) == first)
        wanted = alike & self.wanted
        ending = frozenset(m for m in wanted if self.floor(m) > first)
        if len(ending) > 1 or (not ending and wanted != alike):
            raise _NoChoiceError
        floor = max(way.floor, *(self.floor(m) for m in wanted))
        withheld = frozenset(m for m in way.withheld - alike if self.start(m) >= floor)
        return replace(way, floor=floor, withheld=withheld, emitted=way.emitted | wanted)

    def answer(self, times_ms: Sequence[int], cuts: Sequence[_Beginning], last_ms: int) -> _Way | None:
        """The answer that the strategy gives from what there is after each event; None if it cannot choose as wanted.
        At the end windows close that end before `last_ms`."""
        try:
            return self._carried_out(times_ms, cuts, last_ms)
        except _NoChoiceError:
            return None

    def _carried_out(self, times_ms: Sequence[int], cuts: Sequence[_Beginning], last_ms: int) -> _Way:
        way, before, before_ms = _Way(), _Beginning(), -_END_MS
        for now_ms, after in zip(times_ms, cuts, strict=True):
            # First time passes, then the event is taken.
            certain = before.pending & after.matches
            # A window of a step may be over before the library knows that the run has one.
            ended = after.ended(now_ms) - before.ended(before_ms)
            way = self.passed(way, certain, self._alive(before, now_ms, certain), ended)
            fresh = after.matches - before.matches - certain
            way = self.passed(way, fresh, self._alive(after, now_ms, frozenset()), frozenset())
            before, before_ms = after, now_ms
        certain = before.pending if last_ms > before_ms else frozenset()
        ended = before.ended(last_ms - 1) - before.ended(before_ms)
        return self.passed(way, certain, self._alive(before, max(before_ms, last_ms - 1), certain), ended)

    def _alive(self, cut: _Beginning, now_ms: int, certain: frozenset[Bindings]) -> set[int]:
        runs = {self.start(run) for run, time_ms in cut.runs if time_ms > now_ms}
        return runs | {self.start(m) for m in cut.pending - certain}


def _is_another_choice(found: Finding, given: Json, cuts: Sequence[Scenario]) -> bool:
    """Whether our matches are a choice of the strategy from the library's runs too. Raises: UnprovenError if the
    library's own answer is none."""
    scenario, written = found.outcome.scenario, found.outcome.written
    assert scenario.expected is not None
    assert written is not None
    ours = answer(check_pattern(written), scenario)
    is_choice, left = True, iter(cuts)
    for key, events in _by_key(scenario).items():
        place = {event.id: at for at, event in enumerate(events)}
        seen = [_Beginning.of(_expected(next(left))) for _ in events]
        times_ms, last_ms = [event.time_ms for event in events], _last_look_ms(given, scenario, events[-1])
        theirs, their_timeouts = _of_key(scenario.expected, place)
        way = _Strategy(scenario.skip, place, theirs).answer(times_ms, seen, last_ms)
        if way is None or (way.emitted, way.timeouts) != (theirs, their_timeouts):
            raise UnprovenError(f"{key}: the strategy does not give the library's answer from the library's runs")
        wanted, _ = _of_key(ours, place)
        other = _Strategy(scenario.skip, place, wanted).answer(times_ms, seen, last_ms)
        is_choice = is_choice and other is not None and other.emitted == wanted
    return is_choice


def _expected(cut: Scenario) -> Answer:
    assert cut.expected is not None, "beginnings without an answer have been left out"
    return cut.expected


def _of_key(found: Answer, place: Mapping[int, int]) -> tuple[frozenset[Bindings], frozenset[tuple[Bindings, int]]]:
    def own(match: Bindings) -> bool:
        return match[0][1][0] in place

    return frozenset(filter(own, found.bindings)), frozenset(run for run in found.timeouts if own(run[0]))


def chunks(answers: Sequence[Json], sizes: Sequence[int]) -> Iterator[Sequence[Json]]:
    """Answers to the questions of several findings, finding by finding."""
    at = 0
    for size in sizes:
        yield answers[at : at + size]
        at += size
