"""Matching page by page equals matching the whole. State of rules that no longer match is dropped and counted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from cep.columnar.batch import EventBatch
from cep.columnar.route import key_hashes
from cep.engine.keyed_state import KeyedState
from cep.histories.store import Histories
from cep.nfa.compile import problems
from cep.sinks.json_form import json_lines
from cep.step.match import MatchOutput, match_events
from cep.step.pages import SinglePages, drop_pages, match_pages
from tests.engine.bridge import batch_of, program_of
from tests.oracle.random_cases import SCHEMA, random_case


class PlainPasts:
    """Histories in a dict, each with the time at which its last window ends."""

    def __init__(self, slots: Callable[[pa.Array], NDArray[np.int64]]) -> None:
        self.slots = slots
        self.held: dict[int, tuple[Histories, int]] = {}

    def stored(self, watermark_ms: int) -> list[int]:
        return [slot for slot, (_, over_ms) in self.held.items() if over_ms <= watermark_ms]

    def read(self, slot: int) -> Histories:
        return self.held[slot][0] if slot in self.held else Histories()

    def write(self, slot: int, histories: Histories, over_ms: int) -> None:
        self.held[slot] = (histories, over_ms)

    def remove(self, slot: int) -> None:
        self.held.pop(slot, None)


class PlainPages(SinglePages):
    """Pages in a dict, each with its deadline."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pasts = PlainPasts(self.slots)
        self.held: dict[int, tuple[KeyedState, int]] = {}

    def slots(self, keys: pa.Array) -> NDArray[np.int64]:
        return (key_hashes(keys) % np.uint64(self.count)).astype(np.int64)

    def touched(self, keys: pa.Array, watermark_ms: int) -> NDArray[np.int64]:
        expired_slots = {slot for slot, (_, deadline_ms) in self.held.items() if deadline_ms <= watermark_ms}
        return np.array(sorted({*self.slots(keys).tolist(), *expired_slots}), np.int64)

    def stored(self) -> list[int]:
        return list(self.held)

    def read(self, slot: int) -> KeyedState | None:
        return self.held[slot][0] if slot in self.held else None

    def write(self, slot: int, keyed_state: KeyedState, deadline_ms: int) -> None:
        self.held[slot] = (keyed_state, deadline_ms)

    def remove(self, slot: int) -> None:
        self.held.pop(slot, None)


@pytest.mark.parametrize("seed", range(12))
def test_page_by_page_is_the_whole(seed: int) -> None:
    patterns = [random_case(seed * 7 + i, 1 + i % 3).pattern for i in range(4)]
    chosen = [pattern for pattern in patterns if not problems(pattern, SCHEMA)]
    if not chosen:
        return
    program = program_of(SCHEMA, *chosen)
    events = batch_of(SCHEMA, random_case(seed, 3).events)
    order = np.argsort(events.time_ms, kind="stable")
    whole: KeyedState | None = None
    one, many = MatchOutput(), MatchOutput()
    pages = PlainPages(1 + seed % 4)
    for part in np.array_split(order, 3):
        batch: EventBatch = events.take(part)
        watermark_ms = int(batch.time_ms.max())
        whole = match_events(program, whole, batch, watermark_ms, one)
        match_pages(pages, program, batch, watermark_ms, many)
        assert many.counters["runs"] == len(whole)
        assert all(page for page, _ in pages.held.values()), "an empty page is kept"
    assert sorted(json_lines(many.alert_table())) == sorted(json_lines(one.alert_table()))
    drop_pages(pages, many)
    assert not pages.held
    assert whole is not None
    assert (many.counters["runs"], many.counters["runs_orphaned"]) == (0, len(whole))
