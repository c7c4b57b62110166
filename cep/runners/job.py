"""What replay and live must agree on to give the same alerts: the job's description, and one step of matching.

Tested by: tests/runners/test_job.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from cep.base.errors import UsageError
from cep.base.limits import (
    IDLE_MS_DEFAULT,
    KEY_GROUPS_DEFAULT,
    KEY_GROUPS_MAX,
    PRODUCE_DEPTH_MAX,
    TIME_MS_MAX,
    TIME_MS_MIN,
)
from cep.base.schema import Schema
from cep.columnar.batch import EventBatch
from cep.columnar.decode import Decoded
from cep.columnar.route import KeyDomain
from cep.engine.advance import advance
from cep.engine.alerts import NO_ALERTS, Alerting, alerting, alerts_of
from cep.engine.fit import hand_over
from cep.engine.keyed_state import KeyedState
from cep.engine.produced import produced_events
from cep.lists.timeline import Lists
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.nfa.program import Program
from cep.rulebook.levels import by_level
from cep.rulebook.made_past import with_made_past
from cep.rulebook.rulebook import Rulebook

EVENT_TIME, ARRIVAL = "event_time", "arrival"
_PROGRAMS_KEPT = 64


@dataclass(frozen=True, slots=True)
class Job:
    """A job: event types, the keys that events are routed by, and how keyed state is laid out.

    `groups_count` bounds the parallelism for the job's whole life. `pages_count` divides a key group's state: few
    when catching up, more when keys are sparse. `lateness_ms` is how far events may come out of order. In live,
    `order` says whether an event waits until the watermark has passed it, `idle_ms` how long a partition without new
    records holds the watermark, `dedup_ms` for how long the id of an event is known (0: not at all), and
    `levels_count` how many stages there are for patterns that read what others produce. Events before `begins_ms` are
    in the state that the job began with (warm_start.py); those from `ends_ms` on are for the job that goes on from it.
    """

    schema: Schema
    domains: tuple[KeyDomain, ...]
    groups_count: int = KEY_GROUPS_DEFAULT
    pages_count: int = 1
    lateness_ms: int = 0
    order: str = EVENT_TIME
    idle_ms: int = IDLE_MS_DEFAULT
    dedup_ms: int = 0
    levels_count: int = 1
    begins_ms: int = TIME_MS_MIN
    ends_ms: int = TIME_MS_MAX

    def __post_init__(self) -> None:
        if not 1 <= self.groups_count <= KEY_GROUPS_MAX:
            raise UsageError(f"key groups are 1 to {KEY_GROUPS_MAX}, not {self.groups_count}")
        if self.order not in (EVENT_TIME, ARRIVAL):
            raise UsageError(f"the order is {EVENT_TIME} or {ARRIVAL}, not {self.order}")
        if not 1 <= self.levels_count <= PRODUCE_DEPTH_MAX + 1:
            raise UsageError(f"levels are 1 to {PRODUCE_DEPTH_MAX + 1}, not {self.levels_count}")
        if not self.domains:
            raise UsageError("the job has no key to route events by; give rules, or name keys with --key")

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "event_types": self.schema.to_json(),
            "key_domains": [list(domain) for domain in self.domains],
            "groups_count": self.groups_count,
            "pages_count": self.pages_count,
            "lateness_ms": self.lateness_ms,
            "order": self.order,
            "idle_ms": self.idle_ms,
            "dedup_ms": self.dedup_ms,
            "levels_count": self.levels_count,
            "begins_ms": self.begins_ms,
            "ends_ms": self.ends_ms,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Job:
        """What `to_json` made. Raises: KeyError, TypeError or ValueError for something else."""
        return Job(
            Schema.from_json(data["event_types"]),
            tuple(tuple(domain) for domain in data["key_domains"]),
            data["groups_count"],
            data["pages_count"],
            data["lateness_ms"],
            data["order"],
            data["idle_ms"],
            data["dedup_ms"],
            data["levels_count"],
            data.get("begins_ms", TIME_MS_MIN),
            data.get("ends_ms", TIME_MS_MAX),
        )


class Programs:
    """Compiled programs by rulebook and event types: a process compiles each once, however many key groups ask, and
    however often the lists change that rules ask."""

    def __init__(self) -> None:
        self._programs: dict[tuple[str, Schema], list[dict[KeyDomain, Program]]] = {}
        self._lists: dict[tuple[str, Schema], Lists] = {}

    def of(self, rulebook: Rulebook, schema: Schema, level: int = 0) -> Mapping[KeyDomain, Program]:
        """The program of each key domain that has rules at a level (rulebook/levels.py)."""
        at = (rulebook.fingerprint, schema)
        if at not in self._programs:
            if len(self._programs) >= _PROGRAMS_KEPT:
                oldest = next(iter(self._programs))
                del self._programs[oldest], self._lists[oldest]
            self._programs[at] = programs_by_level(rulebook, schema)
        elif self._lists[at] is not rulebook.lists.timelines():
            self._programs[at] = [_asking(rulebook, level) for level in self._programs[at]]
        self._lists[at] = rulebook.lists.timelines()
        levels = self._programs[at]
        return levels[level] if level < len(levels) else {}


def programs_by_level(rulebook: Rulebook, schema: Schema, levels_count: int = 1) -> list[dict[KeyDomain, Program]]:
    """For each level of the rulebook (`by_level`) the program of each key domain that has rules there."""
    found: list[dict[KeyDomain, Program]] = []
    for rules in by_level(with_made_past(rulebook.deployed(), schema), schema, levels_count):
        domains: dict[KeyDomain, list[DeployedRule]] = {}
        for rule in rules:
            domains.setdefault(rule.pattern.key, []).append(rule)
        compiled = {domain: compile_rules(schema, domain, own) for domain, own in sorted(domains.items())}
        found.append(_asking(rulebook, compiled))
    return found


def _asking(rulebook: Rulebook, programs: Mapping[KeyDomain, Program]) -> dict[KeyDomain, Program]:
    """The programs with the lists as they are now."""
    return {domain: replace(program, lists=rulebook.lists.timelines()) for domain, program in programs.items()}


@dataclass(slots=True)
class StepOutput:
    """What matching gave, gathered over domains: alerts by key domain, counters by name, and the events that patterns
    have produced. `since_ms` goes in: the job has seen all events from then on, TIME_MS_MIN if that is not known."""

    alerts: list[pa.Table] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    produced: list[Decoded] = field(default_factory=list)
    since_ms: int = TIME_MS_MIN

    def alert_table(self) -> pa.Table:
        return pa.concat_tables(self.alerts) if self.alerts else NO_ALERTS


def match_step(
    program: Program, keyed_state: KeyedState | None, batch: EventBatch, watermark_ms: int, output: StepOutput
) -> KeyedState:
    """Advance one key domain and add its alerts and counters to `output`; returns the new keyed state.

    Where a version takes over the runs of the one before, the events before and after that time are matched one after
    the other. Once an event at or after it is here, no earlier one will come.
    """
    for change_ms, giver, taker in program.handovers:
        if watermark_ms < change_ms and not (len(batch) and int(batch.time_ms.max()) >= change_ms):
            break
        is_before = batch.time_ms < change_ms
        if not is_before.any() and (keyed_state is None or not (keyed_state.run_rule == giver).any()):
            continue
        keyed_state = _advanced(program, keyed_state, batch.take(is_before), min(change_ms, watermark_ms), output)
        keyed_state = hand_over(keyed_state, program, giver, taker)
        batch = batch.take(~is_before)
    return _advanced(program, keyed_state, batch, watermark_ms, output)


def _advanced(
    program: Program, keyed_state: KeyedState | None, batch: EventBatch, watermark_ms: int, output: StepOutput
) -> KeyedState:
    advanced = advance(program, keyed_state, batch, watermark_ms)
    output.counters.update(advanced.counters)
    if len(advanced.matches):
        parts = alerting(program, advanced.matches)
        if parts:
            output.alerts.append(alerts_of(parts, advanced.matches, output.since_ms))
            output.counters.update(_counted(parts))
        events = produced_events(program, advanced.matches, output.since_ms)
        if events is not None:
            output.produced.append(events)
            output.counters["events_produced"] += len(events)
    return advanced.keyed_state


def _counted(parts: Sequence[Alerting]) -> Counter[str]:
    """Alerts by rule and version: `alerts[card_testing@3]`."""
    found: Counter[str] = Counter()
    for part in parts:
        rule = part.rule.deployed
        found[f"alerts[{rule.rule_id}@{rule.version}]"] += len(part.rows)
    return found
