"""Checked patterns → their execution as a plan or as text: the automaton, shared conditions, and the cost per key.

The costs are estimates for a busy key, one with `events` events in the pattern's window. They show which of two ways to
write a pattern is cheaper; the benchmarks measure real costs. CEP706 (too much keyed state) is not among the lints of
the language, because the estimate needs the compiled form.
Tested by: tests/report/test_report.py
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cep.base.limits import (
    DISTINCT_HASHES_MAX,
    HISTORY_PANES,
    PLAN_EVENTS_PER_KEY,
    RUNS_PER_KEY_MAX,
    STATE_BYTES_PER_KEY_BUDGET,
)
from cep.base.schema import Schema
from cep.histories.store import tally_width
from cep.lang.check.bind import bind
from cep.lang.diagnostics import Diagnostic, Severity
from cep.lang.ir import Expr, Inner, Link, PatternIR
from cep.lang.load import Checked
from cep.lang.show import show_duration, show_expr
from cep.lang.walk import nodes
from cep.nfa.compile import compile_rules, problems
from cep.nfa.deployed import DeployedRule
from cep.nfa.histories import HistoryPlan
from cep.nfa.positions import Automaton, Bound, Guard, Position, Wait, build
from cep.nfa.simplify import Facts, conjuncts, needs_run

_SLOT_BYTES = 8
# In addition to its registers a stored run has its rule, and an event its id and times.
_EVENT_FIXED_SLOTS = 6
# The key's number, type, time and span of a past event in a segment.
_PAST_FIXED_BYTES = 15
# The same of a pane, a bucket and how many events are in it; a hash and a 1 are half as much again.
PANE_ROW_BYTES = _PAST_FIXED_BYTES + _SLOT_BYTES
# A percentile has two counts, and about this many values around its rank with their key numbers (numbers/bands.py).
_BAND_BYTES = 2 * _SLOT_BYTES + 25 * (_SLOT_BYTES + 4)
# A hash stays in its newest pane and in the window's least: about k · (1 + ln 65) rows. Values between 1 and 1 000 are
# in 500 buckets.
_PANE_ROWS_MAX = {
    "approx_distinct": round(DISTINCT_HASHES_MAX * (1 + math.log(HISTORY_PANES + 1))),
    "approx_percentile": 500 * (HISTORY_PANES + 1),
}


@dataclass(frozen=True, slots=True)
class VariablePlan:
    """The condition of a variable, split into the terms that read only the event and the terms that need the run."""

    name: str
    event_type: str
    on_event: tuple[Expr, ...]
    with_run: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class PastPlan:
    """The estimated stored past of a key with many events. `events` of `event_bytes` each are stored for windows.
    `pinned` counts further events, each of which can be a result by itself, such as a `last(…)`. `tallies` (running
    counts or sums) replace events. `carried_bytes` is the size of the tallies, and of the stored values around medians.
    `pane_rows` counts rows of panes, which are aggregates of a time slice for approximate functions."""

    events: int
    event_bytes: int
    pinned: int
    tallies: int
    carried_bytes: int
    pane_rows: int

    @property
    def state_bytes(self) -> int:
        events = (self.events + self.pinned) * self.event_bytes
        return events + self.carried_bytes + self.pane_rows * PANE_ROW_BYTES


@dataclass(frozen=True, slots=True)
class PatternPlan:
    """The estimated cost of one pattern."""

    pattern: PatternIR
    automaton: Automaton
    variables: tuple[VariablePlan, ...]
    branches: bool  # one event can turn one run into two: with it and without it
    run_bytes: int
    event_bytes: int
    runs_max: int
    events: int  # in the window of a busy key: one with many events.
    instructions_event: int  # to evaluate conditions on the event alone, once for each event.
    instructions_run: int  # conditions that compare an event with a run, for each event and each run.
    past: PastPlan | None = None  # the stored past of a busy key, if the pattern has histories such as `count(…)`

    @property
    def state_bytes(self) -> int:
        """Estimated bytes of keyed state of a busy key, histories included."""
        past = 0 if self.past is None else self.past.state_bytes
        return self.runs_max * self.run_bytes + self.events * self.event_bytes + past

    @property
    def cost_class(self) -> str:
        """Return the cost of one more event of a key, in words."""
        if self.branches:
            return "runs: each event may double the runs of the key, up to their limit"
        if self.instructions_run:  # a condition compares the event with events of the run
            return "runs × condition: each event that passes its own conditions is compared with every run of the key"
        return "runs: each event that passes its conditions is offered to every run of the key"


@dataclass(frozen=True, slots=True)
class Plan:
    """The patterns of a file set; `shared` has the conditions that several variables use, with `pattern.variable`."""

    patterns: tuple[PatternPlan, ...]
    shared: tuple[tuple[str, tuple[str, ...]], ...]
    conditions_written: int
    conditions_evaluated: int
    refused: tuple[tuple[str, str], ...]


def plan(
    patterns: Iterable[PatternIR],
    schema: Schema,
    arguments: Mapping[str, object],
    events: int = PLAN_EVENTS_PER_KEY,
) -> Plan:
    """Estimate the cost of patterns for a busy key with `events` events. `arguments` set their parameters by name. A
    pattern that cannot be bound or compiled is in `refused` with the reason."""
    planned_patterns: list[PatternPlan] = []
    refused: list[tuple[str, str]] = []
    for pattern in patterns:
        names = {p.name for p in pattern.params}
        bound, mistakes = bind(pattern, {n: v for n, v in arguments.items() if n in names})
        reasons = [mistake.message for mistake in mistakes] if bound is None else problems(bound, schema)
        if bound is None or reasons:
            refused.append((pattern.name, "; ".join(reasons)))
        else:
            planned_patterns.append(_pattern_plan(bound, schema, events))
    users: dict[Expr, list[str]] = {}
    for planned in planned_patterns:
        for variable in planned.variables:
            for condition in variable.on_event:
                users.setdefault(condition, []).append(f"{planned.pattern.name}.{variable.name}")
    shared = tuple((show_expr(condition), tuple(names)) for condition, names in users.items() if len(names) > 1)
    written = sum(len(names) for names in users.values())
    return Plan(tuple(planned_patterns), shared, written, conditions_evaluated=len(users), refused=tuple(refused))


def _pattern_plan(bound: PatternIR, schema: Schema, events: int) -> PatternPlan:
    """Estimate the cost of a pattern for a key with `events` events in its window, and the past that it must store."""
    automaton = build(bound.structure)
    program = compile_rules(schema, bound.key, (DeployedRule("plan", 1, 0, "", bound),))
    branches, variables = _branches(automaton, bound), _variables(bound, schema)
    runs = min(events, bound.within_events) if isinstance(bound.within_events, int) else events
    if branches:
        # Each event may be taken or not, so n events may lead to 2^n runs: mostly more than the limit.
        runs = RUNS_PER_KEY_MAX if events >= RUNS_PER_KEY_MAX.bit_length() else 2**events
    retained = sum(1 for column in program.columns if column.retained)  # fields that are stored with an event
    return PatternPlan(
        pattern=bound,
        automaton=automaton,
        variables=variables,
        branches=branches,
        run_bytes=_SLOT_BYTES * program.width,
        event_bytes=_SLOT_BYTES * (_EVENT_FIXED_SLOTS + retained),
        runs_max=min(runs, RUNS_PER_KEY_MAX),
        events=events,
        instructions_event=len(program.vector.code),  # evaluated over columns, before runs
        instructions_run=sum(len(v.with_run) for v in variables),  # they compare with a run's events
        past=_past_plan(program.histories, events),
    )


def _past_plan(histories: HistoryPlan | None, events: int) -> PastPlan | None:
    """Estimate the stored past of a key with `events` events in its window, as its histories (such as `count(…)`) need
    it: events; tallies (running sums); bands (the stored values around a median); panes (aggregates of a time slice);
    and single events, such as a `last(…)`, which are pinned (kept apart)."""
    if histories is None or not histories.histories:
        return None
    by_event = [h for h in histories.histories if not h.is_single and not h.is_approximate]  # they need all events
    tallies, bands = {h.tally for h in by_event if h.tally}, {h.band for h in by_event if h.ranked}  # ranked: medians
    pane_rows_max = [_PANE_ROWS_MAX[h.expr.fn] for h in histories.panes.values() if h.is_approximate]
    return PastPlan(
        events=min(events, histories.events_max) if by_event else 0,
        event_bytes=_PAST_FIXED_BYTES + _SLOT_BYTES * len(histories.stored_columns),
        pinned=sum(1 for h in histories.histories if h.is_single),
        tallies=len(tallies),
        carried_bytes=_SLOT_BYTES * sum(map(tally_width, tallies)) + _BAND_BYTES * len(bands),
        pane_rows=sum(min(events, rows_max) for rows_max in pane_rows_max),
    )


def _branches(automaton: Automaton, pattern: PatternIR) -> bool:
    """Can a run go on both with an event and without it? The start always can, that only starts a run."""
    waits = [w for position in automaton.positions[1:] for w in position.waits]
    return any(w.link is Link.FOLLOWED_BY_ANY for w in waits) or any(
        node is Inner.ANY for node in (getattr(n, "inner", None) for n in nodes(pattern.structure))
    )


def _variables(bound: PatternIR, schema: Schema) -> tuple[VariablePlan, ...]:
    everything = frozenset(v.name for v in bound.variables)
    facts = Facts(frozenset(), everything, schema.never_null)
    variables: list[VariablePlan] = []
    for variable in bound.variables:
        parts = conjuncts(variable.where, facts)
        on_event, with_run = (tuple(p for p in parts if needs_run(p) == needs) for needs in (False, True))
        variables.append(VariablePlan(variable.name, variable.event_type, on_event, with_run))
    return tuple(variables)


_LINKS = {Link.NEXT: "directly after", Link.FOLLOWED_BY: "the next that fits", Link.FOLLOWED_BY_ANY: "every that fits"}


def plan_text(plan: Plan) -> str:
    """Write a plan as text."""
    parts = [_pattern_lines(planned) for planned in plan.patterns]
    parts += [f"pattern {name}\n  cannot be compiled: {reason}\n" for name, reason in plan.refused]
    shared = [f"  {text}\n      {', '.join(users)}" for text, users in plan.shared]
    if plan.patterns:
        line = (
            f"conditions on the event alone: {plan.conditions_written} written, {plan.conditions_evaluated} evaluated "
            "once for each event"
        )
        parts.append("\n".join([line, *(["shared:"] if shared else []), *shared]) + "\n")
    return "\n".join(parts)


def size_text(size: int) -> str:
    """Bytes for people."""
    for unit, factor in (("MB", 1_000_000), ("kB", 1_000)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def state_name(automaton: Automaton, number: int) -> str:
    """`2 hit`; two positions of one variable have different numbers."""
    return f"{number} {automaton.positions[number].variable or 'start'}"


def wait_text(wait: Wait) -> str:
    """Describe a wait (one way in which a run may go on) as the label of an arrow: how the event must follow, how often
    it repeats, bounds of time, guards (events that close the wait). Without a target, the wait is for an absence."""
    if wait.target is None:  # an absence: the match is complete if a forbidden event has not come
        parts = ["directly after" if wait.link is Link.NEXT else "when the window closes"]
    else:
        parts = [_LINKS[wait.link]] if wait.link is not None else []
    low, high = wait.counted  # the wait is open if low <= the count of its loop < high
    if low > 1 or high is not None:
        parts.append(_counted(low, high))
    parts += [_bound(bound) for bound in wait.bounds]
    parts += [_guard(guard) for guard in wait.guards]
    parts.extend(f"not when {show_expr(until)}" for until in wait.untils)  # conditions of events that stop a loop
    return ", ".join(parts)


def _counted(low: int, high: int | None) -> str:
    if high is None:
        return f"taken {low} times or more"
    return f"taken {low} times" if high == low + 1 else f"taken {low} to {high - 1} times"


def _bound(bound: Bound) -> str:
    high = "…" if bound.max_ms is None else show_duration(bound.max_ms)
    since = "the last event" if bound.group is None else "the group's first event"
    return f"{show_duration(bound.min_ms)} ≤ time since {since} < {high}"


def _guard(guard: Guard) -> str:
    subject = guard.variable or "an event"
    condition = f" with {show_expr(guard.condition)}" if guard.condition is not None else ""
    in_time = "".join(f" at {_bound(bound)}" for bound in guard.bounds)
    if guard.moment == "greedy":
        return f"unless {subject} can take it{condition}{in_time}"
    return f"unless {subject}{condition} comes {'directly after' if guard.moment == 'next' else 'first'}{in_time}"


def _position(automaton: Automaton, number: int, position: Position) -> list[str]:
    words = [state_name(automaton, number)]
    if position.loops:
        words.append("(repeats)")
    if position.accepts:
        words.append("◉ complete" + (f" from {position.accept_min} on" if position.accept_min > 1 else ""))
    lines = ["    " + " ".join(words)]
    for wait in position.waits:
        target = "◉ complete" if wait.target is None else state_name(automaton, wait.target)
        lines.append(f"      → {target:<12} {wait_text(wait)}".rstrip())
    return lines


def _pattern_lines(planned: PatternPlan) -> str:
    """Write the plan of one pattern: its automaton, its conditions, and its cost for a busy key. The key's past has
    events, tallies (sums that replace events), pinned single events (each may be a result), and panes (aggregates)."""
    pattern, automaton = planned.pattern, planned.automaton
    lines = [f"pattern {pattern.name} by {', '.join(pattern.key)}"]
    lines += [f"  {line}" for line in pattern.doc.splitlines()]
    if isinstance(pattern.within_ms, int):
        lines.append(f"  within {show_duration(pattern.within_ms)}")
    if pattern.within_events is not None:
        lines.append(f"  within {pattern.within_events} events")
    lines.append(f"  automaton, {len(automaton.positions)} states")
    for number, position in enumerate(automaton.positions):
        lines += _position(automaton, number, position)
    lines.append("  conditions")
    for variable in planned.variables:
        lines.append(f"    {variable.name}: {variable.event_type}")
        lines += [f"      event  {show_expr(part)}" for part in variable.on_event]
        lines += [f"      run    {show_expr(part)}" for part in variable.with_run]
    runs = "one for each event that can start it" if not planned.branches else "may double with each event"
    lines += [
        f"  a busy key ({planned.events} events in the window)",
        f"    runs    {planned.runs_max} ({runs})",
        f"    bytes   {size_text(planned.state_bytes)}: {planned.run_bytes} a run, {planned.event_bytes} an event",
        f"    cost    {planned.instructions_event} instructions an event; {planned.cost_class}",
    ]
    if planned.past is not None:
        past = planned.past
        lines.append(
            f"    past    {size_text(past.state_bytes)} of that: {past.events} events of {past.event_bytes} bytes, "
            f"{past.tallies} carried counts and sums, {past.pinned} single events"
            + (f", {past.pane_rows} rows of panes of {PANE_ROW_BYTES} bytes" if past.pane_rows else "")
        )
    return "\n".join(lines) + "\n"


LARGE_STATE = "CEP706"


def find_large_states(checked: Checked) -> Iterator[Diagnostic]:
    """Find patterns whose keyed state exceeds the budget with the defaults of their parameters."""
    for planned in plan(checked.patterns.values(), checked.schema, {}).patterns:
        if planned.state_bytes <= STATE_BYTES_PER_KEY_BUDGET:
            continue
        name = planned.pattern.name
        message = (
            f"a busy key of `{name}` needs about {size_text(planned.state_bytes)} of keyed state, "
            f"the budget is {size_text(STATE_BYTES_PER_KEY_BUDGET)}"
        )
        span = checked.resolved.patterns[name].span
        help_line = "use `->` where `->>` or `any` is not needed, or bound the repetition"
        yield Diagnostic(LARGE_STATE, message, span, (), help_line, Severity.WARNING)
