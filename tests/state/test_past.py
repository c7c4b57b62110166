"""Pages of histories as bytes: head and segments can be decoded, another format is refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from cep.base.errors import StateCorruptError, StateFormatError
from cep.histories.rows import Block
from cep.histories.store import Histories, PageFacts, StoredSegment, segment_of
from cep.state.past import (
    HEAD_FORMAT,
    PAST_FORMAT,
    SegmentCache,
    decode_head,
    decode_segment,
    digests_of,
    encode_head,
    encode_segment,
    store_segments,
)
from cep.state.sheets import decode_sheet, encode_sheet
from tests.histories.test_store import facts, random_block


def no_load(stored: StoredSegment) -> Block:
    raise AssertionError(stored)


@pytest.mark.parametrize("seed", range(6))
def test_a_page_comes_back_and_segments_are_written_once(seed: int) -> None:
    random = np.random.default_rng(seed)
    written: dict[int, bytes] = {}

    def load(stored: StoredSegment) -> Block:
        return decode_segment(written[stored.number])

    pinned, _ = random_block(random, 0, 20)
    blocks = [random_block(random, 100 * step, 10) for step in range(4)]
    page = Histories(pinned.keys, pinned.rows, tuple(segment_of(*arguments) for arguments in blocks[:2]), 7)
    once = store_segments(page, written.__setitem__, load, SegmentCache(None))
    again = decode_head(encode_head(once), load)
    assert facts([s.load() for s in again.segments]) == facts([block for block, _ in blocks[:2]])
    about = [(s.first_ms, s.last_ms, s.span_ms, s.spans, s.most) for s in page.segments]
    assert [(s.first_ms, s.last_ms, s.span_ms, s.spans, s.most) for s in again.segments] == about
    pins = Block(again.keys, again.pinned)
    assert {k: [(t, v) for t, _, v in values] for k, values in facts([pins]).items()} == {
        k: [(t, v) for t, _, v in values] for k, values in facts([pinned]).items()
    }
    assert again.loose == 7
    first = dict(written)
    more = Histories(again.keys, again.pinned, (*again.segments, *(segment_of(*arguments) for arguments in blocks[2:])))
    finished = store_segments(more, written.__setitem__, load, SegmentCache(None))
    assert {number: written[number] for number in first} == first, "what is there stays as it is"
    assert digests_of(finished).keys() == written.keys()


def test_what_is_held_is_bounded() -> None:
    block, _ = random_block(np.random.default_rng(1), 0, 50)
    cache = SegmentCache(3 * block.nbytes)
    for number in range(10):
        cache.put(str(number), block)
    assert [cache.get(str(number)) is not None for number in range(10)] == [False] * 7 + [True] * 3
    cache.drop("8")
    cache.put("9", block)
    cache.put("10", block)
    assert [cache.get(name) is not None for name in ("7", "8", "9", "10")] == [True, False, True, True]


@pytest.mark.parametrize("older", range(1, HEAD_FORMAT))
def test_a_head_of_a_build_that_was_never_released_is_refused_by_name(older: int) -> None:
    pinned, _ = random_block(np.random.default_rng(2), 0, 20)
    page = Histories(pinned.keys, pinned.rows, facts=PageFacts(7, frozenset({"a", "b"})))
    about, columns = decode_sheet("page of histories", (HEAD_FORMAT,), encode_head(page))
    with pytest.raises(StateFormatError, match=f"a page of histories has format {older}, this build reads"):
        decode_head(encode_sheet("page of histories", {**about, "format": older}, columns), no_load)


def test_another_format_is_refused_by_name() -> None:
    foreign = encode_sheet("page of histories", {"format": HEAD_FORMAT + 1}, {})
    with pytest.raises(StateFormatError, match=f"a page of histories has format {HEAD_FORMAT + 1}, this build reads"):
        decode_head(foreign, no_load)
    segment = encode_sheet("segment of a history", {"format": PAST_FORMAT + 1}, {})
    with pytest.raises(StateFormatError, match="a segment of a history has format"):
        decode_segment(segment)
    with pytest.raises(StateFormatError, match="a segment of a history has format None"):
        decode_segment(foreign)


def test_damaged_bytes_are_noticed() -> None:
    block, _ = random_block(np.random.default_rng(1), 0, 50)
    good = encode_segment(block)
    with pytest.raises(StateCorruptError, match="checksum"):
        decode_segment(good[:-1] + bytes([good[-1] ^ 1]))
