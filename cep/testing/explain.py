"""A trace → lines about the progress of each run and the reason for its end, with the compared values.

    probe 0 s, 20 s, 40 s · then waited for hit
      5 min e00004 is no hit: amount > 500.00 is not true (amount = 400.00)
      the window was over at 10 min

A reader can check a verdict with the printed values: the texts of the two sides of a comparison, read as decimals, are
in the order that the comparison found. Ten digits are printed unless the order needs more:

    amount > avg(tx.amount over previous 30 d) is not true (amount = 1.10, avg(…) = 1.100000000000000033)

Tested by: tests/testing/test_explain.py, tests/testing/test_values.py
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from itertools import groupby

from cep.base.limits import TIME_MS_MAX
from cep.base.schema import Kind
from cep.lang.ir import Binary, Call, Cast, Const, Expr, If, In, Link, Param, Unary
from cep.lang.show import show_duration, show_expr, show_value, written_float
from cep.nfa.positions import Guard, Wait
from cep.nfa.twofold import has_average
from cep.testing.journal import Closing, Conditions, Miss, Run, Trace, Why, parts_of
from cep.testing.values import BoundFields, Fields, Twofold, twofold_sides, value_of

_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_NUMBERS = (Kind.INT, Kind.DECIMAL, Kind.FLOAT)
_FLOAT_DIGITS = 17
# Twofold numbers that differ at all differ within their first thirty digits.
_DIGITS_MAX = 40
_EXACT = Context(prec=2_500)  # a float has at most 767 digits, from 10^308 to 10^-1074


def operands(expr: Expr, event: Fields, bound: BoundFields) -> list[tuple[str, str]]:
    """List the operands of a condition with their values: the sides of its comparisons, or the names in it."""
    return merged(pair for part in _looked_at(expr) for pair in _shown(part, event, bound))


def merged(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Keep one value of each operand: the value with the most digits."""
    longest: dict[str, str] = {}
    for name, value in pairs:
        longest[name] = max(longest.get(name, ""), value, key=len)
    return list(longest.items())


def _shown(part: Expr, event: Fields, bound: BoundFields) -> Iterator[tuple[str, str]]:
    if isinstance(part, Binary):
        sides = (part.left, part.right)
        for side, text in zip(sides, _side_texts(part, event, bound), strict=True):
            if not isinstance(_uncast(side), Const):
                yield show_expr(side), text
        return
    value = value_of(part, event, bound)
    yield show_expr(part), written_float(value) if isinstance(value, float) else show_value(value, part.type)


def _side_texts(expr: Binary, event: Fields, bound: BoundFields) -> tuple[str, str]:
    """Write both sides of a comparison in the shortest form in which the texts, as numbers, compare like the values."""
    short = [_short(_uncast(side), event, bound, digits=10) for side in (expr.left, expr.right)]
    order = _order(expr, event, bound) if expr.left.type.kind in _NUMBERS else None
    if order is None:  # not numbers, or a null
        return short[0], short[1]
    forms = [short] if not has_average(expr) else []  # an average is compared with all of its digits
    forms += [
        [_short(_uncast(side), event, bound, digits=_FLOAT_DIGITS) for side in (expr.left, expr.right)],
        [_short(side, event, bound, digits=_FLOAT_DIGITS) for side in (expr.left, expr.right)],  # as converted
    ]
    for first, second in forms:  # from short to long
        if _text_order(first, second) == order:
            return first, second
    return _long_texts(expr, event, bound, order)


def _short(side: Expr, event: Fields, bound: BoundFields, digits: int) -> str:
    value = value_of(side, event, bound)
    if isinstance(side, Const):
        return show_expr(side)
    return repr(value) if isinstance(value, float) and digits > 10 else show_value(value, side.type)


def _order(expr: Binary, event: Fields, bound: BoundFields) -> int | None:
    """Return -1, 0 or 1 as the comparison orders its sides; None with a null or NaN."""
    forms = (-1, replace(expr, op="<")), (0, replace(expr, op="==")), (1, replace(expr, op=">"))
    return next((order for order, form in forms if value_of(form, event, bound) is True), None)


def _text_order(first: str, second: str) -> int | None:
    number, other = Decimal(first), Decimal(second)
    return None if number.is_nan() or other.is_nan() else (number > other) - (number < other)


def _long_texts(expr: Binary, event: Fields, bound: BoundFields, order: int) -> tuple[str, str]:
    """Write the sides of a comparison with an average, whose exact values a float does not show."""
    sides = twofold_sides(expr, event, bound)
    if order == 0:
        text = _common_text(expr, sides, event, bound)
        return text, text
    for digits in range(_FLOAT_DIGITS, _DIGITS_MAX):
        first, second = (_rounded(side, digits) for side in sides)
        if _text_order(first, second) == order:
            return first, second
    raise AssertionError("sides that differ have different digits")


def _common_text(expr: Binary, sides: tuple[Twofold, Twofold], event: Fields, bound: BoundFields) -> str:
    """Write two sides that are equal within the error of their arithmetic."""
    for side in (_uncast(expr.left), _uncast(expr.right)):
        if isinstance(side, Const) or not side.type.is_float:
            return _short(side, event, bound, digits=_FLOAT_DIGITS)
    for digits in range(_FLOAT_DIGITS, 0, -1):
        first, second = (_rounded(side, digits) for side in sides)
        if _text_order(first, second) == 0:
            return first
    return min((_rounded(side, _FLOAT_DIGITS) for side in sides), key=len)


def _rounded(side: Twofold, digits: int) -> str:
    """Write high + low with so many digits."""
    exact = _EXACT.add(Decimal(side.high), Decimal(side.low))
    return str(Context(prec=digits).plus(exact).normalize())


def _looked_at(expr: Expr) -> list[Expr]:
    """List the parts of a condition whose values explain its outcome: comparisons, and values outside of them."""
    match expr:
        case Const() | Param():
            return []  # the text of the condition shows the value
        case Cast():
            return _looked_at(expr.argument)
        case Binary() if expr.op in _COMPARISONS:
            return [expr]
        case Binary():
            return [*_looked_at(expr.left), *_looked_at(expr.right)]
        case Unary():
            return _looked_at(expr.argument)
        case In():
            return [_uncast(expr.argument)]  # without the list, which the condition's text shows
        case If():
            return [p for part in (expr.condition, expr.then, expr.otherwise) for p in _looked_at(part)]
        case Call():
            return [p for argument in expr.arguments for p in _looked_at(argument)]
        case _:
            return [expr]


def _uncast(expr: Expr) -> Expr:
    return expr.argument if isinstance(expr, Cast) else expr


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

    def furthest(self) -> list[RunStory]:
        """Tell every start by its descendant that came furthest; the furthest first."""
        stories = map(self.end, self.trace.start.children)
        return sorted(stories, key=lambda story: _progress(story.run), reverse=True)

    def end(self, start: Run) -> RunStory:
        """Tell one start by its descendant that came furthest."""
        return self.story(max(start.descendants(), key=_progress))

    def lines(self, runs_max: int = _RUNS_SHOWN_MAX) -> list[str]:
        """Explain in a few lines how far the furthest runs came (a story for each), or why no run started."""
        stories = self.furthest()
        if not stories:
            return self.not_started()
        if any(not story.reasons for story in stories):  # a story without reasons tells of a match
            # Leave out the runs that the match has ended, because the `skip` clause forbids overlapping matches.
            stories = [s for s in stories if all(c.why is not Why.SKIP for c in s.run.closings)]
        text: list[str] = []
        for story in stories[:runs_max]:
            text += [story.reached, *(f"  {reason}" for reason in story.reasons)]
        more = len(stories) - runs_max
        return [*text, f"and {more} more run{'' if more == 1 else 's'} that came less far"] if more > 0 else text

    def not_started(self) -> list[str]:
        if not self.trace.events:
            return ["no events"]
        misses = sorted(self.trace.start.misses.values(), key=lambda miss: len(miss.failed))
        if not misses:
            types = ", ".join(sorted({v.event_type for v in self.trace.pattern.variables}))
            return [f"no run started: no event is a {types}"]
        return ["no run started", *(f"  {line}" for line in self.miss(self.trace.start, misses[0]))]

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
        groups = groupby(run.taken(), lambda step: self._positions[step.position].variable)
        times = ((name, [self.clock(self.trace.events[step.row].time_ms) for step in steps]) for name, steps in groups)
        return " → ".join(f"{name} {_shortened(of_variable)}" for name, of_variable in times)

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
        """Yield the reasons why a run did not continue. A wait (a possible next step) needs more loop events,
        an event did not fit it, it is still open, or it ended."""
        waits = self._positions[run.position].waits
        count = run.counts.get(run.position, 0)
        closings = {c.wait: c for c in run.closings}
        for wait in waits:
            if self._positions[run.position].loops and count < wait.counted[0]:  # the loop's minimum
                variable = self._positions[run.position].variable
                yield f"{self._name(wait)} is waited for after {wait.counted[0]} {variable}, there were {count}"
        for index in sorted(run.opened, key=lambda i: waits[i].target == run.position):  # the loop itself comes last
            if index in run.misses:
                yield from self.miss(run, run.misses[index])
        for index in run.opened:
            if index not in closings:
                yield self._open(run, waits[index])
            elif closings[index].why not in (Why.TAKEN, Why.CERTAIN):  # these two are successes
                yield from self._why_closed(run, closings[index])

    def _open(self, run: Run, wait: Wait) -> str:
        """Say why a wait is open at the end of the events."""
        if wait.target is not None:
            return "nothing more came"
        moment = f", which it would be at {self.clock(run.expiry_ms)}" if run.expiry_ms < TIME_MS_MAX else ""
        return f"the events end before `{self._name(wait)}` is certain{moment}"

    def miss(self, run: Run, miss: Miss) -> list[str]:
        """Say why an event does not match a wait (a possible next step): failed conditions, or a true `until`."""
        wait = self._positions[run.position].waits[miss.wait]
        assert wait.target is not None, "only a wait that takes can miss"
        variable, event = self._positions[wait.target].variable, self.trace.events[miss.row]
        head = f"{self.clock(event.time_ms)} {event.event_id} is no {variable}: "
        parts = self._parts[variable]
        if len(miss.failed) == len(parts) > 1:  # all have failed: show only the compared values
            return [head + self._values(parts, run, miss.row)]
        if miss.stopped and not miss.failed:
            assert wait.untils, "only `until` stops"
            bound = self._conditions.bound(run)
            stops = [until for until in wait.untils if value_of(until, event.fields, bound) is True]
            judged = " and ".join(self._judged(until, run, miss.row, outcome="is true") for until in stops)
            return [head + f"it stops the loop, {judged}"]
        return [head + self._judged(parts[i], run, miss.row) for i in miss.failed]

    def _judged(self, part: Expr, run: Run, row: int, outcome: str = "") -> str:
        """Show a condition with its outcome and the values that it saw."""
        value = value_of(part, self.trace.events[row].fields, self._conditions.bound(run))
        outcome = outcome or ("is not known" if value is None else "is not true")
        values = self._values((part,), run, row)
        return f"{show_expr(part)} {outcome}" + (f" ({values})" if values else "")

    def _values(self, parts: Iterable[Expr], run: Run, row: int) -> str:
        """Write the operands of conditions with the values that a run saw at an event."""
        fields, bound = self.trace.events[row].fields, self._conditions.bound(run)
        pairs = merged(pair for part in parts for pair in operands(part, fields, bound))
        return ", ".join(f"{name} = {value}" for name, value in pairs)

    def _why_closed(self, run: Run, closing: Closing) -> Iterator[str]:
        """Yield the reasons why a wait (a possible next step of the run) ended."""
        wait = self._positions[run.position].waits[closing.wait]
        clock = self.clock(closing.at_ms)
        event = "" if closing.row is None else self.trace.events[closing.row].event_id
        name = self._name(wait)
        match closing.why:
            case Why.CONDITION:
                which = "" if closing.wait in run.misses else f", which was {event} at {clock}"  # a miss shows it
                yield f"{name} had to be the very next event{which}"
            case Why.BETWEEN:
                yield f"{event} came between at {clock}: {name} had to be the very next event"
            case Why.LATE:
                yield f"the time for the step to {name} was up at {clock}{_limit(wait)}"
                yield from self._too_late(run, closing)
            case Why.ABSENCE:
                guard = closing.guard
                assert isinstance(guard, Guard), "a guard closed it"
                assert guard.variable is not None, "an absence is of a variable"
                assert closing.row is not None, "an event closed it"
                shown = self._values(self._parts[guard.variable], run, closing.row)
                yield f"{event} at {clock} is {guard.variable}, which must not come" + (f" ({shown})" if shown else "")
            case Why.GREEDY:
                assert closing.guard is not None, "a guard closed it"
                yield f"{event} at {clock} is another {closing.guard.variable}, and the loop is greedy: no {name} yet"
            case Why.STOP:
                yield f"{event} at {clock} stopped the loop"
            case Why.SKIP:
                yield self._covered_by(closing.match)
            case Why.WITHIN:
                within = self.trace.pattern.within_ms
                shown = f" (within {show_duration(within)})" if isinstance(within, int) else ""
                yield f"the window was over at {clock}{shown}"
                yield from self._too_late(run, closing)
            case Why.EVENTS:
                yield f"the window of {self.trace.pattern.within_events} events was over at {clock}"

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

    def _covered_by(self, number: int | None) -> str:
        assert number is not None, "a match covers it"
        match = self.trace.matches[number]
        skip = self.trace.pattern.skip
        name = " ".join(part for part in (skip.kind.value, skip.variable or "") if part)
        return f"the match at {self.clock(match.detected_ms)} covers it (skip {name})"

    def path(self, run: Run) -> list[tuple[str, str, str, str]]:
        """Each event of a run: time, id, variable, and the values that its condition saw."""
        steps: list[tuple[str, str, str, str]] = []
        for step in run.taken():
            assert step.parent is not None, "a run that has taken an event came from another"
            event, name = self.trace.events[step.row], self._positions[step.position].variable
            shown = self._values(self._parts[name], step.parent, step.row)
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
