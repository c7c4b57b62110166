"""Events of one level → its alerts and produced events: steps 4 to 7 of a micro-batch, for any number of key groups.

    events ─▶ 4 duplicates ─▶ 5 late ─▶ 6 due ─▶ 7 match ─▶ alerts, produced events
                left out       set aside   others wait   pages touched or due, all key groups together

Tested by: tests/step/test_step.py, tests/runners/embedded/test_engine.py, tests/runners/spark/test_live.py
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from cep.base.limits import TIME_MS_MIN
from cep.columnar.batch import EventBatch, concat_batches, empty_batch
from cep.columnar.route import KeyDomain
from cep.nfa.program import Program
from cep.step.dead_letters import count_once, split_late
from cep.step.duplicates import drop_duplicates
from cep.step.job import ARRIVAL, Job
from cep.step.match import MatchOutput
from cep.step.pages import drop_pages, match_pages
from cep.step.ports import ArrivalPorts, Events, LevelPorts, Portion
from cep.step.ties import LastEvent, out_of_order

# Every level receives the source events; only the first one counts them.
_OF_FIRST_LEVEL = ("late_events", "duplicates", "reused_ids", "events_without_rule")


@dataclass(frozen=True, slots=True)
class LevelTask:
    """The rules and times for matching one level of a micro-batch.

    programs: of this level, by key domain. domains: the domains with rules at any level. before_ms: the watermark at
    the start of the micro-batch; earlier events are late. watermark_ms: the watermark at its end. due_ms: events before
    it may be matched. since_ms: the job has seen all events from then on. last_event: the last event that was matched
    at `before_ms`, if others of that time may come.
    """

    job: Job
    level: int
    programs: Mapping[KeyDomain, Program]
    domains: Collection[KeyDomain]
    before_ms: int
    watermark_ms: int
    due_ms: int
    since_ms: int = TIME_MS_MIN
    last_event: LastEvent | None = None


@dataclass(slots=True)
class LevelOutcome:
    """The output of matching, and the late events and reused ids as their dead letters describe them."""

    output: MatchOutput
    events_aside: list[dict[str, Any]]


def match_level(task: LevelTask, portion: Portion) -> LevelOutcome:
    """Match the events of a portion whose time has come, and process deadlines up to the watermark.

    Events that are repeated or late are set aside. Raises: StateError, StoreError.
    """
    output = MatchOutput(since_ms=task.since_ms)
    aside: list[dict[str, Any]] = []
    due_batches: dict[int, list[EventBatch]] = {}
    for arrivals, events in zip(portion.ports.parts, portion.events, strict=True):
        # 4 duplicates
        new, reused = drop_duplicates(task.job, events, task.before_ms, arrivals.seen, output)
        # 5 late
        on_time, late = split_late(task.job, new, task.before_ms, output)
        aside += [*reused, *late]
        # 6 due
        if task.last_event is not None:
            for number, batch in on_time.items():
                ties = out_of_order(batch, task.before_ms, task.last_event)
                if len(ties):
                    output.counters["ties_out_of_order"] += count_once(task.job, number, batch.take(ties))
        for number, batch in _due_events(task, arrivals, on_time).items():
            due_batches.setdefault(number, []).append(batch)
    # 7 match
    _match_domains(task, portion.ports, due_batches, output)
    if task.level > 0:
        aside.clear()
        for name in _OF_FIRST_LEVEL:
            output.counters.pop(name, None)
    return LevelOutcome(output, aside)


def _due_events(task: LevelTask, arrivals: ArrivalPorts, fresh: Mapping[int, EventBatch]) -> Mapping[int, EventBatch]:
    """Return the events to match now, by number of the key domain; the others wait."""
    if task.job.order == ARRIVAL:
        return fresh
    released = {
        number: arrivals.waiting.release(number, fresh.get(number), task.due_ms)
        for number in range(len(task.job.domains))
    }
    return {number: batch for number, batch in released.items() if batch is not None}


def _match_domains(task: LevelTask, ports: LevelPorts, due_batches: Events, output: MatchOutput) -> None:
    for number, domain in enumerate(task.job.domains):
        batches = due_batches.get(number)
        if domain in task.programs:
            events = concat_batches(batches) if batches else empty_batch(task.job.schema)
            match_pages(ports.pages[number], task.programs[domain], events, task.watermark_ms, output)
        else:
            if batches and domain not in task.domains:
                output.counters["events_without_rule"] += sum(map(len, batches))
            drop_pages(ports.pages[number], output)
