"""One micro-batch of any job: progress, ports and events → the outcome, and the progress after it.

     1 validate     records → events of each key domain         validate.py
     2 rules        control records change the rulebook         rules.py
     3 times        partitions move the watermark               event_time.py
    ┌4 duplicates   repeated events are left out                duplicates.py
    │5 late         events behind the watermark are set aside   dead_letters.py
    │6 due          events wait until the watermark passes      level.py
    └7 match        pages are read, advanced and written        level.py
     8 forget       expired versions leave the rulebook         rules.py
     9 suppress     the rules suppress some of the alerts       step.py

`step` does 2 to 8, and 4 to 7 once for each level (level.py). The runner calls 1 where it decodes records, and 9 where
all alerts of a micro-batch are together: `cep run` in its engine, Spark in its driver. The same numbers are in
README.md, in comments and in tests. A step does no input or output, reads no clock and starts no thread; the ports may.

Tested by: tests/step/test_step.py, tests/runners/embedded/test_engine.py, tests/runners/spark/test_live.py,
tests/runners/test_output.py.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import orjson
import pyarrow as pa

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.columnar.batch import EventBatch
from cep.columnar.decode import Decoded, concat_decoded, route
from cep.engine.advance import Evicted
from cep.rulebook.suppression import LastAlerts, Policies, Suppression, count_suppressed, suppress_alerts
from cep.sinks.json_form import json_lines
from cep.step import event_time
from cep.step.duplicates import ensure_digests
from cep.step.job import ARRIVAL, Job, add_counts, nonzero
from cep.step.level import LastEvent, LevelTask, last_matched, match_level
from cep.step.marks import NO_MARKS, Marks, remember_marks, with_marks
from cep.step.ports import Events, Ports
from cep.step.rules import InForce, JobRules, NamedRulebook, change_rules, forget_rules, lacks_initial_audit


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a job, or of one of its key groups, between two micro-batches.

    The job has seen all events from `since_ms` on. However, events before `gap_ms` may be missing, if an operator has
    let the job go on without them. `heartbeat_ms` is a heartbeat that does not move the watermark yet, because a
    partition has unread records from before it. `last_event` was matched last: later arrivals of its millisecond must
    follow it."""

    rulebook: NamedRulebook
    watermark_ms: int = TIME_MS_MIN
    times: event_time.PartitionTimes = field(default_factory=dict)
    since_ms: int = TIME_MS_MAX
    heartbeat_ms: int = TIME_MS_MIN
    last_event: LastEvent | None = None
    gap_ms: int = TIME_MS_MIN


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The valid events and control records since the last micro-batch; how far partitions were read, at which clock."""

    events: Events
    controls: tuple[bytes, ...]
    times: event_time.TimesRead


@dataclass(slots=True)
class Outcome:
    """The outcome of a micro-batch.

    progress: the times and rules with which the next one begins. in_force: the rules that matched this one. refused:
    dead letters of refused control records. rule_counters: of all control records. These two are equal for all key
    groups, so only one reports them. events_aside: late events and events with a reused id. produced: events that rules
    emit, for the rules of the next level (order in which rules run). evicted: runs that keys lost to a limit."""

    progress: Progress
    in_force: InForce
    refused: tuple[bytes, ...] = ()
    rule_counters: Counter[str] = field(default_factory=Counter)
    alerts: list[pa.Table] = field(default_factory=list)
    events_aside: list[dict[str, Any]] = field(default_factory=list)
    produced: list[Decoded] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    evicted: list[Evicted] = field(default_factory=list)


def step(progress: Progress, ports: Ports, micro_batch: MicroBatch) -> Outcome:
    """Do one micro-batch. Raises: StateError, StoreError; the job then goes on from its last commit."""
    rules = ports.rules
    # Late events are before the watermark at the start of the micro-batch: matched events are below or at it. The new
    # events move it only afterwards.
    before_ms = progress.watermark_ms
    # 2 rules
    outcome = _begin(progress, ports, micro_batch.controls, micro_batch.times.now_ms)
    # 3 times
    progress = _move_times(rules.job, outcome.progress, micro_batch.times, before_ms)
    # 4 to 7, level by level: a level matches the events that lower levels have produced.
    at_once = rules.job.lateness_ms == 0 and len(progress.times) == 1 and rules.job.order != ARRIVAL
    events = micro_batch.events
    last_event = progress.last_event if at_once else None
    for level in ports.levels:
        # A derived event may have the time of an event that is still to come, and follows it in the order.
        due_ms = event_time.due_before(progress.watermark_ms, at_once=at_once and level == 0)
        task = LevelTask(
            rules.job, level, outcome.in_force.programs[level], outcome.in_force.domains,
            before_ms, progress.watermark_ms, due_ms, max(progress.since_ms, progress.gap_ms),
            last_event if level == 0 else None,
        )  # fmt: skip
        outcome.produced = []
        for matched in ports.spread(level, events, due_ms, partial(match_level, task)):
            outcome.alerts += matched.alerts
            outcome.events_aside += matched.events_aside
            outcome.evicted += matched.evicted
            outcome.produced += matched.produced
            add_counts(outcome.counters, matched.counters)
        if outcome.produced and level + 1 < ports.levels.stop:
            events = _with_produced(rules.job, events, outcome.produced)
    if at_once and ports.levels.start == 0:
        last_event = last_event if progress.watermark_ms == before_ms else None
        batches = (batch for number in micro_batch.events for batch in micro_batch.events[number])
        last_event = last_matched(batches, progress.watermark_ms, last_event)
        progress = progress if last_event == progress.last_event else replace(progress, last_event=last_event)
    # 8 forget. Not before: events that waited may belong to a version that is over by now.
    if progress.rulebook.forget_ms <= progress.watermark_ms:
        after = forget_rules(rules, progress.rulebook, progress.watermark_ms)
        progress = replace(progress, rulebook=after)
    outcome.progress = progress
    outcome.counters = nonzero(outcome.counters)
    return outcome


def _begin(progress: Progress, ports: Ports, controls: tuple[bytes, ...], now_ms: int) -> Outcome:
    """Apply the control records. The latest heartbeat among them counts, unless it is ahead of the clock."""
    rules = ports.rules
    if not controls and not lacks_initial_audit(rules, progress.rulebook):
        return Outcome(progress, ports.programs.in_force(progress.rulebook, rules.job))
    change = change_rules(rules, progress.rulebook, controls, _matched_ms(rules, progress), now_ms)
    heartbeat_ms = max(progress.heartbeat_ms, change.heartbeat_ms)
    progress = replace(progress, rulebook=change.after, heartbeat_ms=heartbeat_ms)
    in_force = ports.programs.in_force(change.after, rules.job)
    return Outcome(progress, in_force, change.dead_letters, change.counters)


def _matched_ms(rules: JobRules, progress: Progress) -> int | None:
    """Return the event time after which nothing has been matched; None if nothing has."""
    matched_ms = progress.watermark_ms
    if rules.job.order == ARRIVAL:  # then events are matched before the watermark has passed them
        matched_ms = max([matched_ms, *(time.latest_ms for time in progress.times.values())])
    return matched_ms if matched_ms > TIME_MS_MIN else None


def _move_times(job: Job, progress: Progress, read: event_time.TimesRead, before_ms: int) -> Progress:
    """Return the progress with the times of a reading: partition times, watermark (before: `before_ms`), heartbeat."""
    times = event_time.merge_times(progress.times, read, job.idle_ms, before_ms, job.ahead_ms)
    moved_ms = event_time.watermark_of(times, job.lateness_ms, job.idle_ms, read.now_ms)
    heartbeat_ms = progress.heartbeat_ms
    # A heartbeat moves the watermark without an event. It waits for unread records (`is_behind`): they would be late.
    if not any(time.is_behind for time in times.values()):
        moved_ms, heartbeat_ms = max(moved_ms, heartbeat_ms), TIME_MS_MIN
    return replace(
        progress, watermark_ms=max(progress.watermark_ms, moved_ms), times=times, heartbeat_ms=heartbeat_ms,
        since_ms=event_time.earliest_seen(progress.since_ms, read.first_ms, before_ms),
    )  # fmt: skip


def _with_produced(job: Job, events: Events, produced: list[Decoded]) -> Events:
    types, whole = job.schema.columns(), ensure_digests(job, concat_decoded(job.schema, produced))
    joined: dict[int, list[EventBatch]] = {number: list(batches) for number, batches in events.items()}
    for number, domain in enumerate(job.domains):
        batch, _ = route(whole, domain, types)
        if len(batch):
            joined.setdefault(number, []).append(batch)
    return joined


@dataclass(frozen=True, slots=True)
class FilteredAlerts:
    """The alerts to send, the suppressed ones as JSON lines, and counters of both."""

    alerts: pa.Table
    suppressed: tuple[bytes, ...]
    counters: Counter[str]


def filter_alerts(
    alerts: pa.Table, policies: Policies, memory: LastAlerts, watermark_ms: int, flawed_times: Marks = NO_MARKS
) -> FilteredAlerts:
    """Remove the alerts that rules suppress, and remember the sent ones. Flag the alerts of keys with flawed events.

    A flawed event has unreadable values; `flawed_times` are the times of such events by key. alerts: sorted as
    sort_alerts does. memory: changed in place; it forgets entries that have expired at the watermark, and the ones
    beyond a limit."""
    if not alerts.num_rows and not flawed_times:  # then nothing is remembered either
        return FilteredAlerts(alerts, (), Counter())
    alerts = with_marks(alerts, policies.keys, flawed_times, memory)
    lost_count = remember_marks(memory, flawed_times)  # keys without room in the memory
    suppression = suppress_alerts(alerts, policies, memory.last)
    memory.put(suppression.fired)
    counters = Counter(count_suppressed(suppression))
    lost_count += memory.forget(watermark_ms)
    if lost_count:
        counters["fired_forgotten"] = lost_count
    return FilteredAlerts(suppression.alerts, tuple(suppressed_lines(suppression)), counters)


def is_suppressed(line: bytes) -> bool:
    """Return True for a line of `suppressed_lines`, False for a dead letter."""
    return line.startswith(b'{"held":')


def suppressed_lines(suppression: Suppression) -> list[bytes]:
    """Return a JSON object for each suppressed alert: `{"held": reason, "alert": …}`."""
    lines = zip(suppression.reasons, json_lines(suppression.suppressed), strict=True)
    return [orjson.dumps({"held": reason, "alert": orjson.Fragment(line)}) for reason, line in lines]
