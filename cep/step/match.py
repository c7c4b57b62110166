"""Events and keyed state of one key domain → alerts, produced events, counters and the keyed state after them.

Tested by: tests/step/test_step.py
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from cep.base.limits import TIME_MS_MIN
from cep.columnar.batch import EventBatch
from cep.columnar.decode import Decoded
from cep.engine.advance import Evicted, Matches, advance_in_slices
from cep.engine.alerts import NO_ALERTS, alerting, alerts_of
from cep.engine.keyed_state import KeyedState
from cep.engine.migrate import hand_over
from cep.engine.produced import produced_events
from cep.nfa.program import Program
from cep.step.job import add_counts


@dataclass(slots=True)
class MatchOutput:
    """The results of matching: alerts, counters by name, derived events, and keys that lost partial matches to a limit.

    `since_ms` is an input: the job has seen all events from then on, so alerts that look further back are flagged.
    `produced`: events that rules emit for other rules; `produced_matches`: their matches, None if not requested.
    `events_aside`: late events and events with a reused id, as their dead letters describe them."""

    alerts: list[pa.Table] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    produced: list[Decoded] = field(default_factory=list)
    since_ms: int = TIME_MS_MIN
    produced_matches: list[pa.Table] | None = None
    evicted: list[Evicted] = field(default_factory=list)
    events_aside: list[dict[str, Any]] = field(default_factory=list)

    def alert_table(self) -> pa.Table:
        return pa.concat_tables(self.alerts) if self.alerts else NO_ALERTS


def match_events(
    program: Program, keyed_state: KeyedState | None, batch: EventBatch, watermark_ms: int, output: MatchOutput, *,
    is_end: bool = False,
) -> KeyedState:  # fmt: skip
    """Match the events of one key domain, add the results to `output`, and return the new keyed state.

    `is_end`: no event follows the batch, so the new keyed state is empty. In a handover (time, giver, taker), one rule
    version takes over the open runs of another. The events before that time are matched first, then the others."""
    for change_ms, giver, taker in program.handovers:
        if watermark_ms < change_ms and not (len(batch) and int(batch.time_ms.max()) >= change_ms):
            break  # neither the watermark nor an event has reached the handover
        is_before = batch.time_ms < change_ms
        if not is_before.any() and (keyed_state is None or not (keyed_state.run_rule == giver).any()):
            continue  # there is no run to hand over
        keyed_state = _match_slices(program, keyed_state, batch.take(is_before), min(change_ms, watermark_ms), output)
        keyed_state = hand_over(keyed_state, program, giver, taker)
        batch = batch.take(~is_before)
    return _match_slices(program, keyed_state, batch, watermark_ms, output, is_end=is_end)


def _match_slices(
    program: Program, keyed_state: KeyedState | None, batch: EventBatch, watermark_ms: int, output: MatchOutput, *,
    is_end: bool = False,
) -> KeyedState:  # fmt: skip
    """Match events by unchanged rule versions, in slices (parts) that limit memory; add the results to `output`."""
    for slice_result in advance_in_slices(program, keyed_state, batch, watermark_ms, is_end=is_end):
        keyed_state = slice_result.keyed_state
        add_counts(output.counters, slice_result.counters)
        output.evicted += slice_result.evicted
        if len(slice_result.matches):
            _collect_matches(program, slice_result.matches, output)
    assert keyed_state is not None, "there is one slice at least"
    return keyed_state


def _collect_matches(program: Program, matches: Matches, output: MatchOutput) -> None:
    parts = alerting(program, matches)
    if parts:
        output.alerts.append(alerts_of(parts, matches, output.since_ms, output.counters))
        for part in parts:
            rule = part.rule.deployed
            output.counters[f"alerts[{rule.rule_id}@{rule.version}]"] += len(part.rows)
    events = produced_events(program, matches, output.counters, output.since_ms, output.produced_matches)
    if events is not None:
        output.produced.append(events)
        output.counters["events_produced"] += len(events)
