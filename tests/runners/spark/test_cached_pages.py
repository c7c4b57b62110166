"""A worker's cached pages: never more bytes than allowed, and never other bytes than their hash names."""

from __future__ import annotations

from random import Random

import pytest

from cep.runners.spark.cached_pages import CachedPages, Place

BYTES_MAX = 1_000


@pytest.mark.parametrize("seed", range(20))
def test_bytes_are_those_that_were_put_last_or_none(seed: int) -> None:
    chance = Random(seed)
    held = CachedPages(BYTES_MAX)
    last: dict[Place, tuple[str, bytes]] = {}
    before: dict[Place, str] = {}
    found = 0
    for _ in range(400):
        place = (0, chance.randrange(3), chance.randrange(4))
        if chance.random() < 0.5:
            if place in last:
                before[place] = last[place][0]
            data = chance.randbytes(chance.randrange(1, 300))
            last[place] = held.put(place, data), data
        elif chance.random() < 0.2:
            held.drop(place)
            last.pop(place, None)
        elif place in last:
            digest, data = last[place]
            got = held.get(place, digest)
            assert got in (None, data)
            found += got is not None
            assert before.get(place) in (None, digest) or held.get(place, before[place]) is None
        assert held.get(place, None) is None
        assert held.nbytes <= BYTES_MAX
    assert found, "what was put a moment ago is there"


def test_what_was_used_longest_ago_goes_first() -> None:
    held = CachedPages(100)
    digests = {group: held.put((0, group, 0), bytes([group]) * 40) for group in (1, 2)}
    assert held.get((0, 1, 0), digests[1]) is not None
    held.put((0, 3, 0), b"3" * 40)
    assert held.get((0, 2, 0), digests[2]) is None
    assert held.get((0, 1, 0), digests[1]) == b"\1" * 40


def test_a_page_that_is_larger_than_all_is_not_held() -> None:
    held = CachedPages(10)
    assert held.get((0, 0, 0), held.put((0, 0, 0), b"x" * 11)) is None
