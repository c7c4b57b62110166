"""Approximate histories: buckets and hashes are within the stated error, and the same in any split."""

import math
from collections.abc import Iterator
from fractions import Fraction
from random import Random

import datasketches
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cep.base.limits import DISTINCT_HASHES_MAX, EVENT_TIME_MS_MIN
from cep.base.schema import Kind, Type
from cep.columnar.batch import TEXT
from cep.engine.advance import advance
from cep.engine.keyed_state import KeyedState
from cep.histories.numbers.panes import (
    NO_PANES,
    PaneRows,
    PaneWindows,
    bucket_middles,
    buckets,
    estimated,
    hashes,
    merge_panes_and_events,
)
from cep.histories.store import Histories
from cep.kernels.histories.sketches import keep_least
from cep.lang.ir import History
from cep.nfa.program import Program
from tests.engine.bridge import batch_of, event_id, split, through_bytes, whole
from tests.histories.test_reach import program_over, written_of
from tests.histories.test_values import engine_values
from tests.oracle.expressions import Value, bucket_middle, in_panes
from tests.oracle.matcher import Event

START_MS, HOUR_MS, DAY_MS = 1_700_000_000_000, 3_600_000, 86_400_000
DISTINCT = "approx_distinct(pay.size over 300 ms) > 1"
RANK = "approx_percentile(pay.amount over 90 d, 95) > 1.0"


def payment(order: int, time_ms: int, key: str, size: int) -> Event:
    fields: dict[str, Value] = {"id": event_id(order), "event_time": time_ms, "key": key, "amount": size * 10}
    return Event(order, "pay", time_ms, order, {**fields, "size": size, "way": 0, "weight": 0.5})


def least(past: list[Event], expr: History, most: int) -> int:
    """Return the value by definition: exact up to `most`, above that estimated from the hash of that rank."""
    inside = [event for event in past if in_panes(expr.window, event, past[-1])]
    sizes = np.array(sorted({int(event.fields["size"] or 0) for event in inside}), np.int64)
    codes = np.sort(hashes(sizes, Type(Kind.INT), pa.array([], TEXT)))
    return len(codes) if len(codes) <= most else round((most - 1) / ((int(codes[most - 1]) + 1) / 2**63))


@pytest.mark.parametrize("seed", range(8))
def test_past_the_limit_a_window_is_told_from_its_least_hashes_in_any_split(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cep.histories.numbers.panes.DISTINCT_HASHES_MAX", 4)
    monkeypatch.setattr("cep.histories.numbers.panes.DISTINCT_HASHES_MAX", 4)
    random, time_ms = Random(seed), START_MS
    events: dict[str, list[Event]] = {"x": [], "y": []}
    for order in range(120):
        time_ms += random.choice((0, 1, 2, 7, 30))
        key = random.choice("xxxy")
        events[key].append(payment(order, time_ms, key, random.randint(0, random.choice((3, 40)))))
    program = program_over(DISTINCT, DISTINCT.replace("over", "over previous"))
    (expr, previous), batch = written_of(program), batch_of(program.schema, events)
    expected = {
        event_id(e.order): least(key_events[: index + 1], expr, 4)
        for key_events in events.values()
        for index, e in enumerate(key_events)
    }
    assert max(expected.values()) > 4
    values_by_event = engine_values(program, whole(batch), [expr, previous])
    assert {event: values[0] for event, values in values_by_event.items()} == expected
    for _ in range(3):
        assert engine_values(program, split(batch, random), [expr, previous]) == values_by_event


def test_equal_panes_of_different_histories_are_kept_once() -> None:
    program = program_over(RANK, RANK.replace("95", "50"), RANK.replace("over", "over previous"), DISTINCT)
    assert program.histories is not None
    assert len(program.histories.panes) == 2


def fed(program: Program, state: KeyedState | None, events: list[Event]) -> KeyedState:
    """Return the state after a micro-batch, passed through bytes as in a runner."""
    batch = batch_of(program.schema, {"x": events})
    watermark_ms = int(batch.time_ms[-1])
    return through_bytes(program, advance(program, state, batch, watermark_ms).keyed_state, watermark_ms)


def after_each(program: Program, batches: int, of_batch: int, pause_ms: int) -> Iterator[Histories]:
    random, state = Random(5), None
    for number in range(batches):
        times = [START_MS + (number * of_batch + index) * pause_ms for index in range(of_batch)]
        events = [
            payment(number * of_batch + index, ms, "x", random.randint(0, 100_000)) for index, ms in enumerate(times)
        ]
        state = fed(program, state, events)
        yield state.histories


def test_state_does_not_grow_with_the_events_of_a_window() -> None:
    """In 90 days a pane is 33 hours long: many more events go into the same panes and take the same bytes."""
    program = program_over(RANK, "approx_distinct(pay.size over 90 d) > 1")
    few, many = (
        list(after_each(program, 25, 400, pause_ms))[-1] for pause_ms in (6 * 60_000, 60_000)
    )  # 42 days or 7 days
    rows = [sum(map(len, state.segments)) for state in (few, many)]
    assert all(segment.panes_number for state in (few, many) for segment in state.segments)
    assert rows[1] < rows[0] < 10_000, "not a row for each of 10 000 events and functions"
    steady = [sum(map(len, state.segments)) for state in after_each(program, 60, 400, 60_000)]
    assert steady[-1] < 2.2 * steady[24], "of twice and a half the events"


def test_codes_of_any_size_are_joined() -> None:
    """Segments store codes in the smallest type that fits."""
    program, state = program_over(RANK.replace("pay.amount", "pay.weight"), DISTINCT), None
    numbers = [(1.0, 1), (1e300, 2), (-1e-300, 3), (0.0, 4)] * 6
    for index, (weight, size) in enumerate(numbers):
        event = payment(index, START_MS + index, "x", size)
        state = fed(program, state, [Event(index, "pay", event.time_ms, index, {**event.fields, "weight": weight})])
    assert state is not None
    assert len(state.histories.segments) <= 6
    assert sum(map(len, state.histories.segments)) <= 3 * 8


def test_panes_leave_with_their_window() -> None:
    program, state = program_over("approx_distinct(pay.size over 1 h) > 1"), None
    for number in range(30):
        times = [START_MS + number * 10 * 60_000 + index for index in range(50)]
        state = fed(
            program, state, [payment(number * 50 + index, ms, "x", index + number) for index, ms in enumerate(times)]
        )
    assert state is not None
    assert sum(map(len, state.histories.segments)) <= 3 * 100, "79 values in the last hour"
    later = batch_of(program.schema, {"z": [payment(9_999, START_MS + DAY_MS, "z", 1)]})
    rest = through_bytes(program, advance(program, state, later, START_MS + DAY_MS).keyed_state, START_MS + DAY_MS)
    assert sum(map(len, rest.histories.segments)) == 1


def test_a_rule_that_comes_back_counts_what_came_since() -> None:
    program, other = program_over(DISTINCT.replace("300 ms", "90 d")), program_over("exists(login)")
    (expr,) = written_of(program)
    first = [payment(index, START_MS + index, "x", index) for index in range(5)]
    between = [payment(10 + index, START_MS + HOUR_MS + index, "x", 50 + index) for index in range(3)]
    last = [payment(20 + index, START_MS + 2 * HOUR_MS + index, "x", index) for index in range(2)]
    batch = batch_of(program.schema, {"x": last})
    state = fed(program, None, first)
    stayed = engine_values(program, [(batch, START_MS)], [expr], fed(program, state, between))
    assert list(stayed.values()) == [[8], [8]]
    came_back = engine_values(program, [(batch, START_MS)], [expr], fed(other, state, between))
    assert list(came_back.values()) == [[1], [2]]


INT, MONEY, FLOAT, WORD = Type(Kind.INT), Type(Kind.DECIMAL, scale=2), Type(Kind.FLOAT), Type(Kind.STRING)
NO_TEXTS = pa.array([], TEXT)
# The standard error of distinct counts past the limit.
DISTINCT_ERROR = 1 / math.sqrt(DISTINCT_HASHES_MAX - 2)


def stands_for(values: np.ndarray, type_: Type) -> np.ndarray:
    slots = values.view(np.int64) if type_.is_float else values
    return bucket_middles(buckets(slots, type_), type_)


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1), st.sampled_from([INT, MONEY]))
@example([0, 1, -1, 63, 64, 65, -64, 2**53 + 1], INT)
@example([2_094_173_826_727_281], INT)
@example([2**52 + 2**50 + 1, 2**53 - 1], MONEY)
def test_whole_numbers_are_one_percent_off_at_most(numbers: list[int], type_: Type) -> None:
    bucket_middles = stands_for(np.array(numbers, np.int64), type_).tolist()
    units = 10**type_.scale
    for number, middle in zip(numbers, bucket_middles, strict=True):
        exact = Fraction(number, units)
        assert abs(Fraction(middle) - exact) <= abs(exact) * Fraction(1_000_001, 100_000_000)
        assert abs(number) >= 64 or middle == number / units
        if abs(number) < 2**53:
            assert middle == bucket_middle(number, units)


@given(st.lists(st.floats(allow_nan=False, allow_subnormal=False), min_size=1))
@example([0.0, -0.0, math.inf, -math.inf, 2.0, 1.9999999999999998, 1.7e308, 2.3e-308])
def test_floats_are_one_percent_off_at_most_and_keep_their_order(numbers: list[float]) -> None:
    values = np.array(sorted(numbers))
    codes = buckets(values.view(np.int64), FLOAT)
    assert (np.diff(codes) >= 0).all()
    for number, middle in zip(values.tolist(), bucket_middles(codes, FLOAT).tolist(), strict=True):
        assert middle == number or abs(middle - number) <= abs(number) * 0.010000000001
        if math.isfinite(number):
            assert middle == bucket_middle(number, None)


def test_what_is_no_number_has_a_bucket_of_its_own() -> None:
    assert np.isnan(stands_for(np.array([math.nan]), FLOAT)).all()


def least_of(slots: np.ndarray, type_: Type, texts: pa.Array = NO_TEXTS) -> int:
    """Return the estimate for these different values."""
    codes = np.unique(hashes(slots, type_, texts))
    last_code = codes[min(len(codes), DISTINCT_HASHES_MAX) - 1 :][:1]
    return int(estimated(np.array([len(codes)], np.int64), last_code)[0])


@pytest.mark.parametrize("count", [1, 100, DISTINCT_HASHES_MAX])
def test_few_different_values_are_counted_exactly(count: int) -> None:
    random = Random(count)
    words = pa.array([f"m{random.randrange(10**9)}-{number}" for number in range(count)], TEXT)
    assert least_of(np.arange(count), WORD, words) == count
    assert least_of(np.arange(count) * 100, INT) == count
    assert least_of(np.arange(count, dtype=np.float64).view(np.int64), FLOAT) == count


@pytest.mark.parametrize("count", [DISTINCT_HASHES_MAX + 1, 5_000, 60_000])
def test_many_are_off_as_stated_and_no_more_than_those_of_the_library(count: int) -> None:
    ours, theirs = [], []
    for trial in range(40):
        slots = np.arange(count, dtype=np.int64) * 7 + trial * 10**9
        ours.append(least_of(slots, INT) / count - 1)
        sketch = datasketches.update_theta_sketch(10, seed=trial + 1)  # 2^10: the same number of hashes as in cep
        for slot in slots.tolist():
            sketch.update(slot)
        theirs.append(sketch.get_estimate() / count - 1)
    assert np.sqrt(np.mean(np.square(ours))) <= 1.3 * DISTINCT_ERROR
    assert np.sqrt(np.mean(np.square(ours))) <= 1.5 * max(np.sqrt(np.mean(np.square(theirs))), DISTINCT_ERROR / 1.5)
    assert max(map(abs, ours)) <= 4.5 * DISTINCT_ERROR


def test_texts_that_count_alike_differ() -> None:
    words = pa.array([f"merchant-{number:06}" for number in range(50_000)], TEXT)
    assert abs(least_of(np.arange(50_000), WORD, words) / 50_000 - 1) <= 4.5 * DISTINCT_ERROR


@pytest.mark.parametrize("percent", [1, 50, 95, 99])
def test_percentiles_are_within_what_the_library_says(percent: int) -> None:
    """The error is at most one percent by nearest rank, and within the error of the library's own ranks."""
    values = np.exp(np.random.default_rng(percent).normal(4, 2, 20_000))
    codes = np.sort(buckets(values.view(np.int64), FLOAT))
    rank = math.ceil(percent * len(values) / 100)
    (ours,) = bucket_middles(codes[rank - 1 : rank], FLOAT).tolist()
    exact = float(np.sort(values)[rank - 1])
    assert abs(ours - exact) <= 0.01 * exact
    sketch = datasketches.kll_doubles_sketch(200)
    sketch.update(values)
    off = sketch.normalized_rank_error(False)
    least, most = (sketch.get_quantile(min(max(percent / 100 + side * 2 * off, 0.0), 1.0)) for side in (-1, 1))
    assert least * 0.99 <= ours <= most * 1.01


def test_a_distant_time_leaves_many_keys_in_order() -> None:
    key, time_ms = np.array([0, 150_000, 200_000]), np.array([EVENT_TIME_MS_MIN, 1_700_000_000_000, 1_700_000_000_001])
    zeros, is_new = np.zeros(3, np.int64), np.ones(3, bool)
    events = PaneRows(key, time_ms, zeros, zeros + 1, zeros)
    merged = merge_panes_and_events(NO_PANES, events, is_new, PaneWindows(key, time_ms, np.arange(1, 4)))
    assert merged.rows.key.tolist() == key.tolist()
    assert (merged.highs - merged.lows).tolist() == [1, 1, 1]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 5)), min_size=1, max_size=60),
    st.integers(1, 6),
)
def test_what_is_let_go_is_in_no_window_among_the_least(rows: list[tuple[int, int, int]], most: int) -> None:
    """Dropping rows (group, hash, pane) does not change the least hashes of any window that ends now."""
    newest = {(group, code): pane for group, code, pane in sorted(rows, key=lambda row: row[2])}
    ordered = [(group, code, newest[group, code]) for group, code in sorted(newest)]
    group, code, pane = (np.array(column, np.int64) for column in zip(*ordered, strict=True))
    is_kept = np.ones(len(group), np.uint8)
    keep_least(group, pane, 6, most, is_kept)
    for number in set(group.tolist()):
        for first in range(6):
            is_inside = (group == number) & (pane >= first)
            assert code[is_inside][:most].tolist() == code[is_inside & (is_kept == 1)][:most].tolist()
