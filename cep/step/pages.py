"""Pages that events touch and pages that are due → matched together → the changed pages; step 7 of a micro-batch.

    keys of the batch ─▶ touched ─┐
    deadlines ───────▶ due ───────┴▶ read, joined ─▶ match_events ─▶ divided by page ─▶ written, or removed if empty

The histories of a page's keys are stored next to its runs. They are read and written if a rule looks back and the keys
have events, and removed without reading when all of them have expired. The runner decides the place and the form of
pages (ports.py).
Tested by: tests/step/test_step.py, tests/runners/embedded/test_engine.py, tests/runners/spark/test_live.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.columnar.batch import EventBatch
from cep.engine.keyed_state import KeyedState, concat_states, empty_state
from cep.engine.migrate import migrate_state
from cep.engine.partition import partition_keys
from cep.histories.pages import concat_histories, keys_with_past, partition_histories
from cep.histories.store import Histories
from cep.histories.values import compact_page, expires_ms
from cep.nfa.histories import HistoryPlan
from cep.nfa.program import Program
from cep.step.counters import add_counts
from cep.step.match import MatchOutput, match_events
from cep.step.ports import DomainPages, DomainPasts


class SinglePages(ABC):
    """Pages that are read and written one by one: the part of DomainPages that takes, puts and drops many."""

    @abstractmethod
    def slots(self, keys: pa.Array) -> NDArray[np.int64]:
        """See DomainPages.slots."""

    @abstractmethod
    def stored(self) -> list[int]:
        """Return the slots that have a page."""

    @abstractmethod
    def read(self, slot: int) -> KeyedState | None:
        """Return the page of a slot, None if it is missing. Raises: StateError."""

    @abstractmethod
    def write(self, slot: int, keyed_state: KeyedState, deadline_ms: int) -> None:
        """Replace the page of a slot; it is looked at again at its deadline."""

    @abstractmethod
    def remove(self, slot: int) -> None:
        """Remove the page of a slot, if there is one."""

    def take(self, slots: NDArray[np.int64], program: Program) -> tuple[KeyedState | None, int]:
        states: list[KeyedState] = []
        orphans_count = 0
        for slot in slots.tolist():
            page = self.read(slot)
            if page is not None:
                migrated, orphans = migrate_state(page, program)
                orphans_count += orphans
                states.append(migrated)
        return concat_states(states, program.row_registers) if states else None, orphans_count

    def put(self, slots: NDArray[np.int64], after: KeyedState, program: Program) -> None:
        part = np.searchsorted(slots, self.slots(after.keys))
        shares = partition_keys(after, part, len(slots), program.row_registers) if len(slots) > 1 else [after]
        for slot, share in zip(slots.tolist(), shares, strict=True):
            deadline_ms = share.expiry_min
            if deadline_ms is None:
                self.remove(slot)
            else:
                self.write(slot, replace(share, histories=Histories()), deadline_ms)

    def drop(self) -> int:
        runs_count = 0
        for slot in self.stored():
            page = self.read(slot)
            assert page is not None, "it is stored"
            runs_count += len(page)
            self.remove(slot)
        return runs_count


def match_pages(
    pages: DomainPages, program: Program, batch: EventBatch, watermark_ms: int, output: MatchOutput
) -> None:
    """Read the pages of a domain that have events or deadlines, match their events together, and write them back.

    Adds to `output`; its counter `runs` is the change in the number of open runs. Raises: StateError.
    """
    plan = program.histories
    history_slots = np.unique(pages.pasts.slots(batch.key)).tolist() if plan is not None and len(batch) else []
    for slot in sorted(
        set(pages.pasts.stored(watermark_ms if plan is not None else TIME_MS_MAX)).difference(history_slots)
    ):
        pages.pasts.remove(slot)
    slots = pages.touched(batch.key, watermark_ms)
    if not len(slots):
        return
    taken_state, orphans = pages.take(slots, program)
    state_before = empty_state(program) if taken_state is None else taken_state
    runs_before = orphans + len(state_before)
    if plan is not None:
        pasts = concat_histories([(slot, pages.pasts.read(slot)) for slot in history_slots])
        state_before = replace(state_before, histories=pasts)
    state_after = match_events(program, state_before, batch, watermark_ms, output)
    if orphans:
        output.counters["runs_orphaned"] += orphans
    if len(state_after) != runs_before:
        output.counters["runs"] += len(state_after) - runs_before
    add_counts(output.counters, open_runs(program, state_after, state_before))
    pages.put(slots, state_after, program)
    if plan is not None and history_slots:
        _put_back(pages.pasts, history_slots, state_after.histories, plan, watermark_ms)


def open_runs(program: Program, after: KeyedState, before: KeyedState | None = None) -> Counter[str]:
    """Count by rule how many more runs are open than before. Those in a first step that rules share belong to none."""
    count = len(program.rules)
    changes = np.bincount(after.run_rule, minlength=count)[:count]
    if before is not None:
        changes = changes - np.bincount(before.run_rule, minlength=count)[:count]
    counters: Counter[str] = Counter()
    for number in np.flatnonzero(changes).tolist():
        deployed = program.rules[number].deployed
        counters[f"rule_runs[{deployed.rule_id}@{deployed.version}]"] += int(changes[number])
    return counters


def begin_pages(pages: DomainPages, keyed_state: KeyedState, program: Program) -> Counter[str]:
    """Put keys without pages into pages. Returns: the number of their runs, in all and by rule, as counters."""
    slots = np.unique(pages.slots(keyed_state.keys))
    if len(slots):
        pages.put(slots, keyed_state, program)
    reached = np.unique(pages.pasts.slots(keys_with_past(keyed_state.histories))).tolist()
    if program.histories is not None and reached:
        _put_back(pages.pasts, reached, keyed_state.histories, program.histories, TIME_MS_MIN)
    return open_runs(program, keyed_state) + Counter(runs=len(keyed_state))


def _put_back(pasts: DomainPasts, slots: list[int], after: Histories, plan: HistoryPlan, watermark_ms: int) -> None:
    """Write the histories of these slots, which are ascending and include all keys with histories."""
    for slot, past in zip(slots, partition_histories(after, slots, pasts.slots), strict=True):
        tidied = compact_page(plan, past, watermark_ms)
        over_at_ms = expires_ms(plan, tidied)
        if over_at_ms is None:
            pasts.remove(slot)
        else:
            pasts.write(slot, tidied, over_at_ms)


def drop_pages(pages: DomainPages, output: MatchOutput) -> None:
    """Drop the pages of a key domain that no rule matches by any more. Raises: StateError."""
    dropped = pages.drop()
    output.counters["runs_orphaned"] += dropped
    output.counters["runs"] -= dropped
    for slot in pages.pasts.stored(TIME_MS_MAX):
        pages.pasts.remove(slot)
