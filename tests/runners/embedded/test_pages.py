"""Pages: what is written is read again, from memory or from the store, as their number of bytes has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cep.engine.keyed_state import KeyedState
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.pages import Pages, Place, bytes_of, stored_pages
from cep.runners.job import Job
from cep.state.memory import MemoryStore
from cep.state.pages import encode_page
from cep.state.store import WriteBatch
from tests.runners.embedded.cases import decoded, deployment, latest_ms, morning
from tests.runners.spark.live_cases import rules

GIVEN = deployment()
DOMAINS = GIVEN.key_domains


@pytest.fixture(scope="module")
def keyed_states() -> list[KeyedState]:
    """Pages of a real job."""
    store = MemoryStore()
    job = Job(GIVEN.schema, DOMAINS, 4, 4)
    engine = Engine(job, tuple(r.to_json() for r in rules().values()), store, Workers(1))
    lines = list(morning())
    engine.step(decoded(job, lines), (), {"p": (latest_ms(lines), False)})
    engine.save()
    found = [page for group in range(4) for _, page in stored_pages(store, group, DOMAINS)]
    assert len(found) > 16
    return found


@pytest.mark.parametrize("seed", range(4))
def test_pages_are_a_dictionary_whatever_fits_in_memory(keyed_states: list[KeyedState], seed: int) -> None:
    random = np.random.default_rng(seed)
    store = MemoryStore()
    bytes_max = (None, 1, 3 * bytes_of(keyed_states[0]), 10**9)[seed]
    pages, known = Pages(store, DOMAINS, bytes_max), dict[Place, bytes]()
    for _ in range(400):
        place = Place(0, int(random.integers(3)), int(random.integers(5)))
        match int(random.integers(4)):
            case 0 | 1:
                keyed_state = keyed_states[int(random.integers(len(keyed_states)))]
                pages.write(place, keyed_state)
                known[place] = encode_page(keyed_state)
            case 2 if place in known:
                assert encode_page(pages.read(place)) == known[place]
            case 3 if place in known:
                pages.remove(place)
                del known[place]
        if random.random() < 0.05:
            batch = WriteBatch()
            pages.save(batch)
            store.write(batch)
            stored = {at: encode_page(page) for group in range(3) for at, page in stored_pages(store, group, DOMAINS)}
            assert stored == known
    assert (pages.loads > 0) == (seed in (1, 2))


def test_a_page_of_a_key_that_the_job_no_longer_has_is_left_out(keyed_states: list[KeyedState], tmp_path: Path) -> None:
    store = MemoryStore()
    pages = Pages(store, (("gone",), *DOMAINS), None)
    pages.write(Place(0, 1, 0), keyed_states[0])
    pages.write(Place(1, 1, 0), keyed_states[1])
    batch = WriteBatch()
    assert pages.save(batch) == 2
    store.write(batch)
    assert [place for place, _ in stored_pages(store, 1, DOMAINS)] == [Place(0, 1, 0)]
