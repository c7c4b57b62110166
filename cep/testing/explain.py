"""A trace → lines about the progress of each run and the reason for its end, with the compared values.

    probe 0 s, 20 s, 40 s · then waited for hit
      5 min e00004 is no hit: amount > 500.00 is not true (amount = 400.00)
      the window was over at 10 min

Tested by: tests/testing/test_explain.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cep.base.limits import TIME_MS_MAX
from cep.lang.ir import Expr, Link
from cep.lang.show import show_duration, show_expr, show_value
from cep.nfa.positions import Guard, Wait
from cep.testing.conditions import Conditions, parts_of
from cep.testing.journal import Closing, Miss, Run, Trace, Why
from cep.testing.show import merged, operands
from cep.testing.values import value_of

Clock = Callable[[int], str]
_TAKEN_SHOWN_MAX = 6
_RUNS_SHOWN_MAX = 3
# Events after the end of a window among which one that would have fit is looked for.
_LATER_LOOKED_AT_MAX = 100


@dataclass(frozen=True, slots=True)
class RunStory:
    """The story of one start: `reached` in one line, and `reasons` why it went no further, empty for a match."""

    run: Run
    reached: str
    reasons: tuple[str, ...]


class Explainer:
    """Tells the stories of one trace. `clock` writes event times: since the start of a test, or as dates."""

    def __init__(self, trace: Trace, clock: Clock) -> None:
        self.trace, self.clock = trace, clock
        self._positions = trace.automaton.positions
        names = tuple(p.variable for p in self._positions)
        self._conditions = Conditions(trace.pattern, names, trace.events)
        self._parts = {v.name: parts_of(v.where) for v in trace.pattern.variables}

    # ------------------------------------------------------------------------------------------------ choice

    def furthest(self) -> list[RunStory]:
        """Tell every start by its descendant that came furthest; the furthest first."""
        ends = [max(first.descendants(), key=_progress) for first in self.trace.start.children]
        ends.sort(key=_progress, reverse=True)
        return [self.story(run) for run in ends]

    def end(self, start: Run) -> RunStory:
        """Tell one start by its descendant that came furthest."""
        return self.story(max(start.descendants(), key=_progress))

    def lines(self, runs_max: int = _RUNS_SHOWN_MAX) -> list[str]:
        """Explain in a few lines how far the furthest runs came, or why no run started."""
        stories = self.furthest()
        if not stories:
            return self.not_started()
        if any(not story.reasons for story in stories):
            # Runs that a match covers add nothing to it.
            stories = [s for s in stories if all(c.why is not Why.SKIP for c in s.run.closings)]
        text: list[str] = []
        for story in stories[:runs_max]:
            text += [story.reached, *(f"  {reason}" for reason in story.reasons)]
        more = len(stories) - runs_max
        return [*text, f"and {more} more run{'' if more == 1 else 's'} that came less far"] if more > 0 else text

    def not_started(self) -> list[str]:
        """Say why no event began a run."""
        if not self.trace.events:
            return ["no events"]
        misses = sorted(self.trace.start.misses.values(), key=lambda miss: len(miss.failed))
        if not misses:
            types = ", ".join(sorted({v.event_type for v in self.trace.pattern.variables}))
            return [f"no run started: no event is a {types}"]
        return ["no run started", *(f"  {line}" for line in self.miss(self.trace.start, misses[0]))]

    # ----------------------------------------------------------------------------------------------- one run

    def story(self, run: Run) -> RunStory:
        """Tell which events a run took, and why it went no further."""
        matches = [self.trace.matches[number] for number in run.matches]
        reported = next((m for m in matches if m.is_match), None)
        if reported is not None and reported.dropped_by is None:
            return RunStory(run, f"{self.taken(run)} · match at {self.clock(reported.detected_ms)}", ())
        reached = f"{self.taken(run)} · {self._waited_for(run)}"
        if reported is not None:
            return RunStory(run, reached, (self._covered_by(reported.dropped_by),))
        return RunStory(run, reached, tuple(dict.fromkeys(self._reasons(run))))

    def taken(self, run: Run) -> str:
        """List the events of a run by variable, with their times."""
        groups: list[tuple[str, list[str]]] = []
        for step in run.taken():
            name = self._positions[step.position].variable
            if not groups or groups[-1][0] != name:
                groups.append((name, []))
            groups[-1][1].append(self.clock(self.trace.events[step.row].time_ms))
        return " → ".join(f"{name} {_shortened(times)}" for name, times in groups)

    def _waited_for(self, run: Run) -> str:
        waits = self._positions[run.position].waits
        names = [self._name(waits[index]) for index in run.opened]
        variable = self._positions[run.position].variable
        names = [f"another {n}" if n == variable else n for n in dict.fromkeys(names)]
        return f"then waited for {' or '.join(names)}" if names else "then nothing more"

    def _name(self, wait: Wait) -> str:
        if wait.target is not None:
            return self._positions[wait.target].variable
        return "no " + " and no ".join(g.variable for g in wait.guards if g.variable is not None)

    def _reasons(self, run: Run) -> Iterable[str]:
        """Yield the reasons why a run did not continue: too few loop events, events that did not fit, ended waits."""
        waits = self._positions[run.position].waits
        count = run.counts.get(run.position, 0)
        closings = {c.wait: c for c in run.closings}
        for wait in waits:
            if self._positions[run.position].loops and count < wait.counted[0]:
                variable = self._positions[run.position].variable
                yield f"{self._name(wait)} is waited for after {wait.counted[0]} {variable}, there were {count}"
        for index in sorted(run.opened, key=lambda i: waits[i].target == run.position):
            if index in run.misses:
                yield from self.miss(run, run.misses[index])
        for index in run.opened:
            if index not in closings:
                yield self._open(run, waits[index])
            elif closings[index].why not in (Why.TAKEN, Why.CERTAIN):
                yield from self.closing(run, closings[index])

    def _open(self, run: Run, wait: Wait) -> str:
        """Say why a wait is open at the end of the events."""
        if wait.target is not None:
            return "nothing more came"
        moment = f", which it would be at {self.clock(run.expiry_ms)}" if run.expiry_ms < TIME_MS_MAX else ""
        return f"the events end before `{self._name(wait)}` is certain{moment}"

    def miss(self, run: Run, miss: Miss) -> list[str]:
        """Return the reasons why an event does not match the run's wait."""
        wait = self._positions[run.position].waits[miss.wait]
        assert wait.target is not None, "only a wait that takes can miss"
        variable, event = self._positions[wait.target].variable, self.trace.events[miss.row]
        head = f"{self.clock(event.time_ms)} {event.event_id} is no {variable}: "
        parts = self._parts[variable]
        if len(miss.failed) == len(parts) > 1:
            fields, bound = event.fields, self._conditions.bound(run)
            values = merged(pair for part in parts for pair in operands(part, fields, bound))
            return [head + ", ".join(f"{text} = {value}" for text, value in values)]
        if miss.stopped and not miss.failed:
            assert wait.untils, "only `until` stops"
            judged = " and ".join(self._judged(until, run, miss.row, outcome="is true") for until in wait.untils)
            return [head + f"it stops the loop, {judged}"]
        return [head + self._judged(parts[i], run, miss.row) for i in miss.failed]

    def _judged(self, part: Expr, run: Run, row: int, outcome: str = "") -> str:
        """Show a condition with its outcome and the values that it saw."""
        fields, bound = self.trace.events[row].fields, self._conditions.bound(run)
        value = value_of(part, fields, bound)
        outcome = outcome or ("is not known" if value is None else "is not true")
        values = ", ".join(f"{text} = {shown}" for text, shown in operands(part, fields, bound))
        return f"{show_expr(part)} {outcome}" + (f" ({values})" if values else "")

    def closing(self, run: Run, closing: Closing) -> list[str]:
        """Explain why a wait ended."""
        wait = self._positions[run.position].waits[closing.wait]
        clock = self.clock(closing.at_ms)
        event = "" if closing.row is None else self.trace.events[closing.row].event_id
        name = self._name(wait)
        match closing.why:
            case Why.CONDITION:
                if closing.wait in run.misses:
                    return [f"{name} had to be the very next event"]
                return [f"{name} had to be the very next event, which was {event} at {clock}"]
            case Why.BETWEEN:
                return [f"{event} came between at {clock}: {name} had to be the very next event"]
            case Why.LATE:
                return [
                    f"the time for the step to {name} was up at {clock}{_limit(wait)}",
                    *self._too_late(run, closing),
                ]
            case Why.ABSENCE:
                return self._broken(run, closing, clock, event)
            case Why.GREEDY:
                assert closing.guard is not None, "a guard closed it"
                return [
                    f"{event} at {clock} is another {closing.guard.variable}, and the loop is greedy: no {name} yet"
                ]
            case Why.STOP:
                return [f"{event} at {clock} stopped the loop"]
            case Why.SKIP:
                return [self._covered_by(closing.match)]
            case Why.WITHIN:
                within = self.trace.pattern.within_ms
                shown = f" (within {show_duration(within)})" if isinstance(within, int) else ""
                return [f"the window was over at {clock}{shown}", *self._too_late(run, closing)]
            case Why.EVENTS:
                return [f"the window of {self.trace.pattern.within_events} events was over at {clock}"]
            case _:
                return []

    def _too_late(self, run: Run, closing: Closing) -> list[str]:
        """Find a later event that would have continued the run if the time had not been up."""
        wait = self._positions[run.position].waits[closing.wait]
        if wait.target is None:
            return []
        variable = self._positions[wait.target].variable
        later = [e for e in self.trace.events[run.row + 1 :] if e.time_ms >= closing.at_ms][:_LATER_LOOKED_AT_MAX]
        for event in later:
            if wait.link is Link.NEXT and event.ordinal != run.ordinal + 1:
                continue
            if self._conditions.is_of_type(variable, event) and not self._conditions.failed(variable, event, run):
                late = show_duration(event.time_ms - closing.at_ms)
                return [f"{event.event_id} at {self.clock(event.time_ms)} is {variable}, {late} too late"]
        return []

    def _broken(self, run: Run, closing: Closing, clock: str, event: str) -> list[str]:
        guard = closing.guard
        assert isinstance(guard, Guard), "a guard closed it"
        assert guard.variable is not None, "an absence is of a variable"
        assert closing.row is not None, "an event closed it"
        fields, bound = self.trace.events[closing.row].fields, self._conditions.bound(run)
        values = merged(pair for part in self._parts[guard.variable] for pair in operands(part, fields, bound))
        shown = ", ".join(f"{text} = {value}" for text, value in values)
        return [f"{event} at {clock} is {guard.variable}, which must not come" + (f" ({shown})" if shown else "")]

    def _covered_by(self, number: int | None) -> str:
        assert number is not None, "a match covers it"
        match = self.trace.matches[number]
        skip = self.trace.pattern.skip
        name = " ".join(part for part in (skip.kind.value, skip.variable or "") if part)
        return f"the match at {self.clock(match.detected_ms)} covers it (skip {name})"

    # --------------------------------------------------------------------------------------------- one match

    def path(self, run: Run) -> list[tuple[str, str, str, str]]:
        """Each event of a run: time, id, variable, and the values that its condition saw."""
        steps: list[tuple[str, str, str, str]] = []
        for step in run.taken():
            assert step.parent is not None, "a run that has taken an event came from another"
            event, name = self.trace.events[step.row], self._positions[step.position].variable
            bound = self._conditions.bound(step.parent)
            values = merged(pair for part in self._parts[name] for pair in operands(part, event.fields, bound))
            shown = ", ".join(f"{text} = {value}" for text, value in values)
            steps.append((self.clock(event.time_ms), event.event_id, name, shown))
        return steps

    def measures(self, run: Run, *, is_timeout: bool = False) -> list[tuple[str, str]]:
        """Return the values that a match, or the time-out, of this run emits."""
        last, bound = self.trace.events[run.row].fields, self._conditions.bound(run)
        measures = (self.trace.pattern.timeout_measures or ()) if is_timeout else self.trace.pattern.measures
        return [(m.name, show_value(value_of(m.value, last, bound), m.value.type)) for m in measures]


def _progress(run: Run) -> tuple[bool, int, int, bool, int]:
    """Return how far a run has come: a match, then the part of the pattern that it is in, then events; of equal ones
    one that an event did not fit says more, then the latest.
    """
    return bool(run.matches), run.position, run.length, bool(run.misses), run.row


def _shortened(times: list[str]) -> str:
    if len(times) <= _TAKEN_SHOWN_MAX:
        return ", ".join(times)
    return f"{', '.join(times[:2])}, … {times[-1]} ({len(times)} events)"


def _limit(wait: Wait) -> str:
    limits = [b.max_ms for b in wait.bounds if b.max_ms is not None]
    return f" (less than {show_duration(min(limits))})" if limits else ""
