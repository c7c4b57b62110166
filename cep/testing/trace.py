"""The events of one key over a pattern's automaton in plain Python, with a journal of every run.

The steps are the same as in match/advance.py, one event at a time: expire, offer to every run, apply the skip strategy.
`cep test` and `cep why` explain from it, but it never decides; tests on random patterns check that the two agree.
Tested by: tests/testing/test_explain.py
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cep.base.errors import LimitError
from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN, TRACE_STEPS_MAX
from cep.lang.ir import Link, PatternIR, SkipKind
from cep.nfa.positions import Automaton, Bound, Wait, build, guards_of
from cep.testing.journal import Closing, Conditions, Miss, Run, Trace, TracedEvent, TracedMatch, Why

_FOREVER = TIME_MS_MAX
_AFTER_FOREVER = 2 * _FOREVER + 1  # with the time of a deadline added, later than _FOREVER and in order
_WHY = {"after": Why.ABSENCE, "next": Why.ABSENCE, "greedy": Why.GREEDY, "before": Why.STOP, "stop": Why.STOP}


@dataclass(frozen=True, slots=True)
class Interval:
    """When the rule holds, as in DeployedRule; by default always."""

    from_ms: int = TIME_MS_MIN
    starts_until_ms: int = TIME_MS_MAX
    until_ms: int = TIME_MS_MAX


ALWAYS = Interval()


def trace_key(
    pattern: PatternIR, events: Sequence[TracedEvent], interval: Interval = ALWAYS, end_ms: int = TIME_MS_MAX
) -> Trace:
    """Walk the events of one key, in their order, up to the watermark `end_ms`; by default to the end of time.
    `pattern` is bound, and compiles. Raises: LimitError for more steps than one can want to read about."""
    return _Tracer(pattern, tuple(events), interval, end_ms).run()


def fires_on_deadlines(pattern: PatternIR) -> bool:
    """Return True if a deadline alone can give a match or a time-out, so that it matters where the events end."""
    return _Tracer(pattern, (), ALWAYS, TIME_MS_MAX).has_deadlines


class _Tracer:
    def __init__(self, pattern: PatternIR, events: tuple[TracedEvent, ...], interval: Interval, end_ms: int) -> None:
        self.pattern, self.events, self.interval, self.end_ms = pattern, events, interval, end_ms
        self.automaton: Automaton = build(pattern.structure)
        self.positions = self.automaton.positions
        variables = tuple(p.variable for p in self.positions)
        self.conditions = Conditions(pattern, variables, events)
        self.start = Run(number=0, parent=None, position=0)  # the run that has taken no event
        self.runs: list[Run] = []
        self.matches: list[TracedMatch] = []
        self.misses: dict[int, list[tuple[Run, Miss]]] = {}  # by row of the event that did not fit the run
        self.steps = self.runs_count = 0
        all_waits = [w for p in self.positions for w in p.waits]  # all transitions of the automaton
        self.in_order = pattern.skip.in_order and pattern.skip.kind is not SkipKind.NONE  # emits in order of starts
        self.times_out = pattern.timeout_measures is not None
        # A deadline can give a match (of an absence, or in order) or a time-out, so deadlines are processed in order.
        self.has_deadlines = self.times_out or self.in_order or any(w.target is None for w in all_waits)
        is_strict = any(w.link is Link.NEXT or any(g.moment == "next" for g in w.guards) for w in all_waits)
        self.counts_events = is_strict or self.in_order or pattern.within_events is not None  # skips foreign events
        self.within_ms = _whole(pattern.within_ms)
        self.within_events = _whole(pattern.within_events)

    def run(self) -> Trace:
        for event in self.events:
            outside = self.counts_events and event.ordinal < 0
            if event.time_ms < self.interval.until_ms and not outside:
                self._on_event(event)
        events_count = sum(e.ordinal >= 0 for e in self.events)
        self._finish(events_count)
        return Trace(
            self.pattern, self.automaton, self.events, self.start, self.matches, self.conditions.covered, self.misses
        )

    # ------------------------------------------------------------------------------------------------ events

    def _on_event(self, event: TracedEvent) -> None:
        """Process earlier deadlines, offer the event to a new run and the open runs, and choose among new matches."""
        if self.has_deadlines:
            self._expire(event.time_ms, event.ordinal)
            if self.within_events < _FOREVER:
                self._expire_events(event)
        first_match, earlier_runs = len(self.matches), list(self.runs)
        if self.interval.from_ms <= event.time_ms < self.interval.starts_until_ms:  # new runs may begin
            self._offer(self.start, event)
        for run in earlier_runs:
            if not run.open or run.awaits_emission:
                continue  # complete: a match that is emitted later, in order
            if run.expiry_ms <= event.time_ms:  # its window in time is over
                self._close_expired(run)
            elif run.start_ordinal <= event.ordinal - self.within_events:  # its window in events is over
                self._close_all(run, Why.EVENTS, event.time_ms, event.row)
            else:
                self._offer(run, event)
        self._apply_skip(first_match, event.time_ms)
        self.runs = [run for run in self.runs if run.open or run.awaits_emission]

    def _offer(self, run: Run, event: TracedEvent) -> None:
        """Offer an event to each open wait (possible next step), which takes it, is closed by it, or ignores it."""
        self.steps += 1
        if self.steps > TRACE_STEPS_MAX:
            raise LimitError("steps of a trace", self.steps, TRACE_STEPS_MAX, "take fewer events, or a shorter time")
        waits = self.positions[run.position].waits
        is_start = run is self.start
        for index in list(range(len(waits)) if is_start else run.open):
            wait = waits[index]
            if wait.link is Link.NEXT and wait.target is not None and event.ordinal != run.ordinal + 1:
                self._close(run, Closing(index, Why.BETWEEN, event.time_ms, event.row))
                continue
            timing = 1 if is_start else self._check_gaps(run, wait.bounds, event)  # 1 in time, 0 early, -1 late
            if timing < 0:
                self._close(run, Closing(index, Why.LATE, event.time_ms, event.row))
                continue
            is_closed = self._close_if_forbidden(run, index, event, before=True)
            # An absence is without a target and takes no event: any forbidden event breaks it.
            if is_closed or (wait.target is None and self._close_if_forbidden(run, index, event, before=False)):
                continue
            self._take_or_close(run, index, event, may_take=timing > 0)
            if index in run.open:
                self._close_if_forbidden(run, index, event, before=False)

    def _take_or_close(self, run: Run, index: int, event: TracedEvent, *, may_take: bool) -> None:
        """Take the event if it matches the wait (a possible next step of the run) and is not too early (`may_take`).
        Otherwise close the wait if it accepts only the very next event."""
        wait = self.positions[run.position].waits[index]
        if may_take and wait.target is not None and self._fits_wait(run, index, event):
            self._take(run, index, event)
            if wait.link is not Link.FOLLOWED_BY_ANY and not self._stays_open(run, wait):  # one event is enough
                self._close(run, Closing(index, Why.TAKEN, event.time_ms, event.row))
        elif wait.link is Link.NEXT and wait.target is not None:  # a target: it waits for an event, not an absence
            self._close(run, Closing(index, Why.CONDITION, event.time_ms, event.row))  # it does not fit
        elif wait.link is Link.NEXT:  # `!x` as the very next event: this one is not x, so the absence is certain
            self._complete(run, event.time_ms, index)
            self._close(run, Closing(index, Why.CERTAIN, event.time_ms, event.row))

    def _stays_open(self, run: Run, wait: Wait) -> bool:
        """Return True if an open wait keeps this one open after any event."""
        return any(self.positions[run.position].waits[index].loop in wait.reopens for index in run.open)

    def _fits_wait(self, run: Run, index: int, event: TracedEvent) -> bool:
        """Return True if the event matches the wait (a possible next step of the run). Otherwise record why not."""
        wait = self.positions[run.position].waits[index]
        assert wait.target is not None, "only asked of a wait that takes"
        variable = self.positions[wait.target].variable
        if not self.conditions.is_of_type(variable, event):
            return False
        failed = self.conditions.failed(variable, event, run)
        stopped = self.conditions.stops(wait.untils, variable, event, run)
        if not failed and not stopped:
            return True
        miss = Miss(index, event.row, failed, stopped)
        nearest = run.misses.get(index)
        if nearest is None or len(failed) <= len(nearest.failed):  # the fewest failed conditions; the last of equals
            run.misses[index] = miss
        self.misses.setdefault(event.row, []).append((run, miss))
        return False

    def _close_if_forbidden(self, run: Run, index: int, event: TracedEvent, *, before: bool) -> bool:
        """Close the wait (possible next step) and return True if one of its guards forbids the event. With `before`,
        check the guards that apply before the wait may take the event: "before" and "greedy". Otherwise check the
        others. A "frees" guard forbids nothing: it records in `run.freed` the event that ends a greedy loop."""
        wait = self.positions[run.position].waits[index]
        guards = wait.guards if wait.target is None else guards_of(wait, self.positions[wait.target].variable)
        for guard in guards:
            if (guard.moment in ("before", "greedy")) != before:
                continue  # `before` asks for the other guards
            if guard.moment == "greedy" and any(stop in run.freed for stop in guard.unless):
                continue  # the greedy loop has been stopped, so it takes no more events
            if guard.moment == "stop" and self._stays_open(run, wait):
                continue  # the loop is over, but another open wait keeps this one open
            if guard.moment == "next" and event.ordinal != run.ordinal + 1:
                continue  # it forbids only the event directly after the run's last event
            if run is not self.start and self._check_gaps(run, guard.bounds, event) < 1:
                continue  # too early or too late for the guard; the start has not yet a time to measure from
            if self.conditions.closes(guard, event, run):
                if guard.moment != "frees":
                    if guard.condition is not None and wait.target is not None:  # `until`: note it for the coverage
                        self.conditions.stops(wait.untils, self.positions[wait.target].variable, event, run)
                    self._close(run, Closing(index, _WHY[guard.moment], event.time_ms, event.row, guard))
                    return True
                if run is not self.start and guard.condition is not None:
                    run.freed.append(guard.condition)
        return False

    def _check_gaps(self, run: Run, bounds: Sequence[Bound], event: TracedEvent) -> int:
        """Return 1 if the event keeps the bounds, 0 if it comes too early, -1 if it comes too late."""
        verdict = 1
        for bound in bounds:
            gap = event.time_ms - self._base_ms(run, bound.group)
            if bound.max_ms is not None and gap >= bound.max_ms:
                return -1
            if gap < bound.min_ms:
                verdict = 0
        return verdict

    def _base_ms(self, run: Run, mark: int | None) -> int:
        return self.events[run.row if mark is None else run.marks[mark]].time_ms

    # -------------------------------------------------------------------------------------------------- runs

    def _take(self, parent: Run, index: int, event: TracedEvent) -> None:
        """Create the run that results when `parent` takes the event by a wait (a possible next step). The run may be
        complete at once. `counts` has the events taken at each position since its loop was entered. `marks` has the
        row of the event that began each group, because the time limits of a group are measured from there."""
        wait = self.positions[parent.position].waits[index]
        target = wait.target
        assert target is not None, "only a wait with a target takes"
        self.runs_count += 1
        is_first = parent is self.start  # the event begins a match
        child = Run(
            number=self.runs_count,
            parent=parent,
            position=target,
            row=event.row,
            start_row=event.row if is_first else parent.start_row,
            ordinal=event.ordinal,
            start_ordinal=event.ordinal if is_first else parent.start_ordinal,
            length=parent.length + 1,
            counts={**parent.counts, target: 1 + (0 if wait.enters_loop else parent.counts.get(target, 0))},
            marks={**parent.marks, **dict.fromkeys(wait.begins_groups, event.row)},
        )
        position = self.positions[target]
        count = child.counts[target]
        child.open = [i for i, w in enumerate(position.waits) if not position.loops or _opens(w, count)]
        child.opened = tuple(child.open)  # a copy: waits that close leave `open`
        child.expiry_ms = self._expiry_ms(child)
        parent.children.append(child)
        self.conditions.covered.positions.add(target)
        self.conditions.covered.waits.add((parent.position, index))  # for the coverage of the tests
        if child.open:
            self.runs.append(child)
        if position.accepts and (position.accept_min <= 1 or count >= position.accept_min):
            self._complete(child, event.time_ms, None)

    def _complete(self, run: Run, at_ms: int, absence: int | None) -> None:
        """Complete a run: emit its match at once, or with `in order` once no open run started earlier."""
        if absence is not None:
            self.conditions.covered.waits.add((run.position, absence))
        if not self.in_order:
            self._emit(run, at_ms, is_match=True, is_timeout=False)
            return
        self.runs.append(replace(run, open=[], awaits_emission=True, expiry_ms=_FOREVER))

    def _emit(self, run: Run, at_ms: int, *, is_match: bool, is_timeout: bool) -> TracedMatch:
        match = TracedMatch(len(self.matches), run, at_ms, is_match, is_timeout)
        run.matches.append(match.number)
        self.matches.append(match)
        return match

    def _close(self, run: Run, closing: Closing) -> None:
        if closing.wait in run.open:
            run.open.remove(closing.wait)
            run.closings.append(closing)

    def _close_all(self, run: Run, why: Why, at_ms: int, row: int | None = None, match: int | None = None) -> None:
        for index in list(run.open):
            self._close(run, Closing(index, why, at_ms, row, match=match))

    # -------------------------------------------------------------------------------------------------- time

    def _deadline_ms(self, run: Run, wait: Wait) -> int:
        ends = [_FOREVER, self.events[run.start_row].time_ms + self.within_ms]
        ends += [self._base_ms(run, b.group) + b.max_ms for b in wait.bounds if b.max_ms is not None]
        return min(ends)

    def _expiry_ms(self, run: Run) -> int:
        """Return when the run must be visited next: a deadline that fires, otherwise the last deadline."""
        waits = [self.positions[run.position].waits[i] for i in run.open]
        deadlines = [self._deadline_ms(run, w) for w in waits]
        firing = [
            d for d, w in zip(deadlines, waits, strict=True) if w.target is None or self.times_out or self.in_order
        ]
        return min(firing) if firing else max(deadlines, default=-_FOREVER)

    def _expire(self, until_ms: int, events_count: int) -> None:
        """Process all deadlines up to `until_ms`, in order. The key's stream has had `events_count` events by then."""
        while True:
            due_ms = min((r.expiry_ms for r in self.runs if r.open), default=_FOREVER + 1)  # the earliest deadline
            if due_ms > until_ms:
                return
            first_match = len(self.matches)
            for run in [r for r in self.runs if r.open and r.expiry_ms <= due_ms]:
                self._close_missed_next(run, events_count)  # its waits for the very next event, if that has come
                if run.open:
                    self._close_due(run, until_ms=due_ms, at_ms=due_ms, why=Why.WITHIN, events_count=events_count)
            self._apply_skip(first_match, due_ms)  # choose among the matches of this deadline
            if due_ms >= _FOREVER:  # no deadline is later
                return

    def _expire_events(self, event: TracedEvent) -> None:
        """Close the runs whose window in events ends with the event."""
        first_match = len(self.matches)
        for run in list(self.runs):
            if run.open and event.ordinal - run.start_ordinal >= self.within_events:
                self._close_missed_next(run, event.ordinal)
                if run.open:
                    self._close_due(run, _FOREVER + 1, event.time_ms, Why.EVENTS, event.ordinal)
        self._apply_skip(first_match, event.time_ms)

    def _close_missed_next(self, run: Run, events_count: int) -> None:
        """Close the waits that accept only the very next event if that has come."""
        if events_count > run.ordinal + 1:
            waits = self.positions[run.position].waits
            between = next((e for e in self.events if e.ordinal == run.ordinal + 1), None)
            for index in list(run.open):
                if waits[index].link is Link.NEXT and waits[index].target is not None:
                    at_ms = self.events[run.row].time_ms if between is None else between.time_ms
                    self._close(run, Closing(index, Why.BETWEEN, at_ms, None if between is None else between.row))

    def _close_due(self, run: Run, until_ms: int, at_ms: int, why: Why, events_count: int) -> None:
        """Close the waits of a run whose deadline is at most `until_ms`. A wait for an absence makes the run a match at
        `at_ms`, another wait makes it a time-out. The key's stream has had `events_count` events by then."""
        waits = self.positions[run.position].waits
        has_absence = ran_out = False
        for index in [i for i in run.open if self._deadline_ms(run, waits[i]) <= until_ms]:
            is_absence = waits[index].target is None
            if not is_absence and self._deadline_ms(run, waits[index]) >= _FOREVER >= until_ms:
                continue  # this wait has no deadline: it stays open when the input ends
            has_absence, ran_out = has_absence or is_absence, ran_out or not is_absence
            if is_absence:
                self.conditions.covered.waits.add((run.position, index))
            late = why is Why.WITHIN and self._is_late(run, waits[index])  # the step's time, not the match's
            reason = Why.CERTAIN if is_absence else Why.LATE if late else why
            closed_ms = at_ms if is_absence else min(at_ms, self._deadline_ms(run, waits[index]))
            self._close(run, Closing(index, reason, closed_ms))
        if run.open:
            run.expiry_ms = self._expiry_ms(run)
        is_new_timeout = ran_out and self.times_out and not run.is_reported
        run.is_reported = run.is_reported or is_new_timeout
        if has_absence and self.in_order:  # `skip … in order` emits the earliest start first
            self._complete(run, at_ms, None)
            # `runs[-1]` is the complete run: it is emitted after the last event's matches, by the order of deadlines.
            self.runs[-1].ordinal = events_count - 1  # the number of the last event
            self.runs[-1].expiry_ms = _AFTER_FOREVER + at_ms  # a sort key: later than runs that an event completed
            has_absence = False
        if has_absence or is_new_timeout:
            self._emit(run, at_ms, is_match=has_absence, is_timeout=is_new_timeout)

    def _close_expired(self, run: Run) -> None:
        """End every wait whose time is up; nothing fires."""
        for index in list(run.open):
            wait = self.positions[run.position].waits[index]
            if self._deadline_ms(run, wait) >= _FOREVER:
                continue  # it waits without an end, together with one that has ended
            reason = Why.LATE if self._is_late(run, wait) else Why.WITHIN
            self._close(run, Closing(index, reason, self._deadline_ms(run, wait)))

    def _is_late(self, run: Run, wait: Wait) -> bool:
        """Return True if the wait ends before the window of the whole match does."""
        return self._deadline_ms(run, wait) < self.events[run.start_row].time_ms + self.within_ms

    def _finish(self, events_count: int) -> None:
        """End the input: windows that end while the rule sees events close, waits without a window stay open."""
        if self.has_deadlines:
            self._expire(min(self.interval.until_ms, self.end_ms), events_count)
        for run in self.runs:
            self._close_missed_next(run, events_count)
            if run.expiry_ms < _FOREVER and run.expiry_ms <= self.end_ms and not self.has_deadlines:
                self._close_expired(run)

    # -------------------------------------------------------------------------------------------------- skip

    def _apply_skip(self, before: int, at_ms: int) -> None:
        """Apply the skip strategy to the matches from `before` on, which belong to one event or deadline."""
        if self.in_order:
            self._emit_in_order(at_ms)
        elif self.pattern.skip.kind is not SkipKind.NONE:
            self._choose_matches([m for m in self.matches[before:] if m.is_match], at_ms)

    def _choose_matches(self, candidates: list[TracedMatch], at_ms: int) -> None:
        """Choose among the matches of one moment, the best first. By the pattern's `skip`, a chosen match covers the
        runs that started before the event in row `covered_until`: drop their matches, and close these runs."""
        while candidates:
            best = min(candidates, key=lambda match: self._preference(match.run))
            candidates.remove(best)
            covered_until = self._covered_until(best.run)
            for match in candidates:
                if match.run.start_row < covered_until:
                    match.dropped_by = best.number
                    if match.is_timeout:  # it was a match and a time-out: drop only the match
                        match.is_timeout = False
                        self._emit(match.run, match.detected_ms, is_match=False, is_timeout=True)
            candidates = [m for m in candidates if m.dropped_by is None]
            self._close_covered(covered_until, best, at_ms)

    def _emit_in_order(self, at_ms: int) -> None:
        """Emit the complete runs of `skip … in order`, the earliest start first, while no open run started earlier.
        An emitted match covers the runs that started before a certain event: close them."""
        while True:
            waiting = [run for run in self.runs if run.awaits_emission]
            if not waiting:
                return
            best = min(waiting, key=lambda run: (run.start_row, run.ordinal, run.expiry_ms, *self._preference(run)))
            if any(run.open and run.start_row < best.start_row for run in self.runs):
                return  # a run that started earlier may still give a match
            match = self._emit(best, at_ms, is_match=True, is_timeout=False)
            best.awaits_emission = False
            self._close_covered(self._covered_until(best), match, at_ms)

    def _close_covered(self, covered_until: int, match: TracedMatch, at_ms: int) -> None:
        """Close the runs that started before a row: the match covers them."""
        for run in self.runs:
            if run.start_row < covered_until:
                run.awaits_emission = False
                self._close_all(run, Why.SKIP, at_ms, match=match.number)

    def _covered_until(self, run: Run) -> int:
        """Return a row: the match of this run covers the runs that started before it."""
        kind, variable = self.pattern.skip.kind, self.pattern.skip.variable
        if kind is SkipKind.PAST_LAST:
            return run.row + 1
        if kind is SkipKind.TO_NEXT:
            return run.start_row + 1
        rows = self._rows_of(run, variable)
        if not rows:
            return -1
        return rows[0] if kind is SkipKind.TO_FIRST else rows[-1]

    def _rows_of(self, run: Run, variable: str | None) -> list[int]:
        return [step.row for step in run.taken() if self.positions[step.position].variable == variable]

    def _preference(self, run: Run) -> tuple[int, bool, int, tuple[int, ...]]:
        """Rank matches: the earlier start first, then one that does not bind the variable of `skip to` and so skips
        nothing, then the one with more events, then with the earlier ones."""
        skip = self.pattern.skip
        binds = skip.variable is None or bool(self._rows_of(run, skip.variable))
        return run.start_row, binds, -run.length, run.rows()


def _opens(wait: Wait, count: int) -> bool:
    low, high = wait.counted
    return count >= low and (high is None or count < high)


def _whole(value: object) -> int:
    assert value is None or isinstance(value, int), "parameters are bound"
    return _FOREVER if value is None else value
