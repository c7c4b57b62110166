"""Ids that were seen before are found, whatever the order; buckets cover the window."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cep.columnar.route import route
from cep.runners import duplicates
from tests.columnar.common import TWO, decode, record

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
