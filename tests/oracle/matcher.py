"""Pattern + the events of one key → every match and every time-out, by following the definitions one event at a time.

A run consists of its bound events and *one* wait, followed by the rest of the pattern (remaining.py in this folder).
Where the pattern leaves a choice, there is one run per choice, each with its own wait: `a -> b? -> c` after an `a` is a
run waiting for b and a run waiting for c. The oracle works without automaton, sharing and bounds: it is exponential,
and meant to be.

One event changes one run as follows, in this order:

1. a greedy loop that the run has left would take it         → the run ends
   (it fits the loop, comes in time for it, and is not a stop event of it)
2. it is the event right after `a` in `a, !b` and fits b    → the run ends
3. it fits the wait and is not a stop event (`until`) of a  → a run that has taken it, for every way to go on
   loop that taking it would repeat
4. it is a stop event of a loop that has begun, or of a group → the run ends
5. the wait may skip it: `->` if it does not fit, `->>` always, `,` never; and it does not break an absence
                                                            → the run goes on waiting
   A `->` after a group also goes on waiting when it takes the event, if an open wait for another round of the group
   skips the event: like an optional step, the round stays open, and the steps after the group stay open with it.
Before an event, and at the end, every deadline up to then fires in the order of time: a run that waits for an absence
to become certain goes on, any other run times out.

Tested by: tests/oracle/test_oracle.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache

from cep.base.limits import TIME_MS_MAX
from cep.lang.ir import Expr, History, Link, PatternIR, Skip, SkipKind
from cep.lang.walk import histories
from tests.oracle import remaining
from tests.oracle.expressions import Value, evaluate, values_at

_NEVER_MS = 2 * TIME_MS_MAX

# ------------------------------------------------------------------------------------------- inputs and outputs


@dataclass(frozen=True)
class Event:
    """One event of a key. `order` ranks events of equal time; `fields` hold slot contents (see cep/lang/ir.py)."""

    id: int | str
    type: str
    time_ms: int
    order: int
    fields: Mapping[str, Value] = field(compare=False)


Bindings = tuple[tuple[str, int | str], ...]


@dataclass(frozen=True)
class Match:
    """A match or a time-out: (variable, event id) in the order of binding, its time, and the emitted values.

    `detected_ms` is the time at which it became certain.
    """

    bindings: Bindings
    detected_ms: int
    measures: Mapping[str, Value] = field(default_factory=dict, compare=False)

    def by_variable(self) -> dict[str, list[int | str]]:
        return by_variable(self.bindings)


@dataclass(frozen=True)
class Answer:
    """Matches in the order of emission, and partial matches whose time ran out; both without duplicates."""

    matches: tuple[Match, ...]
    timeouts: tuple[Match, ...]


def by_variable(bindings: Bindings) -> dict[str, list[int | str]]:
    """Return the ids bound to each variable, in order."""
    ids: dict[str, list[int | str]] = {}
    for variable, event_id in bindings:
        ids.setdefault(variable, []).append(event_id)
    return ids


def find_matches(
    pattern: PatternIR,
    events: Iterable[Event],
    watermark_ms: int = TIME_MS_MAX,
) -> Answer:
    """Find all matches and time-outs of a bound pattern in the events of one key, up to `watermark_ms`.

    Events of types that the pattern does not look at are left out; the rest are put in order of (time, order).
    """
    looked_at = [event for event in _with_histories(pattern, events) if event.type in pattern.event_types]
    oracle = _Oracle(pattern)
    for event in sorted(looked_at, key=lambda e: (e.time_ms, e.order)):
        oracle.next_event(event)
    return oracle.end(watermark_ms)


def find_matches_of_words(pattern: PatternIR, choices: Sequence[Sequence[Event]]) -> Iterator[tuple[list[int], Answer]]:
    """Yield the answers of `find_matches` for every stream that takes one choice at each place, up to any place.

    Each answer comes with the numbers of its choices. Streams with a common beginning share its work. The pattern must
    be without histories and must look at all of the events, which come in order.
    """
    assert not _wanted(pattern)
    return _words(_Oracle(pattern), choices, [])


def _words(oracle: _Oracle, choices: Sequence[Sequence[Event]], word: list[int]) -> Iterator[tuple[list[int], Answer]]:
    for number, event in enumerate(choices[0] if choices else ()):
        after = oracle.copied()
        after.next_event(event)
        yield [*word, number], after.copied().end(TIME_MS_MAX)
        yield from _words(after, choices[1:], [*word, number])


def _with_histories(pattern: PatternIR, events: Iterable[Event]) -> list[Event]:
    """Return the events in order; their fields also hold the value of every history of the pattern."""
    ordered = sorted(events, key=lambda e: (e.time_ms, e.order))
    pattern_histories = _wanted(pattern)
    if not pattern_histories:
        return ordered
    return [
        replace(event, fields={**event.fields, **values_at(pattern_histories, ordered[: number + 1])})
        for number, event in enumerate(ordered)
    ]


@lru_cache
def _wanted(pattern: PatternIR) -> frozenset[History]:
    """Return the histories of the pattern, cached for many keys."""
    return frozenset(histories(pattern))


@remaining.hashed_once
@dataclass(frozen=True)
class Bound:
    """An event at its position among the key's events, bound to a variable."""

    variable: str
    event: Event
    position: int


# --------------------------------------------------------------------------------------------------------- runs


@remaining.hashed_once
@dataclass(frozen=True)
class Run:
    """One partial match: its bound events, in order, and its wait."""

    bound: tuple[Bound, ...]
    wait: remaining.Wait

    @property
    def start(self) -> int:
        return self.bound[0].position

    @property
    def bindings(self) -> Bindings:
        return tuple((b.variable, b.event.id) for b in self.bound)


class _Oracle:
    """The runs of one key, advanced event by event."""

    def __init__(self, pattern: PatternIR) -> None:
        self.pattern = pattern
        self.where = {variable.name: variable for variable in pattern.variables}
        self.first_waits = [
            w for w in remaining.enter(pattern.structure, remaining.Arrival(None), None) if w.variable is not None
        ]
        self.runs: list[Run] = []
        self.withheld: list[tuple[int, Run]] = []
        self.instants = 0
        self.events_count = 0
        self.matches: list[Match] = []
        self.timeouts: list[Match] = []
        self.emitted: set[tuple[bool, Bindings]] = set()

    def copied(self) -> _Oracle:
        """Return a copy that goes on independently."""
        other = copy(self)
        other.runs, other.withheld = list(self.runs), list(self.withheld)
        other.matches, other.timeouts, other.emitted = list(self.matches), list(self.timeouts), set(self.emitted)
        return other

    # ---- one event

    def next_event(self, event: Event) -> None:
        """Fire the deadlines before the event, then take the event."""
        self.fire_deadlines(event.time_ms)
        self.fire_counts(self.events_count, event.time_ms)
        self.take_event(Bound("", event, self.events_count))
        self.events_count += 1

    def end(self, watermark_ms: int) -> Answer:
        """Fire the deadlines up to the watermark; return all matches and time-outs."""
        self.fire_deadlines(watermark_ms)
        return Answer(tuple(self.matches), tuple(self.timeouts))

    def take_event(self, event: Bound) -> None:
        """Apply rules 1 to 5 above to every run, and start a new run for every way to begin with the event."""
        before = [Run((), wait) for wait in self.first_waits] + self.runs
        self._settle([after for run in before for after in self._advance(run, event)], event.event.time_ms)

    def _advance(self, run: Run, event: Bound) -> list[Run]:
        arrival = run.wait.arrival
        if self._loses_to_greed(run, event):
            return []
        after = self._take(run, event) if self._may_take(run, event) else []
        if any(self._breaks(absence, run, event) for absence in arrival.not_next):
            return after  # the event that continues the match is not between; no other run goes on
        if run.wait.rounds:
            run = replace(run, wait=replace(run.wait, rounds=self._open_rounds(run, event)))
        if self._may_skip(run, event):
            wait = self._skipped(run, event)
            waits = remaining.proceed(wait.rest, remaining.FRESH) if wait.is_certain else [wait]
            after += [run if w is run.wait else Run(run.bound, w) for w in waits]
        return after

    def _skipped(self, run: Run, event: Bound) -> remaining.Wait:
        """Return the wait after an event that it skips."""
        arrival = run.wait.arrival
        greedy = tuple(s for s in arrival.greedy if not self._any(remaining.untils_around(s.rest), run, event))
        if not arrival.not_next and greedy == arrival.greedy:
            return run.wait
        return replace(run.wait, arrival=replace(arrival, not_next=(), greedy=greedy))

    def _open_rounds(self, run: Run, event: Bound) -> tuple[remaining.Wait, ...]:
        """Return the open waits for another round that skip the event."""
        open_ = []
        for wait in run.wait.rounds:
            beside = Run(run.bound, replace(wait, rounds=self._open_rounds(Run(run.bound, wait), event)))
            if (
                self._deadline_ms(beside) > event.event.time_ms
                and not any(self._breaks(absence, beside, event) for absence in wait.arrival.not_next)
                and not self._loses_to_greed(beside, event)
                and self._may_skip(beside, event)
            ):
                open_.append(self._skipped(beside, event))
        return tuple(open_)

    def _loses_to_greed(self, run: Run, event: Bound) -> bool:
        """Whether a greedy loop that the run has left would take the event, even if the event is not the next one."""
        in_loop = [Run(run.bound, wait) for wait in run.wait.arrival.greedy]
        return any(self._may_take(r, event) and not self._is_late(r, event) for r in in_loop)

    def _is_late(self, run: Run, event: Bound) -> bool:
        """Whether the deadline of the run has passed."""
        return bool(run.bound) and self._deadline_ms(run) <= event.event.time_ms

    def _suits(self, run: Run, event: Bound) -> bool:
        """Whether the event fits the wait of the run and does not come too early."""
        if run.wait.variable is None or not self._fits(run.wait.variable, run, event):
            return False
        gap_min_ms = max(run.wait.arrival.gap_min_ms, remaining.least_ms(run.wait.rest))
        return not run.bound or event.event.time_ms - run.bound[-1].event.time_ms >= gap_min_ms

    def _may_take(self, run: Run, event: Bound) -> bool:
        return self._suits(run, event) and not self._any(remaining.untils_around(run.wait.rest), run, event)

    def _may_skip(self, run: Run, event: Bound) -> bool:
        link = run.wait.arrival.link
        if not run.bound or self._any(remaining.begun_untils_around(run.wait.rest), run, event):
            return False
        waits_for_event = run.wait.variable is not None
        takes = link is Link.FOLLOWED_BY and self._suits(run, event) and not run.wait.rounds
        if waits_for_event and (link is Link.NEXT or takes):
            return False
        return not any(self._breaks(absence, run, event) for absence in run.wait.arrival.absences)

    def _breaks(self, absence: remaining.Absence, run: Run, event: Bound) -> bool:
        """Whether the event is the forbidden one, within the time limits of the absence."""
        if not run.bound:
            return False
        gap_ms = event.event.time_ms - run.bound[-1].event.time_ms
        in_time = absence.gap_min_ms <= gap_ms and (absence.gap_max_ms is None or gap_ms < absence.gap_max_ms)
        return in_time and self._fits(absence.variable, run, event)

    def _take(self, run: Run, event: Bound) -> list[Run]:
        assert run.wait.variable is not None
        bound = (*run.bound, replace(event, variable=run.wait.variable))
        return [
            Run(bound, wait)
            for wait in remaining.proceed(remaining.stamped(run.wait.rest, event.event.time_ms), remaining.FRESH)
        ]

    def _fits(self, variable: str, run: Run, event: Bound) -> bool:
        declared = self.where[variable]
        if event.event.type != declared.event_type:
            return False
        return declared.where is None or self._any((declared.where,), run, event)

    def _any(self, conditions: Sequence[Expr], run: Run, event: Bound) -> bool:
        fields = _fields_by_variable(run.bound)
        return any(evaluate(condition, event.event.fields, fields) is True for condition in conditions)

    # ---- time

    def fire_deadlines(self, now_ms: int) -> None:
        """Fire every deadline up to and including now, in the order of time."""
        while self.runs:
            timed = [(self._deadline_ms(run), run) for run in self.runs]
            deadline_ms = min(time_ms for time_ms, _ in timed)
            if deadline_ms > now_ms:
                return
            expired = [run for time_ms, run in timed if time_ms == deadline_ms]
            self._fire(expired, [run for time_ms, run in timed if time_ms > deadline_ms], deadline_ms)

    def fire_counts(self, position: int, now_ms: int) -> None:
        """Fire the window in events: the event at `position` lies outside the windows of runs too far back."""
        limit = self.pattern.within_events
        if limit is not None:
            expired = [run for run in self.runs if position - run.start >= remaining.integer(limit)]
            self._fire(expired, [run for run in self.runs if position - run.start < remaining.integer(limit)], now_ms)

    def _fire(self, expired: list[Run], others: list[Run], now_ms: int) -> None:
        if not expired:
            return
        for run in expired:
            if run.wait.variable is None:
                others += [Run(run.bound, wait) for wait in remaining.proceed(run.wait.rest, remaining.FRESH)]
            else:
                self._emit(run, now_ms, is_match=False)
        self._settle(others, now_ms)

    def _deadline_ms(self, run: Run) -> int:
        """Return the deadline of the run. An absence without any window is certain when the stream ends."""
        first_ms, last_ms = run.bound[0].event.time_ms, run.bound[-1].event.time_ms
        wait = run.wait
        deadlines = []
        if self.pattern.within_ms is not None:
            deadlines.append(first_ms + remaining.integer(self.pattern.within_ms))
        rest = wait.rest
        while rest is not None:
            if isinstance(rest, remaining.Steps) and rest.node.within_ms is not None and rest.began_ms is not None:
                deadlines.append(rest.began_ms + remaining.integer(rest.node.within_ms))
            rest = rest.rest
        if wait.variable is not None and wait.arrival.gap_max_ms is not None:
            deadlines.append(last_ms + wait.arrival.gap_max_ms)
        if wait.variable is None:
            deadlines.append(self._certain_ms(wait.arrival, last_ms))
        return min(deadlines, default=_NEVER_MS)

    def _certain_ms(self, arrival: remaining.Arrival, last_ms: int) -> int:
        """Return when the absences of a wait are certain: by their own limits, otherwise at the end of the stream."""
        times_ms = [time_ms for time_ms in arrival.times_ms if time_ms is not None]
        if len(times_ms) == len(arrival.times_ms):
            return last_ms + max(times_ms)
        return TIME_MS_MAX if self.pattern.within_events is None else _NEVER_MS

    # ---- matches

    def _settle(self, runs: list[Run], now_ms: int) -> None:
        """Keep the runs that go on and hand out the matches among them, as the skip strategy says."""
        self.instants += 1
        unique = list(dict.fromkeys(runs))
        self.runs = [run for run in unique if not run.wait.is_certain]
        complete = sorted((run for run in unique if run.wait.is_certain), key=self._preference)
        queue = self.withheld + [(self.instants, run) for run in complete]
        if self.pattern.skip.in_order:
            queue.sort(key=lambda entry: (entry[1].start, entry[0], self._preference(entry[1])))
        while queue and not self._is_withheld(queue[0][1]):
            match = queue.pop(0)[1]
            self._emit(match, now_ms, is_match=True)
            queue = [entry for entry in queue if not _covers(self.pattern.skip, match, entry[1])]
            self.runs = [run for run in self.runs if not _covers(self.pattern.skip, match, run)]
        self.withheld = queue

    def _preference(self, run: Run) -> tuple[int, bool, int, tuple[int, ...], tuple[int, ...]]:
        """Return a sort key for the matches that one event completes.

        The earliest start comes first, then a match that skips nothing because it does not bind the variable of `skip
        to`, then the most events, then the earliest positions, then the variables declared first.
        """
        named = self.pattern.skip.variable
        binds = named is None or any(b.variable == named for b in run.bound)
        numbers = list(self.where)
        variables = tuple(numbers.index(b.variable) for b in run.bound)
        return run.start, binds, -len(run.bound), tuple(b.position for b in run.bound), variables

    def _is_withheld(self, match: Run) -> bool:
        skip = self.pattern.skip
        return skip.in_order and skip.kind is not SkipKind.NONE and any(run.start < match.start for run in self.runs)

    def _emit(self, run: Run, now_ms: int, *, is_match: bool) -> None:
        if (is_match, run.bindings) in self.emitted:
            return
        self.emitted.add((is_match, run.bindings))
        measures = self.pattern.measures if is_match else self.pattern.timeout_measures or ()
        fields = _fields_by_variable(run.bound)
        values = {m.name: evaluate(m.value, run.bound[-1].event.fields, fields) for m in measures}
        (self.matches if is_match else self.timeouts).append(Match(run.bindings, now_ms, values))


def _fields_by_variable(bound: tuple[Bound, ...]) -> dict[str, list[Mapping[str, Value]]]:
    fields: dict[str, list[Mapping[str, Value]]] = {}
    for b in bound:
        fields.setdefault(b.variable, []).append(b.event.fields)
    return fields


def _covers(skip: Skip, match: Run, run: Run) -> bool:
    """Whether the skip strategy drops a run, or another match, once `match` has been emitted."""
    match skip.kind:
        case SkipKind.NONE:
            return False
        case SkipKind.TO_NEXT:
            return run.start <= match.start
        case SkipKind.PAST_LAST:
            return run.start <= match.bound[-1].position
        case SkipKind.TO_FIRST | SkipKind.TO_LAST:
            positions = [b.position for b in match.bound if b.variable == skip.variable]
            if not positions:
                return False
            return run.start < (positions[0] if skip.kind is SkipKind.TO_FIRST else positions[-1])
