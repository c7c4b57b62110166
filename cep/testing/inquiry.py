"""A rule, a key's events, and a question → the reason for an alert, or for its absence.

Answers come from traces of the versions in force, each in its interval. If nothing matches, the trace is repeated as if
the rule had always been in force: a match that appears only then was missed because of the interval. The engine and the
policies of suppression (rulebook/suppression.py) are the same as in every runner, so the answer equals a replay.
Tested by: tests/testing/test_explain.py, tests/cli/test_why.py
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cep.base.errors import LimitError
from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import Schema
from cep.columnar.batch import EventBatch
from cep.columnar.decode import KeyDomain
from cep.engine.advance import advance
from cep.engine.alerts import alert_table
from cep.lang.show import show_time
from cep.lists.store import Lists
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.rulebook.deploy import Deployment
from cep.rulebook.suppression import EXCLUDED, SHADOW, SNOOZED, SUPPRESSED, Policies, suppress_alerts
from cep.testing.events import past_values, traced_events
from cep.testing.explain import Explainer, RunStory
from cep.testing.journal import Run, Trace, TracedMatch
from cep.testing.trace import ALWAYS, Interval, trace_key

_STORIES_MAX = 3
_EVENTS_MAX = 5


@dataclass(frozen=True, slots=True)
class MatchPath:
    """A match: its version; for each event time, id, variable and compared values; and its measures."""

    version: int
    detected: str
    steps: tuple[tuple[str, str, str, str], ...]
    measures: tuple[tuple[str, str], ...]
    is_timeout: bool = False


@dataclass(slots=True)
class Answer:
    """The `matches`; `reasons` explain why there are none, or no more, each a headline with details."""

    matches: list[MatchPath] = field(default_factory=list)
    reasons: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class World:
    """The event types, the versions of the lists that rules ask, and the watermark at the end of the events."""

    schema: Schema
    lists: Lists = field(default_factory=dict)
    end_ms: int = TIME_MS_MAX


def why(
    world: World, rule: DeployedRule, batch: EventBatch, event_ids: Sequence[str], *, is_timeout: bool = False
) -> Answer:
    """Explain a match: find the match or time-out that binds these events in this order. Without such a match, explain
    how far the runs of the first event came."""
    explainer = _explainer(world, rule, batch, None)
    trace = explainer.trace
    bound_ids = tuple(event_ids)
    for match in trace.emitted():
        ids = tuple(trace.events[row].event_id for row in match.run.rows())
        if ids == bound_ids and (match.is_timeout if is_timeout else match.is_match):
            return Answer(matches=[_path(rule, explainer, match, is_timeout=is_timeout)])
    answer = Answer()
    starts = [r for r in trace.start.children if bound_ids and trace.events[r.row].event_id == bound_ids[0]]
    if not starts:
        answer.reasons.append(
            (f"no run starts with {bound_ids[0] if bound_ids else 'nothing'}", tuple(explainer.not_started()))
        )
    answer.reasons += [_reason(explainer.end(start)) for start in starts[:_STORIES_MAX]]
    return answer


def why_not(
    world: World, versions: Sequence[DeployedRule], batch: EventBatch, at_ms: int | None,
    late: frozenset[str] = frozenset(),
) -> Answer:  # fmt: skip
    """Explain why no version of a rule has a match, around `at_ms` if it is given. If one has, return the match, and
    why other runs have none. `world` has event types and lists, `versions` is not empty, `late` are the ids of events
    that came after the watermark, so that they were not matched."""
    answer = Answer()
    if not len(batch):
        answer.reasons.append(("the key has no events", ()))
        return answer
    all_events, is_late = batch, np.isin(np.array(batch.event_id.to_pylist(), object), list(late))
    batch = batch.take(~is_late)
    explainers = [(rule, _explainer(world, rule, batch, at_ms)) for rule in versions]
    for rule, explainer in explainers:
        answer.matches += [_path(rule, explainer, match) for match in _matches_at(explainer, at_ms)]
    if answer.matches:
        for _, explainer in explainers:
            answer.reasons += _without_a_match(explainer, at_ms)
        return answer
    if is_late.any():
        answer.reasons += _late_events(world, versions, all_events, at_ms, late)
    for rule, explainer in explainers:
        if _interval(rule) != ALWAYS:
            answer.reasons += _outside(world, rule, batch, at_ms)
        answer.reasons += _explain_runs(explainer, at_ms)
    return answer


def _explainer(
    world: World, rule: DeployedRule, batch: EventBatch, at_ms: int | None, interval: Interval | None = None
) -> Explainer:
    """Trace a key's runs. If that takes too many steps, trace only the events less than two windows from `at_ms`."""
    pattern = rule.pattern
    past = past_values(world.schema, pattern, batch, world.lists)  # from all events: `part` lacks some of the past

    def traced(part: EventBatch) -> Explainer:
        events = next(iter(traced_events(world.schema, pattern, part, past).values()), ())  # all are of one key
        return Explainer(trace_key(pattern, events, interval or _interval(rule), world.end_ms), show_time)

    try:
        return traced(batch)
    except LimitError:
        if at_ms is None or not isinstance(pattern.within_ms, int):
            raise
    return traced(batch.take(abs(batch.time_ms - at_ms) < 2 * pattern.within_ms))


def _interval(rule: DeployedRule) -> Interval:
    return Interval(rule.from_ms, rule.starts_until_ms, rule.until_ms)


def _matches_at(explainer: Explainer, at_ms: int | None) -> list[TracedMatch]:
    trace = explainer.trace
    return [m for m in trace.emitted() if m.is_match and _concerns(trace, m.run, m.detected_ms, at_ms)]


def _steps(explainer: Explainer, match: TracedMatch) -> list[str]:
    return [f"{time} {event_id} {name}" for time, event_id, name, _ in explainer.path(match.run)]


def _path(rule: DeployedRule, explainer: Explainer, match: TracedMatch, *, is_timeout: bool = False) -> MatchPath:
    steps, measures = explainer.path(match.run), explainer.measures(match.run, is_timeout=is_timeout)
    return MatchPath(rule.version, show_time(match.detected_ms), tuple(steps), tuple(measures), is_timeout)


def _concerns(trace: Trace, run: Run, until_ms: int, at_ms: int | None) -> bool:
    """Return True if a run was open at a time."""
    return at_ms is None or trace.events[run.start_row].time_ms <= at_ms <= until_ms


def _late_events(
    world: World, versions: Sequence[DeployedRule], all_events: EventBatch, at_ms: int | None, late_ids: frozenset[str]
) -> list[tuple[str, tuple[str, ...]]]:
    """List the late events, and the first match that they would have completed in time: pairs of a title and lines."""
    events = [
        (int(time_ms), event_id)
        for time_ms, event_id in zip(all_events.time_ms, all_events.event_id.to_pylist(), strict=True)
        if event_id in late_ids
    ]
    lines = [f"{show_time(time_ms)} {event_id}" for time_ms, event_id in sorted(events)]
    more = [f"and {len(lines) - _EVENTS_MAX} more"] if len(lines) > _EVENTS_MAX else []
    head = f"{len(lines)} event{'' if len(lines) == 1 else 's'} came behind the watermark, too late to be matched"
    reasons = [(head, (*lines[:_EVENTS_MAX], *more))]
    for rule in versions:
        explainer = _explainer(world, rule, all_events, at_ms)  # as if the late events had been in time
        if missed := _matches_at(explainer, at_ms):
            head = f"in time, version {rule.version} would have matched:"
            return [*reasons, (head, tuple(_steps(explainer, missed[0])))]
    return reasons


def _outside(
    world: World, rule: DeployedRule, batch: EventBatch, at_ms: int | None
) -> list[tuple[str, tuple[str, ...]]]:
    """Find a match that this version would have had if it had always been in force."""
    explainer = _explainer(world, rule, batch, at_ms, ALWAYS)
    missed = _matches_at(explainer, at_ms)
    if not missed:
        return []
    start_ms = explainer.trace.events[missed[0].run.start_row].time_ms
    if start_ms < rule.from_ms:
        head = f"version {rule.version} was not yet in force: it begins at {show_time(rule.from_ms)}"
    elif start_ms >= rule.starts_until_ms:
        head = f"version {rule.version} was no longer in force: it ended at {show_time(rule.starts_until_ms)}"
    else:
        head = f"version {rule.version} ended at {show_time(rule.until_ms)}, before the match was complete"
    return [(head, ("it would have matched:", *_steps(explainer, missed[0])))]


def _explain_runs(explainer: Explainer, at_ms: int | None) -> list[tuple[str, tuple[str, ...]]]:
    """Explain how the furthest runs ended, or the runs open at `at_ms` if it is given: a title and lines for each."""
    trace = explainer.trace
    stories = explainer.furthest()
    if at_ms is not None:
        stories = [s for s in stories if _concerns(trace, s.run, _ended_ms(trace, s.run), at_ms)]
    reasons = [_reason(story) for story in stories[:_STORIES_MAX]]
    if at_ms is not None:
        reasons += _events_at(explainer, at_ms)  # events of that time that began no run
    if not reasons and at_ms is not None:
        return [(f"no run was alive at {show_time(at_ms)}, and no event is of that time", ())]
    if not reasons:
        lines = explainer.not_started()
        return [(lines[0], tuple(line.strip() for line in lines[1:]))]
    return reasons


def _without_a_match(explainer: Explainer, at_ms: int | None) -> list[tuple[str, tuple[str, ...]]]:
    """For a match, describe the runs that began at that time and ended without a match: often the match covers them."""
    trace = explainer.trace
    starts = [run for run in trace.start.children if trace.events[run.row].time_ms == at_ms]
    stories = [explainer.end(run) for run in starts[:_STORIES_MAX]]
    return [_reason(story) for story in stories if story.reasons]


def _events_at(explainer: Explainer, at_ms: int) -> list[tuple[str, tuple[str, ...]]]:
    """Say for each event of that very time why it began nothing, unless it did."""
    trace = explainer.trace
    begun = {run.row for run in trace.start.children}
    reasons: list[tuple[str, tuple[str, ...]]] = []
    for event in [e for e in trace.events if e.time_ms == at_ms and e.row not in begun][:_EVENTS_MAX]:
        at_start = [(run, miss) for run, miss in trace.misses.get(event.row, ()) if run is trace.start]
        lines = tuple(line for run, miss in at_start[:_STORIES_MAX] for line in explainer.miss(run, miss))
        if lines:
            reasons.append((f"{event.event_id} began no run", lines))
    return reasons


def _ended_ms(trace: Trace, run: Run) -> int:
    """When the last wait of a run was over; for ever if one is still open."""
    if run.open:
        return TIME_MS_MAX
    return max((c.at_ms for c in run.closings), default=trace.events[run.row].time_ms if run.row >= 0 else TIME_MS_MIN)


def _reason(story: RunStory) -> tuple[str, tuple[str, ...]]:
    return story.reached, story.reasons


_WORDS = {
    SHADOW: "the version is in shadow: what it finds is recorded and alerts nobody",
    SNOOZED: "the rule was snoozed at that time",
    EXCLUDED: "another rule of its exclusive group fired on the same event",
    SUPPRESSED: "the rule had alerted on this key less than its `suppress` before",
}


def suppression_reasons(
    deployment: Deployment, domain: KeyDomain, batch: EventBatch, late: frozenset[str] = frozenset(),
    end_ms: int = TIME_MS_MAX,
) -> dict[tuple[str, int, tuple[str, ...]], str]:  # fmt: skip
    """Match the events of a key again. Return why each suppressed alert was suppressed, by rule, version and event ids.
    `late` are the ids of events that were not matched; `end_ms` is the watermark at the end of the events."""
    batch = batch.take(~np.isin(np.array(batch.event_id.to_pylist(), object), list(late)))
    rules = deployment.rulebook.domains().get(domain, ())
    if not rules or not len(batch):
        return {}
    program = replace(compile_rules(deployment.schema, domain, rules), lists=deployment.rulebook.lists.timelines())
    alerts = alert_table(program, advance(program, None, batch, end_ms, is_end=True).matches)
    suppression = suppress_alerts(alerts, Policies.of(deployment.rulebook), {})
    return {
        (a["rule_id"], a["version"], tuple(event["event_id"] for event in a["events"])): _WORDS[reason]
        for a, reason in zip(suppression.suppressed.to_pylist(), suppression.reasons, strict=True)
        if a["kind"] == "match"
    }
