"""The library's answers without skipping to each beginning of a key's events → its answer with a skip strategy.

The library takes events one by one, and looks at the time before the first event of an instant and when a watermark
wakes it. A run times out only at a look: a run whose window has passed stays alive until the next look, and an event of
the same instant may still continue it. A match is withheld while a run with an earlier start is alive. When it is
emitted, all runs and withheld matches that start before a floor are dropped.
Tested by: tests/fuzz/test_drafts.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tests.conformance.run import deliveries
from tests.conformance.scenario import Bindings, Scenario, ScenarioEvent, bindings_of

Json = Any
# A partial match, and the time that the library gives for its end.
Ended = tuple[Bindings, int]

END_MS = 2**63 - 1
# Longer than any stream: the window of a question whose scenario has no window.
ASKED_MS = 10_000_000


class _NoChoiceError(Exception):
    """The strategy emits an unwanted match, or cannot emit all wanted ones."""


@dataclass(frozen=True)
class Cut:
    """The answer to a beginning.

    `matches` are certain by then, `pending` matches wait until a window closes, and `timeouts` are all time-outs up to
    the end of the stream, each as often as it is reported. Some pending matches are `untimed`: the step time of the
    last stage does not hold for them, because the library loses it after a greedy loop that its stop event has ended.
    """

    matches: frozenset[Bindings]
    pending: frozenset[Bindings]
    untimed: frozenset[Bindings]
    timeouts: Counter[Ended]

    @staticmethod
    def of(answered: Json) -> Cut:
        """Read an answer of the library; its watermark, if present, is the end of all step times."""
        expected, stepped_ms = (
            answered["expected"],
            min((ms for _, ms in answered.get("watermarks", ())), default=END_MS),
        )
        pairs = list(zip(map(bindings_of, expected["matches"]), expected["match_ts"], strict=True))
        certain = frozenset(match for match, time_ms in pairs if time_ms < stepped_ms)
        timed = frozenset(match for match, time_ms in pairs if time_ms < END_MS)
        timeouts = Counter((bindings_of(one["m"]), int(one["ts"])) for one in expected["timeouts"])
        every = frozenset(match for match, _ in pairs)
        return Cut(certain, every - certain, every - timed if stepped_ms < END_MS else frozenset(), timeouts)


NOTHING = Cut(frozenset(), frozenset(), frozenset(), Counter())


@dataclass(frozen=True)
class Windows:
    """The window of the whole and the step time of the last stage; 0 if it is missing."""

    whole_ms: int
    last_step_ms: int

    @staticmethod
    def of(raw: Json) -> Windows:
        """Return the windows of a scenario.

        The shortest is the window of the whole; the pattern's own window replaces the one of the last stage.
        """
        *before, last = (stage.get("within") or {} for stage in raw["pattern"])
        pattern_window = raw.get("within") or {}
        at_end = [pattern_window] if pattern_window.get("type") == last.get("type") else [pattern_window, last]
        whole = [w["ms"] for w in (*before, *at_end) if w.get("type") == "first_last" and w["ms"] > 0]
        step = [w["ms"] for w in at_end if w.get("type") == "prev_curr"]
        return Windows(min(whole, default=0), min(step, default=0))


@dataclass(frozen=True)
class Moment:
    """The library takes event number `event` of a key, or it `looks` at the time.

    It looks before that event, or, with `event` None, because a watermark wakes it.
    """

    now_ms: int
    event: int | None
    looks: bool


@dataclass(frozen=True)
class KeyStream:
    """The events of a key in the order in which they are taken, and the library's answer to each beginning.

    `cuts` ends early if the library does not answer a beginning.
    """

    events: Sequence[ScenarioEvent]
    cuts: Sequence[Cut]
    windows: Windows

    @cached_property
    def place(self) -> Mapping[int, int]:
        """Return the position of each event by its id."""
        return {event.id: number for number, event in enumerate(self.events)}

    def starts(self, number: int) -> bool:
        """Whether a run or a match starts with the event of this number."""
        cut, event_id = self.cuts[number], self.events[number].id
        candidates = [*cut.matches, *cut.pending, *(run for run, _ in cut.timeouts)]
        return any(first_of(run, self.place) == self.place[event_id] for run in candidates)

    def moments(self, scenario: Scenario, *, always_wakes: bool) -> Iterator[Moment]:
        """Yield the moments of the key, up to the first event without a cut.

        A watermark wakes the library if it releases events of the key, or passes the window of a started run.
        """
        places, taken_count, timers = self.place, 0, set[int]()
        for released, watermark_ms in deliveries(scenario):
            now_ms, has_started = -END_MS, False
            count = sum(event.id in places for _, event in released)
            for number in range(taken_count, taken_count + count):
                if number == len(self.cuts):
                    return
                if self.events[number].time_ms != now_ms:
                    now_ms = self.events[number].time_ms
                    yield Moment(now_ms, number, looks=True)
                yield Moment(now_ms, number, looks=False)
                has_started = has_started or self.starts(number)
                if has_started and self.windows.whole_ms:
                    timers.add(now_ms + self.windows.whole_ms)
            taken_count += count
            if always_wakes or count or any(timer <= watermark_ms for timer in timers):
                yield Moment(watermark_ms, None, looks=True)
            timers = {timer for timer in timers if timer > watermark_ms}

    def end_ms(self, run: Ended) -> int:
        """Return the end of a run: the library names the step's time if both have passed when it looks."""
        if self.windows.whole_ms:
            return min(run[1], self._first_ms(run[0]) + self.windows.whole_ms)
        return run[1] if run[1] < ASKED_MS else END_MS + 1

    def named_ms(self, run: Ended, now_ms: int) -> int:
        """Return the time that the library gives for a run that is over by now."""
        return run[1] if run[1] <= now_ms else self.end_ms(run)

    def certain_ms(self, match: Bindings, cut: Cut) -> int:
        """Return when a match that waits for a window to close is certain."""
        latest_ms = max(self.events[self.place[i]].time_ms for _, ids in match for i in ids)
        ends = [self._first_ms(match) + self.windows.whole_ms] * bool(self.windows.whole_ms)
        ends += [latest_ms + self.windows.last_step_ms] * (self.windows.last_step_ms > 0 and match not in cut.untimed)
        return min(ends, default=END_MS + 1)

    def _first_ms(self, run: Bindings) -> int:
        return self.events[first_of(run, self.place)].time_ms


def first_of(run: Bindings, place: Mapping[int, int]) -> int:
    """Return the position of the first bound event."""
    return min(place[i] for _, ids in run for i in ids)


@dataclass(frozen=True)
class Way:
    """The progress of the strategy: all runs that start before `floor` are dropped."""

    floor: int = 0
    withheld: frozenset[Bindings] = frozenset()
    emitted: frozenset[Bindings] = frozenset()
    timeouts: frozenset[Ended] = frozenset()


@dataclass
class _Seen:
    """The state of the strategy at a moment: the last cut, the matches so far, and the runs.

    `alive` are the living runs, `gone` the ones that have ended since the cut, and `reported` the ended ones that later
    cuts still name.
    """

    cut: Cut = NOTHING
    found: frozenset[Bindings] = frozenset()
    alive: Counter[Ended] = field(default_factory=Counter)
    gone: Counter[Ended] = field(default_factory=Counter)
    reported: Counter[Ended] = field(default_factory=Counter)


@dataclass(frozen=True)
class Strategy:
    """A skip strategy on the events of one key, which chooses `wanted` where it has a choice.

    With `by_time` windows close in the order of time and by every watermark, as with us; otherwise all windows that
    have passed close at a look.
    """

    skip: Mapping[str, Json]
    stream: KeyStream
    wanted: frozenset[Bindings]
    by_time: bool = False

    def answer(self, scenario: Scenario) -> Way | None:
        """Return the strategy's answer for the key, as far as the cuts go; None if it cannot choose as wanted."""
        way, state = Way(), _Seen()
        try:
            for moment in self.stream.moments(scenario, always_wakes=self.by_time):
                for now_ms in self._looks(state, moment) if moment.looks else ():
                    way = self._looked(way, state, replace(moment, now_ms=now_ms))
                if not moment.looks:
                    way = self._taken(way, state, moment)
        except _NoChoiceError:
            return None
        return way

    def _looks(self, state: _Seen, moment: Moment) -> list[int]:
        if not self.by_time:
            return [moment.now_ms]
        ends = {self.stream.end_ms(run) for run in state.alive} | {
            self.stream.certain_ms(m, state.cut) for m in state.cut.pending
        }
        return sorted(end for end in ends if end <= moment.now_ms)

    def _looked(self, way: Way, state: _Seen, moment: Moment) -> Way:
        """Return the progress after runs time out and matches become certain."""
        new = self._certain(state.cut, moment) - state.found
        ended = Counter({run: n for run, n in state.alive.items() if self.stream.end_ms(run) <= moment.now_ms})
        state.alive, state.gone = state.alive - ended, state.gone + ended
        return self._passed(way, state, new, frozenset(self._named(ended, moment)))

    def _taken(self, way: Way, state: _Seen, moment: Moment) -> Way:
        """Return the progress after an event has been taken."""
        assert moment.event is not None, "what does not look takes an event"
        state.cut = self.stream.cuts[moment.event]
        # The library was asked without watermarks, so it has looked at this event's time.
        state.reported, state.gone = state.reported + self._named(state.gone, moment), Counter()
        state.alive = state.cut.timeouts - state.reported
        return self._passed(way, state, state.cut.matches - state.found, frozenset())

    def _named(self, runs: Counter[Ended], moment: Moment) -> Counter[Ended]:
        ended = Counter[Ended]()
        for run, count in runs.items():
            ended[run[0], self.stream.named_ms(run, moment.now_ms)] += count
        return ended

    def _certain(self, cut: Cut, moment: Moment) -> frozenset[Bindings]:
        """Return the pending matches that a look makes certain; before an event the library's answer names them."""
        if moment.event is not None and not self.by_time:
            return cut.pending & self.stream.cuts[moment.event].matches
        return frozenset(m for m in cut.pending if self.stream.certain_ms(m, cut) <= moment.now_ms)

    def _passed(self, way: Way, state: _Seen, new: frozenset[Bindings], ended: frozenset[Ended]) -> Way:
        """Return the progress after new matches and ended runs."""
        state.found |= new
        alive = {self._start(run) for run in (*(run for run, _ in state.alive), *(state.cut.pending - state.found))}
        way = replace(
            way,
            withheld=way.withheld | {m for m in new if self._start(m) >= way.floor},
            timeouts=way.timeouts | {run for run in ended if self._start(run[0]) >= way.floor},
        )
        while way.withheld:
            first = min(self._start(m) for m in way.withheld)
            if any(way.floor <= start < first for start in alive):
                break
            way = self._emitted(way, first)
        return way

    def _emitted(self, way: Way, first: int) -> Way:
        """Emit matches with the same start in any order; one that raises the floor above the start ends them all."""
        alike = frozenset(m for m in way.withheld if self._start(m) == first)
        chosen = alike & self.wanted
        ending = frozenset(m for m in chosen if self._floor(m) > first)
        if len(ending) > 1 or (not ending and chosen != alike):
            raise _NoChoiceError
        floor = max(way.floor, *(self._floor(m) for m in chosen))
        withheld = frozenset(m for m in way.withheld - alike if self._start(m) >= floor)
        return replace(way, floor=floor, withheld=withheld, emitted=way.emitted | chosen)

    def _start(self, run: Bindings) -> int:
        return first_of(run, self.stream.place)

    def _floor(self, match: Bindings) -> int:
        """Return the first start that survives a match."""
        kind, place = self.skip["type"], self.stream.place
        if kind == "to_next":
            return self._start(match) + 1
        if kind == "past_last":
            return max(place[i] for _, ids in match for i in ids) + 1
        bound = [place[i] for i in dict(match).get(self.skip["stage"], ())]
        return bound[0 if kind == "to_first" else -1] if bound else 0
