"""Keyed state in pages: those that events touch and those that are due → one step of matching → the pages after it.

    keys of the batch ─▶ touched ─┐
    deadlines ───────▶ due ───────┴▶ read, fit, joined ─▶ match_step ─▶ divided by page ─▶ written, or removed if empty

Where pages are, and in what form, is the runner's: arrays in memory over a store, or bytes in Spark's state.
Tested by: tests/runners/test_paged.py, tests/runners/embedded/test_engine.py, tests/runners/spark/test_live.py
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.columnar.batch import EventBatch
from cep.engine.keyed_state import KeyedState, concat_states, fit
from cep.engine.partition import partition_keys
from cep.nfa.program import Program
from cep.runners.job import StepOutput, match_step, page_deadline_ms


class DomainPages(Protocol):
    """The pages of one key domain in some key groups. A slot is the number of a page among them."""

    def slots(self, keys: pa.Array) -> NDArray[np.int64]:
        """The slot of each key's page: int64[N]."""

    def touched(self, keys: pa.Array, watermark_ms: int) -> NDArray[np.int64]:
        """The slots of these keys and those whose deadline the watermark has reached, ascending, each once."""

    def stored(self) -> list[int]:
        """The slots in which there is a page."""

    def read(self, slot: int) -> KeyedState | None:
        """The page, None if there is none. Raises: StateError."""

    def write(self, slot: int, keyed_state: KeyedState, deadline_ms: int) -> None:
        """Put a page in the place of the one before; it is to be looked at again at its deadline."""

    def remove(self, slot: int) -> None:
        """Forget the page, if there is one."""


def match_pages(pages: DomainPages, program: Program, batch: EventBatch, watermark_ms: int, output: StepOutput) -> None:
    """Read the touched and the due pages of a domain, advance them together, put them back.

    Adds to `output`, whose counter `runs` tells by how many there are more of them now. Raises: StateError.
    """
    slots = pages.touched(batch.key, watermark_ms)
    if not len(slots):
        return
    states: list[KeyedState] = []
    runs_before = 0
    for slot in slots.tolist():
        kept = pages.read(slot)
        if kept is not None:
            fitted, orphans = fit(kept, program)
            output.counters["runs_orphaned"] += orphans
            runs_before += len(kept)
            states.append(fitted)
    before = concat_states(states, program.row_registers) if states else None
    after = match_step(program, before, batch, watermark_ms, output)
    output.counters["runs"] += len(after) - runs_before
    _put_back(pages, slots, after, program)


def begin_pages(pages: DomainPages, keyed_state: KeyedState, program: Program) -> int:
    """Put keys that have no pages yet into theirs. Returns: how many runs they have."""
    slots = np.unique(pages.slots(keyed_state.keys))
    if len(slots):
        _put_back(pages, slots, keyed_state, program)
    return len(keyed_state)


def _put_back(pages: DomainPages, slots: NDArray[np.int64], after: KeyedState, program: Program) -> None:
    """Write the pages of these slots, which are ascending and those of all keys of the state."""
    part = np.searchsorted(slots, pages.slots(after.keys))
    shares = partition_keys(after, part, len(slots), program.row_registers) if len(slots) > 1 else [after]
    for slot, share in zip(slots.tolist(), shares, strict=True):
        deadline_ms = page_deadline_ms(program, share)
        if deadline_ms is None:
            pages.remove(slot)
        else:
            pages.write(slot, share, deadline_ms)


def drop_pages(pages: DomainPages, output: StepOutput) -> None:
    """Nothing is matched by this key any more: its runs belong to no rule. Raises: StateError."""
    for slot in pages.stored():
        kept = pages.read(slot)
        assert kept is not None, "it is stored"
        output.counters["runs_orphaned"] += len(kept)
        output.counters["runs"] -= len(kept)
        pages.remove(slot)
