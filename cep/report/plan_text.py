"""A plan → text.

Tested by: tests/report/test_plan.py
"""

from __future__ import annotations

from cep.lang.ir import Link
from cep.lang.show import show_duration, show_expr
from cep.nfa.positions import Automaton, Bound, Guard, Position, Wait
from cep.report.plan import PANE_ROW_BYTES, PatternPlan, Plan

_LINKS = {Link.NEXT: "directly after", Link.FOLLOWED_BY: "the next that fits", Link.FOLLOWED_BY_ANY: "every that fits"}


def plan_text(plan: Plan) -> str:
    """Write a plan as text."""
    parts = [_pattern(planned) for planned in plan.patterns]
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
    """Describe after the arrow how a run may continue: the link, counts, bounds and guards of a wait."""
    if wait.target is None:
        parts = ["directly after" if wait.link is Link.NEXT else "when the window closes"]
    else:
        parts = [_LINKS[wait.link]] if wait.link is not None else []
    low, high = wait.counted
    if low > 1 or high is not None:
        parts.append(_counted(low, high))
    parts += [_bound(bound) for bound in wait.bounds]
    parts += [_guard(guard) for guard in wait.guards]
    parts.extend(f"not when {show_expr(until)}" for until in wait.untils)
    return ", ".join(parts)


def _counted(low: int, high: int | None) -> str:
    if high is None:
        return f"taken {low} times or more"
    return f"taken {low} times" if high == low + 1 else f"taken {low} to {high - 1} times"


def _bound(bound: Bound) -> str:
    high = "…" if bound.max_ms is None else show_duration(bound.max_ms)
    since = "the last event" if bound.mark is None else "the group's first event"
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


def _pattern(planned: PatternPlan) -> str:
    """Write the automaton, the conditions and the cost of one pattern."""
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
        lines += [f"      event  {show_expr(part)}" for part in variable.alone]
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
