"""Events of one level → its alerts and produced events: steps 4 to 7 of a micro-batch, for any number of key groups.

    events ─▶ 4 duplicates ─▶ 5 late ─▶ 6 due ─▶ 7 match ─▶ alerts, produced events
                left out       set aside   others wait   pages touched or due, all key groups together

Step 7 matches the pages that events touch and the pages that are due:

    keys of the batch ─▶ touched ─┐
    deadlines ───────▶ due ───────┴▶ read, joined ─▶ match_events ─▶ divided by page ─▶ written, or removed if empty

The histories of a page's keys are read and written if a rule looks back and the keys have events, and removed without
reading when all of them have expired. The runner decides the place and the form of pages (ports.py).

Where one partition brings events without lateness, no event waits: the last millisecond of a micro-batch is matched
before the next micro-batch may bring another event of it. A replay has both events together, in the order of events
(columnar/order.py), whose last part is arrival. So live and replay differ only by an event with fewer microseconds, or
a lower value in the declared field, than one which is matched already. Step 6 counts each of these as
`ties_out_of_order`.

Tested by: tests/step/test_step.py, tests/runners/embedded/test_engine.py, tests/runners/spark/test_live.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.columnar.batch import NO_VALUE, ORDER_FIELD, ORDER_US, EventBatch, concat_batches, empty_batch
from cep.columnar.decode import KeyDomain
from cep.engine.keyed_state import KeyedState, empty_state
from cep.engine.outputs import count_by_rule
from cep.histories.pages import concat_histories, keys_with_past, partition_histories
from cep.histories.store import Histories
from cep.histories.values import compact_page, expires_ms
from cep.kernels.layout import Int64
from cep.nfa.histories import HistoryPlan
from cep.nfa.program import Program
from cep.step.dead_letters import count_once, split_late
from cep.step.duplicates import drop_duplicates
from cep.step.job import ARRIVAL, Job, add_counts
from cep.step.match import MatchOutput, match_events
from cep.step.ports import ArrivalPorts, DomainHistories, DomainPages, Events, LevelPorts, Portion


def match_pages(
    pages: DomainPages, program: Program, batch: EventBatch, watermark_ms: int, output: MatchOutput
) -> None:
    """Match the events and deadlines of a domain's pages together, and write the pages back. Raises: StateError.

    A page is the stored state of a few keys, and a slot is its number. Histories (past events) have other pages."""
    plan = program.histories
    history_slots = np.unique(pages.histories.slots(batch.key)).tolist() if plan is not None and len(batch) else []
    expired_by_ms = TIME_MS_MAX if plan is None else watermark_ms  # no rule looks back: all histories have expired
    for slot in sorted(set(pages.histories.expired(expired_by_ms)).difference(history_slots)):
        pages.histories.remove(slot)
    slots = pages.touched(batch.key, watermark_ms)  # the pages with keys of the batch or with a deadline
    if not len(slots):
        return
    taken_state, changed_counts = pages.take(slots, program)  # changed if another program wrote the pages
    add_counts(output.counters, changed_counts)
    state_before = empty_state(program) if taken_state is None else taken_state
    runs_before = len(state_before)
    if plan is not None:
        histories = concat_histories([(slot, pages.histories.read(slot)) for slot in history_slots])
        state_before = replace(state_before, histories=histories)
    state_after = match_events(program, state_before, batch, watermark_ms, output)
    if len(state_after) != runs_before:
        output.counters["runs"] += len(state_after) - runs_before
    changes = _open_runs(program, state_after) - _open_runs(program, state_before)
    count_by_rule(program, "rule_runs", changes, output.counters)
    pages.put(slots, state_after, program)
    if plan is not None and history_slots:
        _put_back(pages.histories, history_slots, state_after.histories, plan, watermark_ms)


def _open_runs(program: Program, keyed_state: KeyedState) -> Int64:
    """Count the open runs by rule: int64[R]. Those in a first step that rules share belong to none."""
    count = len(program.rules)
    return np.bincount(keyed_state.run_rule, minlength=count)[:count]


def begin_pages(pages: DomainPages, keyed_state: KeyedState, program: Program) -> Counter[str]:
    """Put keys without pages into pages. Return the number of their runs, in all and by rule, as counters."""
    slots = np.unique(pages.slots(keyed_state.keys))
    if len(slots):
        pages.put(slots, keyed_state, program)
    reached = np.unique(pages.histories.slots(keys_with_past(keyed_state.histories))).tolist()
    if program.histories is not None and reached:
        _put_back(pages.histories, reached, keyed_state.histories, program.histories, TIME_MS_MIN)
    counters = Counter(runs=len(keyed_state))
    count_by_rule(program, "rule_runs", _open_runs(program, keyed_state), counters)
    return counters


def _put_back(port: DomainHistories, slots: list[int], after: Histories, plan: HistoryPlan, watermark_ms: int) -> None:
    """Write the histories of these slots, which are ascending and include all keys with histories."""
    for slot, past in zip(slots, partition_histories(after, slots, port.slots), strict=True):
        tidied = compact_page(plan, past, watermark_ms)
        expiry_ms = expires_ms(plan, tidied)
        if expiry_ms is None:
            port.remove(slot)
        else:
            port.write(slot, tidied, expiry_ms)


def drop_pages(pages: DomainPages, output: MatchOutput) -> None:
    """Drop the pages of a key domain that no rule matches by any more. Raises: StateError."""
    dropped = pages.drop()
    output.counters["runs_orphaned"] += dropped
    output.counters["runs"] -= dropped
    for slot in pages.histories.expired(TIME_MS_MAX):
        pages.histories.remove(slot)


class LastEvent(NamedTuple):
    """The last event that was matched in the watermark's millisecond, by the values that order events of a millisecond:
    the microseconds, then the field that the schema declares for it (such as a sequence number). Another event of this
    millisecond that comes later, but is smaller, is out of order."""

    us: int
    declared: int

    @staticmethod
    def to_json(event: LastEvent | None) -> list[Any] | None:
        return None if event is None else list(event)

    @staticmethod
    def from_json(data: list[Any] | None) -> LastEvent | None:
        """Read an event that `to_json` made. An earlier build wrote a text before these values and one after."""
        if data is None:
            return None
        us, declared = data if len(data) == len(LastEvent._fields) else data[1:3]
        return LastEvent(int(us), int(declared))


_FIRST_IN_ORDER = LastEvent(0, NO_VALUE)  # no event is before it; all events without an order table are like it


def last_matched(events: Iterable[EventBatch], watermark_ms: int, earlier: LastEvent | None) -> LastEvent | None:
    """Return the last event of the watermark's millisecond; None: no event. It tells if later ones are out of order.

    `earlier` is the last one of this millisecond so far."""
    last = earlier
    for batch in events:
        rows = (batch.time_ms == watermark_ms).nonzero()[0]
        if not len(rows):
            continue
        latest = _FIRST_IN_ORDER  # without an order table, all events are alike
        if batch.order is not None:
            us, declared = batch.order[rows, ORDER_US], batch.order[rows, ORDER_FIELD]
            us_max = int(us.max())
            latest = LastEvent(us_max, int(declared[us == us_max].max()))
        last = latest if last is None else max(last, latest)
    return last


def out_of_order(batch: EventBatch, before_ms: int, last: LastEvent) -> Int64:
    """Return the rows of the batch at the time `before_ms` that precede the last event in the order: int64[T]."""
    rows: Int64 = (batch.time_ms == before_ms).nonzero()[0] if last > _FIRST_IN_ORDER else np.empty(0, np.int64)
    if batch.order is None or not len(rows):
        return rows
    us, declared = batch.order[rows, ORDER_US], batch.order[rows, ORDER_FIELD]
    is_before: NDArray[np.bool_] = (us < last.us) | ((us == last.us) & (declared < last.declared))
    return rows[is_before]


# Every level receives the source events; only the first one counts them.
_COUNTED_AT_FIRST_LEVEL = ("late_events", "duplicates", "reused_ids", "events_without_rule")


@dataclass(frozen=True, slots=True)
class LevelTask:
    """The rules and times for matching one level of a micro-batch. Its rules read events that lower levels produce.

    programs: of this level, by key domain. domains: the domains with rules at any level. before_ms, watermark_ms: the
    watermark at the start and the end. due_ms: events before it may be matched; later ones wait, as earlier ones may
    still come. since_ms: the job has seen all events from then on. last_event: the last matched event of the
    millisecond `before_ms`, if others of that time may come: they are out of order if they belong before it."""

    job: Job
    level: int
    programs: Mapping[KeyDomain, Program]
    domains: Collection[KeyDomain]
    before_ms: int
    watermark_ms: int
    due_ms: int
    since_ms: int = TIME_MS_MIN
    last_event: LastEvent | None = None


def match_level(task: LevelTask, portion: Portion) -> MatchOutput:
    """Match the due events (before the watermark) of some key groups (`portion`) with the rules of one level: steps 4
    to 7 of a micro-batch. These rules read events that lower levels produce. Raises: StateError, StoreError."""
    output = MatchOutput(since_ms=task.since_ms)
    due_batches: dict[int, list[EventBatch]] = {}
    for arrivals, events in zip(portion.ports.parts, portion.events, strict=True):
        # step 4: drop duplicates
        first_seen, reused_ids = drop_duplicates(task.job, events, task.before_ms, arrivals.seen, output)
        # step 5: set late events aside
        output.events_aside += reused_ids  # the id came before with other content
        on_time = split_late(task.job, first_seen, task.before_ms, output)
        # step 6: find the due events; count the ones that belong before the last matched event
        if task.last_event is not None:
            for number, batch in on_time.items():
                ties = out_of_order(batch, task.before_ms, task.last_event)
                if len(ties):
                    output.counters["ties_out_of_order"] += count_once(task.job, number, batch.take(ties))
        for number, batch in _due_events(task, arrivals, on_time).items():
            due_batches.setdefault(number, []).append(batch)
    # step 7: match
    _match_domains(task, portion.ports, due_batches, output)
    if task.level > 0:  # the first level has reported the same source events
        output.events_aside.clear()
        for name in _COUNTED_AT_FIRST_LEVEL:
            output.counters.pop(name, None)
    return output


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


def split_due(batches: Iterable[EventBatch], bound_ms: int) -> tuple[EventBatch | None, list[EventBatch]]:
    """Split events at a time: (the events before it or None, batches of the other events)."""
    ready_batches: list[EventBatch] = []
    rest: list[EventBatch] = []
    for batch in batches:
        if not len(batch):
            continue
        ready = batch.time_ms < bound_ms
        if ready.all():
            ready_batches.append(batch)
        elif ready.any():
            ready_batches.append(batch.take(ready))
            rest.append(batch.take(~ready))
        else:
            rest.append(batch)
    return concat_batches(ready_batches) if ready_batches else None, rest
