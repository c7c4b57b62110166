"""Ids that were seen before are found, whatever the order; buckets cover the window; cuts do not decide what counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cep.base.errors import StateCorruptError
from cep.base.utc import utc_text
from cep.columnar.route import route, split_by_group
from cep.runners.embedded.seen import SeenOfShare
from cep.step import duplicates
from cep.step.job import Job
from cep.step.match import MatchOutput
from tests.columnar.common import ONE, TWO, decode, record

HALVES = st.integers(0, 2**64 - 1) | st.integers(0, 2)
IDS = st.lists(st.tuples(HALVES, HALVES), max_size=30)
SECRET = np.array([[7, 9]], np.uint64)


def _array(ids: list[tuple[int, int]]) -> NDArray[np.uint64]:
    return np.array(ids, np.uint64).reshape(-1, 2).T.copy()


@given(IDS, IDS)
def test_known_ones_are_found(before: list[tuple[int, int]], now: list[tuple[int, int]]) -> None:
    """Both halves count: equal first ones are told apart."""
    secret, kept = duplicates.from_bytes(duplicates.to_bytes(SECRET[0], _array(before)))
    assert secret.tolist() == SECRET[0].tolist()
    ids = _array(now)
    assert duplicates.are_among(ids, kept).tolist() == [h in before for h in now]
    assert duplicates.first_of_each(ids).tolist() == [h not in now[:i] for i, h in enumerate(now)]


@pytest.mark.parametrize("data", [b"", b"1234", bytes(24)])
def test_what_is_no_ids_is_refused(data: bytes) -> None:
    with pytest.raises(StateCorruptError, match="restore"):
        duplicates.from_bytes(data)


@given(st.integers(-(10**12), 10**12), st.integers(1, 10**9), st.integers(0, 10**9))
def test_a_bucket_is_kept_while_any_of_its_times_is_in_the_window(watermark_ms: int, window_ms: int, ago: int) -> None:
    bucket = (watermark_ms - ago) // duplicates.bucket_width(window_ms)
    if ago <= window_ms:
        assert bucket >= duplicates.oldest_bucket(watermark_ms, window_ms)


def test_events_of_two_types_may_share_an_id() -> None:
    decoded = decode(
        [record(event_type="payment", tx_id="1"), record(event_type="login", login_id="1", device="d")], TWO
    )
    batch, _ = route(decoded, ("card_id",), TWO.columns())
    assert duplicates.first_of_each(duplicates.event_ids(batch, SECRET)).all()


class PlainIds:
    """Seen ids in a dict."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], set[tuple[int, ...]]] = {}

    def secrets(self, _number: int, _bucket: int, _keys: pa.Array) -> NDArray[np.uint64]:
        return SECRET

    def contains(self, number: int, bucket: int, ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
        return np.array([tuple(h) in self.held.get((number, bucket), ()) for h in ids.T.tolist()], bool)

    def add(self, number: int, bucket: int, ids: NDArray[np.uint64], keys: pa.Array) -> None:
        new = set(map(tuple, ids.T.tolist()))
        assert len(new) == len(keys)
        assert not self.held.setdefault((number, bucket), set()) & new
        self.held[number, bucket] |= new

    def forget(self, oldest: int) -> None:
        self.held = {at: ids for at, ids in self.held.items() if at[1] >= oldest}


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 7), st.integers(0, 30))
def test_an_event_on_time_comes_once_however_the_stream_is_cut(times: list[int], size: int, lateness: int) -> None:
    """Also where one micro-batch moves the watermark by more than the window. An event's id is its time."""
    job = Job(ONE, (("card_id",),), dedup_ms=lateness + 1)
    seen, output = PlainIds(), MatchOutput()
    came: list[int] = []
    expected: set[int] = set()
    times = [1_770_000_000_000 + ms for ms in times]
    watermark = 0
    for at in range(0, len(times), size):
        part = times[at : at + size]
        records = [record(tx_id=str(ms), event_time=utc_text(ms)) for ms in part]
        batch, _ = route(decode(records), ("card_id",), ONE.columns())
        fresh = duplicates.drop_duplicates(job, {0: [batch]}, watermark, seen, output)
        came += [ms for found in fresh[0] for ms in found.time_ms.tolist() if ms >= watermark]
        expected |= {ms for ms in part if ms >= watermark}
        watermark = max(watermark, max(part) - lateness)
    assert sorted(came) == sorted(expected)


BASE_MS = 1_770_000_000_000
WINDOW_MS, LATENESS_MS = 40, 7
# Ids and times as they come: some times are more than lateness and window behind others.
COMING = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 3, 9, 30, 44, 90])), min_size=1, max_size=30)
CUTS = st.lists(st.integers(1, 30), min_size=1, max_size=30)
Coming = list[tuple[int, int]]


def passed(coming: Coming, cuts: list[int]) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]], int]:
    """(ids and times that are no duplicates, those of them that are not late, the counter), cut as it is said."""
    job = Job(ONE, (("card_id",),), lateness_ms=LATENESS_MS, dedup_ms=WINDOW_MS)
    seen, output, watermark_ms = PlainIds(), MatchOutput(), 0
    found: Counter[tuple[int, int]] = Counter()
    matched: Counter[tuple[int, int]] = Counter()
    rest, sizes = list(coming), iter([*cuts, *([1] * len(coming))])
    while rest:
        size = next(sizes)
        part, rest = rest[:size], rest[size:]
        records = [record(tx_id=f"{event_id}", event_time=utc_text(BASE_MS + ms)) for event_id, ms in part]
        batch, _ = route(decode(records), ("card_id",), ONE.columns())
        for fresh in duplicates.drop_duplicates(job, {0: [batch]}, watermark_ms, seen, output)[0]:
            at = [
                (int(i), ms - BASE_MS) for i, ms in zip(fresh.event_id.to_pylist(), fresh.time_ms.tolist(), strict=True)
            ]
            found.update(at)
            matched.update((i, ms) for i, ms in at if BASE_MS + ms >= watermark_ms)
        watermark_ms = max(watermark_ms, *(BASE_MS + ms - LATENESS_MS for _, ms in part))
    return found, matched, output.counters["duplicates"]


@given(COMING, CUTS)
def test_what_an_event_counts_as_is_not_for_the_cuts_to_say(coming: Coming, cuts: list[int]) -> None:
    """An id counts once as late or matched, and else as a duplicate, if none of its events is behind the window.

    Whatever came before moves the watermark at most; so what is not behind by that is not behind by any cut.
    """
    found, matched, counted = passed(coming, cuts)
    assert counted == len(coming) - found.total(), "each event counts once"
    width = duplicates.bucket_width(WINDOW_MS)
    behind_ms = [max((ms for _, ms in coming[:at]), default=0) - coming[at][1] for at in range(len(coming))]
    for event_id, bucket in {(event_id, (BASE_MS + ms) // width) for event_id, ms in coming}:
        own = [at for at, (i, ms) in enumerate(coming) if i == event_id and (BASE_MS + ms) // width == bucket]
        times = {coming[at] for at in own}
        assert sum(matched[at] for at in times) <= 1
        if behind_ms[own[0]] <= LATENESS_MS and len(times) == 1:
            assert sum(matched[at] for at in times) == 1, "on time whatever the cuts"
        if all(behind_ms[at] <= LATENESS_MS + WINDOW_MS for at in own):
            assert sum(found[at] for at in times) == 1, "the others are duplicates"


def test_behind_the_window_each_is_late_also_within_a_micro_batch() -> None:
    coming = [(1, 90), (2, 0), (2, 0), (3, 60), (3, 60)]
    for cuts in ([1, 4], [1, 1, 3], [1, 2, 1, 1]):
        found, matched, counted = passed(coming, cuts)
        assert (found[2, 0], found[3, 60], matched.total(), counted) == (2, 1, 1, 1)


def test_a_history_counts_ids_as_a_stream_does_that_is_never_late() -> None:
    coming = [(ms % 3, ms) for ms in range(300)]
    records = [record(tx_id=f"{event_id}", event_time=utc_text(BASE_MS + ms)) for event_id, ms in coming]
    batch, _ = route(decode(records), ("card_id",), ONE.columns())
    (first,), repeated = duplicates.first_ones(Job(ONE, (("card_id",),), dedup_ms=WINDOW_MS), [batch])
    for cuts in ([len(coming)], [1] * len(coming), [7, 1, 50]):
        found, _, counted = passed(coming, cuts)
        assert (found.total(), counted) == (len(first), len(repeated))
    assert len(first) == 3 * len(coming) // duplicates.bucket_width(WINDOW_MS), "in each bucket once"


def test_an_id_counts_in_its_key_group_whatever_is_looked_at_together() -> None:
    """So a replay that has all key groups in one piece, and workers with some of them, leave out the same events."""
    coming = [(f"card-{n % 7}", f"{n % 11}", n % 50) for n in range(400)]
    records = [record(card_id=card, tx_id=tx_id, event_time=utc_text(BASE_MS + ms)) for card, tx_id, ms in coming]
    batch, _ = route(decode(records), ("card_id",), ONE.columns())
    job = Job(ONE, (("card_id",),), groups_count=4, dedup_ms=WINDOW_MS)
    (whole,), _ = duplicates.first_ones(job, [batch])
    expected = Counter(zip(whole.key.to_pylist(), whole.event_id.to_pylist(), whole.time_ms.tolist(), strict=True))
    for parts in ([batch], [part for _, part in split_by_group(batch, 4)]):
        of_replay: Counter[tuple[str, str, int]] = Counter()
        of_stream: Counter[tuple[str, str, int]] = Counter()
        for part in parts:
            seen = SeenOfShare([b"card"], 4)
            (first,), _ = duplicates.first_ones(job, [part])
            (fresh,) = duplicates.drop_duplicates(job, {0: [part]}, 0, seen, MatchOutput())[0]
            for found, counted in ((first, of_replay), (fresh, of_stream)):
                counted.update(
                    zip(found.key.to_pylist(), found.event_id.to_pylist(), found.time_ms.tolist(), strict=True)
                )
        assert of_replay == of_stream == expected
