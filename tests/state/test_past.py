"""Pages of histories as bytes: head and segments come back, another format is refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from cep.base.errors import StateCorruptError, StateFormatError
from cep.engine.history_rows import Block
from cep.engine.history_state import Histories, Kept, PageFacts, segment_of
from cep.state.past import (
    HEAD_FORMAT,
    PAST_FORMAT,
    HeldBlocks,
    decode_head,
    decode_segment,
    digests_of,
    encode_head,
    encode_segment,
    stored,
)
from cep.state.sheets import decode_sheet, encode_sheet
from tests.engine.test_history_state import facts, random_block


def no_load(kept: Kept) -> Block:
    raise AssertionError(kept)


@pytest.mark.parametrize("seed", range(6))
def test_a_page_comes_back_and_segments_are_written_once(seed: int) -> None:
    random = np.random.default_rng(seed)
    written: dict[int, bytes] = {}

    def load(kept: Kept) -> Block:
        return decode_segment(written[kept.number])

    pinned, _ = random_block(random, 0, 20)
    blocks = [random_block(random, 100 * step, 10) for step in range(4)]
    page = Histories(pinned.keys, pinned.rows, tuple(segment_of(*given) for given in blocks[:2]), 7)
    once = stored(page, written.__setitem__, load, HeldBlocks(None))
    again = decode_head(encode_head(once), load)
    assert facts([s.load() for s in again.segments]) == facts([block for block, _ in blocks[:2]])
    about = [(s.first_ms, s.last_ms, s.span_ms, s.spans, s.most) for s in page.segments]
    assert [(s.first_ms, s.last_ms, s.span_ms, s.spans, s.most) for s in again.segments] == about
    pins = Block(again.keys, again.pinned)
    assert {k: [(t, v) for t, _, v in own] for k, own in facts([pins]).items()} == {
        k: [(t, v) for t, _, v in own] for k, own in facts([pinned]).items()
    }
    assert again.loose == 7
    first = dict(written)
    more = Histories(again.keys, again.pinned, (*again.segments, *(segment_of(*given) for given in blocks[2:])))
    finished = stored(more, written.__setitem__, load, HeldBlocks(None))
    assert {number: written[number] for number in first} == first, "what is there stays as it is"
    assert digests_of(finished).keys() == written.keys()


def test_a_head_of_when_less_was_carried_says_what_it_carries() -> None:
    """What its build did not know is begun anew from the kept events."""
    pinned, _ = random_block(np.random.default_rng(2), 0, 20)
    tally = np.arange(3 * len(pinned.keys), dtype=np.int64).reshape(-1, 3)
    page = Histories(pinned.keys, pinned.rows, facts=PageFacts(7, frozenset({"a", "b"})), tallies={"a": tally})
    about, columns = decode_sheet("page of histories", HEAD_FORMAT, encode_head(page))
    old = {"format": 2} | {name: about[name] for name in ("clock", "identities", "loose")}
    columns = {name: column for name, column in columns.items() if name != "segment_panes"}
    again = decode_head(encode_sheet("page of histories", old, columns), no_load)
    assert again.facts == PageFacts(7, frozenset({"a", "b"}), frozenset({"a"}))
    assert (again.tallies["a"] == tally).all()
    assert again.sub_tallies == {}


def test_what_is_held_is_bounded() -> None:
    block, _ = random_block(np.random.default_rng(1), 0, 50)
    held = HeldBlocks(3 * block.nbytes)
    for number in range(10):
        held.put(str(number), block)
    assert [held.get(str(number)) is not None for number in range(10)] == [False] * 7 + [True] * 3
    held.drop("8")
    held.put("9", block)
    held.put("10", block)
    assert [held.get(name) is not None for name in ("7", "8", "9", "10")] == [True, False, True, True]


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
