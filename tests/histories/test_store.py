"""Segments of histories: joined, cut and put together, they hold the same events in the same order."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from cep.columnar.batch import TEXT
from cep.histories import store
from cep.histories.pages import concat_histories, partition_histories

KEYS = pa.array([f"k{number}" for number in range(12)], TEXT)
SPANS_MS = (50, 1_000, 40_000)


def random_block(
    random: np.random.Generator, first_ms: int, count: int, name: str = "amount"
) -> tuple[store.Block, int]:
    """Return events of some keys in their order, and the longest time that a rule needs them."""
    key = np.sort(random.integers(0, len(KEYS), count)).astype(np.int32)
    time = np.sort(random.integers(first_ms, first_ms + 100, count))
    span_ms = random.choice(SPANS_MS, count)
    codes = np.array([store.span_code(int(ms)) for ms in span_ms], np.int8)
    numbers = pa.array(random.integers(0, 10**6, count))
    rows = store.HistoryRows(key, np.zeros(count, np.int64), time, codes, {name: numbers})
    return store.block_of(KEYS, rows), int(span_ms.max())


def facts(blocks: Sequence[store.Block]) -> dict[str, list[tuple[int, int, object]]]:
    """Return the events of each key in their order."""
    whole = store.concat_blocks(list(blocks))
    facts_by_key: dict[str, list[tuple[int, int, object]]] = {name: [] for name in whole.keys.to_pylist()}
    values = whole.rows.columns["amount"].to_pylist() if len(whole) else []
    names = whole.keys.to_pylist()
    for index, (key, time, span) in enumerate(
        zip(whole.rows.key.tolist(), whole.rows.time_ms.tolist(), whole.rows.span.tolist(), strict=True)
    ):
        facts_by_key[names[key]].append((time, span, values[index]))
    return facts_by_key


def needed_events(blocks: Sequence[store.Block], watermark_ms: int) -> dict[str, list[tuple[int, int, object]]]:
    """Return the events that a rule may need after a watermark, for the keys that have any."""
    alive = {name: [row for row in rows if row[0] + 2 ** row[1] > watermark_ms] for name, rows in facts(blocks).items()}
    return {name: rows for name, rows in alive.items() if rows}


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_or_moved_by_joining(seed: int) -> None:
    random = np.random.default_rng(seed)
    histories, blocks, written = store.Histories(), list[store.Block](), 0
    for step in range(300):
        count = int(random.choice((1, 3, 40, 700)))
        block, span_ms = random_block(random, 100 * step, count)
        blocks.append(block)
        watermark_ms = 100 * step
        segments = (
            *store.reachable_segments(histories.segments, max(SPANS_MS), watermark_ms),
            store.segment_of(block, span_ms),
        )
        before = {id(segment) for segment in segments}
        histories = store.join_segments(store.Histories(segments=segments), {"amount"}, watermark_ms)
        written += sum(len(segment) for segment in histories.segments if id(segment) not in before) + count
        assert len(histories.segments) <= 3 * 8 + sum(map(len, histories.segments)) // 64 + 1
    stored_blocks = [segment.load() for segment in histories.segments]
    assert needed_events(stored_blocks, watermark_ms) == needed_events(blocks, watermark_ms)
    assert written < 5 * sum(map(len, blocks)), "an event is written a few times, however many follow it"


def test_what_no_rule_reads_any_more_is_left_out_when_segments_are_joined() -> None:
    random = np.random.default_rng(1)
    segments = tuple(store.segment_of(*random_block(random, 100 * step, 5, "gone")) for step in range(8))
    (joined,) = store.join_segments(store.Histories(segments=segments), {"amount"}, 0).segments
    assert joined.load().rows.columns == {}
    assert store.join_segments(store.Histories(segments=segments[:7]), {"amount"}, 0).segments == segments[:7]


def test_a_segment_is_dropped_when_its_last_event_is_over_or_no_rule_looks_so_far_back() -> None:
    block, _ = random_block(np.random.default_rng(2), 0, 5)
    segment = store.segment_of(block, 1_000)
    assert store.reachable_segments([segment], 2_000, segment.last_ms + 999) == (segment,)
    assert store.reachable_segments([segment], 2_000, segment.last_ms + 1_000) == ()
    assert store.reachable_segments([segment], 10, segment.last_ms + 10) == ()


@pytest.mark.parametrize("seed", range(8))
def test_pages_taken_apart_and_joined_are_the_same(seed: int) -> None:
    random = np.random.default_rng(seed)
    page_of_key = dict(zip(KEYS.to_pylist(), random.choice((2, 5, 9), len(KEYS)).tolist(), strict=True))

    def page_of(keys: pa.Array) -> np.ndarray:
        return np.array([page_of_key[name] for name in keys.to_pylist()], np.int64)

    pinned, _ = random_block(random, 0, 30)
    fresh = [random_block(random, 100 * step, 20) for step in range(3)]
    whole = store.Histories(pinned.keys, pinned.rows, tuple(store.segment_of(*arguments) for arguments in fresh))
    parts = partition_histories(whole, [2, 5, 9], page_of)
    for page, part in zip((2, 5, 9), parts, strict=True):
        for keys in (part.keys, *(segment.load().keys for segment in part.segments)):
            assert set(page_of(keys).tolist()) <= {page}
    joined = concat_histories(list(zip((2, 5, 9), parts, strict=True)))
    assert facts([s.load() for s in joined.segments]) == facts([block for block, _ in fresh])
    assert facts([store.Block(joined.keys, joined.pinned)]) == facts([pinned])
    again = partition_histories(joined, [2, 5, 9], page_of)
    for part, same in zip(parts, again, strict=True):
        pairs = zip(part.segments, same.segments, strict=True)
        assert all(before.load() is after.load() for before, after in pairs), "segments stay as they are"


def tallied(histories: store.Histories) -> tuple[dict[str, list[int]], dict[tuple[str, str], list[int]]]:
    """Return tallies by key, and by key and sub-key."""
    names, entries = histories.keys.to_pylist(), histories.sub_tallies["by shop"]
    by_key = dict(zip(names, histories.tallies["count"].tolist(), strict=True))
    owners = [(names[key], shop) for key, shop in zip(entries.key.tolist(), entries.by[0].to_pylist(), strict=True)]
    assert len(set(owners)) == len(owners)
    return by_key, dict(zip(owners, entries.sums.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_what_is_carried_goes_with_its_keys(seed: int) -> None:
    random = np.random.default_rng(seed)
    owners = [(key, shop) for key in range(len(KEYS)) for shop in ("s1", "s2", "s3") if random.random() < 0.5]
    entries = store.SubTallies(
        np.array([key for key, _ in owners], np.int32),
        (pa.array([shop for _, shop in owners], TEXT),),
        random.integers(1, 9, (len(owners), 3)),
    )
    counts = random.integers(1, 9, (len(KEYS), 3))
    page_of_key = random.choice((2, 5, 9), len(KEYS))
    whole = store.Histories(
        KEYS, facts=store.PageFacts(7, carried=frozenset({"count"})), tallies={"count": counts},
        sub_tallies={"by shop": entries},
    )  # fmt: skip

    def page_of(keys: pa.Array) -> np.ndarray:
        return page_of_key[np.array([int(name.removeprefix("k")) for name in keys.to_pylist()], np.int64)]

    parts = partition_histories(whole, [2, 5, 9], page_of)
    tallies = [tallied(part) for part in parts if len(part.keys)]
    assert {key: sums for by_key, _ in tallies for key, sums in by_key.items()} == tallied(whole)[0]
    assert {owner: sums for _, by_sub_key in tallies for owner, sums in by_sub_key.items()} == tallied(whole)[1]
    numbered = [(page, part) for page, part in zip((2, 5, 9), parts, strict=True) if len(part.keys)]
    assert tallied(concat_histories(numbered)) == tallied(whole)
    unnumbered = concat_histories([(-1, part) for _, part in numbered])
    assert len(numbered) == 1 or (unnumbered.tallies, unnumbered.sub_tallies) == ({}, {}), "begun anew from events"
