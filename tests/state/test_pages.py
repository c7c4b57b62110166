"""Keyed state, pages, histories and entries as bytes: they are read as they were written.

Damaged bytes and other formats are refused by name. Many pages at once equal one page per part. Store keys sort like
their parts, and a prefix of the parts is one range.
"""

import json
import struct
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cep.base.errors import LimitError, StateCorruptError, StateError, StateFormatError, StoreError
from cep.base.limits import ENTRY_BLOCK_BYTES_MAX, KEY_GROUPS_MAX, TIME_MS_MAX
from cep.columnar.batch import TEXT, EventBatch, decode_table, encode_table
from cep.engine.advance import advance
from cep.engine.keyed_state import KeyedState, concat_states, empty_state, partition_keys
from cep.engine.migrate import migrate_state
from cep.histories.store import Block, Histories, PageFacts, StoredSegment, segment_of
from cep.nfa.compile import problems
from cep.nfa.program import Program
from cep.state import past
from cep.state.packed import Shape, pack, shape_number, unpack
from cep.state.past import EARLIER_PAGE_FORMAT, PAGE_FORMAT, decode_page, decode_sheet, encode_page, encode_sheet
from cep.state.savepoints import read_entries, write_entries
from cep.state.store import ALL_KEYS, STORE_GROUP, StoreKey, group_range, prefix_range, split_key, store_key
from tests.engine.bridge import Answers, Delivery, batch_of, engine_answers, program_of
from tests.engine.rules import batch, program, rule
from tests.engine.selected import select_keys
from tests.histories.test_store import facts as block_facts
from tests.histories.test_store import random_block
from tests.oracle.random_cases import SCHEMA, random_case

SEEDS = range(120)


def facts(state: KeyedState) -> list[object]:
    """Return all contents of a keyed state, for a comparison."""
    events = state.events
    return [
        state.layout,
        state.keys.to_pylist(),
        state.runs.tolist(),
        state.run_rule.tolist(),
        state.run_key.tolist(),
        state.nodes.tolist(),
        events.key.tolist(),
        events.event_id.to_pylist(),
        events.event_type.tolist(),
        events.time_ms.tolist(),
        {name: column.to_pylist() for name, column in events.columns.items()},
    ]


def halfway(seed: int) -> tuple[Program, KeyedState, Delivery] | None:
    """Return the state in the middle of a random case, and the events that follow; None for a refused pattern."""
    case = random_case(seed, 3)
    if problems(case.pattern, SCHEMA):
        return None
    others = [random_case(10_000 + seed + i, 1).pattern for i in range(2)]
    program = program_of(SCHEMA, case.pattern, *others)
    batch = batch_of(SCHEMA, case.events)
    cut = len(batch) // 2
    before, after = batch.take(np.arange(cut)), batch.take(np.arange(cut, len(batch)))
    state = advance(program, None, before, -(2**60)).keyed_state
    return program, state, (after, 2**61 - 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_page_comes_back(seed: int) -> None:
    case = halfway(seed)
    if case is not None:
        assert facts(decode_page(encode_page(case[1]))) == facts(case[1])


@pytest.mark.parametrize("seed", SEEDS)
def test_keys_taken_apart_and_joined_go_on_as_one(seed: int) -> None:
    case = halfway(seed)
    if case is None:
        return
    program, state, (batch, watermark_ms) = case
    random = Random(seed)
    share = np.array([random.random() < 0.5 for _ in state.keys], bool)
    parts = [select_keys(state, share, program.row_registers), select_keys(state, ~share, program.row_registers)]
    assert sum(len(part) for part in parts) == len(state)
    joined = concat_states(parts, program.row_registers)
    if share.all():
        assert facts(parts[0]) == facts(state)
    assert _goes_on(program, joined, batch, watermark_ms) == _goes_on(program, state, batch, watermark_ms)


def _goes_on(program: Program, state: KeyedState, batch: EventBatch, watermark_ms: int) -> Answers:
    return engine_answers(program, [(batch, watermark_ms)], keyed_state=state)


def test_the_empty_state_comes_back() -> None:
    program = program_of(SCHEMA, random_case(1, 1).pattern)
    state = empty_state(program)
    assert facts(decode_page(encode_page(state))) == facts(state)


def test_another_page_format_is_refused_by_name() -> None:
    table = decode_table(encode_page(empty_state(program_of(SCHEMA, random_case(1, 1).pattern))))
    meta = json.loads(table.schema.metadata[b"page"]) | {"format": PAGE_FORMAT + 1}
    foreign = encode_table(table.replace_schema_metadata({"page": json.dumps(meta)}))
    with pytest.raises(StateFormatError, match=f"a page has format {PAGE_FORMAT + 1}, this build reads {PAGE_FORMAT}"):
        decode_page(foreign)


def test_a_block_that_is_no_page_is_refused_by_name() -> None:
    with pytest.raises(StateFormatError, match="a page has format None"):
        decode_page(encode_table(pa.record_batch({"x": [1]})))


def test_damaged_bytes_are_noticed() -> None:
    good = encode_page(empty_state(program_of(SCHEMA, random_case(1, 1).pattern)))
    with pytest.raises(StateCorruptError, match="checksum"):
        decode_page(good[:-1] + bytes([good[-1] ^ 1]))


STORED = sorted(Path(__file__).with_name("stored").glob("page-*.bin"))
CHAIN = "seq x -> y -> z within 1 min\nwhere x: e kind == a\ny: e kind == b\nz: e kind == c and amount > x.amount"


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_pages_that_builds_have_written(path: Path) -> None:
    """Bytes of every format: this build and 0.2.0 are accepted, the others are refused by name."""
    written_format = int(path.stem.removeprefix("page-"))
    if written_format not in (PAGE_FORMAT, EARLIER_PAGE_FORMAT):
        with pytest.raises(StateFormatError, match=f"a page has format {written_format}"):
            decode_page(path.read_bytes())
        return
    rules = program(rule(CHAIN, "chain"))
    state, orphans = migrate_state(decode_page(path.read_bytes()), rules)
    assert (len(state), orphans, state.keys.to_pylist()) == (2, 0, ["k", "other"])
    matches = advance(rules, state, batch("k c@4000 1.51", "other b@5000", "other c@6000 2.00"), 0).matches
    assert matches.event_id.to_pylist()[:2] == ["e0", "e1"], "bound before, completed now"
    assert int(matches.completed.sum()) == 1, "2.00 is not more than 2.00"


def test_the_format_that_is_written_is_among_the_stored_ones() -> None:
    assert f"page-{PAGE_FORMAT}" in [path.stem for path in STORED], "keep bytes of every format"


def packed_halfway(seed: int) -> tuple[Program, KeyedState] | None:
    """Return the state in the middle of a random case, with missing values in some columns."""
    patterns = [random_case(seed * 7 + i, 1 + i % 3).pattern for i in range(4)]
    chosen = [pattern for pattern in patterns if not problems(pattern, SCHEMA)]
    if not chosen:
        return None
    program = program_of(SCHEMA, *chosen)
    events = batch_of(SCHEMA, random_case(seed, 3).events)
    state = advance(program, None, events, int(np.median(events.time_ms))).keyed_state
    return program, _with_every_type(state, np.random.default_rng(seed))


def _with_every_type(state: KeyedState, random: np.random.Generator) -> KeyedState:
    def columns(rows: int) -> dict[str, pa.Array]:
        values = [random.random() for _ in range(rows)]
        missing = random.random(rows) < 0.3
        return {
            "number": pa.array([int(v * 100) for v in values], pa.int64(), mask=missing),
            "share": pa.array(values, pa.float64()),
            "text": pa.array(["é" * int(v * 4) for v in values], TEXT, mask=~missing),
            "truth": pa.array([v < 0.5 for v in values], pa.bool_(), mask=missing),
        }

    events = replace(state.events, columns={**state.events.columns, **columns(len(state.events))})
    return replace(state, events=events)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_packed_comes_back_page_by_page_and_together(seed: int) -> None:
    case = packed_halfway(seed)
    if case is None:
        return
    program, keyed_state = case
    random = np.random.default_rng(seed)
    parts_count = int(random.integers(1, 5))
    part = random.integers(0, parts_count, len(keyed_state.keys))
    registers = program.row_registers
    shape = Shape.of(keyed_state)
    assert Shape.from_bytes(shape.to_bytes()) == shape
    pages, over = pack(keyed_state, part, parts_count, registers, shape)
    cut = partition_keys(keyed_state, part, parts_count, registers)
    for page, expected in zip(pages, cut, strict=True):
        assert shape_number(page) == shape.number
        if len(expected.keys):
            assert encode_page(unpack([page], shape, registers)) == encode_page(expected)
    assert over.tolist() == [
        TIME_MS_MAX if (expiry_ms := each.expiry_min) is None else min(expiry_ms, TIME_MS_MAX - 1) for each in cut
    ]
    filled = [number for number, share in enumerate(cut) if len(share.keys)]
    if filled:
        chosen = random.permutation(filled).tolist()
        joined = unpack([pages[number] for number in chosen], shape, registers)
        assert encode_page(joined) == encode_page(concat_states([cut[number] for number in chosen], registers))


def test_pages_with_and_without_nulls_are_joined() -> None:
    program, keyed_state = next(case for case in map(packed_halfway, range(60)) if case and len(case[1].keys) > 1)
    first = np.arange(len(keyed_state.keys)) == 0
    whole = replace(keyed_state, events=_filled(keyed_state))
    shape, registers = Shape.of(keyed_state), program.row_registers
    parts = [select_keys(keyed_state, first, registers), select_keys(whole, ~first, registers)]
    pages = [pack(part, np.zeros(len(part.keys), np.int64), 1, registers, shape)[0][0] for part in parts]
    assert encode_page(unpack(pages, shape, registers)) == encode_page(concat_states(parts, registers))


def _filled(keyed_state: KeyedState):  # type: ignore[no-untyped-def]
    fills = {pa.int64(): 1, pa.float64(): 1.0, pa.bool_(): True, TEXT: "x"}
    columns = {name: column.fill_null(fills[column.type]) for name, column in keyed_state.events.columns.items()}
    return replace(keyed_state.events, columns=columns)


def test_bytes_that_are_no_page_are_refused_by_name() -> None:
    program, keyed_state = next(case for case in map(packed_halfway, range(60)) if case and len(case[1].keys))
    shape = Shape.of(keyed_state)
    part = np.zeros(len(keyed_state.keys), np.int64)
    (page,), _ = pack(keyed_state, part, 1, program.row_registers, shape)
    with pytest.raises(StateFormatError, match="format 9, this build reads 3"):
        shape_number(page[:3] + b"\x09" + page[4:])
    with pytest.raises(StateCorruptError, match="not ours"):
        shape_number(b"CEP" + page[3:])
    with pytest.raises(StateCorruptError, match="shorter than its head"):
        shape_number(page[:5])
    for torn in (page[:20], page[:-1], page + b"x"):
        with pytest.raises(StateCorruptError):
            unpack([torn], shape, program.row_registers)
    with pytest.raises(StateCorruptError):
        Shape.from_bytes(b'{"rules": 1}')


def no_load(stored: StoredSegment) -> Block:
    raise AssertionError(stored)


@pytest.mark.parametrize("seed", range(6))
def test_a_page_comes_back_and_segments_are_written_once(seed: int) -> None:
    random = np.random.default_rng(seed)
    written: dict[int, bytes] = {}

    def load(stored: StoredSegment) -> Block:
        return past.decode_segment(written[stored.number])

    pinned, _ = random_block(random, 0, 20)
    blocks = [random_block(random, 100 * step, 10) for step in range(4)]
    page = Histories(pinned.keys, pinned.rows, tuple(segment_of(*arguments) for arguments in blocks[:2]), 7)
    once = past.store_segments(page, written.__setitem__, load, past.SegmentCache(None))
    again = past.decode_head(past.encode_head(once), load)
    assert block_facts([s.load() for s in again.segments]) == block_facts([block for block, _ in blocks[:2]])
    about = [(s.first_ms, s.last_ms, s.span_ms, s.counts_by_span, s.busiest_key_events) for s in page.segments]
    assert [(s.first_ms, s.last_ms, s.span_ms, s.counts_by_span, s.busiest_key_events) for s in again.segments] == about
    pins = Block(again.keys, again.pinned)
    assert {k: [(t, v) for t, _, v in values] for k, values in block_facts([pins]).items()} == {
        k: [(t, v) for t, _, v in values] for k, values in block_facts([pinned]).items()
    }
    assert again.excess_allowed == 7
    first = dict(written)
    more = Histories(again.keys, again.pinned, (*again.segments, *(segment_of(*arguments) for arguments in blocks[2:])))
    finished = past.store_segments(more, written.__setitem__, load, past.SegmentCache(None))
    assert {number: written[number] for number in first} == first, "what is there stays as it is"
    assert past.digests_of(finished).keys() == written.keys()


def test_what_is_held_is_bounded() -> None:
    block, _ = random_block(np.random.default_rng(1), 0, 50)
    cache = past.SegmentCache[Block](3 * block.nbytes)
    for number in range(10):
        cache.put(str(number), block)
    assert [cache.get(str(number)) is not None for number in range(10)] == [False] * 7 + [True] * 3
    cache.drop("8")
    cache.put("9", block)
    cache.put("10", block)
    assert [cache.get(name) is not None for name in ("7", "8", "9", "10")] == [True, False, True, True]


@pytest.mark.parametrize("older", range(1, past.HEAD_FORMAT))
def test_a_head_of_a_build_that_was_never_released_is_refused_by_name(older: int) -> None:
    pinned, _ = random_block(np.random.default_rng(2), 0, 20)
    page = Histories(pinned.keys, pinned.rows, facts=PageFacts(7, frozenset({"a", "b"})))
    about, columns = decode_sheet("page of histories", (past.HEAD_FORMAT,), past.encode_head(page))
    with pytest.raises(StateFormatError, match=f"a page of histories has format {older}, this build reads"):
        past.decode_head(encode_sheet("page of histories", {**about, "format": older}, columns), no_load)


def test_another_format_is_refused_by_name() -> None:
    foreign = encode_sheet("page of histories", {"format": past.HEAD_FORMAT + 1}, {})
    with pytest.raises(
        StateFormatError, match=f"a page of histories has format {past.HEAD_FORMAT + 1}, this build reads"
    ):
        past.decode_head(foreign, no_load)
    segment = encode_sheet("segment of a history", {"format": past.PAST_FORMAT + 1}, {})
    with pytest.raises(StateFormatError, match="a segment of a history has format"):
        past.decode_segment(segment)
    with pytest.raises(StateFormatError, match="a segment of a history has format None"):
        past.decode_segment(foreign)


def test_damaged_bytes_of_a_past_are_noticed() -> None:
    block, _ = random_block(np.random.default_rng(1), 0, 50)
    good = past.encode_segment(block)
    with pytest.raises(StateCorruptError, match="checksum"):
        past.decode_segment(good[:-1] + bytes([good[-1] ^ 1]))


ENTRIES = [(b"%05d" % i, bytes([i % 256]) * 700) for i in range(4_000)]  # three blocks


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=4))))
def test_entries_come_back(tmp_path: Path, entries: list[tuple[bytes, bytes]]) -> None:
    assert write_entries(tmp_path / "e", entries) == len(entries)
    assert list(read_entries(tmp_path / "e")) == entries


def test_many_blocks_come_back(tmp_path: Path) -> None:
    write_entries(tmp_path / "e", ENTRIES)
    assert list(read_entries(tmp_path / "e")) == ENTRIES


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_file_that_ends_early_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    write_entries(tmp_path / "e", ENTRIES[:3])
    whole = (tmp_path / "e").read_bytes()
    (tmp_path / "e").write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(StateCorruptError):
        list(read_entries(tmp_path / "e"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_byte_is_noticed(tmp_path: Path, data: st.DataObject) -> None:
    write_entries(tmp_path / "e", ENTRIES[:3])
    broken = bytearray((tmp_path / "e").read_bytes())
    broken[data.draw(st.integers(0, len(broken) - 1))] ^= data.draw(st.integers(1, 255))
    (tmp_path / "e").write_bytes(broken)
    with pytest.raises(StateError):
        list(read_entries(tmp_path / "e"))


@pytest.mark.parametrize("block", range(3))
def test_a_length_that_became_zero_is_not_taken_for_the_end(tmp_path: Path, block: int) -> None:
    path = tmp_path / "entries"
    write_entries(path, ENTRIES)
    damaged = bytearray(path.read_bytes())
    offset = 0
    for _ in range(block):
        offset += 4 + struct.unpack_from("<I", damaged, offset)[0]
    damaged[offset : offset + 4] = bytes(4)
    path.write_bytes(damaged)
    with pytest.raises(StateCorruptError, match="goes on behind its last block"):
        list(read_entries(path))


def test_a_length_that_is_longer_than_the_file_takes_no_room(tmp_path: Path) -> None:
    path = tmp_path / "entries"
    path.write_bytes(struct.pack("<I", ENTRY_BLOCK_BYTES_MAX) + b"block")
    tracemalloc.start()
    try:
        with pytest.raises(StateCorruptError, match="ends inside a block"):
            list(read_entries(path))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_missing_file_and_a_missing_folder_have_names(tmp_path: Path) -> None:
    with pytest.raises(StateCorruptError, match="cannot read"):
        list(read_entries(tmp_path / "none"))
    with pytest.raises(StoreError, match="cannot write"):
        write_entries(tmp_path / "none" / "e", ())


def test_a_forged_block_whose_columns_have_no_names_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "entries"
    write_entries(path, [(b"key", b"other")])
    data = bytearray(path.read_bytes())
    offset = data.index(b"value")
    data[offset : offset + 1] = b"\xcc"
    data[8:12] = struct.pack("<I", zlib.crc32(data[12:-4]))
    path.write_bytes(data)
    with pytest.raises(StateCorruptError, match="a block that is none"):
        list(read_entries(path))


@pytest.mark.parametrize("place", range(0, 600, 7))
def test_a_forged_block_with_the_right_checksum_is_refused_or_whole(tmp_path: Path, place: int) -> None:
    """Offsets beyond a buffer would read, and show, memory of the process."""
    path = tmp_path / "entries"
    write_entries(path, [(b"key-%d" % n, bytes(n)) for n in range(20)])
    data = bytearray(path.read_bytes())
    body_at = 4 + 8  # the length of the block, and its header
    end = len(data) - 4
    data[body_at + place % (end - body_at)] ^= 0x40
    data[body_at - 4 : body_at] = struct.pack("<I", zlib.crc32(data[body_at:end]))
    path.write_bytes(data)
    try:
        entries = list(read_entries(path))
    except (StateCorruptError, StateFormatError):
        return
    assert all(isinstance(key, bytes) and isinstance(value, bytes) for key, value in entries)
    assert sum(len(value) for _, value in entries) < len(data)


# The bytes that need escapes come often.
PART = st.lists(st.sampled_from([0, 1, 2, 254, 255]) | st.integers(0, 255), max_size=5).map(bytes)
KEYS = st.builds(StoreKey, st.sampled_from([0, 1, 255, 256, KEY_GROUPS_MAX - 1, STORE_GROUP]), PART, PART, PART, PART)


@given(KEYS)
def test_the_parts_come_back(key: StoreKey) -> None:
    assert split_key(store_key(*key)) == key


@given(KEYS, KEYS)
def test_the_order_is_that_of_the_parts(one: StoreKey, other: StoreKey) -> None:
    assert (store_key(*one) < store_key(*other)) == (one < other)


@given(KEYS, KEYS, st.integers(1, 3))
def test_a_prefix_is_one_range(one: StoreKey, other: StoreKey, parts_count: int) -> None:
    within = prefix_range(one.key_group, *(one.key, one.namespace, one.name)[:parts_count])
    raw = store_key(*other)
    assert (within.begin <= raw < within.end) == (one[: 1 + parts_count] == other[: 1 + parts_count])


@given(KEYS, KEYS)
def test_a_key_group_is_one_range(one: StoreKey, other: StoreKey) -> None:
    within = group_range(one.key_group)
    raw = store_key(*other)
    assert (within.begin <= raw < within.end) == (one.key_group == other.key_group)
    assert ALL_KEYS.begin <= raw < ALL_KEYS.end


@given(KEYS, st.integers(0, 300), st.integers(1, 300))
def test_key_groups_from_to_are_one_range(key: StoreKey, first: int, count: int) -> None:
    within = group_range(first, first + count)
    assert (within.begin <= store_key(*key) < within.end) == (first <= key.key_group < first + count)


def test_what_is_no_store_key_is_refused() -> None:
    with pytest.raises(StateCorruptError, match="1 of 3 parts"):
        split_key(b"\x00\x07abc\x00\x01def")
    with pytest.raises(LimitError, match="store key"):
        store_key(0, b"k" * 5_000, b"", b"")
