"""The watermark of several partitions, for any order of reading and any lead, and the expired times."""

import random
from collections.abc import Mapping

import numpy as np
import pytest

from cep.base.limits import SUPPORT_PARTS_MAX, SUPPORT_RECORDS_MIN, SUPPORT_SHARE, TIME_MS_MAX, TIME_MS_MIN
from cep.step import event_time
from tests.seeds import seeds

NOW_MS, IDLE_MS, AHEAD_MS, HOUR_MS = 10_000_000, 10, 1_000, 3_600_000
ACTIVE_MS, QUIET_MS = NOW_MS - IDLE_MS, NOW_MS - IDLE_MS - 1


def active(last_ms: int, *, is_behind: bool = False) -> event_time.PartitionTime:
    return event_time.PartitionTime(last_ms, is_behind, ACTIVE_MS)


def quiet(last_ms: int, *, is_behind: bool = False) -> event_time.PartitionTime:
    return event_time.PartitionTime(last_ms, is_behind, QUIET_MS)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        pytest.param({}, TIME_MS_MIN, id="nothing was read"),
        pytest.param({"a": active(100)}, 97, id="one partition"),
        pytest.param({"a": quiet(100)}, 97, id="one partition that is idle"),
        pytest.param({"a": active(100), "b": active(7)}, 4, id="the slowest holds it, however far the other is"),
        pytest.param({"a": active(100), "b": quiet(99)}, 97, id="idle, however near"),
        pytest.param({"a": active(100), "b": quiet(7, is_behind=True)}, 4, id="behind, however long"),
        pytest.param({"a": active(100), "b": quiet(TIME_MS_MIN, is_behind=True)}, TIME_MS_MIN, id="behind, unread"),
        pytest.param({"a": active(100), "b": active(TIME_MS_MIN)}, TIME_MS_MIN, id="new and empty"),
        pytest.param({"a": active(100), "b": quiet(TIME_MS_MIN)}, 97, id="empty for long"),
        pytest.param({"a": quiet(100), "b": quiet(50)}, 97, id="all are idle"),
        pytest.param({"a": active(100, is_behind=True), "b": quiet(89), "c": active(95)}, 92, id="idle beside others"),
    ],
)
def test_the_watermark(times: event_time.PartitionTimes, expected: int) -> None:
    assert event_time.watermark_of(times, 3, IDLE_MS, NOW_MS) == expected


class Partitions:
    """A job's view of some partitions, which are read at a clock."""

    def __init__(self, names: str, now_ms: int = NOW_MS, ahead_ms: int | None = AHEAD_MS, lateness_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms
        self.lateness_ms = lateness_ms
        self.watermark_ms = TIME_MS_MIN
        self.late = 0
        self.times: event_time.PartitionTimes = {}
        self.look(now_ms, dict.fromkeys(names, ()))

    def look(self, now_ms: int, read: Mapping[str, tuple[int, ...]], behind: str = "") -> None:
        """Process one micro-batch with events of these times, by partition."""
        self.late += sum(ms < self.watermark_ms for times in read.values() for ms in times)
        partition_times = {
            name: event_time.read_time(np.array(times, np.int64), now_ms, self.ahead_ms, is_behind=name in behind)
            for name, times in read.items()
        }
        read_times = event_time.TimesRead(partition_times, now_ms=now_ms)
        self.times = event_time.merge_times(self.times, read_times, IDLE_MS, self.watermark_ms, self.ahead_ms)
        assert event_time.times_from_json(event_time.times_json(self.times)) == self.times
        self.watermark_ms = max(
            self.watermark_ms, event_time.watermark_of(self.times, self.lateness_ms, IDLE_MS, now_ms)
        )

    def settle(self, now_ms: int) -> int:
        """Look again whenever the clock alone may move the watermark; return the last clock."""
        while (next_ms := event_time.next_look_ms(self.times, IDLE_MS, now_ms)) < TIME_MS_MAX:
            now_ms = next_ms
            self.look(now_ms, {})
        return now_ms


def test_nothing_in_order_is_late_however_unevenly_partitions_are_read() -> None:
    """A backlog of four partitions, each in order; pieces of any length are read from any of them."""
    for seed in range(200):
        chance = random.Random(seed)
        waiting = {name: sorted(chance.sample(range(10_000), chance.randint(1, 60))) for name in "abcd"}
        job, now_ms = Partitions("abcd"), NOW_MS
        while any(waiting.values()):
            read: dict[str, tuple[int, ...]] = {}
            for name in waiting:
                quota = chance.choice([0, 0, 1, 20])
                records_read, waiting[name] = waiting[name][:quota], waiting[name][quota:]
                if records_read:
                    read[name] = tuple(records_read)
            now_ms += chance.choice([0, 1, 5])
            job.look(now_ms, read, "".join(name for name, records in waiting.items() if records))
            # An unread partition reports that it has waiting events.
            for name, unread in waiting.items():
                if unread and name not in read:
                    job.look(now_ms, {name: ()}, name)
        assert job.late == 0, f"seed {seed}"
        job.settle(now_ms)
        assert job.watermark_ms == max(time.last_ms for time in job.times.values())


def test_what_is_produced_within_the_lateness_is_never_late_however_it_is_split_and_read() -> None:
    """No event is late that is produced within the lateness.

    Events are produced out of order, into any partition, during the reading of other events. A reader that pauses
    partitions that are too far ahead comes to the end.
    """
    lateness_ms, ahead_ms = 50, 100
    for seed in range(150):
        chance = random.Random(seed)
        produced = sorted(range(0, 2_000, 5), key=lambda ms: ms + chance.randrange(lateness_ms))
        waiting: dict[str, list[int]] = {name: [] for name in "abcd"[: chance.randint(1, 4)]}
        shares = [chance.choice((0.0, 0.1, 1.0)) + 0.01 for _ in waiting]
        job, now_ms = Partitions("".join(waiting), lateness_ms=lateness_ms), NOW_MS
        while produced or any(waiting.values()):
            for _ in range(chance.choice((0, 1, 30, 400))):
                if produced:
                    waiting[chance.choices(list(waiting), shares)[0]].append(produced.pop(0))
            paused = event_time.too_far_ahead(job.times, ahead_ms)
            assert not paused or {name for name, records in waiting.items() if records} - paused, "somebody is read"
            read: dict[str, tuple[int, ...]] = dict.fromkeys(waiting, ())
            for name in set(waiting) - paused:
                quota = chance.choice((0, 1, 5))
                read[name], waiting[name] = tuple(waiting[name][:quota]), waiting[name][quota:]
            now_ms += chance.choice((0, 1, 5, 3 * IDLE_MS))
            job.look(now_ms, read, "".join(name for name, records in waiting.items() if records))
        assert job.late == 0, f"seed {seed}"


def test_only_a_backlog_is_too_far_ahead() -> None:
    times = {"a": active(500, is_behind=True), "b": active(399, is_behind=True), "c": quiet(900)}
    assert event_time.too_far_ahead({**times, "d": active(300)}, 100) == {"a"}
    assert event_time.too_far_ahead({**times, "d": active(300, is_behind=True)}, 98) == {"a", "b"}
    assert event_time.too_far_ahead({**times, "d": active(TIME_MS_MIN, is_behind=True)}, 10**6) == {"a", "b"}, (
        "d comes first"
    )
    assert event_time.too_far_ahead({"a": times["a"], "c": times["c"]}, 100) == frozenset()


def test_a_burst_that_comes_partition_by_partition_makes_nothing_late() -> None:
    job = Partitions("abcd")
    for number, name in enumerate("abcd"):
        job.look(NOW_MS + number * IDLE_MS // 4, {name: tuple(range(0, 40_000, 100))})
    assert (job.late, job.watermark_ms) == (0, 39_900)


def test_a_burst_after_an_outage_makes_nothing_late() -> None:
    """The job may also stand still during the outage: only the first records count."""
    job = Partitions("ab")
    job.look(NOW_MS, {"a": (1_000,), "b": (1_000,)})
    job.settle(NOW_MS)
    now_ms = NOW_MS + HOUR_MS
    job.look(now_ms, {"a": (1_001, 400_000)})
    assert job.watermark_ms == 1_000, "b has its time again"
    job.look(now_ms + IDLE_MS, {"b": (1_002, 300_000)})
    assert (job.late, job.watermark_ms) == (0, 300_000)


def test_a_quiet_partition_lets_go_after_its_time() -> None:
    job = Partitions("ab")
    job.look(NOW_MS, {"a": (500,), "b": (100,)})
    for now_ms in range(NOW_MS + 1, NOW_MS + IDLE_MS + 1):
        job.look(now_ms, {"a": (500 + now_ms - NOW_MS,)})
        assert job.watermark_ms == 100
    assert event_time.next_look_ms(job.times, IDLE_MS, NOW_MS + IDLE_MS) == NOW_MS + IDLE_MS + 1
    job.look(NOW_MS + IDLE_MS + 1, {})
    assert job.watermark_ms == 500 + IDLE_MS
    assert job.settle(NOW_MS + IDLE_MS + 1) == NOW_MS + 2 * IDLE_MS + 1
    assert job.watermark_ms == 500 + IDLE_MS


def test_events_from_the_past_hold_nothing_back() -> None:
    """Old events come into a partition that has gone quiet, again and again: the others go on without it."""
    job = Partitions("ab")
    job.look(NOW_MS, {"a": (NOW_MS,), "b": (NOW_MS,)})
    for step in range(1, 100):
        now_ms = NOW_MS + step * IDLE_MS // 2
        job.look(now_ms, {"a": (now_ms,), "b": (100 + step,)})
        assert job.watermark_ms == (now_ms if step > 2 else NOW_MS)
    assert job.late == 99


def test_a_trickle_that_is_not_late_does_not_hold_the_others() -> None:
    """An outsider sends events into a quiet partition, each with the least time that is not late. The others go on."""
    for seed in range(100):
        chance = random.Random(seed)
        lateness_ms = chance.choice((0, 50))
        names = "ab"[: chance.randint(1, 2)]
        job, now_ms, last_ms = Partitions(names + "z", lateness_ms=lateness_ms), NOW_MS, NOW_MS
        job.look(now_ms, dict.fromkeys(names + "z", (NOW_MS,)))
        for step in range(300):
            now_ms += chance.choice((1, 2, IDLE_MS // 2))
            last_ms = max(last_ms + chance.choice((0, 0, 1)), job.watermark_ms)
            trickle = {"z": (last_ms,)} if chance.random() < 0.9 else {}
            job.look(now_ms, {**dict.fromkeys(names, (now_ms,)), **trickle})
            held_ms = now_ms - lateness_ms - job.watermark_ms
            assert held_ms <= lateness_ms + 3 * IDLE_MS, f"seed {seed}, step {step}"
        assert job.late == 0


def test_a_partition_that_comes_late_but_keeps_step_holds_the_others() -> None:
    """One of two partitions brings events an hour old, and keeps the pace of the clock: none of its events is late."""
    job = Partitions("ab")
    for step in range(200):
        now_ms = NOW_MS + step * IDLE_MS // 2
        job.look(now_ms, {"a": (now_ms,), "b": (now_ms - HOUR_MS,)})
    assert (job.late, job.watermark_ms) == (0, now_ms - HOUR_MS)


def test_a_burst_after_an_outage_that_begins_slowly_makes_nothing_late() -> None:
    """The first record after an hour is a moment after the last one. The other partition's records come later."""
    job = Partitions("ab")
    job.look(NOW_MS, {"a": (1_000,), "b": (1_000,)})
    now_ms = job.settle(NOW_MS) + HOUR_MS
    job.look(now_ms, {"a": (1_001,)})
    job.look(now_ms + IDLE_MS // 2, {"a": (1_002, 400_000)})
    job.look(now_ms + IDLE_MS, {"b": (1_002, 300_000)})
    assert (job.late, job.watermark_ms) == (0, 300_000)


def test_an_old_event_into_a_silent_job_wakes_nobody() -> None:
    job = Partitions("ab")
    job.look(NOW_MS, {"a": (NOW_MS,), "b": (NOW_MS - 50,)})
    now_ms = job.settle(NOW_MS) + 1
    job.look(now_ms, {"b": (100,)})
    assert event_time.next_look_ms(job.times, IDLE_MS, now_ms) == TIME_MS_MAX
    job.look(now_ms + 1, {"a": (now_ms + 1,)})  # and an event of now wakes both
    assert job.watermark_ms == NOW_MS
    assert event_time.next_look_ms(job.times, IDLE_MS, now_ms + 1) == now_ms + 1 + IDLE_MS + 1


def test_no_partition_makes_others_late_by_being_ahead() -> None:
    names = "abcdefghijkl"
    job = Partitions(names)
    for step in range(200):
        now_ms = NOW_MS + step
        read: dict[str, tuple[int, ...]] = dict.fromkeys(names, (now_ms - 3,))
        read["c"] = (now_ms - 3, now_ms + AHEAD_MS, now_ms + AHEAD_MS + 1, 4_000_000_000_000)
        job.look(now_ms, read)
        assert job.watermark_ms == now_ms - 3
    assert job.late == 0


def test_the_watermark_never_passes_the_clock_and_comes_to_the_end() -> None:
    """For any events: an event that arrives within the lateness of its time is never late."""
    for seed in range(200):
        chance = random.Random(seed)
        job, now_ms, times_ms = Partitions("abc"), NOW_MS, [0]
        for _ in range(40):
            now_ms += chance.choice([0, 1, 7, 100])
            read = {
                name: tuple(now_ms + chance.choice([-50, -1, 0, 1, 90, AHEAD_MS, AHEAD_MS + 1, HOUR_MS]) for _ in "ab")
                for name in chance.sample("abc", chance.randint(0, 3))
            }
            job.look(now_ms, read)
            times_ms += [ms for times in read.values() for ms in times if ms <= now_ms + AHEAD_MS]
            assert job.watermark_ms <= now_ms, f"seed {seed}"
        assert event_time.times_from_json(event_time.times_json(job.times)) == job.times
        end_ms = job.settle(now_ms)
        assert end_ms <= now_ms + AHEAD_MS + IDLE_MS + 1
        assert job.watermark_ms == max(times_ms), f"seed {seed}"


@pytest.mark.parametrize("seed", seeds(300, 60))
def test_events_of_now_make_nothing_of_a_backlog_late(seed: int) -> None:
    """Some of the events of a backlog are dated later than the others, up to now: alone, in bursts, in any piece."""
    chance = random.Random(seed)
    names, span_ms, lateness_ms = "abc"[: chance.randint(1, 3)], 3 * HOUR_MS, chance.choice((0, 60_000))
    now_ms = 100 * HOUR_MS
    waiting: dict[str, list[tuple[int, bool]]] = {}
    for name in names:
        count = chance.choice((5, 300, 3_000, 9_000))
        honest = sorted((chance.randrange(span_ms) for _ in range(count)), key=lambda ms: ms + chance.randrange(
            lateness_ms + 1))  # fmt: skip
        lane = [(now_ms - span_ms - 600_000 + ms, True) for ms in honest]
        for _ in range(1 + count // 2_000):
            place, size = chance.randrange(len(lane)), chance.choice((1, 5, 40))
            dated = now_ms - chance.choice((0, 1, HOUR_MS, 2 * HOUR_MS)) + chance.choice((0, 0, AHEAD_MS))
            lane[place:place] = [(dated, False)] * size
        waiting[name] = lane
    job, late, size = Partitions(names, now_ms, lateness_ms=lateness_ms), 0, chance.choice((7, 100, 900, 5_000))
    job.look(now_ms, dict.fromkeys(names, ()), names)
    while any(waiting.values()):
        now_ms += chance.choice((0, 5))
        read: dict[str, tuple[int, ...]] = {}
        for name in chance.sample(names, chance.randint(1, len(names))):
            quota = chance.randint(1, size)
            records, waiting[name] = waiting[name][:quota], waiting[name][quota:]
            late += sum(ms < job.watermark_ms for ms, is_honest in records if is_honest)
            read[name] = tuple(ms for ms, _ in records)
        job.look(now_ms, read, "".join(name for name, records in waiting.items() if records))
        assert all(len(time.counts_by_time) <= SUPPORT_PARTS_MAX for time in job.times.values())
    assert late == 0
    job.settle(now_ms)
    assert job.watermark_ms == max(time.latest_ms for time in job.times.values()) - lateness_ms


def test_a_backlog_moves_the_watermark_as_it_is_read() -> None:
    """Some thousand events of the backlog wait at a time, not all of them."""
    now_ms, count = 100 * HOUR_MS, 40_000
    for size in (10, 700, 5_000):
        job, times = Partitions("a", now_ms), range(now_ms - 2 * count * 100, now_ms - count * 100, 100)
        for start in range(0, count - size, size):
            job.look(now_ms, {"a": tuple(times[start : start + size])}, "a")
            waiting = sum(ms > job.watermark_ms for ms in times[: start + size])
            assert waiting <= 2 * SUPPORT_RECORDS_MIN + size // SUPPORT_SHARE + size


def test_a_partition_that_keeps_step_does_not_wait_for_support() -> None:
    job, now_ms = Partitions("a", 100 * HOUR_MS), 100 * HOUR_MS
    job.look(now_ms, {"a": (now_ms - 5,)})
    for _ in range(50):
        now_ms += 10
        job.look(now_ms, {"a": (now_ms - 3,)}, "a")
        assert job.watermark_ms == now_ms - 3


def test_a_job_that_ends_within_a_backlog_counts_all_of_it() -> None:
    job = Partitions("a", 100 * HOUR_MS)
    job.look(100 * HOUR_MS, {"a": (5, 90 * HOUR_MS)}, "a")
    assert job.watermark_ms == TIME_MS_MIN
    end = event_time.merge_times(
        job.times, event_time.TimesRead({}, now_ms=100 * HOUR_MS, is_end=True), IDLE_MS, TIME_MS_MIN, AHEAD_MS
    )
    assert end["a"].last_ms == 90 * HOUR_MS


def test_a_producer_whose_clock_is_ahead_does_not_stop_the_job() -> None:
    job = Partitions("a")
    for step in range(100):
        job.look(NOW_MS + step, {"a": (NOW_MS + step + 20,)})
    assert job.watermark_ms >= NOW_MS + 99 - 2 * 20


def test_without_a_bound_the_clock_does_not_count() -> None:
    job = Partitions("a", ahead_ms=None)
    job.look(NOW_MS, {"a": (4_000_000_000_000,)})
    assert job.watermark_ms == 4_000_000_000_000


def test_one_clock_gives_the_same_however_the_input_is_cut() -> None:
    for seed in range(100):
        chance = random.Random(seed)
        job = Partitions("ab")
        parts = [
            event_time.TimesRead(
                {
                    name: event_time.read_time(
                        np.array([NOW_MS + chance.randint(-99, 99)]), NOW_MS, AHEAD_MS, is_behind=False
                    )
                    for name in chance.sample("abc", chance.randint(0, 3))
                },
                now_ms=NOW_MS,
            )
            for _ in range(3)
        ]
        whole, stepwise = event_time.TimesRead({}), job.times
        for part in parts:
            whole, stepwise = whole.joined(part), event_time.merge_times(stepwise, part, IDLE_MS)
        assert event_time.TimesRead.from_bytes(whole.to_bytes()) == whole
        assert event_time.merge_times(job.times, whole, IDLE_MS) == stepwise, f"seed {seed}"


def test_a_clock_that_goes_back_begins_to_count_anew() -> None:
    job = Partitions("ab")
    job.look(NOW_MS, {"a": (500,), "b": (100,)})
    job.look(NOW_MS - HOUR_MS, {"a": (600,)})
    assert job.watermark_ms == 100
    job.look(NOW_MS - HOUR_MS + IDLE_MS + 1, {})
    assert job.watermark_ms == 600


def test_times_of_an_earlier_build_count_from_the_first_micro_batch() -> None:
    times = event_time.times_from_json({"a": [500, False], "b": [100, False]})
    assert times == {"a": event_time.PartitionTime(500), "b": event_time.PartitionTime(100)}
    assert event_time.merge_times(times, event_time.TimesRead({}, now_ms=NOW_MS), IDLE_MS)["b"].active_ms == NOW_MS


def test_times_only_grow_and_the_last_look_says_whether_more_waits() -> None:
    before = {"a": event_time.PartitionTime(9, is_behind=True), "b": event_time.PartitionTime(1, is_behind=True)}
    read = event_time.TimesRead({"a": event_time.PartitionTime(4), "c": event_time.PartitionTime(2, is_behind=True)})
    assert event_time.merge_times(before, read, IDLE_MS) == {
        "a": event_time.PartitionTime(9, False, event_time.NO_CLOCK),
        "b": event_time.PartitionTime(1, True, event_time.NO_CLOCK),
        "c": event_time.PartitionTime(2, True, event_time.NO_CLOCK),
    }


def test_events_of_one_time_wait_for_each_other_unless_one_partition_has_them_in_order() -> None:
    assert (event_time.due_before(50, at_once=False), event_time.due_before(50, at_once=True)) == (50, 51)
