"""Pages: a page that was put is taken again, from memory or from the store, depending on its size in bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from cep.base.errors import StateCorruptError
from cep.base.limits import TIME_MS_MIN
from cep.columnar.batch import TEXT
from cep.engine.keyed_state import KeyedState, select_keys
from cep.engine.partition import partition_keys
from cep.nfa.program import Program
from cep.runners.embedded import pages as pages_module
from cep.runners.embedded.pages import Shapes, stored_states
from cep.runners.embedded.seen import SeenOfLevel
from cep.runners.embedded.share import Cache, Share
from cep.runners.handover.group_entries import NEVER
from cep.state.keys import group_range
from cep.state.memory import MemoryStore
from cep.state.pages import encode_page
from cep.state.store import WriteBatch
from cep.step.job import Job
from cep.step.match import MatchOutput, match_events
from cep.step.programs import programs_by_level
from cep.step.validate import validate_events
from tests.runners.embedded.cases import decoded, deployment, morning
from tests.seeds import seeds

GIVEN = deployment()
JOB = Job(GIVEN.schema, GIVEN.key_domains, 4)


@pytest.fixture(scope="module")
def whole() -> tuple[Program, KeyedState]:
    """Return the keyed state of one key domain after a morning of payments."""
    (programs,) = programs_by_level(GIVEN.rulebook, JOB.schema)
    domain, program = max(programs.items(), key=lambda item: len(item[1].rules))
    batch = validate_events(JOB, decoded(JOB, morning())[0]).batches[JOB.domains.index(domain)]
    return program, match_events(program, None, batch, TIME_MS_MIN, MatchOutput())


def open_share(store: MemoryStore, bytes_max: int | None) -> Share:
    return Share(JOB, range(JOB.groups_count), store, Shapes(store), Cache(16, bytes_max), 0, SeenOfLevel([], 1))


@pytest.mark.parametrize("open_min", [1, 6, 100])
@pytest.mark.parametrize("seed", seeds(4))
def test_pages_are_a_dictionary_whatever_fits_in_memory_and_stays_open(
    whole: tuple[Program, KeyedState], seed: int, open_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_module, "OPEN_MIN", open_min)
    program, keyed_state = whole
    random = np.random.default_rng(seed)
    store = MemoryStore()
    bytes_max = (None, 2, 40_000, 10**9)[seed]
    share = open_share(store, bytes_max)
    stored, pages = share.stored_pages[0], share.pages[0]
    slots = pages.slots(keyed_state.keys)
    states: dict[int, KeyedState] = {}
    chosen, was_open = slots[:0], 0
    for number in range(60):
        others = random.choice(np.unique(slots), int(random.integers(1, 12)), replace=False)
        chosen = np.unique(np.concatenate([chosen, others[:3]]) if number % 3 == 0 else others)
        before, orphans = pages.take(chosen, program)
        chosen_states = [states[slot] for slot in chosen.tolist() if slot in states]
        assert orphans == 0
        assert sorted([] if before is None else before.keys.to_pylist()) == sorted(
            key for state in chosen_states for key in state.keys.to_pylist()
        )
        for slot in chosen.tolist():
            page_state, _ = pages.take(np.array([slot]), program)
            assert (page_state is None) == (slot not in states)
            if page_state is not None:
                assert encode_page(page_state) == encode_page(states[slot])
        is_changed = np.isin(slots, chosen) & (random.random(len(slots)) < 0.7)
        after = select_keys(keyed_state, is_changed, program.row_registers)
        pages.put(chosen, after, program)
        assert not pages.open_bytes or len(chosen) >= open_min
        assert pages.open_bytes <= stored.open_bytes_max
        was_open += pages.open_bytes > 0
        if random.random() < 0.5:  # otherwise the next `take` asks for other pages, or for more
            pages.close()
        part = np.searchsorted(chosen, pages.slots(after.keys))
        for slot, state in zip(
            chosen.tolist(), partition_keys(after, part, len(chosen), program.row_registers), strict=True
        ):
            deadline_ms = state.expiry_min
            assert pages.open_bytes or stored.deadlines[slot] == (NEVER if deadline_ms is None else deadline_ms)
            states.pop(slot, None)
            if deadline_ms is not None:
                states[slot] = state
        if number % 5 == 0:
            pages.close()
            batch = WriteBatch()
            stored.save(batch)
            stored.shapes.save(batch)
            store.write(batch)
            assert sum(len(page) for page in stored._encoded if page is not None) == stored.cached_bytes
            assert bytes_max is None or stored.cached_bytes <= bytes_max // 2, "the rest is for histories"
    assert (stored.loads > 0) == (seed in (1, 2))
    assert (was_open > 0) == (open_min < 100 and seed != 1)


def test_what_is_due_is_touched_once_its_time_has_come(whole: tuple[Program, KeyedState]) -> None:
    program, keyed_state = whole
    share = open_share(MemoryStore(), None)
    stored, pages = share.stored_pages[0], share.pages[0]
    slots = np.unique(pages.slots(keyed_state.keys))
    pages.put(slots, keyed_state, program)
    nobody = pa.array([], TEXT)
    for watermark_ms in np.sort(stored.deadlines[slots]).tolist()[:5]:
        assert set(pages.touched(nobody, watermark_ms - 1).tolist()) < set(pages.touched(nobody, watermark_ms).tolist())
        assert pages.touched(nobody, watermark_ms).tolist() == np.flatnonzero(stored.deadlines <= watermark_ms).tolist()


def test_dropped_pages_are_counted_and_gone(whole: tuple[Program, KeyedState]) -> None:
    program, keyed_state = whole
    store = MemoryStore()
    share = open_share(store, None)
    stored, pages = share.stored_pages[0], share.pages[0]
    pages.put(np.unique(pages.slots(keyed_state.keys)), keyed_state, program)
    batch = WriteBatch()
    stored.save(batch)
    store.write(batch)
    assert store.sizes().entries_count > 0
    assert pages.drop() == len(keyed_state)
    batch = WriteBatch()
    stored.save(batch)
    store.write(batch)
    assert store.sizes().entries_count == 0


def test_what_a_store_holds_and_what_it_lacks(whole: tuple[Program, KeyedState]) -> None:
    program, keyed_state = whole
    store = MemoryStore()
    share = open_share(store, 2)
    stored, pages = share.stored_pages[0], share.pages[0]
    pages.put(np.unique(pages.slots(keyed_state.keys)), keyed_state, program)
    batch = WriteBatch()
    stored.save(batch)
    store.write(batch)
    programs = {JOB.domains[0]: program}
    with pytest.raises(StateCorruptError, match="which the store lacks"):
        list(stored_states(store, 1, JOB.domains, programs, 0))
    batch = WriteBatch()
    stored.shapes.save(batch)
    store.write(batch)
    keys = [
        key
        for g in range(4)
        for _, state in stored_states(store, g, JOB.domains, programs, 0)
        for key in state.keys.to_pylist()
    ]
    assert sorted(keys) == sorted(keyed_state.keys.to_pylist())
    store.delete_range(group_range(0, 4))
    with pytest.raises(StateCorruptError, match="the store lacks it"):
        pages.take(np.flatnonzero(stored.deadlines != NEVER), program)
