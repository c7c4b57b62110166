"""Buckets and hashes stay within the stated error, and are as exact as a well-maintained library."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

import datasketches
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cep.base.limits import DISTINCT_HASHES_MAX
from cep.base.schema import Kind, Type
from cep.columnar.batch import TEXT
from cep.histories.numbers.panes import buckets, estimated, hashes, middles
from cep.kernels.histories.sketches import keep_least
from tests.oracle.histories import bucket_middle

INT, MONEY, FLOAT, WORD = Type(Kind.INT), Type(Kind.DECIMAL, scale=2), Type(Kind.FLOAT), Type(Kind.STRING)
NO_TEXTS = pa.array([], TEXT)
# The standard error of distinct counts past the limit.
DISTINCT_ERROR = 1 / math.sqrt(DISTINCT_HASHES_MAX - 2)


def stands_for(values: np.ndarray, type_: Type) -> np.ndarray:
    slots = values.view(np.int64) if type_.is_float else values
    return middles(buckets(slots, type_), type_)


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1), st.sampled_from([INT, MONEY]))
@example([0, 1, -1, 63, 64, 65, -64, 2**53 + 1], INT)
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
    for number, middle in zip(values.tolist(), middles(codes, FLOAT).tolist(), strict=True):
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
    (ours,) = middles(codes[rank - 1 : rank], FLOAT).tolist()
    exact = float(np.sort(values)[rank - 1])
    assert abs(ours - exact) <= 0.01 * exact
    sketch = datasketches.kll_doubles_sketch(200)
    sketch.update(values)
    off = sketch.normalized_rank_error(False)
    least, most = (sketch.get_quantile(min(max(percent / 100 + side * 2 * off, 0.0), 1.0)) for side in (-1, 1))
    assert least * 0.99 <= ours <= most * 1.01


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
