"""Repeated ids are found in any order; buckets cover the window; cuts do not change which events count."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cep.base.errors import StateCorruptError
from cep.base.text import utc_text
from cep.columnar.batch import EventBatch, data_columns
from cep.columnar.decode import split_by_group
from cep.kernels.groups import NEW, OTHER, SAME
from cep.runners.embedded.seen import SeenOfLevel
from cep.step import duplicates
from cep.step.job import Job
from cep.step.match import MatchOutput
from cep.step.validate import validate_events
from tests.columnar.common import ONE, TWO, decode, record

IDS = st.lists(st.tuples(st.integers(0, 2**64 - 1) | st.integers(0, 5), st.integers(0, 2)), max_size=30)
BASE_MS = 1_770_000_000_000
WINDOW_MS, LATENESS_MS, DAY_MS = 40, 7, 86_400_000
SECRET = np.array([[7, 9]], np.uint64)
KEY = (("card_id",),)


def _array(ids: Iterable[tuple[int, int]]) -> NDArray[np.uint64]:
    return np.array(list(ids), np.uint64).reshape(-1, 2).T.copy()


@given(IDS, IDS)
def test_pairs_are_judged_by_those_before_them(before: list[tuple[int, int]], now: list[tuple[int, int]]) -> None:
    stored_digests: dict[int, int] = {}
    assert duplicates.judged(_array(before)).tolist() == _plain(before, stored_digests)
    stored = duplicates.merged(np.empty((2, 0), np.uint64), _array(stored_digests.items()))
    secret, seen_digests = duplicates.from_bytes(duplicates.to_bytes(SECRET[0], stored))
    assert secret.tolist() == SECRET[0].tolist()
    verdicts = duplicates.judged_by(_array(now), seen_digests)
    assert verdicts.tolist() == _plain(now, stored_digests)
    whole = duplicates.merged(seen_digests, _array(now)[:, verdicts == NEW])
    assert whole.T.tolist() == [[i, c] for i, c in sorted(stored_digests.items())]


def _plain(pairs: Iterable[tuple[int, int]], remembered: dict[int, int]) -> list[int]:
    """Judge pairs in their order by a dict from ids to contents, and add the new ones to it."""
    verdicts = []
    for event_id, content in pairs:
        verdicts.append(NEW if event_id not in remembered else SAME if remembered[event_id] == content else OTHER)
        remembered.setdefault(event_id, content)
    return verdicts


@pytest.mark.parametrize("data", [b"", b"1234", bytes(24)])
def test_what_is_no_ids_is_refused(data: bytes) -> None:
    with pytest.raises(StateCorruptError, match="restore"):
        duplicates.from_bytes(data)


@given(st.integers(-(10**12), 10**12), st.integers(1, 10**9), st.integers(0, 10**9))
def test_a_bucket_is_kept_while_any_of_its_times_is_in_the_window(watermark_ms: int, window_ms: int, ago: int) -> None:
    bucket = (watermark_ms - ago) // duplicates.bucket_width(window_ms)
    if ago <= window_ms:
        assert bucket >= duplicates.oldest_bucket(watermark_ms, window_ms)


def test_what_makes_an_event_the_same_another_or_one_with_a_reused_id() -> None:
    """A login and a payment with one id are two events, and so are payments of two cards."""
    payment = record(event_type="payment", tx_id="1")
    records = [
        payment, record(event_type="login", login_id="1", device="d"),
        record(event_type="payment", tx_id="1", amount=1), payment,
        record(event_type="payment", tx_id="1", card_id="c2"), record(event_type="payment", tx_id="2"),
    ]  # fmt: skip
    job = Job(TWO, KEY, dedup_ms=WINDOW_MS)
    (batch,) = validate_events(job, decode(records, TWO)).batches
    verdicts = duplicates.judged(duplicates.event_ids(batch, SECRET)).tolist()
    assert verdicts == [NEW, NEW, OTHER, SAME, NEW, NEW]


def test_an_event_of_several_keys_is_settled_once_and_alike_for_all() -> None:
    """A decoy of another card must not hide an event from rules by the key that both share."""
    records = [
        record(retries=5),
        record(card_id="decoy", retries=5, amount=9),
        record(retries=5, amount=7),
        record(retries=5),
    ]
    job = Job(ONE, (("card_id",), ("retries",)), dedup_ms=DAY_MS)
    valid = validate_events(job, decode(records))
    output, seen_ids = MatchOutput(), PlainIds()
    fresh, letters = duplicates.drop_duplicates(job, {n: [b] for n, b in enumerate(valid.batches)}, 0, seen_ids, output)
    assert [[batch.key.to_pylist() for batch in fresh[n]] for n in (0, 1)] == [[["c1", "decoy"]], [["5", "5"]]]
    assert all(set(batch.columns) == set(data_columns(ONE)) for n in (0, 1) for batch in fresh[n])
    assert (output.counters["duplicates"], output.counters["reused_ids"]) == (1, 1)
    assert [(letter["code"], letter["event_id"], letter["key"]) for letter in letters] == [("reused_id", "t1", "c1")]
    history = MatchOutput()
    firsts = [duplicates.first_ones(job, n, [batch], history) for n, batch in enumerate(valid.batches)]
    assert [batch.key.to_pylist() for batch, _ in firsts] == [["c1", "decoy"], ["5", "5"]]
    assert (history.counters, [letter for _, letters_of_key in firsts for letter in letters_of_key]) == (
        output.counters,
        letters,
    )


class PlainIds:
    """Stores seen ids in a dict."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], dict[int, int]] = {}

    def secrets(self, _number: int, _bucket: int, _keys: pa.Array) -> NDArray[np.uint64]:
        return SECRET

    def take(self, number: int, bucket: int, ids: NDArray[np.uint64], keys: pa.Array) -> NDArray[np.uint8]:
        assert ids.shape == (2, len(keys))
        stored_digests = self.held.setdefault((number, bucket), {})
        return np.array(_plain(map(tuple, ids.T.tolist()), stored_digests), np.uint8)

    def forget(self, oldest: int) -> None:
        self.held = {bucket: ids for bucket, ids in self.held.items() if bucket[1] >= oldest}


def routed(job: Job, records: Sequence[bytes]) -> EventBatch:
    """Return the events of records by the first key of the job."""
    return validate_events(job, decode(records)).batches[0]


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 7), st.integers(0, 30))
def test_an_event_on_time_comes_once_however_the_stream_is_cut(times: list[int], size: int, lateness: int) -> None:
    """One micro-batch may move the watermark by more than the window. An event's id is its time."""
    job = Job(ONE, KEY, dedup_ms=lateness + 1)
    seen_ids, output = PlainIds(), MatchOutput()
    came: list[int] = []
    expected: set[int] = set()
    times = [1_770_000_000_000 + ms for ms in times]
    watermark = 0
    for start in range(0, len(times), size):
        part = times[start : start + size]
        records = [record(tx_id=str(ms), event_time=utc_text(ms)) for ms in part]
        fresh, letters = duplicates.drop_duplicates(job, {0: [routed(job, records)]}, watermark, seen_ids, output)
        assert not letters
        came += [ms for batch in fresh[0] for ms in batch.time_ms.tolist() if ms >= watermark]
        expected |= {ms for ms in part if ms >= watermark}
        watermark = max(watermark, max(part) - lateness)
    assert sorted(came) == sorted(expected)


# Ids and times in order of arrival: some times lag the others by more than lateness and window.
COMING = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 3, 9, 30, 44, 90])), min_size=1, max_size=30)
CUTS = st.lists(st.integers(1, 30), min_size=1, max_size=30)
Coming = list[tuple[int, int]]


def passed(coming: Coming, cuts: list[int]) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]], int]:
    """Return for these cuts: ids and times that are not duplicates, the same without late ones, the counter."""
    job = Job(ONE, KEY, lateness_ms=LATENESS_MS, dedup_ms=WINDOW_MS)
    seen_ids, output, watermark_ms = PlainIds(), MatchOutput(), 0
    fresh_ids: Counter[tuple[int, int]] = Counter()
    matched: Counter[tuple[int, int]] = Counter()
    rest, sizes = list(coming), iter([*cuts, *([1] * len(coming))])
    while rest:
        size = next(sizes)
        part, rest = rest[:size], rest[size:]
        records = [record(tx_id=f"{event_id}", event_time=utc_text(BASE_MS + ms)) for event_id, ms in part]
        for fresh in duplicates.drop_duplicates(job, {0: [routed(job, records)]}, watermark_ms, seen_ids, output)[0][0]:
            ids_and_times = [
                (int(i), ms - BASE_MS) for i, ms in zip(fresh.event_id.to_pylist(), fresh.time_ms.tolist(), strict=True)
            ]
            fresh_ids.update(ids_and_times)
            matched.update((i, ms) for i, ms in ids_and_times if BASE_MS + ms >= watermark_ms)
        watermark_ms = max(watermark_ms, *(BASE_MS + ms - LATENESS_MS for _, ms in part))
    return fresh_ids, matched, output.counters["duplicates"] + output.counters["reused_ids"]


@given(COMING, CUTS)
def test_what_an_event_counts_as_is_not_for_the_cuts_to_say(coming: Coming, cuts: list[int]) -> None:
    """An id counts once as late or matched, and otherwise as a duplicate, if all its events are within the window.

    Earlier events move the watermark at most. An event that does not lag with respect to them does not lag for any cut.
    """
    fresh_ids, matched, counted = passed(coming, cuts)
    assert counted == len(coming) - fresh_ids.total(), "each event counts once"
    width = duplicates.bucket_width(WINDOW_MS)
    behind_ms = [max((ms for _, ms in coming[:index]), default=0) - coming[index][1] for index in range(len(coming))]
    for event_id, bucket in {(event_id, (BASE_MS + ms) // width) for event_id, ms in coming}:
        indexes = [index for index, (i, ms) in enumerate(coming) if i == event_id and (BASE_MS + ms) // width == bucket]
        times = {coming[index] for index in indexes}
        assert sum(matched[time] for time in times) <= 1
        if behind_ms[indexes[0]] <= LATENESS_MS and len(times) == 1:
            assert sum(matched[time] for time in times) == 1, "on time whatever the cuts"
        if all(behind_ms[index] <= LATENESS_MS + WINDOW_MS for index in indexes):
            assert sum(fresh_ids[time] for time in times) == 1, "the others are duplicates"


def test_behind_the_window_each_is_late_also_within_a_micro_batch() -> None:
    coming = [(1, 90), (2, 0), (2, 0), (3, 60), (3, 60)]
    for cuts in ([1, 4], [1, 1, 3], [1, 2, 1, 1]):
        fresh_ids, matched, counted = passed(coming, cuts)
        assert (fresh_ids[2, 0], fresh_ids[3, 60], matched.total(), counted) == (2, 1, 1, 1)


def test_a_history_counts_ids_as_a_stream_does_that_is_never_late() -> None:
    coming = [(ms % 3, ms) for ms in range(300)]
    records = [record(tx_id=f"{event_id}", event_time=utc_text(BASE_MS + ms)) for event_id, ms in coming]
    job, output = Job(ONE, KEY, dedup_ms=WINDOW_MS), MatchOutput()
    first, letters = duplicates.first_ones(job, 0, [routed(job, records)], output)
    assert len(letters) == output.counters["reused_ids"] == output.counters.total() > 0, "their times differ"
    for cuts in ([len(coming)], [1] * len(coming), [7, 1, 50]):
        fresh_ids, _, counted = passed(coming, cuts)
        assert (fresh_ids.total(), counted) == (len(first), len(letters))
    assert len(first) == 3 * len(coming) // duplicates.bucket_width(WINDOW_MS), "in each bucket once"


def test_an_id_counts_in_its_key_group_whatever_is_looked_at_together() -> None:
    """A replay with all key groups together and workers with some of them leave out the same events."""
    coming = [(f"card-{n % 7}", f"{n % 11}", n % 50) for n in range(400)]
    records = [record(card_id=card, tx_id=tx_id, event_time=utc_text(BASE_MS + ms)) for card, tx_id, ms in coming]
    job = Job(ONE, KEY, groups_count=4, dedup_ms=WINDOW_MS)
    batch = routed(job, records)
    whole, _ = duplicates.first_ones(job, 0, [batch], MatchOutput())
    expected = Counter(zip(whole.key.to_pylist(), whole.event_id.to_pylist(), whole.time_ms.tolist(), strict=True))
    for parts in ([batch], [part for _, part in split_by_group(batch, 4)]):
        of_replay: Counter[tuple[str, str, int]] = Counter()
        of_stream: Counter[tuple[str, str, int]] = Counter()
        for part in parts:
            seen_ids = SeenOfLevel([b"card"], 4)
            first, _ = duplicates.first_ones(job, 0, [part], MatchOutput())
            (fresh,) = duplicates.drop_duplicates(job, {0: [part]}, 0, seen_ids, MatchOutput())[0][0]
            for first_batch, counted in ((first, of_replay), (fresh, of_stream)):
                counted.update(
                    zip(
                        first_batch.key.to_pylist(),
                        first_batch.event_id.to_pylist(),
                        first_batch.time_ms.tolist(),
                        strict=True,
                    )
                )
        assert of_replay == of_stream == expected
