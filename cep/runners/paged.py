"""Keyed state in pages: those that events touch and those that are due → one step of matching → the pages after it.

    keys of the batch ─▶ touched ─┐
    deadlines ───────▶ due ───────┴▶ read, fit, joined ─▶ match_step ─▶ divided by page ─▶ written, or removed if empty

The histories of a page's keys are kept beside its runs. They are read and written where a rule looks back and the keys
have events, and removed unread when all of it is over.

Where pages are, and in what form, is the runner's: arrays in memory over a store, or bytes in Spark's state.
Tested by: tests/runners/test_paged.py, tests/runners/embedded/test_engine.py, tests/runners/spark/test_live.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.columnar.batch import EventBatch
from cep.engine.fit import fit
from cep.engine.history_kept import over_ms
from cep.engine.history_limit import tended
from cep.engine.history_state import Histories, concat_histories, keys_of, partition_histories
from cep.engine.keyed_state import KeyedState, concat_states, empty_state
from cep.engine.partition import partition_keys
from cep.nfa.histories import HistoryPlan
from cep.nfa.program import Program
from cep.runners.job import StepOutput, match_step


class DomainPasts(Protocol):
    """The histories of one key domain in some key groups. A slot is the number of a page of them."""

    def slots(self, keys: pa.Array) -> NDArray[np.int64]:
        """The slot of each key's histories: int64[N]. It need not be that of its runs."""

    def stored(self, watermark_ms: int) -> list[int]:
        """The slots that have histories of which all is over at the watermark."""

    def read(self, slot: int) -> Histories:
        """What is kept, nothing if there is none. Raises: StateError."""

    def write(self, slot: int, histories: Histories, over_ms: int) -> None:
        """Put it in the place of what was read; all of it is over then."""

    def remove(self, slot: int) -> None:
        """Forget it, if there is any."""


class DomainPages(Protocol):
    """The pages of one key domain in some key groups. A slot is the number of a page among them."""

    @property
    def pasts(self) -> DomainPasts:
        """The histories of the same keys."""

    def slots(self, keys: pa.Array) -> NDArray[np.int64]:
        """The slot of each key's page: int64[N]."""

    def touched(self, keys: pa.Array, watermark_ms: int) -> NDArray[np.int64]:
        """The slots of these keys and those whose deadline the watermark has reached, ascending, each once."""

    def take(self, slots: NDArray[np.int64], program: Program) -> tuple[KeyedState | None, int]:
        """The pages of these slots joined, as the program has them, and how many runs belong to no rule of it.

        Returns: (None, 0) if none of them has a page. Raises: StateError.
        """

    def put(self, slots: NDArray[np.int64], after: KeyedState, program: Program) -> None:
        """Put the runs of these keys into their pages, which become all that these slots hold; no empty one is kept."""

    def drop(self) -> int:
        """Forget all pages; returns how many runs were in them. Raises: StateError."""


class SinglePages(ABC):
    """Pages that are read and written one by one: the part of DomainPages that takes, puts and drops many."""

    @abstractmethod
    def slots(self, keys: pa.Array) -> NDArray[np.int64]:
        """As DomainPages.slots."""

    @abstractmethod
    def stored(self) -> list[int]:
        """The slots in which there is a page."""

    @abstractmethod
    def read(self, slot: int) -> KeyedState | None:
        """The page, None if there is none. Raises: StateError."""

    @abstractmethod
    def write(self, slot: int, keyed_state: KeyedState, deadline_ms: int) -> None:
        """Put a page in the place of the one before; it is to be looked at again at its deadline."""

    @abstractmethod
    def remove(self, slot: int) -> None:
        """Forget the page, if there is one."""

    def take(self, slots: NDArray[np.int64], program: Program) -> tuple[KeyedState | None, int]:
        states: list[KeyedState] = []
        orphans_count = 0
        for slot in slots.tolist():
            kept = self.read(slot)
            if kept is not None:
                fitted, orphans = fit(kept, program)
                orphans_count += orphans
                states.append(fitted)
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
            kept = self.read(slot)
            assert kept is not None, "it is stored"
            runs_count += len(kept)
            self.remove(slot)
        return runs_count


def match_pages(pages: DomainPages, program: Program, batch: EventBatch, watermark_ms: int, output: StepOutput) -> None:
    """Read the touched and the due pages of a domain, advance them together, put them back.

    Adds to `output`, whose counter `runs` tells by how many there are more of them now. Raises: StateError.
    """
    plan = program.histories
    reached = np.unique(pages.pasts.slots(batch.key)).tolist() if plan is not None and len(batch) else []
    for slot in sorted(set(pages.pasts.stored(watermark_ms if plan is not None else TIME_MS_MAX)).difference(reached)):
        pages.pasts.remove(slot)
    slots = pages.touched(batch.key, watermark_ms)
    if not len(slots):
        return
    taken, orphans = pages.take(slots, program)
    before = empty_state(program) if taken is None else taken
    runs_before = orphans + len(before)
    pasts = concat_histories([(slot, pages.pasts.read(slot)) for slot in reached])
    after = match_step(program, replace(before, histories=pasts), batch, watermark_ms, output)
    output.counters["runs_orphaned"] += orphans
    output.counters["runs"] += len(after) - runs_before
    pages.put(slots, after, program)
    if plan is not None and reached:
        _put_back(pages.pasts, reached, after.histories, plan, watermark_ms)


def begin_pages(pages: DomainPages, keyed_state: KeyedState, program: Program) -> int:
    """Put keys that have no pages yet into theirs. Returns: how many runs they have."""
    slots = np.unique(pages.slots(keyed_state.keys))
    if len(slots):
        pages.put(slots, keyed_state, program)
    reached = np.unique(pages.pasts.slots(keys_of(keyed_state.histories))).tolist()
    if program.histories is not None and reached:
        _put_back(pages.pasts, reached, keyed_state.histories, program.histories, TIME_MS_MIN)
    return len(keyed_state)


def _put_back(pasts: DomainPasts, slots: list[int], after: Histories, plan: HistoryPlan, watermark_ms: int) -> None:
    """Write the histories of these slots, which are ascending and those of all keys that have any."""
    for slot, own in zip(slots, partition_histories(after, slots, pasts.slots), strict=True):
        kept = tended(plan, own, watermark_ms)
        over_at_ms = over_ms(plan, kept)
        if over_at_ms is None:
            pasts.remove(slot)
        else:
            pasts.write(slot, kept, over_at_ms)


def drop_pages(pages: DomainPages, output: StepOutput) -> None:
    """Nothing is matched by this key any more: its runs belong to no rule. Raises: StateError."""
    dropped = pages.drop()
    output.counters["runs_orphaned"] += dropped
    output.counters["runs"] -= dropped
    for slot in pages.pasts.stored(TIME_MS_MAX):
        pages.pasts.remove(slot)
