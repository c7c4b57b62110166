"""A worker's cached pages: never more bytes than allowed, and never other bytes than their hash names."""

from __future__ import annotations

from random import Random

import pytest

from cep.runners.spark.group_ports import CachedPages, PagePlace

BYTES_MAX = 1_000


@pytest.mark.parametrize("seed", range(20))
def test_bytes_are_those_that_were_put_last_or_none(seed: int) -> None:
    chance = Random(seed)
    cache = CachedPages(BYTES_MAX)
    last: dict[PagePlace, tuple[str, bytes]] = {}
    before: dict[PagePlace, str] = {}
    found_count = 0
    for _ in range(400):
        place = (0, chance.randrange(3), chance.randrange(4))
        if chance.random() < 0.5:
            if place in last:
                before[place] = last[place][0]
            data = chance.randbytes(chance.randrange(1, 300))
            last[place] = cache.put(place, data), data
        elif chance.random() < 0.2:
            cache.drop(place)
            last.pop(place, None)
        elif place in last:
            digest, data = last[place]
            content = cache.get(place, digest)
            assert content in (None, data)
            found_count += content is not None
            assert before.get(place) in (None, digest) or cache.get(place, before[place]) is None
        assert cache.get(place, None) is None
        assert cache.nbytes <= BYTES_MAX
    assert found_count, "what was put a moment ago is there"


def test_what_was_used_longest_ago_goes_first() -> None:
    cache = CachedPages(100)
    digests = {group: cache.put((0, group, 0), bytes([group]) * 40) for group in (1, 2)}
    assert cache.get((0, 1, 0), digests[1]) is not None
    cache.put((0, 3, 0), b"3" * 40)
    assert cache.get((0, 2, 0), digests[2]) is None
    assert cache.get((0, 1, 0), digests[1]) == b"\1" * 40


def test_a_page_that_is_larger_than_all_is_not_held() -> None:
    cache = CachedPages(10)
    assert cache.get((0, 0, 0), cache.put((0, 0, 0), b"x" * 11)) is None
