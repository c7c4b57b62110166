"""A disagreement → the numbers of the known differences that explain it, if they explain all of it.

Each difference has a shape: the patterns that can show it, and the extra answers that each side may then have. A
disagreement is known when every part of it fits the shape of some difference; an unexplained part is a failure. Where a
skip strategy chooses, one more match or time-out moves all later ones: there the pattern's shape alone decides. The
page cep/docs/inside/differences.md and its neighbours argue each number.
Tested by: tests/conformance/test_conformance.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tests.conformance import stages as questions
from tests.conformance.compare import Disagreement
from tests.conformance.scenario import Bindings, Json, Scenario

REASONS = {
    2: "every window fires by the watermark, in the order of time",
    3: "an absence is never dropped; after a loop each candidate counts once, an optional end waits for the window",
    4: "the event that continues the match is not between",
    5: "a bounded greedy loop takes its maximum and goes on",
    6: "a gap bound holds between all repetitions, and only there",
    7: "a repetition of what can match nothing is refused",
    8: "nothing is emitted twice, a time-out at its earliest",
    9: "a window inside a group is the group's",
    10: "a step time holds after loops too",
    11: "directly after a group that repeats is directly after its last event",
    12: "a group inside a group follows as its link says, also in first place",
    13: "greed holds in and before groups, before what may match nothing and before an absence",
    14: "a skip to what is not bound skips nothing; no job fails for it",
    15: "the stop event of a group ends the groups in it, and does not undo a round that may be over",
    16: "absences in a row all hold between the same two events",
    17: "a forbidden event ends a run whatever was skipped before it",
    18: "greedy and every combination exclude each other, also at the head of a group",
}


@dataclass(frozen=True, slots=True)
class _Seen:
    """A scenario with the data that the shapes need. `place` ranks events, by id, by time and then arrival."""

    scenario: Scenario
    stages: tuple[questions.Stage, ...]
    values: dict[int, Json]
    time_ms: dict[int, int]
    last_ms: dict[str, int]
    key: dict[int, str]
    place: dict[int, int]

    @staticmethod
    def of(scenario: Scenario) -> _Seen:
        events = scenario.events
        last_ms: dict[str, int] = {}
        for event in events:
            last_ms[event.key] = max(event.time_ms, last_ms.get(event.key, event.time_ms))
        return _Seen(
            scenario,
            tuple(questions.flatten(scenario.stages, scenario.within)),
            {event.id: {**event.values, "@ts": float(event.time_ms)} for event in events},
            {event.id: event.time_ms for event in events},
            last_ms,
            {event.id: event.key for event in events},
            {event.id: place for place, event in enumerate(sorted(events, key=lambda event: event.time_ms))},
        )

    def first_ms(self, bindings: Bindings) -> int:
        return min(self.time_ms[i] for _, ids in bindings for i in ids)

    def end_ms(self, bindings: Bindings) -> int:
        """Return the time of the last event of the match's key."""
        return self.last_ms[self.key[bindings[0][1][0]]]

    def may_come_after(self, bindings: Bindings, absence: questions.Stage) -> bool:
        """Whether a possibly forbidden event of the match's key comes after the first bound event."""
        first, key = min(self.place[i] for _, ids in bindings for i in ids), self.key[bindings[0][1][0]]
        later = (i for i, place in self.place.items() if place > first and self.key[i] == key)
        return any(questions.may_fit(absence.given.get("where", True), self.values[i]) for i in later)

    def comes_between(self, name: str, places: tuple[int, int], bindings: Bindings) -> bool:
        """Whether an event of the match's key that may fit the stage comes strictly between two places."""
        where = next(s.given.get("where", True) for s in self.stages if s.name == name)
        key = self.key[bindings[0][1][0]]
        between = (i for i, place in self.place.items() if places[0] < place < places[1] and self.key[i] == key)
        return any(questions.may_fit(where, self.values[i]) for i in between)


def known_differences(scenario: Scenario, disagreement: Disagreement) -> tuple[int, ...]:
    """Return the differences that explain a disagreement; empty if a part of it stays unexplained."""
    facts = _Seen.of(scenario)
    numbers: list[int] = []
    rest = disagreement
    for number, shape in _SHAPES:
        smaller = shape(facts, rest)
        if smaller != rest:
            numbers.append(number)
            rest = smaller
        if not rest:
            return tuple(sorted(set(numbers)))
    return ()


_Shape = Callable[[_Seen, Disagreement], Disagreement]


def _keep(parts: Iterable[Bindings], explained: Callable[[Bindings], bool]) -> frozenset[Bindings]:
    return frozenset(part for part in parts if not explained(part))


def _keep_timed(
    parts: Iterable[tuple[Bindings, int]], explained: Callable[[Bindings], bool]
) -> frozenset[tuple[Bindings, int]]:
    return frozenset(part for part in parts if not explained(part[0]))


# ----------------------------------------------------------------------------------------------------- the shapes


def _gap(facts: _Seen, disagreement: Disagreement) -> Disagreement:
    """6: the library bounds the gap before the loop, and bounds the repetitions only loosely."""
    loops = (*(s.given for s in facts.stages), *questions.groups_in(facts.scenario.stages))
    return Disagreement() if any("gap_ms" in loop and "times" in loop for loop in loops) else disagreement


def _bounded_greed(facts: _Seen, disagreement: Disagreement) -> Disagreement:
    """5: we have more matches, in which the loop has all the events that it may take.

    If the loop has a condition on bound events, the minimum is enough: the library tests it with other bound events.
    With the library, a loop that may be empty is not greedy before its first event.
    """
    loops = [s for s in facts.stages if questions.is_bounded_greedy(s.given)]
    if not loops:
        return disagreement
    if facts.scenario.skips or any(s.given["times"][0] == 0 or s.given.get("optional") for s in loops):
        return Disagreement()

    def full(bindings: Bindings) -> bool:
        counts = {stage: len(ids) for stage, ids in bindings}
        return any(counts.get(s.name, 0) >= s.given["times"][0 if '"agg"' in json.dumps(s.given) else 1] for s in loops)

    return replace(
        disagreement,
        extra=_keep(disagreement.extra, full),
        extra_timeouts=_keep_timed(disagreement.extra_timeouts, full),
    )


def _strictly_between(facts: _Seen, disagreement: Disagreement) -> Disagreement:
    """4: we have more matches, with a bound event that may be the forbidden one."""
    absences = [s for s in facts.stages if s.negated]
    if not absences:
        return disagreement
    loops = {s.name for s in facts.stages if s.in_loop or questions.is_loop(s.given)}

    def both(bindings: Bindings) -> bool:
        return any(
            questions.may_fit(absence.given.get("where", True), facts.values[i])
            for absence in absences
            for stage, ids in bindings
            for i in ids
            if absence.before(stage) or stage in loops
        )

    both_there = [m for m in (*disagreement.extra, *(m for m, _ in disagreement.extra_timeouts)) if both(m)]
    if facts.scenario.skips and any(
        questions.may_fit(a.given.get("where", True), v) for a in absences for v in facts.values.values()
    ):
        followers = [s for s in facts.stages if not s.negated]
        fits_both = any(
            questions.may_fit(a.given.get("where", True), v) and questions.may_fit(s.given.get("where", True), v)
            for a in absences
            for s in followers
            if a.before(s.name) or s.name in loops
            for v in facts.values.values()
        )
        return Disagreement() if fits_both else disagreement
    if not both_there:
        return disagreement
    return replace(
        disagreement,
        extra=_keep(disagreement.extra, both),
        extra_timeouts=_keep_timed(disagreement.extra_timeouts, both),
    )


def _absence_at_the_end(facts: _Seen, disagreement: Disagreement) -> Disagreement:
    """3: an absence at the end, followed by optional stages at most."""
    return Disagreement() if questions.ends_on_absence(facts.scenario.stages) else disagreement


def _window_in_a_group(facts: _Seen, disagreement: Disagreement) -> Disagreement:
    """9: the library ignores a window in a group."""
    inside = any(s.depth and s.given.get("within", {}).get("type") == "first_last" for s in facts.stages)
    return Disagreement() if inside else disagreement


def _unnoticed(facts: _Seen, disagreement: Disagreement) -> Disagreement:
    """2: the library has timers only for windows of the whole, and none for a run that starts at time 0.

    It does not notice other deadlines after the key's last event.
    """
    steps_ms = [s.step_ms for s in facts.stages if s.step_ms]
    windowed = any(s.window_ms for s in facts.stages)

    def certain(bindings: Bindings) -> bool:
        latest_ms = max(facts.time_ms[i] for _, ids in bindings for i in ids)
        by_step = any(latest_ms + step_ms > facts.end_ms(bindings) for step_ms in steps_ms)
        # `a, !b` at the end needs another event with the library, or a window.
        by_end = facts.stages[-1].given["link"] == "notNext" and latest_ms >= facts.end_ms(bindings)
        return by_step or by_end or (windowed and facts.first_ms(bindings) <= 0)

    late = {
        (bindings, time_ms)
        for bindings, time_ms in disagreement.extra_timeouts
        if time_ms > facts.end_ms(bindings) and (steps_ms or (windowed and facts.first_ms(bindings) <= 0))
    }
    # If two bounds have passed when the library looks, it names the step's; for us the earlier one counts.
    bounded = steps_ms or any(group.get("within") for group in questions.groups_in(facts.scenario.stages))
    theirs = dict(disagreement.missing_timeouts) if bounded and windowed else {}
    both = {part for part in disagreement.extra_timeouts if theirs.get(part[0], part[1]) > part[1]}
    named = {(bindings, theirs[bindings]) for bindings, _ in both}
    return replace(
        disagreement,
        extra=_keep(disagreement.extra, certain) if facts.stages[-1].negated else disagreement.extra,
        extra_timeouts=disagreement.extra_timeouts - late - both,
        missing_timeouts=disagreement.missing_timeouts - named,
    )


def _twice(facts: _Seen, disagreement: Disagreement) -> Disagreement:
    """8: the library times out two runs with the same events at two times; both sides have the earlier one."""
    theirs = facts.scenario.expected.timeouts if facts.scenario.expected else frozenset()
    both = dict(theirs - disagreement.missing_timeouts)
    again = {
        (bindings, time_ms)
        for bindings, time_ms in disagreement.missing_timeouts
        if both.get(bindings, time_ms) < time_ms
    }
    return replace(disagreement, missing_timeouts=disagreement.missing_timeouts - again)


def _step_time(facts: _Seen, disagreement: Disagreement) -> Disagreement:
    """10: a step time next to a loop or an optional part has passed, and the library does not notice."""
    if any(
        questions.is_loop(g) and g.get("within", {}).get("type") == "prev_curr" for g in _groups_with_windows(facts)
    ):
        return Disagreement()
    steps = [s for s in facts.stages if s.step_ms]
    if any(step.given.get("link") == "notNext" and step is not facts.stages[-1] for step in steps):
        # We ignore a step time of an absence; with the library the wait after the absence may time out.
        return Disagreement()
    if not steps:
        return disagreement

    pairs = questions.neighbours(facts.scenario.stages)

    def late(bindings: Bindings) -> bool:
        return any(_over(facts, s, pairs, bindings) for s in steps)

    def waits_or_late(bindings: Bindings) -> bool:
        """A run may wait for a stage that is not bound."""
        return bindings in ended or late(bindings) or any(s.name not in dict(bindings) for s in steps)

    ends = {
        (bindings, time_ms)
        for bindings, time_ms in disagreement.extra_timeouts
        if any(time_ms == max(facts.time_ms[i] for _, ids in bindings for i in ids) + s.step_ms for s in steps)
    }
    ended = {bindings for bindings, _ in ends}
    missing = _keep(disagreement.missing, late)
    missing_timeouts = _keep_timed(disagreement.missing_timeouts, waits_or_late)
    extra_timeouts = disagreement.extra_timeouts - ends
    smaller = replace(disagreement, missing=missing, missing_timeouts=missing_timeouts, extra_timeouts=extra_timeouts)
    return Disagreement() if facts.scenario.skips and smaller != disagreement else smaller


def _groups_with_windows(facts: _Seen) -> list[Json]:
    """Return the groups; a step's window of the whole belongs to the last group, if a group is last."""
    last, within = facts.scenario.stages[-1], facts.scenario.within
    groups = [*questions.groups_in(facts.scenario.stages)]
    return [*groups, {**last, "within": within}] if "group" in last and within else groups


def _over(facts: _Seen, stage: questions.Stage, pairs: frozenset[tuple[str, str]], bindings: Bindings) -> bool:
    """Whether a step to a stage has taken longer than it may.

    A step leads from the event before to an event of the stage, or to the event that came instead if a round or the
    match leaves the stage out. A repetition of the stage alone is not a step.
    """
    bound = sorted((facts.place[i], name, facts.time_ms[i]) for name, ids in bindings for i in ids)

    def is_step(before: str, name: str) -> bool:
        waited_for = (before, stage.name) in pairs and not (before == stage.name and questions.is_loop(stage.given))
        return waited_for and (name == stage.name or (stage.name, name) in pairs)

    return any(
        time_ms - before_ms >= stage.step_ms and is_step(before, name)
        for (_, before, before_ms), (_, name, time_ms) in pairwise(bound)
    )


def _order_of_time(facts: _Seen, disagreement: Disagreement) -> Disagreement:
    """2: with a skip strategy, matches that one window releases drop other runs before their windows close."""
    windowed = any(s.window_ms or s.step_ms for s in facts.stages)
    return Disagreement() if facts.scenario.skips and windowed else disagreement


def _left_again(facts: _Seen, disagreement: Disagreement) -> Disagreement:
    """11: the library has more matches, where a stage comes directly after a group that may have another round."""
    if not questions.directly_after_round(facts.scenario.stages):
        return disagreement
    if facts.scenario.skips:
        return Disagreement()
    return replace(disagreement, missing=frozenset(), missing_timeouts=frozenset())


def _until_of_a_group(facts: _Seen, disagreement: Disagreement) -> Disagreement:
    """15: the library ends a run whose last round could be over, but might still take an event.

    The library does not stop groups inside the group.
    """
    stopped = [group["group"] for group in questions.groups_in(facts.scenario.stages) if "until" in group]
    goes_on = any(questions.may_be_empty(stages[-1]) or questions.is_loop(stages[-1]) for stages in stopped)
    goes_on = goes_on or questions.stop_behind_round(facts.scenario.stages)
    return Disagreement() if goes_on or any("group" in s for stages in stopped for s in stages) else disagreement


def _absences_in_a_row(facts: _Seen, disagreement: Disagreement) -> Disagreement:
    """16: the library lets the second absence begin where the first has ended."""
    return Disagreement() if questions.absences_in_a_row(facts.scenario.stages) else disagreement


def _loop_and_absence(facts: _Seen, disagreement: Disagreement) -> Disagreement:
    """17: with the library, loops and groups forget or remember absences once a run has skipped an event.

    A loop with a maximum forgets the absence after it and remembers the one before it. The wait for a group that may
    begin empty or be left out forgets the absence too, and stages after a group that may be left out remember it. A
    group or a loop of every combination does either. A forbidden event must exist: after the first bound event, or, for
    a remembered absence, after the event that ended the wait.
    """
    stages, either = facts.scenario.stages, questions.loop_before_absence(facts.scenario.stages, of_any=True)
    groups = list(questions.groups_behind_absence(stages))
    forgets = either or bool(groups) or questions.loop_before_absence(stages, of_any=False)
    remembers = either or any(map(questions.may_be_left_out, groups)) or questions.absence_before_loop(stages)
    if (forgets or remembers) and facts.scenario.skips:
        return Disagreement()
    absences = [s for s in facts.stages if s.negated]

    def forgotten(bindings: Bindings) -> bool:
        return forgets and any(facts.may_come_after(bindings, a) for a in absences)

    def remembered(bindings: Bindings) -> bool:
        behind = [(a, tuple(part for part in bindings if either or a.before(part[0]))) for a in absences]
        return remembers and any(facts.may_come_after(parts, a) for a, parts in behind if parts)

    return Disagreement(
        _keep(disagreement.missing, forgotten),
        _keep(disagreement.extra, remembered),
        _keep_timed(disagreement.missing_timeouts, forgotten),
        _keep_timed(disagreement.extra_timeouts, remembered),
        disagreement.times,
    )


def _order_of_time_outs(facts: _Seen, disagreement: Disagreement) -> Disagreement:
    """2: with a skip strategy and the same matches, an earlier window drops runs before their windows close."""
    windowed = any(s.window_ms or s.step_ms for s in facts.stages)
    same_matches = not (disagreement.missing or disagreement.extra)
    return Disagreement() if facts.scenario.skips and windowed and same_matches else disagreement


def _group_in_first_place(facts: _Seen, disagreement: Disagreement) -> Disagreement:
    """12: the library requires the first event of the inner group directly after; we have more matches."""
    if not questions.begins_with_group(facts.scenario.stages):
        return disagreement
    if facts.scenario.skips:
        return Disagreement()
    return replace(disagreement, extra=frozenset(), extra_timeouts=frozenset())


def _greed(facts: _Seen, disagreement: Disagreement) -> Disagreement:
    """13: the library never leaves the loop, or forgets its greed.

    After a group that may have another round the library forgets the events that it has skipped. We then lack matches
    without a loop, where an event of the loop came between the group and the stage after the loop.
    """
    behind_round = list(questions.greed_behind_round(facts.scenario.stages))
    if questions.greed_is_lost(facts.scenario.stages) or (behind_round and facts.scenario.skips):
        return Disagreement()
    written = {stage.name: number for number, stage in enumerate(facts.stages)}

    def passed_over(bindings: Bindings) -> bool:
        bound = sorted((facts.place[i], name) for name, ids in bindings for i in ids)
        return any(
            before in rounds and written[behind] > written[loop] and facts.comes_between(loop, (first, last), bindings)
            for (first, before), (last, behind) in pairwise(bound)
            for loop, rounds in behind_round
        )

    missing, missing_timeouts = (
        _keep(disagreement.missing, passed_over),
        _keep_timed(disagreement.missing_timeouts, passed_over),
    )
    return replace(disagreement, missing=missing, missing_timeouts=missing_timeouts)


_SHAPES: Sequence[tuple[int, _Shape]] = (
    (8, _twice),
    (2, _unnoticed),
    (2, _order_of_time_outs),
    (6, _gap),
    (9, _window_in_a_group),
    (3, _absence_at_the_end),
    (13, _greed),
    (15, _until_of_a_group),
    (16, _absences_in_a_row),
    (5, _bounded_greed),
    (4, _strictly_between),
    (17, _loop_and_absence),
    (10, _step_time),
    (2, _order_of_time),
    (12, _group_in_first_place),
    (11, _left_again),
)
