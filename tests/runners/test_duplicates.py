"""Ids that were seen before are found, whatever the order; buckets cover the window."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cep.columnar.route import route
from cep.model.rule import utc_text
from cep.runners import duplicates
from cep.runners.job import Job, StepOutput
from tests.columnar.common import ONE, TWO, decode, record

HASHES = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 5), max_size=30)


@given(HASHES, HASHES)
def test_known_ones_are_found(before: list[int], now: list[int]) -> None:
    kept = duplicates.from_bytes(duplicates.to_bytes(np.array(before, np.uint64)))
    hashes = np.array(now, np.uint64)
    assert duplicates.are_known(hashes, kept).tolist() == [h in before for h in now]
    assert duplicates.first_of_each(hashes).tolist() == [h not in now[:i] for i, h in enumerate(now)]


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
    assert len(set(duplicates.event_hashes(batch).tolist())) == 2


class PlainIds:
    """Seen ids in a dict."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], set[int]] = {}

    def of(self, number: int, bucket: int) -> NDArray[np.uint64]:
        return np.array(sorted(self.held.get((number, bucket), ())), np.uint64)

    def add(self, number: int, bucket: int, hashes: NDArray[np.uint64], keys: pa.Array) -> None:
        assert len(hashes) == len(keys)
        assert not self.held.setdefault((number, bucket), set()) & set(hashes.tolist())
        self.held[number, bucket] |= set(hashes.tolist())

    def forget(self, oldest: int) -> None:
        self.held = {at: ids for at, ids in self.held.items() if at[1] >= oldest}


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 7), st.integers(0, 30))
def test_an_event_on_time_comes_once_however_the_stream_is_cut(times: list[int], size: int, lateness: int) -> None:
    """Also where one micro-batch moves the watermark by more than the window. An event's id is its time."""
    job = Job(ONE, (("card_id",),), dedup_ms=lateness + 1)
    seen, output = PlainIds(), StepOutput()
    came: list[int] = []
    expected: set[int] = set()
    times = [1_770_000_000_000 + ms for ms in times]
    watermark = 0
    for at in range(0, len(times), size):
        part = times[at : at + size]
        records = [record(tx_id=str(ms), event_time=utc_text(ms)) for ms in part]
        batch, _ = route(decode(records), ("card_id",), ONE.columns())
        fresh = duplicates.without_seen(job, {0: [batch]}, watermark, seen, output)
        came += [ms for found in fresh[0] for ms in found.time_ms.tolist() if ms >= watermark]
        expected |= {ms for ms in part if ms >= watermark}
        watermark = max(watermark, max(part) - lateness)
    assert sorted(came) == sorted(expected)
